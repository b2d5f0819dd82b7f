"""Means, their intervals and percentiles: the arithmetic under every printed number.

Questions asked about one history are not independent, so each interval here takes, beside the values, the cluster of
every value, and its degrees of freedom are the number of clusters less one. Who belongs to which cluster is decided
elsewhere; here a cluster is a string and equal strings are one cluster.

Sums are `math.fsum`, which rounds once: the order of the questions never changes a digit. SciPy (for one quantile) and
NumPy (for percentiles) are imported where they are used, because importing them costs more than a command may take to
start.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

DEFF_FLOOR = 0.2
"""Smallest design effect used: ten clusters can agree by chance, and one near zero would claim certainty."""
BOOTSTRAP_FROM = 40
"""Fewest clusters a bootstrap is offered for: with ten of LoCoMo's shape a nominal 95 % covers 89 %."""
RESAMPLES = 10_000
"""Bootstrap resamples: each bound then rests on 250 of them at 95 %."""


@dataclass(frozen=True)
class Interval:
    """A two-sided confidence interval for a mean, with what it rests on.

    low, high: bounds, in the unit of the values. clusters: number of clusters G; the degrees of freedom are G - 1.
    deff: design effect, the clustered variance of the mean over that of as many independent values; 1 means that
    clustering changes nothing; None where the values don't vary and it has no value.
    """

    low: float
    high: float
    clusters: int
    deff: float | None


def mean_interval(scores: Sequence[float], clusters: Sequence[str], level: float = 0.95) -> Interval | None:
    """Interval for a mean of scores in [0, 1]; None with fewer than 2 clusters.

    scores: one per question, each in [0, 1] (0 or 1, or a mean over repeats). clusters: the cluster of each question,
    same length. level: confidence, between 0 and 1; 0.95 because every published interval we compare with uses it.
    Raises ValueError for unequal lengths, a score outside [0, 1] or not a number, a level outside (0, 1).

    Wilson's form with the effective sample size n / deff in place of n and Student's t quantile with G - 1 degrees of
    freedom in place of the normal one. Unlike mean ± t·se it stays within [0, 1] and keeps a width at 0 and at 1.
    Source: Wilson (1927), JASA 22:209; the effective size after Korn and Graubard (1998), Survey Methodology 24:193;
    intervals of this kind are compared in Franco et al. (2019), J. Survey Statistics and Methodology 7:334.
    """
    t = _quantile_for(scores, clusters, level)
    if not all(0.0 <= score <= 1.0 for score in scores):
        raise ValueError("scores must lie in [0, 1]; for other means use general_interval")
    if t is None:
        return None
    mean = math.fsum(scores) / len(scores)
    deff = design_effect(scores, clusters)
    low, high = wilson_bounds(mean, len(scores) / deff, t)
    return Interval(low, high, len(set(clusters)), deff)


def stratified_interval(
    scores: Sequence[float], clusters: Sequence[str], strata: Sequence[str], level: float = 0.95
) -> Interval | None:
    """Interval for the mean over strata of their mean scores; None with fewer than 2 clusters.

    scores: one per question, each in [0, 1]; clusters, strata: of each question, same length. level: confidence,
    between 0 and 1. Raises ValueError as `mean_interval` does.

    As `mean_interval`, with the variance of the stratified mean p: G/(G-1) · Σ_g (Σ_{i in g} (x_i - mean_s)/(S·n_s))²,
    for question i in stratum s of S with n_s questions. deff is that over p(1-p)/n, so that Wilson's form has the
    effective size n / deff. The only question of a stratum is its mean and adds no variance.
    Source: Cochran (1977), Sampling Techniques, 5.3, linearised over clusters that may cross strata.
    """
    t = _quantile_for(scores, clusters, level)
    _check_lengths(scores, strata)
    if not all(0.0 <= score <= 1.0 for score in scores):
        raise ValueError("scores must lie in [0, 1]")
    if t is None:
        return None
    members: dict[str, list[float]] = {}
    for stratum, score in zip(strata, scores, strict=True):
        members.setdefault(stratum, []).append(score)
    means = {stratum: math.fsum(some) / len(some) for stratum, some in members.items()}
    mean = math.fsum(means.values()) / len(means)
    parts: dict[str, list[float]] = {}
    for cluster, stratum, score in zip(clusters, strata, scores, strict=True):
        parts.setdefault(cluster, []).append((score - means[stratum]) / (len(means) * len(members[stratum])))
    variance = len(parts) / (len(parts) - 1) * math.fsum(math.fsum(part) ** 2 for part in parts.values())
    binomial = mean * (1.0 - mean) / len(scores)
    deff = max(DEFF_FLOOR, variance / binomial) if binomial > 0.0 else 1.0
    return Interval(*wilson_bounds(mean, len(scores) / deff, t), len(parts), deff)


