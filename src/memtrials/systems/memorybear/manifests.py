"""Manifests of states that were ingested elsewhere: which end users hold which task.

`{"timestamp", "cases": [{"case_id", "end_user_id", "status", …}]}`, one file or a folder of them. A case id is a task's
id, or `conv_<n>_user_<speaker>` for one speaker's store of the n-th conversation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from memtrials.errors import UserError
from memtrials.records import Store
from memtrials.systems.base import ForeignState, Manifest
from memtrials.systems.times import iso_time

_SPEAKER = re.compile(r"conv_([1-9]\d*)_user_(.+)", re.IGNORECASE)
OLDEST = ""


@dataclass(frozen=True)
class Case:
    """One mapping. at: when its file was made, comparable as text; leaked: whether its names tell the case."""

    name: str
    user: str
    ok: bool
    status: str
    at: str
    file: Path
    leaked: bool


def read_manifests(path: Path, tasks: Sequence[str]) -> Manifest:
    """The states of a file or folder. tasks: the benchmark's, in the order of its data.

    The latest file that says `ok` for a case wins. Raises UserError for a missing path, no case that is ok, what isn't
    a manifest, a time that can't be read, and two files of one time that disagree.
    """
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    cases = [case for file in files for case in _cases(file)]
    notes = [f"{c.file.name}: {c.name} has status {c.status!r} and is left out" for c in cases if not c.ok]
    chosen: dict[str, Case] = {}
    for case in sorted((c for c in cases if c.ok), key=lambda c: c.at):  # stable: files of one time keep their order
        before = chosen.get(case.name)
        if before is not None and before.user != case.user:
            if before.at == case.at:
                raise UserError(
                    f"{path}: {before.file.name} and {case.file.name} have the same time and map {case.name} to "
                    f"different end users; remove one, or give it its own time"
                )
            notes.append(f"{case.name}: {case.file.name} supersedes {before.file.name}")
        chosen[case.name] = case
    notes += [
        f"{c.name}: the later {c.file.name} failed, so {chosen[c.name].file.name} still holds"
        for c in cases
        if not c.ok and c.name in chosen and c.at > chosen[c.name].at
    ]
    if not chosen:
        raise UserError(f"{path}: no case with status ok")
    states, unknown = _by_task(chosen.values(), tasks)
    if unknown:
        shown = ", ".join(unknown[:5]) + (", …" if len(unknown) > 5 else "")
        notes.append(f"{len(unknown)} cases aren't among the benchmark's tasks and are left out: {shown}")
    return Manifest(states, tuple(notes))


def _by_task(cases: Any, tasks: Sequence[str]) -> tuple[dict[str, ForeignState], list[str]]:
    """States by task, stores in order of appearance, and the cases that belong to no task."""
    known = set(tasks)
    states: dict[str, ForeignState] = {}
    unknown: list[str] = []
    for case in cases:
        speaker = _SPEAKER.fullmatch(case.name)
        if case.name in known:
            states[case.name] = ForeignState((Store(case.user),), case.leaked)
        elif speaker and int(speaker[1]) <= len(tasks):
            task = tasks[int(speaker[1]) - 1]
            before = states.get(task, ForeignState((), leaked=False))
            stores = (*before.stores, Store(case.user, speaker[2].lower()))
            states[task] = ForeignState(stores, before.leaked or case.leaked)
        else:
            unknown.append(case.name)
    return states, unknown


def _cases(file: Path) -> list[Case]:
    try:
        found = json.loads(file.read_text("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{file}: can't be read ({error.strerror})") from None
    except ValueError as error:
        raise UserError(f"{file}: not JSON ({error})") from None
    rows = found.get("cases") if isinstance(found, dict) else None
    if not isinstance(rows, list):
        raise UserError(f"{file}: not a manifest; it needs a list `cases`")
    at = _time(file, found.get("timestamp"))
    return [_case(file, number, row, at) for number, row in enumerate(rows)]


def _case(file: Path, number: int, row: Any, at: str) -> Case:
    where = f"{file}, case {number}"
    if not isinstance(row, dict) or not isinstance(row.get("case_id"), str):
        raise UserError(f"{where}: no text `case_id`")
    name, ok = row["case_id"], row.get("status") == "ok"
    user = row.get("end_user_id")
    if ok:
        try:
            UUID(user)
        except (ValueError, TypeError, AttributeError):
            raise UserError(f"{where} ({name}): end_user_id {user!r} is no UUID") from None
    return Case(name, str(user), ok, str(row.get("status")), at, file, _tells(row))


def _tells(row: Mapping[str, Any]) -> bool:
    """Whether the service knows the store by a name that tells the case. Where the manifest doesn't say what name it
    has, it may be the case's."""
    case = row["case_id"].lower()
    names = [row[key].lower() for key in ("other_id", "other_name") if isinstance(row.get(key), str)]
    word = re.compile(rf"(?<![a-z0-9]){re.escape(case)}(?![a-z0-9])")  # a short id may stand in a random name by chance
    return not names or any(word.search(name) or (len(case) > 5 and case in name) for name in names)


def _time(file: Path, text: Any) -> str:
    """A file's time as comparable text; the oldest where it has none."""
    if text in (None, ""):
        return OLDEST
    if isinstance(text, str):
        for form in ("%Y%m%d_%H%M%S", "%Y-%m-%d %H:%M:%S"):
            try:
                return datetime.strptime(text, form).strftime("%Y-%m-%dT%H:%M:%SZ")  # noqa: DTZ007
            except ValueError:
                continue
        try:
            return iso_time(text)
        except ValueError:
            pass
    raise UserError(f"{file}: timestamp {text!r} can't be read; write it like 2026-06-30T12:00:00Z")
