"""Who may work at once: which shards and claims meet, what a newcomer is told, and what a dead process leaves."""

import contextlib
import errno
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock, Timeout
from hypothesis import given
from hypothesis import strategies as st

from memtrials.errors import UserError
from memtrials.locks import Claim, claims_meet, hold, holders, idle, shards_meet
from memtrials.selection import Shard
from support.cli import Finished, environment, run_cli

REPLAY = Claim("replay", "inmind@sample", "bm25-1", "bm25-1")

HOLDS = """
import sys
from pathlib import Path
from memtrials.locks import Claim, hold
from memtrials.selection import Shard

ledger, *words = sys.argv[1:]
shard = Shard(*map(int, words.pop().split("/"))) if "/" in words[-1] else None
with hold(Path(ledger), [Claim(*words)], shard):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def held(ledger: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A process of its own that holds a claim while the block runs. words: of the claim, and then perhaps `K/N`."""
    command = [sys.executable, "-c", HOLDS, str(ledger), *words]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"
        yield holder
    finally:
        holder.stdin.close()
        holder.wait()
        holder.stdout.close()


def words(claim: Claim) -> list[str]:
    return [word for word in (claim.stage, claim.benchmark, claim.system, claim.config) if word is not None]


def lock_files(ledger: Path) -> list[Path]:
    return sorted(ledger.with_name(f"{ledger.name}.locks").glob("*.lock"))


def refused(ledger: Path, claim: Claim, shard: Shard | None = None) -> str | None:
    """What a newcomer in this process is told, or None when it may work."""
    try:
        with hold(ledger, [claim], shard):
            return None
    except UserError as error:
        return str(error)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "trials.json"


# Which shards meet

shard_or_none = st.none() | st.integers(1, 12).flatmap(lambda n: st.builds(Shard, st.integers(1, n), st.just(n)))


@given(one=shard_or_none, other=shard_or_none)
def test_shards_meet_when_some_unit_can_be_in_both(one: Shard | None, other: Shard | None):
    """Against every hash up to 12 · 12."""

    def holds(shard: Shard | None, number: int) -> bool:
        return shard is None or number % shard.n == shard.k - 1

    assert shards_meet(one, other) == any(holds(one, number) and holds(other, number) for number in range(144))


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ((1, 2), (2, 2), False),
        ((1, 2), (1, 2), True),
        ((1, 2), (1, 4), True),
        ((1, 2), (3, 4), True),
        ((1, 2), (2, 4), False),
        ((1, 2), (1, 3), True),
        ((2, 4), (4, 6), True),
        ((2, 4), (3, 6), False),
        (None, (1, 9), True),
        (None, None, True),
    ],
)
def test_shards_that_meet(one: tuple[int, int] | None, other: tuple[int, int] | None, meet: bool):
    first, second = (None if pair is None else Shard(*pair) for pair in (one, other))
    assert shards_meet(first, second) is shards_meet(second, first) is meet


# Which claims meet


@pytest.mark.parametrize(
    ("other", "meet"),
    [
        (REPLAY, True),
        (Claim("fetch", "inmind@sample", "bm25-1", "bm25-1"), False),
        (Claim("replay", "inmind@other", "bm25-1", "bm25-1"), False),
        (Claim("replay", "inmind@sample", "bm25-2", "bm25-2"), False),
        (Claim("replay", "inmind@sample", "bm25-1", "other"), False),
        (Claim("replay", "inmind@sample", "bm25-1"), True),
        (Claim("replay", "inmind@sample", "bm25-2"), False),
        (Claim("replay", "inmind@sample"), False),
    ],
)
def test_claims_that_meet(other: Claim, meet: bool):
    """A claim without configuration meets every one of its stage, benchmark and system."""
    assert claims_meet(REPLAY, other) is claims_meet(other, REPLAY) is meet


def test_claims_without_configuration_meet_each_other():
    assert claims_meet(Claim("answer", "b", "s"), Claim("answer", "b", "s"))


# Two processes


def test_a_second_process_on_the_same_claim_is_refused_in_one_line_that_names_the_first(ledger: Path):
    with held(ledger, *words(REPLAY)) as holder:
        (known,) = holders(ledger)
        said = refused(ledger, REPLAY)
        assert said == (
            f"replay of inmind@sample on bm25-1 is being worked on in {ledger} by process {holder.pid} on "
            f"{socket.gethostname()} since {known.start} ({known.command}); wait for it, or give both disjoint "
            "--shard K/N"
        )
    assert shlex.split(known.command) == ["-c", str(ledger), *words(REPLAY)]
    assert (known.pid, known.host, known.claims) == (holder.pid, socket.gethostname(), (REPLAY,))
    assert refused(ledger, REPLAY) is None


