"""The stages on the bundled sample: what each does, says, leaves alone and leaves behind.

The sample has 8 tasks of 2 queries; the ledgers of the fixtures hold the systems bm25, none and in-context, so 24
states, 48 trials, 48 answers and 48 verdicts (direct-verbatim and target-verbatim, 8 of each in every system).
"""

import contextlib
import csv
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from memtrials import locks, systems
from memtrials import settings as settings_module
from memtrials.benchmarks.timeline import Session
from memtrials.errors import FailureClass, WorkFailedError
from memtrials.index import LedgerIndex
from memtrials.ledger import Ledger
from memtrials.records import FailureBody
from memtrials.systems.base import Meter, Plugin, Retrieved
from support.cli import Finished, call_cli, environment
from support.trials import all_at_once, ended, files, records, stage

BENCHMARK = "inmind@sample"
TASKS = ("2", "5", "9", "14", "21", "22", "30", "41")


def again(sample: Path) -> dict[str, tuple[str, ...]]:
    """The command line of every stage, as the fixtures ran it."""
    return {
        "build": ("build", "inmind", "--data", str(sample)),
        "replay": ("replay", "bm25", "none", "in-context"),
        "fetch": ("fetch",),
        "answer": ("answer",),
        "judge": ("judge",),
    }


STAGES = ("build", "replay", "fetch", "answer", "judge")


def on(trials: Path, *arguments: str, code: int = 0) -> Finished:
    """A command on a ledger, with what it printed."""
    return ended(call_cli(*arguments, "--trials", str(trials)), code)


def counts(trials: Path) -> dict[str, int]:
    """How many records of each kind a ledger has."""
    return dict(Counter(r["kind"] for r in records(trials)))


def config(trials: Path, name: str) -> str:
    """The id of the only configuration of a name."""
    (found,) = {r["key"] for r in records(trials, "config") if r["body"]["name"] == name}
    return str(found)


def numbers(trials: Path, *arguments: str, **wanted: Any) -> list[dict[str, Any]]:
    """The numbers of `metrics` whose fields have these values (system: a name)."""
    found: list[dict[str, Any]] = stage(trials, "metrics", *arguments)["numbers"]
    if "system" in wanted:
        wanted["system_name"] = wanted.pop("system")
    return [n for n in found if all(n[name] == value for name, value in wanted.items())]


def number(trials: Path, *arguments: str, **wanted: Any) -> dict[str, Any]:
    """The only one of these."""
    (found,) = numbers(trials, *arguments, **wanted)
    return found


# Once and once more


def test_the_whole_chain_makes_one_of_each(judged: Path):
    assert counts(judged) == {"task": 8, "config": 8, "ingest": 24, "retrieval": 48, "answer": 48, "verdict": 48}


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_run_again_does_nothing_and_says_so(judged: Path, sample: Path, name: str):
    before = files(judged.parent)
    outcome = stage(judged, *again(sample)[name])
    assert {k: outcome[k] for k in ("stage", "pending", "done", "failed", "left", "skipped", "appended")} == {
        "stage": name,
        "pending": 0,
        "done": 0,
        "failed": 0,
        "left": 0,
        "skipped": 0,
        "appended": 0,
    }
    assert f"{name}: nothing to do\n" in on(judged, *again(sample)[name]).err
    assert files(judged.parent) == before


@pytest.mark.parametrize(
    ("name", "pending", "configs"),
    [("build", 8, 0), ("replay", 24, 3), ("fetch", 48, 3), ("answer", 48, 1), ("judge", 48, 1)],
)
def test_json_of_every_stage(
    tmp_path: Path, ledgers: dict[str, Path], sample: Path, name: str, pending: int, configs: int
):
    """pending = done + failed + left; appended counts the configuration records, too."""
    trials = tmp_path / "trials.json"
    if name != "build":
        shutil.copytree(ledgers[STAGES[STAGES.index(name) - 1]].parent, tmp_path, dirs_exist_ok=True)
    finished = on(trials, *again(sample)[name], "--json")
    assert finished.out.count("\n") == 1
    outcome = json.loads(finished.out)
    assert (outcome["pending"], outcome["done"], outcome["failed"], outcome["left"]) == (pending, pending, 0, 0)
    assert (outcome["skipped"], outcome["appended"]) == (0, pending + configs)
    assert (outcome["failures"], outcome["error"], outcome["dry_run"]) == ({}, None, False)


@pytest.mark.parametrize("name", STAGES)
def test_a_dry_run_says_what_is_owed_and_writes_nothing(
    tmp_path: Path, ledgers: dict[str, Path], sample: Path, name: str
):
    if name != "build":
        shutil.copytree(ledgers[STAGES[STAGES.index(name) - 1]].parent, tmp_path, dirs_exist_ok=True)
    before = files(tmp_path)
    trials = tmp_path / "trials.json"
    outcome = stage(trials, *again(sample)[name], "--dry-run")
    assert outcome["dry_run"]
    assert outcome["pending"] == outcome["left"] > 0
    assert (outcome["done"], outcome["appended"]) == (0, 0)
    assert f"{name}: would do {outcome['pending']}" in on(trials, *again(sample)[name], "--dry-run").err
    assert files(tmp_path) == before


def test_a_dry_run_counts_what_replay_would_feed(built: Path):
    outcome = stage(built, "replay", "bm25", "none", "--dry-run")
    assert (outcome["states"], outcome["sessions"]) == (16, 16 * 12)


def test_build_says_what_the_data_is(built: Path, sample: Path):
    outcome = stage(built, *again(sample)["build"])
    assert (outcome["benchmark"], outcome["tasks"]) == (BENCHMARK, 8)
    assert (outcome["constants"]["sessions"], outcome["constants"]["turns"]) == (12, 61)
    assert outcome["data_sha256"] == records(built, "task")[0]["body"]["release"]["sha256"]


def test_without_json_standard_output_is_empty_and_messages_go_to_standard_error(replayed: Path):
    finished = on(replayed, "fetch", "--system", "bm25")
    assert (finished.out, finished.err) == ("", "fetch: 16 done\n")


@pytest.mark.parametrize("name", STAGES)
def test_quiet_says_nothing_of_what_went_well(tmp_path: Path, ledgers: dict[str, Path], sample: Path, name: str):
    if name != "build":
        shutil.copytree(ledgers[STAGES[STAGES.index(name) - 1]].parent, tmp_path, dirs_exist_ok=True)
    finished = on(tmp_path / "trials.json", *again(sample)[name], "--quiet")
    assert (finished.out, finished.err) == ("", "")


# Selection, the same in every stage


