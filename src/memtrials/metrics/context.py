"""How much of a history a context is, in tokens."""

from __future__ import annotations

from typing import NamedTuple


class Efficiency(NamedTuple):
    """compression: full history over context; reduction: the share of the history that a reader needn't read, negative
    where the context is longer. None where they have no value."""

    compression: float | None
    reduction: float | None


def efficiency(retrieved: int, full: int | None) -> Efficiency:
    """Both ratios of a context of `retrieved` tokens to a history of `full` (None: there is none).

    An empty context has no compression, an empty history no reduction. Source: `ebigunso/character-memory-evals`.
    """
    if full is None:
        return Efficiency(None, None)
    return Efficiency(full / retrieved if retrieved else None, 1 - retrieved / full if full else None)
