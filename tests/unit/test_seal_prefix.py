"""Appending to a ledger never breaks a seal, and whatever else is done to a sealed line does."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memtrials.index import LedgerIndex
from memtrials.ledger import Ledger
from memtrials.records import AnswerBody, Call, FailureBody, Kind, Record, VerdictBody
from memtrials.sealing import prefix
from memtrials.sealing.scrutiny import scrutinise
from support.records import answer, record, write_ledger

texts = st.lists(st.text(max_size=20), min_size=1, max_size=8)


def described(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    with Ledger.open(path) as ledger:
        return prefix.describe(ledger), prefix.fingerprints(ledger)


@settings(max_examples=30, deadline=None)
@given(texts, texts)
def test_appending_never_breaks_a_seal(sealed: list[str], appended: list[str]):
    with TemporaryDirectory() as folder:
        path = write_ledger(Path(folder) / "t.json", [answer(f"s{n}", text) for n, text in enumerate(sealed)])
        was, _ = described(path)
        with Ledger.open(path) as ledger:
            ledger.append(*(answer(f"a{n}", text) for n, text in enumerate(appended)))
        assert prefix.is_intact(path, was)
        with Ledger.open(path, first=was["records"]) as then:
            assert prefix.describe(then) == was
            bodies = [then.body(header, AnswerBody).text for header in then.headers]
        assert bodies == sealed


@settings(max_examples=60, deadline=None)
@given(texts, st.data())
def test_any_changed_byte_of_a_record_breaks_it_and_is_told(sealed: list[str], data: st.DataObject):
    with TemporaryDirectory() as folder:
        path = write_ledger(Path(folder) / "t.json", [answer(f"s{n}", text) for n, text in enumerate(sealed)])
        was, fingerprints = described(path)
        content = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, was["bytes"] - 1))
        content[at] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        assert not prefix.is_intact(path, was)
        assert prefix.differences(path, was, fingerprints)


def test_a_ledger_read_up_to_a_record_goes_on_from_there(tmp_path: Path):
    path = write_ledger(tmp_path / "t.json", [answer("a"), answer("b"), answer("c")])
    with Ledger.open(path, first=1) as ledger:
        assert ("a" in ledger, "b" in ledger) == (True, False)
        assert ledger.end < len(path.read_bytes()) / 2
        ledger.refresh()
        assert [header.id for header in ledger.headers] == ["a", "b", "c"]


# --- what was voided, counted too -------------------------------------------------------------------------------

CONFIGS = [
    record("c1", "config", key="bm25-1", system="bm25-1"),
    record("c2", "config", key="offline-1", judge="offline-1"),
]


def work(record_id: str, kind: Kind, *parents: str, score: float | None = None, repeat: int = 1) -> Record:
    """A record of one question in one cell; its key says its kind alone, so what is made again has the same."""
    place = {"benchmark": "b", "task": "1", "query": None if kind in ("task", "ingest") else "q"}
    whose = {} if kind == "task" else {"system": "bm25-1"}
    judged = {"judge": "offline-1", "metric": "accuracy"} if kind == "verdict" else {}
    body = VerdictBody(score=score, reason="") if score is not None else None
    own = {"key": kind, "content": record_id, "repeat": None if kind == "task" else repeat}
    return record(record_id, kind, parents, body=body, **place, **whose, **judged, **own)


HISTORY = [
    *CONFIGS,
    work("t", "task"),
    work("i", "ingest", "t"),
    work("r", "retrieval", "i"),
    work("v", "verdict", "r", score=0.0),
    record("x", "void", ["r"]),
    work("r2", "retrieval", "i"),
    work("v2", "verdict", "r2", score=1.0),
]


@pytest.fixture
def voided(tmp_path: Path) -> Ledger:
    return Ledger.open(write_ledger(tmp_path / "t.json", HISTORY))


def ids(index: LedgerIndex, kind: Kind) -> list[str]:
    return [header.id for header in index.of(kind)]


def test_void_records_count_beside_what_was_made_in_their_place(voided: Ledger):
    assert ids(LedgerIndex(voided), "verdict") == ["v2"]
    index = LedgerIndex(voided, void_too=True)
    assert (ids(index, "retrieval"), ids(index, "verdict")) == (["r", "r2"], ["v", "v2"])
    assert [header.id for header in index.revived] == ["r", "v"]
    assert (index.twins, index.done["retrieval", 1].id) == (0, "r2")


def test_a_void_that_was_undone_voids_nothing(tmp_path: Path):
    undone = [*HISTORY[:7], record("y", "void", ["x"])]
    index = LedgerIndex(Ledger.open(write_ledger(tmp_path / "t.json", undone)), void_too=True)
    assert index.revived == []
    assert scrutinise_voided(index) == (0, 0, 0, 0)


def scrutinise_voided(index: LedgerIndex) -> tuple[int, int, int, int]:
    found = scrutinise(index).voided
    return found.trials, found.right, found.wrong, found.again


def test_a_trial_is_voided_after_its_verdict_only_if_the_void_came_later(voided: Ledger, tmp_path: Path):
    assert scrutinise_voided(LedgerIndex(voided, void_too=True)) == (1, 0, 1, 1)
    early = [*HISTORY[:5], HISTORY[6], HISTORY[5], *HISTORY[7:]]
    index = LedgerIndex(Ledger.open(write_ledger(tmp_path / "e.json", early)), void_too=True)
    assert scrutinise_voided(index) == (0, 0, 0, 0)


def test_repeats_are_late_only_after_a_verdict_on_their_question(tmp_path: Path):
    before = [*HISTORY[:5], work("n", "retrieval", "i", repeat=2), *HISTORY[5:6]]
    after = [*HISTORY[:6], work("n", "retrieval", "i", repeat=2), work("m", "verdict", "r", score=1.0, repeat=2)]
    found = [
        scrutinise(LedgerIndex(Ledger.open(write_ledger(tmp_path / name, some)), void_too=True)).late
        for name, some in (("b.json", before), ("a.json", after))
    ]
    assert found == [{}, {("b", "bm25-1"): 1}]


def test_attempts_of_content_retries_are_counted_and_those_of_others_are_not(tmp_path: Path):
    failures = [
        record("f1", "failure", ["r"], class_="content", body=FailureBody(cause="reader", message="", attempts=3)),
        record("f2", "failure", ["r"], class_="content", body=FailureBody(cause="service", message="", attempts=2)),
        record("f3", "failure", ["r"], class_="transient", body=FailureBody(cause="service", message="", attempts=5)),
    ]
    judged = {
        "benchmark": "b",
        "task": "1",
        "query": "q",
        "system": "bm25-1",
        "judge": "offline-1",
        "metric": "accuracy",
    }
    calls = {"v8": Call(attempts=4), "v9": Call(attempts=2, wasted_completion_tokens=7)}
    verdicts = [
        record(name, "verdict", ["r"], key=name, repeat=1, body=VerdictBody(score=1.0, reason="", call=call), **judged)
        for name, call in calls.items()
    ]
    path = write_ledger(tmp_path / "t.json", [*HISTORY[:5], *failures, *verdicts])
    found = scrutinise(LedgerIndex(Ledger.open(path), void_too=True)).retries
    assert (found.failures, found.attempts, found.rescued) == (2, 5, 1)
