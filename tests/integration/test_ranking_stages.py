"""Ranking measures from a ledger of the samples to numbers, notes and tables."""

import json
from pathlib import Path
from typing import Any

import pytest

from memtrials.settings import evaluation
from support.cli import call_cli
from support.longmemeval import sample
from support.trials import records, stage

SAMPLES = evaluation() / "samples"


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of two samples, with the first ten turns of two systems and a control without ids."""
    trials = tmp_path_factory.mktemp("ranked") / "trials.json"
    for name in ("locomo", "longmemeval"):
        stage(trials, "build", name, "--data", str(SAMPLES / name))
    stage(trials, "replay", "bm25", "none")
    stage(trials, "fetch")
    return trials


@pytest.fixture(scope="module")
def report(fetched: Path) -> dict[str, Any]:
    return stage(fetched, "metrics")


def number(report: dict[str, Any], metric: str, benchmark: str, system: str = "bm25") -> dict[str, Any]:
    (found,) = (
        n
        for n in report["numbers"]
        if (n["metric"], n["benchmark"].partition("@")[0], n["system_name"]) == (metric, benchmark, system)
    )
    return found


def test_a_measure_is_computed_up_to_the_k_that_was_asked_for(report: dict[str, Any]):
    cutoffs = {n["metric"].rpartition("@")[2] for n in report["numbers"] if "@" in n["metric"]}
    by_system = {
        system: {
            int(n["metric"].rpartition("@")[2])
            for n in report["numbers"]
            if n["system_name"] == system and "@" in n["metric"]
        }
        for system in ("bm25", "none")
    }
    assert cutoffs
    assert by_system == {"bm25": {1, 3, 5, 10}, "none": {1, 3, 5, 10, 20, 50}}


def test_the_values_are_those_of_the_retrieved_turns(fetched: Path, report: dict[str, Any]):
    """Reckoned again from the sample's own fields and the ledger's turn ids."""
    instances = {item["question_id"]: item for item in sample()}
    hits, firsts = [], []
    for record in records(fetched, "retrieval"):
        item = instances.get(record["task"])
        if item is None or "_abs" in record["task"] or record["body"].get("items") is None:
            continue
        ids = item["haystack_session_ids"]
        sessions = [ids[int(i["turn_ids"][0].partition(".")[0])] for i in record["body"]["items"]]
        gold = set(item["answer_session_ids"])
        hits.append(gold <= set(sessions[:3]))
        firsts.append(next((1 / rank for rank, name in enumerate(sessions[:10], 1) if name in gold), 0.0))
    found = number(report, "session-recall-all@3", "longmemeval")
    assert found["n"] == found["of"] == len(hits) > 0
    assert (found["unit"], found["class"]) == ("share", None)
    assert found["value"] == pytest.approx(sum(hits) / len(hits))
    found = number(report, "session-mrr@10", "longmemeval")
    assert found["unit"] == "score"
    assert found["value"] == pytest.approx(sum(firsts) / len(firsts))


def test_each_average_has_its_own_questions(report: dict[str, Any]):
    answerable = [item for item in sample() if "_abs" not in item["question_id"]]
    by_user = [
        item
        for item in answerable
        if any(t.get("has_answer") and t["role"] == "user" for turns in item["haystack_sessions"] for t in turns)
    ]
    assert 0 < len(by_user) < len(answerable)
    counts = {name: number(report, name, "longmemeval")["of"] for name in ("turn-ndcg@5", "official-turn-ndcg-any@5")}
    assert counts == {"turn-ndcg@5": len(answerable), "official-turn-ndcg-any@5": len(by_user)}
    assert number(report, "official-printed-turn-ndcg-any@5", "longmemeval")["n"] == len(answerable)


def test_locomo_averages_of_the_same_rows(report: dict[str, Any]):
    rows = json.loads((SAMPLES / "locomo" / "locomo_sample.json").read_text("utf-8"))[0]["qa"]
    empty = sum(not row["evidence"] for row in rows)
    assert empty > 0
    official, statistics, with_some = (
        number(report, name, "locomo") for name in ("official-recall", "official-recall-statistics", "evidence-recall")
    )
    assert (official["n"], statistics["n"], with_some["n"]) == (len(rows), len(rows), len(rows) - empty)
    assert official["value"] * len(rows) == pytest.approx(with_some["value"] * with_some["n"] + empty)
    assert statistics["value"] * len(rows) == pytest.approx(with_some["value"] * with_some["n"])


def test_no_ids_give_no_number_and_say_why(report: dict[str, Any]):
    without = [n for n in report["numbers"] if n["system_name"] == "none" and "@" in n["metric"]]
    assert without
    assert {n["value"] for n in without} == {None}
    assert {n["reason"] for n in without} == {"the system gives no evidence ids"}


def test_a_k_that_is_all_of_a_history_is_said(report: dict[str, Any]):
    sizes = [len(item["haystack_sessions"]) for item in sample()]
    (note,) = (n for n in report["notes"] if n.startswith("longmemeval@sample: a k that is all of a history"))
    assert f"in how many of {len(sizes)}: " in note
    assert f" 5 sessions ({sum(size <= 5 for size in sizes)})" in note
    assert "1 sessions" not in note.replace("11 sessions", "")


def test_the_table_has_a_column_for_each_k(fetched: Path):
    printed = call_cli("metrics", "--trials", str(fetched), "--system", "bm25", env={"COLUMNS": "220"}).out
    table = printed.partition("evidence among the first k")[2]
    heading, rows = table.splitlines()[2], [line for line in table.splitlines() if "session-recall-any" in line]
    assert [cell for cell in heading.split() if cell.startswith("@")] == ["@1", "@3", "@5", "@10"]
    assert "bm25" in rows[0]
    assert "0." in rows[0]
