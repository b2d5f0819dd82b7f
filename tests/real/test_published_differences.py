"""Differences of released results, recomputed from their per-question verdicts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

import pytest

from memtrials.metrics.differences import difference, equivalence, holm, order_notes
from memtrials.metrics.statistics import stratified_interval
from support.published import (
    Place,
    categories_locomo,
    cluster,
    mem0_locomo,
    memorybear_locomo,
    memorybear_longmemeval,
    memos_locomo,
    memos_longmemeval,
)

Locomo = Callable[[], Mapping[Place, float]]


def points(share: float | None) -> float:
    assert share is not None
    return round(100 * share, 1)


@pytest.mark.parametrize(
    ("first", "second", "gain", "higher", "lower", "p", "low", "high"),
    [
        (memos_locomo, mem0_locomo, 1.6, 162, 137, 376 / 1024, -2.2, 5.8),
        (memorybear_locomo, memos_locomo, 6.4, 184, 85, 8 / 1024, 2.6, 10.2),
        (memorybear_locomo, mem0_locomo, 8.1, 206, 82, 2 / 1024, 6.5, 9.6),
    ],
)
def test_differences_on_locomo(
    first: Locomo, second: Locomo, gain: float, higher: int, lower: int, p: float, low: float, high: float
) -> None:
    a, b = first(), second()
    assert a.keys() == b.keys()
    found = difference(a, b, {place: cluster(place) for place in a})
    assert found is not None
    assert (points(found.difference), found.higher, found.lower) == (gain, higher, lower)
    assert (found.p, found.test, found.smallest_p) == (p, "exact sign-flip", 2 / 1024)
    assert (points(found.low), points(found.high)) == (low, high)
    assert (found.n, found.left_out, found.clusters) == (1540, 0, 10)


def test_the_three_systems_on_locomo_as_one_family() -> None:
    systems = [memos_locomo(), mem0_locomo(), memorybear_locomo()]
    clusters = {place: cluster(place) for place in systems[0]}
    pairs = [difference(systems[i], systems[j], clusters) for i, j in ((0, 1), (2, 0), (2, 1))]
    assert holm([found.p for found in pairs if found is not None]) == [376 / 1024, 16 / 1024, 6 / 1024]


def test_a_difference_that_is_not_significant_is_not_equal() -> None:
    """MemOS and Mem0: 1.6 points apart, detectable 5.5; not shown within 2 points of one another."""
    a, b = memos_locomo(), mem0_locomo()
    clusters = {place: cluster(place) for place in a}
    found, close = difference(a, b, clusters), equivalence(a, b, clusters, 0.02)
    assert found is not None
    assert close is not None
    assert found.p > 0.05
    assert points(found.detectable) == 5.5
    assert not close.shown


def test_the_difference_on_longmemeval() -> None:
    """With each question its own cluster. A question and its `_abs` twin as one are 471 clusters, for which 100,000
    draws give no p below 1e-5; of all patterns (52 sums of 1, 16 of -1, one of 2) 7.6e-6 are as extreme."""
    a, b = memorybear_longmemeval(), memos_longmemeval()
    single = difference(a, b, {question: question for question in a})
    assert single is not None
    assert (points(single.difference), single.higher, single.lower, single.test) == (7.6, 54, 16, "exact McNemar")
    assert f"{single.p:.0e}" == "6e-06"
    twins = difference(a, b, {question: cluster(question) for question in a})
    assert twins is not None
    assert (twins.clusters, twins.test, twins.difference) == (471, "sign-flip, 100,000 draws", single.difference)
    assert round(100_001 * twins.p) in (1, 2)
    assert twins.low == pytest.approx(single.low, abs=0.002)
    assert twins.high == pytest.approx(single.high, abs=0.002)


def test_questions_and_categories_order_two_systems_differently() -> None:
    """The released tables give the accuracies by category; their means are not where the question means are."""
    categories = categories_locomo()
    over_questions, over_categories = {}, {}
    for name, scores in {"MemOS": memos_locomo(), "Mem0": mem0_locomo(), "MemoryBear": memorybear_locomo()}.items():
        by_category = defaultdict(list)
        for place, score in scores.items():
            by_category[categories[place]].append(score)
        assert len(by_category) == 4
        over_questions[name] = sum(scores.values()) / len(scores)
        over_categories[name] = sum(sum(some) / len(some) for some in by_category.values()) / 4
        interval = stratified_interval(
            list(scores.values()), [cluster(place) for place in scores], [str(categories[place]) for place in scores]
        )
        assert interval is not None
        assert interval.low < over_categories[name] < interval.high
    assert order_notes(over_questions, over_categories) == [
        "MemOS leads Mem0 over questions (84.3 to 82.7) and trails it averaged over types (78.2 to 81.9)"
    ]
