"""Waterfalls from a ledger whose causes are known, and `attribute`, which asks for what isn't."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from memtrials import errata
from memtrials.benchmarks.timeline import turn_id
from memtrials.index import storage_metric
from memtrials.metrics import attribution
from memtrials.records import (
    AnswerBody,
    ConfigBody,
    Fit,
    Gold,
    IngestBody,
    Item,
    Query,
    Record,
    Release,
    RetrievalBody,
    TaskBody,
    TimelineSource,
    VerdictBody,
)
from memtrials.settings import evaluation
from support.model_server import ModelServer, ok
from support.records import record, write_ledger
from support.trials import files, records, stage

BENCHMARK = "longmemeval@s"
SYSTEM, ORACLE, FETCH, PROBE, READER, JUDGE, OTHER = "mem-1", "oracle-1", "b9-1", "storage-1", "r-1", "j-1", "j-2"
A, B, NOISE = turn_id(0, 0), turn_id(1, 0), turn_id(2, 0)


class Case(NamedTuple):
    """A question with the evidence A and B. items: turns that came back; whole: how many of them the budget left;
    score: the verdict (None: none); stored: what probes found; oracle: the verdict on the evidence alone."""

    expected: str
    items: tuple[str, ...] | None
    whole: int
    score: float | None
    other: float | None = None
    stored: tuple[tuple[str, bool], ...] = ()
    oracle: float | None = None
    task: str = ""
    evidence: tuple[str, ...] = (A, B)


DISPUTED = next(key for key, entry in errata.load("longmemeval").items() if entry.what != "garbled")

CASES = (
    Case(attribution.UNDETERMINED, (A, B), 2, None),
    Case(attribution.DISPUTED, (A, B), 2, 0.0, task=DISPUTED),
    Case(attribution.JUDGES_DISAGREE, (A, B), 2, 0.0, other=1.0),
    Case(attribution.RIGHT_ALL, (A, B), 2, 1.0, other=1.0),
    Case(attribution.RIGHT_ALL, (A, NOISE, B), 3, 1.0),
    Case(attribution.RIGHT_PART, (A, B), 1, 1.0),
    Case(attribution.RIGHT_WITHOUT, (NOISE,), 1, 1.0),
    Case(attribution.RIGHT_UNKNOWN, None, 0, 1.0),
    Case(attribution.LOST, (NOISE,), 1, 0.0, stored=((A, False), (B, True))),
    Case(attribution.NOT_RETRIEVED, (NOISE,), 1, 0.0, stored=((A, True), (B, True))),
    Case(attribution.NOT_PROBED, (NOISE,), 1, 0.0),
    Case(attribution.CUT, (NOISE, A, B), 1, 0.0),
    Case(attribution.CUT, (A, B), 1, 0.0),
    Case(attribution.ORACLE_FAILS, (A, B), 2, 0.0, oracle=0.0),
    Case(attribution.DISTRACTED, (A, B), 2, 0.0, other=0.0, oracle=1.0),
    Case(attribution.DISTRACTED, (NOISE, B, A), 3, 0.0, oracle=1.0),
    Case(attribution.ORACLE_UNASKED, (A, B), 2, 0.0),
    Case(attribution.PART_ONLY, (A, NOISE), 2, 0.0),
    Case(attribution.WRONG_UNKNOWN, None, 0, 0.0),
    Case(attribution.WRONG_NONE_NAMED, (NOISE,), 1, 0.0, evidence=()),
)


def config(role: str, config_id: str, settings: dict[str, Any], **provenance: Any) -> Record:
    name = config_id.rpartition("-")[0]
    body = ConfigBody(role=role, name=name, settings=settings, provenance=provenance)  # type: ignore[arg-type]
    return record(f"c-{config_id}", "config", key=config_id, body=body, **{role: config_id})


def constructed() -> list[Record]:
    """The ledger of CASES: each is a task with one question."""
    made = [
        config("system", SYSTEM, {"system": "embedded", "embedding": None}),
        config("system", ORACLE, {"system": "in-context"}, control=True),
        config("fetch", FETCH, {"k": 3, "budget": 9}),
        config("fetch", PROBE, {"k": 3, "probe": "storage"}),
        config("fetch", "whole-1", {}),
        config("reader", READER, {"model": "model-r"}),
        config("judge", JUDGE, {"model": "model-j"}),
        config("judge", OTHER, {"model": "model-k"}),
    ]
    for n, case in enumerate(CASES):
        made += of_case(case.task or f"t{n}", case)
    return made


def of_case(task: str, case: Case) -> list[Record]:
    place = {"benchmark": BENCHMARK, "task": task}
    asked = {**place, "query": "question", "type": "multi-session"}
    body = TaskBody(
        release=Release(sha256="00", files=(), known=True, attribution=""),
        data="data",
        source=TimelineSource(file="data.json", sha256="00", start=0, end=2),
        sessions=("d0", "d1", "d2"),
        turns=3,
        queries=(Query(id="question", text="Where?", unit=task, cluster=task, type="multi-session"),),
        gold=(Gold(query="question", answers=("Oslo",), evidence=case.evidence, details=DETAILS),),
    )
    made = [record(f"{task}-task", "task", body=body, key=f"{task}-task", content=task, **place)]

    def chain(system: str, fetch: str, score: float | None, retrieval: RetrievalBody, other: float | None) -> None:
        head = f"{task}-{system}"
        state = IngestBody(namespace="n", system_version="1", capabilities=(), sessions=3, turns=3)
        on = {"system": system, "repeat": 1}
        below = {**asked, **on, "fetch": fetch}
        answered = {**below, "reader": READER}
        made.extend(
            [
                record(f"{head}-i", "ingest", [f"{task}-task"], body=state, key=f"{head}-i", **place, **on),
                record(f"{head}-q", "retrieval", [f"{head}-i"], body=retrieval, key=f"{head}-q", content="c", **below),
                record(f"{head}-a", "answer", [f"{head}-q"], body=AnswerBody(text="x"), key=f"{head}-a", **answered),
            ]
        )
        for judge, said in ((JUDGE, score), (OTHER, other)):
            if said is not None:
                verdict = VerdictBody(score=said, reason="r")
                name = f"{head}-v-{judge}"
                under = {**answered, "judge": judge, "metric": "accuracy"}
                made.append(record(name, "verdict", [f"{head}-a"], body=verdict, key=name, **under))

    items = case.items and tuple(Item(rank=n, text=t, turns=(t,)) for n, t in enumerate(case.items, 1))
    cut = len(items or ()) - case.whole
    fit = None if items is None else Fit(9, 20, 9, case.whole, min(cut, 1), max(cut - 1, 0))
    chain(SYSTEM, FETCH, case.score, RetrievalBody(question="Where?", context="c", items=items, fit=fit), case.other)
    if case.oracle is not None:
        chain(ORACLE, "whole-1", case.oracle, RetrievalBody(question="Where?", context="e"), None)
    for turn, found in case.stored:
        back = (Item(rank=1, text="t", turns=(turn if found else NOISE,)),)
        probe = RetrievalBody(question=f"text of {turn}", context="t", items=back)
        name = f"{task}-p-{turn}"
        under = {**asked, "system": SYSTEM, "fetch": PROBE, "repeat": 1, "metric": storage_metric(turn)}
        made.append(record(name, "retrieval", [f"{task}-{SYSTEM}-i"], body=probe, key=name, content="t", **under))
    return made


DETAILS = {
    "timeline": json.dumps([["s0", "U"], ["s1", "U"], ["s2", "u"]]),
    "evidence_sessions": json.dumps([0, 1]),
}


def test_known_causes_get_exactly_their_counts(tmp_path: Path):
    trials = write_ledger(tmp_path / "trials.json", constructed())
    found = [
        a
        for a in stage(trials, "metrics")["attributions"]
        if (a["system"], a["judge"], a["metric"]) == (SYSTEM, JUDGE, "accuracy")
    ]
    assert len(found) == 1
    assert found[0]["counts"] == dict(Counter(case.expected for case in CASES))
    assert sum(found[0]["counts"].values()) == found[0]["n"] == len(CASES)


def test_probes_are_no_trials(tmp_path: Path):
    trials = write_ledger(tmp_path / "trials.json", constructed())
    rows = stage(trials, "metrics")["numbers"]
    assert not [row for row in rows if row["fetch"] == PROBE]
    owed = stage(trials, "answer", "--reader", "offline", "--dry-run", "--force", "--system", SYSTEM)
    assert owed["pending"] == len(CASES)


# --- asking -----------------------------------------------------------------------------------------------------

SAMPLE = str(evaluation() / "samples" / "longmemeval")


@pytest.fixture
def judged_sample(tmp_path: Path) -> Path:
    """LongMemEval's sample with one item for each question, answered and judged offline."""
    trials = tmp_path / "trials.json"
    stage(trials, "build", "longmemeval", "--data", SAMPLE)
    stage(trials, "replay", "bm25")
    stage(trials, "fetch", "--k", "1")
    stage(trials, "answer")
    stage(trials, "judge")
    return trials


