"""metrics: fold the ledger into numbers. It appends nothing.

A number is over one cell: one benchmark, system, fetch configuration, reader and judge. Nothing else may share it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from memtrials import benchmarks, errata
from memtrials.benchmarks.base import PLAIN, Benchmark, Measure
from memtrials.errors import unknown
from memtrials.index import LedgerIndex
from memtrials.ledger import Ledger
from memtrials.metrics.numbers import (
    Agreement,
    Attribution,
    Number,
    ProbeRate,
    Report,
    Scores,
    Tradeoff,
)
from memtrials.records import ConfigBody
from memtrials.selection import choose
from memtrials.stages import answered, contrasts, decided, judged, measured, rows, tradeoffs
from memtrials.stages.common import Options
from memtrials.stages.folding import Folding, MetricsRequest, View

__all__ = ["MetricsRequest", "View", "fold", "run", "scores"]


def run(request: MetricsRequest, options: Options) -> Report:
    """Fold the ledger. Raises UserError for unknown names."""
    with Ledger.open(options.trials) as ledger:
        return fold(LedgerIndex(ledger), request, options)


def fold(index: LedgerIndex, request: MetricsRequest, options: Options) -> Report:
    """The numbers of everything selected."""
    chosen = choose(index, options.selection, "unit")
    here = [benchmarks.find(name) for name in chosen.benchmarks]
    known = {m.name for benchmark in here for m in benchmark.metrics}
    known |= {name for benchmark in here if benchmark.rows for name in benchmark.rows.names}
    for metric in request.metrics:
        if metric not in known:
            raise unknown("metric", metric, known)
    folding = Folding(index, request, chosen, subset=options.selection.is_part)
    words = answered.words_compared(dict.fromkeys(request.lexical))
    numbers: list[Number] = []
    attributions: list[Attribution] = []
    agreements: list[Agreement] = []
    probes: list[ProbeRate] = []
    notes: list[str] = []
    for name in chosen.benchmarks:
        benchmark = benchmarks.find(name)
        probes += judged.probe_rates(folding, benchmark, name)
        numbers += decided.of_verdicts(folding, benchmark, name)
        unjudged = _unjudged(folding, benchmark, name, words)
        numbers += unjudged
        attributions += judged.attributions(folding, benchmark, name)
        agreements += judged.agreements(folding, benchmark, name)
        notes += [*_notes(index, benchmark, name), *_taken_whole(index, benchmark, name, unjudged)]
        notes += _errata_notes(name, folding.listed(name)) if request.errata else []
    numbers = [_beside(number, probes) for number in numbers]
    scores = list(folding.scores.values())
    differences, not_compared = contrasts.differences(index, scores, request.contrasting, by_type=folding.by_type)
    notes += [*not_compared, *contrasts.order(index, numbers), *tradeoffs.notes(index, numbers)]
    points = _tradeoffs(folding, numbers)
    numbers += tradeoffs.costs(index, numbers, points, subset=folding.subset) if request.cost else []
    configs = {c for n in numbers for c in n.cell[1:] if c} | {rate.judge for rate in probes}
    return Report(
        numbers,
        attributions,
        agreements,
        probes,
        notes,
        {c: _called(index.config(c)) for c in configs},
        {n.cell.fetch: dict(index.config(n.cell.fetch).settings) for n in numbers},
        frozenset(n.cell.system for n in numbers if index.config(n.cell.system).provenance.get("control")),
        request.by,
        request.view,
        [d for name in chosen.benchmarks for d in answered.departures(folding, benchmarks.find(name), name)],
        differences,
        contrasts.repeats(scores),
        points,
    )


def scores(index: LedgerIndex, request: MetricsRequest, options: Options) -> list[Scores]:
    """Every question's score of everything selected, with its run: what numbers, differences and repeats are made of.
    Raises UserError for unknown names."""
    chosen = choose(index, options.selection, "unit")
    folding = Folding(index, request, chosen, subset=options.selection.is_part)
    words = answered.words_compared(dict.fromkeys(request.lexical))
    for name in chosen.benchmarks:
        benchmark = benchmarks.find(name)
        decided.of_verdicts(folding, benchmark, name)
        _unjudged(folding, benchmark, name, words)
    return list(folding.scores.values())


def _unjudged(folding: Folding, benchmark: Benchmark, name: str, words: Sequence[Measure]) -> list[Number]:
    """Numbers that need no judge."""
    return [
        *rows.of_trials(folding, benchmark, name),
        *measured.of_retrievals(folding, benchmark, name),
        *answered.of_answers(folding, benchmark, name, words),
    ]


def _tradeoffs(folding: Folding, numbers: Sequence[Number]) -> list[Tradeoff]:
    """A point for every judged number over all of a benchmark's selected questions."""
    found = []
    for name in folding.chosen.benchmarks:
        about = {m.name: folding.questions(name, m.asks) for m in benchmarks.find(name).metrics}
        mine = [n for n in numbers if n.cell.benchmark == name]
        found += tradeoffs.tradeoffs(folding.index, mine, about, folding.context_tokens)
    return found


