"""Probing judges: constructed answers whose right verdict is known, and what `metrics` says of the judges.

The sample has two pairs of tasks of one domain. In health (2, 41) each has the other's gold to swap in; in parenting
(22, 30) the two share their fact, so neither does.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from memtrials.benchmarks.base import REFUSAL
from memtrials.settings import evaluation
from support.cli import call_cli
from support.model_server import ModelServer, Reply, error, ok
from support.trials import ended, records, stage

ROWS = [
    json.loads(line)
    for line in (evaluation() / "samples/inmind/benchmark/dataset/inmind.jsonl").read_text("utf-8").splitlines()
]
METRICS = ("naive", "application", "answer-only")
ASKED = 3 * (8 + 2 + 8 + 8)
"""Three metrics that read answers; eight golds, refusals and empty replies, two swapped golds."""


def answer_in(body: dict[str, Any]) -> str:
    """The answer that a judge is shown."""
    text: str = body["messages"][1]["content"].partition("answer: <data>\n")[2]
    return text.removesuffix("\n</data>")


def honest(number: int, body: dict[str, Any]) -> Reply:
    """Accepts an answer that quotes the very fact it was given."""
    fact = body["messages"][1]["content"].partition("\n")[0].removeprefix("user_message: ")
    return ok(json.dumps({"score": int(fact in answer_in(body)), "reason": "looked"}))


def credulous(number: int, body: dict[str, Any]) -> Reply:
    """Accepts whatever sounds like remembering."""
    return ok(json.dumps({"score": int("You told me" in answer_in(body)), "reason": "sounds right"}))


def both(number: int, body: dict[str, Any]) -> Reply:
    return {"honest": honest, "credulous": credulous}[body["model"]](number, body)


def probe(trials: Path, *arguments: str, code: int = 0) -> tuple[dict[str, Any], ModelServer]:
    """`judge --probe` with both judges behind one endpoint."""
    with ModelServer(both) as server:
        outcome = stage(trials, "judge", "--probe", *arguments, code=code, env=server.environment())
    return outcome, server


def folded(trials: Path, *arguments: str) -> dict[str, Any]:
    found = json.loads(ended(call_cli("metrics", "--json", "--trials", str(trials), *arguments)).out)
    assert isinstance(found, dict)
    return found


def rates(trials: Path, judge: str) -> dict[tuple[str, str], tuple[float, int, int, bool]]:
    """Share accepted, n, of and flag, by metric and kind."""
    return {
        (p["metric"], p["kind"]): (p["accepted"], p["n"], p["of"], p["flagged"])
        for p in folded(trials)["probes"]
        if p["judge_name"] == judge
    }


def test_an_honest_judge_accepts_the_gold_and_nothing_else(built: Path) -> None:
    """Probes are about tasks, so no system has to have run."""
    outcome, server = probe(built, "--judge", "honest")
    assert (outcome["pending"], outcome["done"], outcome["appended"]) == (ASKED, ASKED, ASKED + 1)
    assert len(server.requests) == ASKED
    found = rates(built, "honest")
    for metric in METRICS:
        assert found[metric, "gold"] == (1.0, 8, 8, False)
        assert found[metric, "swapped"] == (0.0, 2, 2, False)
        assert found[metric, "refusal"] == (0.0, 8, 8, False)
        assert found[metric, "empty"] == (0.0, 8, 8, False)


def test_a_judge_that_accepts_swapped_golds_is_flagged(answered: Path) -> None:
    probe(answered, "--judge", "honest", "--judge", "credulous")
    one = ("--metric", "application", "--system", "bm25")
    with ModelServer(both) as server:
        stage(answered, "judge", "--judge", "honest", "--judge", "credulous", *one, env=server.environment())
    assert all(rates(answered, "credulous")[metric, "swapped"] == (1.0, 2, 2, True) for metric in METRICS)
    assert not any(flag for *_, flag in rates(answered, "honest").values())

    numbers = {n["judge_name"]: n for n in folded(answered)["numbers"] if n["metric"] == "application" and n["judge"]}
    assert numbers["credulous"]["probes"] == {"gold": 1.0, "swapped": 1.0, "refusal": 0.0, "empty": 0.0}
    assert (numbers["credulous"]["lenient"], numbers["honest"]["lenient"]) == (True, False)
    table = ended(call_cli("metrics", "--trials", str(answered))).out
    verdicts, _, probes = table.partition("constructed answers that judges accept")
    assert verdicts.count("accepts swapped") == 1
    assert probes.count("accepts swapped") == 3
    assert "gold:1.000 swapped:1.000" in call_cli("metrics", "--format", "csv", "--trials", str(answered)).out


def test_what_a_judge_is_shown(built: Path) -> None:
    _, server = probe(built, "--judge", "honest", "--task", "2")
    first, other = ROWS[0], ROWS[-1]
    assert (first["task_id"], other["task_id"]) == (2, 41)
    quoted = {n: f"You told me: “{row['user_message']}”" for n, row in (("gold", first), ("swapped", other))}
    told = {
        n: f"{quoted[n]} With that in mind: {row['explanation']}" for n, row in (("gold", first), ("swapped", other))
    }
    wrong = [REFUSAL, ""]
    assert Counter(answer_in(r.body) for r in server.requests) == Counter(
        [*quoted.values(), *wrong, *told.values(), *told.values(), *wrong, *wrong]
    )
    for request in server.requests:
        if "context: " in request.user:  # the memory holds the fact, so only the answer is at fault
            assert f"context: <data>\n{first['user_message']}\n</data>" in request.user
    bodies = [v["body"] for v in records(built, "verdict")]
    assert Counter(b["probe"] for b in bodies) == Counter(answer_in(r.body) for r in server.requests)


def test_a_probe_is_paid_for_once_and_again_only_what_failed(built: Path) -> None:
    def fails_late(number: int, body: dict[str, Any]) -> Reply:
        return error(401, "invalid_api_key") if number > 20 else honest(number, body)

    one = ("judge", "--probe", "--judge", "honest", "--workers", "1")
    with ModelServer(fails_late) as server:
        stopped = stage(built, *one, code=2, env=server.environment())
    assert (stopped["done"], stopped["failed"]) == (20, 1)
    ended(call_cli("status", "--trials", str(built)))
    rest, server = probe(built, "--judge", "honest")
    assert rest["done"] == len(server.requests) == ASKED - 20
    again, server = probe(built, "--judge", "honest")
    assert (again["pending"], again["appended"], len(server.requests)) == (0, 0, 0)


def test_no_score_knows_of_probes(judged: Path) -> None:
    """Numbers, agreement, attribution, trials and the rows of systems are those of the ledger without them."""

    def shown() -> list[Any]:
        found = folded(judged)
        rows = [r for r in stage(judged, "status")["rows"] if r["system"]]
        trials = call_cli("view", "--trials", str(judged)).out
        return [found["numbers"], found["attributions"], found["agreements"], rows, trials]

    before = shown()
    outcome, _ = probe(judged, "--judge", "honest", "--judge", "credulous", "--repeat", "2")
    assert outcome["done"] == 2 * 2 * ASKED
    assert shown() == before
    assert rates(judged, "honest")["naive", "gold"] == (1.0, 8, 8, False)  # n counts questions, not repeats


def test_the_selection_holds_for_probes(built: Path) -> None:
    outcome, _ = probe(built, "--judge", "honest", "--limit", "1", "--metric", "naive")
    assert outcome["done"] == 4
    assert rates(built, "honest")["naive", "gold"] == (1.0, 1, 8, False)
    other, _ = probe(built, "--judge", "honest", "--task", "2/query", "--dry-run")
    assert (other["pending"], other["requests"]) == (8, 8)


def test_voided_probes_count_as_no_verdicts_on_results(built: Path) -> None:
    probe(built, "--judge", "honest", "--task", "2")
    voided = stage(built, "void", "--kind", "verdict", "--reason", "another try")
    assert (voided["named"], voided["right"], voided["wrong"]) == (12, 0, 0)
    assert folded(built)["probes"] == []


@pytest.mark.parametrize("flags", [(), ("--judge", "offline"), ("--judge", "m", "--metric", "target-recall")])
def test_a_judge_of_no_answers_has_nothing_to_be_probed_with(built: Path, flags: tuple[str, ...]) -> None:
    told = ended(call_cli("judge", "--probe", *flags, "--trials", str(built)), 2)
    assert told.err.count("\n") == 1
    assert "none of these judges decides a metric of those" in told.err
