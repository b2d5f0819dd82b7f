"""Paired differences, against numbers a reader can check by hand, SciPy, and one another."""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from memtrials.metrics.differences import (
    DRAWS,
    Difference,
    Equivalence,
    detectable_difference,
    difference,
    difference_bounds,
    equivalence,
    holm,
    mcnemar_p,
    order_notes,
)
from memtrials.metrics.statistics import student_quantile

Scores = dict[str, float]
Side = tuple[Scores, Scores, dict[str, str]]


def of_changes(changes: list[list[float]]) -> Side:
    """Two sides of which the second scored 0, with one cluster per list."""
    rows = [(f"q{g}.{i}", f"c{g:03}", value) for g, cluster in enumerate(changes) for i, value in enumerate(cluster)]
    return {q: value for q, _, value in rows}, {q: 0.0 for q, _, _ in rows}, {q: cluster for q, cluster, _ in rows}


def found(side: Side) -> Difference:
    result = difference(*side)
    assert result is not None
    return result


def one_by_one(sums: list[float], sizes: list[int], shift: float) -> float:
    """The p of the sign-flip test of the shifted sums, pattern by pattern."""
    shifted = [total - shift * size for total, size in zip(sums, sizes, strict=True)]
    observed = abs(sum(shifted))
    patterns = list(itertools.product((1, -1), repeat=len(sums)))
    hits = sum(
        abs(sum(sign * one for sign, one in zip(signs, shifted, strict=True))) >= observed - 1e-9 for signs in patterns
    )
    return hits / len(patterns)


# The test


def test_six_clusters_that_agree() -> None:
    # Sums 1, 1, 1, 1, 1, 1 of two questions each: only the two patterns of one sign reach 6. p = 2/64.
    result = found(of_changes([[1.0, 0.0]] * 6))
    assert (result.difference, result.n, result.clusters, result.higher, result.lower) == (0.5, 12, 6, 6, 0)
    assert (result.p, result.smallest_p, result.test) == (2 / 64, 2 / 64, "exact sign-flip")


def test_one_dissenting_cluster_by_hand() -> None:
    # Sums 3, 2, 2, 2, 1, -1: total 9, and 11 where all count as positive. A total of 9 or more leaves one cluster of
    # size 1 negative or none, which are three patterns; with their mirror images 6/64.
    result = found(of_changes([[1, 1, 1], [1, 1, 0], [1, 1, 0], [1, 1, 0], [1, 0, 0], [-1, 0, 0]]))
    assert result.p == 6 / 64
    assert (result.higher, result.lower) == (10, 1)


def test_no_difference_has_p_1_and_nothing_detectable() -> None:
    result = found(of_changes([[0.0, 0.0]] * 6))
    assert (result.difference, result.p, result.low, result.high, result.detectable) == (0.0, 1.0, 0.0, 0.0, None)


def test_below_six_clusters_no_shift_is_rejected() -> None:
    for groups in (1, 5):
        result = found(of_changes([[1.0, 1.0]] * groups))
        assert (result.low, result.high) == (None, None)
        assert result.p == result.smallest_p == 2 / 2**groups


def test_the_interval_of_six_clusters_is_the_range_of_their_means() -> None:
    # 5 % of 64 is 3.2: the two patterns that flip all or none count anywhere, so the bound is where two more do,
    # which is at the lowest and at the highest mean of a set of clusters: those of the lowest and the highest alone.
    result = found(of_changes([[0.1, 0.3], [0.4], [0.3, 0.3], [0.5], [0.6], [0.9, 0.7]]))
    assert (result.low, result.high) == (pytest.approx(0.2), pytest.approx(0.8))


def test_fractions_that_tie_count_as_hits() -> None:
    # Sums 1/3 + 1/3 + 1/3 and 1 differ by rounding alone.
    thirds = [[1 / 3, 1 / 3, 1 / 3], [-1.0], [0.1], [0.1], [0.1], [-0.3]]
    assert found(of_changes(thirds)).p == 1.0


