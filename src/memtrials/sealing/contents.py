"""What must be in a seal and a plan that are read again: the fields that are relied on. There may be others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from memtrials.errors import UserError
from memtrials.sealing.files import read_object
from memtrials.selection import Selection

Count = Annotated[int, msgspec.Meta(ge=0)]
Form = Annotated[int, msgspec.Meta(ge=1)]


class Prefix(msgspec.Struct):
    """What a ledger was, as `prefix.describe` says it."""

    name: str
    bytes: Count
    records: Count
    last_id: str | None
    sha256: str


class Number(msgspec.Struct):
    """A sealed number: its place, its values, and the names that people know it by."""

    benchmark: str
    system: str
    fetch: str
    reader: str | None
    judge: str | None
    metric: str
    part: str | None
    class_: Literal["P", "M", "D", "R"] | None = msgspec.field(name="class")
    value: float | None
    score: float | None
    n: Count
    of: Count
    system_name: str
    reader_name: str | None
    judge_name: str | None


class Seal(msgspec.Struct):
    """A sealed ledger."""

    seal: str
    form: Form
    ledger: Prefix
    selection: Selection
    headline: list[Number]
    data: dict[str, dict[str, Any]]
    configurations: dict[str, dict[str, Any]]
    fingerprints: dict[str, str]

    def __post_init__(self) -> None:
        _check(self.selection)


class Budget(msgspec.Struct):
    """Caps of all model calls; None: there is none."""

    max_cost: float | None
    max_requests: int | None


class Plan(msgspec.Struct):
    """What was planned. systems: ids by name; comparisons: pairs of these names."""

    plan: str
    form: Form
    ledger: Prefix
    benchmark: str
    data: str
    selection: Selection
    primary: str
    systems: dict[str, str]
    comparisons: list[tuple[str, str]]
    reader: str | None
    judge: str | None
    n: Count
    repeat: Count
    budget: Budget

    def __post_init__(self) -> None:
        _check(self.selection)
        if strangers := {name for pair in self.comparisons for name in pair} - self.systems.keys():
            raise ValueError(f"`comparisons` name {', '.join(map(repr, sorted(strangers)))}, which `systems` doesn't")


def _check(selection: Selection) -> None:
    """Raises ValueError for a part that there can't be."""
    if (shard := selection.shard) is not None and not 1 <= shard.k <= shard.n:
        raise ValueError(f"`selection` has a shard {shard.k} of {shard.n}")


TYPES: dict[str, tuple[type[Seal | Plan], str]] = {"seal": (Seal, "the seal of a ledger"), "plan": (Plan, "a plan")}
"""What each command writes."""


def read_content(path: Path, command: Literal["seal", "plan"], newest: int) -> dict[str, Any]:
    """What a command wrote to a file, checked. newest: the form that this version knows.

    Raises UserError when the file holds something else, or a newer form.
    """
    content = read_object(path)
    form = content.get("form")
    if command in content and isinstance(form, int) and form > newest:
        raise UserError(f"{path}: a {command} of form {form}, this version reads up to {newest}; update memtrials")
    kind, called = TYPES[command]
    try:
        msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise UserError(f"{path}: not {called} ({error}); `memtrials {command}` writes one") from None
    return content
