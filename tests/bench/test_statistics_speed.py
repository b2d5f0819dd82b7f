"""Permutations and resamples over 10,000 trials, beside bare NumPy that does only what can't be left out."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.conftest import Report
from bench.measuring import settled
from memtrials.metrics import differences
from memtrials.metrics.differences import difference
from memtrials.metrics.statistics import RESAMPLES, bootstrap_interval

pytestmark = pytest.mark.bench

TRIALS = 10_000
NAMES = [f"q{number:05}" for number in range(TRIALS)]
LIMIT = 2.0
"""Seconds of processor time, of which a busy neighbour takes none."""


def seconds(action: Callable[[], object]) -> float:
    began = time.process_time()
    action()
    return time.process_time() - began


def check(report: Report, what: str, ours: Callable[[], object], bare: Callable[[], object] | None = None) -> None:
    taken = settled(lambda: seconds(ours), lambda found: found < LIMIT)
    beside = f", bare NumPy {seconds(bare):.2f} s" if bare else ""
    report(f"{what} over 10,000 trials", f"{taken:.2f} s{beside}", f"< {LIMIT:.0f} s")
    assert taken < LIMIT


def test_permutations(monkeypatch: pytest.MonkeyPatch, report: Report) -> None:
    """Judged answers with all 100,000 draws; changes that are all different, the costliest case, with 10,000."""
    rng = random.Random(1)
    clusters = {name: name for name in NAMES}
    a, b = ({name: float(rng.random() < share) for name in NAMES} for share in (0.9, 0.88))
    a[NAMES[0]] = 0.5  # no longer one trial each, so that the p is drawn too
    check(report, "100,000 permutations of verdicts", lambda: difference(a, b, clusters))

    monkeypatch.setattr(differences, "DRAWS", 10_000)
    c, d = ({name: rng.random() for name in NAMES} for _ in range(2))
    changes = np.array([c[name] - d[name] for name in NAMES])
    check(
        report,
        "10,000 permutations of numbers",
        lambda: difference(c, d, clusters),
        lambda: bare_permutations(changes, 10_000),
    )


def bare_permutations(changes: NDArray[np.float64], count: int) -> float:
    """A random sign for every trial of every permutation, a thousand permutations at a time."""
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(count // 1000):
        signs = 1.0 - 2.0 * rng.integers(2, size=(1000, len(changes)), dtype=np.int8)
        hits += int((abs(signs @ changes) >= abs(changes.sum())).sum())
    return (hits + 1) / (count + 1)


def test_resamples(report: Report) -> None:
    rng = random.Random(2)
    verdicts, numbers = [float(rng.random() < 0.9) for _ in NAMES], [rng.random() for _ in NAMES]
    check(report, "10,000 bootstrap resamples of verdicts", lambda: bootstrap_interval(verdicts, NAMES))

    array, generator = np.array(numbers), np.random.default_rng(1)
    check(
        report,
        "10,000 bootstrap resamples of numbers",
        lambda: bootstrap_interval(numbers, NAMES),
        lambda: [array[generator.integers(TRIALS, size=TRIALS)].mean() for _ in range(RESAMPLES)],
    )