@pytest.mark.parametrize("groups", [7, 12])
def test_sign_flips_as_in_scipy(groups: int) -> None:
    rng = random.Random(groups)
    changes = [[rng.choice((-1.0, 0.0, 1.0, 1.0)) for _ in range(rng.randint(1, 9))] for _ in range(groups)]
    peer = stats.permutation_test(
        ([sum(cluster) for cluster in changes],),
        np.sum,
        permutation_type="samples",
        n_resamples=np.inf,
        alternative="two-sided",
    )
    assert found(of_changes(changes)).p == pytest.approx(peer.pvalue)


@given(
    st.lists(st.lists(st.sampled_from((-1.0, -0.5, 0.0, 0.5, 1.0)), min_size=1, max_size=4), min_size=6, max_size=8),
    st.floats(-1.5, 1.5),
)
def test_the_interval_holds_what_the_test_does_not_reject(changes: list[list[float]], shift: float) -> None:
    result = found(of_changes(changes))
    sums, sizes = [sum(cluster) for cluster in changes], [len(cluster) for cluster in changes]
    assert result.p == one_by_one(sums, sizes, 0.0)
    assert result.low is not None
    assert result.high is not None
    assert result.low <= result.difference + 1e-12
    assert result.high >= result.difference - 1e-12
    if min(abs(shift - result.low), abs(shift - result.high)) > 1e-6:
        assert (result.low < shift < result.high) == (one_by_one(sums, sizes, shift) > 0.05)


@pytest.mark.parametrize("groups", [8, 30])
def test_order_and_sides_change_nothing(groups: int) -> None:
    rng = random.Random(4)
    side = of_changes([[rng.uniform(-0.5, 1) for _ in range(rng.randint(1, 5))] for _ in range(groups)])
    result = found(side)
    shuffled = list(side[2].items())
    rng.shuffle(shuffled)
    assert difference(side[0], side[1], dict(shuffled)) == result
    mirrored = found((side[1], side[0], side[2]))
    assert (mirrored.p, mirrored.difference) == (result.p, -result.difference)
    assert result.low is not None
    assert result.high is not None
    assert (mirrored.low, mirrored.high) == (pytest.approx(-result.high), pytest.approx(-result.low))


def test_draws_come_close_to_all_patterns() -> None:
    """21 clusters are drawn, 20 enumerated; a 21st without a change doubles every pattern and moves no p."""
    rng = random.Random(6)
    changes = [[rng.uniform(-0.8, 1.0) for _ in range(3)] for _ in range(20)]
    exact, drawn = found(of_changes(changes)), found(of_changes([*changes, [0.0]]))
    assert (exact.test, drawn.test) == ("exact sign-flip", "sign-flip, 100,000 draws")
    assert drawn.smallest_p == 1 / (DRAWS + 1)
    assert 0.001 < exact.p < 0.2
    assert drawn.p == pytest.approx(exact.p, abs=0.003)


def test_draws_of_many_like_clusters_follow_the_binomial() -> None:
    # 40 clusters of two questions with sum 1, 20 with sum -1: a two-sided binomial test of 40 in 60.
    result = found(of_changes([[0.5, 0.5]] * 40 + [[-0.5, -0.5]] * 20))
    assert result.test == "sign-flip, 100,000 draws"
    assert result.p == pytest.approx(stats.binomtest(40, 60).pvalue, abs=0.001)
    assert round(result.p * (DRAWS + 1)) == pytest.approx(result.p * (DRAWS + 1))  # (hits + 1)/(draws + 1)


def test_drawn_interval_comes_close_to_student() -> None:
    rng = random.Random(8)
    changes = [rng.gauss(0.1, 1.0) for _ in range(400)]
    result = found(of_changes([[change] for change in changes]))
    peer = stats.ttest_1samp(changes, 0.0)
    low, high = peer.confidence_interval()
    assert result.p == pytest.approx(peer.pvalue, abs=0.005)
    assert (result.low, result.high) == (pytest.approx(low, abs=0.005), pytest.approx(high, abs=0.005))


# McNemar


@pytest.mark.parametrize(("higher", "lower"), [(54, 16), (16, 54), (3, 0), (5, 5), (0, 0), (900, 1000)])
def test_mcnemar_is_the_binomial_test(higher: int, lower: int) -> None:
    peer = stats.binomtest(higher, higher + lower).pvalue if higher + lower else 1.0
    assert mcnemar_p(higher, lower) == pytest.approx(peer, rel=1e-9)


def test_mcnemar_by_hand() -> None:
    assert mcnemar_p(1, 5) == pytest.approx(2 * (1 + 6) / 64)


