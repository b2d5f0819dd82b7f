"""One fold of a ledger: which records are selected, how they fall into cells and rows, and the values kept of them.

A number is over one cell: one benchmark, system, fetch configuration, reader and judge. Nothing else may share it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from memtrials import errata
from memtrials.benchmarks.base import Asks, Benchmark, every
from memtrials.index import LedgerIndex
from memtrials.judging import probing
from memtrials.metrics.numbers import Cell, Place, Question, Scores
from memtrials.records import FailureBody, Header
from memtrials.selection import Chosen
from memtrials.stages.contrasts import ALL_PAIRS, Contrasting
from memtrials.tokens import ENCODING, Vocabulary, count_tokens

View = Literal["latest", "first"]
By = Literal["type", "domain", "task", "system", "reader", "judge", "repeat"]
Grouped = TypeVar("Grouped")

QUESTIONS: dict[str, Callable[[str, str | None], str]] = {
    "type": lambda task, type_: type_ or "none",
    "domain": lambda task, type_: type_ or "none",
    "task": lambda task, type_: task,
}
"""What rows are that hold whole questions, of a question's task and type."""

UNITS = {"mean": "score", "median": "rank"}
"""A number's unit by its measure's summary, where it has another name."""


@dataclass(frozen=True)
class MetricsRequest:
    """How to fold. reader and judge: names or ids to keep (None: all). view: `latest` takes the last record of each
    question instead of the mean over its repeats, as MemoryBear does; `first` the first one. errata: also show each
    share without the questions whose gold is known to be wrong or doubtful, and what true answers can reach.
    contrasting: which differences are wanted. lexical: recipes by which answers are compared with gold answers.
    context: contexts beside whole histories, which are read from the data again. vocabularies: others to count contexts
    in. cost: what judged numbers cost, at today's prices."""

    by: By | None = None
    view: View | None = None
    reader: str | None = None
    judge: str | None = None
    metrics: tuple[str, ...] = ()
    errata: bool = False
    contrasting: Contrasting = ALL_PAIRS
    lexical: tuple[str, ...] = ()
    context: bool = False
    vocabularies: tuple[Vocabulary, ...] = ()
    cost: bool = False


