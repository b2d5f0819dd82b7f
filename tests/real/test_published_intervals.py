"""Intervals of released results, recomputed from their per-question labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from memtrials.metrics.statistics import mean_interval, percentile
from support.published import (
    cluster,
    mem0_locomo,
    memorybear_locomo,
    memorybear_longmemeval,
    memos_locomo,
    memos_longmemeval,
    released,
)


@pytest.mark.parametrize(
    ("verdicts", "right", "n", "clusters", "percent", "low", "high"),
    [
        (memos_locomo, 1298, 1540, 10, 84.3, 80.5, 87.5),
        (mem0_locomo, 1273, 1540, 10, 82.7, 80.5, 84.7),
        (memorybear_locomo, 1397, 1540, 10, 90.7, 88.3, 92.7),
        (memorybear_longmemeval, 475, 500, 471, 95.0, 92.7, 96.6),
        # Low bound 84.146. Also quoted as 84.2, which a normal quantile gives (84.155) and Student's t does not.
        (memos_longmemeval, 437, 500, 471, 87.4, 84.1, 90.1),
    ],
)
def test_intervals_of_released_results(
    verdicts: Callable[[], Mapping[Any, float]],
    right: int,
    n: int,
    clusters: int,
    percent: float,
    low: float,
    high: float,
) -> None:
    scores = verdicts()
    interval = mean_interval(list(scores.values()), [cluster(question) for question in scores])
    assert interval is not None
    assert (sum(scores.values()), len(scores), interval.clusters) == (right, n, clusters)
    assert round(100 * right / n, 1) == percent
    assert (round(100 * interval.low, 1), round(100 * interval.high, 1)) == (low, high)


def test_percentiles_of_released_latencies() -> None:
    """Linear between ranks: other methods give 900, 910, 918.99… or 920 for the 95th."""
    latencies = [r["latency_ms"] for r in released("lme/memorybear/memorybear_lme_judged.json")]
    assert percentile(latencies, 50) == 510.0
    assert percentile(latencies, 95) == pytest.approx(900.9999999999991, rel=1e-9)
