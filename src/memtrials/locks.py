"""Who is working on what: one file per process in `X.json.locks/`.

A process claims each (stage, benchmark, system, configuration) it works on. The operating system frees a dead
process's lock; the text in the file is for the message only. A claim without a configuration (the reader hasn't begun
there, so the guard still decides) meets every other claim of that stage, benchmark and system.
"""

from __future__ import annotations

import os
import secrets
import shlex
import socket
import sys
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from math import gcd
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from memtrials.errors import UserError
from memtrials.records import now
from memtrials.selection import Shard


class Claim(msgspec.Struct, frozen=True):
    """One thing a process works on. config None: every configuration of that stage, benchmark and system."""

    stage: str
    benchmark: str
    system: str | None = None
    config: str | None = None


class Holder(msgspec.Struct, frozen=True):
    """What a lock file says of its process."""

    pid: int
    host: str
    start: str
    command: str
    shard: tuple[int, int] | None
    claims: tuple[Claim, ...]


def shards_meet(one: Shard | None, other: Shard | None) -> bool:
    """Whether two shards can hold the same unit: K and K' are equal modulo gcd(N, N'); no shard meets all."""
    if one is None or other is None:
        return True
    common = gcd(one.n, other.n)
    return one.k % common == other.k % common


def claims_meet(one: Claim, other: Claim) -> bool:
    """Whether two claims can be about the same work."""
    if (one.stage, one.benchmark, one.system) != (other.stage, other.benchmark, other.system):
        return False
    return one.config is None or other.config is None or one.config == other.config


@contextmanager
def hold(ledger: Path, claims: Collection[Claim], shard: Shard | None) -> Iterator[None]:
    """Hold these claims while the block runs. Raises UserError, naming the holder, when a live one meets them; and when
    a lock can't be written."""
    folder = _folder(ledger)
    path = folder / f"{os.getpid()}-{secrets.token_hex(4)}.lock"
    mine = FileLock(path)
    try:
        with _writing(path):
            folder.mkdir(exist_ok=True)
            with FileLock(folder / "list"):
                for holder in _living(folder):
                    _refuse_if_met(ledger, holder, claims, shard)
                mine.acquire()
                text = Holder(
                    pid=os.getpid(),
                    host=socket.gethostname(),
                    start=now(),
                    command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
                    shard=None if shard is None else (shard.k, shard.n),
                    claims=tuple(claims),
                )
                path.write_bytes(msgspec.json.encode(text))
        yield
    finally:
        with suppress(OSError):  # whoever comes next removes one that stays
            path.unlink()
        mine.release()


@contextmanager
def idle(ledger: Path, stage: str, system: str) -> Iterator[bool]:
    """Whether nobody works at that stage on a system; while the block runs nobody can begin to. Raises UserError when a
    lock can't be written."""
    folder = _folder(ledger)
    with ExitStack() as alone:
        with _writing(folder):
            folder.mkdir(exist_ok=True)
            alone.enter_context(FileLock(folder / "list"))
            claims = [claim for holder in _living(folder) for claim in holder.claims]
        yield not any((claim.stage, claim.system) == (stage, system) for claim in claims)


def holders(ledger: Path) -> list[Holder]:
    """The live processes that hold claims on this ledger. Raises UserError when a lock can't be written."""
    folder = _folder(ledger)
    if not folder.is_dir():
        return []
    with _writing(folder), FileLock(folder / "list"):
        return list(_living(folder))


def _folder(ledger: Path) -> Path:
    return ledger.with_name(ledger.name + ".locks")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Say what goes wrong with a lock so that the user can act on it; path: for an error that names no file. Raises
    UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{error.filename or path}: this lock can't be written ({error.strerror or error}); make room or fix it, "
            "then run again"
        ) from None


def _living(folder: Path) -> Iterator[Holder]:
    """Holders whose process lives; a dead one's file is removed. The caller holds the folder's own lock."""
    for path in sorted(folder.glob("*.lock")):
        probe = FileLock(path, timeout=0)
        try:
            probe.acquire()
        except Timeout:
            with suppress(msgspec.DecodeError, FileNotFoundError):
                yield msgspec.json.decode(path.read_bytes(), type=Holder)
            continue
        path.unlink(missing_ok=True)
        probe.release()


def _refuse_if_met(ledger: Path, holder: Holder, claims: Collection[Claim], shard: Shard | None) -> None:
    theirs = None if holder.shard is None else Shard(*holder.shard)
    if not shards_meet(shard, theirs):
        return
    for claim in claims:
        if any(claims_meet(claim, other) for other in holder.claims):
            place = " on ".join(part for part in (claim.benchmark, claim.system) if part)
            raise UserError(
                f"{claim.stage} of {place} is being worked on in {ledger} by process {holder.pid} on {holder.host} "
                f"since {holder.start} ({holder.command}); wait for it, or give both disjoint --shard K/N"
            )
