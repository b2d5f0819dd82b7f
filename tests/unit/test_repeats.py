"""Spread between runs and chances of k tries, against hand-computed and published values."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest

from memtrials.metrics.repeats import nested_variances, pass_at_k, pass_hat_k, pass_rates, run_spread

DYESTUFF = {
    "A": (1545, 1440, 1440, 1520, 1580),
    "B": (1540, 1555, 1490, 1560, 1495),
    "C": (1595, 1550, 1605, 1510, 1560),
    "D": (1445, 1440, 1595, 1465, 1545),
    "E": (1595, 1630, 1515, 1635, 1625),
    "F": (1520, 1455, 1450, 1480, 1445),
}
"""Yield of five preparations from each of six batches: Davies and Goldsmith (1972), Statistical Methods in Research and
Production, section 6.4: components of 2,451 within and 1,764 between batches."""


# Variance components


def test_components_of_the_dyestuff_batches() -> None:
    values = {(batch, str(n)): float(value) for batch, some in DYESTUFF.items() for n, value in enumerate(some)}
    between, within = nested_variances(values)
    assert within == pytest.approx(2451.25)
    assert between == pytest.approx(1764.05)


def test_unequal_numbers_by_hand() -> None:
    # a: 1, 3 (mean 2); b: 7, 7, 4 (mean 6); c: 5. N = 6, mean 4.5. Within: (2 + 6)/3 = 8/3.
    # Between: 2 · 2.5² + 3 · 1.5² + 0.5² = 19.5 = 8/3 · 2 + n0 · 2 · v, n0 · 2 = 6 - (4 + 9 + 1)/6 = 11/3.
    values = {("a", "1"): 1.0, ("a", "2"): 3.0, ("b", "1"): 7.0, ("b", "2"): 7.0, ("b", "3"): 4.0, ("c", "1"): 5.0}
    between, within = nested_variances(values)
    assert within == pytest.approx(8 / 3)
    assert between == pytest.approx((19.5 - 16 / 3) / (11 / 3))


def test_three_levels_by_hand() -> None:
    # Leaves ±1 about parents ±2 about grandparents 10, 30: innermost (8 · 1)/4 = 2. Middle mean square
    # 2 · 4 · 2²/2 = 16 = 2 + 2v, v = 7. Outer mean square 4 · 2 · 10²/1 = 800 = 2 + 2 · 7 + 4v, v = 196.
    values = {
        (str(top), str(middle), str(leaf)): top + middle + leaf
        for top in (10.0, 30.0)
        for middle in (-2.0, 2.0)
        for leaf in (-1.0, 1.0)
    }
    assert nested_variances(values) == pytest.approx([196.0, 7.0, 2.0])


def test_levels_that_were_not_repeated_are_unknown() -> None:
    assert nested_variances({("1", "1"): 4.0}) == [None, None]
    assert nested_variances({("1", "1"): 4.0, ("1", "2"): 6.0}) == [None, 2.0]
    assert nested_variances({("1", "1"): 4.0, ("2", "1"): 6.0}) == [2.0, None]
    # states 10 and 30 apart by verdicts ±1: the retrievals' noise is in the states' and theirs alone
    values = {(s, "1", "1", v): float(s) + float(v) for s in ("10", "30") for v in ("-1", "1")}
    assert nested_variances(values) == [pytest.approx((400 - 2) / 2), None, None, pytest.approx(2.0)]


def test_an_estimate_below_zero_is_zero() -> None:
    # equal means of scattered leaves: between would be (0 - 2)/2
    assert nested_variances({("a", "1"): 0.0, ("a", "2"): 2.0, ("b", "1"): 2.0, ("b", "2"): 0.0}) == [0.0, 2.0]


def test_components_are_found_again() -> None:
    """Drawn from known components with uneven numbers of children, the estimates average to them."""
    import numpy as np

    rng = np.random.default_rng(12)
    shape = [[2, 3, 1], [2], [4, 2, 2], [1, 3]]
    estimates = []
    for _ in range(800):
        values = {}
        for top, middles in enumerate(shape):
            own = rng.normal(0, 3)
            for middle, leaves in enumerate(middles):
                inner = own + rng.normal(0, 2)
                for leaf in range(leaves):
                    values[str(top), str(middle), str(leaf)] = inner + rng.normal(0, 1)
        estimates.append(nested_variances(values))
    top, middle, leaf = np.array(estimates, dtype=float).T
    assert leaf.mean() == pytest.approx(1.0, abs=0.05)
    assert middle.mean() == pytest.approx(4.0, abs=0.4)  # cut at zero in few draws
    assert np.median(top) < 9.0 < np.quantile(top, 0.75)
    assert top.mean() == pytest.approx(9.0, abs=1.2)


@pytest.mark.parametrize("values", [{}, {(): 1.0}, {("a",): 1.0, ("a", "b"): 1.0}])
def test_paths_must_be_of_one_length(values: dict[tuple[str, ...], float]) -> None:
    with pytest.raises(ValueError, match="one length"):
        nested_variances(values)


def test_values_must_be_finite() -> None:
    with pytest.raises(ValueError, match="finite"):
        nested_variances({("a",): math.nan})


# Runs


def test_spread_of_three_answers_is_the_sample_sd_of_the_headlines() -> None:
    answers = {"p": (1.0, 1.0, 0.0), "q": (0.0, 1.0, 0.0)}  # headlines 1/2, 1, 0
    spread = run_spread({q: {("1", "1", str(n), "1"): v for n, v in enumerate(vs)} for q, vs in answers.items()})
    assert spread is not None
    assert spread.sd == pytest.approx(statistics.stdev([0.5, 1.0, 0.0]))
    assert spread.variances == {"ingest": None, "retrieval": None, "reader": pytest.approx(0.25), "judge": None}
    assert (spread.runs, spread.n, spread.left_out) == (3, 2, 0)


def test_spread_of_states_and_verdicts_is_split() -> None:
    # One question: state 1 gives 1, 0; state 2 gives 0, 0. Judge: (1/2 + 0)/2 = 1/4; states: mean square
    # 2 · (1/4)² · 2 = 1/4 = 1/4 + 2v, so v = 0.
    paths = {("1", "1", "1", "1"): 1.0, ("1", "1", "1", "2"): 0.0, ("2", "1", "1", "1"): 0.0, ("2", "1", "1", "2"): 0.0}
    spread = run_spread({"q": paths})
    assert spread is not None
    assert spread.variances == {"ingest": pytest.approx(0.0), "retrieval": None, "reader": None, "judge": 0.25}
    assert spread.sd == pytest.approx(0.5)


def test_noise_that_questions_share_stays_in_the_spread() -> None:
    """Four questions that all fall with the second state: a spread of their own would be half as wide."""
    scores = {q: {("1", "1", "1", "1"): 1.0, ("2", "1", "1", "1"): 0.0} for q in "pqrs"}
    spread = run_spread(scores)
    assert spread is not None
    assert spread.sd == pytest.approx(math.sqrt(0.5))


def test_a_question_that_lacks_a_run_is_left_out() -> None:
    paths = [("1", "1", str(n), "1") for n in (1, 2)]
    scores = {"p": dict(zip(paths, (1.0, 0.0), strict=True)), "q": dict(zip(paths, (1.0, 1.0), strict=True))}
    alone = {**scores, "r": {paths[0]: 0.0}, "s": {**scores["q"], ("1", "1", "3", "1"): 0.0}}
    spread = run_spread(alone)
    assert spread is not None
    assert (spread.runs, spread.n, spread.left_out) == (2, 3, 1)
    assert spread.sd == pytest.approx(statistics.stdev([1.0, 2 / 3]))


def test_one_run_has_no_spread() -> None:
    spread = run_spread({"q": {("1", "1", "1", "1"): 1.0}})
    assert spread is not None
    assert (spread.sd, set(spread.variances.values()), spread.runs) == (None, {None}, 1)
    assert run_spread({}) is None
    assert run_spread({"q": {}}) is None
    with pytest.raises(ValueError, match="ingest, retrieval, reader, judge"):
        run_spread({"q": {("1", "1"): 1.0}})


# k tries


def test_pass_rates_of_3_in_5() -> None:
    # 1 - C(2,2)/C(5,2) = 0.9; C(3,2)/C(5,2) = 0.3
    assert pass_at_k(3, 5, 2) == pytest.approx(0.9)
    assert pass_hat_k(3, 5, 2) == pytest.approx(0.3)


@pytest.mark.parametrize(("right", "of", "k"), [(0, 4, 2), (1, 4, 2), (4, 4, 3), (2, 6, 1), (5, 7, 4)])
def test_pass_rates_are_shares_of_all_draws(right: int, of: int, k: int) -> None:
    draws = list(itertools.combinations([True] * right + [False] * (of - right), k))
    assert pass_at_k(right, of, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    assert pass_hat_k(right, of, k) == pytest.approx(sum(map(all, draws)) / len(draws))


def test_pass_rates_average_over_questions_with_enough_trials() -> None:
    rates = pass_rates([(3, 5), (2, 2), (1, 1), (0, 0)], 2)
    assert rates is not None
    assert (rates.at_k, rates.hat_k) == (pytest.approx((0.9 + 1) / 2), pytest.approx((0.3 + 1) / 2))
    assert (rates.k, rates.n, rates.left_out) == (2, 2, 2)
    assert pass_rates([(1, 1)], 2) is None
    assert pass_at_k(1, 1, 2) is None


def test_pass_rates_refuse_impossible_counts() -> None:
    with pytest.raises(ValueError, match="k must be 1 or more"):
        pass_at_k(1, 1, 0)
    with pytest.raises(ValueError, match="6 right of 5"):
        pass_rates([(6, 5)], 2)
    with pytest.raises(ValueError, match="-1 right of 5"):
        pass_hat_k(-1, 5, 2)
