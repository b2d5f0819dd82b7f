"""Changing one's mind: another reader, another k, more repeats, results taken out of the count. Exact counts.

The ledger is the bundled sample's: 8 tasks with 2 queries in the systems bm25, none and in-context, so 16 trials in
each. Models are names behind a scripted server: a reader says its own name, a judge says 1.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from memtrials.llm.pool import CallLimits
from support.cli import call_cli, environment
from support.model_server import ModelServer, Reply, error, late, ok
from support.trials import ended, files, records, stage

pytestmark = pytest.mark.usefixtures("quick")
JUDGE_TOKENS = 4096
WORKERS = 8
BM25 = ("--system", "bm25")


def speak(number: int, body: dict[str, Any]) -> Reply:
    """What a model says: a judge 1, a reader its name."""
    return ok('{"score": 1, "reason": "r"}' if body["max_completion_tokens"] == JUDGE_TOKENS else f"{body['model']}.")


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """All models."""
    with ModelServer(speak) as running:
        yield running


def name(config_id: str) -> str:
    """A configuration's name without its hash."""
    return config_id.rpartition("-")[0]


def answers(trials: Path) -> dict[str, int]:
    """How many answers each reader has given, whether they count or not."""
    return dict(Counter(name(a["reader"]) for a in records(trials, "answer")))


# --- another reader ---------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A command and how it ends: work done, work left alone, exit code, and then the answers of each reader."""

    command: str
    done: int = 0
    skipped: int = 0
    code: int = 0
    answers: dict[str, int] | None = None


ALPHA, BETA = "answer --reader alpha --system bm25", "answer --reader beta --system bm25"

SWITCHES: dict[str, list[Step]] = {
    "a second reader is left alone until it is forced, and then needs no flag": [
        Step(ALPHA, done=16, answers={"alpha": 16}),
        Step(ALPHA),
        Step(BETA, skipped=16, answers={"alpha": 16}),
        Step(f"{BETA} --force", done=16, answers={"alpha": 16, "beta": 16}),
        Step(f"{BETA} --force"),
        Step(BETA),
        Step(ALPHA),
        Step(f"{ALPHA} --force", answers={"alpha": 16, "beta": 16}),
    ],
    "where some trials have no answer at all it must be asked": [
        Step(f"{ALPHA} --task 2 --task 5", done=4),
        Step(BETA, skipped=16, code=2, answers={"alpha": 4}),
        Step(f"{BETA} --task 2", skipped=2, code=0),
        Step(f"{BETA} --task 9", skipped=2, code=2),
        Step(f"{BETA} --force", done=16, answers={"alpha": 4, "beta": 16}),
        Step(ALPHA, done=12, answers={"alpha": 16, "beta": 16}),
    ],
    "begun by force on a part, it goes on without a flag": [
        Step(ALPHA, done=16),
        Step(f"{BETA} --force --task 2/query", done=1),
        Step(BETA, done=15, answers={"alpha": 16, "beta": 16}),
    ],
    "a system that nobody has answered is open to every reader": [
        Step(ALPHA, done=16),
        Step("answer --reader beta", done=32, skipped=16, answers={"alpha": 16, "beta": 32}),
        Step("answer --reader alpha", skipped=32),
        Step("answer --reader alpha --force", done=32, answers={"alpha": 48, "beta": 32}),
    ],
    "topping up an old reader needs no flag": [
        Step(ALPHA, done=16),
        Step(f"{BETA} --force", done=16),
        Step(f"{ALPHA} --repeat 2", done=16, answers={"alpha": 32, "beta": 16}),
        Step(f"{ALPHA} --repeat 2"),
        Step(f"{ALPHA} --repeat 3 --task 2", done=2, answers={"alpha": 34, "beta": 16}),
    ],
    "forcing twice does nothing twice, at any repeat": [
        Step(ALPHA, done=16),
        Step(f"{BETA} --force --repeat 2", done=32),
        Step(f"{BETA} --force --repeat 2"),
        Step(f"{BETA} --force", answers={"alpha": 16, "beta": 32}),
    ],
    "the offline reader is a reader like any other": [
        Step("answer --system bm25", done=16, answers={"offline": 16}),
        Step(ALPHA, skipped=16),
        Step(f"{ALPHA} --force", done=16),
        Step("answer --system bm25", answers={"offline": 16, "alpha": 16}),
    ],
    "a reader whose answers are void has not begun": [
        Step(ALPHA, done=16),
        Step("void --config alpha --reason gone"),
        Step(BETA, done=16, answers={"alpha": 16, "beta": 16}),
        Step(ALPHA, skipped=16),
    ],
    "a third reader meets the newest": [
        Step(ALPHA, done=16),
        Step(f"{BETA} --force", done=16),
        Step("answer --reader gamma --system bm25", skipped=16),
    ],
}


