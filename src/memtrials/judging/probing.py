"""Probes: what a judge makes of constructed answers whose right verdict is known (MEASURING §10).

A probe's verdict is a record like any other, so that it is durable and paid for once; its metric is
`probe:METRIC:KIND` and its parent the task, so it belongs to no system and enters no score.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from memtrials.benchmarks.base import Benchmark
from memtrials.index import LedgerIndex
from memtrials.records import Header

PREFIX = "probe"
SWAPPED = "swapped"
MOST_SWAPPED = 0.10
"""A judge that accepts a larger share of answers to other questions is flagged."""


class Probe(NamedTuple):
    """One constructed answer to a question, with the memory that a judge is shown beside it. task: its record."""

    task: Header
    query: str
    kind: str
    context: str
    answer: str


def constructed(index: LedgerIndex, benchmark: Benchmark, name: str) -> Iterator[Probe]:
    """The probes of every question of a built benchmark, in order.

    The swapped answer is that of the next question, round the ledger, of the same type in another cluster: within a
    cluster it may be right. It depends on what was built and on no selection, so a probe's name always means the same
    answer.
    """
    if benchmark.probes is None:
        return
    tasks = [(header, index.task(name, task)) for (built, task), header in index.tasks.items() if built == name]
    for position, (header, body) in enumerate(tasks):
        following = [other for _, other in (*tasks[position + 1 :], *tasks[:position])]
        for query in body.queries:
            others = (
                other.gold_of(q.id)
                for other in following
                for q in other.queries
                if q.type == query.type and q.cluster != query.cluster and _alike(benchmark, q.id, query.id)
            )
            probes = benchmark.probes(body.gold_of(query.id), next(others, None))
            for kind, answer in probes.answers.items():
                yield Probe(header, query.id, kind, probes.context, answer)


def _alike(benchmark: Benchmark, one: str, other: str) -> bool:
    """Whether two queries ask for the same kind of thing: where a benchmark names its queries, the name says it."""
    return one == other or one not in benchmark.queries


def probe_metric(metric: str, kind: str) -> str:
    """The metric of a probe's verdict."""
    return f"{PREFIX}:{metric}:{kind}"


def probed(header: Header) -> tuple[str, str] | None:
    """The metric and the kind that a verdict probes; None for one that is about an answer or a trial."""
    prefix, _, rest = (header.metric or "").partition(":")
    metric, _, kind = rest.partition(":")
    return (metric, kind) if prefix == PREFIX and kind else None