def test_a_selection_is_the_same_in_every_stage(built: Path, sample: Path):
    """The same flags again find nothing to do; without them the rest is done."""
    flags = ("--sample", "7", "--seed", "3")
    for name, owed in (("replay", 21), ("fetch", 42), ("answer", 42), ("judge", 42)):
        assert stage(built, *again(sample)[name], *flags)["done"] == owed
        assert stage(built, *again(sample)[name], *flags)["pending"] == 0
    chosen = {r["task"] for r in records(built, "ingest")}
    assert len(chosen) == 7
    assert {r["task"] for r in records(built, "verdict")} == chosen
    assert stage(built, *again(sample)["replay"])["done"] == 3


@pytest.mark.parametrize(
    ("flags", "done"),
    [
        (("--task", "9"), 6),
        (("--task", "9/query", "--task", "2"), 9),
        (("--type", "parenting"), 12),
        (("--system", "bm25"), 16),
        (("--system", "bm25", "--system", "none", "--limit", "3"), 12),
        (("--config", "k10"), 16),
        (("--benchmark", "inmind", "--limit", "1"), 6),
    ],
)
def test_flags_choose_what_is_answered(fetched: Path, flags: tuple[str, ...], done: int):
    assert stage(fetched, "answer", *flags)["done"] == done


def test_shards_of_a_stage_add_up(fetched: Path):
    parts = [stage(fetched, "answer", "--shard", f"{k}/3")["done"] for k in (1, 2, 3)]
    assert sum(parts) == 48
    assert stage(fetched, "answer")["pending"] == 0


def test_dev_and_test_add_up(fetched: Path):
    assert (
        stage(fetched, "answer", "--split", "dev")["done"] + stage(fetched, "answer", "--split", "test")["done"] == 48
    )


# States


def test_repeat_makes_independent_states(built: Path):
    assert stage(built, "replay", "bm25", "--repeat", "2")["done"] == 16
    states: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for ingest in records(built, "ingest"):
        states[ingest["task"]].append(ingest)
    for some in states.values():
        assert [state["repeat"] for state in some] == [1, 2]
        assert len({state["key"] for state in some}) == 1
    names = [state["body"][what] for some in states.values() for state in some for what in ("namespace", "user")]
    assert len(set(names)) == len(names) == 32
    stored = {path.stem for path in built.with_suffix(".stores").glob("bm25-*/*")}
    assert stored == {ingest["body"]["namespace"] for ingest in records(built, "ingest")}
    assert stage(built, "replay", "bm25", "--repeat", "2")["pending"] == 0
    assert stage(built, "replay", "bm25", "--repeat", "3")["done"] == 8
    assert stage(built, "fetch")["done"] == 48, "each state is asked both queries"


def test_what_a_run_killed_at_its_very_end_left_is_put_right_by_the_next(built: Path):
    """Every state is recorded, but the last run had no time to tidy up."""
    stage(built, "replay", "bm25")
    (manifest,) = built.with_suffix(".manifests").iterdir()
    stores = built.with_suffix(".stores") / config(built, "bm25")
    before = files(built.parent)
    manifest.unlink()
    (stores / "0123456789abcdef.part").write_bytes(b"half-built")
    (stores / "0123456789abcdef.part-journal").write_bytes(b"")
    assert stage(built, "replay", "bm25", "--dry-run")["pending"] == 0
    assert (stores / "0123456789abcdef.part").exists()
    assert stage(built, "replay", "bm25")["appended"] == 0
    assert files(built.parent) == before


def manifest(trials: Path, system: str = "bm25") -> dict[str, Any]:
    path = trials.with_suffix(".manifests") / f"{BENCHMARK}.{config(trials, system)}.json"
    found = json.loads(path.read_text("utf-8"))
    assert isinstance(found, dict)
    return found


def test_manifests_say_what_the_ingest_records_say(replayed: Path):
    assert len(list(replayed.with_suffix(".manifests").iterdir())) == 3
    for name in ("bm25", "none", "in-context"):
        found = manifest(replayed, name)
        assert (found["benchmark"], found["system"]) == (BENCHMARK, config(replayed, name))
        assert (found["ok"], found["failed"], len(found["states"])) == (8, 0, 8)
        ingests = [r for r in records(replayed, "ingest") if r["system"] == found["system"]]
        for row, ingest in zip(found["states"], ingests, strict=True):
            assert row == {
                "task": ingest["task"],
                "repeat": 1,
                "status": "ok",
                "namespace": ingest["body"]["namespace"],
                "user": ingest["body"]["user"],
                "sessions": 12,
                "turns": 63,
                "seconds": ingest["body"]["effort"]["seconds"],
                "at": ingest["at"],
            }


def test_no_output_takes_the_ledgers_place(replayed: Path):
    before = replayed.read_bytes()
    commands = (
        ("metrics", "--format", "json"),
        ("export", "inmind-submission", "--system", "bm25"),
        ("export", "memorybear-trials"),
    )
    for command in commands:
        finished = ended(call_cli(*command, "--out", str(replayed), "--trials", str(replayed)), 2)
        assert "that is a ledger, which this would overwrite" in finished.err
    assert replayed.read_bytes() == before


def test_a_void_needs_a_reason(replayed: Path):
    before = replayed.read_bytes()
    for reason in ("", " "):
        finished = ended(call_cli("void", "--kind", "ingest", "--reason", reason, "--trials", str(replayed)), 2)
        assert "--reason is empty" in finished.err
    assert replayed.read_bytes() == before


def test_a_void_state_leaves_the_manifest_with_the_next_replay(replayed: Path):
    old = manifest(replayed)["states"][2]["namespace"]
    on(replayed, "void", "--kind", "ingest", "--task", "9", "--system", "bm25", "--reason", "wiped")
    stage(replayed, "replay", "bm25")
    states = manifest(replayed)["states"]
    assert sorted(row["task"] for row in states) == sorted(TASKS)
    assert old not in {row["namespace"] for row in states}


# stores


def stored(trials: Path) -> dict[str, int]:
    """How many states there are of each use."""
    return dict(Counter(store["use"] for store in json.loads(on(trials, "stores", "list", "--json").out)))


def test_stores_are_listed_by_use(replayed: Path):
    assert stored(replayed) == {"counts": 16}
    assert "counts: 8 states" in on(replayed, "stores", "list").out
    on(replayed, "void", "--kind", "ingest", "--system", "bm25", "--limit", "3", "--reason", "wiped")
    folder = replayed.with_suffix(".stores") / config(replayed, "bm25")
    (folder / "feed.part").touch()
    (folder / "dead.sqlite").touch()
    assert stored(replayed) == {"counts": 13, "void": 4, "half-built": 1}


