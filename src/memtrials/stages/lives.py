"""Scripted lives, replayed: events in order, each query asked where it stands, each restart probed by the next query.

What a life leaves is appended in one write: a `retrieval` of each query, in order, then the `ingest`, which is their
parent; both have `system` and `fetch` in their headers. A retrieval has the query's own text and date; `items` are in
the order of ranks, `items[].memory` says which object each is by its author's ids, and `raw` is the system's own trace,
where the fetch configuration asks for it. An ingest has `operations`, what was carried out and how it was reported, by
the place of the event in the timeline, and `restarts`, with what the probe brought before and after. What a query
expects is in the task (`gold.details`, see the benchmark). A run that is killed appends nothing of a life, a failure of
the system only that it failed, so the next one begins it anew.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec

from memtrials import benchmarks
from memtrials.benchmarks.life import DECLARED, Life, LifeEvent, Restart, Script
from memtrials.benchmarks.timeline import Session
from memtrials.embeddings.base import Offline
from memtrials.errors import UserError, WorkFailedError
from memtrials.index import LedgerIndex, Pair
from memtrials.records import (
    Gold,
    Header,
    IngestBody,
    Operated,
    Query,
    Record,
    Restarted,
    RetrievalBody,
    TaskBody,
    sha256,
    work_key,
)
from memtrials.selection import Chosen
from memtrials.settings import Settings
from memtrials.stages import fetch
from memtrials.stages.common import Options, Plan, Work, derived, guarded_off
from memtrials.stages.fetch import FetchConfig, FetchRequest
from memtrials.systems import SystemSpec
from memtrials.systems.base import Meter, Plugin, System
from memtrials.systems.life import Done, Lifecycle
from memtrials.systems.scripted import Names, as_episode, obstacle

DECLARES = ("provider", "model", "revision", "dimensions")
"""What is recorded of vectors that a script declares."""


def life_key(task: Header, system: str, fetch_config: str) -> str:
    """The name of the work of replaying a life: how it is asked is part of it."""
    config = f"{system} {fetch_config}"  # no id holds a space
    return work_key("ingest", benchmark=task.benchmark or "", task=task.task or "", parent=task, config=config)


def pending(
    index: LedgerIndex, specs: Sequence[SystemSpec], request: FetchRequest, options: Options, chosen: Chosen
) -> Plan:
    """Lives still owed, system by system, one for each missing ordinal and fetch configuration of each selected task.

    Where only other fetch configurations have begun they are left alone unless forced, as in fetch. What a system can't
    be told of is left out, with a note.
    """
    plan = Plan()
    begun = index.begun("retrieval", "fetch")
    tasks = [h for h in index.of("task") if (h.benchmark, h.task) in chosen.tasks and _body(index, h).scripted]
    for spec in specs if tasks else ():
        protocol = fetch.STATE_SHARED if spec.plugin.lives and "learns_on_read" in spec.plugin.capabilities else None
        asked = fetch.configs_of(plan, spec.plugin, spec.fetch, request, options, protocol)
        alone: Counter[Pair] = Counter()
        bare: Counter[Pair] = Counter()
        cannot: Counter[tuple[str, str]] = Counter()
        for task in tasks:
            pair = Pair(task.benchmark or "", spec.id)
            if reason := obstacle(spec.plugin, _body(index, task).needs):
                cannot[pair.benchmark, reason] += 1
            elif all(guarded_off(begun, pair, config.id, options.force) for config in asked):
                alone[pair] += len(asked)
                there = (child.system == spec.id for child in index.children.get(task.id, ()))
                bare[pair] += 0 if any(there) else len(asked)
            else:
                for config in asked:
                    key = life_key(task, spec.id, config.id)
                    for ordinal in range(1, options.repeat + 1):
                        plan.owe(index, Work(key, ordinal, task, None, spec.id, spec, fetch=config.id))
        for pair, count in alone.items():
            fetch.left_alone(index, plan, pair, asked[0], begun[pair], count, bare[pair])
        plan.notes += [
            f"{benchmark} on {spec.name}: {count} {'life is' if count == 1 else 'lives are'} left out, because {reason}"
            for (benchmark, reason), count in cannot.items()
        ]
    return plan


def _body(index: LedgerIndex, task: Header) -> TaskBody:
    return index.task(task.benchmark or "", task.task or "")


# --- before anything is written ---------------------------------------------------------------------------------


def script(data: Path, benchmark: str, task: str, body: TaskBody) -> Script:
    """A task's life again. Raises UserError where it isn't what was built."""
    life = benchmarks.find(benchmark).life
    assert life is not None
    found = life(data, benchmark, task, body)
    if found.digests != body.sessions:
        raise UserError(f"{data}: task {task} isn't what {benchmark} was built from; give the same data with --data")
    return found


def vectors(
    index: LedgerIndex, work: Iterable[Work], data: Callable[[TaskBody], Path], settings: Settings
) -> dict[tuple[str, str], Offline]:
    """The vectors that scripts declare, by benchmark and task, for systems that take them from there.

    Raises UserError, before any life begins, where those of one aren't there.
    """
    wanted: dict[tuple[str, Path], dict[str, None]] = defaultdict(dict)
    for item in work:
        if item.spec.state.get("embedding") == DECLARED:
            name, task = item.parent.benchmark or "", item.parent.task or ""
            wanted[name, data(index.task(name, task))][task] = None
    found: dict[tuple[str, str], Offline] = {}
    for (name, path), tasks in wanted.items():
        declared = benchmarks.find(name).vectors
        if declared is not None:
            found.update({(name, task): made for task, made in declared(path, list(tasks), settings).items()})
    return found


# --- one life ---------------------------------------------------------------------------------------------------


class _Teller(Protocol):
    """How a system is told of a life and asked in its midst."""

    def begin(self, life: Life) -> Sequence[Done]: ...
    def tell(self, step: int, event: LifeEvent) -> Sequence[Done]: ...
    def restart(self) -> tuple[int, Sequence[Done]]: ...
    def ask(self, query: Query, gold: Gold) -> RetrievalBody: ...


@dataclass
class _Told:
    """Of a system that takes events: under its author's names if it is `named`, else under others."""

    system: System
    plugin: Plugin
    config: FetchConfig
    options: Options
    namespace: str
    user: str
    names: Names = field(default_factory=Names)

    @property
    def lifecycle(self) -> Lifecycle:
        assert isinstance(self.system, Lifecycle)
        return self.system

    def begin(self, life: Life) -> Sequence[Done]:
        shown = life if self.plugin.named else self.names.life(life)
        return self.lifecycle.begin_life(self.namespace, self.user, shown)

    def tell(self, step: int, event: LifeEvent) -> Sequence[Done]:
        return self.lifecycle.live(self.namespace, event if self.plugin.named else self.names.event(event))

    def restart(self) -> tuple[int, Sequence[Done]]:
        return self.lifecycle.restart(self.namespace)

    def ask(self, query: Query, gold: Gold) -> RetrievalBody:
        found = fetch.ask(self.system, self.namespace, query, gold, self.config, self.options)
        return found if self.plugin.named else msgspec.structs.replace(found, items=self.names.items(found.items))


