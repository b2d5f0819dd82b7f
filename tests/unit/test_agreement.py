"""Agreement of judges, against published values and numbers a reader can check by hand."""

import math
import random
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtrials.metrics.agreement import (
    Band,
    Flip,
    Majority,
    cohens_kappa,
    flips,
    krippendorffs_alpha,
    majority,
    raw_agreement,
    score_band,
)


def column(text: str) -> dict[str, float]:
    """One rater's scores by item u1, u2, …; a dot is a missing one, a letter stands for its place in the alphabet."""
    cells = enumerate(text.split(), start=1)
    return {f"u{n}": float(int(cell, 36)) for n, cell in cells if cell != "."}


def table(text: str) -> dict[str, dict[str, float]]:
    """Scores by item, by judge, from one row per item and one column per judge; `-` is a missing one."""
    header, *rows = (line.split() for line in text.strip().splitlines())
    found: dict[str, dict[str, float]] = {judge: {} for judge in header[1:]}
    for item, *cells in rows:
        for judge, cell in zip(header[1:], cells, strict=True):
            if cell != "-":
                found[judge][item] = float(cell)
    return found


# Krippendorff's published examples


def test_alpha_of_the_published_nominal_data_with_missing_values() -> None:
    """Krippendorff (2011), section C: 4 observers, 12 units, nominal alpha 0.743.

    Unit 12 has one rating and is left out, so 40 of 41 ratings pair; the values 1 to 5 occur 9, 13, 10, 5 and 3 times,
    n² - Σ n_c² = 1600 - 384 = 1216. Unlike ordered pairs over m - 1: unit 2 (2 2 3 2) 6/3, unit 6 (1 2 3 4) 12/3, unit
    8 (1 1 2 1) 6/3; together 8. alpha = 1 - 39 · 8/1216 = 904/1216.
    """
    observers = [
        column("1 2 3 3 2 1 4 1 2 . . ."),
        column("1 2 3 3 2 2 4 1 2 5 . 3"),
        column(". 3 3 3 2 3 4 2 2 5 1 ."),
        column("1 2 3 3 2 4 4 1 2 5 1 ."),
    ]
    alpha = krippendorffs_alpha(observers)
    assert alpha == pytest.approx(904 / 1216)
    assert alpha == pytest.approx(0.743, abs=0.0005)


def test_alpha_of_the_published_binary_data() -> None:
    """Section A: 2 observers, 10 units, alpha 0.095. 4 unlike units, 14 zeros and 6 ones: 1 - 19 · 8/(2 · 14 · 6)."""
    meg = column("0 1 0 0 0 0 0 0 1 0")
    owen = column("1 1 1 0 0 1 0 0 0 0")
    alpha = krippendorffs_alpha([meg, owen])
    assert alpha == pytest.approx(1 - 152 / 168)
    assert alpha == pytest.approx(0.095, abs=0.0005)


def test_alpha_of_the_published_nominal_data_of_two_observers() -> None:
    """Section B: 12 units, alpha 0.692. 3 unlike units; a to e occur 4, 6, 6, 6 and 2 times: 1 - 23 · 6/(576 - 128)."""
    ben = column("a a b b d c c c e d d a")
    gerry = column("b a b b b c c c e d d d")
    alpha = krippendorffs_alpha([ben, gerry])
    assert alpha == pytest.approx(1 - 138 / 448)
    assert alpha == pytest.approx(0.692, abs=0.0005)


@pytest.mark.parametrize(
    "ratings",
    [
        [],
        [{}],
        [{"q1": 1.0, "q2": 0.0}],
        [{"q1": 1.0}, {"q2": 0.0}],
        [{"q1": 1.0, "q2": 1.0}, {"q1": 1.0, "q2": 1.0}],
        [{"q1": 1.0, "q2": 0.0}, {"q1": 1.0}],
    ],
    ids=["no rater", "no rating", "one rater", "no common item", "no variation", "variation only in what is left out"],
)
def test_alpha_has_no_value(ratings: list[dict[str, float]]) -> None:
    assert krippendorffs_alpha(ratings) is None


def test_alpha_of_two_raters_who_always_differ_is_below_chance() -> None:
    """Two items, 4 unlike ordered pairs, two of each score: 1 - 3 · 4/(16 - 8)."""
    assert krippendorffs_alpha([{"q1": 1.0, "q2": 0.0}, {"q1": 0.0, "q2": 1.0}]) == -0.5