def test_clean_removes_what_nothing_counts_on(replayed: Path):
    on(replayed, "void", "--kind", "ingest", "--system", "bm25", "--limit", "3", "--reason", "wiped")
    (replayed.with_suffix(".stores") / config(replayed, "bm25") / "feed.part").touch()
    before = files(replayed.parent)
    assert on(replayed, "stores", "clean", "--dry-run").out.startswith("would remove 4 states")
    assert files(replayed.parent) == before
    assert on(replayed, "stores", "clean").out.startswith("removed 4 states")
    assert stored(replayed) == {"counts": 13}
    assert on(replayed, "stores", "clean").out.startswith("removed 0 states")
    assert stage(replayed, "fetch", "--system", "bm25")["done"] == 10


def test_clean_all_removes_live_states_too_and_fetch_says_where_they_are_missed(replayed: Path):
    assert on(replayed, "stores", "clean", "--all").out.startswith("removed 16 states")
    assert on(replayed, "stores", "list").out == "no states\n"
    finished = on(replayed, "fetch", "--system", "bm25", code=2)
    assert "8 states of bm25-" in finished.err
    assert "fetch on the machine that replayed them, or `memtrials void" in finished.err


def test_clean_waits_for_who_works_on_the_states(replayed: Path):
    claim = locks.Claim("fetch", BENCHMARK, config(replayed, "bm25"))
    with locks.hold(replayed, [claim], None):
        finished = on(replayed, "stores", "clean", "--all", code=2)
        assert f"process {os.getpid()}" in finished.err
    assert stored(replayed) == {"counts": 16}


# run and demo


def test_run_is_the_stages_in_order(tmp_path: Path, sample: Path):
    trials = tmp_path / "trials.json"
    finished = on(trials, "run", "inmind", "--data", str(sample), "bm25", "none", "--json")
    outcomes = json.loads(finished.out)
    assert [o["stage"] for o in outcomes] == list(STAGES)
    assert [o["done"] for o in outcomes] == [8, 16, 32, 32, 32]
    assert counts(trials) == {"task": 8, "config": 6, "ingest": 16, "retrieval": 32, "answer": 32, "verdict": 32}
    assert [
        o["appended"]
        for o in json.loads(on(trials, *shlex.split("run inmind bm25 none --json"), "--data", str(sample)).out)
    ] == [0] * 5


def test_run_ends_with_the_numbers(tmp_path: Path, sample: Path):
    finished = on(tmp_path / "trials.json", "run", "inmind", "bm25", "--data", str(sample), "--quiet")
    assert finished.err == ""
    assert "direct-verbatim" in finished.out
    assert "class R: rule, no model" in finished.out


def test_repeat_of_run_goes_to_fetch_alone(tmp_path: Path, sample: Path):
    """Three trials of each query on one state, each answered and judged once."""
    trials = tmp_path / "trials.json"
    on(trials, "run", "inmind", "bm25", "--data", str(sample), "--repeat", "3", "--json")
    assert counts(trials) == {"task": 8, "config": 4, "ingest": 8, "retrieval": 48, "answer": 48, "verdict": 48}
    assert {r["repeat"] for kind in ("ingest", "answer", "verdict") for r in records(trials, kind)} == {1}


def test_run_takes_the_stages_flags(tmp_path: Path, sample: Path):
    trials = tmp_path / "trials.json"
    command = ("run", "inmind", "bm25", "--data", str(sample), "--k", "3", "--order", "time", "--limit", "2")
    asked = ("--date-in-query", "--metric", "direct-verbatim")
    outcomes = json.loads(on(trials, *command, *asked, "--json").out)
    assert [o["done"] for o in outcomes] == [8, 2, 4, 4, 2]
    (settings,) = (r["body"]["settings"] for r in records(trials, "config") if r["body"]["role"] == "fetch")
    assert (settings["k"], settings["order"], settings["date_in_query"]) == (3, "time", True)


def test_run_touches_only_what_it_was_told_to(judged: Path, sample: Path):
    """A system that another run brought halfway is left where it is."""
    stage(judged, "replay", "always-visible")
    stage(judged, "fetch", "always-visible")
    outcomes = json.loads(on(judged, "run", "inmind", "bm25", "--data", str(sample), "--json").out)
    assert [o["pending"] for o in outcomes] == [0] * 5


def test_a_dry_run_of_run_looks_as_far_ahead_as_there_are_records(tmp_path: Path, sample: Path, built: Path):
    command = ("run", "inmind", "bm25", "--data", str(sample), "--dry-run", "--json")
    nothing = tmp_path / "nothing" / "trials.json"
    nothing.parent.mkdir()
    assert [o["pending"] for o in json.loads(on(nothing, *command).out)] == [8]
    assert list(nothing.parent.iterdir()) == []
    before = files(built.parent)
    assert [(o["stage"], o["pending"]) for o in json.loads(on(built, *command).out)][:2] == [
        ("build", 0),
        ("replay", 8),
    ]
    assert files(built.parent) == before


def test_run_stops_where_the_user_must_fix_something(tmp_path: Path, sample: Path):
    """A reader without a key: what came before is there, judge is not begun."""
    trials = tmp_path / "trials.json"
    finished = on(trials, "run", "inmind", "bm25", "--data", str(sample), "--reader", "m", code=2)
    assert finished.err.splitlines()[-1].startswith("memtrials: no key for reader m: set READER_API_KEY")
    assert counts(trials) == {"task": 8, "config": 2, "ingest": 8, "retrieval": 16}


