"""replay: feed each task's timeline, session by session, through a system's normal write path, and freeze the state."""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memtrials import benchmarks, locks, systems
from memtrials.benchmarks.base import Session
from memtrials.errors import UserError
from memtrials.index import LedgerIndex
from memtrials.ledger import Ledger
from memtrials.llm.money import Purse
from memtrials.llm.pool import NO_LIMITS, CallLimits
from memtrials.outcome import Outcome
from memtrials.records import Header, IngestBody, Record, TaskBody, config_record, sha256, work_key
from memtrials.report.manifest import write_manifests
from memtrials.selection import Chosen, choose
from memtrials.settings import cache_folder
from memtrials.stages.common import PIPELINED, Options, Perform, Plan, Work, derived, run_plan
from memtrials.stages.spending import billed, check_priced, embedding_forecast, embedding_purse
from memtrials.stages.turns import Turns
from memtrials.systems import SystemSpec
from memtrials.systems.base import Surroundings, System, Usage
from memtrials.systems.embedded import chunk_texts
from memtrials.systems.embedding import endpoint_model
from memtrials.systems.endpoint import request_sizes
from memtrials.systems.store import remove_parts, stores_folder


@dataclass(frozen=True)
class ReplayRequest:
    """Which systems to feed; data: where the release is, if it moved since build; limits: of what they may spend on
    embeddings."""

    systems: Sequence[str]
    data: Path | None = None
    limits: CallLimits = NO_LIMITS


def run(request: ReplayRequest, options: Options) -> Outcome:
    """Make the states that are missing. Raises UserError for unknown systems or data that isn't what was built."""
    specs = [systems.load(name, options.settings) for name in dict.fromkeys(request.systems)]
    ledger = Ledger.open(options.trials)
    try:
        replay = _Replay(specs, request, options)
        if not options.dry_run:
            replay.sweep()
        outcome = run_plan(
            "replay",
            options,
            ledger,
            lambda index: pending(index, specs, options.repeat, choose(index, options.selection, "task")),
            replay.perform,
            role="system",
            workers=options.workers or PIPELINED,
            check=replay.check,
            finish=replay.close,
            halt=replay.turns.close,
            forecast=replay.forecast,
        )
        if not options.dry_run:
            ledger.refresh()  # other shards of this system may have been at work, too
            write_manifests(LedgerIndex(ledger), options.trials, list(replay.specs))
        return outcome
    finally:
        ledger.close()


def pending(index: LedgerIndex, specs: Sequence[SystemSpec], repeat: int, chosen: Chosen) -> Plan:
    """States still owed, system by system, one for each missing ordinal of each selected task."""
    plan = Plan()
    for spec in specs:
        plan.configs[spec.id] = config_record("system", spec.name, spec.state, provenance(spec))
        for task in index.of("task"):
            if (task.benchmark, task.task) not in chosen.tasks:
                continue
            key = ingest_key(task, spec.id)
            for ordinal in range(1, repeat + 1):
                plan.owe(index, Work(key, ordinal, task, None, spec.id, spec))
    return plan


def ingest_key(task: Header, system: str) -> str:
    """The name of the work of feeding a task to a system."""
    return work_key("ingest", benchmark=task.benchmark or "", task=task.task or "", parent=task, config=system)


def provenance(spec: SystemSpec) -> dict[str, Any]:
    """What is recorded with a system beside what shapes its state."""
    kind = spec.plugin
    return {
        "fetch": dict(spec.fetch),
        "capabilities": sorted(kind.capabilities),
        "control": kind.control,
        "opens_gold": kind.opens_gold,
    }


def shared_prefix(timelines: Sequence[Sequence[str]]) -> int:
    """How many sessions all these timelines (as session digests) begin with; 0 for fewer than two."""
    if len(timelines) < 2:
        return 0
    count = 0
    for together in zip(*timelines, strict=False):
        if len(set(together)) > 1:
            break
        count += 1
    return count


