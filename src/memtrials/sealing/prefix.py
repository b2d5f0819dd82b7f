"""What a ledger's bytes were when it was sealed, and what became of them.

A ledger is only ever appended to, so the bytes from its first to the last record's last one never change again, and a
longer file still verifies. Beside the one hash of these bytes stand 8 hex digits of every line's own, by kind: they
prove nothing more, but say which record was changed and of which kind one was dropped.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from memtrials.errors import UserError
from memtrials.ledger import Ledger
from memtrials.records import KINDS, Header
from memtrials.sealing.files import file_sha256

DIGITS = 8
SHOWN = 5
"""So many records are named where more were changed."""


def describe(ledger: Ledger) -> dict[str, Any]:
    """The sealed prefix: the file's name, length in bytes, records, last id and SHA-256, as the ledger was read."""
    return {"name": ledger.path.name, **extent(ledger), "sha256": file_sha256(ledger.path, ledger.end)}


def extent(ledger: Ledger) -> dict[str, Any]:
    """How far the prefix goes, as the ledger was read: what `describe` says without reading all bytes again."""
    last = ledger.headers[-1].id if ledger.headers else None
    return {"bytes": ledger.end, "records": len(ledger.headers), "last_id": last}


def fingerprints(ledger: Ledger) -> dict[str, str]:
    """The first 8 hex digits of the SHA-256 of every line, one after the other in file order, by kind."""
    found: dict[str, list[str]] = defaultdict(list)
    for header in ledger.headers:
        found[header.kind].append(_digits(ledger, header))
    return {kind: "".join(found[kind]) for kind in KINDS if found[kind]}


def _digits(ledger: Ledger, header: Header) -> str:
    return hashlib.sha256(ledger.line(header)).hexdigest()[:DIGITS]


def is_intact(path: Path, prefix: dict[str, Any]) -> bool:
    """Whether a file still begins with the sealed bytes. Raises UserError when it can't be read."""
    digest: str = prefix["sha256"]
    return file_sha256(path, prefix["bytes"]) == digest


def differences(path: Path, prefix: dict[str, Any], sealed: dict[str, str]) -> list[str]:
    """What was done to the sealed records of a file that isn't intact, in words."""
    try:
        with Ledger.open(path) as ledger:
            return _differences(ledger, prefix, sealed)
    except UserError as error:
        return [f"the sealed bytes were changed: {error}"]


def _differences(ledger: Ledger, prefix: dict[str, Any], sealed: dict[str, str]) -> list[str]:
    expected = {kind: [text[i : i + DIGITS] for i in range(0, len(text), DIGITS)] for kind, text in sealed.items()}
    found = [(header, _digits(ledger, header)) for header in ledger.headers]
    known = {(kind, digits) for kind, some in expected.items() for digits in some}
    sealed_part = max(
        (n for n, (h, digits) in enumerate(found, 1) if (h.kind, digits) in known or h.id == prefix["last_id"]),
        default=0,
    )
    ids = {header.id for header in ledger.headers}
    said: list[str] = []
    for kind in KINDS:
        missing = Counter(expected.get(kind, ()))
        missing.subtract(digits for h, digits in found[:sealed_part] if h.kind == kind)
        gone = sum(count for count in missing.values() if count > 0)
        strangers = [h for h, digits in found[:sealed_part] if h.kind == kind and missing[digits] < 0]
        changed, inserted = strangers[:gone], strangers[gone:]
        if changed:
            said.append(f"{_count(len(changed), kind)} changed: {_named(changed)}")
        if gone > len(changed):
            said.append(f"{_count(gone - len(changed), kind)} dropped")
        if inserted:
            said.append(f"{len(inserted)} {kind} records stand among the sealed ones: {_named(inserted)}")
    if orphans := [h for h in ledger.headers if not ids.issuperset(h.parents)]:
        lost = dict.fromkeys(p for h in orphans for p in h.parents if p not in ids)
        said.append(f"records {', '.join(list(lost)[:SHOWN])} are gone, of which {len(orphans)} others were made")
    return said or ["the sealed records stand in another order, or the bytes between them were changed"]


def _named(headers: list[Header]) -> str:
    return ", ".join(map(place_of, headers[:SHOWN])) + (" …" if len(headers) > SHOWN else "")


def place_of(header: Header) -> str:
    """A record's id and what it is about, for people."""
    about = "/".join(part for part in (header.task, header.query) if part)
    parts = (about, header.metric, header.judge or header.reader or header.system)
    told = ", ".join(part for part in parts if part)
    return f"{header.id} ({told})" if told else header.id


def _count(n: int, kind: str) -> str:
    return f"1 sealed {kind} was" if n == 1 else f"{n} sealed {kind} records were"