def test_demo_needs_nothing_and_has_a_ledger_of_its_own(tmp_path: Path, sample: Path, monkeypatch: pytest.MonkeyPatch):
    """From any folder, offline, into results/demo.json, whatever TRIALS_FILE says."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(settings_module, "checkout", lambda: None)
    finished = ended(call_cli("demo", env={"TRIALS_FILE": str(tmp_path / "mine.json"), "OPENAI_API_KEY": "key"}))
    demo = tmp_path / "elsewhere" / "results" / "demo.json"
    assert not (tmp_path / "mine.json").exists()
    assert counts(demo) == {"task": 19, "config": 7, "ingest": 57, "retrieval": 123, "answer": 123, "verdict": 105}
    assert all(f"{name}@sample" in finished.out for name in ("inmind", "longmemeval", "locomo"))
    assert {name for name in ("bm25", "hybrid", "in-context (control)") if name in finished.out} == {
        "bm25",
        "hybrid",
        "in-context (control)",
    }
    before = demo.read_bytes()
    outcomes = json.loads(ended(call_cli("demo", "--json")).out)
    assert [o["pending"] for o in outcomes] == [0] * 15
    assert demo.read_bytes() == before


def test_demo_writes_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    on(tmp_path / "mine.json", "demo", "--quiet")
    assert len(records(tmp_path / "mine.json")) == 434
    assert list((tmp_path / "elsewhere").iterdir()) == []


# status


def status(trials: Path) -> list[dict[str, Any]]:
    found = stage(trials, "status")["rows"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize(
    ("name", "row", "goes_on"),
    [
        ("build", (8, 0, 0, 0, 0), f"memtrials replay SYSTEM --benchmark {BENCHMARK}"),
        ("replay", (8, 8, 0, 0, 0), "memtrials fetch {bm25} --benchmark " + BENCHMARK),
        ("fetch", (8, 8, 16, 0, 0), f"memtrials answer --benchmark {BENCHMARK} --system " + "{bm25}"),
        ("answer", (8, 8, 16, 16, 0), f"memtrials judge --benchmark {BENCHMARK} --system " + "{bm25}"),
        ("judge", (8, 8, 16, 16, 16), f"memtrials metrics --benchmark {BENCHMARK} --system " + "{bm25}"),
    ],
)
def test_status_says_how_far_each_system_is_and_what_goes_on(
    ledgers: dict[str, Path], name: str, row: tuple[int, ...], goes_on: str
):
    trials = ledgers[name]
    rows = status(trials)
    first = rows[0]
    assert tuple(first[column] for column in ("tasks", "ingested", "fetched", "answered", "judged")) == row
    assert tuple(first[column] for column in ("failed", "given up", "in flight", "void", "spent")) == (0, 0, 0, 0, None)
    bm25 = None if name == "build" else config(trials, "bm25")
    assert (first["benchmark"], first["system"]) == (BENCHMARK, bm25)
    assert first["next"] == goes_on.format(bm25=bm25)
    assert len(rows) == (1 if name == "build" else 3)
    shown = on(trials, "status").out
    assert f"next: {first['next']}\n" in shown


def test_following_what_status_says_leads_to_the_end(built: Path):
    """Each row's next command is one that works and asks as it was begun; after a few rounds all say metrics."""
    on(built, "replay", "bm25", "in-context", "--limit", "3")
    stage(built, "fetch", "bm25", "--k", "3", "--limit", "1")
    for _ in range(10):
        commands = dict.fromkeys(row["next"] for row in status(built))
        if all(command.startswith("memtrials metrics") for command in commands):
            break
        for command in commands:
            program, *arguments = shlex.split(command)
            assert program == "memtrials"
            on(built, *arguments)
    assert counts(built) == {"task": 8, "config": 6, "ingest": 16, "retrieval": 32, "answer": 32, "verdict": 32}
    assert {r["fetch"].partition("-")[0] for r in records(built, "retrieval") if r["system"].startswith("bm25")} == {
        "k3"
    }


def test_status_points_at_verdicts_that_are_missing(answered: Path):
    stage(answered, "judge", "--limit", "3", "--system", "bm25")
    row = status(answered)[0]
    assert row["judged"] == 6
    assert (
        row["next"]
        == f"memtrials judge --judge offline --reader offline --benchmark {BENCHMARK} --system {row['system']}"
    )
    assert stage(answered, *shlex.split(row["next"])[1:])["done"] == 10
    assert status(answered)[0]["next"].startswith("memtrials metrics ")


def test_status_names_a_model_as_it_was_named(answered: Path, tmp_path: Path):
    """Its configuration's id has other characters."""
    judge = ("judge", "--judge", "lab/judge model", "--metric", "target-recall", "--system", "bm25")
    requests, replies = tmp_path / "requests.jsonl", tmp_path / "replies.jsonl"
    on(answered, *judge, "--export-requests", str(requests))
    first = json.loads(requests.read_text("utf-8").splitlines()[0])
    replies.write_text(json.dumps({"custom_id": first["custom_id"], "reply": '{"score": 1, "reason": "r"}'}))
    stage(answered, *judge, "--import-replies", str(replies))
    goes_on = status(answered)[0]["next"]
    assert goes_on.startswith("memtrials judge --judge 'lab/judge model' --reader offline ")


def test_status_counts_what_is_void_and_points_back(judged: Path):
    on(judged, "void", "--kind", "ingest", "--task", "9", "--system", "bm25", "--reason", "wiped")
    row = status(judged)[0]
    assert (row["ingested"], row["fetched"], row["answered"], row["judged"], row["void"]) == (7, 14, 14, 14, 1)
    assert row["next"].startswith("memtrials replay bm25 ")
    assert stage(judged, "status")["totals"]["void"] == 1


# view


def view(trials: Path, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in on(trials, "view", *arguments).out.splitlines()]


def test_view_shows_whole_trials(judged: Path):
    shown = view(judged)
    assert len(shown) == 48
    by_id = {r["id"]: r for r in records(judged)}
    answer = by_id[shown[0]["id"]]
    retrieval = by_id[answer["parents"][0]]
    ingest = by_id[retrieval["parents"][0]]
    task = next(r for r in records(judged, "task") if r["task"] == retrieval["task"])
    query = next(q for q in task["body"]["queries"] if q["id"] == retrieval["query"])
    gold = next(g for g in task["body"]["gold"] if g["query"] == retrieval["query"])
    verdict = next(r for r in records(judged, "verdict") if r["parents"] == [retrieval["id"]])
    items = retrieval["body"]["items"]
    assert shown[0] == {
        "id": answer["id"],
        "benchmark": BENCHMARK,
        "task": task["task"],
        "query": query["id"],
        "type": task["type"],
        "system": ingest["system"],
        "fetch": retrieval["fetch"],
        "repeat": 1,
        "question": query["text"],
        "question_date": None,
        "gold_answers": [],
        "gold_details": gold["details"],
        "evidence": gold["evidence"],
        "context": retrieval["body"]["context"],
        "retrieved": [
            {"rank": i["rank"], "score": i["score"], "turns": i["turn_ids"], "text": i["text"]} for i in items
        ],
        "retrieval_seconds": retrieval["body"]["effort"]["seconds"],
        "namespace": ingest["body"]["namespace"],
        "reader": answer["reader"],
        "answer_repeat": 1,
        "hypothesis": answer["body"]["text"],
        "cut": False,
        "answer_seconds": None,
        "verdicts": [
            {
                "metric": verdict["metric"],
                "judge": verdict["judge"],
                "repeat": 1,
                "score": verdict["body"]["score"],
                "reason": verdict["body"]["reason"],
            }
        ],
    }


def test_view_takes_the_selection(judged: Path):
    (shown,) = view(judged, "--task", "9/query", "--system", "in-context")
    assert (shown["task"], shown["query"], shown["system"]) == ("9", "query", config(judged, "in-context"))
    assert shown["gold_details"]["user_message"] in shown["context"]


def test_view_shows_unanswered_trials_too(fetched: Path):
    shown = view(fetched, "--system", "bm25")
    assert len(shown) == 16
    assert {(trial["reader"], trial["hypothesis"], len(trial["verdicts"])) for trial in shown} == {(None, None, 0)}


def test_view_leaves_out_what_is_void(judged: Path):
    on(judged, "void", "--kind", "answer", "--task", "9", "--system", "bm25", "--reason", "wrong key")
    assert [t["hypothesis"] for t in view(judged, "--task", "9", "--system", "bm25")] == [None, None]