def test_a_dry_run_says_what_would_be_asked_and_writes_nothing(judged_sample: Path):
    before = files(judged_sample.parent)
    (told,) = stage(judged_sample, "attribute", "--max-requests", "5", "--dry-run")["outcomes"]
    assert told["dry_run"]
    assert told["pending"] == told["storage_probes"] + told["oracle"]
    assert told["storage_probes"] > 0
    assert told["requests"] == 0
    assert files(judged_sample.parent) == before


def test_it_asks_once_and_the_waterfall_sums_up(judged_sample: Path):
    first = stage(judged_sample, "attribute", "--max-requests", "5", "--full-context")
    last = first["outcomes"][-1]
    assert (last["stage"], last["left"]) == ("attribute", 0)
    assert last["done"] == last["pending"] > 0
    mine = next(a for a in first["attributions"] if a["system"].startswith("bm25"))
    assert sum(mine["counts"].values()) == mine["n"] == 7
    assert attribution.ORACLE_UNASKED not in mine["counts"]
    assert attribution.NOT_PROBED not in mine["counts"]
    assert mine["whole"][1] == 7 - mine["counts"][attribution.RIGHT_ALL]
    probes = [r for r in records(judged_sample, "retrieval") if r.get("metric")]
    assert len(probes) == last["storage_probes"]
    assert all(r["fetch"].startswith("storage-") for r in probes)
    assert all(r["body"]["question"] in r["body"]["context"] for r in probes)  # each is found by its own text
    before = files(judged_sample.parent)
    again = stage(judged_sample, "attribute", "--max-requests", "5", "--full-context")
    assert [o["pending"] for o in again["outcomes"]] == [0]
    assert again["attributions"] == first["attributions"]
    assert files(judged_sample.parent) == before