class Folding:
    """One fold: the selected records and what all numbers need of them."""

    def __init__(self, index: LedgerIndex, request: MetricsRequest, chosen: Chosen, *, subset: bool) -> None:
        self.index = index
        self.request = request
        self.chosen = chosen
        self.subset = subset
        self.readers = set(index.resolve(request.reader, "reader")) if request.reader not in (None, "all") else None
        self.judges = set(index.resolve(request.judge, "judge")) if request.judge else None
        self.judges_in_order = {config: n for n, config in enumerate(index.configs)}
        self.on_results = [h for h in index.of("verdict") if not probing.probed(h)]
        self.failures = [some[-1] for work, some in index.failures.items() if work not in index.done]
        self.scores: dict[tuple[Cell, str], Scores] = {}
        self._tokens: dict[tuple[str, Vocabulary], int] = {}
        self._questions: dict[tuple[str, Asks], dict[Place, Question]] = {}
        self._errata: dict[str, errata.Listed] = {}

    def questions(self, name: str, asks: Asks = every) -> dict[Place, Question]:
        """Every selected question (task, query) that something is about, with its cluster and type."""
        if (name, asks) not in self._questions:
            about = self.index.questions(name, asks)
            self._questions[name, asks] = {
                (task, q.id): (q.cluster, q.type)
                for benchmark, task in self.index.tasks
                if benchmark == name
                for q in self.index.task(benchmark, task).queries
                if (task, q.id) in about and (benchmark, task, q.id) in self.chosen.queries
            }
        return self._questions[name, asks]

    def kept(self, header: Header) -> bool:
        """Whether a record is selected, by its question, reader and judge."""
        if not self.chosen.holds(header):
            return False
        if self.judges is not None and header.judge is not None and header.judge not in self.judges:
            return False
        return self.readers is None or header.reader is None or header.reader in self.readers

    def cells(self, kind: Literal["retrieval", "answer"], name: str) -> dict[Cell, list[Header]]:
        """The selected retrievals or answers of a benchmark that count in the view, by cell."""
        cells: dict[Cell, list[Header]] = defaultdict(list)
        for header in self.index.of(kind):
            if header.benchmark == name and self.kept(header):
                cells[Cell(name, header.system or "", header.fetch or "", header.reader)].append(header)
        return {cell: self.viewed(some) for cell, some in cells.items()}

    def viewed(self, headers: list[Header]) -> list[Header]:
        """The records that count in the view: all, or the last or first of each question, by trial, then answer, then
        itself."""
        if self.request.view is None:
            return headers
        position = self.index.ledger.position
        latest = self.request.view == "latest"
        in_order = sorted(headers, key=lambda h: [position(a.id) for a in self.lineage(h)], reverse=not latest)
        return list({(header.task, header.query): header for header in in_order}.values())

    def lineage(self, header: Header) -> list[Header]:
        """A record's ancestors from the ingest down to itself."""
        chain = [header]
        while chain[0].kind not in ("ingest", "task"):
            chain.insert(0, self.index.parent(chain[0]))
        return chain

    @property
    def by_type(self) -> bool:
        """Whether rows are types."""
        return self.request.by in ("type", "domain")

    def groups(self, questions: Mapping[Place, Question]) -> list[str]:
        """The rows that questions fall into, where a question is in one only."""
        split = QUESTIONS.get(self.request.by or "")
        return [] if split is None else list(dict.fromkeys(split(p[0], q[1]) for p, q in questions.items()))

    def in_group(self, questions: Mapping[Place, Question], group: str | None) -> dict[Place, Question]:
        """The questions that a row is over."""
        split = QUESTIONS.get(self.request.by or "")
        return {p: q for p, q in questions.items() if split is None or split(p[0], q[1]) == group}

    def group(self, chain: list[Header], type_: str | None) -> str | None:
        """The row that a record falls into, of its ancestors down to itself and its question's type."""
        trial = next(h for h in chain if h.kind == "retrieval")
        split = QUESTIONS.get(self.request.by or "")
        if split is not None:
            return split(trial.task or "", type_)
        return str(trial.repeat) if self.request.by == "repeat" else None

    def keep(self, of: Scores, chain: Sequence[Header], value: float) -> None:
        """Keep one value of a number with the question and the run that it is of, for differences and repeats."""
        kept = self.scores.setdefault((of.cell, of.metric), of)
        place = (chain[-1].task or "", chain[-1].query or "")
        ordinals = {header.kind: str(header.repeat or 1) for header in chain}
        run = tuple(ordinals.get(kind, "1") for kind in ("ingest", "retrieval", "answer", "verdict"))
        kept.runs.setdefault(place, {})[run] = value

    def cause(self, cell: Cell, metric: str | None, task: str, query: str) -> str | None:
        """Why a question of a cell has no result: the cause of the latest failure on its way."""
        place: dict[str, str | None] = {
            "benchmark": cell.benchmark,
            "task": task,
            "query": query,
            "system": cell.system,
            "fetch": cell.fetch,
        }
        place |= {"reader": cell.reader, "judge": cell.judge, "metric": metric}
        for header in reversed(self.failures):
            if all(getattr(header, name) in (None, value) for name, value in place.items() if value is not None):
                return self.index.ledger.body(header, FailureBody).cause
        return None

    def listed(self, name: str) -> errata.Listed:
        """The known errors in a built benchmark's gold."""
        if name not in self._errata:
            self._errata[name] = errata.listed(self.index, name)
        return self._errata[name]

    def context_tokens(self, trial: Header, context: str, vocabulary: Vocabulary = ENCODING) -> int:
        """Tokens of a retrieval's context, each counted once."""
        assert trial.content is not None
        if (trial.content, vocabulary) not in self._tokens:
            self._tokens[trial.content, vocabulary] = count_tokens(context, vocabulary)
        return self._tokens[trial.content, vocabulary]


def in_order(benchmark: Benchmark, groups: Mapping[str | None, Grouped]) -> list[tuple[str | None, Grouped]]:
    """Groups as tables show them: types as the benchmark lists them, others by name."""
    place = {name: n for n, name in enumerate(benchmark.types)}
    return sorted(groups.items(), key=lambda pair: (place.get(pair[0] or "", len(place)), pair[0] or ""))
