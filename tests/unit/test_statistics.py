"""Means, intervals and percentiles, against numbers a reader can check by hand.

Student's t quantiles used below: 1 degree of freedom, tan(0.475·pi) = 12.7062; 2 degrees of freedom,
0.95 / sqrt(2 · 0.975 · 0.025) = 4.302653, squared 18.512821.
"""

import math
import random
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtrials.metrics import statistics
from memtrials.metrics.statistics import (
    Interval,
    bootstrap_interval,
    clustered_variance,
    design_effect,
    general_interval,
    mean_interval,
    nested_mean,
    percentile,
    stratified_interval,
    student_quantile,
    wilson_bounds,
)


def single(count: int) -> list[str]:
    """As many clusters as questions."""
    return [f"q{number}" for number in range(count)]


def right_of(right: int, count: int) -> list[float]:
    return [1.0] * right + [0.0] * (count - right)


def bounds(interval: Interval | None) -> tuple[float, float]:
    assert interval is not None
    return interval.low, interval.high


# Mean scores in [0, 1]


@pytest.mark.parametrize(
    ("right", "low", "high"),
    [
        # p = 1: low = n/(n + t²) = 125/(125 + 1.979280²) = 125/128.917550
        (125, 0.970, 1.0),
        # p = 0: the mirror image, t²/(n + t²) = 3.917550/128.917550
        (0, 0.0, 0.030),
        # p = 0.144, deff = 125/124, n_eff = 124, t²/n_eff = 3.917550/124 = 0.0315931:
        # centre (0.144 + 0.0157966)/1.0315931 = 0.1549027,
        # half sqrt(0.0315931·0.123264 + 0.0157966²)/1.0315931 = 0.0643726/1.0315931 = 0.0624011; low 0.0925016
        (18, 0.093, 0.217),
    ],
)
def test_mean_interval_of_125_independent_questions(right: int, low: float, high: float) -> None:
    interval = mean_interval(right_of(right, 125), single(125))
    assert interval is not None
    assert (round(interval.low, 3), round(interval.high, 3)) == (low, high)
    assert interval.clusters == 125
    assert interval.deff == pytest.approx(1.0 if right in (0, 125) else 125 / 124)


def test_mean_interval_is_exact_at_the_ends() -> None:
    t_squared = student_quantile(0.95, 124) ** 2
    low, high = bounds(mean_interval([0.0] * 125, single(125)))
    assert low == 0.0
    assert high == pytest.approx(t_squared / (125 + t_squared))
    low, high = bounds(mean_interval([1.0] * 125, single(125)))
    assert low == pytest.approx(125 / (125 + t_squared))
    assert high == 1.0


def test_three_pairs_make_122_clusters_of_125_questions() -> None:
    pairs = [*single(119), "p0", "p0", "p1", "p1", "p2", "p2"]
    one_in_a_pair = mean_interval([1.0] * 17 + [0.0] * 102 + [1.0, 0.0, 0.0, 0.0, 0.0, 0.0], pairs)
    assert one_in_a_pair is not None
    assert one_in_a_pair.clusters == 122
    # residual sums: 17 times 0.856, 102 times -0.144, a pair 0.712, two pairs -0.288; squares 15.244416;
    # deff = 122/121 · 15.244416 / (125 · 0.123264) = 0.9975599
    assert one_in_a_pair.deff == pytest.approx(0.9975599, abs=1e-7)
    assert (round(one_in_a_pair.low, 3), round(one_in_a_pair.high, 3)) == (0.093, 0.217)
    # All six right, 12 of the others: 12 times 0.856, 107 times -0.144, three pairs 1.712; squares 19.804416.
    # Pairs that agree tell less than two questions: deff 122/121 · 19.804416/15.408 = 1.2959559
    alike = [1.0] * 12 + [0.0] * 107 + [1.0] * 6
    assert design_effect(alike, pairs) == pytest.approx(1.2959559, abs=1e-7)


