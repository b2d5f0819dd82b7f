"""An audit of a judge by people: what was drawn, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from memtrials.metrics import audit
from memtrials.metrics.audit import Rate
from memtrials.metrics.differences import Difference


class Judged(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A question's verdict as it stood when the sample was drawn. verdict: the record; item: its name in the sample."""

    verdict: str
    task: str
    query: str
    cluster: str
    score: float
    item: str | None = None


class Stratum(msgspec.Struct, frozen=True):
    """One system's verdicts of one score: how many there are, how many were drawn, and the chance of each."""

    score: float
    size: int
    drawn: int
    probability: float


class Population(msgspec.Struct, frozen=True, kw_only=True):
    """One system's verdicts, first ones where there are repeats. of: questions that there are; status: as a number's
    (MEASURING §3), for those without a verdict."""

    system: str
    fetch: str
    reader: str | None
    name: str
    control: bool
    of: int
    status: str
    strata: list[Stratum]
    judged: list[Judged]


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which item is which. audit: names the draw."""

    audit: str
    benchmark: str
    metric: str
    judge: str
    judge_name: str
    seed: int
    populations: list[Population]

    @property
    def items(self) -> dict[str, Judged]:
        """The drawn verdicts by item."""
        return {one.item: one for some in self.populations for one in some.judged if one.item is not None}


@dataclass(frozen=True)
class Sampled:
    """What was written. question: what an annotator decides. repeats: verdicts beyond each question's first."""

    items: Path
    key_path: Path
    key: Key
    question: str
    repeats: int


@dataclass(frozen=True)
class Audited:
    """One system's audit. judged: by verdicts alone, over the n questions that have one. corrected: over the same ones.
    rogan_gladen: by rates from outside."""

    population: Population
    n: int
    judged: float
    judged_interval: tuple[float, float] | None
    corrected: Rate
    sensitivity: Rate
    specificity: Rate
    rogan_gladen: float | None

    @property
    def counted(self) -> float:
        """The share of all questions that a corrected share counts: those without a verdict are wrong in a lower bound,
        and not in a partial result."""
        return self.n / self.population.of if self.population.status == "lower bound" else 1.0

    @property
    def shown(self) -> float:
        """The headline, or what a partial result says of the questions that have a verdict."""
        assert self.corrected.estimate is not None
        return self.corrected.estimate * self.counted

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of `shown`."""
        between = self.corrected.interval
        return (between[0] * self.counted, between[1] * self.counted) if between else None

    @property
    def reason(self) -> str | None:
        """Why there is no headline."""
        if self.corrected.headline is None:
            return f"fewer than {audit.FEWEST} audited items"
        return "results are missing" if self.population.status == "partial" else None

    @property
    def headline(self) -> float | None:
        """The number to quote."""
        return None if self.reason else self.shown


@dataclass(frozen=True)
class Compared:
    """The difference of two systems' corrected shares over the questions both were judged on. adjusted: Holm's p over
    all pairs without a control. enough: whether both rest on as many audited items as a headline needs."""

    first: str
    second: str
    found: Difference
    adjusted: float | None
    enough: bool


@dataclass(frozen=True)
class Annotators:
    """How far annotators agree on the items, drawn as they were. raw and kappa are of two; alpha of any number.
    differing: items on which they don't."""

    files: tuple[str, ...]
    n: int
    raw: float | None
    kappa: float | None
    alpha: float | None
    differing: tuple[str, ...]


@dataclass(frozen=True)
class AuditReport:
    """Everything that `audit score` says."""

    key: Key
    systems: list[Audited]
    differences: list[Compared]
    annotators: Annotators | None
    notes: list[str]