# void


def test_void_takes_out_and_undo_puts_back(judged: Path, sample: Path):
    wrong = [r for r in records(judged, "verdict") if r["system"] == config(judged, "bm25") and r["task"] == "9"]
    right = sum(r["body"]["score"] == 1 for r in wrong)
    flags = ("--kind", "ingest", "--task", "9", "--system", "bm25", "--reason", "wiped")
    expected = {
        "stage": "void",
        "named": 1,
        "kinds": {"ingest": 1, "retrieval": 2, "answer": 2, "verdict": 2},
        "right": right,
        "wrong": 2 - right,
    }
    assert stage(judged, "void", *flags, "--dry-run") == {**expected, "appended": 0, "dry_run": True}
    before = judged.read_bytes()
    assert stage(judged, "void", *flags) == {**expected, "appended": 1, "dry_run": False}
    assert judged.read_bytes()[: len(before) - 3] == before[:-3]

    assert stage(judged, *again(sample)["replay"], "--dry-run")["pending"] == 1
    for name in ("fetch", "answer", "judge"):
        assert stage(judged, name)["pending"] == 0
    void = records(judged, "void")[0]
    assert (void["body"]["reason"], len(void["parents"])) == ("wiped", 1)

    assert stage(judged, "void", void["id"], "--reason", "it was there")["appended"] == 1
    for name in STAGES:
        assert stage(judged, *again(sample)[name])["pending"] == 0


def test_void_redo_undo_leaves_twins_of_which_the_first_counts(judged: Path, sample: Path):
    on(judged, "void", "--kind", "retrieval", "--task", "9", "--system", "bm25", "--reason", "wiped")
    assert [stage(judged, name)["done"] for name in ("fetch", "answer", "judge")] == [2, 2, 2]
    on(judged, "void", records(judged, "void")[0]["id"], "--reason", "it was there")
    totals = stage(judged, "status")["totals"]
    assert (totals["twins"], totals["set aside"]) == (6, 0)
    assert [stage(judged, *again(sample)[name])["pending"] for name in STAGES] == [0] * 5
    assert len(view(judged)) == 48


def test_void_of_everything_a_selection_holds(judged: Path):
    """Without --kind: ingests, retrievals, answers, verdicts and failures."""
    said = stage(judged, "void", "--system", "none", "--reason", "a control")
    assert (said["named"], said["kinds"]) == (72 - 16, {"ingest": 8, "retrieval": 16, "answer": 16, "verdict": 16})
    assert {row["system"] for row in status(judged)} == {config(judged, "bm25"), config(judged, "in-context")}


def test_void_by_configuration(judged: Path):
    said = stage(judged, "void", "--kind", "answer", "--config", config(judged, "k10"), "--reason", "k")
    assert said["kinds"] == {"answer": 16}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--reason", "r"), "void needs record ids, --kind, --config or a selection"),
        (("--kind", "answer"), "Missing option '--reason'"),
        (("01NOSUCHRECORD", "--reason", "r"), "unknown record '01NOSUCHRECORD'"),
        (("--task", "99", "--reason", "r"), "unknown task '99'"),
    ],
)
def test_a_void_that_names_nothing_is_refused(judged: Path, arguments: tuple[str, ...], said: str):
    before = judged.read_bytes()
    finished = on(judged, "void", *arguments, code=2)
    assert finished.err.startswith(f"memtrials: {said}")
    assert finished.err.count("\n") == 1
    assert judged.read_bytes() == before


def test_a_void_of_what_is_not_there_appends_nothing(judged: Path):
    assert stage(judged, "void", "--kind", "failure", "--reason", "r")["appended"] == 0
    assert on(judged, "void", "--kind", "failure", "--reason", "r").out == (
        "void: nothing (0 right and 0 wrong verdicts)\n"
    )


# Systems that fail


@dataclass
class Trouble:
    """What goes wrong in the system `flaky`: words that make it fail, with the class of that failure."""

    adding: dict[str, FailureClass] = field(default_factory=dict)
    asking: dict[str, FailureClass] = field(default_factory=dict)
    states: dict[str, list[str]] = field(default_factory=dict)


class Flaky:
    """Keeps the user's texts in memory, unless a text holds a word it stumbles over."""

    capabilities = frozenset({"verbatim"})
    embedded = True

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble
        self.meter = Meter()

    def create(self, namespace: str, user: str) -> None:
        self.trouble.states[namespace] = []

    def add(self, namespace: str, session: Session) -> None:
        texts = [turn.content for turn in session.turns]
        _stumble(self.trouble.adding, "\n".join(texts), "can't take that in")
        self.trouble.states[namespace] += texts

    def freeze(self, namespace: str) -> None:
        pass

    def discard(self, namespace: str) -> None:
        del self.trouble.states[namespace]

    def exists(self, namespace: str) -> bool:
        return namespace in self.trouble.states

    def query(self, namespace: str, text: str, date: str | None, settings: Mapping[str, Any]) -> Retrieved:
        _stumble(self.trouble.asking, text, "has no idea")
        return Retrieved("\n".join(self.trouble.states[namespace]))

    def close(self) -> None:
        pass


def _stumble(words: Mapping[str, FailureClass], text: str, message: str) -> None:
    for word, class_ in words.items():
        if word in text:
            raise WorkFailedError("system", class_, f"flaky {message}", attempts=2, raw='{"error": "…"}')


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Trouble:
    """The system `flaky` is among the built-in ones; `toml(…)` sets it up."""
    trouble = Trouble()
    module = ModuleType("flaky_system")
    plugin = Plugin("flaky", "1", lambda state, around: Flaky(trouble), capabilities=Flaky.capabilities)  # type: ignore[arg-type]
    module.PLUGINS = {"flaky": plugin}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flaky_system", module)
    monkeypatch.setitem(systems.BUILT_IN, "flaky", "flaky_system")
    monkeypatch.chdir(tmp_path_factory.mktemp("flaky"))
    Path("flaky.toml").write_text('[state]\nsystem = "flaky"\n')
    return trouble


REPLAY = ("replay", "flaky.toml")
COELIAC, DOGS = "2", "9"


