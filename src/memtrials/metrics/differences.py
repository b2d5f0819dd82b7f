"""Is one system better than another? Paired comparisons over the questions that both were scored on.

Questions about one history rise and fall together, so what a test may exchange is a history's questions as a whole: the
sign of a cluster's summed difference. That test, its interval and the equivalence test are one distribution read three
ways, so they can't contradict each other. Scores and clusters come as mappings by question; clusters name every
question in scope, whether or not it was scored.

NumPy and SciPy are imported where they are used: importing them costs more than a command may take to start.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, TypeVar

from memtrials.metrics.statistics import clustered_variance, student_quantile

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Question = TypeVar("Question", bound=Hashable)

ALPHA = 0.05
"""Two-sided error of the test whose interval is given: what every published interval we compare with uses."""
EXACT_UP_TO = 20
"""Clusters up to which every pattern of signs is tried: a million patterns take tens of milliseconds."""
DRAWS = 100_000
"""Patterns drawn beyond that: a p of 0.05 is then within 0.0014 of the exact one in 19 of 20 cases."""
POWER = 0.8
"""Chance at which a difference counts as detectable: the custom in planning trials."""
SEED = 20
"""The same data always draw the same patterns."""
AT_ONCE = 12
"""Clusters drawn together, as one of their 4,096 subsets, whose sums a processor's near cache holds."""


@dataclass(frozen=True)
class Difference:
    """Mean score of the first side less that of the second, over the n questions scored on both.

    difference, low, high, detectable: in the unit of the scores. higher, lower: questions on which the first side
    scored higher, lower. left_out: questions in scope that one side or both have no score for. test: `exact McNemar`,
    `exact sign-flip` or `sign-flip, 100,000 draws`. p: two-sided. smallest_p: the least that the test gives for so many
    clusters, however unlike the two sides. low, high: the shifts that it doesn't reject at 5 %; None below 6 clusters,
    where it rejects nothing. detectable: see `detectable_difference`.
    """

    difference: float
    low: float | None
    high: float | None
    p: float
    test: str
    smallest_p: float
    n: int
    left_out: int
    clusters: int
    higher: int
    lower: int
    detectable: float | None


def difference(
    a: Mapping[Question, float], b: Mapping[Question, float], clusters: Mapping[Question, str]
) -> Difference | None:
    """a less b with its paired test; None where no question in scope is scored on both sides.

    a, b: finite scores by question, in one unit; those outside `clusters` don't count. clusters: the cluster of every
    question in scope. Raises ValueError for a score that is not finite.

    Two-sided sign-flip permutation of the clusters' summed differences: the share of sign patterns whose total is at
    least as far from 0 as the observed one. Of all patterns up to `EXACT_UP_TO` clusters, else (hits + 1)/(draws + 1).
    Where each cluster is one question and each score 0 or 1 that is the exact McNemar test, computed as such.
    The interval holds every shift δ for which the same test of the sums less δ · cluster size has p > 5 %; beyond 20
    clusters it comes of the draws, also beside McNemar's p. Swapping a and b mirrors everything.
    Source: Fisher (1935), The Design of Experiments, section 21, for the test; McNemar (1947), Psychometrika 12:153;
    Hartigan (1969), JASA 64:1303, for the interval: its bounds are order statistics of the flipped clusters' means.
    """
    pairs = _pairs(a, b, clusters)
    if not pairs:
        return None
    changes = [first - second for first, second, _ in pairs]
    names = [cluster for *_, cluster in pairs]
    signs = _Signs.of(changes, names)
    groups = len(signs.sums)
    higher, lower = sum(change > 0 for change in changes), sum(change < 0 for change in changes)
    p, test, smallest = signs.p(), "exact sign-flip", 2.0 ** (1 - groups)
    if groups == len(pairs) and all(score in (0.0, 1.0) for pair in pairs for score in pair[:2]):
        p, test = mcnemar_p(higher, lower), "exact McNemar"
    elif groups > EXACT_UP_TO:
        test, smallest = f"sign-flip, {DRAWS:,} draws", 1 / (DRAWS + 1)
    low, high = signs.interval() or (None, None)
    return Difference(
        difference=math.fsum(changes) / len(pairs),
        low=low,
        high=high,
        p=p,
        test=test,
        smallest_p=smallest,
        n=len(pairs),
        left_out=len(clusters) - len(pairs),
        clusters=groups,
        higher=higher,
        lower=lower,
        detectable=detectable_difference(changes, names),
    )


def mcnemar_p(higher: int, lower: int) -> float:
    """Two-sided exact McNemar test: the p of so uneven a split of the discordant questions, each as likely either way.

    higher, lower: discordant questions by direction. 1.0 without any.
    Source: McNemar (1947), Psychometrika 12:153, with the binomial in place of the chi-squared distribution.
    """
    from scipy.special import bdtr  # not scipy.stats, which takes several times as long to import

    return min(1.0, 2 * float(bdtr(min(higher, lower), higher + lower, 0.5)))