def test_mean_interval_of_three_clusters_by_hand() -> None:
    # p = 0.5; residual sums +1, 0, -1; variance 3/2 · 2/36 = 1/12; binomial 0.25/6 = 1/24; deff 2; n_eff 3.
    # t²/n_eff = 6.170940; centre 0.5; half sqrt(6.170940·0.25 + 3.085470²)/7.170940 = 3.326088/7.170940 = 0.463829
    interval = mean_interval([1, 1, 1, 0, 0, 0], ["a", "a", "b", "b", "c", "c"])
    assert interval is not None
    assert interval.deff == pytest.approx(2.0)
    assert interval.low == pytest.approx(0.036171, abs=1e-6)
    assert interval.high == pytest.approx(0.963829, abs=1e-6)


def test_mean_interval_floors_the_design_effect() -> None:
    # Each cluster is half right: residual sums 0, variance 0, deff floored at 0.2, n_eff = 4/0.2 = 20.
    # t²/n_eff = 161.447639/20 = 8.072382; half sqrt(8.072382·0.25 + 4.036191²)/9.072382 = 4.278894/9.072382 = 0.471640
    interval = mean_interval([1, 0, 0, 1], ["a", "a", "b", "b"])
    assert interval is not None
    assert interval.deff == 0.2
    assert interval.low == pytest.approx(0.028360, abs=1e-6)
    assert interval.high == pytest.approx(0.971640, abs=1e-6)


def test_mean_interval_takes_scores_between_0_and_1() -> None:
    # p = 0.5; residuals ±0.25 in four clusters; variance 4/3 · 0.25/16 = 1/48; binomial 0.25/4 = 1/16; deff 1/3.
    interval = mean_interval([0.25, 0.75, 0.25, 0.75], single(4))
    assert interval is not None
    assert interval.deff == pytest.approx(1 / 3)
    assert bounds(interval) == pytest.approx(wilson_bounds(0.5, 12, student_quantile(0.95, 3)))


def test_mean_interval_is_none_below_two_clusters() -> None:
    assert mean_interval([], []) is None
    assert mean_interval([1.0], ["a"]) is None
    assert mean_interval([1.0, 0.0, 1.0], ["a", "a", "a"]) is None
    assert general_interval([], []) is None
    assert general_interval([3.0, 4.0], ["a", "a"]) is None


@pytest.mark.parametrize("bad", [-0.001, 1.001, math.nan, math.inf])
def test_mean_interval_refuses_what_is_no_score(bad: float) -> None:
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        mean_interval([0.5, bad], ["a", "b"])


@pytest.mark.parametrize("interval", [mean_interval, general_interval])
def test_intervals_refuse_unequal_lengths_and_impossible_levels(interval: Callable[..., Interval | None]) -> None:
    with pytest.raises(ValueError, match="2 values but 1 clusters"):
        interval([0.0, 1.0], ["a"])
    for level in (0.0, 1.0, 95, math.nan):
        with pytest.raises(ValueError, match="level"):
            interval([0.0, 1.0], ["a", "b"], level)
        with pytest.raises(ValueError, match="level"):
            interval([1.0], ["a"], level)  # also where no interval would come of it


# The mean over strata


def test_stratified_interval_by_hand() -> None:
    # Stratum s: 1, 0 (mean 1/2); t: 1, 1, 1, 0 (mean 3/4); p = 5/8. Four clusters of one or two questions:
    # a: s 1, 1/2 · 1/(2·2) = 1/8; b: s 0, -1/8; c: t 1 and t 1, 2 · 1/4 · 1/(2·4) = 1/16; d: t 1 and t 0,
    # 1/32 - 3/32 = -1/16. Squares 2/64 + 2/256 = 10/256; variance 4/3 · 10/256 = 5/96.
    # Binomial 15/64 / 6 = 5/128; deff 128/96 = 4/3; n_eff 6 / (4/3) = 4.5.
    interval = stratified_interval([1, 0, 1, 1, 1, 0], ["a", "b", "c", "c", "d", "d"], ["s", "s", "t", "t", "t", "t"])
    assert interval is not None
    assert (interval.clusters, interval.deff) == (4, pytest.approx(4 / 3))
    assert bounds(interval) == pytest.approx(wilson_bounds(5 / 8, 4.5, student_quantile(0.95, 3)))


