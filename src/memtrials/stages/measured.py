"""What retrievals measure without a judge: hits and ranks, tokens of contexts and cut from them, latency."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from memtrials import benchmarks
from memtrials.benchmarks.base import Benchmark
from memtrials.metrics import accuracy
from memtrials.metrics.context import efficiency
from memtrials.metrics.numbers import Cell, Number, Place, Question, Scores
from memtrials.metrics.retrieval import places
from memtrials.metrics.statistics import general_interval, nested_mean, percentile
from memtrials.records import Header, RetrievalBody
from memtrials.stages.contexts import Histories
from memtrials.stages.folding import UNITS, Folding, in_order

RATIOS = ("context-compression", "context-reduction")
EXTREMES: dict[str, Callable[[list[float]], float | None]] = {
    "median": partial(percentile, q=50),
    "min": min,
    "max": max,
}


def of_retrievals(folding: Folding, benchmark: Benchmark, name: str) -> list[Number]:
    """Hits and ranks, tokens of contexts and cut from them, latency."""
    if folding.request.metrics:
        return []
    numbers = []
    whole = Histories(folding.index, name)
    for cell, trials in folding.cells("retrieval", name).items():
        grouped: dict[str | None, list[tuple[Header, RetrievalBody]]] = defaultdict(list)
        for trial in trials:
            query_type = folding.questions(name)[trial.task or "", trial.query or ""][1]
            body = folding.index.ledger.body(trial, RetrievalBody)
            grouped[folding.group([trial], query_type)].append((trial, body))
        for group, some in in_order(benchmark, grouped):
            numbers += _of_group(folding, benchmark, cell, group, some, whole)
    return numbers


def _of_group(
    folding: Folding,
    benchmark: Benchmark,
    cell: Cell,
    group: str | None,
    trials: list[tuple[Header, RetrievalBody]],
    whole: Histories,
) -> list[Number]:
    numbers = []
    questions = folding.questions(cell.benchmark)
    asked_for = folding.index.config(cell.fetch).settings.get("k", math.inf)
    paths = [tuple(h.id for h in folding.lineage(trial)) for trial, _ in trials]
    at = [(trial.task or "", trial.query or "") for trial, _ in trials]
    golds = {place: folding.index.task(cell.benchmark, place[0]).gold_of(place[1]) for place in set(at)}
    items = [folding.index.shown(body) for _, body in trials]
    has_ids = any(places(some) is not None for some in items)
    for measure in (m for m in benchmark.measures if m.reads == "retrieval"):
        if measure.cutoff is not None and measure.cutoff.k > asked_for:
            continue
        about = folding.questions(cell.benchmark, measure.asks)
        values: dict[Place, list[tuple[tuple[str, ...], float]]] = defaultdict(list)
        asked = about.keys() & golds
        unit = UNITS.get(measure.summary, measure.summary)
        for place, path, (trial, _), some in zip(at, paths, trials, items, strict=True):
            if place in asked and (value := measure.value(some, golds[place])) is not None:
                values[place].append((path, value))
                folding.keep(Scores(cell, measure.name, unit, about), folding.lineage(trial), value)
        means = {place: nested_mean(some) for place, some in values.items()}
        reason = "the system gives no evidence ids"
        if has_ids:
            reason = "not retrieved by any" if measure.summary == "median" else "not defined for what was retrieved"
        numbers.append(
            _summary(folding, measure.name, measure.summary, cell, group, means, questions, len(asked), reason=reason)
        )
    shown: dict[Place, list[tuple[tuple[str, ...], float]]] = defaultdict(list)
    cut: dict[Place, list[tuple[tuple[str, ...], float]]] = defaultdict(list)
    for place, path, (trial, body) in zip(at, paths, trials, strict=True):
        if body.context is not None:
            tokens = float(folding.context_tokens(trial, body.context))
            shown[place].append((path, tokens))
            folding.keep(Scores(cell, "context-tokens", "tokens", questions), folding.lineage(trial), tokens)
        if body.fit is not None:
            cut[place].append((path, float(body.fit.tokens - body.fit.used)))
    for name, counts in (("context-tokens", shown), ("cut-tokens", cut)):
        if counts or name == "context-tokens":
            means = {place: nested_mean(some) for place, some in counts.items()}
            unknown = "the contexts are unknown"
            numbers.append(_summary(folding, name, "tokens", cell, group, means, questions, len(golds), reason=unknown))
    numbers += _extents(folding, cell, group, trials, paths, len(golds), whole)
    efforts = [body.effort for _, body in trials if body.effort is not None]
    loaded = any(effort.workers > 1 for effort in efforts)
    return numbers + latency(cell, group, "retrieval", [e.seconds for e in efforts], len(trials), loaded)


def _extents(
    folding: Folding,
    cell: Cell,
    group: str | None,
    trials: Sequence[tuple[Header, RetrievalBody]],
    paths: Sequence[tuple[str, ...]],
    of: int,
    whole: Histories,
) -> list[Number]:
    """How long contexts are, beside whole histories and in other vocabularies, as far as that is asked for: mean,
    median, least and most of questions."""
    if not (folding.request.context or folding.request.vocabularies):
        return []
    values: dict[str, dict[Place, list[tuple[tuple[str, ...], float]]]] = {
        f"context-tokens-{name}": {} for name in folding.request.vocabularies
    }
    if folding.request.context:
        values |= {name: {} for name in ("context-tokens", "history-tokens", *RATIOS)}
    for (trial, body), path in zip(trials, paths, strict=True):
        place = (trial.task or "", trial.query or "")
        found: dict[str, float | None] = {}
        if body.context is not None:
            for name in folding.request.vocabularies:
                found[f"context-tokens-{name}"] = folding.context_tokens(trial, body.context, name)
        if folding.request.context:
            found["history-tokens"] = full = whole.tokens(place[0])
            if body.context is not None:
                found["context-tokens"] = retrieved = folding.context_tokens(trial, body.context)
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
        mean = _summary(folding, metric, unit, cell, group, means, folding.questions(cell.benchmark), of, reason=reason)
        numbers += [mean] if metric != "context-tokens" else []  # that one is always there
        rest = replace(mean, interval=None, clusters=None, deff=None)
        for which, make in EXTREMES.items():
            value = make(list(means.values())) if means else None
            numbers.append(replace(rest, metric=f"{metric}-{which}", value=value))
    return numbers


def _summary(
    folding: Folding,
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
        return Number(cell, name, unit, None, 0, of, group=group, reason=reason, subset=folding.subset)
    values = list(means.values())
    if summary == "median":
        middle = percentile(values, 50)
        return Number(cell, name, unit, middle, len(values), of, group=group, subset=folding.subset)
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
        subset=folding.subset,
    )


def latency(cell: Cell, group: str | None, what: str, seconds: list[float], of: int, loaded: bool) -> list[Number]:
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
