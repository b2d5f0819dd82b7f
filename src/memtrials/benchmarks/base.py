"""What a benchmark is to the stages: data that becomes tasks, timelines on demand, prompts, metrics and rules.

A benchmark is one module with a constant `BENCHMARK`. The stages know nothing else of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from memtrials.benchmarks.timeline import Session
from memtrials.errors import UserError
from memtrials.records import Gold, IngestBody, Item, Query, Release, RetrievalBody, TaskBody
from memtrials.settings import Settings

if TYPE_CHECKING:
    from memtrials.benchmarks.enrichment import Graph, Naming
    from memtrials.benchmarks.life import Script
    from memtrials.embeddings.base import Offline


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
    """Prompt texts by name, with where they are from: `default`, `official`, `own`, or a named set. official: whether
    they are the publisher's, by hash."""

    texts: Mapping[str, str]
    source: str
    official: bool = False


Asks = Callable[[Query, Gold], bool]
"""Which questions something is about. It may look at gold: readers and systems never see what it says."""


def every(query: Query, gold: Gold) -> bool:
    """All questions."""
    return True


def answered(query: Query, gold: Gold) -> bool:
    """Questions that have a gold answer."""
    return bool(gold.answers)


@dataclass(frozen=True)
class Metric:
    """A verdict: what it reads, who may decide it and by which prompt or rule.

    reads: the record it is a child of. asks: the questions it is about. fields: what the judge sees, in order: names
    in `Gold.details`, or `context`, `query`, `answer`, `gold`. probed: the questions with whose constructed answers its
    judges are probed, where those are others. prompts: names of its judge prompts (none: only the rule decides);
    prompt_of says which one a question takes where there are several. rule: score and reason from context,
    answer and gold (None: needs a model). verbatim: null for systems that don't return turns unchanged. diagnostic:
    ours, not part of the published protocol, so never class P.
    """

    name: str
    about: str
    reads: Literal["retrieval", "answer"]
    asks: Asks = every
    probed: Asks | None = None
    fields: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()
    prompt_of: Callable[[Query, Gold], str] | None = None
    rule: Callable[[str, str, Gold], tuple[float, str]] | None = None
    verbatim: bool = False
    diagnostic: bool = False

    @property
    def reads_context(self) -> bool:
        """Whether it can't be decided where the context is unknown."""
        return self.reads == "retrieval" or "context" in self.fields

    def prompt(self, query: Query, gold: Gold) -> str:
        """The name of the judge prompt that a question takes."""
        return self.prompts[0] if self.prompt_of is None else self.prompt_of(query, gold)


@dataclass(frozen=True)
class CutOff:
    """What a measure at k looks at: the first k. of: what a history is made of at its level, in words, such as
    `sessions`; size: how many of those a task's history has. A k of that size or more takes in everything."""

    k: int
    of: str
    size: Callable[[TaskBody], int]


@dataclass(frozen=True)
class Measure:
    """A formula over one retrieval's items or one answer's text and the gold, computed by `metrics` and never stored.

    value takes the items (None: the system gives no ids) or the answer's text, as `reads` says; None where the formula
    has no value. summary: how questions become one number: `share` (values in [0, 1] that count something), `mean`, or
    `median`. cutoff: where it looks at the first k; it isn't computed where fewer were asked for.
    """

    name: str
    about: str
    value: Callable[[Any, Gold], float | None]
    summary: Literal["share", "mean", "median"]
    asks: Asks = every
    reads: Literal["retrieval", "answer"] = "retrieval"
    cutoff: CutOff | None = None


@dataclass(frozen=True)
class Trial:
    """A retrieval with all that it was made of. items: those that stand whole in the context, None where that isn't
    known; fetch: the settings it was asked with."""

    task: TaskBody
    query: str
    ingest: IngestBody
    retrieval: RetrievalBody
    items: Sequence[Item] | None
    fetch: Mapping[str, Any]


@dataclass(frozen=True)
class Rows:
    """Many values of each whole trial, computed together by `metrics` and never stored.

    names: all of them. values(trial) gives each by its name: a number, or why there is none, in words. shown: those
    that tables show unless others are named.
    """

    names: tuple[str, ...]
    values: Callable[[Trial], Mapping[str, float | str]]
    shown: tuple[str, ...]


@dataclass(frozen=True)
class Part:
    """A named part or other average of a benchmark's questions, shown beside each metric's overall value.

    asks: the questions in it. over_types: the mean of the types' shares instead of that of the questions. with_measure:
    an answer measure, a share, that scores the questions which the metric isn't about (LoCoMo's fifth category).
    metrics: those, and answer measures, that it is shown for.
    """

    name: str
    metrics: tuple[str, ...]
    asks: Asks = every
    over_types: bool = False
    with_measure: str | None = None


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
class ReaderProfile:
    """A way of asking a reader, part of its identity.

    prompt: name of the text that holds `{context}`; whole_message: it holds `{question}` and `{date}` too and is the
    one user message (else it is the system message, and the question the user's). model, parameters: the published.
    guidance: names the text that stands for `{guidance}` for a question. It sees the question's type and gold, so a
    profile that has it isn't blind. texts: the names of all prompt texts it uses. clean: makes the answer of a reply's
    text; its name is part of the reader's identity, so another way of cleaning has another name.
    """

    prompt: str
    model: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    whole_message: bool = False
    guidance: Callable[[Query, Gold], str] | None = None
    texts: tuple[str, ...] = ()
    clean: Callable[[str], str] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All its prompt texts."""
        return (self.prompt, *self.texts)


WordRule = Literal["strict", "strict-label", "official", "last-line"]
VerdictRule = Literal["score"] | WordRule
"""How a judge's reply is read: `score` is a JSON object with a score, the others are words (`judging/verdicts.py`)."""