@dataclass
class _Copied:
    """Of a system that is fed sessions, one for each event: a copy of it is frozen and asked."""

    system: System
    config: FetchConfig
    options: Options
    namespace: str
    user: str
    timeline: Sequence[Session]
    episodes: list[str | None] = field(default_factory=list)

    def begin(self, life: Life) -> Sequence[Done]:
        self.system.create(self.namespace, self.user)
        return ()

    def tell(self, step: int, event: LifeEvent) -> Sequence[Done]:
        self.system.add(self.namespace, self.timeline[step])
        self.episodes.append(getattr(event, "external_id", None))
        return [Done("remember")]

    def restart(self) -> tuple[int, Sequence[Done]]:
        raise NotImplementedError("a life with a restart is left out for this system")

    def ask(self, query: Query, gold: Gold) -> RetrievalBody:
        copy = secrets.token_hex(8)
        self.system.fork(self.namespace, copy)
        try:
            self.system.freeze(copy)
            found = fetch.ask(self.system, copy, query, gold, self.config, self.options)
        finally:
            self.system.discard(copy)
        items = None if found.items is None else tuple(as_episode(item, self.episodes) for item in found.items)
        return msgspec.structs.replace(found, items=items)


@dataclass
class _Course:
    """A life on its way. before, aside: the meter and the seconds that asking took, so that neither counts for the
    telling."""

    teller: _Teller
    body: TaskBody
    meter: Meter
    operations: list[Operated] = field(default_factory=list)
    restarts: list[Restarted] = field(default_factory=list)
    found: list[RetrievalBody] = field(default_factory=list)
    aside: float = 0.0

    def __post_init__(self) -> None:
        self.before = replace(self.meter)

    def run(self, script: Script) -> None:
        """Everything in its order. Raises WorkFailedError that says where."""
        name = script.life.name
        self._carry_out(name, -1, "its beginning", "remember", partial(self.teller.begin, script.life))
        self._ask_after(name, -1, last=not script.events)
        for step, event in enumerate(script.events):
            place = f"event {event.event_id}"
            if isinstance(event, Restart):
                with _placed(name, place, "restart"):
                    self._restart(step)
            else:
                kind = str(event.__struct_config__.tag)
                self._carry_out(name, step, place, kind, partial(self.teller.tell, step, event))
            self._ask_after(name, step, last=step == len(script.events) - 1)

    def _carry_out(self, life: str, step: int, place: str, kind: str, do: Callable[[], Sequence[Done]]) -> None:
        began = time.perf_counter()
        with _placed(life, place, kind):
            done = do()
        self._note(step, done, time.perf_counter() - began)

    def _note(self, step: int, done: Sequence[Done], seconds: float) -> None:
        for n, one in enumerate(done):
            reported = None if one.outcome is None else json.dumps(one.outcome, ensure_ascii=False)
            self.operations.append(Operated(step, one.operation, one.id, reported, None if n else seconds))

    def _restart(self, step: int) -> None:
        probe = self.body.queries[len(self.found)]
        before = self._asked(probe)
        began = time.perf_counter()
        restored, done = self.teller.restart()
        self._note(step, done, time.perf_counter() - began)
        after = self._asked(probe)
        items = (before.items or (), after.items or ())
        self.restarts.append(Restarted(step, probe.id, restored, *items, before.raw, after.raw))

    def _ask_after(self, life: str, step: int, *, last: bool) -> None:
        for query in self.body.queries[len(self.found) :]:
            if not last and (query.after is None or query.after > step):
                break
            with _placed(life, f"query {query.id}", "retrieve"):
                self.found.append(self._asked(query))

    def _asked(self, query: Query) -> RetrievalBody:
        meter, began = replace(self.meter), time.perf_counter()
        found = self.teller.ask(query, self.body.gold_of(query.id))
        self.aside += time.perf_counter() - began
        for counted in fields(Meter):
            if isinstance(now := getattr(self.meter, counted.name), int | float):
                taken = now - getattr(meter, counted.name)
                setattr(self.before, counted.name, getattr(self.before, counted.name) + taken)
        return found


