"""Published tables of results, described in `evaluation/published/*.toml`: what each cell says and is measured by."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from typing import Literal

import msgspec

from memtrials.errors import UserError, unknown
from memtrials.exchange.results import Family
from memtrials.settings import evaluation


class Column(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a column's cells are: a metric or measure over all questions, those of a type, or a part; or the mean or
    median of what files say of each retrieval (`imported`, under its own name), times `scale`."""

    decimals: int
    metric: str | None = None
    type: str | None = None
    part: str | None = None
    percent: bool = False
    imported: str | None = None
    summary: Literal["mean", "p50"] = "mean"
    scale: float = 1.0

    def as_printed(self, value: float | None) -> float | None:
        """A value in the column's unit, rounded half up as a table prints it."""
        if value is None:
            return None
        exact = Decimal(repr(round(value * (100 if self.percent else self.scale), 9)))
        return float(exact.quantize(Decimal(1).scaleb(-self.decimals), ROUND_HALF_UP))


class System(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row: its released files, if any (a name without `.gz` also means the compressed file), and what was published.

    unpublished: columns that are shown although nothing was published. notes: what a reader of a column must know.
    """

    name: str
    answers: str | None = None
    memories: str | None = None
    published: dict[str, float]
    unpublished: list[str] = []
    notes: dict[str, str] = {}


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published table."""

    title: str
    benchmark: Family
    source: str
    columns: dict[str, Column]
    systems: list[System]

    def cells(self, system: System) -> Mapping[str, float | None]:
        """What was published of a system by column, in the table's order; None where nothing was."""
        shown = {*system.published, *system.unpublished}
        return {name: system.published.get(name) for name in self.columns if name in shown}


@dataclass(frozen=True)
class Compared:
    """One published cell beside what comes of its files. Values are in the cell's unit, rounded as the table prints.

    stored: the mean of the values that came with the answers. exact: before rounding, as a share or in the file's own
    unit, with its interval. differing: (stored, recomputed) of the questions, as `task/query`, whose own value departs.
    """

    system: str
    column: str
    published: float | None
    recomputed: float | None
    status: str
    n: int = 0
    stored: float | None = None
    exact: float | None = None
    interval: tuple[float, float] | None = None
    differing: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    note: str | None = None

    @property
    def difference(self) -> float | None:
        """Recomputed less published."""
        if self.published is None or self.recomputed is None:
            return None
        return round(self.recomputed - self.published, 6)


def names() -> list[str]:
    """The names of all tables."""
    return sorted(path.stem for path in (evaluation() / "published").glob("*.toml"))


def load(name: str) -> Table:
    """The table of that name. Raises UserError for an unknown name or a description that can't be read."""
    if name not in names():
        raise unknown("published table", name, names())
    path = evaluation() / "published" / f"{name}.toml"
    try:
        table = msgspec.convert(tomllib.loads(path.read_text("utf-8")), Table)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UserError(f"{path}: not a description of a table ({error})") from None
    for system in table.systems:
        strangers = {*system.published, *system.unpublished, *system.notes} - {*table.columns}
        if strangers:
            raise UserError(f"{path}: {system.name} has columns that aren't described: {', '.join(sorted(strangers))}")
    return table
