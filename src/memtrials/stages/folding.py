"""One fold of a ledger: questions, and the numbers that verdicts and formulas give over them.

A number is over one cell: one benchmark, system, fetch configuration, reader and judge. Nothing else may share it.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Literal, NamedTuple, TypeVar

from memtrials import benchmarks, errata, systems
from memtrials.benchmarks.base import PLAIN, Asks, Benchmark, Measure, Metric, Part, Trial, every
from memtrials.exchange.departures import departure, pairs
from memtrials.exchange.imported import PREFIX
from memtrials.index import LedgerIndex
from memtrials.judging import probing
from memtrials.judging.verdicts import STRICT, UnreadableError, read_verdict
from memtrials.llm.local import is_bundled
from memtrials.llm.money import longest_reply
from memtrials.metrics import accuracy, recipes
from memtrials.metrics.context import efficiency
from memtrials.metrics.numbers import (
    Cell,
    Departure,
    Number,
    Place,
    Question,
    Scores,
    Tradeoff,
)
from memtrials.metrics.retrieval import places
from memtrials.metrics.rows import summary
from memtrials.metrics.statistics import general_interval, nested_mean, percentile, stratified_interval
from memtrials.records import AnswerBody, Call, ConfigBody, FailureBody, Header, IngestBody, RetrievalBody, VerdictBody
from memtrials.selection import Chosen
from memtrials.stages import contexts, tradeoffs
from memtrials.stages.contrasts import ALL_PAIRS, Contrasting
from memtrials.systems.scripted import obstacle
from memtrials.tokens import ENCODING, Vocabulary, count_tokens

View = Literal["latest", "first"]
By = Literal["type", "domain", "task", "system", "reader", "judge", "repeat"]
Grouped = TypeVar("Grouped")
Ratings = dict[tuple[str, int], dict[str, float]]
"""Scores by item, by judge and ordinal."""

QUESTIONS: dict[str, Callable[[str, str | None], str]] = {
    "type": lambda task, type_: type_ or "none",
    "domain": lambda task, type_: type_ or "none",
    "task": lambda task, type_: task,
}
"""What rows are that hold whole questions, of a question's task and type."""

RATIOS = ("context-compression", "context-reduction")
EXTREMES: dict[str, Callable[[list[float]], float | None]] = {
    "median": partial(percentile, q=50),
    "min": min,
    "max": max,
}
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


WITHOUT_ERRATA = "without disputed gold"
CEILING = "ceiling of the gold"
Means = Mapping[Place, float]
"""Questions' scores, repeats averaged."""
Make = Callable[[Mapping[Place, Question], Means], Number]
"""A number over some questions, of their scores."""


@dataclass
class _Scored:
    """Verdicts of one number. paths: by question; returned: models by role; loose: read by a published rule as a strict
    one wouldn't; raised: asked with more than the published limit."""

    paths: dict[Place, list[tuple[tuple[str, ...], float]]] = field(default_factory=lambda: defaultdict(list))
    returned: set[tuple[str, str]] = field(default_factory=set)
    flagged: int = 0
    loose: int = 0
    raised: int = 0

    @property
    def means(self) -> dict[Place, float]:
        """Each question's score, repeats averaged."""
        return {place: nested_mean(paths) for place, paths in self.paths.items()}