def run(trials: Path, server: ModelServer, step: Step) -> dict[str, Any]:
    """Run a step and check how it ends; models were asked once for each piece of work that was done, and no more."""
    asked = len(server.requests)
    outcome = stage(trials, *shlex.split(step.command), code=step.code, env=server.environment())
    if step.command.startswith("void"):
        return outcome
    assert (outcome["pending"], outcome["done"], outcome["failed"], outcome["left"]) == (step.done, step.done, 0, 0)
    assert outcome["skipped"] == step.skipped, step
    assert outcome["appended"] - step.done in ((0, 1) if step.done else (0,)), step  # the reader's configuration
    offline = "--reader" not in step.command
    assert len(server.requests) - asked == (0 if offline else step.done), step
    if step.answers is not None:
        assert answers(trials) == step.answers, step
    return outcome


@pytest.mark.parametrize("steps", SWITCHES.values(), ids=SWITCHES)
def test_switching_readers(fetched: Path, server: ModelServer, steps: list[Step]) -> None:
    for step in steps:
        before = fetched.read_bytes()
        run(fetched, server, step)
        if not step.done and not step.command.startswith("void"):
            assert fetched.read_bytes() == before, step


def test_the_message_names_the_reader_it_found_what_differs_and_how_many_it_left(
    fetched: Path, server: ModelServer
) -> None:
    run(fetched, server, Step(f"{ALPHA} --task 2", done=2))
    alpha = records(fetched, "answer")[0]["reader"]
    bm25 = records(fetched, "answer")[0]["system"]
    for quiet in ((), ("--quiet",)):  # what needs a yes is said in any case
        arguments = (*shlex.split(BETA), *quiet, "--trials", str(fetched))
        finished = ended(call_cli(*arguments, env=server.environment()), 2)
        assert re.search(
            rf"inmind@sample on {bm25}: reader {alpha} has begun here, beta-[0-9a-f]{{8}} has not "
            r"\(they differ in model\); 16 left alone, 14 of them without any result\. To switch: --force\n",
            finished.err,
        )
    assert stage(fetched, *shlex.split(BETA), code=2, env=server.environment())["notes"][0] in finished.err.strip()