@contextmanager
def _placed(life: str, place: str, operation: str) -> Iterator[None]:
    """Say of a failure where in which life it was. Raises WorkFailedError."""
    try:
        yield
    except WorkFailedError as error:
        raise WorkFailedError(
            error.cause,
            error.class_,
            f"{life}, {place}, {operation}: {error.message}",
            attempts=error.attempts,
            raw=error.raw,
            call=error.call,
            usage=error.usage,
        ) from error


def replay(
    index: LedgerIndex,
    work: Work,
    config: FetchConfig,
    system: System,
    data: Path,
    declared: Mapping[tuple[str, str], Offline],
    options: Options,
) -> list[Record]:
    """The records of one life, the ingest last. declared: see `vectors`. Raises WorkFailedError; nothing is left of the
    state then."""
    spec: SystemSpec = work.spec
    name, task = work.parent.benchmark or "", work.parent.task or ""
    body = index.task(name, task)
    told = script(data, name, task, body)
    own = declared.get((name, task)) if spec.state.get("embedding") == DECLARED else None
    told = told._replace(life=replace(told.life, vectors=own))
    namespace, user = secrets.token_hex(8), secrets.token_hex(8)
    teller: _Teller
    if spec.plugin.lives:
        teller = _Told(system, spec.plugin, config, options, namespace, user)
    else:
        timeline = benchmarks.find(name).sessions(data, name, task, body)
        teller = _Copied(system, config, options, namespace, user, timeline)
    course = _Course(teller, body, system.meter)
    began = time.perf_counter()
    try:
        course.run(told)
        system.freeze(namespace)
    except BaseException:
        system.discard(namespace)
        raise
    elapsed = time.perf_counter() - began - course.aside
    ingest = IngestBody(
        namespace=namespace,
        user=user,
        system_version=spec.plugin.version,
        capabilities=tuple(sorted(system.capabilities)),
        sessions=len(body.sessions),
        turns=body.turns,
        effort=system.meter.effort_since(course.before, elapsed),
        usage=system.meter.usage(course.before, course.before),
        embedded_at=system.meter.endpoint,
        operations=tuple(course.operations),
        restarts=tuple(course.restarts),
        declared={} if own is None else {**{field: str(getattr(own, field)) for field in DECLARES}, **own.about},
    )
    content = sha256([work.parent.content, spec.id, None if system.embedded else namespace])
    header = derived(work, "ingest", index, system=spec.id, fetch=config.id, content=content)
    retrievals = []
    for query, found in zip(body.queries, course.found, strict=True):
        key = fetch.retrieval_key(header, query.id, config.id)
        retrievals.append(fetch.record(index, Work(key, 1, header, query.id, config.id), found))
    return [*retrievals, Record(header, ingest)]
