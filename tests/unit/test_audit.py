"""What people's labels of a sample say of all verdicts: hand-computed, and by drawing again and again."""

import random

import pytest

from memtrials.metrics import audit
from memtrials.metrics.audit import allocate, corrected, rogan_gladen, sensitivity, specificity, values
from memtrials.metrics.statistics import clustered_variance, student_quantile, wilson_bounds

ACCEPTED, REJECTED = 1.0, 0.0


Item = tuple[float, int]


def drawn(
    right_of_accepted: int, right_of_rejected: int, n: int = 10, sizes: tuple[int, int] = (400, 100)
) -> tuple[dict[Item, float], dict[Item, float], dict[Item, str]]:
    """Strata of two sizes, n audited in each, of which so many are right; every question is a cluster."""
    strata: dict[Item, float] = {}
    labels: dict[Item, float] = {}
    for verdict, size, right in ((ACCEPTED, sizes[0], right_of_accepted), (REJECTED, sizes[1], right_of_rejected)):
        for number in range(size):
            strata[verdict, number] = verdict
            if number < n:
                labels[verdict, number] = float(number < right)
    return strata, labels, {question: str(question) for question in strata}


def test_by_hand() -> None:
    """400 accepted, 9 of 10 right; 100 rejected, 2 of 10 right: 0.8 · 0.9 + 0.2 · 0.2 = 0.76 are right."""
    strata, labels, clusters = drawn(9, 2)
    assert corrected(strata, labels, clusters).estimate == pytest.approx(0.76)
    assert sensitivity(strata, labels, clusters, {ACCEPTED}).estimate == pytest.approx(0.72 / 0.76)
    assert specificity(strata, labels, clusters, {ACCEPTED}).estimate == pytest.approx(0.16 / 0.24)
    audited = (corrected(strata, labels, clusters), sensitivity(strata, labels, clusters, {ACCEPTED}))
    assert [rate.audited for rate in audited] == [20, 11]


def test_the_variance_is_that_of_both_stages() -> None:
    """Σ W² s²/n of the draw within strata, and Σ W (m - p)²/N of the strata's own sizes."""
    strata, labels, clusters = drawn(9, 2)
    within = 0.8**2 * (10 / 9 * 0.9 * 0.1) / 10 + 0.2**2 * (10 / 9 * 0.2 * 0.8) / 10
    between = (0.8 * (0.9 - 0.76) ** 2 + 0.2 * (0.2 - 0.76) ** 2) / 500
    found = clustered_variance(list(values(strata, labels).values()), [clusters[q] for q in strata])
    assert found == pytest.approx(500 / 499 * (within + between))


def test_a_census_is_the_share_itself() -> None:
    strata = {n: float(n % 2) for n in range(40)}
    labels = {n: float(n < 25) for n in range(40)}
    clusters = {n: str(n) for n in range(40)}
    assert corrected(strata, labels, clusters).headline == pytest.approx(25 / 40)


def test_unlike_draws_of_100_and_100_of_500() -> None:
    """Truth 0.80, Se 0.95, Sp 0.70. Weighted, the mean over draws is the truth; rates of the same sample without
    weights, put into Rogan and Gladen's formula, say 0.995."""
    rng = random.Random(11)
    estimates, covered, naive = [], 0, []
    for _ in range(300):
        truth = {n: float(rng.random() < 0.80) for n in range(500)}
        strata = {n: float(rng.random() < (0.95 if right else 0.30)) for n, right in truth.items()}
        labels = {}
        for verdict in (ACCEPTED, REJECTED):
            members = [n for n in strata if strata[n] == verdict]
            labels |= {n: truth[n] for n in rng.sample(members, min(100, len(members)))}
        found = corrected(strata, labels, {n: str(n) for n in strata})
        assert found.estimate is not None
        assert found.interval is not None
        estimates.append(found.estimate)
        covered += found.interval[0] <= 0.80 <= found.interval[1]
        right = [strata[n] for n, label in labels.items() if label]
        wrong = [1 - strata[n] for n, label in labels.items() if not label]
        apparent, se, sp = sum(strata.values()) / 500, sum(right) / len(right), sum(wrong) / len(wrong)
        naive.append((apparent + sp - 1) / (se + sp - 1))
    assert sum(estimates) / 300 == pytest.approx(0.80, abs=0.01)
    assert sum(naive) / 300 == pytest.approx(0.995, abs=0.01)
    assert 0.92 <= covered / 300 <= 0.98


def test_labels_that_are_all_alike_leave_room_for_others() -> None:
    strata, labels, clusters = drawn(30, 0, n=30)
    found = corrected(strata, labels, clusters)
    assert found.estimate == pytest.approx(0.8)
    assert found.interval is not None
    assert found.interval[1] - found.interval[0] > 0.07


