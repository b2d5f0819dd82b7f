"""How the benches measure: alternately, several times, and by medians, so that a noisy machine cancels out."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable


def seconds(action: Callable[[], object]) -> float:
    """Wall time of one call, the garbage collector kept out of it."""
    gc.collect()
    gc.disable()
    try:
        began = time.perf_counter()
        action()
        return time.perf_counter() - began
    finally:
        gc.enable()


def ratio(one: Callable[[], object], other: Callable[[], object], rounds: int) -> tuple[float, float, float]:
    """(median ratio one / other, median seconds of one, of the other) over alternating rounds."""
    pairs = [(seconds(one), seconds(other)) for _ in range(rounds)]
    ones, others = zip(*pairs, strict=True)
    return statistics.median(a / b for a, b in pairs), statistics.median(ones), statistics.median(others)


def settled(measure: Callable[[], float], good: Callable[[float], bool], tries: int = 6) -> float:
    """The measurement, taken again (at most `tries` times in all) while a busy neighbour may have spoilt it."""
    value = measure()
    for _ in range(tries - 1):
        if good(value):
            break
        value = measure()
    return value