def test_a_failure_of_a_system_is_a_record_and_the_rest_goes_on(built: Path, flaky: Trouble):
    flaky.adding = {"coeliac disease, so I": "transient"}
    outcome = stage(built, *REPLAY, code=1)
    assert (outcome["pending"], outcome["done"], outcome["failed"], outcome["left"]) == (8, 7, 1, 0)
    assert (outcome["appended"], outcome["failures"]) == (9, {"flaky can't take that in": 1})
    (failure,) = records(built, "failure")
    header = {k: failure[k] for k in ("stage", "class", "benchmark", "task", "system", "repeat")}
    assert header == {
        "stage": "replay",
        "class": "transient",
        "benchmark": BENCHMARK,
        "task": COELIAC,
        "system": config(built, "flaky"),
        "repeat": 1,
    }
    assert {k: failure["body"][k] for k in ("cause", "message", "attempts", "raw")} == {
        "cause": "system",
        "message": "flaky can't take that in",
        "attempts": 2,
        "raw": '{"error": "…"}',
    }
    assert failure["body"]["seconds"] >= 0
    (task,) = (r for r in records(built, "task") if r["task"] == COELIAC)
    assert failure["parents"] == [task["id"]]
    assert len(flaky.states) == 7, "what was begun and failed is discarded"


def test_failures_are_shown_with_what_to_do_even_when_quiet(built: Path, flaky: Trouble):
    flaky.adding = {"coeliac disease, so I": "transient", "terrified of dogs": "content"}
    for quiet in ((), ("--quiet",)):
        finished = on(built, *REPLAY, *quiet, code=1)
        assert finished.out == ""
        assert finished.err == (
            f"replay: {6 if not quiet else 0} done, 2 failed\n"
            "  2 failed: flaky can't take that in\n"
            "  run `replay` again to retry them\n"
        )


def test_the_next_run_retries_what_failed_and_nothing_else(built: Path, flaky: Trouble):
    flaky.adding = {"coeliac disease, so I": "transient"}
    stage(built, *REPLAY, code=1)
    (row,) = status(built)
    assert (row["ingested"], row["failed"]) == (7, 1)
    assert manifest(built, "flaky")["failed"] == 1
    flaky.adding = {}
    outcome = stage(built, *REPLAY)
    assert (outcome["pending"], outcome["done"]) == (1, 1)
    (row,) = status(built)
    assert (row["ingested"], row["failed"]) == (8, 0)
    found = manifest(built, "flaky")
    assert (found["ok"], found["failed"]) == (8, 0)


def test_a_failed_query_is_a_record_too(built: Path, flaky: Trouble):
    stage(built, *REPLAY)
    flaky.asking = {"Ines": "transient"}
    outcome = stage(built, "fetch", code=1)
    failed = outcome["failed"]
    assert failed >= 1
    assert outcome["done"] == 16 - failed
    for failure in records(built, "failure"):
        assert (failure["stage"], failure["task"], failure["body"]["cause"]) == ("fetch", DOGS, "system")
        assert failure["fetch"] == config(built, "whole")
        assert failure["query"] in ("naive_query", "query")
    flaky.asking = {}
    assert stage(built, "fetch")["done"] == failed


@pytest.mark.parametrize(("class_", "given_up"), [("content", True), ("transient", False)])
def test_content_that_failed_in_three_runs_is_given_up(
    built: Path, flaky: Trouble, class_: FailureClass, given_up: bool
):
    flaky.adding = {"coeliac disease, so I": class_}
    for _ in range(3):
        assert stage(built, *REPLAY, code=1)["failed"] == 1
    if not given_up:
        assert stage(built, *REPLAY, code=1)["failed"] == 1
        return
    outcome = stage(built, *REPLAY)
    assert (outcome["pending"], outcome["skipped"], outcome["appended"]) == (0, 1, 0)
    assert outcome["notes"] == ["1 given up after 3 runs; `memtrials status` lists them"]
    (row,) = status(built)
    assert (row["failed"], row["given up"]) == (0, 1)
    assert stage(built, "status")["given_up"] == {"replay": [f"{BENCHMARK} {COELIAC} repeat 1"]}
    assert f"given up in replay (1): {BENCHMARK} {COELIAC} repeat 1\n" in on(built, "status").out
    assert row["next"].startswith("memtrials fetch "), "what is given up isn't asked for again"
    flaky.adding = {}
    assert stage(built, *REPLAY)["pending"] == 0
    on(built, "void", "--kind", "failure", "--reason", "mended")
    assert stage(built, *REPLAY)["done"] == 1


def test_a_fatal_failure_ends_the_stage(built: Path, flaky: Trouble):
    flaky.adding = {"terrified of dogs": "fatal"}
    outcome = stage(built, *REPLAY, code=2)
    assert (outcome["failed"], outcome["error"]) == (1, "flaky can't take that in")
    assert outcome["pending"] == outcome["done"] + 1 + outcome["left"]
    assert outcome["left"] > 0
    flaky.adding = {}
    assert stage(built, *REPLAY)["done"] == 1 + outcome["left"]


def test_run_goes_on_after_failures_and_ends_with_the_worst_code(tmp_path: Path, sample: Path, flaky: Trouble):
    flaky.adding = {"coeliac disease, so I": "transient"}
    trials = tmp_path / "trials.json"
    command = ("run", "inmind", "flaky.toml", "--data", str(sample), "--json")
    outcomes = json.loads(on(trials, *command, code=1).out)
    assert [(o["stage"], o["done"], o["failed"]) for o in outcomes] == [
        ("build", 8, 0),
        ("replay", 7, 1),
        ("fetch", 14, 0),
        ("answer", 14, 0),
        ("judge", 14, 0),
    ]
    flaky.adding = {}
    assert [o["done"] for o in json.loads(on(trials, *command).out)] == [0, 1, 2, 2, 2]


# metrics


def test_a_share_is_the_mean_of_its_verdicts(judged: Path):
    scores = [
        r["body"]["score"]
        for r in records(judged, "verdict")
        if r["system"] == config(judged, "bm25") and r["metric"] == "direct-verbatim"
    ]
    found = number(judged, system="bm25", metric="direct-verbatim")
    expected = {
        "benchmark": BENCHMARK,
        "system": config(judged, "bm25"),
        "fetch": config(judged, "k10"),
        "reader": None,
        "judge": records(judged, "verdict")[0]["judge"],
        "system_name": "bm25",
        "reader_name": None,
        "judge_name": "offline",
        "metric": "direct-verbatim",
        "value": sum(scores) / 8,
        "score": sum(scores) / 8,
        "low": sum(scores) / 8,
        "high": sum(scores) / 8,
        "class": "R",
        "unit": "share",
        "coverage": 1.0,
        "n": 8,
        "of": 8,
        "group": None,
        "reason": None,
        "status": "complete",
        "missing": {},
        "subset": False,
        # two tasks share what their user says, so 7 clusters
        "clusters": 7,
    }
    assert {name: found[name] for name in expected} == expected
    low, high = found["interval"]
    assert 0 <= low < found["value"] < high <= 1


def test_controls_bound_what_a_system_can_reach(judged: Path):
    for metric in ("direct-verbatim", "target-verbatim"):
        assert number(judged, system="none", metric=metric)["value"] == 0
        assert number(judged, system="in-context", metric=metric)["value"] == 1
    assert stage(judged, "metrics")["controls"] == sorted([config(judged, "none"), config(judged, "in-context")])