def test_numbers_of_the_system_stay_as_they_were(judged_sample: Path):
    def of_bm25() -> list[dict[str, Any]]:
        rows = stage(judged_sample, "metrics")["numbers"]
        return [row for row in rows if row["system_name"] == "bm25"]

    before = of_bm25()
    stage(judged_sample, "attribute", "--max-requests", "5")
    assert of_bm25() == before
    assert stage(judged_sample, "fetch", "bm25", "--k", "1")["pending"] == 0


@pytest.mark.usefixtures("quick")
def test_the_cap_holds_and_the_next_run_goes_on(tmp_path: Path):
    trials = tmp_path / "trials.json"
    stage(trials, "build", "longmemeval", "--data", SAMPLE)
    stage(trials, "replay", "bm25")
    stage(trials, "fetch", "--k", "50")

    def speak(number: int, body: dict[str, Any]) -> Any:
        return ok('{"score": 0, "reason": "r"}' if "response_format" in body else "I say this.")

    with ModelServer(speak) as server:
        env = server.environment()
        stage(trials, "answer", "--reader", "model-a", env=env)
        stage(trials, "judge", "--judge", "model-j", env=env)
        asked = len(server.requests)
        first = stage(trials, "attribute", "--max-requests", "5", code=1, env=env)
        assert len(server.requests) == asked + 4  # two questions, each answered and judged
        assert first["outcomes"][-1]["left"] > 0
        stage(trials, "attribute", "--max-requests", "100", env=env)
        fails = stage(trials, "metrics")["attributions"]
        mine = next(a for a in fails if a["system"].startswith("bm25") and a["metric"] == "accuracy")
        assert mine["counts"][attribution.ORACLE_FAILS] > 2
        assert attribution.ORACLE_UNASKED not in mine["counts"]
        assert sum(mine["counts"].values()) == 10
        other = len(server.requests)
        stage(trials, "attribute", "--max-requests", "100", "--judge", "model-k", env=env)
        assert len(server.requests) == other + 10  # the wrong answers, once more


def test_inmind_asks_whether_a_fact_is_stored_at_all(judged: Path):
    outcome = stage(judged, "attribute", "--max-requests", "1", "--system", "bm25")
    before = {r["id"] for r in records(judged, "retrieval") if r.get("metric")}
    mine = next(a for a in outcome["attributions"] if a["system"].startswith("bm25"))
    assert sum(mine["counts"].values()) == mine["n"] == 8
    assert len(before) == mine["counts"].get(attribution.UNRETRIEVABLE, 0) + mine["counts"].get(attribution.LOST, 0)
    assert attribution.NOT_STORED not in mine["counts"]
