"""How far judges agree: several judges, or several repeats of one, on the same items.

A rater's verdicts are a mapping from item (the id of what was judged) to score. A missing verdict is not in the mapping
and counts neither for nor against: two raters are compared on the items both scored, and every judge of a band on the
items all scored. Two scores agree when they are equal; a near miss is a miss, as between 0 and 1.

Counts stay whole numbers until the last division and sums are `math.fsum`, so neither the order of the items nor that
of the judges changes a digit. Every function raises ValueError for a score it uses that is not a finite number.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


def raw_agreement(a: Mapping[str, float], b: Mapping[str, float]) -> float | None:
    """The share of the items both scored on which the two scores are equal; None without a common item.

    Not corrected for chance: two judges who accept 95 of 100 answers blindly agree on about 90.
    """
    pairs = _pairs(a, b)
    return sum(x == y for x, y in pairs) / len(pairs) if pairs else None


def cohens_kappa(a: Mapping[str, float], b: Mapping[str, float]) -> float | None:
    """Agreement of two raters beyond what their own shares of each score give by chance: (p_o - p_e) / (1 - p_e).

    Over the items both scored. None without a common item, or where p_e is 1: both gave one and the same score
    throughout, and whether they would agree on anything else can't be known.
    Source: Cohen (1960), Educational and Psychological Measurement 20:37.
    """
    pairs = _pairs(a, b)
    n = len(pairs)
    of_a, of_b = Counter(x for x, _ in pairs), Counter(y for _, y in pairs)
    equal = sum(x == y for x, y in pairs)
    by_chance = sum(count * of_b[score] for score, count in of_a.items())  # p_e · n²
    return (n * equal - by_chance) / (n * n - by_chance) if n * n > by_chance else None


def krippendorffs_alpha(ratings: Sequence[Mapping[str, float]]) -> float | None:
    """Krippendorff's alpha for nominal data: 1 - D_o / D_e, for any number of raters and any missing verdicts.

    ratings: one mapping per rater. An item with fewer than 2 ratings has nothing to be paired with and is left out, so
    its score doesn't count towards chance either. 1 is perfect agreement, 0 is chance, below 0 is systematic
    disagreement. None when no item has 2 ratings, or when all ratings that pair are equal (D_e is 0).

    In the coincidence matrix an item with m ratings adds 1/(m-1) for every ordered pair of them; n is its total (the
    ratings that pair), n_c the total of row c and "off" the sum off its diagonal. Then
    alpha = 1 - (n-1) · off / (n² - Σ n_c²).
    Source: Krippendorff (2011), Computing Krippendorff's Alpha-Reliability, section C,
    https://repository.upenn.edu/asc_papers/43.
    """
    totals: Counter[float] = Counter()
    unlike: Counter[int] = Counter()  # number of ratings m -> ordered pairs of unlike ratings in items that have m
    for scores in _by_item(ratings).values():
        if (m := len(scores)) >= 2:
            counts = Counter(scores)
            totals.update(counts)
            unlike[m] += m * m - sum(count * count for count in counts.values())
    n = totals.total()
    chance = n * n - sum(count * count for count in totals.values())
    if chance == 0:
        return None
    off = math.fsum(pairs / (m - 1) for m, pairs in unlike.items())
    return 1.0 - (n - 1) * off / chance


@dataclass(frozen=True)
class Band:
    """Lowest to highest mean score that the judges of a panel give the same items.

    means: by judge, all over the same n items. left_out: items that some judges scored and others didn't.
    """

    low: float
    high: float
    means: Mapping[str, float]
    n: int
    left_out: int


def score_band(ratings: Mapping[str, Mapping[str, float]]) -> Band | None:
    """Each judge's mean over the items that all judges scored; None when there is no such item.

    ratings: scores by item, by judge. Judges who failed on unlike items would differ without disagreeing, so an item
    that one of them didn't score counts for none. A judge that scored nothing leaves no band: name only those that ran.
    """
    items = [set(scores) for scores in ratings.values()]
    shared = set.intersection(*items) if items else set()
    if not shared:
        return None
    means = {
        judge: math.fsum(_finite(scores[item], item) for item in shared) / len(shared)
        for judge, scores in ratings.items()
    }
    return Band(min(means.values()), max(means.values()), means, len(shared), len(set.union(*items)) - len(shared))


@dataclass(frozen=True)
class Flip:
    """An item on which judges differ, with the score of every judge that scored it."""

    item: str
    scores: Mapping[str, float]


def flips(ratings: Mapping[str, Mapping[str, float]]) -> list[Flip]:
    """The items on which at least two judges gave unlike scores, by item.

    ratings: scores by item, by judge. An item that a single judge scored is no flip.
    """
    found: dict[str, dict[str, float]] = {}
    for judge, scores in ratings.items():
        for item, score in scores.items():
            found.setdefault(item, {})[judge] = _finite(score, item)
    return [Flip(item, scores) for item, scores in sorted(found.items()) if len(set(scores.values())) > 1]


@dataclass(frozen=True)
class Majority:
    """The majority view of a panel. scores: of the items that have one. ties: how many items don't."""

    scores: Mapping[str, float]
    ties: int


def majority(ratings: Mapping[str, Mapping[str, float]]) -> Majority:
    """The score that more than half of an item's verdicts share.

    ratings: scores by item, by judge. Of the verdicts there are, so a single one is its own majority; an item without a
    strict majority is a tie, has no score and is counted. A named view beside the mean, never in its place (MEASURING
    §4).
    """
    scores: dict[str, float] = {}
    by_item = _by_item(ratings.values())
    for item, given in sorted(by_item.items()):
        score, votes = Counter(given).most_common(1)[0]
        if 2 * votes > len(given):
            scores[item] = score
    return Majority(scores, len(by_item) - len(scores))


def _pairs(a: Mapping[str, float], b: Mapping[str, float]) -> list[tuple[float, float]]:
    """Both scores of every item that both raters scored."""
    return [(_finite(score, item), _finite(b[item], item)) for item, score in a.items() if item in b]


def _by_item(ratings: Iterable[Mapping[str, float]]) -> dict[str, list[float]]:
    """Every item's scores, one per rater that scored it."""
    found: dict[str, list[float]] = {}
    for scores in ratings:
        for item, score in scores.items():
            found.setdefault(item, []).append(_finite(score, item))
    return found


def _finite(score: float, item: str) -> float:
    if not math.isfinite(score):
        raise ValueError(f"the score of {item} is not a finite number: {score}")
    return score
