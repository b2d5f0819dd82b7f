"""replay: feed each task's timeline, session by session, through a system's normal write path, and freeze the state.

A scripted life is fed event by event and asked on the way: see `lives.py`.
"""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from memtrials import benchmarks, locks, systems
from memtrials.benchmarks.timeline import Session
from memtrials.embeddings.base import Offline
from memtrials.errors import UserError
from memtrials.index import LedgerIndex
from memtrials.ledger import Ledger
from memtrials.llm.pool import NO_LIMITS, CallLimits
from memtrials.outcome import Outcome
from memtrials.records import Effort, Header, IngestBody, Record, TaskBody, sha256, work_key
from memtrials.report.manifest import write_manifests
from memtrials.selection import Chosen, choose
from memtrials.stages import lives
from memtrials.stages.common import PIPELINED, Options, Perform, Plan, Work, derived, run_plan
from memtrials.stages.enriching import Given, given
from memtrials.stages.fetch import FetchConfig, FetchRequest
from memtrials.stages.opened import Opened
from memtrials.stages.spending import billed, check_priced, embedding_forecast, embedding_purse
from memtrials.stages.steps import Feeding, Journey, journeys
from memtrials.systems import SystemSpec
from memtrials.systems.base import Enriched, ForeignState, Plugin, System, Usage
from memtrials.systems.embedding import endpoint_model
from memtrials.systems.endpoint import request_sizes
from memtrials.systems.store import remove_parts, stores_folder


@dataclass(frozen=True)
class ReplayRequest:
    """Which systems to feed; data: where the release is, if it moved since build.

    manifest: a file or folder that names states made elsewhere, taken in instead of feeding. state_per_query: one state
    for each query, for systems that learn when they are asked. limits: of what may be spent on embeddings. asked: how
    scripted lives are asked on the way. lives: how often each is replayed, where not as often as anything else.
    """

    systems: Sequence[str]
    data: Path | None = None
    manifest: Path | None = None
    state_per_query: bool = False
    limits: CallLimits = NO_LIMITS
    asked: FetchRequest = field(default_factory=FetchRequest)
    lives: int | None = None


def run(request: ReplayRequest, options: Options) -> Outcome:
    """Make the states that are missing. Raises UserError for unknown systems or data that isn't what was built."""
    specs = [systems.load(name, options.settings) for name in dict.fromkeys(request.systems)]
    if request.manifest is not None:
        for spec in specs:
            if spec.plugin.manifest is None:
                raise UserError(f"{spec.name} is fed here and takes no --manifest; leave it out")
        if options.repeat > 1 or request.state_per_query:
            raise UserError("a manifest names one state for each task; leave --repeat and --state-per-query out")
    ledger = Ledger.open(options.trials)
    try:
        replay = _Replay(specs, request, options, ledger)
        if not options.dry_run:
            replay.sweep()
        outcome = run_plan(
            "replay",
            options,
            ledger,
            replay.plan,
            replay.perform,
            role="system",
            workers=options.workers or PIPELINED,
            check=replay.check,
            finish=replay.opened.close,
            halt=replay.opened.halt,
            forecast=replay.forecast,
        )
        if not options.dry_run:
            ledger.refresh()  # other shards of this system may have been at work, too
            write_manifests(LedgerIndex(ledger), options.trials, list(replay.specs))
        return outcome
    finally:
        ledger.close()


def pending(
    index: LedgerIndex, specs: Sequence[SystemSpec], repeat: int, chosen: Chosen, *, by_query: bool = False
) -> Plan:
    """States still owed, system by system, one for each missing ordinal of each selected task, or of each of its
    selected queries. Scripted lives are owed by `lives.pending`."""
    plan = Plan()
    for spec in specs:
        plan.announce("system", spec.name, spec.state, provenance(spec))
        for task in index.of("task"):
            if (task.benchmark, task.task) not in chosen.tasks:
                continue
            name, body = task.benchmark or "", index.task(task.benchmark or "", task.task or "")
            if body.scripted:
                continue
            wanted = [q.id for q in body.queries if (name, task.task, q.id) in chosen.queries] if by_query else [None]
            for query in wanted:
                key = ingest_key(task, spec.id, query)
                for ordinal in range(1, repeat + 1):
                    plan.owe(index, Work(key, ordinal, task, query, spec.id, spec))
    return plan