# Two raters


def crossed(both_right: int, only_a: int, only_b: int, both_wrong: int) -> tuple[dict[str, float], dict[str, float]]:
    """Two raters with so many items in each cell of their cross table."""
    cells = [(1.0, 1.0)] * both_right + [(1.0, 0.0)] * only_a + [(0.0, 1.0)] * only_b + [(0.0, 0.0)] * both_wrong
    return {f"q{n}": x for n, (x, _) in enumerate(cells)}, {f"q{n}": y for n, (_, y) in enumerate(cells)}


@pytest.mark.parametrize(
    ("cells", "raw", "kappa"),
    [
        ((20, 5, 10, 15), 0.7, 0.4),  # p_e = 0.5 · 0.6 + 0.5 · 0.4 = 0.5
        ((45, 15, 25, 15), 0.6, 0.06 / 0.46),  # p_e = 0.6 · 0.7 + 0.4 · 0.3 = 0.54
        ((25, 35, 5, 35), 0.6, 0.14 / 0.54),  # the same raw agreement, p_e = 0.6 · 0.3 + 0.4 · 0.7 = 0.46
        ((90, 5, 5, 0), 0.9, -0.005 / 0.095),  # p_e = 0.95² + 0.05² = 0.905: nine in ten agree, by chance alone
        ((0, 1, 1, 0), 0.0, -1.0),  # p_e = 0.5
        ((2, 0, 0, 2), 1.0, 1.0),
        ((3, 1, 0, 0), 0.75, 0.0),  # b accepts everything: p_e = p_o = 0.75
    ],
    ids=str,
)
def test_raw_agreement_and_kappa(cells: tuple[int, int, int, int], raw: float, kappa: float) -> None:
    a, b = crossed(*cells)
    assert raw_agreement(a, b) == pytest.approx(raw)
    assert cohens_kappa(a, b) == pytest.approx(kappa)


def test_only_items_both_scored_count() -> None:
    a = {"q1": 1.0, "q2": 0.0, "q3": 1.0, "only a": 1.0}
    b = {"q1": 1.0, "q2": 0.0, "q3": 0.0, "only b": 0.0}
    assert raw_agreement(a, b) == pytest.approx(2 / 3)
    assert cohens_kappa(a, b) == pytest.approx((2 / 3 - 4 / 9) / (1 - 4 / 9))  # p_e = 2/3 · 1/3 + 1/3 · 2/3


@pytest.mark.parametrize("measure", [raw_agreement, cohens_kappa])
def test_nothing_in_common_has_no_value(
    measure: Callable[[Mapping[str, float], Mapping[str, float]], float | None],
) -> None:
    assert measure({}, {}) is None
    assert measure({"q1": 1.0}, {"q2": 1.0}) is None


def test_kappa_has_no_value_where_chance_alone_agrees() -> None:
    assert cohens_kappa({"q1": 1.0, "q2": 1.0}, {"q1": 1.0, "q2": 1.0}) is None
    assert cohens_kappa({"q1": 1.0, "q2": 1.0}, {"q1": 0.0, "q2": 0.0}) == 0.0  # p_e and p_o are 0


# A panel

PANEL = table("""
item  strict fair lenient
q1    1      1    1
q2    0      0    0
q3    0      1    1
q4    0      0    1
q5    1      1    -
q6    -      1    0
q7    -      -    1
""")
"""Three judges, 7 answers. All three scored q1 to q4; two scored q5 and q6; q7 has a single verdict."""


def test_alpha_of_a_panel() -> None:
    """q7 is left out. 16 ratings pair: 9 ones (3 + 0 + 2 + 1 + 2 + 1), 7 zeros; n² - Σ n_c² = 256 - 130 = 126.

    Unlike ordered pairs over m - 1: q3 4/2, q4 4/2, q6 2/1; together 6. alpha = 1 - 15 · 6/126 = 2/7.
    """
    assert krippendorffs_alpha(list(PANEL.values())) == pytest.approx(2 / 7)


