"""What a fold of the ledger gives: numbers, each over one cell, with everything that must go with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from memtrials.metrics.differences import Difference, Equivalence
from memtrials.metrics.repeats import PassRates, Spread
from memtrials.metrics.statistics import nested_mean

Place = tuple[str, str]
"""A question: task and query."""
Question = tuple[str, str | None]
"""Its cluster and type."""


class Cell(NamedTuple):
    """What one number is about. reader and judge are None where the number depends on none."""

    benchmark: str
    system: str
    fetch: str
    reader: str | None = None
    judge: str | None = None


@dataclass(frozen=True)
class Number:
    """One published number with what must go with it. unit: `share`, `score` (a mean in [0, 1] that counts nothing),
    `tokens`, `ratio`, `seconds`, `dollars`, `rank`, or `value` (of whole trials, in a unit of its own). part: the part
    or other average of the metric's questions that it is about.

    value is the headline; None with a reason where there is none. class_: P, M, D, R, or None where neither a reader
    nor a judge had a part in it. models: what the endpoints said had answered, where that is more than one snapshot.
    flagged: verdicts on answers that hold a verdict in the judge's own form. loose: verdicts that a strict reading of
    the reply wouldn't have given, under a published rule; raised: verdicts of a judge whose reasoning needed a larger
    limit than the published one. types: how many types an average over types is over. probes: the shares of constructed
    answers that this judge accepts for this metric, by kind; lenient: that of swapped ones is too large. missing: how
    many questions have no score, by the reason. p50, p95: of values of whole trials, by nearest rank.
    """

    cell: Cell
    metric: str
    unit: str
    value: float | None
    n: int
    of: int
    group: str | None = None
    part: str | None = None
    class_: str | None = None
    reason: str | None = None
    score: float | None = None
    low: float | None = None
    high: float | None = None
    interval: tuple[float, float] | None = None
    clusters: int | None = None
    deff: float | None = None
    status: str | None = None
    missing: Mapping[str, int] = field(default_factory=dict)
    subset: bool = False
    loaded: bool = False
    models: tuple[str, ...] = ()
    flagged: int = 0
    loose: int = 0
    raised: int = 0
    types: int | None = None
    probes: Mapping[str, float] = field(default_factory=dict)
    lenient: bool = False
    p50: float | None = None
    p95: float | None = None


@dataclass(frozen=True)
class Scores:
    """What one number is made of. unit: as a Number's. questions: all that it is about. runs: by question, the value of
    each run by its ordinals (ingest, retrieval, answer, verdict); a level that it doesn't depend on has the ordinal 1.
    """

    cell: Cell
    metric: str
    unit: str
    questions: Mapping[Place, Question]
    runs: dict[Place, dict[tuple[str, ...], float]] = field(default_factory=dict)

    @property
    def means(self) -> dict[Place, float]:
        """Each question's score, repeats averaged."""
        return {place: nested_mean(some.items()) for place, some in self.runs.items()}


@dataclass(frozen=True)
class Contrast:
    """Two cells' means of one metric over the questions scored for both, and the paired test of the first less the
    second (MEASURING §6).

    found: None where no question is scored for both. means: of each side over these. bounds: least and largest
    difference that missing scores allow; None where none is missing or scores have no limits. family: how many tests
    `adjusted` is Holm's over; None outside a family. group: the type it is of. exploratory: a type's or a secondary
    metric's, unadjusted. control: one side is a control, so it is in no family. unlike: what the sides should share and
    don't, which was allowed.
    """

    first: Cell
    second: Cell
    metric: str
    unit: str
    found: Difference | None
    means: tuple[float, float] | None
    bounds: tuple[float, float] | None = None
    equivalence: Equivalence | None = None
    adjusted: float | None = None
    family: int | None = None
    group: str | None = None
    exploratory: bool = False
    control: bool = False
    unlike: tuple[str, ...] = ()