def single(pairs: list[tuple[float, float]]) -> Side:
    a, b = zip(*pairs, strict=True)
    names = [f"q{number:03}" for number in range(len(pairs))]
    return dict(zip(names, a, strict=True)), dict(zip(names, b, strict=True)), {name: name for name in names}


def test_single_judged_questions_are_mcnemar_and_equal_all_patterns() -> None:
    few = found(single([(1, 0)] * 8 + [(0, 1)] * 2 + [(1, 1)] * 5 + [(0, 0)]))
    assert few.test == "exact McNemar"
    assert few.p == pytest.approx(one_by_one([1.0] * 8 + [-1.0] * 2, [1] * 10, 0.0))
    assert (few.higher, few.lower, few.n, few.clusters) == (8, 2, 16, 16)
    many = found(single([(1, 0)] * 54 + [(0, 1)] * 16 + [(1, 1)] * 430))
    assert (many.test, many.p) == ("exact McNemar", mcnemar_p(54, 16))
    assert many.low is not None
    assert many.high is not None
    assert 0 < many.low < many.difference == 0.076 < many.high


def test_mcnemar_is_not_offered_for_clusters_or_repeats() -> None:
    a, b, clusters = single([(1, 0)] * 8 + [(0, 1)] * 2)
    assert found((a, b, {**clusters, "q000": "q001"})).test == "exact sign-flip"
    assert found(({**a, "q000": 0.5}, b, clusters)).test == "exact sign-flip"


# What counts


def test_only_questions_scored_on_both_sides_count() -> None:
    a, b, clusters = of_changes([[1.0, 0.0]] * 6)
    del a["q0.0"], b["q1.1"]
    result = found((a | {"elsewhere": 1.0}, b | {"elsewhere": 0.0}, clusters))
    assert (result.n, result.left_out, result.difference) == (10, 2, 0.5)
    assert difference(a, {}, clusters) is None
    assert difference({}, {}, {}) is None


def test_a_score_must_be_finite() -> None:
    with pytest.raises(ValueError, match="finite"):
        difference({"q": math.nan}, {"q": 0.0}, {"q": "c"})
    with pytest.raises(ValueError, match="finite"):
        equivalence({"q": math.inf}, {"q": 0.0}, {"q": "c"}, 0.1)


def test_bounds_of_a_difference_with_failures() -> None:
    # a: 1, 1, missing, missing; b: 0, missing, 1, missing. Worst: 1 - 0, 1 - 1, 0 - 1, 0 - 1; best: 1, 1, 0, 1.
    a, b = {"p": 1.0, "q": 1.0}, {"p": 0.0, "r": 1.0}
    assert difference_bounds(a, b, ["p", "q", "r", "s"]) == (-1 / 4, 3 / 4)
    assert difference_bounds(a, b, ["p"]) == (1.0, 1.0)
    assert difference_bounds(a, b, []) is None
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        difference_bounds({"p": 700.0}, b, ["p"])


# Equivalence and what could have been found


def test_equivalence_by_hand() -> None:
    # Changes 0.1, -0.1, 0.1, -0.1, 0.1, -0.1: shifted by 0.2 all have one sign, so one pattern of 64 is as extreme.
    side = of_changes([[0.1], [-0.1]] * 3)
    assert equivalence(*side, 0.2) == Equivalence(0.2, 1 / 64, 1 / 64)
    result = equivalence(*side, 0.05)  # shifted: three of 0.15 and three of -0.05, total 0.3 of at most 0.6
    assert result is not None
    assert result.below == one_sided([0.15, 0.15, 0.15, -0.05, -0.05, -0.05])
    assert not result.shown
    assert equivalence({}, {}, {}, 0.2) is None


def one_sided(shifted: list[float]) -> float:
    totals = [
        sum(sign * one for sign, one in zip(signs, shifted, strict=True))
        for signs in itertools.product((1, -1), repeat=len(shifted))
    ]
    return sum(total >= sum(shifted) - 1e-9 for total in totals) / len(totals)


