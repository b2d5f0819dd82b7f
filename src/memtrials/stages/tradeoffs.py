"""What a score costs: tokens of the context, seconds and dollars for a question, and the points worth their price.

With budgets, the points of one system are its curve (MEASURING §8 and §9).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from memtrials.index import LedgerIndex
from memtrials.judging import probing
from memtrials.llm.money import cost, price
from memtrials.llm.roles import OFFLINE, SYSTEM
from memtrials.metrics.frontier import frontier
from memtrials.metrics.numbers import Cell, Number, Place, Question, Tradeoff
from memtrials.records import AnswerBody, Header, IngestBody, RetrievalBody, VerdictBody, sha256
from memtrials.systems.embedding import endpoint_model


class _Trial:
    """What one trial took. usd: of its query and its share of the state; None where that isn't known."""

    def __init__(self, index: LedgerIndex, header: Header, count: Callable[[Header, str], int]) -> None:
        body = index.ledger.body(header, RetrievalBody)
        self.place: Place = (header.task or "", header.query or "")
        self.tokens = None
        if body.context is not None:
            self.tokens = body.fit.used if body.fit else count(header, body.context)
        self.cut = body.fit is not None and not body.fit.is_whole
        effort = body.effort
        self.seconds = effort.seconds if effort and effort.attempts == 1 else None
        usage = body.usage
        if body.items_in is not None:
            usage = index.ledger.body(index.ledger.header(body.items_in), RetrievalBody).usage
        ingest = index.parent(header)
        fed = index.ledger.body(ingest, IngestBody).usage
        asked = 1 if ingest.query else len(index.task(header.benchmark or "", header.task or "").queries)
        shares = (_dollars(index, ingest, fed), _dollars(index, ingest, usage))
        self.usd = None if None in shares else (shares[0] or 0.0) / asked + (shares[1] or 0.0)


def _dollars(index: LedgerIndex, ingest: Header, usage: Mapping[str, int] | None) -> float | None:
    """What a system's own calls would have cost alone; None where it doesn't say. One that keeps its states here and
    asks no endpoint costs nothing; an imported result has no state."""
    if index.ledger.body(ingest, IngestBody).namespace is None:
        return None
    model = endpoint_model(index.config(ingest.system or "").settings)
    if model is None:
        here = sha256([index.parent(ingest).content, ingest.system, None]) == ingest.content
        return 0.0 if here else None
    known = price(model)
    if not usage or known is None or "charged_embedding_tokens" not in usage:
        return None
    return known.of(usage["charged_embedding_tokens"], 0)


def tradeoffs(
    index: LedgerIndex,
    numbers: Sequence[Number],
    questions: Mapping[str, Mapping[Place, Question]],
    count: Callable[[Header, str], int],
) -> list[Tradeoff]:
    """A point for every judged number of a benchmark, over trials with ordinal 1, and which of them are on a frontier.

    questions: by metric. count: tokens of a retrieval's context. Numbers of controls have points, which are on no
    frontier.
    """
    wanted = [n for n in numbers if _is_whole(n) and n.value is not None and n.metric in questions]
    trials: dict[tuple[str, str, str], list[Header]] = defaultdict(list)
    for header in index.of("retrieval"):
        if header.repeat == 1:
            trials[header.benchmark or "", header.system or "", header.fetch or ""].append(header)
    made: dict[str, _Trial] = {}
    points = []
    for number in wanted:
        cell, about = number.cell, questions[number.metric]
        mine = [h for h in trials[cell.benchmark, cell.system, cell.fetch] if (h.task, h.query) in about]
        for header in mine:
            if header.id not in made:
                made[header.id] = _Trial(index, header, count)
        points.append(_point(index, number, mine, made))
    return _with_frontiers(index, points)