def test_a_cluster_may_cross_strata() -> None:
    # Both clusters hold one right and one wrong answer of different strata: (1/2)/(2·2) - (1/2)/(2·2) = 0 each.
    interval = stratified_interval([1, 0, 0, 1], ["a", "b", "a", "b"], ["s", "s", "t", "t"])
    assert interval == Interval(*wilson_bounds(0.5, 4 / 0.2, student_quantile(0.95, 1)), 2, 0.2)


def test_stratified_interval_at_the_ends_and_below_two_clusters() -> None:
    interval = stratified_interval([1.0] * 4, single(4), ["s", "s", "t", "t"])
    assert interval == Interval(*wilson_bounds(1.0, 4, student_quantile(0.95, 3)), 4, 1.0)
    assert stratified_interval([1.0, 0.0], ["a", "a"], ["s", "t"]) is None
    assert stratified_interval([], [], []) is None


def test_the_only_question_of_a_stratum_adds_no_variance() -> None:
    # s: 1, 0 at 1/2 · 1/4 each; t: the lone 0. p = 1/4, variance 3/2 · 2/64 = 3/64, binomial 3/16 / 3 = 1/16, deff 3/4
    interval = stratified_interval([1, 0, 0], single(3), ["s", "s", "t"])
    assert interval == Interval(*wilson_bounds(0.25, 4, student_quantile(0.95, 2)), 3, pytest.approx(0.75))


def test_stratified_interval_refuses_what_mean_interval_refuses() -> None:
    with pytest.raises(ValueError, match="2 values but 1"):
        stratified_interval([0.0, 1.0], ["a", "b"], ["s"])
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        stratified_interval([0.5, 1.5], ["a", "b"], ["s", "s"])
    with pytest.raises(ValueError, match="level"):
        stratified_interval([0.0, 1.0], ["a", "b"], ["s", "s"], 1.0)


# The bootstrap


def test_bootstrap_is_offered_from_40_clusters() -> None:
    assert bootstrap_interval([0.0, 1.0] * 39, [f"c{number // 2}" for number in range(78)]) is None
    assert bootstrap_interval([0.0, 1.0] * 20, single(40)) is not None
    with pytest.raises(ValueError, match="finite"):
        bootstrap_interval([math.nan] * 40, single(40))


def test_bootstrap_of_single_questions_follows_the_binomial() -> None:
    # 40 of 100: the mean of a resample is Bin(100, 0.4)/100, whose 2.5 % and 97.5 % quantiles are 0.31 and 0.50
    # (chances of at most 30, 31, 49 and 50 right: 0.0248, 0.0398, 0.9729 and 0.9832; draws err by 0.002).
    low, high = bounds(bootstrap_interval(right_of(40, 100), single(100)))
    assert 0.30 <= low <= 0.31
    assert 0.49 <= high <= 0.50
    assert bootstrap_interval(right_of(40, 100), single(100)) == bootstrap_interval(
        list(reversed(right_of(40, 100))), single(100)
    )


def test_bootstrap_resamples_whole_clusters() -> None:
    # 50 clusters of two equal answers hold what 50 questions hold.
    pairs = [f"c{number // 2}" for number in range(100)]
    doubled = [value for value in right_of(20, 50) for _ in range(2)]
    assert bounds(bootstrap_interval(doubled, pairs)) == bounds(bootstrap_interval(right_of(20, 50), single(50)))


def test_bootstrap_of_unlike_values_comes_close_to_student() -> None:
    rng = random.Random(3)
    values, names = [rng.gauss(500.0, 100.0) for _ in range(600)], [f"c{number // 3}" for number in range(600)]
    plain, resampled = general_interval(values, names), bootstrap_interval(values, names)
    assert bounds(resampled) == pytest.approx(bounds(plain), abs=1.5)
    assert bounds(resampled) != bounds(bootstrap_interval(values, names, seed=1))
    assert resampled is not None
    assert plain is not None
    assert (resampled.clusters, resampled.deff) == (200, plain.deff)


# The parts