@dataclass(frozen=True)
class Repeats:
    """What repeats tell beside a number (MEASURING §4). passes: pass@k and pass^k for each k from 2 up to the most
    trials of a question, for verdicts; a trial is right when more than half of its verdicts are."""

    cell: Cell
    metric: str
    unit: str
    spread: Spread | None
    passes: Sequence[PassRates] = ()


@dataclass(frozen=True)
class Attribution:
    """Where a cell's tasks failed, or its questions by one metric: counts by class that sum to n. slips: direct reader
    slips; gap: mean D - mean T. whole: of the wrong ones, how many the same reader answers right from the whole
    history, and how many it was asked.
    """

    cell: Cell
    ordinal: int
    by_rule: bool
    n: int
    counts: Mapping[str, int]
    slips: int | None
    gap: float | None
    gap_n: int
    gap_interval: tuple[float, float] | None
    metric: str | None = None
    whole: tuple[int, int] | None = None


@dataclass(frozen=True)
class Agreement:
    """How far several judges, or several verdicts of one, agree on the same answers or trials.

    raters: judge ids, with their ordinal where one decided several times. n: items that all of them scored. low, high:
    the band of their shares on these items. raw and kappa are of the one pair, null for more than two. flips: items on
    which they differ, as `task/query`, with each rater's score. majority: the share of items whose majority is right;
    ties have none.
    """

    cell: Cell
    metric: str
    raters: tuple[str, ...]
    n: int
    left_out: int
    low: float | None
    high: float | None
    raw: float | None
    kappa: float | None
    alpha: float | None
    majority: float | None
    ties: int
    flips: Sequence[tuple[str, Mapping[str, float]]]


@dataclass(frozen=True)
class ProbeRate:
    """The share of constructed answers of one kind that a judge accepts for one metric.

    n: questions it was asked about, repeats averaged; of: those that could be asked. flagged: it accepts more swapped
    golds than a judge may.
    """

    benchmark: str
    judge: str
    metric: str
    kind: str
    accepted: float
    n: int
    of: int
    flagged: bool = False


@dataclass(frozen=True)
class Departure:
    """A measure of an imported cell beside the values that came with its answers.

    stored_name: what the file calls them; n: answers that have one; stored and recomputed: means over these. differing:
    (stored, recomputed) of the questions, as `task/query`, where they differ by more than rounding.
    """

    cell: Cell
    measure: str
    stored_name: str
    n: int
    stored: float
    recomputed: float
    differing: Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Tradeoff:
    """What one judged number costs. budget: tokens asked for, if any. context_tokens: mean; cut: of how many `trials`
    the context was cut; seconds: median of retrieval and answer together, over single successful attempts; usd: mean
    dollars of a question, the state's share with it; unpriced: why it isn't known. on_latency_frontier,
    on_cost_frontier: no other system does as well for less; None for controls, and where the price isn't known.
    """

    cell: Cell
    metric: str
    class_: str | None
    budget: int | None
    value: float
    interval: tuple[float, float] | None
    n: int
    context_tokens: float | None
    cut: int
    trials: int
    seconds: float | None
    usd: float | None
    unpriced: str | None = None
    on_latency_frontier: bool | None = None
    on_cost_frontier: bool | None = None


@dataclass
class Report:
    """All numbers of a ledger. names: the system's, reader's … own names by configuration id; settings of fetches.
    view: how repeats became one score, where that isn't their mean."""

    numbers: list[Number]
    attributions: list[Attribution]
    agreements: list[Agreement]
    probes: list[ProbeRate]
    notes: list[str]
    names: dict[str, str]
    fetches: dict[str, dict[str, Any]]
    controls: frozenset[str]
    by: str | None = None
    view: str | None = None
    departures: Sequence[Departure] = ()
    differences: Sequence[Contrast] = ()
    repeats: Sequence[Repeats] = ()
    tradeoffs: Sequence[Tradeoff] = ()