def test_pairs_of_a_panel() -> None:
    """strict and fair share q1 to q5 and differ on q3; shares of ones 2/5 and 3/5, p_e = 6/25 + 6/25."""
    assert raw_agreement(PANEL["strict"], PANEL["fair"]) == 0.8
    assert cohens_kappa(PANEL["strict"], PANEL["fair"]) == pytest.approx((0.8 - 0.48) / 0.52)


def test_band_of_a_panel() -> None:
    """Over q1 to q4 alone. Over all they scored strict would have 2/5, fair 4/6 and lenient 4/6."""
    means = {"strict": 0.25, "fair": 0.5, "lenient": 0.75}
    assert score_band(PANEL) == Band(low=0.25, high=0.75, means=means, n=4, left_out=3)


def test_flips_of_a_panel() -> None:
    assert flips(PANEL) == [
        Flip("q3", {"strict": 0.0, "fair": 1.0, "lenient": 1.0}),
        Flip("q4", {"strict": 0.0, "fair": 0.0, "lenient": 1.0}),
        Flip("q6", {"fair": 1.0, "lenient": 0.0}),
    ]


def test_majority_of_a_panel() -> None:
    """q6 is a tie; q7's single verdict is its own majority."""
    assert majority(PANEL) == Majority({"q1": 1.0, "q2": 0.0, "q3": 1.0, "q4": 0.0, "q5": 1.0, "q7": 1.0}, ties=1)


def test_a_plurality_is_no_majority() -> None:
    """Means over repeats can be three unlike scores: 2 of 4 is half."""
    scores = {"a": {"q": 0.5}, "b": {"q": 0.5}, "c": {"q": 0.0}, "d": {"q": 1.0}}
    assert majority(scores) == Majority({}, ties=1)
    assert majority({**scores, "e": {"q": 0.5}}) == Majority({"q": 0.5}, ties=0)


def test_no_band_without_an_item_that_all_scored() -> None:
    assert score_band({}) is None
    assert score_band({"a": {}}) is None
    assert score_band({"a": {"q1": 1.0}, "b": {"q2": 1.0}}) is None
    assert score_band({"a": {"q1": 1.0}, "b": {"q1": 1.0}, "failed": {}}) is None


def test_one_judge_is_a_band_without_width() -> None:
    assert score_band({"a": {"q1": 1.0, "q2": 0.0}}) == Band(0.5, 0.5, {"a": 0.5}, n=2, left_out=0)


def test_nothing_judged_is_neither_flip_nor_majority() -> None:
    assert flips({}) == flips({"a": {}}) == []
    assert majority({}) == majority({"a": {}}) == Majority({}, ties=0)


@pytest.mark.parametrize("score", [math.nan, math.inf])
def test_a_score_that_is_no_number_is_refused(score: float) -> None:
    fine, bad = {"q1": 1.0}, {"q1": score}
    calls: list[Callable[[], object]] = [
        lambda: raw_agreement(fine, bad),
        lambda: cohens_kappa(bad, fine),
        lambda: krippendorffs_alpha([fine, bad]),
        lambda: score_band({"a": fine, "b": bad}),
        lambda: flips({"a": fine, "b": bad}),
        lambda: majority({"a": fine, "b": bad}),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="score of q1 is not a finite number"):
            call()


# What holds for any verdicts

ITEMS = st.sampled_from([f"q{n}" for n in range(8)])
SCORES = st.sampled_from([0.0, 1.0]) | st.sampled_from([0.0, 0.25, 0.5, 1.0])
RATINGS = st.dictionaries(ITEMS, SCORES)
PANELS = st.dictionaries(st.sampled_from("abcde"), RATINGS)


def coincidence_alpha(ratings: list[dict[str, float]]) -> float | None:
    """Alpha straight from the definition: the coincidence matrix, cell by cell."""
    matrix: dict[tuple[float, float], float] = {}
    for item in {item for scores in ratings for item in scores}:
        given_scores = [scores[item] for scores in ratings if item in scores]
        for i, c in enumerate(given_scores):
            for j, k in enumerate(given_scores):
                if i != j:
                    matrix[c, k] = matrix.get((c, k), 0.0) + 1 / (len(given_scores) - 1)
    values = {c for c, _ in matrix}
    totals = {c: sum(matrix.get((c, k), 0.0) for k in values) for c in values}
    n = sum(totals.values())
    observed = sum(count for (c, k), count in matrix.items() if c != k) / n if n else 0.0
    expected = sum(totals[c] * totals[k] for c in values for k in values if c != k) / (n * (n - 1)) if n else 0.0
    return 1 - observed / expected if expected else None


