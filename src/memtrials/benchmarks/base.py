"""What a benchmark is to the stages: data that becomes tasks, timelines on demand, prompts, metrics and rules.

A benchmark is one module with a constant `BENCHMARK`. The stages know nothing else of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from memtrials.records import Gold, Item, Release, TaskBody, sha256


class Turn(msgspec.Struct, frozen=True):
    """One message of a session, as a system may see it. role: `user` or `assistant`; time: as the data writes it."""

    role: str
    content: str
    time: str | None = None
    speaker: str | None = None


class Session(msgspec.Struct, frozen=True):
    """One sitting: turns in order. time: when it began, as the data writes it."""

    turns: tuple[Turn, ...]
    time: str | None = None

    def digest(self) -> str:
        """SHA-256 of what a system is shown of this session."""
        return sha256([self.time, [[t.role, t.speaker, t.time, t.content] for t in self.turns]])


def turn_id(session: int, turn: int) -> str:
    """The neutral name of a turn: positions in the timeline, both counted from 0."""
    return f"{session}.{turn}"


@dataclass(frozen=True)
class LoadOptions:
    """What the command line says about reading a release."""

    variant: str | None = None
    allow_modified: bool = False


@dataclass(frozen=True)
class Loaded:
    """A validated release. name: `benchmark@variant`; tasks: (task id, type, body) in order; notes: for the user."""

    name: str
    release: Release
    tasks: Sequence[tuple[str, str | None, TaskBody]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Prompts:
    """Prompt texts by name, with where they are from. official: whether they are the publisher's, by hash."""

    texts: Mapping[str, str]
    source: Literal["default", "official", "own"]
    official: bool = False


@dataclass(frozen=True)
class Metric:
    """A verdict: what it reads, who may decide it and by which prompt or rule.

    query: the query id whose trials it is about (None: all). reads: the record it is a child of. fields: what the
    judge sees, in order. prompt: name of the judge prompt (None: only the rule decides). rule: score and reason from
    context, answer and gold (None: needs a model). verbatim: null for systems that don't return turns unchanged.
    diagnostic: ours, not part of the published protocol, so never class P.
    """

    name: str
    about: str
    reads: Literal["retrieval", "answer"]
    query: str | None = None
    fields: tuple[str, ...] = ()
    prompt: str | None = None
    rule: Callable[[str, str, Gold], tuple[float, str]] | None = None
    verbatim: bool = False
    diagnostic: bool = False


@dataclass(frozen=True)
class Measure:
    """A formula over one retrieval and its gold, computed by `metrics` and never stored.

    mean: whether its mean over questions is reported, with an interval (unit share) or without; else the median.
    """

    name: str
    about: str
    query: str | None
    value: Callable[[Sequence[Item] | None, Gold], float | None]
    summary: Literal["share", "median"]


REFUSAL = "I'm sorry, but I can't answer that."
"""What a probe's refusal says."""


@dataclass(frozen=True)
class Probes:
    """Constructed answers to one question, by kind, whose right verdict is known (MEASURING §10).

    Only `gold` is right. `swapped` is right for another question of the same type, `refusal` and `empty` are what they
    say. context: a memory that holds what the question needs, so that only the answer can be at fault.
    """

    context: str
    answers: Mapping[str, str]


@dataclass(frozen=True)
class ModelDefaults:
    """The published model and its parameters, as asked of an OpenAI-compatible endpoint."""

    model: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Benchmark:
    """A benchmark as the stages use it.

    load(data, options) validates and derives tasks; raises UserError with every problem. sessions(data, benchmark,
    task, body) reads one task's timeline again. reader_prompt: the name of the prompt that holds `{context}`.
    official_prompts: SHA-256 by prompt name; official_folder: where a release keeps them. export_timeline gives the
    exchange form of one task. published_tasks: the size of the whole release. attribute(verdicts, by_rule=…) is the
    class of one task's trials (MEASURING §7). condition: what every table says of the data as a whole. probes(gold,
    other) constructs answers from a question's gold and that of another one of its type (None: there is no other).
    """

    name: str
    citation: str
    variants: tuple[str, ...]
    queries: tuple[str, ...]
    load: Callable[[Path, LoadOptions], Loaded]
    sessions: Callable[[Path, str, str, TaskBody], list[Session]]
    metrics: tuple[Metric, ...]
    measures: tuple[Measure, ...]
    reader_prompt: str
    reader: ModelDefaults
    judge: ModelDefaults
    official_folder: str
    official_prompts: Mapping[str, str]
    export_timeline: Callable[[Path, str, str, TaskBody], dict[str, Any]]
    published_tasks: int
    attribute: Callable[..., str] | None = None
    condition: str | None = None
    probes: Callable[[Gold, Gold | None], Probes] | None = None

    @property
    def judge_prompts(self) -> list[str]:
        """The names of the prompts that judges are sent, sorted."""
        return sorted({metric.prompt for metric in self.metrics if metric.prompt})

    def metric(self, name: str) -> Metric:
        """The metric of that name. Raises KeyError."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        raise KeyError(name)