@pytest.mark.parametrize(
    ("theirs", "mine", "free"),
    [
        ("1/2", Shard(2, 2), True),
        ("1/2", Shard(4, 4), True),
        ("1/2", Shard(1, 2), False),
        ("1/2", Shard(2, 3), False),
        ("1/2", None, False),
    ],
)
def test_disjoint_shards_work_at_once(ledger: Path, theirs: str, mine: Shard | None, free: bool):
    with held(ledger, *words(REPLAY), theirs):
        assert (refused(ledger, REPLAY, mine) is None) is free


def test_without_a_shard_nothing_else_of_that_claim_works(ledger: Path):
    with held(ledger, *words(REPLAY)):
        assert refused(ledger, REPLAY, Shard(1, 2)) is not None


@pytest.mark.parametrize(
    "mine",
    [
        Claim("replay", "inmind@sample", "vector-1", "vector-1"),
        Claim("fetch", "inmind@sample", "bm25-1", "k10-1"),
        Claim("replay", "other@x", "bm25-1", "bm25-1"),
    ],
)
def test_another_system_stage_or_benchmark_works_at_once(ledger: Path, mine: Claim):
    with held(ledger, *words(REPLAY)):
        assert refused(ledger, mine) is None


def test_another_ledger_is_another_matter(ledger: Path):
    with held(ledger, *words(REPLAY)):
        assert refused(ledger.with_name("other.json"), REPLAY) is None


def test_a_claim_without_configuration_excludes_every_other_and_is_excluded_by_every_other(ledger: Path):
    undecided, known = Claim("answer", "b", "s"), Claim("answer", "b", "s", "reader-1")
    with held(ledger, *words(undecided)):
        assert refused(ledger, known) is not None
        assert refused(ledger, undecided) is not None
    with held(ledger, *words(known)):
        assert refused(ledger, undecided) is not None
        assert refused(ledger, Claim("answer", "b", "s", "reader-2")) is None


def test_one_claim_of_several_is_enough_to_refuse(ledger: Path):
    with held(ledger, *words(REPLAY)), pytest.raises(UserError), hold(ledger, [Claim("fetch", "b", "s"), REPLAY], None):
        pass


def test_who_is_refused_leaves_no_claim_behind(ledger: Path):
    with held(ledger, *words(REPLAY)) as holder:
        refused(ledger, REPLAY)
        assert [h.pid for h in holders(ledger)] == [holder.pid]
        assert len(lock_files(ledger)) == 1


# What is left


def test_the_lock_file_says_who_and_goes_when_the_work_ends(ledger: Path):
    with hold(ledger, [REPLAY], Shard(2, 3)):
        (file,) = lock_files(ledger)
        text = json.loads(file.read_text())
        assert text == {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "start": text["start"],
            "command": text["command"],
            "shard": [2, 3],
            "claims": [{"stage": "replay", "benchmark": "inmind@sample", "system": "bm25-1", "config": "bm25-1"}],
        }
    assert lock_files(ledger) == []
    assert holders(ledger) == []


def test_the_lock_file_goes_when_the_work_fails(ledger: Path):
    with pytest.raises(ZeroDivisionError), hold(ledger, [REPLAY], None):
        raise ZeroDivisionError
    assert lock_files(ledger) == []


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_said_in_one_line_and_leaves_no_lock_file(ledger: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Path, "write_bytes", full)
    said = refused(ledger, REPLAY)
    assert said is not None
    assert re.fullmatch(
        rf"{ledger}\.locks/{os.getpid()}-\w{{8}}\.lock: this lock can't be written \(No space left on device\); "
        r"make room or fix it, then run again",
        said,
    )
    assert lock_files(ledger) == []
    monkeypatch.undo()
    assert refused(ledger, REPLAY) is None


@pytest.mark.parametrize("why", ["a file for the folder", "a folder for the list", "no folder for the ledger"])
def test_a_lock_that_cannot_be_made_is_named_with_the_reason(tmp_path: Path, why: str):
    ledger = tmp_path / "there" / "trials.json"
    folder = place = ledger.with_name("trials.json.locks")
    if why == "a file for the folder":
        folder.parent.mkdir()
        folder.touch()
    elif why == "a folder for the list":
        place = folder / "list"
        place.mkdir(parents=True)
        with pytest.raises(UserError, match=rf"^{place}: this lock can't be written \("):
            holders(ledger)
    told = refused(ledger, REPLAY)
    assert told is not None
    assert told.startswith(f"{place}: this lock can't be written (")
    with pytest.raises(UserError, match=rf"^{place}: this lock can't be written \("), idle(ledger, "replay", "bm25-1"):
        pass
    assert lock_files(ledger) == []