class _Valued(NamedTuple):
    """What one trial is worth, by name, and its ancestors down to itself."""

    chain: list[Header]
    values: Mapping[str, float | str]


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
        self.words = words_compared(dict.fromkeys(request.lexical))
        self.wordless = {name: why for recipe in request.lexical for name, why in recipes.unavailable(recipe).items()}
        self._tokens: dict[tuple[str, Vocabulary], int] = {}
        self._histories: dict[str, contexts.Histories] = {}
        self._questions: dict[tuple[str, Asks], dict[Place, Question]] = {}
        self._errata: dict[str, errata.Listed] = {}

    # --- questions ---

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

    def lineage(self, header: Header) -> list[Header]:
        """A record's ancestors from the ingest down to itself."""
        chain = [header]
        while chain[0].kind not in ("ingest", "task"):
            chain.insert(0, self.index.parent(chain[0]))
        return chain

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

    def _keep(self, of: Scores, chain: Sequence[Header], value: float) -> None:
        """Keep one value of a number with the question and the run that it is of, for differences and repeats."""
        kept = self.scores.setdefault((of.cell, of.metric), of)
        place = (chain[-1].task or "", chain[-1].query or "")
        ordinals = {header.kind: str(header.repeat or 1) for header in chain}
        run = tuple(ordinals.get(kind, "1") for kind in ("ingest", "retrieval", "answer", "verdict"))
        kept.runs.setdefault(place, {})[run] = value

    # --- errata ---

    def listed(self, name: str) -> errata.Listed:
        """The known errors in a built benchmark's gold."""
        if name not in self._errata:
            self._errata[name] = errata.listed(self.index, name)
        return self._errata[name]

    def _by_errata(self, number: Number, make: Make, scope: Mapping[Place, Question], means: Means) -> list[Number]:
        """A number over the questions in scope once more, where it was asked for and they have errata: without these
        questions, and as the share that true answers reach, each of which is wrong by a gold that is.

        A mean that counts nothing has no ceiling: an answer may share words with a wrong gold.
        """
        about = self.listed(number.cell.benchmark).questions if self.request.errata else {}
        doubted = {place: about[place].what for place in scope if place in about}
        if not doubted:
            return []
        numbers = []
        if rest := {place: question for place, question in scope.items() if place not in doubted}:
            without = make(rest, means)
            class_ = "M" if without.class_ == "P" else without.class_  # no published protocol leaves questions out
            numbers.append(replace(without, class_=class_, group=number.group, part=_joined(number, WITHOUT_ERRATA)))
        if number.unit == "share":
            top = make(scope, {place: float(doubted.get(place) not in errata.UNREACHABLE) for place in scope})
            part = _joined(number, CEILING)
            most = Number(number.cell, number.metric, "share", top.value, top.n, top.of, group=number.group, part=part)
            numbers.append(replace(most, types=top.types, subset=self.subset))
        return numbers

    # --- verdicts ---

    def verdicts(self, benchmark: Benchmark, name: str) -> list[Number]:
        """The numbers that judges decide, and a null with its reason for every one that isn't there."""
        numbers: list[Number] = []
        trials = self._cells("retrieval", name)
        for metric in benchmark.metrics:
            if self.request.metrics and metric.name not in self.request.metrics:
                continue
            cells: dict[Cell, list[Header]] = defaultdict(list)
            for verdict in self.on_results:
                if verdict.benchmark == name and verdict.metric == metric.name and self.kept(verdict):
                    reader = verdict.reader if metric.reads == "answer" else None
                    cells[Cell(name, verdict.system or "", verdict.fetch or "", reader, verdict.judge)].append(verdict)
            for failure in self.failures:
                if failure.stage == "judge" and failure.benchmark == name and failure.metric == metric.name:
                    reader = failure.reader if metric.reads == "answer" else None
                    if self.kept(failure):
                        cells[Cell(name, failure.system or "", failure.fetch or "", reader, failure.judge)] += []
            for cell, verdicts in cells.items():
                numbers += self._shares(benchmark, metric, cell, self._viewed(verdicts))
            judged = {(cell.system, cell.fetch) for cell in cells}
            numbers += [
                Number(
                    cell,
                    metric.name,
                    "share",
                    None,
                    0,
                    len(self.questions(name, metric.asks)),
                    reason=self._why_not(metric, cell),
                    subset=self.subset,
                )
                for cell in trials
                if (cell.system, cell.fetch) not in judged
            ]
        return numbers

    def _cells(self, kind: Literal["retrieval", "answer"], name: str) -> dict[Cell, list[Header]]:
        cells: dict[Cell, list[Header]] = defaultdict(list)
        for header in self.index.of(kind):
            if header.benchmark == name and self.kept(header):
                cells[Cell(name, header.system or "", header.fetch or "", header.reader)].append(header)
        return {cell: self._viewed(some) for cell, some in cells.items()}

    def _viewed(self, headers: list[Header]) -> list[Header]:
        """The records that count in the view: all, or the last or first of each question, by trial, then answer, then
        itself."""
        if self.request.view is None:
            return headers
        position = self.index.ledger.position
        latest = self.request.view == "latest"
        in_order = sorted(headers, key=lambda h: [position(a.id) for a in self.lineage(h)], reverse=not latest)
        return list({(header.task, header.query): header for header in in_order}.values())

    def departures(self, benchmark: Benchmark, name: str) -> list[Departure]:
        """Where the numbers that came with imported answers depart from what is recomputed."""
        if self.request.metrics:
            return []
        imported = {c for c in self.index.configs if self.index.config(c).settings.get("system") == PREFIX}
        measures = [measure for measure in benchmark.measures if measure.reads == "answer"]
        return [
            departure(cell, measure.name, found)
            for cell, some in self._cells("answer", name).items()
            if cell.reader in imported
            for measure in measures
            if (found := pairs(self.index, measure, some))
        ]

    def kept(self, header: Header) -> bool:
        if not self.chosen.holds(header):
            return False
        if self.judges is not None and header.judge is not None and header.judge not in self.judges:
            return False
        return self.readers is None or header.reader is None or header.reader in self.readers

    def _why_not(self, metric: Metric, cell: Cell) -> str:
        if metric.reads == "answer" and self._nothing_answered(cell):
            return "no answer: every one that was tried failed"
        if metric.rule is None:
            return "needs a model judge"
        if metric.verbatim and "verbatim" not in self.index.config(cell.system).provenance.get("capabilities", ()):
            return "the system doesn't return turns unchanged"
        return "not judged yet"

    def _nothing_answered(self, cell: Cell) -> bool:
        place = (cell.benchmark, cell.system, cell.fetch)
        tried = any((h.benchmark, h.system, h.fetch) == place for h in self.failures if h.stage == "answer")
        return tried and not any((h.benchmark, h.system, h.fetch) == place for h in self.index.of("answer"))

    def _shares(self, benchmark: Benchmark, metric: Metric, cell: Cell, verdicts: Iterable[Header]) -> list[Number]:
        questions = self.questions(cell.benchmark, metric.asks)
        groups: dict[str | None, _Scored] = defaultdict(_Scored)
        groups.update({group: _Scored() for group in self._groups(questions)})  # without any verdict, too
        for verdict in verdicts:
            chain = self.lineage(verdict)
            place = (verdict.task or "", verdict.query or "")
            body = self.index.ledger.body(verdict, VerdictBody)
            scored = groups[self._group(chain, questions[place][1])]
            scored.paths[place].append((tuple(h.id for h in chain), body.score))
            self._keep(Scores(cell, metric.name, "share", questions), chain, body.score)
            scored.flagged += body.flagged
            scored.loose += self._reads_loosely(cell, body)
            scored.raised += self._is_raised(cell, body.call)
            answers = [self.index.ledger.body(h, AnswerBody) for h in chain if h.kind == "answer"]
            for role, call in (("judge", body.call), *(("reader", a.call) for a in answers)):
                if call and call.model_returned:
                    scored.returned.add((role, call.model_returned))
        if not groups:
            groups[None] = _Scored()
        numbers = []
        for group, scored in _in_order(benchmark, groups):
            scope = self._in_group(questions, group)
            make: Make = partial(self._share, benchmark, metric.name, cell, diagnostic=metric.diagnostic)
            whole = replace(make(scope, scored.means), group=group)
            models = _snapshots(scored.returned)
            marked = replace(whole, flagged=scored.flagged, loose=scored.loose, raised=scored.raised)
            numbers += [replace(marked, models=models), *self._by_errata(whole, make, scope, scored.means)]
            if self.request.by is None:
                numbers += self._parts(benchmark, metric, cell, questions, scored.means)
        return numbers

    @property
    def by_type(self) -> bool:
        """Whether rows are types."""
        return self.request.by in ("type", "domain")

    def _groups(self, questions: Mapping[Place, Question]) -> list[str]:
        """The rows that questions fall into, where a question is in one only."""
        split = QUESTIONS.get(self.request.by or "")
        return [] if split is None else list(dict.fromkeys(split(p[0], q[1]) for p, q in questions.items()))

    def _in_group(self, questions: Mapping[Place, Question], group: str | None) -> dict[Place, Question]:
        split = QUESTIONS.get(self.request.by or "")
        return {p: q for p, q in questions.items() if split is None or split(p[0], q[1]) == group}

    def _reads_loosely(self, cell: Cell, verdict: VerdictBody) -> bool:
        """Whether a strict reading of a reply differs from the published rule that it was read by."""
        rule = self.index.config(cell.judge or "").settings.get("rule", "score") if cell.judge else "score"
        if rule not in STRICT:
            return False
        try:
            return read_verdict(verdict.reason, STRICT[rule])[0] != verdict.score
        except UnreadableError:
            return True

    def _is_raised(self, cell: Cell, call: Call | None) -> bool:
        """Whether a verdict was asked for with a larger limit than the published one, because reasoning took that."""
        settings = self.index.config(cell.judge or "").settings if cell.judge else {}
        if "reasoning_limit" not in settings or call is None or call.sent is None:
            return False
        return longest_reply(json.loads(call.sent)) > longest_reply(settings["parameters"])

    def _share(
        self,
        benchmark: Benchmark,
        metric: str,
        cell: Cell,
        scope: Mapping[Place, Question],
        means: Mapping[Place, float],
        *,
        diagnostic: bool = False,
        of_verdicts: bool = True,
    ) -> Number:
        """One number over the questions in scope: headline, coverage, bounds, interval. means: of scored questions."""
        found = self._found(metric if of_verdicts else None, cell, scope, means)
        between = found.interval
        return Number(
            cell,
            metric,
            "share",
            found.headline,
            found.n,
            found.of,
            class_=self._class(benchmark, cell, complete=found.n == found.of, diagnostic=diagnostic),
            score=found.score,
            low=found.low,
            high=found.high,
            interval=(between.low, between.high) if between else None,
            clusters=between.clusters if between else None,
            deff=between.deff if between else None,
            status=found.status,
            missing=found.missing,
            subset=self.subset,
        )

    def _found(
        self, metric: str | None, cell: Cell, scope: Mapping[Place, Question], means: Mapping[Place, float]
    ) -> accuracy.Score:
        causes = {place: self.cause(cell, metric, *place) for place in scope if place not in means}
        clusters = {place: cluster for place, (cluster, _) in scope.items()}
        found = accuracy.share({p: m for p, m in means.items() if p in scope}, clusters, causes)
        assert found is not None
        return found

    def _parts(
        self,
        benchmark: Benchmark,
        of: Metric | Measure,
        cell: Cell,
        questions: Mapping[Place, Question],
        means: Mapping[Place, float],
    ) -> list[Number]:
        """The benchmark's own parts and averages of a metric or answer measure, where there are questions of them."""
        numbers = []
        for part in (p for p in benchmark.parts if of.name in p.metrics):
            about = self.questions(cell.benchmark, part.asks)
            scope = {place: q for place, q in questions.items() if place in about}
            scores = dict(means)
            if part.with_measure is not None:
                measure = next(m for m in benchmark.measures if m.name == part.with_measure)
                other = self.questions(cell.benchmark, measure.asks)
                scope |= {place: q for place, q in other.items() if place in about and place not in questions}
                answers = self._cells("answer", cell.benchmark).get(cell._replace(judge=None), [])
                scores |= {p: v for p, v in self._measured(measure, answers).items() if p not in questions}
            if not scope:
                continue
            make: Make = partial(self._part, benchmark, of, cell, part)
            number = make(scope, scores)
            numbers += [number, *self._by_errata(number, make, scope, scores)]
        return numbers

    def _part(
        self,
        benchmark: Benchmark,
        of: Metric | Measure,
        cell: Cell,
        part: Part,
        scope: Mapping[Place, Question],
        means: Means,
    ) -> Number:
        """One number of a part, over the questions in scope."""
        if isinstance(of, Measure):
            number = self._of_measure(benchmark, of, cell, scope, means)
        else:
            number = self._share(benchmark, of.name, cell, scope, means, diagnostic=of.diagnostic)
        if part.over_types:
            number = self._over_types(number, None if isinstance(of, Measure) else of.name, scope, means)
        return replace(number, part=part.name)

    def _over_types(
        self, number: Number, metric: str | None, scope: Mapping[Place, Question], means: Mapping[Place, float]
    ) -> Number:
        """The mean of the types' shares, types without questions left out; None where a type has no headline."""
        types: dict[str, dict[Place, Question]] = defaultdict(dict)
        for place, question in scope.items():
            types[question[1] or "none"][place] = question
        each = [self._found(metric, number.cell, some, means) for some in types.values()]
        headlines = [found.headline for found in each if found.headline is not None]
        scores = [found.score for found in each if found.score is not None]
        whole = len(headlines) == len(each)
        shown = {p: means.get(p, 0.0) for p in scope if p in means or number.status == "lower bound"}
        between = stratified_interval(
            list(shown.values()), [scope[p][0] for p in shown], [scope[p][1] or "none" for p in shown]
        )
        return replace(
            number,
            types=len(each),
            value=sum(headlines) / len(each) if whole else None,
            score=sum(scores) / len(each) if len(scores) == len(each) else None,
            low=sum(found.low for found in each) / len(each),
            high=sum(found.high for found in each) / len(each),
            interval=(between.low, between.high) if between else None,
            clusters=between.clusters if between else None,
            deff=between.deff if between else None,
        )

    def _group(self, chain: list[Header], type_: str | None) -> str | None:
        trial = next(h for h in chain if h.kind == "retrieval")
        split = QUESTIONS.get(self.request.by or "")
        if split is not None:
            return split(trial.task or "", type_)
        return str(trial.repeat) if self.request.by == "repeat" else None

    def _class(self, benchmark: Benchmark, cell: Cell, *, complete: bool, diagnostic: bool = False) -> str:
        """P, M, D or R: the lowest class of the reader and judge that the number depends on (MEASURING §1)."""
        roles = [c for c in (cell.reader, cell.judge) if c is not None]
        bodies = [self.index.config(c) for c in roles]
        if any(body.settings.get("model") == "offline" for body in bodies):
            return "R"
        if any(is_bundled(body.settings) for body in bodies):
            return "D"
        tasks = [t for b, t in self.index.tasks if b == cell.benchmark]
        released = cell.benchmark.partition("@")[2] in benchmark.published
        whole = complete and not self.subset and len(tasks) == benchmark.published_tasks
        published = all(body.provenance.get("published") for body in bodies)
        return "P" if released and whole and published and not diagnostic else "M"

    # --- measures ---

    def measures(self, benchmark: Benchmark, name: str) -> list[Number]:
        """Numbers that need no judge: hits and ranks, tokens of contexts and cut from them, latency, and values of
        whole trials."""
        numbers = self._of_rows(benchmark, name)
        if self.request.metrics:
            return numbers
        for cell, trials in self._cells("retrieval", name).items():
            grouped: dict[str | None, list[tuple[Header, RetrievalBody]]] = defaultdict(list)
            for trial in trials:
                query_type = self.questions(name)[trial.task or "", trial.query or ""][1]
                body = self.index.ledger.body(trial, RetrievalBody)
                grouped[self._group([trial], query_type)].append((trial, body))
            for group, some in _in_order(benchmark, grouped):
                numbers += self._of_trials(benchmark, cell, group, some)
        for cell, answers in self._cells("answer", name).items():
            calls: dict[str | None, list[Call | None]] = defaultdict(list)
            for said in answers:
                query_type = self.questions(name)[said.task or "", said.query or ""][1]
                group = self._group(self.lineage(said), query_type)
                calls[group].append(self.index.ledger.body(said, AnswerBody).call)
            numbers += self._of_answers(benchmark, cell, answers)
            for group, made in _in_order(benchmark, calls):
                timed = [c for c in made if c and c.seconds is not None and c.attempts == 1]
                seconds = [c.seconds for c in timed if c.seconds is not None]
                numbers += _latency(cell, group, "answer", seconds, len(made), any(c.workers > 1 for c in timed))
        return numbers

    def _of_rows(self, benchmark: Benchmark, name: str) -> list[Number]:
        """Values of whole trials, over all selected questions: one that has no trial is told of among the nulls."""
        rows = benchmark.rows
        wanted = [n for n in rows.names if not self.request.metrics or n in self.request.metrics] if rows else []
        if rows is None or not wanted:
            return []
        numbers = []
        questions = self.questions(name)
        for cell, trials in self._cells("retrieval", name).items():
            made: dict[str | None, dict[Place, list[_Valued]]] = defaultdict(lambda: defaultdict(list))
            for empty in self._groups(questions):
                made[empty] = defaultdict(list)
            for trial in trials:
                place = (trial.task or "", trial.query or "")
                chain = self.lineage(trial)
                found = rows.values(self._trial(trial))
                made[self._group(chain, questions[place][1])][place].append(_Valued(chain, found))
            for group, by_place in _in_order(benchmark, made):
                scope = self._in_group(questions, group)
                absent = Counter(self._why_absent(cell, place) for place in scope if place not in by_place)
                numbers += [self._of_row(cell, name, group, scope, by_place, absent) for name in wanted]
        return numbers

    def _of_row(
        self,
        cell: Cell,
        name: str,
        group: str | None,
        scope: Mapping[Place, Question],
        by_place: Mapping[Place, Sequence[_Valued]],
        absent: Counter[str],
    ) -> Number:
        """One value over the trials of some questions."""
        means = {}
        nulls = Counter(absent)
        for place, some in by_place.items():
            known = [(one.chain, value) for one in some if not isinstance(value := one.values[name], str)]
            for chain, value in known:
                self._keep(Scores(cell, name, "value", self.questions(cell.benchmark)), chain, value)
            if known:
                means[place] = nested_mean((tuple(h.id for h in chain), value) for chain, value in known)
            else:
                nulls[str(some[0].values[name])] += 1
        short = summary(means.values())
        return Number(
            cell,
            name,
            "value",
            short["mean"],
            len(means),
            len(scope),
            group=group,
            reason=None if means else "; ".join(why for why, _ in nulls.most_common()),
            missing=dict(nulls),
            subset=self.subset,
            p50=short["p50"],
            p95=short["p95"],
        )

    def _trial(self, header: Header) -> Trial:
        body = self.index.ledger.body(header, RetrievalBody)
        return Trial(
            self.index.task(header.benchmark or "", header.task or ""),
            header.query or "",
            self.index.ledger.body(self.index.parent(header), IngestBody),
            body,
            self.index.shown(body),
            self.index.config(header.fetch or "").settings,
        )

    def _why_absent(self, cell: Cell, place: Place) -> str:
        """Why a question has no trial."""
        body = self.index.task(cell.benchmark, place[0])
        if body.scripted:
            plugin = systems.plugin(str(self.index.config(cell.system).settings["system"]))
            if reason := obstacle(plugin, body.needs):
                return reason
        cause = self.cause(cell, None, *place)
        return "not asked yet" if cause is None else f"failed through the {cause}"

    def _of_answers(self, benchmark: Benchmark, cell: Cell, answers: Sequence[Header]) -> list[Number]:
        """Formulas over answers' texts. A question without an answer counts as for verdicts."""
        numbers = []
        of_words = [replace(measure, asks=benchmark.worded) for measure in self.words]
        for measure in (*(m for m in benchmark.measures if m.reads == "answer"), *of_words):
            questions = self.questions(cell.benchmark, measure.asks)
            groups: dict[str | None, list[Header]] = defaultdict(list)
            for said in answers:
                if (place := (said.task or "", said.query or "")) in questions:
                    groups[self._group(self.lineage(said), questions[place][1])].append(said)
            reason = self.wordless.get(measure.name)
            if measure in of_words and (reason or not questions):
                null = Number(cell, measure.name, "score", None, 0, 0, reason=reason or "there are no gold answers")
                numbers += [
                    replace(null, of=len(self._in_group(questions, group)), group=group, subset=self.subset)
                    for group in ([group for group, _ in _in_order(benchmark, groups)] or [None])
                ]
                continue
            for group, some in _in_order(benchmark, groups):
                scope, means = self._in_group(questions, group), self._measured(measure, some)
                make: Make = partial(self._of_measure, benchmark, measure, cell)
                whole = replace(make(scope, means), group=group)
                numbers += [whole, *self._by_errata(whole, make, scope, means)]
                if self.request.by is None:
                    numbers += self._parts(benchmark, measure, cell, questions, means)
        return numbers

    def _of_measure(
        self,
        benchmark: Benchmark,
        measure: Measure,
        cell: Cell,
        scope: Mapping[Place, Question],
        means: Mapping[Place, float],
    ) -> Number:
        """One number of an answer measure over the questions in scope."""
        number = self._share(benchmark, measure.name, cell, scope, means, of_verdicts=False)
        if measure.summary == "share":
            return number
        inside = [place for place in means if place in scope]
        between = general_interval([means[place] for place in inside], [scope[place][0] for place in inside])
        return replace(number, unit="score", interval=(between.low, between.high) if between else None)

    def _measured(self, measure: Measure, answers: Iterable[Header]) -> dict[Place, float]:
        """An answer measure's value by question, repeats averaged."""
        paths: dict[Place, list[tuple[tuple[str, ...], float]]] = defaultdict(list)
        for said in answers:
            place = (said.task or "", said.query or "")
            questions = self.questions(said.benchmark or "", measure.asks)
            if place in questions:
                gold = self.index.task(said.benchmark or "", place[0]).gold_of(place[1])
                value = measure.value(self.index.ledger.body(said, AnswerBody).text, gold)
                if value is not None:
                    chain = self.lineage(said)
                    paths[place].append((tuple(h.id for h in chain), value))
                    cell = Cell(said.benchmark or "", said.system or "", said.fetch or "", said.reader)
                    unit = UNITS.get(measure.summary, measure.summary)
                    self._keep(Scores(cell, measure.name, unit, questions), chain, value)
        return {place: nested_mean(some) for place, some in paths.items()}

    def _of_trials(
        self, benchmark: Benchmark, cell: Cell, group: str | None, trials: list[tuple[Header, RetrievalBody]]
    ) -> list[Number]:
        numbers = []
        questions = self.questions(cell.benchmark)
        asked_for = self.index.config(cell.fetch).settings.get("k", math.inf)
        paths = [tuple(h.id for h in self.lineage(trial)) for trial, _ in trials]
        at = [(trial.task or "", trial.query or "") for trial, _ in trials]
        golds = {place: self.index.task(cell.benchmark, place[0]).gold_of(place[1]) for place in set(at)}
        items = [self.index.shown(body) for _, body in trials]
        has_ids = any(places(some) is not None for some in items)
        for measure in (m for m in benchmark.measures if m.reads == "retrieval"):
            if measure.cutoff is not None and measure.cutoff.k > asked_for:
                continue
            about = self.questions(cell.benchmark, measure.asks)
            values: dict[Place, list[tuple[tuple[str, ...], float]]] = defaultdict(list)
            asked = about.keys() & golds
            unit = UNITS.get(measure.summary, measure.summary)
            for place, path, (trial, _), some in zip(at, paths, trials, items, strict=True):
                if place in asked and (value := measure.value(some, golds[place])) is not None:
                    values[place].append((path, value))
                    self._keep(Scores(cell, measure.name, unit, about), self.lineage(trial), value)
            means = {place: nested_mean(some) for place, some in values.items()}
            reason = "the system gives no evidence ids"
            if has_ids:
                reason = "not retrieved by any" if measure.summary == "median" else "not defined for what was retrieved"
            numbers.append(
                self._summary(measure.name, measure.summary, cell, group, means, questions, len(asked), reason=reason)
            )
        shown: dict[Place, list[tuple[tuple[str, ...], float]]] = defaultdict(list)
        cut: dict[Place, list[tuple[tuple[str, ...], float]]] = defaultdict(list)
        for place, path, (trial, body) in zip(at, paths, trials, strict=True):
            if body.context is not None:
                tokens = float(self._context_tokens(trial, body.context))
                shown[place].append((path, tokens))
                self._keep(Scores(cell, "context-tokens", "tokens", questions), self.lineage(trial), tokens)
            if body.fit is not None:
                cut[place].append((path, float(body.fit.tokens - body.fit.used)))
        for name, counts in (("context-tokens", shown), ("cut-tokens", cut)):
            if counts or name == "context-tokens":
                means = {place: nested_mean(some) for place, some in counts.items()}
                unknown = "the contexts are unknown"
                numbers.append(self._summary(name, "tokens", cell, group, means, questions, len(golds), reason=unknown))
        numbers += self._extents(cell, group, trials, paths, len(golds))
        efforts = [body.effort for _, body in trials if body.effort is not None]
        loaded = any(effort.workers > 1 for effort in efforts)
        return numbers + _latency(cell, group, "retrieval", [e.seconds for e in efforts], len(trials), loaded)

    def _context_tokens(self, trial: Header, context: str, vocabulary: Vocabulary = ENCODING) -> int:
        assert trial.content is not None
        if (trial.content, vocabulary) not in self._tokens:
            self._tokens[trial.content, vocabulary] = count_tokens(context, vocabulary)
        return self._tokens[trial.content, vocabulary]

    def _extents(
        self,
        cell: Cell,
        group: str | None,
        trials: Sequence[tuple[Header, RetrievalBody]],
        paths: Sequence[tuple[str, ...]],
        of: int,
    ) -> list[Number]:
        """How long contexts are, beside whole histories and in other vocabularies, as far as that is asked for: mean,
        median, least and most of questions."""
        if not (self.request.context or self.request.vocabularies):
            return []
        whole = self._histories.setdefault(cell.benchmark, contexts.Histories(self.index, cell.benchmark))
        values: dict[str, dict[Place, list[tuple[tuple[str, ...], float]]]] = {
            f"context-tokens-{name}": {} for name in self.request.vocabularies
        }
        if self.request.context:
            values |= {name: {} for name in ("context-tokens", "history-tokens", *RATIOS)}
        for (trial, body), path in zip(trials, paths, strict=True):
            place = (trial.task or "", trial.query or "")
            found: dict[str, float | None] = {}
            if body.context is not None:
                for name in self.request.vocabularies:
                    found[f"context-tokens-{name}"] = self._context_tokens(trial, body.context, name)
            if self.request.context:
                found["history-tokens"] = full = whole.tokens(place[0])
                if body.context is not None:
                    found["context-tokens"] = retrieved = self._context_tokens(trial, body.context)
                    found |= zip(RATIOS, efficiency(retrieved, full), strict=True)
            for metric, value in found.items():
                if value is not None:
                    values[metric].setdefault(place, []).append((path, value))
        numbers = []
        for metric, by_place in values.items():
            means = {place: nested_mean(some) for place, some in by_place.items()}
            unit = "ratio" if metric in RATIOS else "tokens"
            reason = "the contexts are unknown"
            if metric in ("history-tokens", *RATIOS) and not values["history-tokens"]:
                reason = whole.reason
            elif metric in RATIOS and values["context-tokens"]:
                reason = "all contexts are empty"
            mean = self._summary(metric, unit, cell, group, means, self.questions(cell.benchmark), of, reason=reason)
            numbers += [mean] if metric != "context-tokens" else []  # that one is always there
            rest = replace(mean, interval=None, clusters=None, deff=None)
            for which, make in EXTREMES.items():
                value = make(list(means.values())) if means else None
                numbers.append(replace(rest, metric=f"{metric}-{which}", value=value))
        return numbers

    def _summary(
        self,
        name: str,
        summary: str,
        cell: Cell,
        group: str | None,
        means: Mapping[Place, float],
        questions: Mapping[Place, Question],
        of: int,
        *,
        reason: str,
    ) -> Number:
        unit = UNITS.get(summary, summary)
        if not means:
            return Number(cell, name, unit, None, 0, of, group=group, reason=reason, subset=self.subset)
        values = list(means.values())
        if summary == "median":
            middle = percentile(values, 50)
            return Number(cell, name, unit, middle, len(values), of, group=group, subset=self.subset)
        clusters = [questions[place][0] for place in means]
        if not benchmarks.find(cell.benchmark).sample:
            between = None
        elif summary == "share":
            between = accuracy.interval(means, {place: questions[place][0] for place in means})
        else:
            between = general_interval(values, clusters)
        return Number(
            cell,
            name,
            unit,
            sum(values) / len(values),
            len(values),
            of,
            group=group,
            interval=(between.low, between.high) if between else None,
            clusters=between.clusters if between else None,
            deff=between.deff if between else None,
            subset=self.subset,
        )

    # --- what scores cost ---

    def tradeoffs(self, numbers: Sequence[Number]) -> list[Tradeoff]:
        """A point for every judged number over all of a benchmark's selected questions."""
        found = []
        for name in self.chosen.benchmarks:
            about = {m.name: self.questions(name, m.asks) for m in benchmarks.find(name).metrics}
            mine = [n for n in numbers if n.cell.benchmark == name]
            found += tradeoffs.tradeoffs(self.index, mine, about, self._context_tokens)
        return found