def general_interval(values: Sequence[float], clusters: Sequence[str], level: float = 0.95) -> Interval | None:
    """Interval for any other mean (tokens, seconds, F1); None with fewer than 2 clusters.

    values: one finite number per question, any unit. clusters: the cluster of each, same length. level: confidence,
    between 0 and 1. Raises ValueError for unequal lengths, a value that is not finite, a level outside (0, 1).

    mean ± t·se, se the root of the clustered variance, t Student's with G - 1 degrees of freedom. The bounds are not
    cut at zero: a negative bound of a positive quantity says that so few clusters don't determine it. Values that are
    all equal give an interval without width. deff is reported, never used or floored; for values of 0 and 1 it is the
    ratio that `mean_interval` uses.
    Source: Cameron and Miller (2015), J. Human Resources 50:317, for a regression on the constant alone.
    """
    t = _quantile_for(values, clusters, level)
    if not all(math.isfinite(value) for value in values):
        raise ValueError("values must be finite numbers")
    if t is None:
        return None
    groups = len(set(clusters))
    if min(values) == max(values):  # the mean of equal values may differ from them by a rounding error
        return Interval(float(values[0]), float(values[0]), groups, None)
    mean = math.fsum(values) / len(values)
    variance = clustered_variance(values, clusters)
    independent = math.fsum((value - mean) ** 2 for value in values) / len(values) ** 2
    half = t * math.sqrt(variance)
    return Interval(mean - half, mean + half, groups, variance / independent if independent > 0.0 else None)


def bootstrap_interval(
    values: Sequence[float], clusters: Sequence[str], level: float = 0.95, seed: int = 0
) -> Interval | None:
    """Percentile interval of the mean over resampled clusters; None with fewer than `BOOTSTRAP_FROM` clusters.

    values: one finite number per question, any unit. clusters: the cluster of each, same length. level: confidence,
    between 0 and 1. seed: of the RESAMPLES draws; any will do, one and the same repeats the bounds. Raises ValueError
    as `general_interval` does. deff is reported as there, never used.

    A resample draws as many whole clusters as there are, with return; its mean is over the questions it holds.
    Source: Davison and Hinkley (1997), Bootstrap Methods and Their Application, 3.8 and 5.3.
    """
    plain = general_interval(values, clusters, level)
    if plain is None or plain.clusters < BOOTSTRAP_FROM:
        return None
    import numpy as np

    members: dict[str, list[float]] = {}
    for cluster, value in zip(clusters, values, strict=True):
        members.setdefault(cluster, []).append(value)
    groups = [(math.fsum(group), float(len(group))) for group in members.values()]
    rows, counts = np.unique(np.array(groups), axis=0, return_counts=True)  # sorted: their order moves no bound
    rng = np.random.default_rng(seed)
    if len(rows) < BOOTSTRAP_FROM:  # judged answers: how often each of a few kinds is drawn says it all
        totals = rng.multinomial(len(groups), counts / len(groups), size=RESAMPLES) @ rows
    else:
        sums, sizes = np.repeat(rows, counts, axis=0).T.copy()
        totals = np.empty((RESAMPLES, 2))
        for total in totals:
            drawn = rng.integers(len(groups), size=len(groups))
            total[:] = sums[drawn].sum(), sizes[drawn].sum()
    means = totals[:, 0] / totals[:, 1]
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), plain.clusters, plain.deff)


def clustered_variance(values: Sequence[float], clusters: Sequence[str]) -> float:
    """Variance of the mean that allows for any dependence within clusters, in squared units of the values.

    G/(G-1) · Σ_g (Σ_{i in g} (x_i - mean))² / n², for n values in G clusters.
    values, clusters: same length. Raises ValueError for unequal lengths or fewer than 2 clusters.
    Source: Liang and Zeger (1986), Biometrika 73:13, with the small-sample factor G/(G-1).
    """
    _check_lengths(values, clusters)
    members: dict[str, list[float]] = {}
    for cluster, value in zip(clusters, values, strict=True):
        members.setdefault(cluster, []).append(value)
    if len(members) < 2:
        raise ValueError("a clustered variance needs at least 2 clusters")
    mean = math.fsum(values) / len(values)
    between = math.fsum((math.fsum(group) - len(group) * mean) ** 2 for group in members.values())
    return len(members) / (len(members) - 1) * between / len(values) ** 2