@pytest.mark.parametrize(("right", "audited"), [(0, 0), (2, 2), (10, 10)])
def test_a_judge_that_accepts_nothing_has_rates_that_no_label_changes(right: int, audited: int) -> None:
    """It accepts no right answer and rejects every wrong one; how far that is to be trusted the audited items say."""
    strata = {(REJECTED, n): REJECTED for n in range(50)}
    labels = {(REJECTED, n): float(n < right) for n in range(10)}
    clusters = {question: str(question) for question in strata}
    found = sensitivity(strata, labels, clusters, {ACCEPTED})
    assert (found.estimate, found.audited) == (0.0 if right else None, audited)
    quantile = student_quantile(0.95, 49)
    if right:
        assert found.interval == pytest.approx(wilson_bounds(0.0, audited, quantile))
    other = specificity(strata, labels, clusters, {ACCEPTED})
    assert other.estimate == (1.0 if right < 10 else None)
    if right < 10:
        assert other.interval == pytest.approx(wilson_bounds(1.0, 10 - right, quantile))
    assert corrected(strata, labels, clusters).interval is not None


def test_a_judge_that_accepts_everything_mirrors_it() -> None:
    strata = {(ACCEPTED, n): ACCEPTED for n in range(50)}
    labels = {(ACCEPTED, n): float(n < 8) for n in range(10)}
    clusters = {question: str(question) for question in strata}
    quantile = student_quantile(0.95, 49)
    right, wrong = (rate(strata, labels, clusters, {ACCEPTED}) for rate in (sensitivity, specificity))
    assert (right.estimate, wrong.estimate) == (1.0, 0.0)
    assert right.interval == pytest.approx(wilson_bounds(1.0, 8, quantile))
    assert wrong.interval == pytest.approx(wilson_bounds(0.0, 2, quantile))


def test_questions_of_one_history_are_not_independent() -> None:
    """The same labels, by question and in five histories, of which three are right throughout."""
    strata = {n: float(n % 5 != 0) for n in range(500)}
    labels = {n: float(n // 100 < 3) for n in range(500)}
    single = corrected(strata, labels, {n: str(n) for n in range(500)})
    grouped = corrected(strata, labels, {n: str(n // 100) for n in range(500)})
    assert single.estimate == grouped.estimate == pytest.approx(0.6)
    assert single.interval is not None
    assert grouped.interval is not None
    assert grouped.interval[1] - grouped.interval[0] > 5 * (single.interval[1] - single.interval[0])


def test_a_rate_of_few_items_has_no_headline() -> None:
    strata, labels, clusters = drawn(14, 1, n=15)
    assert corrected(strata, labels, clusters).headline is not None
    wrong = specificity(strata, labels, clusters, {ACCEPTED})
    assert (wrong.audited, wrong.headline) == (15, None)
    assert wrong.estimate is not None


def test_a_rate_without_items_has_no_value() -> None:
    strata, labels, clusters = drawn(10, 10)
    assert specificity(strata, labels, clusters, {ACCEPTED}) == audit.Rate(None, None, 0)


def test_what_cannot_be_estimated() -> None:
    with pytest.raises(ValueError, match="0 of 100 audited"):
        values(drawn(5, 0)[0], {(ACCEPTED, 1): 1.0, (ACCEPTED, 2): 1.0})
    with pytest.raises(ValueError, match="1 of 2 audited"):
        values({"a": 1.0, "b": 1.0}, {"a": 1.0})
    with pytest.raises(ValueError, match="in no stratum"):
        values({"a": 1.0}, {"b": 1.0})
    assert values({"a": 1.0}, {"a": 1.0}) == {"a": 1.0}


def test_rogan_and_gladen() -> None:
    """(0.82 + 0.70 - 1) / (0.95 + 0.70 - 1) = 0.52 / 0.65."""
    assert rogan_gladen(0.82, 0.95, 0.70) == pytest.approx(0.8)
    assert rogan_gladen(0.1, 0.9, 0.8) == 0.0
    assert rogan_gladen(0.5, 0.5, 0.5) is None
    assert rogan_gladen(0.5, 0.3, 0.6) is None


def test_how_items_are_shared_out() -> None:
    assert allocate([410, 90], 200) == [110, 90]
    assert allocate([50, 50, 1], 9) == [4, 4, 1]
    assert allocate([3, 4], 100) == [3, 4]
    with pytest.raises(ValueError, match="too few for 2 strata: 4 are needed"):
        allocate([5, 5], 3)
