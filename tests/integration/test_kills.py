"""Twenty kills: a chain whose stages are killed again and again ends with what an undisturbed chain makes.

Each stage runs in a session of its own, and the whole group is killed by SIGKILL: a fifth of the times while it starts,
else after a share of what is left of its work, drawn by chance, and some more moments.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from memtrials.index import LedgerIndex
from memtrials.ledger import Ledger
from memtrials.records import AnswerBody, Kind, RetrievalBody, VerdictBody
from support.cli import environment, run_cli
from support.trials import ended, records, stage

SYSTEMS = ("bm25", "vector", "hybrid", "none", "in-context")
STAGES: dict[str, tuple[tuple[str, ...], Kind, int]] = {
    "replay": ((*SYSTEMS, "--repeat", "3"), "ingest", 120),
    "fetch": ((), "retrieval", 240),
    "answer": (("--repeat", "8"), "answer", 1920),
    "judge": (("--repeat", "8"), "verdict", 1920),
}
"""Arguments, what is made, and how much of it."""

ROUNDS = 5
SEED = 20261130

Place = tuple[str | int | None, ...]


def command(name: str, trials: Path) -> list[str]:
    return [name, *STAGES[name][0], "--trials", str(trials), "--quiet"]


@dataclass
class Pace:
    """An undisturbed stage: seconds before its first record, and for each piece of work."""

    start: float
    seconds: float


@dataclass
class Kills:
    """What the kills met. midway: those after a record of this run and before its last."""

    total: int = 0
    midway: int = 0
    found: list[str] = field(default_factory=list)


def started(name: str, trials: Path) -> subprocess.Popen[bytes]:
    """A stage in a session of its own, a little less urgent than the process that is to kill it in time."""
    niced = ["nice", sys.executable, "-m", "memtrials", *command(name, trials)]
    return subprocess.Popen(niced, env=environment(), start_new_session=True)


def wait_for_lines(child: subprocess.Popen[bytes], trials: Path, size: int, count: int) -> None:
    """Wait until the ledger has so many lines beyond its first `size` bytes, or the process has ended."""
    with trials.open("rb") as ledger:
        while child.poll() is None:
            ledger.seek(size)
            if ledger.read().count(b"\n") >= count:
                return
            time.sleep(0.001)


def measured(name: str, trials: Path) -> Pace:
    """Run a stage to its end."""
    size, began = trials.stat().st_size, time.monotonic()
    child = started(name, trials)
    wait_for_lines(child, trials, size, 1)
    first = time.monotonic()
    assert child.wait() == 0
    return Pace(first - began, (time.monotonic() - first) / STAGES[name][2])


def lines_of(trials: Path) -> list[bytes]:
    """The whole lines of a ledger that may be torn: every one must be a record, whatever follows the last."""
    lines = trials.read_bytes().split(b"\n")[1:-1]
    whole = [line.removesuffix(b",") for line in lines if line != b"]"]
    for line in whole:
        assert isinstance(json.loads(line)["id"], str)
    return whole


def made(trials: Path, kind: Kind) -> int:
    return sum(json.loads(line)["kind"] == kind for line in lines_of(trials))


def kill_midway(name: str, trials: Path, pace: Pace, chance: random.Random, kills: Kills, left: int) -> None:
    """left: how often the stage will be killed, this time included; each time it may do its share of what is left, so
    that also one that outruns its killer for a moment has work for the others."""
    _, kind, total = STAGES[name]
    before, size = made(trials, kind), trials.stat().st_size
    child = started(name, trials)
    if chance.random() < 0.2:
        time.sleep(chance.uniform(0, pace.start))
    else:
        wait_for_lines(child, trials, size, chance.randint(1, max(1, (total - before) // (left + 1))))
        time.sleep(chance.uniform(0, 2) * pace.seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    code = child.wait()
    after = made(trials, kind)
    kills.total += code == -signal.SIGKILL
    kills.midway += code == -signal.SIGKILL and before < after < total
    kills.found.append(f"{name}: {before} → {after} of {total}")


@pytest.fixture(scope="module")
def undisturbed(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Pace]]:
    """A chain that nobody killed, and how long its stages took."""
    trials = tmp_path_factory.mktemp("undisturbed") / "trials.json"
    stage(trials, "build", "inmind", "--data", str(sample))
    return trials, {name: measured(name, trials) for name in STAGES}


@pytest.fixture(scope="module")
def killed(
    undisturbed: tuple[Path, dict[str, Pace]], sample: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Kills]:
    """The same chain, each stage killed five times and then left to finish."""
    trials = tmp_path_factory.mktemp("killed") / "trials.json"
    stage(trials, "build", "inmind", "--data", str(sample))
    chance, kills = random.Random(SEED), Kills()
    for name, pace in undisturbed[1].items():
        for left in range(ROUNDS, 0, -1):
            kill_midway(name, trials, pace, chance, kills, left)
        ended(run_cli(*command(name, trials)))
        assert json.loads(trials.read_bytes())[-1]["kind"] == STAGES[name][1]
    return trials, kills


def test_the_kills_came_while_work_was_done(killed: tuple[Path, Kills]):
    _, kills = killed
    told = "\n".join(kills.found)
    assert kills.total >= 16, told
    assert kills.midway >= 9, told


def indexed(trials: Path) -> LedgerIndex:
    return LedgerIndex(Ledger.open(trials))


@pytest.mark.parametrize("kind", [kind for _, kind, _ in STAGES.values()])
def test_the_same_work_is_done_as_without_any_kill(
    undisturbed: tuple[Path, dict[str, Pace]], killed: tuple[Path, Kills], kind: Kind
):
    ours, theirs = ([(h.key, h.repeat) for h in indexed(path).of(kind)] for path in (killed[0], undisturbed[0]))
    assert set(ours) == set(theirs)
    assert len(ours) == len(theirs) == next(total for _, k, total in STAGES.values() if k == kind)


def results(trials: Path) -> dict[Place, object]:
    """Every context, answer and score by its place: state, task, query, configurations, metric."""
    index = indexed(trials)
    found: dict[Place, object] = {}
    for kind in ("retrieval", "answer", "verdict"):
        for header in index.of(kind):
            chain = [header]
            while chain[-1].kind != "ingest":
                chain.append(index.parent(chain[-1]))
            place = (header.task, header.query, header.system, header.fetch, header.reader, header.judge, header.metric)
            found[kind, *place, chain[-1].repeat, header.repeat] = said(index, header.kind, header.id)
    return found


def said(index: LedgerIndex, kind: Kind, record_id: str) -> object:
    header = index.ledger.header(record_id)
    if kind == "retrieval":
        body = index.ledger.body(header, RetrievalBody)
        return body.context, body.items
    if kind == "answer":
        return index.ledger.body(header, AnswerBody).text
    return index.ledger.body(header, VerdictBody).score


def test_the_results_are_the_same(undisturbed: tuple[Path, dict[str, Pace]], killed: tuple[Path, Kills]):
    ours = results(killed[0])
    assert len(ours) == 240 + 1920 + 1920
    assert ours == results(undisturbed[0])


def test_nothing_was_done_twice(killed: tuple[Path, Kills]):
    trials, _ = killed
    done = Counter((r["kind"], r["key"], r["repeat"]) for kind in work_kinds() for r in records(trials, kind))
    assert max(done.values()) == 1
    configs = [r["key"] for r in records(trials, "config")]
    assert len(configs) == len(set(configs)) == 10
    assert len({r["id"] for r in records(trials)}) == len(records(trials))
    assert stage(trials, "status")["totals"]["twins"] == 0
    assert set(Counter(r["kind"] for r in records(trials))) == {"task", "config", *work_kinds()}


def work_kinds() -> Sequence[Kind]:
    return [kind for _, kind, _ in STAGES.values()]


def test_nothing_is_left_to_do(killed: tuple[Path, Kills]):
    for name, (arguments, _, _) in STAGES.items():
        assert stage(killed[0], name, *arguments)["pending"] == 0


def test_nothing_half_built_is_left(killed: tuple[Path, Kills]):
    """A state that was frozen and not recorded is an orphan: known, not counted on, and removed by `stores clean`."""
    trials, _ = killed
    stores = trials.with_suffix(".stores")
    assert [path for path in stores.rglob("*") if path.is_file() and path.suffix != ".sqlite"] == []
    named = {r["body"]["namespace"] for r in records(trials, "ingest") if not r["system"].startswith("none-")}
    ended(run_cli("stores", "clean", "--trials", str(trials)))
    assert {path.stem for path in stores.glob("*/*")} == named
    assert list(trials.with_name("trials.json.locks").glob("*.lock")) == []
    assert not [path.name for path in trials.parent.iterdir() if ".torn-" in path.name and path.stat().st_size == 0]


def test_the_manifests_are_complete(killed: tuple[Path, Kills]):
    found = [json.loads(path.read_bytes()) for path in killed[0].with_suffix(".manifests").iterdir()]
    assert [(m["ok"], m["failed"]) for m in found] == [(24, 0)] * 5
