"""A number over some questions, of the scores that verdicts or a formula over answers gave them: with its class and
bounds, of a benchmark's parts, and without the questions whose gold is doubtful."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

from memtrials import errata
from memtrials.benchmarks.base import Benchmark, Measure, Metric, Part
from memtrials.llm.local import is_bundled
from memtrials.metrics import accuracy
from memtrials.metrics.numbers import Cell, Number, Place, Question, Scores
from memtrials.metrics.statistics import general_interval, nested_mean, stratified_interval
from memtrials.records import AnswerBody, Header
from memtrials.stages.folding import UNITS, Folding

WITHOUT_ERRATA = "without disputed gold"
CEILING = "ceiling of the gold"
Means = Mapping[Place, float]
"""Questions' scores, repeats averaged."""
Make = Callable[[Mapping[Place, Question], Means], Number]
"""A number over some questions, of their scores."""


def share(
    folding: Folding,
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
    found = _found(folding, metric if of_verdicts else None, cell, scope, means)
    between = found.interval
    return Number(
        cell,
        metric,
        "share",
        found.headline,
        found.n,
        found.of,
        class_=_class(folding, benchmark, cell, complete=found.n == found.of, diagnostic=diagnostic),
        score=found.score,
        low=found.low,
        high=found.high,
        interval=(between.low, between.high) if between else None,
        clusters=between.clusters if between else None,
        deff=between.deff if between else None,
        status=found.status,
        missing=found.missing,
        subset=folding.subset,
    )


def _found(
    folding: Folding, metric: str | None, cell: Cell, scope: Mapping[Place, Question], means: Mapping[Place, float]
) -> accuracy.Score:
    causes = {place: folding.cause(cell, metric, *place) for place in scope if place not in means}
    clusters = {place: cluster for place, (cluster, _) in scope.items()}
    found = accuracy.share({p: m for p, m in means.items() if p in scope}, clusters, causes)
    assert found is not None
    return found


def _class(folding: Folding, benchmark: Benchmark, cell: Cell, *, complete: bool, diagnostic: bool = False) -> str:
    """P, M, D or R: the lowest class of the reader and judge that the number depends on (MEASURING §1)."""
    roles = [c for c in (cell.reader, cell.judge) if c is not None]
    bodies = [folding.index.config(c) for c in roles]
    if any(body.settings.get("model") == "offline" for body in bodies):
        return "R"
    if any(is_bundled(body.settings) for body in bodies):
        return "D"
    tasks = [t for b, t in folding.index.tasks if b == cell.benchmark]
    released = cell.benchmark.partition("@")[2] in benchmark.published
    whole = complete and not folding.subset and len(tasks) == benchmark.published_tasks
    published = all(body.provenance.get("published") for body in bodies)
    return "P" if released and whole and published and not diagnostic else "M"


def of_measure(
    folding: Folding,
    benchmark: Benchmark,
    measure: Measure,
    cell: Cell,
    scope: Mapping[Place, Question],
    means: Mapping[Place, float],
) -> Number:
    """One number of an answer measure over the questions in scope."""
    number = share(folding, benchmark, measure.name, cell, scope, means, of_verdicts=False)
    if measure.summary == "share":
        return number
    inside = [place for place in means if place in scope]
    between = general_interval([means[place] for place in inside], [scope[place][0] for place in inside])
    return replace(number, unit="score", interval=(between.low, between.high) if between else None)


def scored(folding: Folding, measure: Measure, answers: Iterable[Header]) -> dict[Place, float]:
    """An answer measure's value by question, repeats averaged."""
    paths: dict[Place, list[tuple[tuple[str, ...], float]]] = defaultdict(list)
    for said in answers:
        place = (said.task or "", said.query or "")
        questions = folding.questions(said.benchmark or "", measure.asks)
        if place in questions:
            gold = folding.index.task(said.benchmark or "", place[0]).gold_of(place[1])
            value = measure.value(folding.index.ledger.body(said, AnswerBody).text, gold)
            if value is not None:
                chain = folding.lineage(said)
                paths[place].append((tuple(h.id for h in chain), value))
                cell = Cell(said.benchmark or "", said.system or "", said.fetch or "", said.reader)
                unit = UNITS.get(measure.summary, measure.summary)
                folding.keep(Scores(cell, measure.name, unit, questions), chain, value)
    return {place: nested_mean(some) for place, some in paths.items()}


def parts(
    folding: Folding,
    benchmark: Benchmark,
    of: Metric | Measure,
    cell: Cell,
    questions: Mapping[Place, Question],
    means: Mapping[Place, float],
) -> list[Number]:
    """The benchmark's own parts and averages of a metric or answer measure, where there are questions of them."""
    numbers = []
    for part in (p for p in benchmark.parts if of.name in p.metrics):
        about = folding.questions(cell.benchmark, part.asks)
        scope = {place: q for place, q in questions.items() if place in about}
        scores = dict(means)
        if part.with_measure is not None:
            measure = next(m for m in benchmark.measures if m.name == part.with_measure)
            other = folding.questions(cell.benchmark, measure.asks)
            scope |= {place: q for place, q in other.items() if place in about and place not in questions}
            answers = folding.cells("answer", cell.benchmark).get(cell._replace(judge=None), [])
            scores |= {p: v for p, v in scored(folding, measure, answers).items() if p not in questions}
        if not scope:
            continue
        make: Make = partial(_part, folding, benchmark, of, cell, part)
        number = make(scope, scores)
        numbers += [number, *by_errata(folding, number, make, scope, scores)]
    return numbers


def _part(
    folding: Folding,
    benchmark: Benchmark,
    of: Metric | Measure,
    cell: Cell,
    part: Part,
    scope: Mapping[Place, Question],
    means: Means,
) -> Number:
    """One number of a part, over the questions in scope."""
    if isinstance(of, Measure):
        number = of_measure(folding, benchmark, of, cell, scope, means)
    else:
        number = share(folding, benchmark, of.name, cell, scope, means, diagnostic=of.diagnostic)
    if part.over_types:
        number = _over_types(folding, number, None if isinstance(of, Measure) else of.name, scope, means)
    return replace(number, part=part.name)


def _over_types(
    folding: Folding, number: Number, metric: str | None, scope: Mapping[Place, Question], means: Mapping[Place, float]
) -> Number:
    """The mean of the types' shares, types without questions left out; None where a type has no headline."""
    types: dict[str, dict[Place, Question]] = defaultdict(dict)
    for place, question in scope.items():
        types[question[1] or "none"][place] = question
    each = [_found(folding, metric, number.cell, some, means) for some in types.values()]
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


def by_errata(
    folding: Folding, number: Number, make: Make, scope: Mapping[Place, Question], means: Means
) -> list[Number]:
    """A number over the questions in scope once more, where it was asked for and they have errata: without these
    questions, and as the share that true answers reach, each of which is wrong by a gold that is.

    A mean that counts nothing has no ceiling: an answer may share words with a wrong gold.
    """
    about = folding.listed(number.cell.benchmark).questions if folding.request.errata else {}
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
        numbers.append(replace(most, types=top.types, subset=folding.subset))
    return numbers


def _joined(number: Number, part: str) -> str:
    """The name of a part of what may be a part already."""
    return f"{number.part}, {part}" if number.part else part
