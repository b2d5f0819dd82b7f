"""From questions' scores to one number: its headline, coverage, bounds and interval (MEASURING §3-5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from memtrials.metrics.statistics import Interval, mean_interval

Question = TypeVar("Question", bound=Hashable)

Status = Literal["complete", "lower bound", "partial"]


@dataclass(frozen=True)
class Score:
    """A share of questions. n of `of` questions are scored.

    headline: the number to quote; None when results are missing through a service or not made yet. score: over scored
    questions only. low, high: all missing wrong, all missing right. missing: how many by cause (`none`: not run yet).
    """

    headline: float | None
    score: float | None
    n: int
    of: int
    low: float
    high: float
    status: Status
    missing: Mapping[str, int]
    interval: Interval | None

    @property
    def coverage(self) -> float:
        """n / of."""
        return self.n / self.of


def share(
    scores: Mapping[Question, float], clusters: Mapping[Question, str], causes: Mapping[Question, str | None]
) -> Score | None:
    """The share of questions that are right; None when there are no questions.

    scores: by question, in [0, 1]. clusters: of every question in scope. causes: why each unscored question has no
    score: `system`, `reader`, `service`, or None when nothing was tried. With only system and reader failures missing
    the headline is the lower bound; with service failures or work left there is none.
    """
    of = len(clusters)
    if of == 0:
        return None
    right = sum(scores.values())
    missing = Counter(causes.get(question) or "none" for question in clusters if question not in scores)
    low, high = right / of, (right + of - len(scores)) / of
    status: Status = "complete"
    if missing:
        status = "lower bound" if set(missing) <= {"system", "reader"} else "partial"
    shown = dict(scores)
    if status == "lower bound":
        shown.update({question: 0.0 for question in clusters if question not in scores})
    return Score(
        headline={"complete": low, "lower bound": low, "partial": None}[status],
        score=right / len(scores) if scores else None,
        n=len(scores),
        of=of,
        low=low,
        high=high,
        status=status,
        missing=dict(missing),
        interval=interval(shown, clusters),
    )


def interval(scores: Mapping[Question, float], clusters: Mapping[Question, str]) -> Interval | None:
    """The interval of a mean score, its questions clustered; None for fewer than two clusters."""
    questions = [question for question in clusters if question in scores]
    names = [clusters[question] for question in questions]
    return mean_interval([scores[q] for q in questions], names) if len(set(names)) > 1 else None
