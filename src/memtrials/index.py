"""What counts in a ledger: voids, twins, failures and finished work, folded from headers alone.

A record counts when neither it nor anything it was made from is void, set aside as a twin, or missing. Twins are
records of one kind, key and repeat among those that count: the first in the file counts, one with the same content
hands it its children, one with other content is set aside together with them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import NamedTuple

from memtrials.errors import UserError, unknown
from memtrials.ledger import Ledger
from memtrials.records import (
    KINDS,
    BatchBody,
    ConfigBody,
    Gold,
    Header,
    Item,
    Kind,
    Query,
    RetrievalBody,
    Role,
    TaskBody,
    plain_name,
)

WORK_KINDS: tuple[Kind, ...] = ("config", "task", "ingest", "retrieval", "answer", "verdict")
MAX_CONTENT_FAILURES = 3

Work = tuple[str, int | None]
"""The name of a piece of work: its key and its ordinal."""


STORAGE = "storage"


def storage_metric(turn: str) -> str:
    """What the retrieval of a storage probe for a turn has as `metric` in its header, which no other retrieval has."""
    return f"{STORAGE} {turn}"


def is_storage_probe(header: Header) -> bool:
    """Whether a retrieval, or a failure to make one, is a storage probe."""
    return (header.metric or "").startswith(f"{STORAGE} ")


def probed_turn(probe: Header) -> str:
    """The turn that a storage probe asked for."""
    return (probe.metric or "").partition(" ")[2]


class Pair(NamedTuple):
    """Where a reader or a fetch configuration begins: a benchmark on a system."""

    benchmark: str
    system: str


class LedgerIndex:
    """The records of a ledger that count, at the moment it was made.

    void_too: count what was voided as if it hadn't been, beside what was made in its place. done: the record of every
    finished piece of work. failures: counting failures of each piece of work, in file order. void_ids: ids that a void
    in force names. twins: how many records have a twin before them. storage_probes: retrievals that asked a state for a
    piece of evidence by its own text; they are no trials, and `of` leaves them out.
    """

    def __init__(self, ledger: Ledger, *, void_too: bool = False) -> None:
        self.ledger = ledger
        self.void_too = void_too
        self.done: dict[Work, Header] = {}
        self.failures: dict[Work, list[Header]] = defaultdict(list)
        self.twins = 0
        self.set_aside = 0
        self._standing: dict[str, str] = {}
        self._revived: dict[str, Header] = {}
        self._of: dict[Kind, list[Header]] = {kind: [] for kind in KINDS}
        self._bodies: dict[str, TaskBody] = {}
        self._fold()

    def _fold(self) -> None:
        by_kind: dict[Kind, list[Header]] = {kind: [] for kind in KINDS}
        for header in self.ledger.headers:
            by_kind[header.kind].append(header)
        self.void_ids = _void_ids(by_kind["void"])
        self._of["void"] = [h for h in by_kind["void"] if h.id not in self.void_ids]
        self._standing.update((h.id, h.id) for h in self._of["void"])
        for kind in WORK_KINDS:
            self._count_work(kind, by_kind[kind])
        self.storage_probes = [h for h in self._of["retrieval"] if h.metric and is_storage_probe(h)]
        if self.storage_probes:
            self._of["retrieval"] = [h for h in self._of["retrieval"] if not is_storage_probe(h)]
        for header in self._revived.values():
            self.done.setdefault((header.key or "", header.repeat), header)
        standing, void_ids = self._standing, frozenset() if self.void_too else self.void_ids
        for kind in ("step", "failure", "batch"):
            for header in by_kind[kind]:
                made_from = header.parents if kind != "batch" else ()
                if header.id not in void_ids and all(p in standing for p in made_from):
                    standing[header.id] = header.id
                    self._of[kind].append(header)
        for header in self._of["failure"]:
            self.failures[(header.key or "", header.repeat)].append(header)

    def _count_work(self, kind: Kind, headers: Iterable[Header]) -> None:
        standing, void_ids, done, counting = self._standing, self.void_ids, self.done, self._of[kind]
        for header in headers:
            if header.id in void_ids or (self._revived and not self._revived.keys().isdisjoint(header.parents)):
                self._revive(header)
                continue
            for parent in header.parents:
                if parent not in standing:
                    break
            else:
                work = (header.key or "", header.repeat)
                first = done.setdefault(work, header)
                if first is header:
                    standing[header.id] = header.id
                    counting.append(header)
                elif kind != "config":
                    self.twins += 1
                    if first.content == header.content:
                        standing[header.id] = first.id
                    else:
                        self.set_aside += 1

    def _revive(self, header: Header) -> None:
        """Count a void record, or one that was made from it, if void ones count, too."""
        if self.void_too and all(parent in self._standing for parent in header.parents):
            self._revived[header.id] = header
            self._standing[header.id] = header.id
            self._of[header.kind].append(header)

    # --- what counts ---

    def of(self, kind: Kind) -> list[Header]:
        """The records of a kind that count, in file order."""
        return self._of[kind]

    def counts(self, record_id: str) -> bool:
        """Whether that record counts (a twin whose children were handed on does not itself)."""
        return self._standing.get(record_id) == record_id

    def standing(self, record_id: str) -> str | None:
        """The id of the record that stands for this one: itself, or its first twin of the same content."""
        return self._standing.get(record_id)

    def parent(self, header: Header) -> Header:
        """The counting record a record was made from."""
        return self.ledger.header(self._standing[header.parents[0]])

    @property
    def revived(self) -> list[Header]:
        """Void records and what was made from them, in file order within each kind; none unless void ones count."""
        return list(self._revived.values())

    @cached_property
    def children(self) -> dict[str, list[Header]]:
        """Counting work made from each counting record, by the parent's id."""
        found: dict[str, list[Header]] = defaultdict(list)
        for headers in (*(self._of[kind] for kind in WORK_KINDS), self.storage_probes):
            for header in headers:
                for parent in header.parents:
                    found[self._standing[parent]].append(header)
        return found

    def descendants(self, ids: Iterable[str]) -> list[Header]:
        """Every counting record made from these, directly or not, these not included."""
        found: dict[str, Header] = {}
        waiting = list(ids)
        while waiting:
            for child in self.children.get(waiting.pop(), ()):
                if child.id not in found:
                    found[child.id] = child
                    waiting.append(child.id)
        return list(found.values())

    # --- what isn't pending ---

    def given_up(self, work: Work) -> bool:
        """Whether the content of that work failed in three runs."""
        return sum(f.class_ == "content" for f in self.failures.get(work, ())) >= MAX_CONTENT_FAILURES

    @cached_property
    def open_batches(self) -> dict[str, tuple[Header, BatchBody]]:
        """Batches whose results aren't in, by their records' ids: no record that counts has them as parent."""
        followed = {parent for header in self._of["batch"] for parent in header.parents}
        last = (header for header in self._of["batch"] if header.id not in followed)
        bodies = {header.id: (header, self.ledger.body(header, BatchBody)) for header in last}
        return {name: batch for name, batch in bodies.items() if batch[1].state == "open"}

    @cached_property
    def in_flight(self) -> frozenset[Work]:
        """Work that an open batch holds."""
        return frozenset(work for _, body in self.open_batches.values() for work in body.work)

    # --- configurations and tasks ---

    @cached_property
    def configs(self) -> dict[str, Header]:
        """Configuration records by configuration id."""
        return {h.key: h for h in self._of["config"] if h.key}

    @cached_property
    def _config_bodies(self) -> dict[str, ConfigBody]:
        return {}

    def config(self, config_id: str) -> ConfigBody:
        """The whole of a configuration. Raises UserError when the ledger holds none of that id."""
        body = self._config_bodies.get(config_id)
        if body is None:
            if config_id not in self.configs:
                raise unknown("configuration", config_id, self.configs)
            body = self._config_bodies[config_id] = self.ledger.body(self.configs[config_id], ConfigBody)
        return body

    def resolve(self, name: str, role: Role | None = None) -> list[str]:
        """Configuration ids for what the command line says: one `name-hash`, or every one of a bare name.

        Raises UserError, with near matches, when there is none.
        """
        mine = {i: h for i, h in self.configs.items() if role is None or getattr(h, role) == i}
        if name in mine:
            return [name]
        found = [i for i in mine if i.rpartition("-")[0] == plain_name(name)]
        if not found:
            raise unknown(role or "configuration", name, [*mine, *(i.rpartition("-")[0] for i in mine)])
        return found

    @cached_property
    def tasks(self) -> dict[tuple[str, str], Header]:
        """Task records by benchmark and task id."""
        return {(h.benchmark or "", h.task or ""): h for h in self._of["task"]}

    def retrieved(self, trial: RetrievalBody) -> tuple[Item, ...] | None:
        """All items that came back with a trial's query, also where another retrieval holds them; None without any."""
        if trial.items_in is None:
            return trial.items
        return self.ledger.body(self.ledger.header(trial.items_in), RetrievalBody).items

    def shown(self, trial: RetrievalBody) -> tuple[Item, ...] | None:
        """The items that stand whole in a trial's context; None where that isn't known."""
        items, fit = self.retrieved(trial), trial.fit
        if items is None or fit is None or fit.is_whole:
            return items
        return items[: fit.whole] if fit.whole + fit.partial + fit.dropped == len(items) else None

    def questions(self, benchmark: str, asks: Callable[[Query, Gold], bool]) -> set[tuple[str, str]]:
        """The (task, query) of a built benchmark that something asks about."""
        found = set()
        for built, task in self.tasks:
            if built == benchmark:
                body = self.task(built, task)
                gold = {g.query: g for g in body.gold}
                found |= {(task, q.id) for q in body.queries if asks(q, gold.get(q.id) or Gold(query=q.id))}
        return found

    def task(self, benchmark: str, task: str) -> TaskBody:
        """The body of a task. Raises UserError when it wasn't built."""
        header = self.tasks.get((benchmark, task))
        if header is None:
            raise UserError(f"task {task!r} of {benchmark} is not in {self.ledger.path}; run `memtrials build`")
        body = self._bodies.get(header.id)
        if body is None:
            body = self._bodies[header.id] = self.ledger.body(header, TaskBody)
        return body

    @cached_property
    def benchmarks(self) -> list[str]:
        """Names of the benchmarks whose tasks were built, in order."""
        return list(dict.fromkeys(name for name, _ in self.tasks))

    def begun(self, kind: Kind, role: Role) -> dict[Pair, list[str]]:
        """Which configurations of a role have begun each benchmark on each system, by their first record; then those
        whose first records are in flight."""
        flying = [header for header, _ in self.open_batches.values() if header.stage == kind]
        return _by_pair([*self._of[kind], *flying], role)

    def current_reader(self) -> dict[Pair, str]:
        """The reader whose first answer is newest, for each benchmark on each system."""
        return {pair: readers[-1] for pair, readers in _by_pair(self._of["answer"], "reader").items()}

    def readers_shown(self, reader: str | None) -> dict[Pair, set[str]]:
        """Whose answers are judged and shown on each benchmark and system: the current reader's (None), those of a
        reader by name or id, or `all`."""
        if reader is None:
            return {pair: {current} for pair, current in self.current_reader().items()}
        begun = _by_pair(self._of["answer"], "reader")
        if reader == "all":
            return {pair: set(readers) for pair, readers in begun.items()}
        named = set(self.resolve(reader, "reader"))
        return {pair: named.intersection(readers) for pair, readers in begun.items()}


def _by_pair(headers: Iterable[Header], role: Role) -> dict[Pair, list[str]]:
    """The configurations of a role in these records, for each benchmark on each system, by their first one."""
    found: dict[Pair, dict[str, None]] = defaultdict(dict)
    for header in headers:
        found[Pair(header.benchmark or "", header.system or "")].setdefault(getattr(header, role))
    return {pair: list(ids) for pair, ids in found.items()}


def _void_ids(voids: list[Header]) -> frozenset[str]:
    """Ids that are void. A void stands after what it names, so going backwards decides each before it is used."""
    void: set[str] = set()
    for header in reversed(voids):
        if header.id not in void:
            void.update(header.parents)
    return frozenset(void)
