"""What whole trials are worth: a benchmark's own values of each, by name."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from memtrials import systems
from memtrials.benchmarks.base import Benchmark, Trial
from memtrials.metrics.numbers import Cell, Number, Place, Question, Scores
from memtrials.metrics.rows import summary
from memtrials.metrics.statistics import nested_mean
from memtrials.records import Header, IngestBody, RetrievalBody
from memtrials.stages.folding import Folding, in_order
from memtrials.systems.scripted import obstacle


class _Valued(NamedTuple):
    """What one trial is worth, by name, and its ancestors down to itself."""

    chain: list[Header]
    values: Mapping[str, float | str]


def of_trials(folding: Folding, benchmark: Benchmark, name: str) -> list[Number]:
    """Values of whole trials, over all selected questions: one that has no trial is told of among the nulls."""
    rows = benchmark.rows
    wanted = [n for n in rows.names if not folding.request.metrics or n in folding.request.metrics] if rows else []
    if rows is None or not wanted:
        return []
    numbers = []
    questions = folding.questions(name)
    for cell, trials in folding.cells("retrieval", name).items():
        made: dict[str | None, dict[Place, list[_Valued]]] = defaultdict(lambda: defaultdict(list))
        for empty in folding.groups(questions):
            made[empty] = defaultdict(list)
        for trial in trials:
            place = (trial.task or "", trial.query or "")
            chain = folding.lineage(trial)
            found = rows.values(_trial(folding, trial))
            made[folding.group(chain, questions[place][1])][place].append(_Valued(chain, found))
        for group, by_place in in_order(benchmark, made):
            scope = folding.in_group(questions, group)
            absent = Counter(_why_absent(folding, cell, place) for place in scope if place not in by_place)
            numbers += [_of_row(folding, cell, name, group, scope, by_place, absent) for name in wanted]
    return numbers


def _of_row(
    folding: Folding,
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
            folding.keep(Scores(cell, name, "value", folding.questions(cell.benchmark)), chain, value)
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
        subset=folding.subset,
        p50=short["p50"],
        p95=short["p95"],
    )


def _trial(folding: Folding, header: Header) -> Trial:
    body = folding.index.ledger.body(header, RetrievalBody)
    return Trial(
        folding.index.task(header.benchmark or "", header.task or ""),
        header.query or "",
        folding.index.ledger.body(folding.index.parent(header), IngestBody),
        body,
        folding.index.shown(body),
        folding.index.config(header.fetch or "").settings,
    )


def _why_absent(folding: Folding, cell: Cell, place: Place) -> str:
    """Why a question has no trial."""
    body = folding.index.task(cell.benchmark, place[0])
    if body.scripted:
        plugin = systems.plugin(str(folding.index.config(cell.system).settings["system"]))
        if reason := obstacle(plugin, body.needs):
            return reason
    cause = folding.cause(cell, None, *place)
    return "not asked yet" if cause is None else f"failed through the {cause}"
