"""What `verify` finds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TOLERANCE = 1e-9


def is_same(one: Any, other: Any) -> bool:
    """Equal, but for a last digit that another platform or order rounds otherwise."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(one == other)


@dataclass(frozen=True)
class Recomputed:
    """A sealed number computed again. published: with what counts; with_voided: what was voided counts, too; first: the
    first trial of every question alone, voided or not. None: there is none that way."""

    number: Mapping[str, Any]
    published: float | None
    with_voided: float | None
    first: float | None

    @property
    def sealed(self) -> float | None:
        """The number as the seal has it: the headline or, where there is none, the score of what was scored."""
        value: float | None = self.number["value"]
        score: float | None = self.number["score"]
        return score if value is None else value

    @property
    def varies(self) -> bool:
        """Whether some way of computing the number gives another one than was sealed."""
        return not all(is_same(self.sealed, value) for value in (self.published, self.with_voided, self.first))

    @property
    def name(self) -> str:
        """What the number is of."""
        part = f" ({self.number['part']})" if self.number["part"] else ""
        who = (self.number[role] for role in ("system", "fetch", "reader", "judge"))
        return f"{self.number['benchmark']} {self.number['metric']}{part}: {' / '.join(name for name in who if name)}"


@dataclass(frozen=True)
class Kept:
    """Something that was planned: whether it was done so (None: can't be told), and how it was."""

    what: str
    kept: bool | None
    told: str


@dataclass
class Verified:
    """What `verify` found. failures: what isn't as it was sealed; warnings, facts: what a reader should know.
    plan: what became of each thing that was planned."""

    seal: str
    sha256: str
    failures: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)
    numbers: list[Recomputed] = field(default_factory=list)
    plan: list[Kept] = field(default_factory=list)
