"""A thousand answers and a thousand verdicts from models at which a third of all requests go wrong.

Faults are drawn by chance, of every kind (`support.faults`); the stages are run until a run changes nothing. The server
knows the right reply to every item and what it said about it.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from memtrials.index import MAX_CONTENT_FAILURES
from memtrials.llm.engine import ATTEMPTS, CONTENT_ATTEMPTS
from support.cli import call_cli
from support.faults import JUDGE_FAULTS, OF_ITEM, READER_FAULTS, REJECTED, SHARE, WAIT, Given, Storm
from support.model_server import KEY, ModelServer
from support.releases import Row, change_tasks, sample_copy
from support.trials import files, records, stage

TASKS = 500
ITEMS = {f"{task}/{query}" for task in range(1, TASKS + 1) for query in ("query", "naive_query")}
SEED = 20261130
MOST_RUNS = 2 * MAX_CONTENT_FAILURES
STAGES = {
    "answer": ("answer", "--reader", "model-a"),
    "judge": ("judge", "--judge", "model-j", "--metric", "target-recall", "--metric", "direct-recall"),
}
"""Of each query one answer, and one verdict on its trial."""
MADE = {"answer": "answer", "judge": "verdict"}
IN_BOTH = pytest.mark.parametrize("name", STAGES)


def many(rows: list[Row]) -> None:
    """The sample's tasks over and over, each with an id of its own; every query names itself."""
    first = deepcopy(rows)
    rows.clear()
    for number in range(1, TASKS + 1):
        row = dict(first[number % len(first)], task_id=number)
        rows.append(row | {query: f"{row[query]} [{number}/{query}]" for query in ("query", "naive_query")})


def said_of(item: str) -> tuple[str, str]:
    """The right answer to a query, and a wrong one."""
    return f"Of {item} I know this.", "Of something else I know that."


def verdict_on(item: str) -> tuple[str, str]:
    """The right verdict on a trial, and the wrong one."""
    score = random.Random(f"verdict {item}").randint(0, 1)
    right, wrong = (json.dumps({"score": s, "reason": f"as of {item}"}) for s in (score, 1 - score))
    return right, wrong


@dataclass
class Run:
    """One stage that ran until nothing changed. requests: how many had been sent after each run."""

    storm: Storm
    outcomes: list[dict[str, Any]]
    requests: list[int]

    @property
    def given(self) -> list[Given]:
        """Everything that was sent."""
        return [given for of_item in self.storm.given.values() for given in of_item]

    @property
    def lost_items(self) -> set[str]:
        """Items about which no request is ever served."""
        return {item for item in ITEMS if self.storm.fault_of(item)}


def until_nothing_changes(name: str, trials: Path, storm: Storm) -> Run:
    """Run a stage again and again."""
    run = Run(storm, [], [])
    with ModelServer(storm) as server:
        while len(run.outcomes) < MOST_RUNS and not (run.outcomes and run.outcomes[-1]["appended"] == 0):
            finished = call_cli(
                *STAGES[name], "--workers", "8", "--trials", str(trials), "--json", env=server.environment()
            )
            run.outcomes.append(json.loads(finished.out))
            run.requests.append(len(server.requests))
            assert finished.code == (1 if run.outcomes[-1]["failed"] else 0), finished.err
    return run


@pytest.fixture(scope="module")
def stormy(quick: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Run]]:
    """A ledger of a thousand trials after both stages."""
    folder = tmp_path_factory.mktemp("storm")
    release = change_tasks(sample_copy(folder / "release"), many)
    trials = folder / "trials.json"
    stage(trials, "build", "inmind", "--data", str(release), "--allow-modified")
    stage(trials, "replay", "none")
    stage(trials, "fetch")
    reader = Storm(READER_FAULTS, seed=SEED, right=said_of, rejects=["max_completion_tokens"])
    judge = Storm(JUDGE_FAULTS, seed=SEED + 1, right=verdict_on, rejects=["response_format", "max_completion_tokens"])
    return trials, {
        "answer": until_nothing_changes("answer", trials, reader),
        "judge": until_nothing_changes("judge", trials, judge),
    }


Stormy = tuple[Path, Mapping[str, Run]]


def item_of(record: Mapping[str, Any]) -> str:
    return f"{record['task']}/{record['query']}"


def recorded(trials: Path, name: str) -> dict[str, dict[str, Any]]:
    """What a stage has made, by item; there is one of each."""
    made = records(trials, MADE[name])
    by_item = {item_of(record): record for record in made}
    assert len(by_item) == len(made) == len({(r["key"], r["repeat"]) for r in made})
    return by_item