def test_clustered_variance_by_hand() -> None:
    # mean 2.5; residual sums -2 and +2; 2/1 · 8/16 = 1
    assert clustered_variance([1, 2, 3, 4], ["a", "a", "b", "b"]) == 1.0
    # each its own cluster: s²/n = (5/3)/4
    assert clustered_variance([1, 2, 3, 4], single(4)) == pytest.approx(5 / 12)
    # clusters of unequal size: mean 2; residual sums -1 - 1 + 0 = -2 and +2; 2/1 · 8/16 = 1
    assert clustered_variance([1, 1, 2, 4], ["a", "a", "a", "b"]) == 1.0
    with pytest.raises(ValueError, match="2 clusters"):
        clustered_variance([1, 2], ["a", "a"])
    with pytest.raises(ValueError, match="2 values but 1 clusters"):
        clustered_variance([1, 2], ["a"])


def test_design_effect_by_hand() -> None:
    assert design_effect([1, 1, 1, 0, 0, 0], ["a", "a", "b", "b", "c", "c"]) == pytest.approx(2.0)
    assert design_effect([1, 0], ["a", "b"]) == pytest.approx(2.0)  # n/(n-1)
    assert design_effect([1, 0, 1, 0], ["a", "a", "b", "b"]) == 0.2
    assert design_effect([1, 1], ["a", "b"]) == 1.0
    assert design_effect([0, 0], ["a", "b"]) == 1.0


def test_wilson_bounds_match_the_textbook() -> None:
    # 15 of 50 at z = 1.96: z²/n = 0.076832; centre (0.3 + 0.038416)/1.076832 = 0.3142700,
    # half sqrt(0.076832·0.21 + 0.038416²)/1.076832 = 0.1327046/1.076832 = 0.1232361
    low, high = wilson_bounds(0.3, 50, 1.96)
    assert low == pytest.approx(0.1910339, abs=1e-7)
    assert high == pytest.approx(0.4375061, abs=1e-7)
    assert wilson_bounds(0.0, 4, 2.0) == (0.0, 0.5)  # z²/(n + z²)
    assert wilson_bounds(1.0, 4, 2.0) == (0.5, 1.0)


def test_student_quantile_matches_closed_forms() -> None:
    assert student_quantile(0.95, 1) == pytest.approx(math.tan(0.475 * math.pi))
    assert student_quantile(0.95, 2) == pytest.approx(0.95 / math.sqrt(2 * 0.975 * 0.025))
    assert student_quantile(0.95, 9) == pytest.approx(2.262157, abs=1e-6)  # printed tables: 2.262
    assert student_quantile(0.95, 10**9) == pytest.approx(1.959964, abs=1e-6)
    with pytest.raises(ValueError, match="level"):
        student_quantile(1.0, 9)
    with pytest.raises(ValueError, match="freedom"):
        student_quantile(0.95, 0)


# Other means


def test_general_interval_by_hand() -> None:
    # mean 2.5, variance 1 (above), t = 12.706205 with one degree of freedom; population variance 1.25/4, deff 3.2
    interval = general_interval([1, 2, 3, 4], ["a", "a", "b", "b"])
    assert interval is not None
    assert interval.low == pytest.approx(2.5 - 12.706205, abs=1e-6)
    assert interval.high == pytest.approx(2.5 + 12.706205, abs=1e-6)
    assert interval.clusters == 2
    assert interval.deff == pytest.approx(3.2)


def test_general_interval_of_single_questions_is_the_one_sample_t_interval() -> None:
    # 10, 20, 30: mean 20, s = 10, se = 10/sqrt(3) = 5.773503, t = 4.302653: half 24.841377
    low, high = bounds(general_interval([10, 20, 30], single(3)))
    assert low == pytest.approx(-4.841377, abs=1e-5)
    assert high == pytest.approx(44.841377, abs=1e-5)


def test_general_interval_of_equal_values_has_no_width_and_no_design_effect() -> None:
    assert general_interval([0.1] * 3, single(3)) == Interval(0.1, 0.1, 3, None)