def _point(index: LedgerIndex, number: Number, trials: Iterable[Header], made: Mapping[str, _Trial]) -> Tradeoff:
    cell = number.cell
    seconds: list[float] = []
    dollars: list[float | None] = []
    mute: Counter[str] = Counter()
    tokens: list[int] = []
    cut = 0
    for header in trials:
        trial = made[header.id]
        if trial.tokens is not None:
            tokens.append(trial.tokens)
        cut += trial.cut
        answered = (0.0, 0.0) if cell.reader is None else _read(index, header, cell)
        took, paid = answered or (None, None)
        if trial.seconds is not None and took is not None:
            seconds.append(trial.seconds + took)
        dollars.append(None if trial.usd is None or paid is None else trial.usd + paid)
        mute["the system"] += trial.usd is None
        mute["no answer" if answered is None else "the reader"] += paid is None
    mute["no retrieval"] += max(0, number.of - len(dollars))
    mute = +mute
    known = [d for d in dollars if d is not None]
    assert number.value is not None
    return Tradeoff(
        cell,
        number.metric,
        number.class_,
        index.config(cell.fetch).settings.get("budget"),
        number.value,
        number.interval,
        number.n,
        context_tokens=sum(tokens) / len(tokens) if tokens else None,
        cut=cut,
        trials=len(dollars),
        seconds=statistics.median(seconds) if seconds else None,
        usd=sum(known) / len(known) if known and not mute else None,
        unpriced=_unpriced(index, cell, mute, number.of) if mute else None,
    )


def _unpriced(index: LedgerIndex, cell: Cell, mute: Mapping[str, int], of: int) -> str:
    """Why it isn't known what questions cost. mute: of how many it isn't, by what is to blame."""
    embeds = endpoint_model(index.config(cell.system).settings) if "the system" in mute else None
    reads = index.config(cell.reader).settings.get("model") if cell.reader and "the reader" in mute else None
    missing = [model for model in (embeds, reads) if model not in (None, OFFLINE, SYSTEM) and price(str(model)) is None]
    if missing:
        return f"no price in prices.toml: {', '.join(missing)}"
    blamed = " and ".join(f"{count} of {of} ({who})" for who, count in sorted(mute.items()))
    return f"a mean needs what every question took; unknown: {blamed}"


COSTS = ("usd", "usd-per-right", "judge-usd")


def _is_whole(number: Number) -> bool:
    return number.cell.judge is not None and number.group is None and number.part is None


def costs(index: LedgerIndex, scores: Iterable[Number], points: Iterable[Tradeoff], *, subset: bool) -> list[Number]:
    """What judged answers cost in dollars, for every point with a reader: a question, a right answer, and apart from
    both what judging a question cost. Null for a score of a part of the questions, which has no point.

    A right answer costs what all questions cost over how many are right: mean cost over score (MEASURING §9).
    """
    judged = _judged(index)
    numbers = [
        Number(
            score.cell,
            f"{score.metric}-{name}",
            "dollars",
            None,
            0,
            score.of,
            reason=f"{score.n} of {score.of} questions have a verdict; what they cost is told of all",
            class_=score.class_,
            subset=subset,
        )
        for score in scores
        if _is_whole(score) and score.cell.reader is not None and score.status == "partial"
        for name in COSTS
    ]
    for point in (point for point in points if point.cell.reader is not None):
        per_right = point.usd / point.value if point.usd is not None and point.value else None
        spent = judged.get((point.cell, point.metric), [])
        known = [dollars for dollars in spent if dollars is not None]
        judging = sum(known) / len(known) if known and len(known) == len(spent) else None
        none_right = None if point.value else "no answer is right"
        said: tuple[tuple[float | None, int, str | None], ...] = (
            (point.usd, point.trials, point.unpriced),
            (per_right, point.trials, point.unpriced or none_right),
            (judging, len(spent), "the judge's price or what it took isn't known"),
        )
        for name, (value, n, reason) in zip(COSTS, said, strict=True):
            metric, reason = f"{point.metric}-{name}", reason if value is None else None
            number = Number(point.cell, metric, "dollars", value, n if value is not None else 0, n, reason=reason)
            numbers.append(replace(number, class_=point.class_, subset=subset))
    return numbers


