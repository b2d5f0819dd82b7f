"""Measures over retrieved items and evidence ids.

A ranking is a sequence of places, best first. Each place holds the ids of one retrieved item at some level: turns,
dialogs, sessions. Most items hold one id, a chunk of several turns holds several, a memory without a source holds none.
Every item takes up a place, also one that repeats what stood before, and every gold id counts once. Where each item
holds one id, the five measures are those of the retrieval harness `ebigunso/character-memory-evals`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal

from memtrials.records import Item

Ranking = Sequence[Collection[str]]
"""The ids that each place holds, best first."""


KINDS = {"turn": "observation", "session": "episode"}
"""What kind of memory has a place in a ranking, by level, where a system has memories of several kinds."""


def places(items: Iterable[Item] | None, level: Literal["turn", "session"] = "turn") -> list[tuple[str, ...]] | None:
    """The ranking that a system gave, by the items' ranks; None when one of them doesn't say what it is of.

    items: in any order, each with its rank. An empty list is a retrieval that found nothing, None is one without ids.
    Of memories that say of which kind they are only those of the level have a place: an observation is its turn, and an
    episode its session, by position.
    """
    if items is None:
        return None
    found: list[tuple[str, ...]] = []
    for item in sorted(items, key=lambda item: item.rank):
        if item.turns is None:
            return None
        if item.memory is None:
            found.append(item.turns)
        elif item.memory.kind == KINDS[level]:
            session = item.memory.external_id
            found.append(item.turns if level == "turn" else (session,) if session else ())
    return found


def recall_any(ranking: Ranking, gold: Collection[str], k: int) -> float | None:
    """1.0 if the first k places hold any gold id, else 0.0; None when gold is empty. k: 1 or more."""
    return float(bool(_found(ranking, gold, k))) if gold else None


def recall_all(ranking: Ranking, gold: Collection[str], k: int) -> float | None:
    """1.0 if the first k places hold every gold id, else 0.0; None when gold is empty. k: 1 or more.

    LongMemEval's own variant gives 1 for empty gold and has another name.
    """
    return float(len(_found(ranking, gold, k)) == len(set(gold))) if gold else None


def recall_fraction(ranking: Ranking, gold: Collection[str], k: int) -> float | None:
    """The share of distinct gold ids that the first k places hold; None when gold is empty. k: 1 or more."""
    return len(_found(ranking, gold, k)) / len(set(gold)) if gold else None


def mrr(ranking: Ranking, gold: Collection[str], k: int) -> float | None:
    """1 / the first of the first k places that holds a gold id, 0.0 when none does; None when gold is empty.

    Its mean over questions is the mean reciprocal rank. k: 1 or more.
    """
    if not gold:
        return None
    wanted = set(gold)
    return next((1 / rank for rank, ids in enumerate(ranking[:k], 1) if not wanted.isdisjoint(ids)), 0.0)


def ndcg(ranking: Ranking, gold: Collection[str], k: int) -> float | None:
    """Normalised discounted cumulative gain of the first k places, in [0, 1]; None when gold is empty. k: 1 or more.

    A place gains 1/log2(rank + 1) when it holds a gold id that no earlier place held. The ideal is that of as many
    first places as there are gold ids, k at most; gold ids that came first in one place together count as one id there,
    so that the best ranking has 1.0 however turns are put together.
    Source: Järvelin and Kekäläinen (2002), ACM TOIS 20:422, with binary gains and each gold id credited once.
    """
    if not gold:
        return None
    left = set(gold)
    gain, together = 0.0, 0
    for rank, ids in enumerate(ranking[:k], 1):
        if new := left.intersection(ids):
            gain += 1 / math.log2(rank + 1)
            together += len(new) - 1
            left -= new
    best = min(len(set(gold)) - together, k)
    return gain / sum(1 / math.log2(rank + 1) for rank in range(1, best + 1))


RANKING_MEASURES: dict[str, Callable[[Ranking, Collection[str], int], float | None]] = {
    "recall-any": recall_any,
    "recall-all": recall_all,
    "recall-fraction": recall_fraction,
    "mrr": mrr,
    "ndcg": ndcg,
}
"""By the name that they have after a level and before `@k`."""


def _found(ranking: Ranking, gold: Collection[str], k: int) -> set[str]:
    return {name for ids in ranking[:k] for name in ids}.intersection(gold)


def first_hit(items: Sequence[Item] | None, evidence: Collection[str]) -> float | None:
    """The rank (from 1) of the first item that holds one of these turns.

    items: best first or in any order, each with its rank. None when no item holds one, when the system gives no
    evidence ids, or when there is no evidence.
    """
    ranks = [item.rank for item in items or () if item.turns and not set(evidence).isdisjoint(item.turns)]
    return float(min(ranks)) if ranks else None


def hit(items: Sequence[Item] | None, evidence: Collection[str]) -> float | None:
    """1.0 if one of the items holds one of these turns, else 0.0.

    None when there is no evidence or the system gives no evidence ids (no items list, or items without turns).
    An empty list of items is a retrieval that found nothing: 0.0.
    """
    if items is None or not evidence or any(item.turns is None for item in items):
        return None
    return 1.0 if first_hit(items, evidence) is not None else 0.0
