"""Real LongMemEval instances, end to end and without a model; and the whole S file where it is there.

The data is not part of this project. It is looked for in the folder that MEMTRIALS_REAL_DATA names, else in
`shared/data` beside the repository; without it every test here is skipped. Only numbers are kept here.
"""

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from memtrials.benchmarks.base import Loaded, LoadOptions
from memtrials.benchmarks.longmemeval import BENCHMARK, FILES, QUESTION, moment
from memtrials.records import Gold
from support.cli import call_cli
from support.longmemeval import COUNTS
from support.trials import records, stage

DATA = Path(os.environ.get("MEMTRIALS_REAL_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
S = DATA / "longmemeval" / "longmemeval_s_e47becba.json"
ORACLE = DATA / "longmemeval" / "longmemeval_oracle_2.json"
WHOLE = DATA / "longmemeval" / FILES["s"]

pytestmark = pytest.mark.skipif(
    not (S.is_file() and ORACLE.is_file()),
    reason="no LongMemEval instances there; set MEMTRIALS_REAL_DATA to the folder that holds longmemeval/",
)


@pytest.fixture(scope="module")
def s() -> Loaded:
    return BENCHMARK.load(S, LoadOptions(allow_modified=True))


@pytest.fixture(scope="module")
def oracle() -> Loaded:
    return BENCHMARK.load(ORACLE, LoadOptions(allow_modified=True))


def gold(found: Loaded, task: str) -> Gold:
    return next(body.gold_of(QUESTION) for name, _, body in found.tasks if name == task)


def timeline(found: Loaded, number: int = 0) -> list[Any]:
    name, _, body = found.tasks[number]
    return BENCHMARK.sessions(Path(body.data), found.name, name, body)


def user_turn_ids(gold: Gold) -> list[str]:
    """The published names of evidence turns: session id, `_`, place from 1; the user's alone."""
    return [
        f"{session}_{place}"
        for session, letters in json.loads(gold.details["timeline"])
        for place, letter in enumerate(letters, 1)
        if letter == "U"
    ]


def test_the_s_instance(s: Loaded):
    ((name, type_, body),) = s.tasks
    assert (name, type_, len(body.sessions), body.turns) == ("e47becba", "single-session-user", 53, 550)
    (query,) = body.queries
    assert query.date == "2023/05/30 (Tue) 23:40"
    sessions = timeline(s)
    assert sum(session.turns[0].role == "assistant" for session in sessions) == 4
    assert sum(len(session.turns) % 2 for session in sessions) == 4
    assert s.release.constants["blank_turns"] == 0
    told = gold(s, name)
    assert told.answers == ("Business Administration",)
    assert len(told.evidence) == 2
    names = [session for session, _ in json.loads(told.details["timeline"])]
    kinds = Counter(re.match(r"answer|sharegpt|ultrachat|", name)[0] or "hex" for name in names)  # type: ignore[index]
    assert kinds == {"hex": 23, "sharegpt": 15, "ultrachat": 14, "answer": 1}
    assert user_turn_ids(told) == ["answer_280352e9_5"]


def test_the_oracle_instances(oracle: Loaded):
    assert [(name, type_, len(body.sessions), body.turns) for name, type_, body in oracle.tasks] == [
        ("6a1eabeb", "knowledge-update", 2, 24),
        ("gpt4_70e84552_abs", "temporal-reasoning", 2, 24),
    ]
    assert user_turn_ids(gold(oracle, "6a1eabeb")) == ["answer_a25d4a91_1_5", "answer_a25d4a91_2_1"]
    unanswerable = gold(oracle, "gpt4_70e84552_abs")
    assert unanswerable.abstention
    assert unanswerable.evidence
    asked = moment(oracle.tasks[1][2].queries[0].date or "")
    last = moment(timeline(oracle, 1)[1].time)
    assert (asked.hour, asked.minute, last.hour, last.minute) == (8, 8, 8, 29)
    assert asked.date() == last.date()
    assert "1 of 4 sessions are later by the clock, 0 by the day" in oracle.notes[0]


def test_offline_to_a_table_and_nothing_left_for_a_second_run(tmp_path: Path):
    trials = tmp_path / "trials.json"
    commands = (
        ("build", "longmemeval", "--data", str(S), "--allow-modified"),
        ("replay", "hybrid", "bm25", "none"),
        ("fetch",),
        ("answer",),
        ("judge",),
    )
    done = [stage(trials, *command)["done"] for command in commands]
    assert done == [1, 3, 3, 3, 3]
    assert [stage(trials, *command)["appended"] for command in commands] == [0] * 5
    (task,) = records(trials, "task")
    assert len(trials.read_bytes()) < S.stat().st_size / 10  # timelines stay where they are
    assert {ingest["body"]["turns"] for ingest in records(trials, "ingest")} == {550}
    evidence = set(task["body"]["gold"][0]["evidence"])
    found = {
        r["body"].get("items") and any(evidence & set(item["turn_ids"]) for item in r["body"]["items"])
        for r in records(trials, "retrieval")
    }
    assert True in found
    printed = call_cli("metrics", "--trials", str(trials), env={"COLUMNS": "200"}).out
    for text in ("longmemeval@modified-", "gold-contained", "hybrid", "context tokens"):
        assert text in printed


@pytest.mark.skipif(not WHOLE.is_file(), reason=f"{FILES['s']} isn't there; `memtrials data get longmemeval@s` gets it")
def test_the_whole_s_file():
    found = BENCHMARK.load(WHOLE, LoadOptions("s"))
    assert found.name == "longmemeval@s"
    assert found.release.constants == {
        "questions": 500,
        "abstention": 30,
        "sessions": 23_867,
        "turns": 246_750,
        "blank_turns": 12,
    }
    assert Counter(type_ for _, type_, _ in found.tasks) == {type_: sum(count) for type_, count in COUNTS.items()}
    golds = [body.gold_of(QUESTION) for _, _, body in found.tasks]
    assert sum("number" in gold.details for gold in golds) == 32
    assert sum(len(gold.evidence) for gold in golds) == 896
    assert sum(not user_turn_ids(gold) for gold in golds if not gold.abstention) == 51
    assert len({body.queries[0].cluster for _, _, body in found.tasks}) == 471
    assert "0 by the day" in found.notes[0]
