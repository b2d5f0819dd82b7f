"""InMind as released, end to end and without a model: its counts, its timelines, and what each bundled system finds.

The data is not part of this project. It is looked for in the folder that MEMTRIALS_REAL_DATA names, else in
`shared/data` beside the repository; without it every test here is skipped. Only numbers are kept here.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from memtrials.tokens import count_tokens
from support.cli import call_cli

DATA = Path(os.environ.get("MEMTRIALS_REAL_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
RELEASE = DATA / "inmind"
TASKS = RELEASE / "benchmark" / "dataset" / "inmind.jsonl"
BACKGROUND = RELEASE / "evaluation" / "background" / "lme_s_background.jsonl"

pytestmark = pytest.mark.skipif(
    not (TASKS.is_file() and BACKGROUND.is_file()),
    reason="no InMind release there; set MEMTRIALS_REAL_DATA to the folder that holds inmind/",
)

Row = dict[str, Any]

STATEFUL = ("bm25", "vector", "hybrid", "none", "in-context")
SINGLE_SHOT = ("bm25", "vector", "hybrid")
"""The retrievers of `naive-rag`, each from a TOML file of its own."""

EXPECTED = {
    "bm25": (56, 3),
    "vector": (87, 4),
    "hybrid": (64, 4),
    "in-context": (125, 125),
    "none": (0, 0),
    "naive-bm25": (71, 5),
    "naive-vector": (94, 4),
    "naive-hybrid": (79, 3),
}
"""Of 125 tasks: how often the fact stands verbatim among the first 10, for the direct and the indirect query."""


def rows(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def sessions(background: list[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in background:
        found.setdefault(row["id"].rpartition("-turn-")[0], []).append(row)
    return found


@pytest.fixture(scope="module")
def tasks() -> list[Row]:
    return rows(TASKS)


@pytest.fixture(scope="module")
def background() -> list[Row]:
    return rows(BACKGROUND)


# The data


def test_tasks_and_their_ids(tasks: list[Row]):
    ids = [task["task_id"] for task in tasks]
    assert len(ids) == len(set(ids)) == 125
    assert (min(ids), max(ids)) == (0, 225)


def test_domains(tasks: list[Row]):
    assert Counter(task["domain"] for task in tasks) == {
        "health_and_wellness": 46,
        "professional_and_career": 26,
        "relationships": 16,
        "financial": 8,
        "legal": 7,
        "spirituality": 7,
        "consumer": 5,
        "parenting": 4,
        "personal_development": 3,
        "other": 3,
    }


def test_what_is_null_and_where_tasks_are_from(tasks: list[Row]):
    assert sum(all(task[name] is None for name in ("entity_1", "entity_2", "relation")) for task in tasks) == 36
    provenance = [task["provenance"] for task in tasks]
    assert sum("knowledge_source" in some for some in provenance) == 89
    assert sorted(Counter(some["source_dataset"] for some in provenance).values()) == [36, 89]
    assert Counter(some.get("annotation_status") for some in provenance) == {"pass": 88, None: 36, "fail": 1}


def test_distinct_texts(tasks: list[Row]):
    distinct = {name: len({task[name] for task in tasks}) for name in ("user_message", "naive_query", "query")}
    assert distinct == {"user_message": 122, "naive_query": 115, "query": 125}


def test_the_background(background: list[Row]):
    blocks = sessions(background)
    assert Counter(row["role"] for row in background) == {"user": 240, "assistant": 246}
    assert (len(background), len(blocks)) == (486, 47)
    sizes = [len(some) for some in blocks.values()]
    assert (min(sizes), max(sizes), sum(size % 2 for size in sizes)) == (1, 16, 6)
    assert sum(some[0]["role"] == "assistant" for some in blocks.values()) == 6
    assert [row for some in blocks.values() for row in some] == background


def test_no_fact_stands_in_the_background(tasks: list[Row], background: list[Row]):
    text = "\n".join(row["content"] for row in background)
    assert not [task["task_id"] for task in tasks if task["user_message"] in text]


def test_every_background_turn_ends_with_its_time_and_no_target_does(tasks: list[Row], background: list[Row]):
    for row in background:
        (time,) = row["timestamp_mapping"].values()
        assert row["content"].endswith(f"\n---TIMESTAMP: {time}")
    assert not any("---TIMESTAMP" in task[name] for task in tasks for name in ("user_message", "assistant_message"))


def test_times_are_in_order_by_day_only(background: list[Row]):
    began = [next(iter(some[0]["timestamp_mapping"].values())) for some in sessions(background).values()]
    times = [datetime.strptime(f"{text[:10]} {text[-5:]}", "%Y/%m/%d %H:%M") for text in began]  # noqa: DTZ007
    assert (times[0].date().isoformat(), times[-1].date().isoformat()) == ("2022-10-03", "2023-02-18")
    pairs = list(pairwise(times))
    assert all(one.date() <= other.date() for one, other in pairs)
    assert sum(other < one for one, other in pairs) == 15


def test_lengths_and_tokens(background: list[Row]):
    lengths = [len(row["content"]) for row in background]
    assert (min(lengths), max(lengths)) == (41, 15_375)
    assert sum(count_tokens(row["content"]) for row in background) == 110_501
    assert sum(count_tokens(row["content"].rpartition("\n---TIMESTAMP: ")[0]) for row in background) == 101_734


# Timelines


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A ledger with everything that is measured here, its states and a cache of its own; removed afterwards."""
    folder = tmp_path_factory.mktemp("inmind")
    for retriever in SINGLE_SHOT:
        text = f'[state]\nsystem = "naive-rag"\nretriever = "{retriever}"\n[fetch]\nk = 10\n'
        (folder / f"naive-{retriever}.toml").write_text(text)
    trials = folder / "trials.json"
    stage(trials, "build", "inmind", "--data", str(RELEASE), "--export-timelines", str(folder / "timelines"))
    yield trials
    shutil.rmtree(folder)


