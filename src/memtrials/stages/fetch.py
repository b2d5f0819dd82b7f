"""fetch: ask each query of each frozen state, and record context, items and latency."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from memtrials import systems
from memtrials.errors import UserError
from memtrials.index import LedgerIndex, Pair
from memtrials.ledger import Ledger
from memtrials.outcome import Outcome
from memtrials.records import (
    Effort,
    Header,
    IngestBody,
    Record,
    RetrievalBody,
    clean_text,
    config_record,
    text_sha256,
    work_key,
)
from memtrials.selection import Chosen, choose
from memtrials.settings import cache_folder
from memtrials.stages.common import (
    PIPELINED,
    Options,
    Perform,
    Plan,
    Work,
    derived,
    explain_guard,
    guard,
    run_plan,
)
from memtrials.stages.turns import Turns
from memtrials.systems.base import GoldDoor, Plugin, Retrieved, Service, Surroundings, System
from memtrials.systems.store import stores_folder

IMPORTED = "imported"
STATE_SHARED = "state shared"


@dataclass(frozen=True)
class FetchRequest:
    """Which systems to ask (none: all of the selection) and what shapes the context beyond their own defaults.

    date_in_query: the question's date stands in the text that a system ranks for, too.
    """

    systems: Sequence[str] = ()
    k: int | None = None
    order: str | None = None
    date_in_query: bool = False


@dataclass(frozen=True)
class FetchConfig:
    """How a system is asked."""

    id: str
    settings: dict[str, Any]


def run(request: FetchRequest, options: Options) -> Outcome:
    """Ask what hasn't been asked. Raises UserError for unknown systems or states that aren't on this machine."""
    ledger = Ledger.open(options.trials)
    try:
        fetch = _Fetch(options, ledger)
        return run_plan(
            "fetch",
            options,
            ledger,
            lambda index: pending(index, request, options, choose(index, options.selection, "task")),
            fetch.perform,
            role="fetch",
            guarded="retrieval",
            workers=options.workers or PIPELINED,
            check=fetch.check,
            finish=fetch.finish,
            halt=fetch.halt,
        )
    finally:
        ledger.close()


def pending(index: LedgerIndex, request: FetchRequest, options: Options, chosen: Chosen) -> Plan:
    """Trials still owed, state by state. A (benchmark, system) that only other fetch configurations have begun is
    left alone unless forced: another k means another full set of answers and verdicts."""
    plan = Plan()
    wanted = _wanted(index, request, options)
    configs: dict[tuple[str, str | None], FetchConfig | None] = {}
    left: dict[Pair, FetchConfig] = {}
    begun = index.begun("retrieval", "fetch")
    alone: Counter[Pair] = Counter()
    bare: Counter[Pair] = Counter()
    for ingest in index.of("ingest"):
        system = ingest.system or ""
        if system not in wanted or not chosen.holds(ingest):
            continue
        protocol = _protocol(index, ingest)
        if (system, protocol) not in configs:
            configs[system, protocol] = _config(index, plan, system, request, wanted[system], options, protocol)
        config = configs[system, protocol]
        if config is None:
            continue
        pair = Pair(ingest.benchmark or "", system)
        kept_out = guard(index, plan, begun, pair, config.id, options.force)
        for query in index.task(ingest.benchmark or "", ingest.task or "").queries:
            if (ingest.benchmark, ingest.task, query.id) not in chosen.queries:
                continue
            if ingest.query not in (None, query.id):
                continue
            if kept_out:
                left[pair] = config
                alone[pair] += 1
                bare[pair] += not any(c.query == query.id for c in index.children.get(ingest.id, ()))
                continue
            key = retrieval_key(ingest, query.id, config.id)
            for ordinal in range(1, options.repeat + 1):
                plan.owe(index, Work(key, ordinal, ingest, query.id, config.id, config))
    for pair, count in alone.items():
        config = left[pair]
        others = begun[pair]
        plan.notes.append(
            explain_guard(index, "fetch configuration", config.id, config.settings, others, pair, count, bare[pair])
        )
        plan.left_alone += count
        plan.must_ask = plan.must_ask or bare[pair] > 0
    return plan


def retrieval_key(ingest: Header, query: str, fetch: str) -> str:
    """The name of the work of asking a query of a state."""
    return work_key(
        "retrieval",
        benchmark=ingest.benchmark or "",
        task=ingest.task or "",
        query=query,
        parent=ingest,
        config=fetch,
    )


def _protocol(index: LedgerIndex, ingest: Header) -> str | None:
    """`state shared` where a system learns when it is asked and all queries of a task ask one state."""
    capabilities = index.config(ingest.system or "").provenance.get("capabilities", ())
    return STATE_SHARED if "learns_on_read" in capabilities and ingest.query is None else None


def _wanted(index: LedgerIndex, request: FetchRequest, options: Options) -> dict[str, dict[str, Any] | None]:
    """System ids to ask, each with the `[fetch]` table of a TOML file where one was named."""
    if not request.systems:
        return {h.system: None for h in index.of("ingest") if h.system}
    wanted: dict[str, dict[str, Any] | None] = {}
    for name in request.systems:
        if systems.is_file(name):
            spec = systems.load(name, options.settings)
            if spec.id not in index.configs:
                raise UserError(
                    f"{name}: its [state] is {spec.id}, which {index.ledger.path} doesn't hold; replay it first"
                )
            wanted[spec.id] = dict(spec.fetch)
        else:
            wanted.update(dict.fromkeys(index.resolve(name, "system")))
    return wanted


def _config(
    index: LedgerIndex,
    plan: Plan,
    system: str,
    request: FetchRequest,
    table: dict[str, Any] | None,
    options: Options,
    protocol: str | None,
) -> FetchConfig | None:
    body = index.config(system)
    kind = body.settings.get("system")
    if kind == IMPORTED:
        if request.systems:
            plan.notes.append(f"{system}: imported results have no state to ask")
        return None
    plugin = systems.plugin(str(kind))
    defaults = table if table is not None else body.provenance.get("fetch", {})
    settings = systems.fetch_settings(plugin, defaults, options.settings, k=request.k, order=request.order)
    if request.date_in_query and "k" in plugin.fetch:  # what knows no k doesn't read the query
        settings["date_in_query"] = True
    if protocol is not None:
        settings["protocol"] = protocol  # another cell: its numbers never stand among the others
    record = config_record("fetch", systems.fetch_name(settings), settings, {})
    assert record.header.key is not None
    plan.configs[record.header.key] = record
    return FetchConfig(record.header.key, settings)


def _plugin(index: LedgerIndex, ingest: Header) -> Plugin:
    return systems.plugin(index.config(ingest.system or "").settings["system"])


class _Fetch:
    """One run of the stage: the one embedded system that is open, and services."""

    def __init__(self, options: Options, ledger: Ledger) -> None:
        self.options = options
        self.ledger = ledger
        self.turns = Turns()
        self.at_once = Turns(options.workers or 1)
        self._system: tuple[str, System] | None = None
        self._services: dict[str, System] = {}
        self._states: dict[str, IngestBody] = {}

    def check(self, index: LedgerIndex, plan: Plan) -> None:
        """Every state that will be asked must be on this machine, and every system have what it needs from outside
        (a dry run calls nothing, so it needs no key). Raises UserError, for a missing state with the two ways out."""
        if not self.options.dry_run:
            for system in {work.parent.system or "" for work in plan.work}:
                state = index.config(system).settings
                systems.plugin(state["system"]).ready(state, self.options.settings)
        missing: Counter[str] = Counter()
        for work in plan.work:
            ingest = work.parent
            if ingest.id in self._states:
                continue
            frozen = self._states[ingest.id] = self.ledger.body(ingest, IngestBody)
            assert frozen.namespace is not None
            if _plugin(index, ingest).at_once:
                continue  # a service is asked once, by the query; what it doesn't know ends the stage
            if not self._open(index, ingest.system or "").exists(frozen.namespace):
                missing[ingest.system or ""] += 1
        for system, count in missing.items():
            raise UserError(
                f"{count} states of {system} aren't in {stores_folder(self.options.trials)}: fetch on the machine that "
                f"replayed them, or `memtrials void --kind ingest --system {system} --reason …` and replay again"
            )

    def perform(self, index: LedgerIndex, plan: Plan) -> Perform:
        """Ask one query of one state."""

        async def ask(work: Work) -> Sequence[Record]:
            turns = self.at_once if _plugin(index, work.parent).at_once else self.turns
            return [await turns.take(self._ask, index, work)]

        return ask

    def _ask(self, index: LedgerIndex, work: Work) -> Record:
        ingest = work.parent
        task = index.task(ingest.benchmark or "", ingest.task or "")
        assert work.query is not None
        query = task.query(work.query)
        system = self._open(index, ingest.system or "")
        before = replace(system.meter)
        state = self._states[ingest.id]
        namespace = state.namespace
        assert namespace is not None
        config: FetchConfig = work.spec
        if state.stores and isinstance(system, Service):
            system.attach(namespace, state.stores)
        dated = query.date is not None and config.settings.get("date_in_query", False)
        text = f"(Asked on {query.date}.) {query.text}" if dated else query.text
        began = time.perf_counter()
        found: Retrieved
        if isinstance(system, GoldDoor):
            found = system.query_with_gold(namespace, text, query.date, config.settings, task.gold_of(query.id))
        else:
            found = system.query(namespace, text, query.date, config.settings)
        context = clean_text(found.context)
        body = RetrievalBody(
            question=query.text,
            date=query.date,
            context=context,
            items=found.items,
            raw=found.raw,
            effort=self._effort(found, system.meter.effort_since(before, time.perf_counter() - began)),
            usage=system.meter.usage(before, before),
            answer=found.answer,
            protocol=config.settings.get("protocol"),
        )
        header = derived(
            work, "retrieval", index, fetch=config.id, query=query.id, type=query.type, content=text_sha256(context)
        )
        return Record(header, body)

    def _effort(self, found: Retrieved, measured: Effort) -> Effort:
        """What the system says a query took, else what was measured here."""
        if found.effort is None:
            return measured
        return msgspec.structs.replace(found.effort, workers=self.options.workers or 1)

    def _open(self, index: LedgerIndex, system: str) -> System:
        if system in self._services:
            return self._services[system]
        if self._system is not None and self._system[0] == system:
            return self._system[1]
        state = index.config(system).settings
        if systems.plugin(state["system"]).at_once:
            self._services[system] = systems.reopen(state, self._surroundings(system))
            return self._services[system]
        self._close()
        self._system = (system, systems.reopen(state, self._surroundings(system)))
        return self._system[1]

    def _surroundings(self, system: str) -> Surroundings:
        settings = self.options.settings
        return Surroundings(stores_folder(self.options.trials) / system, cache_folder(settings), settings)

    def halt(self) -> None:
        """Begin nothing more."""
        self.turns.close()
        self.at_once.close()
        for service in self._services.values():
            if isinstance(service, Service):
                service.stop()

    def _close(self) -> None:
        if self._system is not None:
            self._system[1].close()
            self._system = None

    async def finish(self) -> None:
        """Close what is open."""
        self._close()
        for service in self._services.values():
            service.close()
        self._services.clear()