@given(st.lists(RATINGS, max_size=5))
def test_alpha_is_that_of_the_coincidence_matrix(ratings: list[dict[str, float]]) -> None:
    expected = coincidence_alpha(ratings)
    alpha = krippendorffs_alpha(ratings)
    assert alpha == (None if expected is None else pytest.approx(expected))
    assert alpha is None or -1.0 <= alpha <= 1.0


@given(RATINGS, RATINGS)
def test_two_raters_are_symmetric(a: dict[str, float], b: dict[str, float]) -> None:
    assert raw_agreement(a, b) == raw_agreement(b, a)
    assert cohens_kappa(a, b) == cohens_kappa(b, a)
    assert krippendorffs_alpha([a, b]) == krippendorffs_alpha([b, a])


@given(PANELS, st.randoms(use_true_random=False))
def test_order_changes_nothing(panel: dict[str, dict[str, float]], source: random.Random) -> None:
    judges = source.sample(sorted(panel), len(panel))
    mixed = {judge: dict(source.sample(sorted(panel[judge].items()), len(panel[judge]))) for judge in judges}
    assert krippendorffs_alpha(list(mixed.values())) == krippendorffs_alpha(list(panel.values()))
    assert score_band(mixed) == score_band(panel)
    assert flips(mixed) == flips(panel)
    assert list(majority(mixed).scores.items()) == list(majority(panel).scores.items())
    assert majority(mixed).ties == majority(panel).ties


@given(PANELS, st.permutations([0.0, 0.25, 0.5, 1.0]))
def test_the_names_of_scores_dont_matter(panel: dict[str, dict[str, float]], names: list[float]) -> None:
    """Nominal: whichever score is called which, judges agree as much."""
    called = dict(zip([0.0, 0.25, 0.5, 1.0], names, strict=True))
    renamed = {judge: {item: called[score] for item, score in scores.items()} for judge, scores in panel.items()}
    assert krippendorffs_alpha(list(renamed.values())) == krippendorffs_alpha(list(panel.values()))
    assert [flip.item for flip in flips(renamed)] == [flip.item for flip in flips(panel)]
    assert majority(renamed).scores.keys() == majority(panel).scores.keys()


@given(RATINGS.filter(lambda scores: len(set(scores.values())) > 1), st.integers(2, 5))
def test_identical_ratings_that_vary_agree_perfectly(scores: dict[str, float], raters: int) -> None:
    assert krippendorffs_alpha([dict(scores) for _ in range(raters)]) == 1.0
    assert cohens_kappa(scores, dict(scores)) == 1.0
    assert raw_agreement(scores, dict(scores)) == 1.0


@given(RATINGS, RATINGS)
def test_alpha_of_two_raters_is_scotts_pi_for_a_finite_sample(a: dict[str, float], b: dict[str, float]) -> None:
    """1 - alpha = (1 - pi) · (1 - 1/n), n the 2N ratings that pair; pi takes p_e from both raters' pooled shares."""
    alpha = krippendorffs_alpha([a, b])
    raw = raw_agreement(a, b)
    pooled = [scores[item] for item in a.keys() & b.keys() for scores in (a, b)]
    if alpha is None or raw is None:
        assert len(set(pooled)) < 2
        return
    p_e = sum((pooled.count(score) / len(pooled)) ** 2 for score in set(pooled))
    pi = (raw - p_e) / (1 - p_e)
    assert 1 - alpha == pytest.approx((1 - pi) * (1 - 1 / len(pooled)))


@given(PANELS)
def test_a_panel_is_told_in_parts_that_sum_up(panel: dict[str, dict[str, float]]) -> None:
    items = {item for scores in panel.values() for item in scores}
    view = majority(panel)
    assert len(view.scores) + view.ties == len(items)
    band = score_band(panel)
    if band is not None:
        assert band.n + band.left_out == len(items)
        assert band.low == min(band.means.values()) <= max(band.means.values()) == band.high
        assert band.means.keys() == panel.keys()
    same = items - {flip.item for flip in flips(panel)}
    assert same <= view.scores.keys()
