"""What a comparison of two sides found, question by question."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from memtrials.metrics.numbers import Cell, Contrast, Place


@dataclass
class Change:
    """How one question's results differ. missing: what only one side has. identities, ranks: retrieved items, whose
    identity is their text and turns, and the kind and given ids of what they are a memory of. degradation: marks of
    each side that the other lacks. metrics: its scores on both sides, where they differ. fields: other fields whose
    values differ, such as `answer.text`."""

    missing: set[str] = field(default_factory=set)
    identities: bool = False
    ranks: bool = False
    degradation: tuple[set[str], set[str]] = field(default_factory=lambda: (set(), set()))
    metrics: dict[str, tuple[float | None, float | None]] = field(default_factory=dict)
    fields: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(
            self.missing or self.identities or self.ranks or any(self.degradation) or self.metrics or self.fields
        )


class Flip(NamedTuple):
    """A question on whose verdicts two sides differ: `task/query`, and both mean scores."""

    question: str
    first: float
    second: float


@dataclass
class Pair:
    """Two systems, each as it was asked, on one benchmark. changes: of the questions that differ. differences: of every
    metric with scores on both sides. flips: by the place of a difference of verdicts among these."""

    first: Cell
    second: Cell
    questions: set[Place] = field(default_factory=set)
    changes: dict[Place, Change] = field(default_factory=lambda: defaultdict(Change))
    differences: list[Contrast] = field(default_factory=list)
    flips: dict[int, list[Flip]] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """What was compared with what. alone: results that only one side has, in words."""

    first: str
    second: str
    pairs: Sequence[Pair]
    alone: Sequence[str]

    @property
    def counts(self) -> dict[str, int]:
        """Questions, those that differ, and how many in each respect, over all pairs."""
        changes = [change for pair in self.pairs for change in pair.changes.values()]
        return {
            "queries": sum(len(pair.questions) for pair in self.pairs),
            "differing": len(changes),
            "missing": sum(bool(change.missing) for change in changes),
            "identity_changes": sum(change.identities for change in changes),
            "rank_changes": sum(change.ranks for change in changes),
            "metric_changes": sum(bool(change.metrics) for change in changes),
            "degradation_changes": sum(any(change.degradation) for change in changes),
            "field_changes": sum(bool(change.fields) for change in changes),
        }

    @property
    def differs(self) -> bool:
        """Whether anything differs at all."""
        return bool(self.alone or any(pair.changes for pair in self.pairs))