def test_what_has_no_number_says_why(judged: Path):
    for metric in ("naive", "target-recall", "application", "answer-only", "direct-recall"):
        found = number(judged, system="bm25", metric=metric)
        assert (found["value"], found["n"], found["of"], found["reason"]) == (None, 0, 8, "needs a model judge")
        assert found["coverage"] == 0


def test_measures_need_no_judge(fetched: Path):
    hit = number(fetched, system="bm25", metric="direct-hit@k")
    ranks = [
        item["rank"]
        for r in records(fetched, "retrieval")
        if r["system"] == config(fetched, "bm25") and r["query"] == "naive_query"
        for item in r["body"]["items"]
        if evidence(fetched, r["task"]) in item["turn_ids"]
    ]
    assert (hit["value"], hit["n"], hit["of"], hit["class"]) == (len(ranks) / 8, 8, 8, None)
    assert number(fetched, system="bm25", metric="context-tokens")["unit"] == "tokens"
    assert number(fetched, system="none", metric="context-tokens")["value"] == 0
    assert number(fetched, system="bm25", metric="retrieval-seconds-p50")["n"] == 16
    assert number(fetched, system="none", metric="direct-hit@k")["reason"] == "the system gives no evidence ids"


def evidence(trials: Path, task: str) -> str:
    """The turn in which a task's user says what matters."""
    (body,) = (r["body"] for r in records(trials, "task") if r["task"] == task)
    return str(body["gold"][0]["evidence"][0])


def test_a_part_that_was_judged_has_a_score_and_bounds_but_no_value(answered: Path):
    stage(answered, "judge", "--system", "in-context", "--limit", "3")
    found = number(answered, system="in-context", metric="target-verbatim")
    assert (found["value"], found["score"], found["low"], found["high"]) == (None, 1.0, 3 / 8, 1.0)
    assert (found["n"], found["of"], found["coverage"]) == (3, 8, 3 / 8)
    assert (found["status"], found["missing"]) == ("partial", {"none": 5})
    assert "partial, 3 of 8" in on(answered, "metrics").out


def test_what_a_system_failed_at_counts_as_wrong(built: Path, flaky: Trouble):
    flaky.adding = {"coeliac disease, so I": "content"}
    on(built, *REPLAY, code=1)
    for name in ("fetch", "answer", "judge"):
        stage(built, name)
    found = number(built, metric="target-verbatim")
    assert (found["value"], found["score"], found["low"], found["high"]) == (7 / 8, 1.0, 7 / 8, 1.0)
    assert (found["status"], found["n"], found["of"], found["missing"]) == ("lower bound", 7, 8, {"system": 1})


def test_a_number_on_a_selection_says_that_it_is_on_a_part(judged: Path):
    found = number(judged, "--limit", "3", system="in-context", metric="target-verbatim")
    assert (found["value"], found["n"], found["of"], found["subset"]) == (1.0, 3, 3, True)
    assert "(subset)" in on(judged, "metrics", "--limit", "3").out
    assert "(subset)" not in on(judged, "metrics", "--system", "bm25").out


def test_by_type_parts_the_questions(judged: Path):
    types = Counter(r["type"] for r in records(judged, "task"))
    for by in ("type", "domain"):
        found = numbers(judged, "--by", by, system="in-context", metric="target-verbatim")
        assert {n["group"]: n["of"] for n in found} == types
        assert {n["value"] for n in found} == {1.0}


def test_by_type_shows_types_without_any_verdict(answered: Path):
    stage(answered, "judge", "--type", "parenting")
    found = numbers(answered, "--by", "type", system="in-context", metric="target-verbatim")
    assert {n["group"]: (n["n"], n["value"]) for n in found if n["n"]} == {"parenting": (2, 1.0)}
    assert {n["status"] for n in found if n["group"] != "parenting"} == {"partial"}
    assert sum(n["of"] for n in found) == 8


def test_by_repeat_parts_the_trials(fetched: Path):
    for name in ("fetch", "answer", "judge"):
        stage(fetched, name, "--system", "in-context", *(["--repeat", "2"] if name == "fetch" else []))
    found = numbers(fetched, "--by", "repeat", system="in-context", metric="target-verbatim")
    assert [(n["group"], n["value"], n["n"]) for n in found] == [("1", 1.0, 8), ("2", 1.0, 8)]
    assert number(fetched, system="in-context", metric="target-verbatim")["n"] == 8, "repeats are averaged first"


def test_metric_and_judge_and_reader_narrow(judged: Path):
    assert {n["metric"] for n in numbers(judged, "--metric", "target-verbatim")} == {"target-verbatim"}
    assert numbers(judged, "--judge", "offline", "--reader", "offline")
    assert "did you mean target-verbatim" in on(judged, "metrics", "--metric", "target-verbatin", code=2).err


@pytest.fixture
def model_judged(answered: Path, tmp_path: Path) -> Path:
    """Verdicts of a model, obtained elsewhere: target-recall of in-context 1, its application unreadable."""
    judge = ("judge", "--judge", "model", "--system", "in-context")
    requests, replies = tmp_path / "requests.jsonl", tmp_path / "replies.jsonl"
    on(answered, *judge, "--metric", "target-recall", "--metric", "application", "--export-requests", str(requests))
    with replies.open("w", encoding="utf-8") as out:
        for line in requests.read_text("utf-8").splitlines():
            request = json.loads(line)
            reply = '{"score": 1, "reason": "there"}' if request["metric"] == "target-recall" else "no idea"
            out.write(json.dumps({"custom_id": request["custom_id"], "reply": reply}) + "\n")
    outcome = stage(answered, *judge, "--import-replies", str(replies), code=1)
    assert (outcome["done"], outcome["failed"]) == (8, 8)
    return answered


def test_the_class_is_the_lowest_of_those_who_had_a_part(model_judged: Path):
    stage(model_judged, "judge", "--judge", "offline")
    by_metric = {
        (n["metric"], n["judge_name"]): n["class"] for n in numbers(model_judged, system="in-context", unit="share")
    }
    assert by_metric["target-recall", "model"] == "M"
    assert by_metric["target-verbatim", "offline"] == "R"
    assert by_metric["application", "model"] == "R", "a model judged what a rule answered"
    assert by_metric["target-hit@k", None] is None


@pytest.mark.parametrize("by", ["type", "repeat", "judge"])
def test_a_judge_that_failed_everywhere_gives_no_number_but_a_reason(model_judged: Path, by: str):
    whole = number(model_judged, system="in-context", metric="application")
    assert (whole["value"], whole["score"], whole["low"], whole["high"]) == (None, None, 0.0, 1.0)
    assert (whole["n"], whole["of"], whole["status"], whole["missing"]) == (0, 8, "partial", {"service": 8})
    parts = numbers(model_judged, "--by", by, system="in-context", metric="application")
    assert sum(n["of"] for n in parts) == 8
    assert {n["value"] for n in parts} == {None}


