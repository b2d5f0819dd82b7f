"""import: results that others made become retrievals, answers and verdicts of `imported-NAME`.

A file's own numbers are kept beside the records as they were, and never stand for what is measured here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memtrials import benchmarks
from memtrials.benchmarks.base import Metric
from memtrials.errors import UserError, unknown
from memtrials.exchange import artifacts, questions
from memtrials.exchange.artifacts import Artifact
from memtrials.exchange.cells import benchmark_in
from memtrials.exchange.departures import LABEL
from memtrials.exchange.imported import Imports, append
from memtrials.exchange.results import Result
from memtrials.index import LedgerIndex
from memtrials.ledger import Ledger
from memtrials.outcome import Outcome
from memtrials.records import (
    AnswerBody,
    Gold,
    Header,
    Query,
    RetrievalBody,
    VerdictBody,
    clean_text,
)
from memtrials.stages import build
from memtrials.stages.common import Options

METRIC = "accuracy"
"""What the released verdicts decide."""


@dataclass(frozen=True)
class ImportRequest:
    """Which files to take in. A file of memories belongs to the judged answers named before it.

    benchmark: where several are built; name: the system's, instead of what the file's name begins with.
    """

    files: Sequence[Path]
    benchmark: str | None = None
    name: str | None = None


def run(request: ImportRequest, options: Options) -> Outcome:
    """Take in what the ledger doesn't hold yet. Raises UserError, before anything is written, for a file that isn't
    right or isn't about the questions that were built."""
    groups = read(request)
    ledger = Ledger.open(options.trials, create=True)
    outcome = Outcome("import")
    try:
        for artifact in groups:
            _take(ledger, artifact, request, options, outcome)
    finally:
        ledger.close()
    outcome.pending = outcome.done = outcome.appended
    return outcome


def read(request: ImportRequest) -> list[Artifact]:
    """The files, memories joined to the answers they belong to. Raises UserError."""
    found: list[Artifact] = []
    for path in request.files:
        artifact = artifacts.read(path)
        before = found[-1] if found else None
        if artifact.judged or before is None or "memories_sha256" in before.hashes:
            found.append(artifact)
        else:
            found[-1] = artifacts.together(before, artifact)
    if request.name is not None and len(found) > 1:
        raise UserError(f"--name is for one system, these files are {len(found)}; import them one by one")
    return found


def system_name(artifact: Artifact, name: str | None) -> str:
    """What the system is called: `name`, else what the file's name begins with (`mem0_locomo_judged` is mem0's)."""
    return name or artifact.path.name.partition(".")[0].partition("_")[0]


def _take(ledger: Ledger, artifact: Artifact, request: ImportRequest, options: Options, outcome: Outcome) -> None:
    index = LedgerIndex(ledger)
    benchmark = _benchmark(index, artifact, request.benchmark)
    if benchmark == questions.BENCHMARK and benchmark not in index.benchmarks:
        loaded = questions.load(artifact)
        options.trials.parent.mkdir(exist_ok=True)
        outcome.notes += [loaded.release.attribution, *loaded.notes]
        outcome.appended += append(index, [build.task_record(loaded.name, *task) for task in loaded.tasks])
        ledger.refresh()
        index = LedgerIndex(ledger)
    elif benchmark == questions.BENCHMARK:
        questions.refuse_strangers(artifact, [task for name, task in index.tasks if name == benchmark])
    taking = _Taking(index, benchmark, artifact, system_name(artifact, request.name))
    for result in artifact.results:
        taking.take(result)
    done = append(index, taking.imports.fresh)
    ledger.refresh()
    outcome.appended += done
    outcome.notes += taking.notes()


def _benchmark(index: LedgerIndex, artifact: Artifact, named: str | None) -> str:
    """Where a file's results go. Raises UserError."""
    if artifact.family == "locomo":
        return benchmark_in(index, "locomo", named)
    built = [name for name in index.benchmarks if name.partition("@")[0] == artifact.family]
    if named == questions.BENCHMARK or (named in (None, artifact.family) and not built):
        return questions.BENCHMARK
    return benchmark_in(index, artifact.family, named)


