"""Which points are worth their price."""

from __future__ import annotations

from collections.abc import Sequence


def frontier(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Of points (value, price), whether each is on the frontier: no other has at least its value for at most its price
    and more or less of one of them. Equal points are both on it."""
    return [
        not any(v >= value and p <= price and (v, p) != (value, price) for v, p in points) for value, price in points
    ]