def design_effect(scores: Sequence[float], clusters: Sequence[str]) -> float:
    """Clustered variance of the mean p over the binomial p(1-p)/n, at least `DEFF_FLOOR`; 1.0 where p is 0 or 1.

    scores: in [0, 1]; clusters: same length. Raises ValueError for unequal lengths or fewer than 2 clusters. At 0 and
    at 1 both variances are zero and the data say nothing of clustering, so the questions count as independent.
    With one question per cluster and scores of 0 and 1 it is n/(n-1), the factor of the variance.
    Source: Kish (1965), Survey Sampling, for the ratio; the floor is ours.
    """
    variance = clustered_variance(scores, clusters)
    mean = math.fsum(scores) / len(scores)
    binomial = mean * (1.0 - mean) / len(scores)
    return max(DEFF_FLOOR, variance / binomial) if binomial > 0.0 else 1.0


def wilson_bounds(mean: float, size: float, quantile: float) -> tuple[float, float]:
    """Wilson's score bounds, always within [0, 1] and around the mean.

    mean: in [0, 1]. size: (effective) sample size, above 0, need not be whole. quantile: of the normal or Student's t
    distribution, two-sided (1.96 for the plain 95 % form).
    Source: Wilson (1927), JASA 22:209.
    """
    ratio = quantile**2 / size
    centre = (mean + ratio / 2) / (1 + ratio)
    half = math.sqrt(ratio * mean * (1 - mean) + ratio**2 / 4) / (1 + ratio)
    low = 0.0 if mean == 0.0 else max(0.0, min(mean, centre - half))  # rounding alone could cross 0, 1 or the mean
    high = 1.0 if mean == 1.0 else min(1.0, max(mean, centre + half))
    return low, high


def student_quantile(level: float, freedom: int) -> float:
    """Student's t that a two-sided interval at `level` uses: the quantile at (1 + level) / 2.

    level: confidence, between 0 and 1. freedom: degrees of freedom, 1 or more. Raises ValueError outside these.
    """
    _check_level(level)
    if freedom < 1:
        raise ValueError(f"degrees of freedom must be 1 or more, not {freedom}")
    # Not scipy.stats: the same number, but that package takes several times as long to import.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1.0 + level) / 2))


def _quantile_for(values: Sequence[float], clusters: Sequence[str], level: float) -> float | None:
    """Student's t for these clusters, None for fewer than 2; ValueError for unequal lengths or a bad level."""
    _check_lengths(values, clusters)
    _check_level(level)
    groups = len(set(clusters))
    return student_quantile(level, groups - 1) if groups >= 2 else None


def _check_lengths(values: Sequence[float], clusters: Sequence[str]) -> None:
    if len(values) != len(clusters):
        raise ValueError(f"{len(values)} values but {len(clusters)} clusters")


def _check_level(level: float) -> None:
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must lie between 0 and 1, not {level}")


def nested_mean(paths: Iterable[tuple[tuple[str, ...], float]]) -> float:
    """A question's score over its repeats: the mean over states of the mean over retrievals, answers and verdicts.

    paths: (ids from outermost to innermost, score), such as ((ingest, retrieval, answer, verdict), 1.0), in any order.
    At every level the children of one node count alike, however many descendants they have: a state asked five times
    weighs no more than one asked once. An id names a node only below its parent, so "1" may occur under each.
    Raises ValueError when there is no path, a path is empty, lengths differ, a path occurs twice (one verdict counted
    double), or a score is not finite.
    """
    scores: dict[tuple[str, ...], float] = {}
    for path, score in paths:
        if path in scores:
            raise ValueError(f"the path {path} occurs twice")
        if not math.isfinite(score):
            raise ValueError(f"the score at {path} is not a finite number: {score}")
        scores[path] = score
    depths = {len(path) for path in scores}
    if not depths:
        raise ValueError("no score to average")
    if len(depths) > 1 or 0 in depths:
        raise ValueError(f"paths must be of one length, 1 or more, not {sorted(depths)}")
    while () not in scores:
        scores = _parents(scores)
    return scores[()]


def _parents(scores: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    """One level up: each parent path with the unweighted mean of its children."""
    children: dict[tuple[str, ...], list[float]] = {}
    for path, score in scores.items():
        children.setdefault(path[:-1], []).append(score)
    return {path: math.fsum(below) / len(below) for path, below in children.items()}


def percentile(values: Sequence[float], q: float) -> float | None:
    """The q-th percentile, linear between the closest ranks (rank (n-1)·q/100 from 0); None when there is no value.

    values: finite numbers, any order, any unit. q: in percent, 0 to 100 (50 is the median).
    Raises ValueError for q outside 0 to 100 or a value that is not finite.
    Source: NumPy's default method, number 7 of Hyndman and Fan (1996), The American Statistician 50:361.
    """
    if not 0.0 <= q <= 100.0:
        raise ValueError(f"q is in percent, 0 to 100, not {q}")
    if not all(math.isfinite(value) for value in values):
        raise ValueError("values must be finite numbers")
    if not values:
        return None
    import numpy as np

    return float(np.percentile(np.asarray(values, dtype=np.float64), q))
