"""The numbers that judges decide."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from memtrials.benchmarks.base import Benchmark, Metric
from memtrials.judging.verdicts import STRICT, UnreadableError, read_verdict
from memtrials.llm.money import longest_reply
from memtrials.metrics.numbers import Cell, Number, Place, Scores
from memtrials.metrics.statistics import nested_mean
from memtrials.records import AnswerBody, Call, Header, VerdictBody
from memtrials.stages import shares
from memtrials.stages.folding import Folding, in_order


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


def of_verdicts(folding: Folding, benchmark: Benchmark, name: str) -> list[Number]:
    """The numbers that judges decide, and a null with its reason for every one that isn't there."""
    numbers: list[Number] = []
    trials = folding.cells("retrieval", name)
    for metric in benchmark.metrics:
        if folding.request.metrics and metric.name not in folding.request.metrics:
            continue
        cells: dict[Cell, list[Header]] = defaultdict(list)
        for verdict in folding.on_results:
            if verdict.benchmark == name and verdict.metric == metric.name and folding.kept(verdict):
                reader = verdict.reader if metric.reads == "answer" else None
                cells[Cell(name, verdict.system or "", verdict.fetch or "", reader, verdict.judge)].append(verdict)
        for failure in folding.failures:
            if failure.stage == "judge" and failure.benchmark == name and failure.metric == metric.name:
                reader = failure.reader if metric.reads == "answer" else None
                if folding.kept(failure):
                    cells[Cell(name, failure.system or "", failure.fetch or "", reader, failure.judge)] += []
        for cell, verdicts in cells.items():
            numbers += _shares(folding, benchmark, metric, cell, folding.viewed(verdicts))
        judged = {(cell.system, cell.fetch) for cell in cells}
        numbers += [
            Number(
                cell,
                metric.name,
                "share",
                None,
                0,
                len(folding.questions(name, metric.asks)),
                reason=_why_not(folding, metric, cell),
                subset=folding.subset,
            )
            for cell in trials
            if (cell.system, cell.fetch) not in judged
        ]
    return numbers


def _shares(
    folding: Folding, benchmark: Benchmark, metric: Metric, cell: Cell, verdicts: Iterable[Header]
) -> list[Number]:
    questions = folding.questions(cell.benchmark, metric.asks)
    groups: dict[str | None, _Scored] = defaultdict(_Scored)
    groups.update({group: _Scored() for group in folding.groups(questions)})  # without any verdict, too
    for verdict in verdicts:
        chain = folding.lineage(verdict)
        place = (verdict.task or "", verdict.query or "")
        body = folding.index.ledger.body(verdict, VerdictBody)
        scored = groups[folding.group(chain, questions[place][1])]
        scored.paths[place].append((tuple(h.id for h in chain), body.score))
        folding.keep(Scores(cell, metric.name, "share", questions), chain, body.score)
        scored.flagged += body.flagged
        scored.loose += _reads_loosely(folding, cell, body)
        scored.raised += _is_raised(folding, cell, body.call)
        answers = [folding.index.ledger.body(h, AnswerBody) for h in chain if h.kind == "answer"]
        for role, call in (("judge", body.call), *(("reader", a.call) for a in answers)):
            if call and call.model_returned:
                scored.returned.add((role, call.model_returned))
    if not groups:
        groups[None] = _Scored()
    numbers = []
    for group, scored in in_order(benchmark, groups):
        scope = folding.in_group(questions, group)
        make: shares.Make = partial(shares.share, folding, benchmark, metric.name, cell, diagnostic=metric.diagnostic)
        whole = replace(make(scope, scored.means), group=group)
        models = _snapshots(scored.returned)
        marked = replace(whole, flagged=scored.flagged, loose=scored.loose, raised=scored.raised)
        numbers += [replace(marked, models=models), *shares.by_errata(folding, whole, make, scope, scored.means)]
        if folding.request.by is None:
            numbers += shares.parts(folding, benchmark, metric, cell, questions, scored.means)
    return numbers


def _reads_loosely(folding: Folding, cell: Cell, verdict: VerdictBody) -> bool:
    """Whether a strict reading of a reply differs from the published rule that it was read by."""
    rule = folding.index.config(cell.judge or "").settings.get("rule", "score") if cell.judge else "score"
    if rule not in STRICT:
        return False
    try:
        return read_verdict(verdict.reason, STRICT[rule])[0] != verdict.score
    except UnreadableError:
        return True


def _is_raised(folding: Folding, cell: Cell, call: Call | None) -> bool:
    """Whether a verdict was asked for with a larger limit than the published one, because reasoning took that."""
    settings = folding.index.config(cell.judge or "").settings if cell.judge else {}
    if "reasoning_limit" not in settings or call is None or call.sent is None:
        return False
    return longest_reply(json.loads(call.sent)) > longest_reply(settings["parameters"])


def _snapshots(returned: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The models behind one role where an endpoint returned more than one under the name that was asked for."""
    by_role: dict[str, set[str]] = defaultdict(set)
    for role, model in returned:
        by_role[role].add(model)
    return tuple(sorted(model for models in by_role.values() if len(models) > 1 for model in models))


def _why_not(folding: Folding, metric: Metric, cell: Cell) -> str:
    if metric.reads == "answer" and _nothing_answered(folding, cell):
        return "no answer: every one that was tried failed"
    if metric.rule is None:
        return "needs a model judge"
    if metric.verbatim and "verbatim" not in folding.index.config(cell.system).provenance.get("capabilities", ()):
        return "the system doesn't return turns unchanged"
    return "not judged yet"


def _nothing_answered(folding: Folding, cell: Cell) -> bool:
    place = (cell.benchmark, cell.system, cell.fetch)
    tried = any((h.benchmark, h.system, h.fetch) == place for h in folding.failures if h.stage == "answer")
    return tried and not any((h.benchmark, h.system, h.fetch) == place for h in folding.index.of("answer"))