def test_another_prompt_or_parameter_is_another_reader(
    fetched: Path, server: ModelServer, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(fetched, server, Step(ALPHA, done=16))
    prompts = tmp_path_factory.mktemp("evaluation")
    folder = prompts / "prompts" / "inmind"
    folder.mkdir(parents=True)
    for prompt in ("answer_system", "judge_naive", "judge_target_recall", "judge_application", "judge_answer_only"):
        (folder / f"{prompt}.txt").write_text("Be brief. {context}", "utf-8")
    monkeypatch.setattr("memtrials.llm.prompts.evaluation", lambda: prompts)
    outcome = run(fetched, server, Step(ALPHA, skipped=16))
    assert "(they differ in prompt); 16 left alone, 0 of them" in outcome["notes"][0]
    run(fetched, server, Step(f"{ALPHA} --force", done=16, answers={"alpha": 32}))


def test_answers_that_failed_begin_nothing(fetched: Path, server: ModelServer) -> None:
    server.script = lambda number, body: error(503)
    stage(fetched, *shlex.split(ALPHA), "--task", "2/query", code=1, env=server.environment())
    server.script = speak
    run(fetched, server, Step(BETA, done=16))
    run(fetched, server, Step(ALPHA, skipped=16))


# --- whose answers are judged -----------------------------------------------------------------------------------


def verdicts(trials: Path, judge: str) -> Counter[tuple[str, str | None]]:
    """How many verdicts of a judge there are, by metric and reader."""
    mine = [v for v in records(trials, "verdict") if name(v["judge"]) == judge]
    return Counter((v["metric"], v.get("reader") and name(v["reader"])) for v in mine)


def judged(trials: Path, server: ModelServer, *arguments: str) -> int:
    """Judge with a model and return how many verdicts were made; every request made one."""
    asked = len(server.requests)
    outcome = stage(trials, "judge", *BM25, *arguments, env=server.environment())
    assert outcome["pending"] == outcome["done"] == len(server.requests) - asked
    return int(outcome["done"])


OF_TRIALS = {("target-recall", None): 8, ("direct-recall", None): 8}


def of_answers(reader: str) -> dict[tuple[str, str | None], int]:
    """The verdicts on one answer of a reader to every trial."""
    return {("naive", reader): 8, ("application", reader): 8, ("answer-only", reader): 8}


def test_the_current_reader_is_judged_and_others_when_they_are_named(fetched: Path, server: ModelServer) -> None:
    run(fetched, server, Step(ALPHA, done=16))
    run(fetched, server, Step(f"{BETA} --force", done=16))
    run(fetched, server, Step(f"{ALPHA} --repeat 2", done=16))  # topping up alpha doesn't make it current
    assert judged(fetched, server, "--judge", "one") == 40
    assert verdicts(fetched, "one") == {**OF_TRIALS, **of_answers("beta")}
    assert judged(fetched, server, "--judge", "one") == 0
    assert judged(fetched, server, "--judge", "one", "--reader", "alpha") == 48  # two answers each
    assert judged(fetched, server, "--judge", "one", "--reader", "all") == 0
    assert verdicts(fetched, "one") == {
        **OF_TRIALS,
        **of_answers("beta"),
        **{key: 2 * count for key, count in of_answers("alpha").items()},
    }
    shown = [json.loads(line) for line in call_cli("view", *BM25, "--trials", str(fetched)).out.splitlines()]
    assert Counter(name(trial["reader"]) for trial in shown) == {"beta": 16}


def test_a_second_judge_needs_no_force(fetched: Path, server: ModelServer) -> None:
    run(fetched, server, Step(ALPHA, done=16))
    assert judged(fetched, server, "--judge", "one", "--metric", "naive") == 8
    assert judged(fetched, server, "--judge", "two") == 40
    assert judged(fetched, server, "--judge", "one") == 32
    assert stage(fetched, "judge", *BM25)["done"] == 16  # the rules: two of them, on 8 trials each
    assert verdicts(fetched, "one") == verdicts(fetched, "two") == {**OF_TRIALS, **of_answers("alpha")}
    assert verdicts(fetched, "offline") == {("direct-verbatim", None): 8, ("target-verbatim", None): 8}
    assert judged(fetched, server, "--judge", "one") == judged(fetched, server, "--judge", "two") == 0


def test_after_a_void_the_reader_before_is_current_again(fetched: Path, server: ModelServer) -> None:
    run(fetched, server, Step(ALPHA, done=16))
    run(fetched, server, Step(f"{BETA} --force", done=16))
    stage(fetched, "void", "--config", "beta", "--reason", "wrong key")
    assert judged(fetched, server, "--judge", "one") == 40
    assert verdicts(fetched, "one") == {**OF_TRIALS, **of_answers("alpha")}


# --- another fetch configuration --------------------------------------------------------------------------------


def fetch(trials: Path, *arguments: str, code: int = 0) -> tuple[int, int]:
    """Fetch: how much was done and how much left alone."""
    outcome = stage(trials, "fetch", "bm25", *arguments, code=code)
    assert outcome["pending"] == outcome["done"]
    return outcome["done"], outcome["skipped"]


def retrievals(trials: Path) -> dict[str, int]:
    """How many trials bm25 has under each fetch configuration."""
    mine = [r for r in records(trials, "retrieval") if r["system"].startswith("bm25")]
    return dict(Counter(name(r["fetch"]) for r in mine))


def test_another_k_is_left_alone_until_it_is_forced(fetched: Path, server: ModelServer) -> None:
    before = fetched.read_bytes()
    outcome = stage(fetched, "fetch", "bm25", "--k", "5")
    assert (outcome["done"], outcome["skipped"]) == (0, 16)
    assert re.search(
        r"fetch configuration k10-[0-9a-f]{8} has begun here, k5-[0-9a-f]{8} has not \(they differ in k\); "
        r"16 left alone, 0 of them without any result",
        outcome["notes"][0],
    )
    assert fetched.read_bytes() == before
    assert fetch(fetched, "--k", "5", "--force") == (16, 0)
    assert fetch(fetched, "--k", "5", "--force") == (0, 0)
    assert fetch(fetched, "--k", "5") == (0, 0)
    assert fetch(fetched) == (0, 0)
    assert fetch(fetched, "--order", "time") == (0, 16)
    assert retrievals(fetched) == {"k10": 16, "k5": 16}
    contexts = {
        (name(r["fetch"]), r["task"], r["query"]): r["body"]["context"]
        for r in records(fetched, "retrieval")
        if r["system"].startswith("bm25")
    }
    assert all(contexts["k10", t, q].startswith(text) for (k, t, q), text in contexts.items() if k == "k5")
    run(fetched, server, Step(ALPHA, done=32))  # the new trials are owed answers


def test_another_k_where_some_queries_have_no_trial_must_be_asked(replayed: Path) -> None:
    assert fetch(replayed, "--task", "2") == (2, 0)
    assert fetch(replayed, "--k", "5", code=2) == (0, 16)
    assert fetch(replayed, "--k", "5", "--task", "2") == (0, 2)
    assert fetch(replayed, "--k", "5", "--force", "--task", "2") == (2, 0)
    assert fetch(replayed, "--k", "5") == (14, 0)
    assert fetch(replayed) == (14, 0)
    assert retrievals(replayed) == {"k10": 16, "k5": 16}


def test_a_system_that_knows_no_k_has_one_configuration(fetched: Path) -> None:
    outcome = stage(fetched, "fetch", "none", "in-context", "--k", "5")
    assert (outcome["pending"], outcome["skipped"]) == (0, 0)


# --- repeats ----------------------------------------------------------------------------------------------------


def ordinals(trials: Path, kind: str) -> set[tuple[int, ...]]:
    """The ordinals that pieces of work have in bm25; one tuple where all have the same."""
    found: dict[str, list[int]] = {}
    for record in records(trials, kind):
        if record["system"].startswith("bm25"):
            found.setdefault(record["key"], []).append(record["repeat"])
    return {tuple(sorted(some)) for some in found.values()}


def test_repeat_tops_up_every_stage_to_n(replayed: Path, server: ModelServer) -> None:
    def done(*arguments: str) -> int:
        outcome = stage(replayed, *arguments, *BM25, env=server.environment())
        assert outcome["pending"] == outcome["done"]
        return int(outcome["done"])

    assert done("replay", "bm25", "--repeat", "2") == 8
    assert done("replay", "bm25", "--repeat", "2") == done("replay", "bm25") == 0
    namespaces = [i["body"]["namespace"] for i in records(replayed, "ingest")]
    assert len(set(namespaces)) == len(namespaces) == 8 * 3 + 8
    assert done("fetch", "bm25") == 32
    assert done("fetch", "bm25", "--repeat", "3") == 64
    assert done("fetch", "bm25", "--repeat", "3") == done("fetch", "bm25", "--repeat", "2") == 0
    assert done("answer", "--task", "2/query", "--repeat", "2") == 2 * 3 * 2  # states, trials, answers
    assert done("answer", "--task", "2/query", "--repeat", "2") == 0
    assert done("judge", "--judge", "one", "--metric", "application") == 12
    assert done("judge", "--judge", "one", "--metric", "application", "--repeat", "3") == 24
    assert done("judge", "--judge", "one", "--metric", "target-recall", "--repeat", "2", "--task", "2") == 2 * 3 * 2
    assert done("judge", "--judge", "one", "--metric", "application", "--repeat", "2") == 0
    assert ordinals(replayed, "ingest") == {(1, 2)}
    assert ordinals(replayed, "retrieval") == {(1, 2, 3)}
    assert ordinals(replayed, "answer") == {(1, 2)}
    assert ordinals(replayed, "verdict") == {(1, 2, 3), (1, 2)}


def start(trials: Path, server: ModelServer, *arguments: str) -> subprocess.Popen[str]:
    """`memtrials …` in a session of its own, so that a signal reaches it alone."""
    return subprocess.Popen(
        [sys.executable, "-m", "memtrials", *arguments, "--trials", str(trials)],
        env=environment(server.environment()),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_an_interrupted_repeat_is_finished_and_never_exceeded(
    fetched: Path, server: ModelServer, how: signal.Signals
) -> None:
    server.script = lambda number, body: late(0.03, speak(number, body))
    repeat = (*shlex.split(ALPHA), "--repeat", "3", "--workers", str(WORKERS))
    stopped = start(fetched, server, *repeat)
    deadline = time.monotonic() + 60
    while len(server.requests) < 20 and time.monotonic() < deadline:
        time.sleep(0.005)
    os.killpg(stopped.pid, how)
    _, said = stopped.communicate(timeout=60)

    if how is signal.SIGINT:
        assert stopped.returncode == 130
        assert "interrupted: finishing what is in flight" in said
        assert len(records(fetched, "answer")) == len(server.requests)  # what was sent is not lost
    before = len(records(fetched, "answer"))
    assert 0 < before < 48
    outcome = stage(fetched, *repeat, env=server.environment())
    assert (outcome["pending"], outcome["done"]) == (48 - before, 48 - before)
    assert ordinals(fetched, "answer") == {(1, 2, 3)}
    assert len(records(fetched, "answer")) == 48
    assert len(server.requests) <= 48 + CallLimits(WORKERS).in_hand  # lost: what was in flight or not durable yet
    assert stage(fetched, *repeat, env=server.environment())["pending"] == 0
    assert stage(fetched, *repeat, "--dry-run", env=server.environment())["pending"] == 0


def test_a_second_interrupt_after_a_second_does_not_wait_for_a_server_that_hangs(
    fetched: Path, server: ModelServer
) -> None:
    server.script = lambda number, body: late(0 if number <= 3 else 120, speak(number, body))
    stopped = start(fetched, server, *shlex.split(ALPHA), "--workers", "2")
    deadline = time.monotonic() + 60
    while len(server.requests) < 5 and time.monotonic() < deadline:
        time.sleep(0.005)
    os.killpg(stopped.pid, signal.SIGINT)
    time.sleep(1.2)
    assert stopped.poll() is None  # it waits for what is in flight
    os.killpg(stopped.pid, signal.SIGINT)
    assert stopped.wait(timeout=10) == 130
    assert answers(fetched) == {"alpha": 3}
    server.script = speak
    run(fetched, server, Step(ALPHA, done=13))


# --- results taken out of the count -----------------------------------------------------------------------------

STAGES = {
    "replay": ("replay", "bm25"),
    "fetch": ("fetch", "bm25"),
    "answer": ("answer", "--reader", "alpha"),
    "judge": ("judge", "--judge", "one"),
}
EVERYTHING = {"ingest": 8, "retrieval": 16, "answer": 16, "verdict": 40}


@pytest.fixture(scope="module")
def _complete(ledgers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    trials = (
        Path(shutil.copytree(ledgers["fetch"].parent, tmp_path_factory.mktemp("complete") / "copy")) / "trials.json"
    )
    with ModelServer(speak) as server:
        run(trials, server, Step(ALPHA, done=16))
        assert judged(trials, server, "--judge", "one") == 40
    return trials


@pytest.fixture
def complete(_complete: Path, tmp_path: Path) -> Path:
    """Every trial of bm25 answered by alpha and judged by one."""
    return Path(shutil.copytree(_complete.parent, tmp_path, dirs_exist_ok=True)) / _complete.name


def pending(trials: Path, server: ModelServer) -> dict[str, int]:
    """What each stage owes bm25, where it owes anything."""
    owed = {
        name: stage(trials, *command, *BM25, "--dry-run", env=server.environment())["pending"]
        for name, command in STAGES.items()
    }
    return {name: count for name, count in owed.items() if count}


def redo(trials: Path, server: ModelServer) -> dict[str, int]:
    """Run all stages on bm25; what each did, where it did anything."""
    did = {name: stage(trials, *c, *BM25, env=server.environment())["done"] for name, c in STAGES.items()}
    return {name: count for name, count in did.items() if count}


class Voiding(NamedTuple):
    """What a void names, what goes with it, what is owed at once, and what has to be done again in all."""

    selection: str
    gone: dict[str, int]
    pending: dict[str, int]
    again: dict[str, int]


VOIDS: dict[str, Voiding] = {
    "retrievals of a task": Voiding(
        "--kind retrieval --task 2",
        {"retrieval": 2, "answer": 2, "verdict": 5},
        {"fetch": 2},
        {"fetch": 2, "answer": 2, "judge": 5},
    ),
    "an answer to the indirect query": Voiding(
        "--kind answer --task 2/query", {"answer": 1, "verdict": 2}, {"answer": 1}, {"answer": 1, "judge": 2}
    ),
    "an answer to the direct query": Voiding(
        "--kind answer --task 2/naive_query", {"answer": 1, "verdict": 1}, {"answer": 1}, {"answer": 1, "judge": 1}
    ),
    "verdicts of a task": Voiding("--kind verdict --task 5", {"verdict": 5}, {"judge": 5}, {"judge": 5}),
    "verdicts of a judge": Voiding("--config one", {"verdict": 40}, {"judge": 40}, {"judge": 40}),
    "a reader's answers": Voiding(
        "--config alpha", {"answer": 16, "verdict": 24}, {"answer": 16}, {"answer": 16, "judge": 24}
    ),
    "answers of a domain": Voiding(
        "--kind answer --type parenting", {"answer": 4, "verdict": 6}, {"answer": 4}, {"answer": 4, "judge": 6}
    ),
    "the state of a task": Voiding(
        "--kind ingest --task 2",
        {"ingest": 1, "retrieval": 2, "answer": 2, "verdict": 5},
        {"replay": 1},
        {"replay": 1, "fetch": 2, "answer": 2, "judge": 5},
    ),
    "all of a system": Voiding("", EVERYTHING, {"replay": 8}, {"replay": 8, "fetch": 16, "answer": 16, "judge": 40}),
}


def void(trials: Path, *arguments: str) -> dict[str, Any]:
    """Void something for a reason."""
    return stage(trials, "void", *arguments, "--reason", "a test")


@pytest.mark.parametrize("case", VOIDS.values(), ids=VOIDS)
def test_a_void_takes_out_what_it_names_and_what_was_made_from_it_and_can_be_undone(
    complete: Path, server: ModelServer, case: Voiding
) -> None:
    before = files(complete.parent)
    dry = void(complete, *shlex.split(case.selection), *BM25, "--dry-run")
    assert (dry["kinds"], dry["appended"]) == (case.gone, 0)
    assert files(complete.parent) == before

    done = void(complete, *shlex.split(case.selection), *BM25)
    assert (done["kinds"], done["appended"]) == (case.gone, 1)
    assert (done["right"], done["wrong"]) == (case.gone["verdict"], 0)
    assert pending(complete, server) == case.pending
    again = void(complete, *shlex.split(case.selection), *BM25)
    assert (again["named"], again["appended"]) == (0, 0)

    (voided,) = records(complete, "void")
    assert voided["body"] == {"reason": "a test", "kinds": case.gone, "right": case.gone["verdict"], "wrong": 0}
    asked = len(server.requests)
    assert void(complete, voided["id"])["appended"] == 1
    assert pending(complete, server) == {}
    undone = records(complete, "void")[-1]
    void(complete, undone["id"])  # the undoing undone
    assert pending(complete, server) == case.pending
    assert len(server.requests) == asked
    assert redo(complete, server) == case.again


def test_a_void_undone_after_its_work_was_done_again_leaves_twins_that_count_once(
    complete: Path, server: ModelServer
) -> None:
    void(complete, "--kind", "retrieval", "--task", "2", *BM25)
    assert redo(complete, server) == {"fetch": 2, "answer": 2, "judge": 5}
    void(complete, records(complete, "void")[0]["id"])
    assert pending(complete, server) == {}
    status = stage(complete, "status")
    (row,) = [row for row in status["rows"] if name(row["system"]) == "bm25"]
    assert (row["fetched"], row["answered"], row["judged"]) == (16, 16, 40)
    assert (status["totals"]["twins"], status["totals"]["set aside"]) == (9, 0)  # 2, 2 and 5


def test_a_void_by_id_names_what_is_void_already_or_unknown(complete: Path) -> None:
    (first, *_) = records(complete, "answer")
    assert void(complete, first["id"])["kinds"] == {"answer": 1, "verdict": 1}
    before = complete.read_bytes()
    for wrong, why in ((first["id"], "is void already"), ("01ARZ3NDEKTSV4RRFFQ69G5FAV", "unknown record")):
        finished = ended(call_cli("void", wrong, "--reason", "a test", "--trials", str(complete)), 2)
        assert why in finished.err
        assert finished.err.count("\n") == 1
    finished = ended(call_cli("void", "--reason", "a test", "--trials", str(complete)), 2)
    assert "doesn't void a whole ledger" in finished.err
    assert complete.read_bytes() == before


def test_a_void_says_how_many_right_and_wrong_verdicts_go(fetched: Path, server: ModelServer) -> None:
    server.script = lambda number, body: ok(f'{{"score": {number % 2}}}')
    stage(fetched, "judge", "--judge", "one", "--metric", "target-recall", *BM25, env=server.environment())
    assert {k: v for k, v in void(fetched, "--kind", "verdict", *BM25).items() if k in ("right", "wrong")} == {
        "right": 4,
        "wrong": 4,
    }
