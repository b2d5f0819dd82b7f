"""Probes by a batch service, what probes cost in `status`, and what a batch costs in a dry run.

The sample has 8 questions: 8 golds, refusals and empty answers and 2 swapped golds, for each of three metrics.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.batch_server import BatchServer
from support.cli import call_cli
from support.model_server import Reply, error, ok
from support.trials import ended, records, stage

ASKED = 3 * (8 + 2 + 8 + 8)
UNLIKE = {"attempts", "seconds", "queued_seconds", "workers", "request_id", "batch"}


def script(number: int, body: dict[str, Any]) -> Reply:
    """Accepts an answer that quotes the very fact it was given."""
    text = body["messages"][1]["content"]
    fact = text.partition("\n")[0].removeprefix("user_message: ")
    return ok(json.dumps({"score": int(fact in text.partition("answer: <data>\n")[2]), "reason": "looked"}))


@pytest.fixture
def server() -> Iterator[BatchServer]:
    with BatchServer(script) as running:
        yield running


def probe(server: BatchServer, trials: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    asked = ("judge", "--probe", "--judge", "gpt-4o-mini", *arguments)
    return stage(trials, *asked, code=code, env=server.environment())


def made(trials: Path) -> dict[tuple[str, int], Any]:
    """The verdicts without what differs from run to run, by name of work."""
    found = {}
    for record in records(trials, "verdict"):
        body = record.pop("body")
        body["raw"] = json.loads(body["raw"])
        call = {name: value for name, value in body.pop("call").items() if name not in UNLIKE}
        header = {name: value for name, value in record.items() if name not in ("id", "at", "parents")}
        found[record["key"], record["repeat"]] = (header, body, call)
    return found


def row_of_probes(trials: Path) -> dict[str, Any]:
    (row,) = [row for row in stage(trials, "status")["rows"] if row["judge"] and row["system"] is None]
    return row


def test_probes_in_a_batch_become_the_same_records(built: Path, server: BatchServer, tmp_path: Path) -> None:
    live = tmp_path / "live" / "trials.json"
    live.parent.mkdir()
    live.write_bytes(built.read_bytes())
    assert probe(server, live)["done"] == ASKED
    outcome = probe(server, built, "--batch")
    assert (outcome["sent"], outcome["done"]) == (ASKED, 0)
    assert probe(server, built, "--batch")["skipped"] == ASKED  # in flight, so neither done nor sent again
    server.finish()
    assert probe(server, built)["done"] == ASKED
    assert made(built) == made(live)
    assert (len(server.submitted), max(server.submitted.values())) == (ASKED, 1)
    assert probe(server, built)["pending"] == 0
    rates = [
        [(p["metric"], p["kind"], p["accepted"], p["n"], p["flagged"]) for p in stage(t, "metrics")["probes"]]
        for t in (built, live)
    ]
    assert rates[0] == rates[1] != []


def test_a_batch_of_probes_is_taken_in_without_the_stages_flags(built: Path, server: BatchServer) -> None:
    probe(server, built, "--batch", "--repeat", "2", "--limit", "1", "--metric", "naive")
    server.finish()
    told = call_cli("batch", "collect", "--trials", str(built), "--json", env=server.environment())
    (outcome,) = json.loads(ended(told).out)
    assert (outcome["stage"], outcome["done"]) == ("judge", 8)
    kinds = [r["metric"] for r in records(built, "verdict")]
    assert sorted(kinds) == sorted(2 * [f"probe:naive:{kind}" for kind in ("gold", "swapped", "refusal", "empty")])
    assert {r["query"] for r in records(built, "verdict")} == {"naive_query"}


def test_a_probe_that_failed_in_a_batch_keeps_its_place(built: Path, server: BatchServer) -> None:
    server.script = lambda number, body: error(500) if number == 1 else script(number, body)
    one = ("--limit", "1", "--metric", "naive")
    probe(server, built, "--batch", *one)
    server.finish()
    assert probe(server, built, *one, code=1)["failed"] == 1
    (failure,) = records(built, "failure")
    assert (failure["query"], failure["metric"]) == ("naive_query", "probe:naive:gold")
    row = row_of_probes(built)
    assert (row["probes"], row["failed"]) == (3, 1)
    assert row["next"].startswith("memtrials judge --probe --judge gpt-4o-mini")


def test_what_probes_took_stands_in_a_row_of_its_own(judged: Path, server: BatchServer) -> None:
    """100 tokens in and 20 out of gpt-4o-mini cost $0.000027, half of that in a batch; no other row changes."""
    before = stage(judged, "status")["rows"]
    one, rest = ("--limit", "1", "--metric", "naive"), ("--metric", "naive")
    probe(server, judged, *one)
    row = row_of_probes(judged)
    assert (row["probes"], row["judged"], row["failed"], row["in flight"]) == (4, 0, 0, 0)
    assert (row["spent"], row["usd"]) == (4 * 120, pytest.approx(4 * 0.000027))
    assert row["next"] == f"memtrials metrics --benchmark {row['benchmark']}"
    probe(server, judged, "--batch", *rest)
    assert row_of_probes(judged)["in flight"] == 26 - 4
    server.finish()
    probe(server, judged, *rest)
    row = row_of_probes(judged)
    assert (row["probes"], row["in flight"]) == (26, 0)
    assert (row["spent"], row["usd"]) == (26 * 120, pytest.approx(4 * 0.000027 + 22 * 0.0000135, abs=1e-6))
    assert [r for r in stage(judged, "status")["rows"] if r["system"]] == before
    table = ended(call_cli("status", "--trials", str(judged))).out
    assert "probes" in table


def test_a_cap_on_probes_counts_those_in_flight(built: Path, server: BatchServer) -> None:
    assert probe(server, built, "--batch", "--max-requests", "30", code=1)["sent"] == 30
    assert probe(server, built, "--batch", "--max-requests", "30", code=1)["sent"] == 0


@pytest.mark.parametrize("command", [("answer", "--reader"), ("judge", "--judge"), ("judge", "--probe", "--judge")])
def test_a_dry_run_of_a_batch_says_what_a_batch_costs(
    judged: Path, server: BatchServer, command: tuple[str, ...]
) -> None:
    """gpt-4o-mini takes $0.15 for a million tokens in, and half of that in a batch; its table says so."""
    forced = ("--force",) if command[0] == "answer" else ()
    live, batch = (
        stage(judged, *command, "gpt-4o-mini", *forced, *more, "--dry-run", env=server.environment())
        for more in ((), ("--batch",))
    )
    assert live["prompt_tokens"] == batch["prompt_tokens"] > 0
    assert live["cost_usd_min"] == pytest.approx(live["prompt_tokens"] * 0.15e-6, abs=1e-6)
    assert batch["cost_usd_min"] == pytest.approx(live["cost_usd_min"] / 2, abs=1e-6)
    assert batch["cost_usd_max"] == pytest.approx(live["cost_usd_max"] / 2, abs=1e-6)
    assert (server.asked, server.requests) == ([], [])