def test_what_fails_in_the_work_is_not_taken_for_the_lock(ledger: Path):
    with pytest.raises(OSError, match="No space"), hold(ledger, [REPLAY], None):
        full()
    with pytest.raises(OSError, match="No space"), idle(ledger, "replay", "bm25-1"):
        full()
    assert lock_files(ledger) == []


def test_nobody_holds_a_ledger_that_was_never_worked_on(ledger: Path):
    assert holders(ledger) == []
    assert list(ledger.parent.iterdir()) == []


def test_after_sigkill_the_next_takes_over_at_once(ledger: Path):
    with held(ledger, *words(REPLAY)) as holder:
        (file,) = lock_files(ledger)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert lock_files(ledger) == [file], "a killed process can't remove its file"
        began = time.monotonic()
        assert refused(ledger, REPLAY) is None
        assert time.monotonic() - began < 1
    assert lock_files(ledger) == []


def test_a_stopped_process_still_holds_its_claim(ledger: Path):
    with held(ledger, *words(REPLAY)) as holder:
        holder.send_signal(signal.SIGSTOP)
        try:
            assert refused(ledger, REPLAY) is not None
        finally:
            holder.send_signal(signal.SIGCONT)


def test_a_lock_file_with_no_text_yet_is_passed_over(ledger: Path):
    """Its process is between taking the lock and saying who it is, which it only does while no one else looks."""
    folder = ledger.with_name("trials.json.locks")
    folder.mkdir()
    (folder / "1-dead.lock").touch()
    with FileLock(folder / "2-live.lock"):
        assert holders(ledger) == []
        assert [path.name for path in lock_files(ledger)] == ["2-live.lock"]


# The stages


def stopped_between_writes(child: subprocess.Popen[bytes], trials: Path) -> bool:
    """Whether the process is now stopped and doesn't hold the file itself, for which everyone else would wait."""
    os.killpg(child.pid, signal.SIGSTOP)
    try:
        with FileLock(f"{trials}.lock", timeout=0):
            return True
    except Timeout:
        os.killpg(child.pid, signal.SIGCONT)
        return False


@contextlib.contextmanager
def frozen_replay(trials: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A replay that was stopped in the middle of its work; it is killed in the end."""
    command = [sys.executable, "-m", "memtrials", "replay", *arguments, "--trials", str(trials)]
    size = trials.stat().st_size
    child = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        while trials.stat().st_size == size or not stopped_between_writes(child, trials):
            assert child.poll() is None
            time.sleep(0.002)
        yield child
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def replay(trials: Path, *arguments: str) -> Finished:
    return run_cli("replay", *arguments, "--trials", str(trials), "--quiet")


def test_stages_on_one_ledger(built: Path):
    """Another command on the same work is told who is there; other work goes on; a killed one is no hindrance."""
    with frozen_replay(built, "bm25", "--repeat", "30") as first:
        second = replay(built, "bm25", "--repeat", "30")
        assert (second.code, second.out) == (2, "")
        assert second.err.count("\n") == 1
        assert f"by process {first.pid} on {socket.gethostname()}" in second.err
        assert "replay bm25 --repeat 30 --trials" in second.err
        assert replay(built, "bm25", "--shard", "1/2").code == 2
        assert replay(built, "in-context").code == 0
        before = lock_files(built)
        dry = replay(built, "bm25", "--repeat", "30", "--dry-run")
        assert dry.code == 0
        assert lock_files(built) == before
    assert replay(built, "bm25", "--repeat", "2").code == 0
    assert lock_files(built) == []


def test_disjoint_shards_of_a_stage_work_at_once(built: Path):
    with frozen_replay(built, "bm25", "--repeat", "30", "--shard", "1/2"):
        assert replay(built, "bm25", "--shard", "2/2").code == 0
        assert replay(built, "bm25", "--repeat", "2", "--shard", "2/3").code == 2
        assert replay(built, "bm25", "--repeat", "2").code == 2


def test_a_dry_run_makes_no_lock_file(built: Path):
    folder = built.with_name("trials.json.locks")
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    before = sorted(built.parent.rglob("*"))
    assert replay(built, "bm25", "--dry-run").code == 0
    assert sorted(built.parent.rglob("*")) == before