def ingest_key(task: Header, system: str, query: str | None = None) -> str:
    """The name of the work of feeding a task to a system, for all of its queries or for one alone."""
    return work_key(
        "ingest", benchmark=task.benchmark or "", task=task.task or "", query=query, parent=task, config=system
    )


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


def _asked(plan: Plan, fetch: str) -> FetchConfig:
    """How lives are asked under a configuration of this plan."""
    return FetchConfig(fetch, plan.configs[fetch].settings)


def _embeds_unknown(work: Work) -> bool:
    """Whether a life's system has texts embedded elsewhere and doesn't say which."""
    plugin = work.spec.plugin
    remote = work.fetch is not None and endpoint_model(work.spec.state) is not None
    return remote and plugin.lives and plugin.embeds_life is None


@dataclass
class _Prefix:
    """A shared beginning, fed once: an unfrozen state, how many sessions it has, and what it cost alone."""

    namespace: str
    sessions: int
    seconds: float
    usage: Usage


class _Replay:
    """One run of the stage: the timelines of its tasks, and the systems that are fed."""

    def __init__(self, specs: Sequence[SystemSpec], request: ReplayRequest, options: Options, ledger: Ledger) -> None:
        self.specs = {spec.id: spec for spec in specs}
        self.request = request
        self.options = options
        self.ledger = ledger
        self.opened = Opened(options, self._discard_prefixes)
        self._journeys: dict[tuple[str, int], Journey] = {}
        self._foreign: dict[tuple[str, str, str], ForeignState] = {}
        self._prefixes: dict[tuple[str, str], _Prefix | None] = {}
        self._prefix_lengths: dict[str, int] = {}
        self._declared: dict[tuple[str, str], Offline] = {}
        self._given: dict[tuple[str, str], Given] = {}
        self._swept: dict[str, int] = {}

    # --- before anything is written ---

    def plan(self, index: LedgerIndex) -> Plan:
        """What is owed; with a manifest only what it names."""
        chosen = choose(index, self.options.selection, "task")
        specs = list(self.specs.values())
        plan = pending(index, specs, self.options.repeat, chosen, by_query=self.request.state_per_query)
        if self.request.manifest is not None:
            plan.notes += self._read_manifest(index, specs, chosen)
            places = [(w.config, w.parent.benchmark or "", w.parent.task or "") for w in plan.work]
            unnamed = [place for place in places if place not in self._foreign]
            plan.work = [work for work, place in zip(plan.work, places, strict=True) if place in self._foreign]
            if unnamed:
                if self.options.selection.tasks:
                    raise UserError(f"{self.request.manifest} doesn't name task {unnamed[0][2]}")
                tasks = ", ".join(task for _, _, task in unnamed[:5]) + (", …" if len(unnamed) > 5 else "")
                plan.notes.append(f"{len(unnamed)} states aren't in {self.request.manifest}: {tasks}")
        else:
            self._journeys = journeys(index, {(work.key, work.repeat) for work in plan.work})
            self._add_lives(index, plan, chosen)
        return plan

    def _add_lives(self, index: LedgerIndex, plan: Plan, chosen: Chosen) -> None:
        scripted = {name for name, task in chosen.tasks if index.task(name, task).scripted}
        if scripted and self.request.state_per_query:
            raise UserError(
                f"--state-per-query: a query of {min(scripted)} is asked where it stands in a life, of the one state "
                "there is; leave the flag out, or name another benchmark with --benchmark"
            )
        options = replace(self.options, repeat=self.request.lives or self.options.repeat)
        owed = lives.pending(index, list(self.specs.values()), self.request.asked, options, chosen)
        plan.work += owed.work
        plan.notes += owed.notes
        plan.configs.update(owed.configs)
        plan.left_alone += owed.left_alone
        plan.given_up += owed.given_up
        plan.must_ask = owed.must_ask
        for system in dict.fromkeys(work.config for work in owed.work if work.config in self._swept):
            plan.notes.append(
                f"{self.specs[system].name}: what a killed run left half-built was removed; its life begins anew in a "
                "clean namespace"
            )
        if self.options.dry_run:
            unknown = {work.spec.name: None for work in owed.work if _embeds_unknown(work)}
            plan.notes += [f"{name}: nobody knows beforehand what it has embedded of a life" for name in unknown]

    def _read_manifest(self, index: LedgerIndex, specs: Sequence[SystemSpec], chosen: Chosen) -> list[str]:
        assert self.request.manifest is not None
        notes: dict[str, None] = {}
        for spec in specs:
            assert spec.plugin.manifest is not None
            for name in chosen.benchmarks:
                tasks = [task for benchmark, task in index.tasks if benchmark == name]
                manifest = spec.plugin.manifest(self.request.manifest, tasks)
                notes.update(dict.fromkeys(manifest.notes))
                self._foreign.update({(spec.id, name, task): state for task, state in manifest.states.items()})
        return list(notes)

    def sweep(self) -> None:
        """Delete what killed runs left half-built, unless somebody is building there."""
        for system in self.specs:
            folder = stores_folder(self.options.trials) / system
            if any(folder.glob("*.part")):
                with locks.idle(self.options.trials, "replay", system) as idle:
                    if idle and (removed := remove_parts(folder)):
                        self._swept[system] = removed

    def check(self, index: LedgerIndex, plan: Plan) -> None:
        """Read every timeline and compare it with what build recorded; see that every system has what it needs from
        outside, and a price under a cap (a dry run calls nothing, so it needs no key). Raises UserError."""
        if self.request.manifest is not None:
            return
        told = {(work.config, work.fetch is not None): work.spec for work in plan.work}
        for (_, life), spec in told.items():
            try:
                spec.plugin.suits(spec.state, spec.fetch, life)
            except UserError as error:
                raise UserError(f"{spec.name}: {error}") from None
        if not self.options.dry_run:
            specs = {work.config: work.spec for work in plan.work}
            models = {config: model for config, spec in specs.items() if (model := endpoint_model(spec.state))}
            for spec in specs.values():
                spec.plugin.ready(spec.state, self.options.settings)
            check_priced(sorted(models.values()), self.request.limits)
            self.opened.purse = embedding_purse(index, "replay", models, self.request.limits)
        self._check_lives(index, [work for work in plan.work if work.fetch is not None])
        fed = [work for work in plan.work if work.fetch is None]
        takers = list({work.config: work.spec.plugin for work in fed}.values())
        by_benchmark: dict[str, dict[str, TaskBody]] = defaultdict(dict)
        for work in fed:
            name, task = work.parent.benchmark or "", work.parent.task or ""
            by_benchmark[name][task] = index.task(name, task)
        seen: dict[int, tuple[Session, str]] = {}
        for name, tasks in by_benchmark.items():
            if not all(body.sessions for body in tasks.values()):
                raise UserError(
                    f"{name} holds questions without their histories, which can't be replayed; build the data itself, "
                    "and name it with --benchmark"
                )
            self._prefix_lengths[name] = shared_prefix([body.sessions for body in tasks.values()])
            for task, body in tasks.items():
                before, seen = seen, {}  # two timelines are held at a time: sessions that tasks share are hashed once
                for number, session in enumerate(self.sessions(name, task, body)):
                    if id(session) in before:
                        seen[id(session)] = before[id(session)]
                    elif id(session) not in seen:
                        seen[id(session)] = (session, session.digest())
                        self._fit(takers, session, f"{name}, task {task}, session {number}")
                    if number >= len(body.sessions) or seen[id(session)][1] != body.sessions[number]:
                        raise UserError(
                            f"{self.data(body)}: session {number} of task {task} isn't what {name} was built from; "
                            "give the same data with --data"
                        )
        self._check_given(index, fed)

    def _check_given(self, index: LedgerIndex, work: Sequence[Work]) -> None:
        """Read what is given beside sessions before the first state begins. Raises UserError."""
        wanted: dict[tuple[str, str], dict[str, tuple[Path, TaskBody]]] = defaultdict(dict)
        for item in work:
            name, task = item.parent.benchmark or "", item.parent.task or ""
            body = index.task(name, task)
            wanted[item.config, name][task] = (self.data(body), body)
        for (config, name), tasks in wanted.items():
            self._given[config, name] = given(self.specs[config], name, tasks)

    def _check_lives(self, index: LedgerIndex, work: Sequence[Work]) -> None:
        """Read every script and settle its vectors before the first life begins. Raises UserError."""
        for name, task in dict.fromkeys((item.parent.benchmark or "", item.parent.task or "") for item in work):
            body = index.task(name, task)
            lives.script(self.data(body), name, task, body)
        self._declared = lives.vectors(index, work, self.data, self.options.settings)

    def _fit(self, takers: Sequence[Plugin], session: Session, where: str) -> None:
        for kind in takers:
            try:
                kind.fits(session)
            except UserError as error:
                raise UserError(f"{where}: {error}") from None

    def data(self, body: TaskBody) -> Path:
        """Where the release is now."""
        return self.request.data or Path(body.data)

    def sessions(self, benchmark: str, task: str, body: TaskBody) -> list[Session]:
        """The timeline of a task."""
        return benchmarks.find(benchmark).sessions(self.data(body), benchmark, task, body)

    def forecast(self, index: LedgerIndex, plan: Plan) -> dict[str, Any]:
        """What a dry run says: states and sessions that would be fed, and what would be embedded elsewhere at most."""
        sessions = sum(len(index.task(w.parent.benchmark or "", w.parent.task or "").sessions) for w in plan.work)
        forecast = {"states": len(plan.work), "sessions": sessions}
        if any(map(_embeds_unknown, plan.work)):
            return forecast
        return {**forecast, **embedding_forecast(self._embedded(index, plan))}

    def _embedded(self, index: LedgerIndex, plan: Plan) -> Iterator[tuple[str, int]]:
        """Model and tokens of each request for embeddings; no text goes to a model twice."""
        known: dict[tuple[Any, ...], set[str]] = defaultdict(set)
        for work in plan.work:
            state = work.spec.state
            if (model := endpoint_model(state)) is None:
                continue
            seen = known[model, state.get("dimensions"), state.get("revision")]
            for texts in self._texts(index, plan, work):
                fresh = [t for t in dict.fromkeys(texts) if t not in seen]
                seen.update(fresh)
                yield from ((model, size) for size in request_sizes(fresh))

    def _texts(self, index: LedgerIndex, plan: Plan, work: Work) -> Iterator[Sequence[str]]:
        """What is embedded for a piece of work, by the requests that it goes out in."""
        plugin, state = work.spec.plugin, work.spec.state
        name, task = work.parent.benchmark or "", work.parent.task or ""
        body = index.task(name, task)
        if work.fetch is not None:
            config = _asked(plan, work.fetch)
            yield from ([config.text(query)] for query in body.queries)
            if plugin.lives:
                told = lives.script(self.data(body), name, task, body)
                yield from plugin.embeds_life(state, told.life, told.events)
                return
        for number, session in enumerate(self.sessions(name, task, body)):
            yield from plugin.embeds(state, session, number)
        if beside := self._given.get((work.config, name)):
            graph = beside.graph(self.data(body), task, body)
            yield tuple(graph.texts()) if graph else ()

    # --- the work ---

    def perform(self, index: LedgerIndex, plan: Plan) -> Perform:
        """Feed one task to one system."""

        async def feed(work: Work) -> Sequence[Record]:
            body = index.task(work.parent.benchmark or "", work.parent.task or "")
            foreign = self._foreign.get((work.config, work.parent.benchmark or "", work.parent.task or ""))
            if self.request.manifest is not None and foreign is not None:
                return [self._take_in(index, work, body, foreign)]
            turns = self.opened.turns(work.spec.plugin)
            if work.fetch is not None:
                return await turns.take(self._live, index, work, _asked(plan, work.fetch), self.data(body))
            return [await turns.take(self._feed, index, work, body)]

        return feed

    def _take_in(self, index: LedgerIndex, work: Work, body: TaskBody, foreign: ForeignState) -> Record:
        """The record of a state that others made: what it was fed, and what that cost, isn't known here."""
        spec: SystemSpec = work.spec
        namespace = secrets.token_hex(8)
        ingest = IngestBody(
            namespace=namespace,
            system_version=None,
            capabilities=tuple(sorted(spec.plugin.capabilities)),
            sessions=len(body.sessions),
            turns=body.turns,
            stores=foreign.stores,
            imported_from=self.request.manifest.name if self.request.manifest else None,
            ids_leaked=foreign.leaked,
        )
        return self._record(index, work, ingest, namespace)

    def _record(self, index: LedgerIndex, work: Work, ingest: IngestBody, namespace: str | None) -> Record:
        content = sha256([work.parent.content, work.spec.id, namespace])
        return Record(derived(work, "ingest", index, system=work.spec.id, content=content), ingest)

    def _feed(self, index: LedgerIndex, work: Work, body: TaskBody) -> Record:
        system = self.opened.system(work.spec.id, work.spec.state)
        with billed(system.meter, self.opened.purse):
            return self._fed(index, work, body, system)

    def _live(self, index: LedgerIndex, work: Work, config: FetchConfig, data: Path) -> Sequence[Record]:
        system = self.opened.system(work.spec.id, work.spec.state)
        with billed(system.meter, self.opened.purse):
            return lives.replay(index, work, config, system, data, self._declared, self.options)

    def _fed(self, index: LedgerIndex, work: Work, body: TaskBody, system: System) -> Record:
        spec: SystemSpec = work.spec
        benchmark, task = work.parent.benchmark or "", work.parent.task or ""
        timeline = self.sessions(benchmark, task, body)
        if not system.embedded:
            return self._feed_service(index, work, body, system, timeline)
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
            self._enrich(system, namespace, spec, benchmark, task, body)
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
        return self._record(index, work, ingest, None)

    def _feed_service(
        self, index: LedgerIndex, work: Work, body: TaskBody, system: System, timeline: Sequence[Session]
    ) -> Record:
        """Feed a system whose states aren't files of ours, with a `step` record before and after every session."""
        spec: SystemSpec = work.spec
        feeding = Feeding(self.ledger, work, system, self.opened.turns(spec.plugin))
        journey = feeding.resume(self._journeys.get((work.key, work.repeat)), timeline)
        feeding.go_on(journey, timeline)
        self._enrich(system, journey.namespace, spec, work.parent.benchmark or "", work.parent.task or "", body)
        system.freeze(journey.namespace)
        seconds = journey.seconds
        ingest = IngestBody(
            namespace=journey.namespace,
            user=journey.user,
            system_version=spec.plugin.version,
            capabilities=tuple(sorted(system.capabilities)),
            sessions=len(timeline),
            turns=body.turns,
            effort=None if seconds is None else Effort(seconds=seconds, workers=self.options.workers or 1),
            stores=journey.stores,
            skipped_turns=sum(map(spec.plugin.fits, timeline)),
        )
        return self._record(index, work, ingest, journey.namespace)

    def _enrich(
        self, system: System, namespace: str, spec: SystemSpec, benchmark: str, task: str, body: TaskBody
    ) -> None:
        graph = self._given[spec.id, benchmark].graph(self.data(body), task, body)
        if graph is not None:
            assert isinstance(system, Enriched)
            system.enrich(namespace, graph)

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

    def _discard_prefixes(self, name: str, system: System) -> None:
        """A shared beginning isn't kept longer than its system is open."""
        for place in [place for place in self._prefixes if place[0] == name]:
            prefix = self._prefixes.pop(place)
            if prefix is not None:
                system.discard(prefix.namespace)