def test_equivalence_is_about_both_sides_of_zero() -> None:
    close, far = of_changes([[0.01], [-0.01]] * 5), of_changes([[0.3], [0.28]] * 5)
    near, beyond = equivalence(*close, 0.05), equivalence(*far, 0.05)
    assert near is not None
    assert beyond is not None
    assert (near.shown, near.p) == (True, 1 / 1024)
    assert (beyond.shown, beyond.below, beyond.p) == (False, 1 / 1024, 1.0)


def test_equivalence_by_draws_comes_close_to_student() -> None:
    rng = random.Random(2)
    changes = [rng.gauss(0.02, 0.5) for _ in range(300)]
    result = equivalence(*of_changes([[change] for change in changes]), 0.07)
    assert result is not None
    assert result.above == pytest.approx(stats.ttest_1samp(changes, 0.07, alternative="less").pvalue, abs=0.004)
    assert result.below == pytest.approx(stats.ttest_1samp(changes, -0.07, alternative="greater").pvalue, abs=0.004)


@pytest.mark.parametrize("margin", [0.0, -0.1, math.nan, math.inf])
def test_a_margin_is_above_zero(margin: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        equivalence({"q": 1.0}, {"q": 1.0}, {"q": "c"}, margin)


def test_detectable_difference_from_discordance() -> None:
    # 500 single questions, 14 % discordant, d = 0.076: se² = (0.14 - 0.005776)/499, se = 0.0164009;
    # t at 499 degrees of freedom 1.964729 + 0.842333 = 2.807062
    changes = [1.0] * 54 + [-1.0] * 16 + [0.0] * 430
    singles = [str(number) for number in range(500)]
    assert detectable_difference(changes, singles) == pytest.approx(2.807062 * 0.0164009, abs=1e-6)
    assert detectable_difference(changes, ["all"] * 500) is None
    assert detectable_difference([0.0] * 500, singles) is None


@pytest.mark.parametrize("groups", range(2, 8))
def test_nothing_is_detectable_where_nothing_can_be_found(groups: int) -> None:
    """The least p of the sign-flip test of 5 clusters is 2/32, of 6 it is 2/64."""
    a = {n: float(n % 3 > 0) for n in range(4 * groups)}
    b = {n: float(n % 4 > 1) for n in range(4 * groups)}
    found = difference(a, b, {n: str(n // 4) for n in a})
    assert found is not None
    assert (found.detectable is None) == (found.smallest_p > 0.05) == (groups < 6)


def test_a_detectable_difference_is_found_in_four_of_five() -> None:
    rng = np.random.default_rng(5)
    size, groups, spread = 10, 40, 0.3
    names = [str(number // size) for number in range(size * groups)]
    error = spread / math.sqrt(size * groups)
    factor = student_quantile(0.95, groups - 1) + student_quantile(0.6, groups - 1)
    sums = rng.normal(factor * error, spread, size=(4000, groups, size)).mean(axis=2)
    power = np.mean(stats.ttest_1samp(sums, 0.0, axis=1).pvalue <= 0.05)
    assert power == pytest.approx(0.8, abs=0.02)
    some = rng.normal(0.0, spread, size=size * groups).tolist()
    assert detectable_difference(some, names) == pytest.approx(factor * error, rel=0.3)


# Families and orders


def test_holm_by_hand() -> None:
    # In order: 4 · 0.005 = 0.02, 3 · 0.01 = 0.03, 2 · 0.03 = 0.06, and 1 · 0.04, which may not fall below 0.06.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([0.02, 0.02]) == [0.04, 0.04]
    assert holm([]) == []
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match=r"\[0, 1\]"):
            holm([0.5, bad])


def test_order_notes() -> None:
    over_questions = {"one": 0.843, "two": 0.827, "three": 0.9, "unsplit": 0.1}
    assert order_notes(over_questions, {"one": 0.782, "two": 0.819, "three": 0.95}) == [
        "one leads two over questions (84.3 to 82.7) and trails it averaged over types (78.2 to 81.9)"
    ]
    assert order_notes(over_questions, {"one": 0.8, "two": 0.7, "three": 0.9}) == []
    assert order_notes({"a": 0.5, "b": 0.5}, {"a": 0.4, "b": 0.6}) == []


def test_importing_the_module_loads_neither_numpy_nor_scipy() -> None:
    program = (
        "import memtrials.metrics.differences, memtrials.metrics.repeats, sys; "
        "sys.exit(', '.join({'numpy', 'scipy'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
