"""The ranking measures of a benchmark, at the levels it has evidence for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any, Literal

from memtrials.benchmarks.base import Asks, CutOff, Measure, every
from memtrials.metrics.retrieval import RANKING_MEASURES, Ranking, places
from memtrials.records import Gold, TaskBody

See = Callable[[Ranking, Gold], tuple[Ranking, Collection[str]]]
"""A ranking by neutral turn ids and a question's gold, as ranking and gold ids of one level."""

ABOUT = {
    "recall-any": "the first k items hold some of the evidence",
    "recall-all": "the first k items hold all of the evidence",
    "recall-fraction": "the share of the evidence that the first k items hold",
    "mrr": "1 / the rank of the first item with evidence, 0 beyond k",
    "ndcg": "how early the evidence comes among the first k items, 1 being at once",
}
IN_A_HISTORY: dict[str, tuple[str, Callable[[TaskBody], int]]] = {
    "session": ("sessions", lambda task: len(task.sessions)),
    "turn": ("turns", lambda task: task.turns),
    "dialog": ("turns", lambda task: task.turns),
}
"""What k is compared with, by level."""
SHARES = ("recall-any", "recall-all")
"""Measures that are 0 or 1 for each question."""


def ranking_measures(
    level: Literal["session", "turn", "dialog"], cutoffs: Iterable[int], see: See, asks: Asks = every
) -> tuple[Measure, ...]:
    """All ranking measures of a level at all cut-offs, named like `session-recall-any@5`.

    k counts retrieved items, whatever they hold; of memories of several kinds those of the level (`places`). None where
    there is no evidence or the system gives no evidence ids.
    """
    return tuple(
        Measure(
            f"{level}-{name}@{k}",
            f"{ABOUT[name]}, by {level}",
            partial(_value, measure, see, k, "session" if level == "session" else "turn"),
            "share" if name in SHARES else "mean",
            asks,
            cutoff=CutOff(k, *IN_A_HISTORY[level]),
        )
        for name, measure in RANKING_MEASURES.items()
        for k in cutoffs
    )


def _value(
    measure: Callable[[Ranking, Collection[str], int], float | None],
    see: See,
    k: int,
    level: Literal["turn", "session"],
    items: Any,
    gold: Gold,
) -> float | None:
    ranking = places(items, level)
    return None if ranking is None else measure(*see(ranking[:k], gold), k)


def sessions_of(ranking: Ranking) -> list[set[str]]:
    """The ranking by the sessions' positions in the timeline, as text."""
    return [{turn.partition(".")[0] for turn in turns} for turns in ranking]
