"""The union of two ledgers: by id, each file's own order kept."""

from __future__ import annotations

import os
from pathlib import Path

from memtrials.errors import UserError
from memtrials.index import LedgerIndex
from memtrials.ledger import CLOSING, OPENING, Ledger
from memtrials.records import Header


def merge(one: Path, other: Path, out: Path) -> LedgerIndex:
    """Write the union of two ledgers to a new file; the index of the result.

    Where neither file's order decides, the smaller id goes first. Raises UserError when `out` exists, when an id has
    different bytes in the two, or when they hold different releases under one benchmark name.
    """
    if out.exists():
        raise UserError(f"{out} exists; name a new file with --out")
    if not out.parent.is_dir():
        raise UserError(f"{out}: the folder {out.parent} doesn't exist")
    with Ledger.open(one) as first, Ledger.open(other) as second:
        _check_alike(first, second)
        order = in_order(first.headers, second.headers)
        fresh = out.with_name(f".{out.name}.{os.getpid()}")
        try:
            with fresh.open("xb") as file:
                for n, (ledger, header) in enumerate(_sources(first, second, order)):
                    file.write((b",\n" if n else OPENING) + ledger.line(header))
                file.write(CLOSING if order else OPENING + b"]\n")
                file.flush()
                os.fsync(file.fileno())
            os.link(fresh, out)
        except OSError as error:
            raise UserError(f"{out}: can't be written ({error.strerror})") from None
        finally:
            fresh.unlink(missing_ok=True)
    with Ledger.open(out) as merged:
        return LedgerIndex(merged)


def in_order(one: list[Header], other: list[Header]) -> list[Header]:
    """Both lists' records, each once, in an order that keeps both lists' own.

    Where the two contradict each other about shared records, the first list's order is kept.
    """
    in_one, in_other = {h.id for h in one}, {h.id for h in other}
    merged: list[Header] = []
    taken: set[str] = set()
    i = j = 0
    while i < len(one) or j < len(other):
        if i < len(one) and one[i].id in taken:
            i += 1
        elif j < len(other) and other[j].id in taken:
            j += 1
        else:
            from_one = j == len(other) or (i < len(one) and _first_is_next(one[i], other[j], in_one, in_other))
            header = one[i] if from_one else other[j]
            merged.append(header)
            taken.add(header.id)
    return merged


def _first_is_next(mine: Header, theirs: Header, in_one: set[str], in_other: set[str]) -> bool:
    """Whether the head of the first list goes before the head of the second."""
    mine_is_shared, theirs_is_shared = mine.id in in_other, theirs.id in in_one
    if mine_is_shared == theirs_is_shared:
        return mine_is_shared or mine.id < theirs.id
    return theirs_is_shared


def _sources(first: Ledger, second: Ledger, order: list[Header]) -> list[tuple[Ledger, Header]]:
    return [(first if header.id in first else second, header) for header in order]


def _check_alike(first: Ledger, second: Ledger) -> None:
    for header in first.headers:
        if header.id in second and first.line(header) != second.line(second.header(header.id)):
            raise UserError(f"record {header.id} differs between {first.path} and {second.path}; one was edited")
    releases: dict[str, tuple[str, Path]] = {}
    for ledger in (first, second):
        index = LedgerIndex(ledger)
        for name, task in index.tasks:
            sha256 = index.task(name, task).release.sha256
            held, path = releases.setdefault(name, (sha256, ledger.path))
            if held != sha256:
                raise UserError(
                    f"{name} is data {held[:12]}… in {path} and {sha256[:12]}… in {ledger.path}; not merged"
                )
