"""Which tasks, queries and records a command is about: the same flags for every stage, in a fixed order.

`--benchmark`, `--system`, `--config`, `--task`, `--type`, then `--split`, `--sample`, `--limit`, `--shard`, over the
tasks in the ledger and before pending is computed, so the same flags again find nothing to do. Sample and limit count
units: what the benchmark scores once.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from memtrials.errors import UserError, unknown
from memtrials.index import LedgerIndex
from memtrials.records import Header, TaskBody

Cut = Literal["task", "unit"]


class Shard(NamedTuple):
    """Part k of n, counted from 1."""

    k: int
    n: int

    def holds(self, name: str) -> bool:
        """Whether a unit of that name is in this part: its SHA-256 modulo n is k - 1."""
        return _hash(name) % self.n == self.k - 1


@dataclass(frozen=True)
class Selection:
    """What the selection flags say; the empty one selects everything."""

    benchmark: str | None = None
    systems: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    split: Literal["dev", "test"] | None = None
    sample: int | None = None
    seed: int = 0
    limit: int | None = None
    shard: Shard | None = None

    @property
    def is_part(self) -> bool:
        """Whether the flags may leave out a task of a benchmark."""
        return bool(self.tasks or self.types or self.split or self.sample or self.limit or self.shard)


class Unit(NamedTuple):
    """What is scored once: one task, or one of its questions."""

    benchmark: str
    task: str
    name: str
    queries: tuple[str, ...]
    type: str | None
    abstention: bool
    cluster: str
    data: str

    @property
    def path(self) -> str:
        """The name that shards and samples hash."""
        return (
            f"{self.benchmark}/{self.task}" if self.name == self.task else f"{self.benchmark}/{self.task}/{self.name}"
        )


@dataclass(frozen=True)
class Chosen:
    """The outcome of a selection. benchmarks: in ledger order; queries: (benchmark, task, query)."""

    benchmarks: tuple[str, ...]
    tasks: frozenset[tuple[str, str]]
    queries: frozenset[tuple[str, str, str]]
    systems: frozenset[str] | None
    configs: frozenset[str] | None

    def holds(self, header: Header) -> bool:
        """Whether a record is selected: its place, its system, and the configurations it was made under."""
        if header.query is None:
            if (header.benchmark, header.task) not in self.tasks:
                return False
        elif (header.benchmark, header.task, header.query) not in self.queries:
            return False
        if self.systems is not None and header.system is not None and header.system not in self.systems:
            return False
        if self.configs is None:
            return True
        return not self.configs.isdisjoint((header.system, header.fetch, header.reader, header.judge))


def choose(index: LedgerIndex, selection: Selection, cut: Cut) -> Chosen:
    """Resolve the flags over the ledger's tasks. cut: whether a shard cuts tasks (replay, fetch) or units.

    Raises UserError for an unknown benchmark, system, configuration, task or type, with near matches.
    """
    benchmarks = _benchmarks(index, selection.benchmark)
    units = [unit for name in benchmarks for unit in _units(index, name)]
    units = _by_task(units, selection.tasks)
    units = _by_type(units, selection.types)
    if selection.split is not None:
        units = [u for u in units if _is_dev(u) == (selection.split == "dev")]
    if selection.sample is not None:
        units = [u for name in benchmarks for u in _sample(units, name, selection.sample, selection.seed)]
    if selection.limit is not None:
        units = [u for name in benchmarks for u in [u for u in units if u.benchmark == name][: selection.limit]]
    if (shard := selection.shard) is not None:
        units = [u for u in units if shard.holds(f"{u.benchmark}/{u.task}" if cut == "task" else u.path)]
    systems = [i for name in selection.systems for i in index.resolve(name, "system")]
    configs = [i for name in selection.configs for i in index.resolve(name)]
    return Chosen(
        benchmarks=tuple(benchmarks),
        tasks=frozenset((u.benchmark, u.task) for u in units),
        queries=frozenset((u.benchmark, u.task, q) for u in units for q in u.queries),
        systems=frozenset(systems) if selection.systems else None,
        configs=frozenset(configs) if selection.configs else None,
    )


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest(), "big")


def _benchmarks(index: LedgerIndex, name: str | None) -> list[str]:
    if name is None:
        return index.benchmarks
    found = [b for b in index.benchmarks if b == name or b.partition("@")[0] == name]
    if not found:
        raise unknown("benchmark in this ledger", name, index.benchmarks)
    return found


def _units(index: LedgerIndex, benchmark: str) -> list[Unit]:
    return [u for b, task in index.tasks if b == benchmark for u in units_of(benchmark, task, index.task(b, task))]


def units_of(benchmark: str, task: str, body: TaskBody) -> list[Unit]:
    """The units of a task, in the order of their first queries."""
    queries = defaultdict(list)
    for query in body.queries:
        queries[query.unit].append(query)
    return [
        Unit(
            benchmark=benchmark,
            task=task,
            name=name,
            queries=tuple(q.id for q in some),
            type=some[0].type,
            abstention=any(body.gold_of(q.id).abstention for q in some),
            cluster=some[0].cluster,
            data=body.release.sha256,
        )
        for name, some in queries.items()
    ]


def _by_task(units: list[Unit], wanted: Sequence[str]) -> list[Unit]:
    """Units of the wanted `TASK` or `TASK/QUERY`, with only the wanted queries."""
    if not wanted:
        return units
    keep: dict[str, set[str] | None] = {}
    tasks = {u.task for u in units}
    for name in wanted:
        task, slash, query = (name, "", "") if name in tasks else name.rpartition("/")
        if task not in tasks:
            raise unknown("task", name, tasks)
        queries = {q for u in units if u.task == task for q in u.queries}
        if slash and query not in queries:
            raise unknown(f"query of task {task}", query, queries)
        if not slash:
            keep[task] = None
        elif (some := keep.setdefault(task, set())) is not None:
            some.add(query)
    narrowed = []
    for unit in units:
        if unit.task in keep:
            some = keep[unit.task]
            queries_left = unit.queries if some is None else tuple(q for q in unit.queries if q in some)
            if queries_left:
                narrowed.append(unit._replace(queries=queries_left))
    return narrowed


def _by_type(units: list[Unit], wanted: Sequence[str]) -> list[Unit]:
    known = {u.type for u in units if u.type is not None}
    for name in wanted:
        if units and name not in known:
            raise unknown("type", name, known)
    return [u for u in units if u.type in wanted] if wanted else units


def _is_dev(unit: Unit) -> bool:
    """One fifth of the clusters, by a hash that is fixed for the data, is for development."""
    return _hash(f"{unit.data}/{unit.cluster}") % 5 == 0


def _sample(units: list[Unit], benchmark: str, size: int, seed: int) -> list[Unit]:
    """`size` units drawn by hash within (type, abstention): proportional, at least one each, in ledger order.

    Largest remainders share what rounding leaves. Raises UserError when size is below the number of strata.
    """
    mine = [u for u in units if u.benchmark == benchmark]
    if size >= len(mine):
        return mine
    strata: dict[tuple[str, bool], list[Unit]] = defaultdict(list)
    for unit in mine:
        strata[(unit.type or "", unit.abstention)].append(unit)
    if size < len(strata):
        raise UserError(
            f"--sample {size} is below the {len(strata)} types of {benchmark}, of which each needs one; "
            f"take --sample {len(strata)} or more, or --limit {size}"
        )
    exact = {key: size * len(some) / len(mine) for key, some in strata.items()}
    take = {key: max(1, int(exact[key])) for key in strata}
    by_remainder = sorted(strata, key=lambda key: (take[key] - exact[key], key))
    while sum(take.values()) < size:
        key = next(k for k in by_remainder if take[k] < len(strata[k]))
        take[key] += 1
        by_remainder = sorted(strata, key=lambda k: (take[k] - exact[k], k))
    while sum(take.values()) > size:
        key = max((k for k in strata if take[k] > 1), key=lambda k: (take[k] - exact[k], k))
        take[key] -= 1
    drawn = {
        unit.path
        for key, some in strata.items()
        for unit in sorted(some, key=lambda u: _hash(f"{seed}/{u.path}"))[: take[key]]
    }
    return [u for u in mine if u.path in drawn]


def parse_shard(text: str) -> Shard:
    """`K/N` with 1 <= K <= N. Raises UserError."""
    k, slash, n = text.partition("/")
    if not (slash and k.isascii() and k.isdigit() and n.isascii() and n.isdigit() and 1 <= int(k) <= int(n)):
        raise UserError(f"--shard {text}: write K/N with K from 1 to N, for example 1/4")
    return Shard(int(k), int(n))