def detectable_difference(changes: Sequence[float], clusters: Sequence[str]) -> float | None:
    """The smallest true difference that a test at 5 % would find in 4 of 5 repetitions with these questions.

    changes: one difference per question; clusters: of each, same length. In the unit of the changes. None with so few
    clusters (5 or fewer) that the sign-flip test finds nothing, and where the clusters' changes don't vary, which says
    nothing of what a difference would do.

    (t at 97.5 % + t at 80 %) · se, with se the clustered standard error of the mean change and G - 1 degrees of
    freedom. For n single questions judged 0 or 1 with the share ψ discordant and mean d, se² = (ψ - d²)/(n - 1).
    Source: Bloom (1995), Evaluation Review 19:547.
    """
    groups = len(set(clusters))
    if 2.0 ** (1 - groups) > ALPHA:
        return None
    error = math.sqrt(clustered_variance(changes, clusters))
    factor = student_quantile(1 - ALPHA, groups - 1) + student_quantile(2 * POWER - 1, groups - 1)
    return factor * error if error > 0.0 else None


@dataclass(frozen=True)
class Equivalence:
    """Two one-sided tests against a margin. below, above: p of a difference at or beyond -margin, at or beyond +margin.

    margin: in the unit of the scores.
    """

    margin: float
    below: float
    above: float

    @property
    def p(self) -> float:
        """That of the claim "no further apart than the margin": the larger of the two."""
        return max(self.below, self.above)

    @property
    def shown(self) -> bool:
        """Whether the claim holds at 5 %. False says nothing: it is not "different"."""
        return self.p <= ALPHA


def equivalence(
    a: Mapping[Question, float], b: Mapping[Question, float], clusters: Mapping[Question, str], margin: float
) -> Equivalence | None:
    """Are a and b within the margin of one another? None where no question in scope is scored on both sides.

    a, b, clusters: as `difference`. margin: above 0, in the unit of the scores. Raises ValueError for another margin or
    a score that is not finite.

    Each one-sided p is that of the sign-flip test at the shift -margin or +margin.
    Source: Schuirmann (1987), J. Pharmacokinetics and Biopharmaceutics 15:657, with a permutation in place of t.
    """
    if not (math.isfinite(margin) and margin > 0.0):
        raise ValueError(f"an equivalence margin is a number above 0, not {margin}")
    pairs = _pairs(a, b, clusters)
    if not pairs:
        return None
    signs = _Signs.of([first - second for first, second, _ in pairs], [cluster for *_, cluster in pairs])
    return Equivalence(margin, *signs.one_sided(margin))