def stage(trials: Path, *arguments: str) -> dict[str, Any]:
    """A stage's `--json` outcome."""
    env = {"MEMTRIALS_CACHE": str(trials.parent / "cache")}
    done = call_cli(*arguments, "--trials", str(trials), "--json", env=env)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def test_the_release_is_known_and_built_whole(ledger: Path):
    again = stage(ledger, "build", "inmind", "--data", str(RELEASE))
    assert (again["benchmark"], again["tasks"], again["pending"], again["appended"]) == ("inmind@released", 125, 0, 0)
    assert "task 114: its annotation_status is fail; it is kept, as in the release" in again["notes"]
    assert any("MIT" in note for note in again["notes"])
    assert again["constants"] == {
        "turns": 486,
        "sessions": 47,
        "user_turns": 240,
        "assistant_turns": 246,
        "injection_session_index": 8,
        "injection_session_number": 9,
        "phase_a_sessions": 8,
        "prefix_user_turns": 35,
        "injection_user_turn_locator": 40,
        "background_user_turns_before_target": 41,
        "post_injection_sessions": 38,
    }


def test_stripped_is_a_variant_of_its_own(tmp_path: Path):
    bare = stage(tmp_path / "trials.json", "build", "inmind@stripped", "--data", str(RELEASE), "--dry-run")
    assert (bare["benchmark"], bare["pending"]) == ("inmind@stripped", 125)


def test_every_timeline_in_exchange_form(ledger: Path, tasks: list[Row], background: list[Row]):
    exported = {}
    for path in (ledger.parent / "timelines").iterdir():
        timeline = json.loads(path.read_text("utf-8"))
        exported[timeline["task_id"]] = timeline
    assert set(exported) == {task["task_id"] for task in tasks}
    names = list(sessions(background))
    for task in tasks:
        timeline = exported[task["task_id"]]
        assert [session["session_id"] for session in timeline["sessions"]] == names
        turns = [turn for session in timeline["sessions"] for turn in session["turns"]]
        assert len(turns) == 488
        target = timeline["sessions"][8]["turns"][-2:]
        number = task["task_id"]
        assert target == [
            {
                "id": f"inmind-task-{number}-turn-{n}",
                "role": role,
                "content": task[f"{role}_message"],
                "source": "inmind_target",
            }
            for n, role in enumerate(("user", "assistant"))
        ]
        assert [turn for turn in turns if turn not in target] == [
            {**r, "source": "lme_s_background"} for r in background
        ]
        assert timeline["queries"] == {"naive_query": task["naive_query"], "query": task["query"]}
        protocol = timeline["protocol"]
        assert protocol.pop("query_state_policy")
        assert protocol == {
            "name": "inmind-middle-injection-v1",
            "background_sessions": 47,
            "background_turns": 486,
            "injection_session_index": 8,
            "injection_session_number": 9,
            "phase_a_sessions": 8,
            "prefix_user_turns": 35,
            "injection_user_turn_locator": 40,
            "background_user_turns_before_target": 41,
            "post_injection_sessions": 38,
            "target_position": "end_of_injection_session",
        }