def words_compared(names: Iterable[str]) -> list[Measure]:
    """The measures of answers' words by these recipes, whose comparisons are made once for all of them. A question with
    several gold answers is compared with the first. Raises UserError for an unknown recipe."""
    compared = cache(recipes.lexical)

    def measure(recipe: str, name: str) -> Measure:
        about = f"the answer's words beside the gold answer's, by the recipe {recipe}"
        return Measure(
            name, about, lambda answer, gold: compared(recipe, answer, gold.answers[0])[name], "mean", reads="answer"
        )

    return [measure(recipe, name) for recipe in names for name in recipes.lexical(recipe, "", "")]


def called(config: ConfigBody) -> str:
    """What a configuration is called. A reader's profile belongs to its name, because one that isn't blind must be
    seen, and a judge's set of prompts, because without it a score has no meaning."""
    if config.role == "judge":
        asked, usual = config.provenance.get("prompts", "default"), "default"
    else:
        asked, usual = config.settings.get("profile", PLAIN), PLAIN
    return config.name if asked == usual else f"{config.name}, {asked}"


def _in_order(benchmark: Benchmark, groups: Mapping[str | None, Grouped]) -> list[tuple[str | None, Grouped]]:
    """Groups as tables show them: types as the benchmark lists them, others by name."""
    place = {name: n for n, name in enumerate(benchmark.types)}
    return sorted(groups.items(), key=lambda pair: (place.get(pair[0] or "", len(place)), pair[0] or ""))


def _joined(number: Number, part: str) -> str:
    """The name of a part of what may be a part already."""
    return f"{number.part}, {part}" if number.part else part


def _snapshots(returned: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The models behind one role where an endpoint returned more than one under the name that was asked for."""
    by_role: dict[str, set[str]] = defaultdict(set)
    for role, model in returned:
        by_role[role].add(model)
    return tuple(sorted(model for models in by_role.values() if len(models) > 1 for model in models))


def _latency(cell: Cell, group: str | None, what: str, seconds: list[float], of: int, loaded: bool) -> list[Number]:
    """Median and 95th percentile of single successful attempts; null where nothing was timed."""
    return [
        Number(
            cell,
            f"{what}-seconds-p{q}",
            "seconds",
            percentile(seconds, q),
            len(seconds),
            of,
            group=group,
            reason=None if seconds else "not timed",
            loaded=loaded,
        )
        for q in (50, 95)
    ]