def failures(trials: Path, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    return ((item_of(r), r) for r in records(trials, "failure") if r["stage"] == name)


@IN_BOTH
def test_every_item_is_recorded_or_given_up(stormy: Stormy, name: str) -> None:
    trials, runs = stormy
    run = runs[name]
    done = recorded(trials, name)
    assert done.keys() == ITEMS - run.lost_items
    assert 20 < len(run.lost_items) < 100
    given_up = {place.split(" ", 1)[1] for place in stage(trials, "status")["given_up"][name]}
    assert len(given_up) == len(run.lost_items)
    assert run.outcomes[-1]["skipped"] == len(run.lost_items)
    assert run.outcomes[0]["pending"] == len(ITEMS)
    assert all(o["left"] == 0 and o["error"] is None for o in run.outcomes)  # no item stops the stage
    assert sum(o["done"] for o in run.outcomes) == len(done)
    assert all(o["done"] > 0 for o in run.outcomes[:3])  # some were served after one failure, some after two


@IN_BOTH
def test_what_is_given_up_is_so_for_a_reason_the_server_gave(stormy: Stormy, name: str) -> None:
    trials, runs = stormy
    run = runs[name]
    of_content = {**run.storm.faults.unusable, **OF_ITEM}
    times = Counter[str]()
    for item, failure in failures(trials, name):
        if failure["class"] == "content":
            times[item] += 1
            reasons = {g.reply.body.decode() for g in run.storm.given[item] if g.fault in of_content}
            assert failure["body"]["raw"] in reasons
            assert failure["body"]["cause"] == ("reader" if name == "answer" else "service")
            own = run.storm.fault_of(item) or ""
            assert ("over window" in failure["body"]["message"]) == own.startswith("too long")
        else:
            assert failure["class"] == "transient"
    assert {item for item, count in times.items() if count >= MAX_CONTENT_FAILURES} == run.lost_items
    assert {times[item] for item in run.lost_items} == {MAX_CONTENT_FAILURES}


def test_no_verdict_is_wrong(stormy: Stormy) -> None:
    verdicts = recorded(stormy[0], "judge")
    for item, verdict in verdicts.items():
        right = json.loads(verdict_on(item)[0])
        assert (verdict["body"]["score"], verdict["body"]["reason"]) == (right["score"], right["reason"])
    assert {v["body"]["score"] for v in verdicts.values()} == {0.0, 1.0}


def test_every_answer_is_that_to_its_question(stormy: Stormy) -> None:
    trials, runs = stormy
    cut = {i for i, g in runs["answer"].storm.given.items() if g[-1].fault == "a length stop after some text"}
    answers = recorded(trials, "answer")
    assert {item: a["body"]["text"] for item, a in answers.items()} == {item: said_of(item)[0] for item in answers}
    assert {item for item, a in answers.items() if a["body"].get("cut")} == cut


@IN_BOTH
def test_nothing_is_asked_or_recorded_twice(stormy: Stormy, name: str) -> None:
    trials, runs = stormy
    for item, record in recorded(trials, name).items():
        given = runs[name].storm.given[item]
        served = [n for n, g in enumerate(given) if g.fault is None or g.fault in runs[name].storm.faults.delivered]
        assert served == [len(given) - 1], item
        assert json.loads(record["body"]["raw"]) == json.loads(given[-1].reply.body)
    assert runs[name].requests[-1] == runs[name].requests[-2] == len(runs[name].given)
    assert stage(trials, "status")["totals"]["twins"] == 0


@IN_BOTH
def test_no_item_is_asked_about_more_often_than_it_may_be(stormy: Stormy, name: str) -> None:
    trials, runs = stormy
    run = runs[name]
    tries: dict[str, list[int]] = {item: [] for item in ITEMS}
    for item, record in recorded(trials, name).items():
        tries[item].append(record["body"]["call"].get("attempts", 1))
    for item, failure in failures(trials, name):
        tries[item].append(failure["body"]["attempts"])
    for item, given in run.storm.given.items():
        faults = Counter(g.fault for g in given)
        assert sum(tries[item]) == len(given)
        assert max(tries[item]) <= ATTEMPTS + CONTENT_ATTEMPTS - 1 + faults[REJECTED]
        own = run.storm.fault_of(item)
        if own is not None:
            once = own.startswith("too long")
            assert faults[own] == MAX_CONTENT_FAILURES * (1 if once else CONTENT_ATTEMPTS)
    assert len(run.outcomes) < MOST_RUNS


@IN_BOTH
def test_a_parameter_that_is_rejected_is_left_out_for_the_rest_of_the_run(stormy: Stormy, name: str) -> None:
    run = stormy[1][name]
    served = sum(outcome["pending"] > 0 for outcome in run.outcomes)
    rejected = sum(given.fault == REJECTED for given in run.given)
    assert rejected == served * len(run.storm.rejects)


@IN_BOTH
def test_every_kind_of_fault_came(stormy: Stormy, name: str) -> None:
    run = stormy[1][name]
    count = Counter(given.fault for given in run.given)
    assert count.keys() == {None, REJECTED, *run.storm.faults.passing, *OF_ITEM}
    assert sum(count.values()) - count[None] > SHARE * len(run.given)


@IN_BOTH
def test_the_wait_a_server_asks_for_is_kept(stormy: Stormy, name: str) -> None:
    waited = 0
    for given in stormy[1][name].storm.given.values():
        for before, after in pairwise(given):
            if before.fault in ("429, wait in seconds", "429, wait in milliseconds"):
                waited += 1
                assert after.at - before.at >= WAIT
    assert waited > 10


def test_the_key_is_in_no_file(stormy: Stormy) -> None:
    assert not [name for name, content in files(stormy[0].parent).items() if KEY.encode() in content]
