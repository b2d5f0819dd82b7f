"""What people's labels of a sample say of all of a judge's verdicts (MEASURING §11).

A judge has decided every question; people label some, drawn at random within strata whose size is known. Each question
then has a value that is right on average: its stratum's mean label, and where it was labelled the departure from that
mean, as many times over as the draw left questions out. Means of these values are the weighted estimates, and their
clustered variance holds both stages: which questions there are, and which of them were drawn.

Labels of a sample whose strata were drawn at unlike rates say nothing when they are counted without weights. That is
why the sensitivity that such a sample shows must not go into Rogan and Gladen's formula.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from memtrials.metrics.statistics import clustered_variance, student_quantile, wilson_bounds

Question = TypeVar("Question", bound=Hashable)

FEWEST = 30
"""Audited items below which a rate has no headline."""


@dataclass(frozen=True)
class Rate:
    """A share with its interval at 95 %. estimate: None where nothing that was audited is in its scope. audited: items
    that it rests on."""

    estimate: float | None
    interval: tuple[float, float] | None
    audited: int

    @property
    def headline(self) -> float | None:
        """The estimate; None where it rests on fewer than FEWEST items."""
        return self.estimate if self.audited >= FEWEST else None


def allocate(sizes: Sequence[int], n: int) -> list[int]:
    """How many items of each stratum are drawn: as equal as sizes allow, n in all, or everything there is.

    Equal, because both rates of a judge are wanted and the rarer verdict says more of an error. Raises ValueError where
    n is too small for 2 items of each stratum that has them.
    """
    drawn = [min(2, size) for size in sizes]
    if sum(drawn) > n:
        raise ValueError(f"{n} items are too few for {len(sizes)} strata: {sum(drawn)} are needed")
    while sum(drawn) < min(n, sum(sizes)):
        open_ = [place for place, size in enumerate(sizes) if drawn[place] < size]
        drawn[min(open_, key=drawn.__getitem__)] += 1
    return drawn


def values(strata: Mapping[Question, Hashable], labels: Mapping[Question, float]) -> dict[Question, float]:
    """A value for every question whose mean is the stratified estimate Σ_h (N_h/N) · mean label of stratum h.

    strata: the stratum of every question. labels: of the audited ones, any number. A question of stratum h has the mean
    label m_h; an audited one has m_h + (N_h/n_h) · √(n_h/(n_h - 1)) · (label - m_h), where the root makes the variance
    in a stratum unbiased. Raises ValueError for a label outside the strata, and for a stratum of which nothing, or one
    item of several, was audited: its mean, or how far that is to be trusted, is unknown.
    Source: Cochran (1977), Sampling Techniques, 12.2, as the augmented values of Robins, Rotnitzky and Zhao (1994),
    JASA 89:846.
    """
    if strangers := [question for question in labels if question not in strata]:
        raise ValueError(f"{strangers[0]} is in no stratum")
    sizes = Counter(strata.values())
    drawn: dict[Hashable, list[float]] = {stratum: [] for stratum in sizes}
    for question, label in labels.items():
        drawn[strata[question]].append(label)
    for stratum, some in drawn.items():
        if len(some) < min(2, sizes[stratum]):
            raise ValueError(f"stratum {stratum}: {len(some)} of {sizes[stratum]} audited, 2 are needed")
    means = {stratum: math.fsum(some) / len(some) for stratum, some in drawn.items()}
    found = {}
    for question, stratum in strata.items():
        found[question] = mean = means[stratum]
        if question in labels and (n := len(drawn[stratum])) > 1:
            found[question] += sizes[stratum] / n * math.sqrt(n / (n - 1)) * (labels[question] - mean)
    return found


def corrected(
    strata: Mapping[Question, Hashable], labels: Mapping[Question, float], clusters: Mapping[Question, str]
) -> Rate:
    """The share of all questions that are right.

    strata: of every question; those that differ in verdict are in unlike strata. labels: 1 right, 0 wrong, between
    them where annotators differ. clusters: of every question. Raises ValueError as `values` does.
    """
    return _rate(strata, labels, clusters, lambda label, stratum: (label, 1.0))


def sensitivity(
    strata: Mapping[Question, Hashable],
    labels: Mapping[Question, float],
    clusters: Mapping[Question, str],
    accepted: Collection[Hashable],
) -> Rate:
    """The share of right answers that the judge accepts: (Σ_h W_h · right and accepted) / (Σ_h W_h · right).

    accepted: the strata of what the judge accepts. Otherwise as `corrected`; `audited` counts right items.
    Source: Begg and Greenes (1983), Biometrics 39:207.
    """
    return _rate(strata, labels, clusters, lambda label, stratum: (label * (stratum in accepted), label))


def specificity(
    strata: Mapping[Question, Hashable],
    labels: Mapping[Question, float],
    clusters: Mapping[Question, str],
    accepted: Collection[Hashable],
) -> Rate:
    """The share of wrong answers that the judge rejects; as `sensitivity`, and `audited` counts wrong items."""
    return _rate(strata, labels, clusters, lambda label, stratum: ((1 - label) * (stratum not in accepted), 1 - label))


def rogan_gladen(apparent: float, sensitivity: float, specificity: float) -> float | None:
    """The share that is right by what a judge accepts and by its rates: (a + Sp - 1) / (Se + Sp - 1), cut to [0, 1].

    apparent: the share it accepts. sensitivity, specificity: from a simple random sample or from outside, never those
    of a sample drawn by verdict. None where Se + Sp is 1 or less: such a judge tells right from wrong no better than a
    coin.
    Source: Rogan and Gladen (1978), American J. Epidemiology 107:71.
    """
    if sensitivity + specificity <= 1.0:
        return None
    return min(1.0, max(0.0, (apparent + specificity - 1.0) / (sensitivity + specificity - 1.0)))


def _rate(
    strata: Mapping[Question, Hashable],
    labels: Mapping[Question, float],
    clusters: Mapping[Question, str],
    of: Callable[[float, Hashable], tuple[float, float]],
) -> Rate:
    """The sum of parts over that of wholes, where `of` gives both for a label in a stratum, linear in the label.

    Interval: Wilson's form with the effective size r(1 - r)/variance of the linearised ratio r, and Student's t with
    G - 1 degrees of freedom. The variance is the clustered one, but no less than that of independent questions with
    half a label of each kind more in every stratum: labels that are all alike by chance would claim certainty. At 0 and
    1, where r(1 - r) is nothing, it is a quarter over the number of audited items and one. Where no labels could give
    another ratio (a judge that accepts nothing accepts no right answer) there is no variance, and the effective size is
    the number of audited items.
    """
    pairs = {question: of(label, strata[question]) for question, label in labels.items()}
    audited = round(math.fsum(whole for _, whole in pairs.values()))
    parts = values(strata, {question: part for question, (part, _) in pairs.items()})
    wholes = values(strata, {question: whole for question, (_, whole) in pairs.items()})
    total = math.fsum(wholes.values())
    if audited == 0 or total <= 0.0:
        return Rate(None, None, audited)
    rate = min(1.0, max(0.0, math.fsum(parts.values()) / total))
    names = [clusters[question] for question in strata]
    if len(set(names)) < 2:
        return Rate(rate, None, audited)

    def error(label: float, stratum: Hashable) -> float:
        part, whole = of(label, stratum)
        return part - rate * whole

    n, members = len(strata), Counter(strata.values())
    floor = 0.0
    for stratum, size in members.items():
        some = [label for question, label in labels.items() if strata[question] == stratum]
        right = (math.fsum(some) + 0.5) / (len(some) + 1)
        spread = error(1.0, stratum) - error(0.0, stratum)
        floor += (size / n) ** 2 * right * (1 - right) * spread**2 / len(some)
        floor += size / n * error(math.fsum(some) / len(some), stratum) ** 2 / n
    clustered = clustered_variance([parts[q] - rate * wholes[q] for q in strata], names)
    variance = max(clustered, floor) / (total / n) ** 2
    spread = max(rate * (1 - rate), 0.25 / (audited + 1))
    effective = spread / variance if variance > 0.0 else audited
    return Rate(rate, wilson_bounds(rate, effective, student_quantile(0.95, len(set(names)) - 1)), audited)