@dataclass(frozen=True)
class JudgeProfile:
    """How judges are asked with one set of prompts. model, parameters: the published ones.

    rule: how a reply is read (see `judging/verdicts.py`). whole_message: a prompt is the one user message and holds
    `{query}`, `{gold}`, `{answer}` or other fields (else it is the system message, and the fields are the user's).
    """

    model: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    rule: VerdictRule = "score"
    whole_message: bool = False


PLAIN = "plain"
"""The reader's profile that is blind: question, date and context, nothing else."""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark as the stages use it.

    reference: BibTeX fields of what describes it, as far as they are known.
    load(data, options) validates and derives tasks; raises UserError with every problem. sessions(data, benchmark,
    task, body) reads one task's timeline again. queries: the names of queries that every task has, if they have names.
    readers: profiles by name, `plain` among them. judges: by set of prompts, `default` among them. official_prompts:
    SHA-256 by name of the texts that official_texts(upstream, names) finds in a clone. export_timeline gives the
    exchange form of one task. types: in the order of tables (none: by name). published_tasks: the size of the whole
    release; published: the variants that can be class P.
    attribute(verdicts, by_rule=…) is the class of one task's trials (MEASURING §7); without it each question has
    one, by its evidence. located: the metrics whose wrong verdicts are looked into; probed: the evidence that a
    storage probe asks for. worded: the questions whose gold answer's words an answer can be compared with. condition:
    what every table says of the data as a whole. probes(gold, other) constructs answers from a question's gold and that
    of another one of its type (None: there is no other).
    readers: none where no answers are asked for. bundled: where its data is when nobody says. life(data, benchmark,
    task, body) reads a scripted life again, for tasks whose queries have places; vectors(data, tasks, settings) are
    those that these tasks declare, settled for all before the first is replayed. Both raise UserError.
    rows: values of whole trials. sample: whether its questions stand for others like them; where they don't, numbers
    have no intervals and differences no tests.
    naming: how files of what was precomputed call its tasks. derived(data, benchmark, task, body): what the data itself
    concluded from a history, by the data's names, for tasks that need a system which can be told (`enrich`).
    """

    name: str
    citation: str
    reference: Mapping[str, str]
    variants: tuple[str, ...]
    load: Callable[[Path, LoadOptions], Loaded]
    sessions: Callable[[Path, str, str, TaskBody], list[Session]]
    metrics: tuple[Metric, ...]
    measures: tuple[Measure, ...]
    readers: Mapping[str, ReaderProfile]
    judges: Mapping[str, JudgeProfile]
    export_timeline: Callable[[Path, str, str, TaskBody], dict[str, Any]]
    published_tasks: int
    published: tuple[str, ...]
    official_prompts: Mapping[str, str] = field(default_factory=dict)
    official_texts: Callable[[Path, Sequence[str]], Mapping[str, str]] | None = None
    queries: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    attribute: Callable[..., str] | None = None
    located: tuple[str, ...] = ()
    probed: Callable[[Gold], Sequence[str]] = lambda gold: gold.evidence
    worded: Asks = answered
    condition: str | None = None
    probes: Callable[[Gold, Gold | None], Probes] | None = None
    bundled: Callable[[], Path] | None = None
    life: Callable[[Path, str, str, TaskBody], Script] | None = None
    vectors: Callable[[Path, Sequence[str], Settings], Mapping[str, Offline]] | None = None
    rows: Rows | None = None
    sample: bool = True
    naming: Naming | None = None
    derived: Callable[[Path, str, str, TaskBody], Graph] | None = None

    @property
    def judge_prompts(self) -> list[str]:
        """The names of the prompts that judges are sent, sorted."""
        return sorted({prompt for metric in self.metrics for prompt in metric.prompts})

    def metric(self, name: str) -> Metric:
        """The metric of that name. Raises KeyError."""
        for metric in self.metrics:
            if metric.name == name:
                return metric
        raise KeyError(name)


def read_text(path: Path, hint: str = "check --upstream") -> str:
    """A prompt's text, with LF line ends. Raises UserError, with the hint where the file is missing."""
    try:
        return path.read_bytes().replace(b"\r\n", b"\n").decode()
    except FileNotFoundError:
        raise UserError(f"{path}: this prompt is missing; {hint}") from None
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text") from None