def difference_bounds(
    a: Mapping[Question, float], b: Mapping[Question, float], questions: Collection[Question]
) -> tuple[float, float] | None:
    """Least and largest difference a less b that missing scores allow; None without questions.

    a, b: scores in [0, 1] by question. questions: all in scope; a missing score could be anything from 0 to 1.
    Raises ValueError for a score outside [0, 1].
    """
    if not questions:
        return None
    scores = [side[question] for side in (a, b) for question in questions if question in side]
    if not all(0.0 <= score <= 1.0 for score in scores):
        raise ValueError("scores must lie in [0, 1]: without limits a missing one leaves no bounds")
    low = math.fsum(a.get(question, 0.0) - b.get(question, 1.0) for question in questions)
    high = math.fsum(a.get(question, 1.0) - b.get(question, 0.0) for question in questions)
    return low / len(questions), high / len(questions)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p of every test of one family, in the order given.

    ps: in [0, 1]. Raises ValueError for others. With the i-th smallest of m as p_i (from 1), the adjusted p_i is the
    largest of min(1, (m - j + 1) · p_j) over j up to i.
    Source: Holm (1979), Scandinavian J. Statistics 6:65.
    """
    if not all(0.0 <= p <= 1.0 for p in ps):
        raise ValueError("p values must lie in [0, 1]")
    adjusted = [0.0] * len(ps)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[place]))
        adjusted[place] = largest
    return adjusted


def order_notes(over_questions: Mapping[str, float], over_types: Mapping[str, float]) -> list[str]:
    """One sentence per pair of systems that the mean over questions and the mean over types put in opposite order.

    over_questions, over_types: shares in [0, 1] by system; a system in one of them alone is in no pair. A tie is no
    order. Pairs come in the order of `over_questions`; shares are written in percent.
    """
    notes = []
    systems = [system for system in over_questions if system in over_types]
    for pair in combinations(systems, 2):
        ahead, behind = sorted(pair, key=over_questions.__getitem__, reverse=True)
        if over_questions[ahead] > over_questions[behind] and over_types[ahead] < over_types[behind]:
            by_question = f"{100 * over_questions[ahead]:.1f} to {100 * over_questions[behind]:.1f}"
            by_type = f"{100 * over_types[ahead]:.1f} to {100 * over_types[behind]:.1f}"
            notes.append(
                f"{ahead} leads {behind} over questions ({by_question}) and trails it averaged over types ({by_type})"
            )
    return notes


def _pairs(
    a: Mapping[Question, float], b: Mapping[Question, float], clusters: Mapping[Question, str]
) -> list[tuple[float, float, str]]:
    """Both scores and the cluster of every question in scope that both sides have a score for."""
    pairs = [(a[q], b[q], cluster) for q, cluster in clusters.items() if q in a and q in b]
    if not all(math.isfinite(score) for pair in pairs for score in pair[:2]):
        raise ValueError("scores must be finite numbers")
    return pairs


@dataclass(frozen=True)
class _Signs:
    """The sign patterns of a sign-flip test as the clusters that they flip.

    sums, sizes: of each cluster's changes. flipped: (patterns, 2), the summed changes and the questions of the clusters
    that a pattern flips. The first pattern flips none: it is what was observed, and a draw among the draws.

    Flipping the set R at the shift δ turns the total T = S - δN into T - 2(S_R - δN_R). Below the mean of all, T > 0,
    and a pattern is a hit when its R or the rest has a mean of at most δ; an empty set always is. So p falls as δ moves
    away from the mean, and the bounds of the interval are order statistics of these means.
    """

    sums: NDArray[np.float64]
    sizes: NDArray[np.float64]
    flipped: NDArray[np.float64]

    @classmethod
    def of(cls, changes: Sequence[float], clusters: Sequence[str]) -> _Signs:
        import numpy as np

        members: dict[str, list[float]] = {}
        for cluster, change in zip(clusters, changes, strict=True):
            members.setdefault(cluster, []).append(change)
        groups = sorted((math.fsum(group), len(group)) for group in members.values())
        table = np.array(groups, dtype=np.float64)  # sorted, so that the order of questions changes no draw
        return cls(table[:, 0], table[:, 1], _all_flips(table) if len(table) <= EXACT_UP_TO else _drawn_flips(table))

    def p(self) -> float:
        """Two-sided, of no shift. Sums of thirds differ by rounding, so a tie is a hit within 1e-9 of the scale."""
        import numpy as np

        total = self.sums.sum()
        slack = 1e-9 * np.abs(self.sums).sum()
        return float(np.mean(np.abs(total - 2 * self.flipped[:, 0]) >= abs(total) - slack))

    def one_sided(self, margin: float) -> tuple[float, float]:
        """p of a true difference of at most -margin, and of at least +margin."""
        import numpy as np

        sums, sizes = self.flipped.T
        slack = 1e-9 * (np.abs(self.sums).sum() + margin * self.sizes.sum())
        return float(np.mean(sums <= slack - margin * sizes)), float(np.mean(sums >= margin * sizes - slack))

    def interval(self) -> tuple[float, float] | None:
        """The shifts with p > ALPHA; None when all have."""
        import numpy as np

        sums, sizes = self.flipped.T
        rest_sums, rest_sizes = self.sums.sum() - sums, self.sizes.sum() - sizes
        neither = (sizes == 0) | (rest_sizes == 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            one, other = sums / sizes, rest_sums / rest_sizes
        needed = math.floor(ALPHA * len(sums))  # one more hit than this and p > ALPHA
        low = np.partition(np.where(neither, -np.inf, np.minimum(one, other)), needed)[needed]
        high = -np.partition(np.where(neither, -np.inf, -np.maximum(one, other)), needed)[needed]
        return (float(low), float(high)) if math.isfinite(low) else None


def _all_flips(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of every subset of the rows, the empty one first."""
    import numpy as np

    found = np.zeros((1, 2))
    for row in table:
        found = np.concatenate([found, found + row])
    return found


def _drawn_flips(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sums of the empty and of DRAWS random subsets of the rows.

    Of many equal rows a subset holds a binomial number; of the others it holds one subset of each AT_ONCE rows.
    """
    import numpy as np

    rng = np.random.default_rng(SEED)
    found = np.zeros((DRAWS + 1, 2), dtype=np.float64)
    side = np.array([-1.0 if table[:, 0].sum() < 0 else 1.0, 1.0])  # b less a draws what a less b does
    rows, counts = np.unique(table * side, axis=0, return_counts=True)
    many = counts > AT_ONCE
    for row, count in zip(rows[many], counts[many], strict=True):
        found[1:] += rng.binomial(count, 0.5, size=(DRAWS, 1)) * row
    others = np.repeat(rows[~many], counts[~many], axis=0)
    for start in range(0, len(others), AT_ONCE):
        subsets = _all_flips(others[start : start + AT_ONCE])
        found[1:] += subsets[rng.integers(len(subsets), size=DRAWS, dtype=np.uint16)]
    found *= side
    return found
