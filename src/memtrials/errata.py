"""Known errors in gold answers, as data in `evaluation/errata/*.toml`. They change no record and no verdict.

A question is named by a key: its task, or `TASK/QUERY`. What an entry says is about the released data: a file of one's
own that has the same ids may have put the error right.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from memtrials.errors import UserError
from memtrials.index import LedgerIndex
from memtrials.settings import evaluation

Kind = Literal["wrong", "unsupported", "disputed", "garbled"]
UNREACHABLE: frozenset[Kind] = frozenset(("wrong", "unsupported"))
"""Kinds of errors for which an answer that follows the data is scored wrong."""


class Erratum(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry. what: `wrong`, the data contradict the gold; `unsupported`, the gold says what nothing that is shown
    says; `disputed`, reported but not settled; `garbled`, damaged in form, not in meaning. note, evidence, source: what
    is wrong, what shows it, and who found it."""

    key: str
    what: Kind
    note: str
    evidence: str
    source: str


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    benchmark: str
    entry: list[Erratum]


def load(benchmark: str) -> dict[str, Erratum]:
    """The entries of a benchmark (without its variant) by key; none where nobody wrote any. Raises UserError for a file
    that can't be read or isn't valid."""
    path = evaluation() / "errata" / f"{benchmark}.toml"
    return read(path) if path.exists() else {}


def read(path: Path) -> dict[str, Erratum]:
    """The entries of a file, named like its benchmark, by key. Raises UserError for anything that isn't valid."""
    try:
        found = msgspec.convert(tomllib.loads(path.read_text("utf-8")), _File)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UserError(f"{path}: not a list of errata ({error}); correct it") from None
    if found.benchmark != path.stem:
        raise UserError(f"{path}: the file says benchmark {found.benchmark!r}; it must be named like its benchmark")
    entries: dict[str, Erratum] = {}
    for number, entry in enumerate(found.entry, 1):
        if empty := [name for name in ("key", "note", "evidence", "source") if not getattr(entry, name).strip()]:
            raise UserError(
                f"{path}: entry {number} ({entry.key!r}) has an empty {empty[0]}; every field must say something"
            )
        if entry.key in entries:
            raise UserError(f"{path}: entry {number}: {entry.key!r} is there already; leave one of the two")
        entries[entry.key] = entry
    return entries


@dataclass(frozen=True)
class Listed:
    """The errata of one built benchmark. questions: entries by (task, query). strangers: keys of nothing that is built.
    released: whether all of it was built from a known release, which is what the entries are about."""

    questions: Mapping[tuple[str, str], Erratum]
    strangers: tuple[str, ...]
    released: bool


def listed(index: LedgerIndex, benchmark: str) -> Listed:
    """The errata of `benchmark@variant` as its questions in this ledger. Raises UserError as `load` does."""
    tasks = {task: index.task(name, task) for name, task in index.tasks if name == benchmark}
    questions: dict[tuple[str, str], Erratum] = {}
    strangers = []
    for key, entry in load(benchmark.partition("@")[0]).items():
        task, _, query = (key, "", "") if key in tasks else key.rpartition("/")
        places = [(task, q.id) for q in tasks[task].queries if query in ("", q.id)] if task in tasks else []
        questions.update(dict.fromkeys(places, entry))
        if not places:
            strangers.append(key)
    released = all(body.release.known for body in tasks.values())
    return Listed(questions, tuple(strangers), released)