class _Taking:
    """One file on its way into a ledger."""

    def __init__(self, index: LedgerIndex, benchmark: str, artifact: Artifact, name: str) -> None:
        self.index = index
        self.benchmark = benchmark
        self.artifact = artifact
        self.imports = Imports(index, benchmark, name)
        self.metric: Metric = benchmarks.find(benchmark).metric(METRIC)
        self.counts: Counter[str] = Counter()
        judged = artifact.hashes.get("file_sha256")
        self.own: Mapping[str, Any] = {"file_sha256": judged} if judged else artifact.hashes
        self.system = self.imports.config("system", self.own)
        self.fetch = self.imports.config("fetch", artifact.hashes)
        self.states: dict[str, dict[str | None, int]] = {}
        self._orders: dict[tuple[str, bool], Sequence[Query]] = {}
        self._by_text: dict[str, list[str]] | None = None
        self._samples = [task for name, task in index.tasks if name == benchmark]

    def take(self, result: Result) -> None:
        """The records of one result."""
        task, query, gold = self._question(result)
        states = self.states.setdefault(task, {})
        ingest = self.imports.ingest(task, self.system, states.setdefault(result.state, len(states) + 1))
        trial = self.imports.retrieval(ingest, query, self.fetch, self._retrieval(result, query), result.trial)
        self.counts["context unknown"] += result.context is None
        self.counts["other date"] += None not in (result.date, query.date) and result.date != query.date
        if result.answer is None:
            return
        reader = self.imports.config("reader", self._role(result.reader))
        if not result.answer.strip():
            self.counts["empty"] += 1
            self.imports.no_answer(trial, reader, "imported without an answer")
            return
        judged = self.metric.asks(query, gold)
        said = dict(result.said) if judged else {**result.said, LABEL: list(result.verdicts)}
        text = clean_text(result.answer)
        answer = self.imports.answer(trial, reader, AnswerBody(text=text, raw=_json(said)))
        if judged and result.verdicts:
            self._verdicts(result, answer)

    def _verdicts(self, result: Result, answer: Header) -> None:
        judge = self.imports.config("judge", self._role(result.judge))
        for repeat, label in enumerate(result.verdicts, 1):
            body = VerdictBody(score=float(label), reason="", raw=_json(result.judged))
            self.imports.verdict(answer, judge, self.metric.name, body, repeat)

    def _role(self, model: str | None) -> dict[str, Any]:
        return {**self.own, **({} if model is None else {"model": model})}

    def _retrieval(self, result: Result, query: Query) -> RetrievalBody:
        context = None if result.context is None else clean_text(result.context)
        date = result.date if result.date is not None else query.date
        return RetrievalBody(question=query.text, date=date, context=context, raw=_json(result.retrieved))

    # --- which question a result is about ---

    def _question(self, result: Result) -> tuple[str, Query, Gold]:
        """Its task, query and gold. Raises UserError where the built data asks or answers otherwise."""
        if result.place.family == "locomo":
            task, query = self._by_position(result)
        else:
            task, query = self._by_name(result)
        gold = self.index.task(self.benchmark, task).gold_of(query.id)
        if clean_text(result.question) != query.text:
            raise self._differs(result, "question", result.question, query.text)
        type_ = query.type if result.place.family == "longmemeval" else gold.details["category"]
        if result.type != type_:
            raise self._differs(result, "type", result.type, type_)
        if self.metric.asks(query, gold) and clean_text(result.gold) not in gold.answers:
            raise self._differs(result, "gold answer", result.gold, ", ".join(gold.answers))
        return task, query, gold

    def _by_position(self, result: Result) -> tuple[str, Query]:
        """A sample's name, or its place in the data, and a position in it: never a text, some occur twice."""
        sample, position = result.place.sample, result.place.position
        name = sample
        if isinstance(sample, int):
            name = self._samples[sample] if sample < len(self._samples) else None
        if (self.benchmark, name) not in self.index.tasks:
            raise self._error(result, f"{self.benchmark} has no conversation {sample}")
        queries = self._asked(str(name), judged=isinstance(sample, int))
        if position >= len(queries):
            raise self._error(result, f"{name} has {len(queries)} questions that it may be, not {position + 1}")
        return str(name), queries[position]

    def _asked(self, task: str, *, judged: bool) -> Sequence[Query]:
        """The questions of a task in order: all, or those that the metric is about."""
        if (task, judged) not in self._orders:
            body = self.index.task(self.benchmark, task)
            golds = {gold.query: gold for gold in body.gold}
            self._orders[task, judged] = [q for q in body.queries if not judged or self.metric.asks(q, golds[q.id])]
        return self._orders[task, judged]

    def _by_name(self, result: Result) -> tuple[str, Query]:
        """A question's id or, where the file has none, its text, which must be unique."""
        task = None if result.place.id is None else clean_text(result.place.id)
        if task is None:
            found = self._texts.get(clean_text(result.question), [])
            if len(found) != 1:
                what = "isn't in" if not found else f"stands {len(found)} times in"
                raise self._error(result, f"its question {what} {self.benchmark}")
            (task,) = found
        elif (self.benchmark, task) not in self.index.tasks:
            raise self._error(result, str(unknown(f"question of {self.benchmark}", task, self._samples)))
        return task, self.index.task(self.benchmark, task).queries[0]

    @property
    def _texts(self) -> Mapping[str, list[str]]:
        if self._by_text is None:
            self._by_text = {}
            for task in self._samples:
                text = self.index.task(self.benchmark, task).queries[0].text
                self._by_text.setdefault(text, []).append(task)
        return self._by_text

    def _error(self, result: Result, what: str) -> UserError:
        return UserError(f"{self.artifact.path}, {result.name}: {what}")

    def _differs(self, result: Result, field: str, given: str, built: str | None) -> UserError:
        return self._error(result, f"its {field} is {given!r}, {self.benchmark} has {built!r}")

    # --- what to say ---

    def notes(self) -> list[str]:
        """What a reader of the numbers must know of the file."""
        name, of = self.imports.name, len(self.artifact.results)
        notes = [f"{name}: {of} results of {self.benchmark}"]
        if self.counts["context unknown"]:
            notes.append(f"{name}: {self.counts['context unknown']} without a context; they can't be answered again")
        if self.counts["other date"]:
            notes.append(f"{name}: {self.counts['other date']} were asked on another date than {self.benchmark} has")
        if self.counts["empty"]:
            notes.append(f"{name}: {self.counts['empty']} have no answer, which is the reader's failure")
        return notes


def _json(value: Mapping[str, Any]) -> str | None:
    """What others made is kept as text."""
    return json.dumps(value, ensure_ascii=False) if value else None