@dataclass
class _Prefix:
    """A shared beginning, fed once: an unfrozen state, how many sessions it has, and what it cost alone."""

    namespace: str
    sessions: int
    seconds: float
    usage: Usage


class _Replay:
    """One run of the stage: the timelines of its tasks and the one system that is open."""

    def __init__(self, specs: Sequence[SystemSpec], request: ReplayRequest, options: Options) -> None:
        self.specs = {spec.id: spec for spec in specs}
        self.request = request
        self.options = options
        self.turns = Turns()
        self.purse = Purse()
        self._system: tuple[str, System] | None = None
        self._prefixes: dict[tuple[str, str], _Prefix | None] = {}
        self._prefix_lengths: dict[str, int] = {}

    # --- before anything is written ---

    def sweep(self) -> None:
        """Delete what killed runs left half-built, unless somebody is building there."""
        for system in self.specs:
            folder = stores_folder(self.options.trials) / system
            if any(folder.glob("*.part")):
                with locks.idle(self.options.trials, "replay", system) as idle:
                    if idle:
                        remove_parts(folder)

    def check(self, index: LedgerIndex, plan: Plan) -> None:
        """Read every timeline and compare it with what build recorded; see that every system has what it needs from
        outside, and a price under a cap (a dry run calls nothing, so it needs no key). Raises UserError."""
        if not self.options.dry_run:
            specs = {work.config: work.spec for work in plan.work}
            models = {config: model for config, spec in specs.items() if (model := endpoint_model(spec.state))}
            for spec in specs.values():
                spec.plugin.ready(spec.state, self.options.settings)
            check_priced(sorted(models.values()), self.request.limits)
            self.purse = embedding_purse(index, "replay", models, self.request.limits)
        by_benchmark: dict[str, dict[str, TaskBody]] = defaultdict(dict)
        for work in plan.work:
            name, task = work.parent.benchmark or "", work.parent.task or ""
            by_benchmark[name][task] = index.task(name, task)
        seen: dict[int, tuple[Session, str]] = {}
        for name, tasks in by_benchmark.items():
            self._prefix_lengths[name] = shared_prefix([body.sessions for body in tasks.values()])
            for task, body in tasks.items():
                for number, session in enumerate(self.sessions(name, task, body)):
                    if id(session) not in seen:
                        seen[id(session)] = (session, session.digest())
                    if number >= len(body.sessions) or seen[id(session)][1] != body.sessions[number]:
                        raise UserError(
                            f"{self.data(body)}: session {number} of task {task} isn't what {name} was built from; "
                            "give the same data with --data"
                        )

    def data(self, body: TaskBody) -> Path:
        """Where the release is now."""
        return self.request.data or Path(body.data)

    def sessions(self, benchmark: str, task: str, body: TaskBody) -> list[Session]:
        """The timeline of a task."""
        return benchmarks.find(benchmark).sessions(self.data(body), benchmark, task, body)

    def forecast(self, index: LedgerIndex, plan: Plan) -> dict[str, Any]:
        """What a dry run says: states and sessions that would be fed, and what would be embedded elsewhere at most."""
        sessions = sum(len(index.task(w.parent.benchmark or "", w.parent.task or "").sessions) for w in plan.work)
        return {"states": len(plan.work), "sessions": sessions, **embedding_forecast(self._embedded(index, plan))}

    def _embedded(self, index: LedgerIndex, plan: Plan) -> Iterator[tuple[str, int]]:
        """Model and tokens of each request for embeddings; no text goes to a model twice."""
        known: dict[tuple[Any, ...], set[str]] = defaultdict(set)
        for work in plan.work:
            state = work.spec.state
            if (model := endpoint_model(state)) is None:
                continue
            seen = known[model, state.get("dimensions"), state.get("revision")]
            name, task = work.parent.benchmark or "", work.parent.task or ""
            for session in self.sessions(name, task, index.task(name, task)):
                fresh = [t for t in dict.fromkeys(chunk_texts(session, state.get("chunk", "turn"))) if t not in seen]
                seen.update(fresh)
                yield from ((model, size) for size in request_sizes(fresh))

    # --- the work ---

    def perform(self, index: LedgerIndex, plan: Plan) -> Perform:
        """Feed one task to one system."""

        async def feed(work: Work) -> Sequence[Record]:
            body = index.task(work.parent.benchmark or "", work.parent.task or "")
            return [await self.turns.take(self._feed, index, work, body)]

        return feed

    def _feed(self, index: LedgerIndex, work: Work, body: TaskBody) -> Record:
        system = self._open(work.spec)
        with billed(system.meter, self.purse):
            return self._fed(index, work, body, system)

    def _fed(self, index: LedgerIndex, work: Work, body: TaskBody, system: System) -> Record:
        spec: SystemSpec = work.spec
        benchmark, task = work.parent.benchmark or "", work.parent.task or ""
        timeline = self.sessions(benchmark, task, body)
        meter = system.meter
        before_prefix = replace(meter)
        prefix = self._prefix(spec, system, benchmark, timeline)
        namespace, user = secrets.token_hex(8), secrets.token_hex(8)
        before, began = replace(meter), time.perf_counter()
        try:
            if prefix:
                system.fork(prefix.namespace, namespace)
            else:
                system.create(namespace, user)
            for session in timeline[prefix.sessions if prefix else 0 :]:
                system.add(namespace, session)
            system.freeze(namespace)
        except BaseException:
            system.discard(namespace)
            raise
        elapsed = time.perf_counter() - began
        ingest = IngestBody(
            namespace=namespace,
            user=user,
            system_version=spec.plugin.version,
            capabilities=tuple(sorted(system.capabilities)),
            sessions=len(timeline),
            turns=body.turns,
            forked_at=prefix.sessions if prefix else None,
            effort=meter.effort_since(before, elapsed, prefix.seconds if prefix else 0.0),
            usage=meter.usage(before_prefix, before, prefix.usage if prefix else None),
            embedded_at=meter.endpoint,
        )
        content = sha256([work.parent.content, spec.id, None if system.embedded else namespace])
        return Record(derived(work, "ingest", index, system=spec.id, content=content), ingest)

    def _prefix(self, spec: SystemSpec, system: System, benchmark: str, timeline: Sequence[Session]) -> _Prefix | None:
        """The shared beginning of this benchmark's timelines in this system, fed on first use."""
        length = self._prefix_lengths.get(benchmark, 0)
        if not length or "fork" not in system.capabilities:
            return None
        place = (spec.id, benchmark)
        if place not in self._prefixes:
            namespace = secrets.token_hex(8)
            before, began = replace(system.meter), time.perf_counter()
            try:
                system.create(namespace, secrets.token_hex(8))
                for session in timeline[:length]:
                    system.add(namespace, session)
            except BaseException:
                system.discard(namespace)
                raise
            effort = system.meter.effort_since(before, time.perf_counter() - began)
            usage = system.meter.usage(before, before)
            self._prefixes[place] = _Prefix(namespace, length, effort.charged_seconds or 0.0, usage)
        return self._prefixes[place]

    def _open(self, spec: SystemSpec) -> System:
        if self._system is None or self._system[0] != spec.id:
            self._close()
            folder = stores_folder(self.options.trials) / spec.id
            cache, settings = cache_folder(self.options.settings), self.options.settings
            surroundings = Surroundings(folder, cache, settings, self.purse, self.turns.stopped)
            self._system = (spec.id, spec.plugin.open(spec.state, surroundings))
        return self._system[1]

    def _close(self) -> None:
        if self._system is None:
            return
        system_id, system = self._system
        for (owner, _), prefix in self._prefixes.items():
            if owner == system_id and prefix is not None:
                system.discard(prefix.namespace)
        self._prefixes = {place: p for place, p in self._prefixes.items() if place[0] != system_id}
        system.close()
        self._system = None

    async def close(self) -> None:
        """Close what is open."""
        self._close()