def test_json_is_what_format_json_is(judged: Path):
    assert on(judged, "metrics", "--json").out == on(judged, "metrics", "--format", "json").out
    report = stage(judged, "metrics")
    assert set(report) >= {"stage", "numbers", "attributions", "fetch_settings", "controls", "notes"}
    assert report["fetch_settings"][config(judged, "k10")]["k"] == 10
    assert report["notes"][0].startswith(f"{BENCHMARK}: 8 tasks, data ")


def test_csv_holds_the_same_numbers(judged: Path):
    rows = list(csv.DictReader(io.StringIO(on(judged, "metrics", "--format", "csv").out)))
    found = stage(judged, "metrics")["numbers"]
    assert len(rows) == len(found)
    for row, n in zip(rows, found, strict=True):
        assert (row["system"], row["metric"], row["unit"]) == (n["system"], n["metric"], n["unit"])
        for name in ("value", "score", "low", "high", "n", "of", "coverage"):
            assert row[name] == ("" if n[name] is None else str(n[name]))
        low, high = n["interval"] or ("", "")
        assert (row["interval_low"], row["interval_high"]) == (str(low), str(high))


def test_attribution_counts_every_task_once(judged: Path):
    attributions = stage(judged, "metrics")["attributions"]
    assert len(attributions) == 3
    for attribution in attributions:
        assert attribution["by_rule"]
        assert sum(attribution["counts"].values()) == attribution["n"] == 8


def test_a_ledger_without_results_says_so(built: Path):
    assert "no results yet" in on(built, "metrics").out
    assert stage(built, "metrics")["numbers"] == []
    assert on(built, "metrics", "--format", "csv").out == ""


def test_metrics_change_nothing(judged: Path):
    before = files(judged.parent)
    for form in ("table", "json", "csv"):
        on(judged, "metrics", "--format", form)
    assert files(judged.parent) == before


# At once


def test_shards_systems_and_stages_work_at_once(built: Path, sample: Path):
    """Nothing is lost, nothing is done twice, and no one clears away what another is building."""
    replay = ("replay", "bm25", "--repeat", "4")
    all_at_once(built, (*replay, "--shard", "1/2"), (*replay, "--shard", "2/2"), ("replay", "in-context"))
    assert counts(built) == {"task": 8, "config": 2, "ingest": 40}
    all_at_once(
        built,
        ("replay", "none"),
        ("fetch", "bm25", "--shard", "1/2"),
        ("fetch", "bm25", "--shard", "2/2"),
        ("fetch", "in-context"),
    )
    assert counts(built) == {"task": 8, "config": 5, "ingest": 48, "retrieval": 80}
    totals = stage(built, "status")["totals"]
    assert (totals["twins"], totals["void"]) == (0, 0)
    assert stored(built) == {"counts": 40}
    assert not list(built.parent.glob("*.torn-*"))
    assert stage(built, *again(sample)["replay"])["pending"] == 0
    assert stage(built, "fetch")["pending"] == 16
    assert [manifest(built, name)["ok"] for name in ("bm25", "in-context", "none")] == [32, 8, 8]


# Interrupted


@contextlib.contextmanager
def running(trials: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A stage in a session of its own that has begun to append."""
    size = trials.stat().st_size
    command = [sys.executable, "-m", "memtrials", *arguments, "--trials", str(trials)]
    child = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        while trials.stat().st_size < size + 4000:
            assert child.poll() is None, child.communicate()
            time.sleep(0.002)
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def test_an_interrupted_stage_finishes_what_is_in_flight_and_the_next_run_completes(built: Path):
    with running(built, "replay", "bm25", "--repeat", "40") as child:
        os.killpg(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=30)
    assert (child.returncode, out) == (130, "")
    first, summary = err.splitlines()
    assert first == "interrupted: finishing what is in flight; press Ctrl-C again to abort"
    assert "Traceback" not in err
    with Ledger.open(built) as ledger:
        index = LedgerIndex(ledger)
        done = len(index.of("ingest"))
        assert index.failures == {}
    assert len(records(built, "ingest")) == done
    assert summary == f"replay: {done} done, {320 - done} left"
    assert 0 < done < 320
    assert not list(built.with_suffix(".stores").glob("*/*.part"))
    assert len(list(built.with_suffix(".stores").glob("*/*.sqlite"))) == done
    assert list(built.with_name("trials.json.locks").glob("*.lock")) == []

    repeats = -(-done // 8) + 1
    outcome = stage(built, "replay", "bm25", "--repeat", str(repeats))
    assert outcome["failed"] == 0
    assert stage(built, "replay", "bm25", "--repeat", str(repeats))["pending"] == 0


@pytest.mark.parametrize("times", [1, 2, 100])
def test_interrupted_json_is_still_one_object(built: Path, times: int):
    """One Ctrl-C can arrive more than once; within a second it is still one."""
    with running(built, "replay", "bm25", "--repeat", "40", "--json") as child:
        for _ in range(times):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGINT)
            time.sleep(0.005)
        out, _ = child.communicate(timeout=30)
    outcome = json.loads(out)
    assert child.returncode == 130
    assert outcome["pending"] == 320 == outcome["done"] + outcome["left"]
    assert outcome["appended"] == outcome["done"] + 1


def test_an_interrupted_run_begins_no_other_stage(tmp_path: Path, sample: Path, built: Path):
    with running(built, "run", "inmind", "bm25", "vector", "hybrid", "--data", str(sample), "--json") as child:
        os.killpg(child.pid, signal.SIGINT)
        out, _ = child.communicate(timeout=30)
    assert child.returncode == 130
    assert [o["stage"] for o in json.loads(out)] == ["build", "replay"]
    assert records(built, "retrieval") == []


def test_failure_bodies_can_be_read_back(built: Path, flaky: Trouble):
    flaky.adding = {"coeliac disease, so I": "transient"}
    on(built, *REPLAY, code=1)
    with Ledger.open(built) as ledger:
        (failures,) = LedgerIndex(ledger).failures.values()
        assert ledger.body(failures[0], FailureBody).cause == "system"


def test_run_says_what_was_done_before_an_error(sample: Path, tmp_path: Path):
    """Stages that appended records stand in the list although a later one needs the user."""
    trials = tmp_path / "trials.json"
    finished = call_cli(
        "run", "inmind", "bm25", "--data", str(sample), "--reader", "model-a", "--trials", str(trials), "--json"
    )
    assert finished.code == 2
    assert [(o["stage"], o["appended"] > 0) for o in json.loads(finished.out)] == [
        ("build", True),
        ("replay", True),
        ("fetch", True),
    ]
    assert finished.err.count("memtrials:") == 1