def _judged(index: LedgerIndex) -> dict[tuple[Cell, str], list[float | None]]:
    """Dollars of every first verdict on an answer, by cell and metric; a rule takes none."""
    found: dict[tuple[Cell, str], list[float | None]] = defaultdict(list)
    for header in index.of("verdict"):
        if header.repeat == 1 and header.reader and not probing.probed(header):
            cell = Cell(header.benchmark or "", header.system or "", header.fetch or "", header.reader, header.judge)
            model = str(index.config(header.judge or "").settings.get("model"))
            call = index.ledger.body(header, VerdictBody).call
            dollars = (0.0 if model == OFFLINE else None) if call is None else cost(call, model)
            found[cell, header.metric or ""].append(dollars)
    return found


def _read(index: LedgerIndex, trial: Header, cell: Cell) -> tuple[float | None, float | None] | None:
    """Seconds and dollars of a reader's first answer, beside the trial's own, each None where it isn't known; None
    without an answer."""
    for child in index.children.get(trial.id, ()):
        if child.kind == "answer" and child.reader == cell.reader and child.repeat == 1:
            call = index.ledger.body(child, AnswerBody).call
            model = str(index.config(cell.reader or "").settings.get("model"))
            if call is None:
                return (0.0, 0.0) if model in (OFFLINE, SYSTEM) else (None, None)
            timed = call.seconds if call.attempts == 1 else None
            return timed, cost(call, model)
    return None


def _with_frontiers(index: LedgerIndex, points: Sequence[Tradeoff]) -> list[Tradeoff]:
    """The points, smallest budget first, with whether they are on a frontier."""
    groups: dict[tuple[str | None, ...], list[Tradeoff]] = defaultdict(list)
    for point in points:
        if not index.config(point.cell.system).provenance.get("control"):
            groups[_group(point)].append(point)
    fast = {point for some in groups.values() for point in _best(some, lambda p: p.seconds)}
    cheap = {point for some in groups.values() for point in _best(some, lambda p: p.usd)}
    judged = {point for some in groups.values() for point in some}
    return [
        replace(
            point,
            on_latency_frontier=point in fast if point in judged and point.seconds is not None else None,
            on_cost_frontier=point in cheap if point in judged and point.usd is not None else None,
        )
        for point in sorted(points, key=lambda p: p.budget or math.inf)
    ]


def _group(point: Tradeoff) -> tuple[str | None, ...]:
    return (point.cell.benchmark, point.metric, point.class_, point.cell.reader, point.cell.judge)


def _best(points: Sequence[Tradeoff], paid: Callable[[Tradeoff], float | None]) -> list[Tradeoff]:
    priced = [(point, value) for point in points if (value := paid(point)) is not None]
    best = frontier([(point.value, value) for point, value in priced])
    return [point for (point, _), is_on in zip(priced, best, strict=True) if is_on]


def notes(index: LedgerIndex, numbers: Sequence[Number]) -> list[str]:
    """What must be said of latencies, part of which is the harness' own, and of contexts that a number of items made:
    it counts unlike units, and can be more than there are."""
    asked = {(n.cell.system, n.cell.fetch): index.config(n.cell.fetch).settings for n in numbers}
    by_k = {place: s["k"] for place, s in asked.items() if "k" in s and "budget" not in s}
    several: dict[int, set[str]] = defaultdict(set)
    for (system, _), k in by_k.items():
        several[k].add(system)
    found = [
        f"{n.cell.benchmark}: {n.value * 1000:.2f} ms of a retrieval are the harness' own (median of none, n = {n.n})"
        for n in numbers
        if n.metric == "retrieval-seconds-p50" and n.group is None and n.value is not None
        if index.config(n.cell.system).settings.get("system") == "none"
    ]
    if any(len(systems) > 1 for systems in several.values()):
        found.append("k counts unlike units: see the tokens beside the scores, or compare at an equal --budget")
    beyond: dict[tuple[str, int], set[str]] = defaultdict(set)
    for header in index.of("retrieval"):
        k = by_k.get((header.system or "", header.fetch or ""))
        if k is not None and (turns := index.task(header.benchmark or "", header.task or "").turns) and k > turns:
            beyond[header.system or "", k].add(header.task or "")
    found += [
        f"{system}: k = {k} is more than the turns that there are in {len(tasks)} histories"
        for (system, k), tasks in beyond.items()
    ]
    return found