def test_general_interval_reports_a_design_effect_below_the_floor() -> None:
    interval = general_interval([1, 0, 1, 0], ["a", "a", "b", "b"])
    assert interval == Interval(0.5, 0.5, 2, 0.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_general_interval_refuses_what_is_not_finite(bad: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        general_interval([1.0, bad], ["a", "b"])


# Repeats


def test_nested_mean_weighs_states_not_trials() -> None:
    # state A: one retrieval, two answers, one of them judged twice: ((1 + 0)/2 + 1)/2 = 0.75; state B: 0.
    # Over states (0.75 + 0)/2 = 0.375, where the mean over the four verdicts would be 0.5.
    verdicts = [
        (("A", "r1", "a1", "v1"), 1.0),
        (("A", "r1", "a1", "v2"), 0.0),
        (("A", "r1", "a2", "v1"), 1.0),
        (("B", "r1", "a1", "v1"), 0.0),
    ]
    assert nested_mean(verdicts) == 0.375
    assert nested_mean(reversed(verdicts)) == 0.375


def test_nested_mean_of_one_level_is_the_mean() -> None:
    assert nested_mean([(("a",), 1.0), (("b",), 0.0), (("c",), 0.5)]) == 0.5
    assert nested_mean([(("i", "r", "a", "v"), 0.25)]) == 0.25


def test_nested_mean_takes_an_id_below_its_parent_only() -> None:
    # "1" under A and "1" under B are two retrievals: (1 + (0 + 0)/2)/2
    assert nested_mean([(("A", "1"), 1.0), (("B", "1"), 0.0), (("B", "2"), 0.0)]) == 0.5


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "no score"),
        ([(("a", "b"), 1.0), (("a",), 1.0)], r"of one length.*\[1, 2\]"),
        ([((), 1.0)], "of one length"),
        ([(("a", "b"), 1.0), (("a", "b"), 0.0)], "occurs twice"),
        ([(("a", "b"), math.nan)], "not a finite number"),
    ],
)
def test_nested_mean_refuses(paths: list[tuple[tuple[str, ...], float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nested_mean(paths)


# Percentiles


def test_percentile_is_linear_between_ranks() -> None:
    # n = 4: rank 3 · 0.5 = 1.5, halfway from 20 to 30; rank 3 · 0.95 = 2.85, 30 + 0.85 · 10
    assert percentile([40, 10, 30, 20], 50) == 25.0
    assert percentile([40, 10, 30, 20], 95) == pytest.approx(38.5)
    assert percentile([40, 10, 30, 20], 0) == 10.0
    assert percentile([40, 10, 30, 20], 100) == 40.0
    assert percentile([7], 95) == 7.0


def test_percentile_of_nothing_is_none() -> None:
    assert percentile([], 50) is None


def test_percentile_refuses_bad_input() -> None:
    for q in (-1, 100.5, math.nan):
        with pytest.raises(ValueError, match="percent"):
            percentile([1.0], q)
    with pytest.raises(ValueError, match="finite"):
        percentile([1.0, math.nan], 50)


# Properties

NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
CLUSTERED_SCORES = st.lists(st.tuples(st.floats(0, 1), NAMES), min_size=2, max_size=40)
CLUSTERED_VALUES = st.lists(st.tuples(st.floats(-1e6, 1e6), NAMES), min_size=2, max_size=40)


@given(CLUSTERED_SCORES)
def test_mean_interval_holds_the_mean_within_0_and_1(rows: list[tuple[float, str]]) -> None:
    scores, clusters = [score for score, _ in rows], [cluster for _, cluster in rows]
    interval = mean_interval(scores, clusters)
    if len(set(clusters)) < 2:
        assert interval is None
        return
    assert interval is not None
    assert interval.deff is not None
    assert 0.0 <= interval.low <= math.fsum(scores) / len(scores) <= interval.high <= 1.0
    assert interval.deff >= 0.2
    assert interval.clusters == len(set(clusters))


@given(CLUSTERED_SCORES, st.randoms(use_true_random=False))
def test_intervals_do_not_depend_on_order_or_names(rows: list[tuple[float, str]], rng: random.Random) -> None:
    shuffled = rng.sample(rows, len(rows))
    for interval in (mean_interval, general_interval):
        first = interval([score for score, _ in rows], [cluster for _, cluster in rows])
        second = interval([score for score, _ in shuffled], [f"conversation {cluster}" for _, cluster in shuffled])
        assert first == second  # to the last digit


@given(st.lists(st.tuples(st.booleans(), NAMES), min_size=2, max_size=40))
def test_mean_interval_of_wrong_answers_is_the_mirror_image(rows: list[tuple[bool, str]]) -> None:
    clusters = [cluster for _, cluster in rows]
    right = mean_interval([float(score) for score, _ in rows], clusters)
    wrong = mean_interval([float(not score) for score, _ in rows], clusters)
    if right is None or wrong is None:
        assert right is wrong
        return
    assert wrong.low == pytest.approx(1 - right.high, abs=1e-9)
    assert wrong.high == pytest.approx(1 - right.low, abs=1e-9)


@given(st.integers(2, 300), st.data())
def test_single_question_clusters_give_wilson_with_t_for_one_question_less(count: int, data: st.DataObject) -> None:
    right = data.draw(st.integers(1, count - 1))
    low, high = bounds(mean_interval(right_of(right, count), single(count)))
    t = student_quantile(0.95, count - 1)
    # deff = n/(n-1), so n_eff = n - 1; hence wider than Wilson with t at n, which is wider than plain Wilson.
    assert (low, high) == pytest.approx(wilson_bounds(right / count, count - 1, t), abs=1e-9)
    with_t = wilson_bounds(right / count, count, t)
    plain = wilson_bounds(right / count, count, 1.959964)
    assert low < with_t[0] < plain[0] < plain[1] < with_t[1] < high


@given(CLUSTERED_SCORES, st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_a_higher_level_never_gives_a_narrower_interval(
    rows: list[tuple[float, str]], first: float, second: float
) -> None:
    scores, clusters = [score for score, _ in rows], [cluster for _, cluster in rows]
    for interval in (mean_interval, general_interval):
        inner = interval(scores, clusters, min(first, second))
        outer = interval(scores, clusters, max(first, second))
        if inner is not None and outer is not None:
            assert outer.low <= inner.low + 1e-12
            assert inner.high <= outer.high + 1e-12


@given(CLUSTERED_VALUES, st.floats(0.1, 10), st.floats(-1e3, 1e3))
def test_general_interval_follows_a_change_of_unit(rows: list[tuple[float, str]], scale: float, shift: float) -> None:
    values, clusters = [value for value, _ in rows], [cluster for _, cluster in rows]
    interval = general_interval(values, clusters)
    changed = general_interval([scale * value + shift for value in values], clusters)
    if interval is None or changed is None:
        assert interval is changed
        return
    mean = math.fsum(values) / len(values)
    rounding = 1e-12 * abs(mean)
    assert interval.low - rounding <= mean <= interval.high + rounding
    assert changed.low == pytest.approx(scale * interval.low + shift, rel=1e-9, abs=1e-3)
    assert changed.high == pytest.approx(scale * interval.high + shift, rel=1e-9, abs=1e-3)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.data())
def test_nested_mean_of_a_balanced_design_is_the_plain_mean(
    states: int, retrievals: int, answers: int, data: st.DataObject
) -> None:
    paths = [
        (f"i{state}", f"r{retrieval}", f"a{answer}")
        for state in range(states)
        for retrieval in range(retrievals)
        for answer in range(answers)
    ]
    scores = data.draw(st.lists(st.floats(0, 1), min_size=len(paths), max_size=len(paths)))
    mean = nested_mean(zip(paths, scores, strict=True))
    assert mean == pytest.approx(math.fsum(scores) / len(scores), abs=1e-12)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_percentile_lies_within_the_values(values: list[float], q: float) -> None:
    result = percentile(values, q)
    assert result is not None
    assert min(values) <= result <= max(values)


# Cost


def test_importing_the_module_loads_neither_numpy_nor_scipy() -> None:
    assert statistics.__file__ is not None
    program = (
        "import runpy, sys; runpy.run_path(sys.argv[1]); "
        "sys.exit(', '.join({'numpy', 'scipy'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", program, statistics.__file__], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