def _called(config: ConfigBody) -> str:
    """What a configuration is called. A reader's profile belongs to its name, because one that isn't blind must be
    seen, and a judge's set of prompts, because without it a score has no meaning."""
    if config.role == "judge":
        asked, usual = config.provenance.get("prompts", "default"), "default"
    else:
        asked, usual = config.settings.get("profile", PLAIN), PLAIN
    return config.name if asked == usual else f"{config.name}, {asked}"


def _beside(number: Number, rates: Iterable[ProbeRate]) -> Number:
    """The number with what probes say of its judge."""
    place = (number.cell.benchmark, number.cell.judge, number.metric)
    mine = [rate for rate in rates if (rate.benchmark, rate.judge, rate.metric) == place]
    if not mine:
        return number
    return replace(number, probes={r.kind: r.accepted for r in mine}, lenient=any(r.flagged for r in mine))


def _notes(index: LedgerIndex, benchmark: Benchmark, name: str) -> list[str]:
    notes = [benchmark.condition] if benchmark.condition else []
    tasks = sum(b == name for b, _ in index.tasks)
    first = next(iter(t for b, t in index.tasks if b == name))
    release = index.task(name, first).release
    known = "" if release.known else ", not a known release"
    return [f"{name}: {tasks} tasks, data {release.sha256[:12]}{known}", *notes]


def _taken_whole(index: LedgerIndex, benchmark: Benchmark, name: str, measured: Iterable[Number]) -> list[str]:
    """The cut-offs, of those that numbers are at, which leave nothing out of some histories."""
    there = {number.metric for number in measured if number.value is not None}
    cutoffs = {(m.cutoff.of, m.cutoff.k): m.cutoff for m in benchmark.measures if m.cutoff and m.name in there}
    tasks = [index.task(name, task) for other, task in index.tasks if other == name]
    found = []
    for (of, k), cutoff in sorted(cutoffs.items()):
        if whole := sum(cutoff.size(task) <= k for task in tasks):
            found.append(f"{k} {of} ({whole})")
    return [f"{name}: a k that is all of a history, in how many of {len(tasks)}: {', '.join(found)}"] if found else []


def _errata_notes(name: str, listed: errata.Listed) -> list[str]:
    """What the errata are, and where they are about something that isn't here."""
    kinds = Counter(entry.what for entry in listed.questions.values())
    found = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) or "none"
    notes = [f"{name}, known errors in the gold of questions: {found}"]
    if strangers := listed.strangers:
        notes.append(f"{name}: errata about nothing that is built ({len(strangers)}): {', '.join(strangers)}")
    if listed.questions and not listed.released:
        notes.append(f"{name}: the data isn't a known release, which is what the errata are about")
    return notes