# The offline run


@pytest.fixture(scope="module")
def run(ledger: Path) -> Path:
    """Every stage over eight systems at k = 10."""
    names = [*STATEFUL, *(str(ledger.parent / f"naive-{retriever}.toml") for retriever in SINGLE_SHOT)]
    count = len(names)
    for arguments, owed in (
        (["replay", *names], 125 * count),
        (["fetch", "--k", "10"], 250 * count),
        (["answer"], 250 * count),
        (["judge"], 250 * count),
    ):
        outcome = stage(ledger, *arguments)
        assert (outcome["pending"], outcome["done"], outcome["failed"], outcome["left"]) == (owed, owed, 0, 0)
        again = stage(ledger, *arguments)
        assert (again["pending"], again["appended"]) == (0, 0)
    return ledger


@pytest.fixture(scope="module")
def report(run: Path) -> dict[str, Any]:
    return stage(run, "metrics")


def number(report: dict[str, Any], system: str, metric: str) -> Row:
    (found,) = [n for n in report["numbers"] if n["system_name"] == system and n["metric"] == metric]
    return dict(found)


def test_every_system_has_all_its_records(run: Path):
    counts = Counter()
    with run.open("rb") as file:
        for line in file:
            head = line.partition(b',"body":')[0]
            if b'"system":"' in head:
                header = json.loads(head + b"}")
                counts[header["kind"], header["system"].rpartition("-")[0]] += 1
    for system in EXPECTED:
        assert {kind: counts[kind, system] for kind in ("ingest", "retrieval", "answer", "verdict")} == {
            "ingest": 125,
            "retrieval": 250,
            "answer": 250,
            "verdict": 250,
        }


@pytest.mark.parametrize("system", EXPECTED)
def test_what_a_system_finds(report: dict[str, Any], system: str):
    for metric, right in zip(("direct-verbatim", "target-verbatim"), EXPECTED[system], strict=True):
        found = number(report, system, metric)
        assert (found["value"], found["n"], found["of"]) == (right / 125, 125, 125)
        assert (found["status"], found["class"], found["clusters"]) == ("complete", "R", 122)
        assert found["interval"][0] <= right / 125 <= found["interval"][1]


@pytest.mark.parametrize("system", EXPECTED)
def test_what_needs_a_model_is_null_and_says_so(report: dict[str, Any], system: str):
    for metric in ("naive", "target-recall", "application", "answer-only", "direct-recall"):
        found = number(report, system, metric)
        assert (found["value"], found["n"], found["reason"]) == (None, 0, "needs a model judge")


@pytest.mark.parametrize("system", EXPECTED)
def test_where_tasks_end(report: dict[str, Any], system: str):
    """The two rule metrics and the three classes made of them tell one story."""
    (found,) = [a for a in report["attributions"] if a["system"].rpartition("-")[0] == system]
    direct, target = EXPECTED[system]
    assert (sum(found["counts"].values()), found["n"]) == (125, 125)
    assert found["counts"].get("surfaced", 0) == target
    assert found["counts"].get("undetermined", 0) == 0
    assert found["gap"] == pytest.approx((direct - target) / 125)


@pytest.mark.parametrize("system", ["bm25", "vector", "hybrid", *(f"naive-{retriever}" for retriever in SINGLE_SHOT)])
def test_hits_are_verbatim_where_chunks_are_turns(report: dict[str, Any], system: str):
    for hit, verbatim in (("direct-hit@k", "direct-verbatim"), ("target-hit@k", "target-verbatim")):
        assert number(report, system, hit)["value"] == number(report, system, verbatim)["value"]


def test_the_whole_history_as_text(tmp_path: Path):
    """About 112,000 tokens: 110,501 of content, a role for each turn, a time only where the content has none.

    With 16,384 of output that is more than a window of 128,000 holds.
    """
    trials = tmp_path / "trials.json"
    stage(trials, "build", "inmind", "--data", str(RELEASE))
    stage(trials, "replay", "full-context", "--limit", "2")
    stage(trials, "fetch", "--limit", "2")
    found = number(stage(trials, "metrics", "--limit", "2"), "full-context", "context-tokens")
    assert found["value"] == pytest.approx(112_000, rel=0.005)
    assert found["value"] + 16_384 > 128_000
    assert found["n"] == 4
