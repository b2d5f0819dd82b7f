"""How often intervals hold the truth, at the shapes of the benchmarks: 95 % is the promise, within 2 points.

Ten conversations of 81 to 199 questions are drawn 800 times: Beta(p·s, (1-p)·s) accuracies correlate two answers of
one conversation by 1/(s + 1), so s = 1/icc - 1. The error of such a coverage is sqrt(0.95 · 0.05 / 800) = 0.77 points.
Single questions need no draws: every count of right answers has its binomial chance.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from memtrials.metrics.statistics import (
    bootstrap_interval,
    mean_interval,
    stratified_interval,
    wilson_bounds,
)

CONVERSATIONS = [81, 123, 150, 152, 152, 156, 158, 178, 191, 199]
NAMES = [f"c{number}" for number, size in enumerate(CONVERSATIONS) for _ in range(size)]
DRAWS = 800


def draws(accuracy: float, icc: float) -> NDArray[np.int64]:
    """Right answers per conversation, (DRAWS, 10)."""
    rng = np.random.default_rng(round(1000 * accuracy) + round(1e6 * icc))
    shape = 1 / icc - 1 if icc else math.inf
    own = (
        rng.beta(accuracy * shape, (1 - accuracy) * shape, size=(DRAWS, len(CONVERSATIONS)))
        if icc
        else np.full((DRAWS, len(CONVERSATIONS)), accuracy)
    )
    return rng.binomial(CONVERSATIONS, own)


def answers(right: NDArray[np.int64]) -> list[float]:
    return [
        score
        for count, size in zip(right.tolist(), CONVERSATIONS, strict=True)
        for score in [1.0] * count + [0.0] * (size - count)
    ]


@pytest.mark.parametrize("icc", [0.0, 0.004, 0.011])
@pytest.mark.parametrize("accuracy", [0.10, 0.50, 0.84, 0.95])
def test_ten_conversations(accuracy: float, icc: float) -> None:
    covered = 0
    for right in draws(accuracy, icc):
        interval = mean_interval(answers(right), NAMES)
        assert interval is not None
        covered += interval.low <= accuracy <= interval.high
    assert covered / DRAWS == pytest.approx(0.95, abs=0.02)


def test_what_ignores_or_resamples_ten_conversations_covers_too_little() -> None:
    """Why there are clusters (plain Wilson: about 0.75) and why ten of them get no bootstrap (about 0.89)."""
    right = draws(0.84, 0.011)
    sizes = np.array(CONVERSATIONS)
    bounds = [wilson_bounds(count / sizes.sum(), float(sizes.sum()), 1.959964) for count in right.sum(axis=1).tolist()]
    assert np.mean([low <= 0.84 <= high for low, high in bounds]) == pytest.approx(0.75, abs=0.04)

    weights = np.random.default_rng(1).multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), size=1000)
    means = right @ weights.T / (weights @ sizes)
    low, high = np.quantile(means, [0.025, 0.975], axis=1)
    assert np.mean((low <= 0.84) & (high >= 0.84)) == pytest.approx(0.89, abs=0.02)
    assert bootstrap_interval(answers(right[0]), NAMES) is None


@pytest.mark.parametrize("count", [125, 500])
def test_single_questions(count: int) -> None:
    names = [f"q{number}" for number in range(count)]
    bounds = []
    for right in range(count + 1):
        interval = mean_interval([1.0] * right + [0.0] * (count - right), names)
        assert interval is not None
        bounds.append((interval.low, interval.high))
    for accuracy in (0.10, 0.25, 0.50, 0.75, 0.90, 0.95):
        chances = [
            math.comb(count, right) * accuracy**right * (1 - accuracy) ** (count - right) for right in range(count + 1)
        ]
        held = (low <= accuracy <= high for low, high in bounds)
        covered = math.fsum(chance for chance, yes in zip(chances, held, strict=True) if yes)
        assert covered == pytest.approx(0.95, abs=0.02)


def test_the_mean_over_six_types_of_500_questions() -> None:
    """Types of LongMemEval's sizes, each with an accuracy of its own."""
    sizes = [70, 30, 56, 133, 133, 78]
    own = [0.99, 0.87, 0.93, 0.80, 0.82, 0.95]
    truth = sum(own) / len(own)
    types = [f"t{number}" for number, size in enumerate(sizes) for _ in range(size)]
    names = [f"q{number}" for number in range(500)]
    rng = np.random.default_rng(7)
    covered = 0
    for drawn in rng.random((DRAWS, 500)) < np.repeat(own, sizes):
        interval = stratified_interval(drawn.astype(float).tolist(), names, types)
        assert interval is not None
        covered += interval.low <= truth <= interval.high
    assert covered / DRAWS == pytest.approx(0.95, abs=0.02)


def test_repeats_pooled_as_questions_cover_too_little() -> None:
    """n is the number of questions. Five trials of each that correlate by 0.57, taken for 5 n questions, have
    sqrt(1 + 4 · 0.57) = 1.81 times the error they claim, and 1.96 / 1.81 = 1.08 errors hold the truth in 72 %."""
    rng = np.random.default_rng(3)
    count, repeats, accuracy, shape = 125, 5, 0.6, 1 / 0.57 - 1
    own = rng.beta(accuracy * shape, (1 - accuracy) * shape, size=(DRAWS, count))
    scores = rng.binomial(repeats, own) / repeats
    pooled = [wilson_bounds(mean, count * repeats, 1.959964) for mean in scores.mean(axis=1).tolist()]
    assert np.mean([low <= accuracy <= high for low, high in pooled]) == pytest.approx(0.72, abs=0.03)
    names = [f"q{number}" for number in range(count)]
    intervals = [mean_interval(row, names) for row in scores.tolist()]
    assert np.mean([i is not None and i.low <= accuracy <= i.high for i in intervals]) == pytest.approx(0.95, abs=0.02)
