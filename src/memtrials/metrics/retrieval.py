"""Measures over retrieved items and evidence ids."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from memtrials.records import Item


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
