"""From scores to one number: what is missing decides whether it is a number, a lower bound, or partial."""

from collections.abc import Mapping

import pytest

from memtrials.metrics.accuracy import Score, interval, share

TEN = {f"q{n}": f"cluster {n}" for n in range(10)}
"""Ten questions, each a cluster of its own."""


def scored(right: int, wrong: int) -> dict[str, float]:
    """The first questions right, the next wrong, the rest without a score."""
    return {f"q{n}": 1.0 if n < right else 0.0 for n in range(right + wrong)}


def score(right: int, wrong: int, *causes: str | None, clusters: Mapping[str, str] = TEN) -> Score:
    """The share of `clusters`; causes: why each of the questions after the scored ones has no score."""
    missing = {f"q{right + wrong + n}": cause for n, cause in enumerate(causes)}
    found = share(scored(right, wrong), clusters, missing)
    assert found is not None
    return found


def test_everything_scored_is_complete():
    found = score(7, 3)
    assert (found.status, found.headline, found.score) == ("complete", 0.7, 0.7)
    assert (found.n, found.of, found.coverage) == (10, 10, 1.0)
    assert (found.low, found.high, found.missing) == (0.7, 0.7, {})


@pytest.mark.parametrize("causes", [("system",), ("reader",), ("system", "reader", "reader")], ids=str)
def test_failures_of_system_or_reader_leave_the_lower_bound(causes: tuple[str, ...]):
    """6 right of 10: the missing ones count as wrong in the headline and as right in the upper bound."""
    found = score(6, 4 - len(causes), *causes)
    n = 10 - len(causes)
    assert (found.status, found.headline) == ("lower bound", 0.6)
    assert found.score == pytest.approx(6 / n)
    assert (found.low, found.high) == (0.6, pytest.approx(0.6 + len(causes) / 10))
    assert (found.n, found.coverage) == (n, n / 10)
    assert sum(found.missing.values()) == len(causes)


@pytest.mark.parametrize(
    ("causes", "missing"),
    [
        (("service",), {"service": 1}),
        ((None,), {"none": 1}),
        (("system", "service"), {"system": 1, "service": 1}),
        (("reader", None, None), {"reader": 1, "none": 2}),
    ],
    ids=str,
)
def test_a_failed_service_or_work_left_gives_no_headline(causes: tuple[str | None, ...], missing: dict[str, int]):
    found = score(6, 4 - len(causes), *causes)
    assert (found.status, found.headline) == ("partial", None)
    assert found.score == pytest.approx(6 / (10 - len(causes)))
    assert (found.low, found.high) == (0.6, pytest.approx(0.6 + len(causes) / 10))
    assert found.missing == missing


def test_a_question_of_which_nothing_is_said_is_work_left():
    found = share({}, TEN, {})
    assert found is not None
    assert (found.status, found.headline, found.score, found.missing) == ("partial", None, None, {"none": 10})
    assert (found.n, found.coverage, found.low, found.high, found.interval) == (0, 0.0, 0.0, 1.0, None)


def test_only_failures_of_the_system_are_a_zero_with_bounds():
    found = score(0, 0, *["system"] * 10)
    assert (found.status, found.headline, found.score) == ("lower bound", 0.0, None)
    assert (found.n, found.low, found.high) == (0, 0.0, 1.0)
    assert found.interval is not None


def test_no_questions_is_no_number():
    assert share({}, {}, {}) is None


def test_scores_between_zero_and_one_are_means_of_repeats():
    found = share({"a": 0.5, "b": 1.0}, {"a": "1", "b": "2", "c": "3"}, {"c": "reader"})
    assert found is not None
    assert (found.headline, found.score, found.low) == (0.5, 0.75, 0.5)
    assert found.high == pytest.approx(2.5 / 3)


# Intervals


def test_a_complete_number_has_its_published_interval():
    """18 of 125 single questions: 9 to 22 per cent."""
    found = share({str(n): float(n < 18) for n in range(125)}, {str(n): str(n) for n in range(125)}, {})
    assert found is not None
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == (pytest.approx(0.093, abs=5e-4), pytest.approx(0.217, abs=5e-4))
    assert found.interval.clusters == 125


def test_a_lower_bound_has_the_interval_of_its_headline():
    assert score(6, 2, "reader", "system").interval == score(6, 4).interval


def test_a_partial_result_has_the_interval_of_what_is_scored():
    eight = {q: c for q, c in TEN.items() if q < "q8"}
    assert score(6, 2, "service", None).interval == score(6, 2, clusters=eight).interval


def test_questions_of_one_cluster_are_not_independent():
    pairs = {f"q{n}": f"cluster {n // 2}" for n in range(10)}
    single, paired = score(6, 4), score(6, 4, clusters=pairs)
    assert single.headline == paired.headline
    assert single.interval is not None
    assert paired.interval is not None
    assert (single.interval.clusters, paired.interval.clusters) == (10, 5)
    assert paired.interval.high - paired.interval.low > single.interval.high - single.interval.low


def test_one_cluster_has_no_interval():
    assert interval({"a": 1.0, "b": 0.0}, {"a": "one", "b": "one"}) is None
    assert interval({"a": 1.0}, {"a": "one", "b": "two"}) is None
    assert score(7, 3, clusters=dict.fromkeys(TEN, "one")).interval is None
