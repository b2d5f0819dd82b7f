"""Where a file's own numbers depart from what is recomputed from its answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from memtrials.benchmarks.base import Measure
from memtrials.index import LedgerIndex
from memtrials.metrics.numbers import Cell, Departure
from memtrials.records import AnswerBody, Header

LABEL = "label"
"""Where the labels of an answer stand that are no verdicts, because a rule decides its question."""
ROUNDED = 0.0005
"""Files round their values to three decimals."""

Said = Mapping[str, Any]


class Pair(NamedTuple):
    """A value as it came with an answer, and recomputed from it."""

    stored: float
    recomputed: float

    @property
    def differs(self) -> bool:
        """Whether by more than rounding."""
        return abs(self.stored - self.recomputed) > ROUNDED + 1e-9


def _scored_f1(said: Said) -> float | None:
    value = said.get("scored_f1")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _label(said: Said) -> float | None:
    labels = said.get(LABEL) or ()
    return sum(map(float, labels)) / len(labels) if labels else None


STORED: Mapping[str, tuple[str, Callable[[Said], float | None]]] = {
    "official-f1": ("scored_f1", _scored_f1),
    "refusal-official": (LABEL, _label),
}
"""By measure: what files call the value that they store for it, and how it is read."""


def pairs(index: LedgerIndex, measure: Measure, answers: Iterable[Header]) -> dict[tuple[str, str], Pair]:
    """Stored and recomputed values of a measure by (task, query), where answers came with one."""
    found: dict[tuple[str, str], Pair] = {}
    if measure.name not in STORED:
        return found
    for header in answers:
        task, place = index.task(header.benchmark or "", header.task or ""), (header.task or "", header.query or "")
        query, gold = task.query(place[1]), task.gold_of(place[1])
        body = index.ledger.body(header, AnswerBody)
        stored = STORED[measure.name][1](json.loads(body.raw)) if body.raw else None
        recomputed = measure.value(body.text, gold) if stored is not None and measure.asks(query, gold) else None
        if stored is not None and recomputed is not None:
            found[place] = Pair(stored, recomputed)
    return found


def departure(cell: Cell, measure: str, found: Mapping[tuple[str, str], Pair]) -> Departure:
    """Both means over an imported cell, and the questions that differ. found: at least one."""
    return Departure(
        cell,
        measure,
        STORED[measure][0],
        len(found),
        sum(pair.stored for pair in found.values()) / len(found),
        sum(pair.recomputed for pair in found.values()) / len(found),
        {"/".join(place): (pair.stored, pair.recomputed) for place, pair in found.items() if pair.differs},
    )
