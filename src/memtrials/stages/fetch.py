"""fetch: ask each query of each frozen state, and record context, items and latency.

Under a list of budgets a state is asked once for all of them: the largest budget's retrieval is recorded first and
holds what came back; every smaller one is cut from it. A scripted life was asked while it was replayed (`lives.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec

from memtrials import systems
from memtrials.errors import UserError, WorkFailedError
from memtrials.index import STORAGE, LedgerIndex, Pair, storage_metric
from memtrials.ledger import Ledger
from memtrials.llm.pool import NO_LIMITS, CallLimits
from memtrials.outcome import Outcome
from memtrials.records import (
    Gold,
    Header,
    IngestBody,
    Query,
    Record,
    RetrievalBody,
    clean_text,
    sha256,
    text_sha256,
    work_key,
)
from memtrials.selection import Chosen, choose
from memtrials.stages.common import (
    PIPELINED,
    Options,
    Perform,
    Plan,
    Work,
    derived,
    explain_guard,
    guarded_off,
    run_plan,
)
from memtrials.stages.opened import Opened
from memtrials.stages.spending import billed, check_priced, embedding_forecast, embedding_purse
from memtrials.systems.base import GoldDoor, Plugin, Retrieved, Service, System
from memtrials.systems.embedding import embedding_of, endpoint_model
from memtrials.systems.endpoint import request_sizes
from memtrials.systems.rendering import Fitted, fit_budget
from memtrials.systems.store import stores_folder

IMPORTED = "imported"
STATE_SHARED = "state shared"


@dataclass(frozen=True)
class FetchRequest:
    """Which systems to ask (none: all of the selection) and what shapes the context beyond their own defaults.

    budgets: tokens of the context, each a fetch configuration of its own. date_in_query: the question's date stands in
    the text that a system ranks for, too. limits: of what they may spend on embeddings. probe: ask for pieces of
    evidence instead, by their own texts: turn and text of each, by benchmark, task and query.
    """

    systems: Sequence[str] = ()
    k: int | None = None
    order: str | None = None
    budgets: Sequence[int] = ()
    date_in_query: bool = False
    limits: CallLimits = NO_LIMITS
    probe: Mapping[tuple[str, str, str], Mapping[str, str]] | None = None


@dataclass(frozen=True)
class FetchConfig:
    """How a system is asked. probe: for what, where it isn't the query's text."""

    id: str
    settings: dict[str, Any]
    probe: str | None = None

    @property
    def budget(self) -> int:
        """Tokens of the context; 0 for as many as it has."""
        budget: int = self.settings.get("budget", 0)
        return budget

    def text(self, query: Query) -> str:
        """What a system is asked for."""
        if query.date is not None and self.settings.get("date_in_query", False):
            return f"(Asked on {query.date}.) {query.text}"
        return self.probe or query.text


class Trial(NamedTuple):
    """What is asked once, whatever the budgets. settings: those of the configuration but the budget."""

    ingest: str
    query: str | None
    repeat: int
    settings: str

    @classmethod
    def of(cls, work: Work) -> Trial:
        """The trial that a piece of work under a budget belongs to."""
        return cls(work.parent.id, work.query, work.repeat, sha256(_but_budget(work.spec.settings)))


def _but_budget(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "budget"}


@dataclass
class _Asking:
    """One trial in this run: how many of its budgets are due, and what came of asking. held: the retrieval that holds
    the items."""

    due: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    held: Record | None = None
    failure: WorkFailedError | None = None


def run(request: FetchRequest, options: Options) -> Outcome:
    """Ask what hasn't been asked. Raises UserError for unknown systems or states that aren't on this machine."""
    ledger = Ledger.open(options.trials)
    try:
        fetch = _Fetch(options, ledger, request.limits)
        outcome = run_plan(
            "fetch",
            options,
            ledger,
            lambda index: pending(index, request, options, choose(index, options.selection, "task")),
            fetch.perform,
            role="fetch",
            guarded="retrieval",
            workers=options.workers or PIPELINED,
            check=fetch.check,
            finish=fetch.opened.close,
            halt=fetch.opened.halt,
            forecast=fetch.forecast,
        )
        outcome.notes += [
            f"{system}: {count} contexts hold all that came back and don't fill budget {budget}; k = {k} items were "
            "asked for, --k N asks for more"
            for (system, budget, k), count in fetch.unfilled.items()
        ]
        return outcome
    finally:
        ledger.close()


def pending(index: LedgerIndex, request: FetchRequest, options: Options, chosen: Chosen) -> Plan:
    """Trials still owed, state by state. A (benchmark, system) that only other fetch configurations have begun is
    left alone unless forced: another k means another full set of answers and verdicts. A list of budgets is one
    configuration here: where one of them has begun, all may."""
    if request.probe is not None:
        return pending_probes(index, request.probe, options, chosen)
    plan = Plan()
    wanted = _wanted(index, request, options)
    configs: dict[tuple[str, str | None], list[FetchConfig]] = {}
    left: dict[Pair, FetchConfig] = {}
    begun = index.begun("retrieval", "fetch")
    alone: Counter[Pair] = Counter()
    bare: Counter[Pair] = Counter()
    lives: Counter[str] = Counter()
    for ingest in index.of("ingest"):
        system = ingest.system or ""
        if system not in wanted or not chosen.holds(ingest):
            continue
        if index.task(ingest.benchmark or "", ingest.task or "").scripted:
            lives[ingest.benchmark or ""] += 1
            continue
        protocol = _protocol(index, ingest)
        if (system, protocol) not in configs:
            configs[system, protocol] = _configs(index, plan, system, request, wanted[system], options, protocol)
        asked = configs[system, protocol]
        if not asked:
            continue
        _refuse_baselines(index, ingest, asked)
        pair = Pair(ingest.benchmark or "", system)
        kept_out = all(guarded_off(begun, pair, config.id, options.force) for config in asked)
        for query in index.task(ingest.benchmark or "", ingest.task or "").queries:
            if (ingest.benchmark, ingest.task, query.id) not in chosen.queries:
                continue
            if ingest.query not in (None, query.id):
                continue
            if kept_out:
                left[pair] = asked[0]
                alone[pair] += len(asked)
                there = index.children.get(ingest.id, ())
                bare[pair] += 0 if any(c.query == query.id and c.metric is None for c in there) else len(asked)
                continue
            for ordinal in range(1, options.repeat + 1):
                for config in asked:
                    key = retrieval_key(ingest, query.id, config.id)
                    plan.owe(index, Work(key, ordinal, ingest, query.id, config.id, config))
    for pair, config in left.items():
        left_alone(index, plan, pair, config, begun[pair], alone[pair], bare[pair])
    plan.notes += [
        f"{benchmark}: the queries of {count} lives were asked in their places, while they were replayed; another k or "
        "budget is for `memtrials replay`"
        for benchmark, count in lives.items()
    ]
    return plan


def _refuse_baselines(index: LedgerIndex, ingest: Header, asked: Sequence[FetchConfig]) -> None:
    """Raise UserError where what was precomputed is in a state, and what is asked looks in what was said alone."""
    needs = index.task(ingest.benchmark or "", ingest.task or "").needs
    given = any(key in index.config(ingest.system or "").settings for key in systems.PRECOMPUTED)
    plugin = _plugin(index, ingest) if given or "enrich" in needs else None
    if plugin is not None and any(plugin.baseline(config.settings) for config in asked):
        raise UserError(
            f"{ingest.system} on {ingest.benchmark} was given more than what was said, and its [fetch] looks in that "
            "alone; take another mode, or replay a system that was given nothing more"
        )


def left_alone(
    index: LedgerIndex, plan: Plan, pair: Pair, config: FetchConfig, others: Sequence[str], count: int, bare: int
) -> None:
    """Note in a plan what needs a yes because other fetch configurations have begun there."""
    plan.notes.append(
        explain_guard(index, "fetch configuration", config.id, config.settings, others, pair, count, bare)
    )
    plan.left_alone += count
    plan.must_ask = plan.must_ask or bare > 0


def pending_probes(
    index: LedgerIndex, texts: Mapping[tuple[str, str, str], Mapping[str, str]], options: Options, chosen: Chosen
) -> Plan:
    """Storage probes still owed: for each state and piece of evidence one query made of its own text. Controls have
    no memory to probe; a system that learns when it is asked would keep what it is asked for."""
    plan = Plan()
    configs: dict[str, FetchConfig] = {}
    for ingest in index.of("ingest"):
        system = ingest.system or ""
        body = index.config(system)
        if not chosen.holds(ingest) or body.provenance.get("control") or body.settings.get("system") == IMPORTED:
            continue
        if "learns_on_read" in body.provenance.get("capabilities", ()):
            note = f"{system} learns when it is asked, so what it stores can't be probed"
            plan.notes += [note] if note not in plan.notes else []
            continue
        if system not in configs:
            plugin = systems.plugin(str(body.settings["system"]))
            settings = systems.fetch_settings(plugin, body.provenance.get("fetch", {}), options.settings)
            probing = {**settings, "probe": STORAGE}
            configs[system] = FetchConfig(plan.announce("fetch", STORAGE, probing, {}), probing)
        config = configs[system]
        for query in index.task(ingest.benchmark or "", ingest.task or "").queries:
            place = (ingest.benchmark or "", ingest.task or "", query.id)
            if place not in chosen.queries or ingest.query not in (None, query.id):
                continue
            for turn, text in texts.get(place, {}).items():
                metric = storage_metric(turn)
                key = retrieval_key(ingest, query.id, config.id, metric)
                plan.owe(index, Work(key, 1, ingest, query.id, config.id, replace(config, probe=text), metric))
    return plan


def retrieval_key(ingest: Header, query: str, fetch: str, metric: str | None = None) -> str:
    """The name of the work of asking a query of a state. metric: of a probe."""
    return work_key(
        "retrieval",
        benchmark=ingest.benchmark or "",
        task=ingest.task or "",
        query=query,
        parent=ingest,
        config=fetch,
        metric=metric,
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


def _configs(
    index: LedgerIndex,
    plan: Plan,
    system: str,
    request: FetchRequest,
    table: dict[str, Any] | None,
    options: Options,
    protocol: str | None,
) -> list[FetchConfig]:
    """The configurations that a system is asked under, the largest budget first; none for what can't be asked."""
    body = index.config(system)
    kind = body.settings.get("system")
    if kind == IMPORTED:
        if request.systems:
            plan.notes.append(f"{system}: imported results have no state to ask")
        return []
    defaults = table if table is not None else body.provenance.get("fetch", {})
    return configs_of(plan, systems.plugin(str(kind)), defaults, request, options, protocol)


def configs_of(
    plan: Plan,
    plugin: Plugin,
    defaults: Mapping[str, Any],
    request: FetchRequest,
    options: Options,
    protocol: str | None,
) -> list[FetchConfig]:
    """The configurations that a request makes of a system's defaults, the largest budget first, announced in a plan."""
    settings = systems.fetch_settings(plugin, defaults, options.settings, k=request.k, order=request.order)
    if request.date_in_query and ("k" in plugin.fetch or not plugin.control):  # a control without k reads no query
        settings["date_in_query"] = True
    if protocol is not None:
        settings["protocol"] = protocol  # another cell: its numbers never stand among the others
    budgets = [] if plugin.silent else sorted(set(request.budgets), reverse=True)
    several = [{**settings, "budget": budget} for budget in budgets] or [settings]
    return [FetchConfig(plan.announce("fetch", systems.fetch_name(s), s, {}), s) for s in several]


def _plugin(index: LedgerIndex, ingest: Header) -> Plugin:
    return systems.plugin(index.config(ingest.system or "").settings["system"])


def _fitted(found: Retrieved, budget: int) -> Fitted | None:
    """What a budget leaves of a context; None without a budget. One that is a single text is cut as one."""
    if not budget:
        return None
    if found.pieces is not None:
        return fit_budget(found.pieces, found.places, budget)
    fitted = fit_budget([found.context] if found.context else [], (), budget)
    if found.fit is None:
        return fitted
    return fitted._replace(fit=msgspec.structs.replace(fitted.fit, tokens=found.fit.tokens))


def ask(
    system: System, namespace: str, query: Query, gold: Gold, config: FetchConfig, options: Options
) -> RetrievalBody:
    """Ask one query of one state; gold is for controls that open its door. Only the system's own time is measured."""
    before = replace(system.meter)
    text = config.text(query)
    began = time.perf_counter()
    found: Retrieved
    if isinstance(system, GoldDoor):
        found = system.query_with_gold(namespace, text, query.date, config.settings, gold)
    else:
        found = system.query(namespace, text, query.date, config.settings)
    effort = system.meter.effort_since(before, time.perf_counter() - began)
    if found.effort is not None:  # what the system says of itself
        effort = msgspec.structs.replace(found.effort, workers=options.workers or 1)
    fitted = _fitted(found, config.budget)
    return RetrievalBody(
        question=config.probe or query.text,
        date=query.date,
        context=fitted.context if fitted else clean_text(found.context),
        items=found.items,
        raw=found.raw,
        fit=fitted.fit if fitted else found.fit,
        spans=fitted.spans if fitted else (),
        effort=effort,
        usage=system.meter.usage(before, before),
        answer=None if config.budget else found.answer,  # it isn't made of what the budget leaves
        protocol=config.settings.get("protocol"),
    )


def record(index: LedgerIndex, work: Work, body: RetrievalBody) -> Record:
    """The record of what a query brought back."""
    query = index.task(work.parent.benchmark or "", work.parent.task or "").query(work.query or "")
    content = text_sha256(body.context or "")
    header = derived(work, "retrieval", index, fetch=work.config, query=query.id, type=query.type, content=content)
    return Record(header, body)


class _Fetch:
    """One run of the stage: the states that are asked, and what came of trials under several budgets."""

    def __init__(self, options: Options, ledger: Ledger, limits: CallLimits) -> None:
        self.options = options
        self.ledger = ledger
        self.limits = limits
        self.opened = Opened(options)
        self._states: dict[str, IngestBody] = {}
        self.unfilled: Counter[tuple[str, int, int]] = Counter()
        self._askings: dict[Trial, _Asking] = defaultdict(_Asking)

    def check(self, index: LedgerIndex, plan: Plan) -> None:
        """Every state that will be asked must be on this machine, and every system have what it needs from outside, and
        a price under a cap (a dry run calls nothing, so it needs no key). Raises UserError, for a missing state with
        the two ways out."""
        if not self.options.dry_run:
            for system in {work.parent.system or "" for work in plan.work}:
                state = index.config(system).settings
                systems.plugin(state["system"]).ready(state, self.options.settings)
            check_priced(sorted({m for work in plan.work if (m := embedding_of(index, work.parent))}), self.limits)
            self.opened.purse = embedding_purse(index, "fetch", {work.config for work in plan.work}, self.limits)
        missing: Counter[str] = Counter()
        for work in plan.work:
            ingest = work.parent
            if ingest.id in self._states or self._holding(index, work) is not None:
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

    def forecast(self, index: LedgerIndex, plan: Plan) -> dict[str, Any]:
        """What a dry run says: queries that would be embedded elsewhere at most. Nothing where a control embeds the
        evidence, too, which only its state holds."""
        texts: dict[tuple[Any, ...], None] = {}
        for work in plan.work:
            if self._holding(index, work) is not None:
                continue
            state = index.config(work.parent.system or "").settings
            if (model := endpoint_model(state)) is None:
                continue
            if systems.plugin(state["system"]).opens_gold:
                return {}
            query = index.task(work.parent.benchmark or "", work.parent.task or "").query(work.query or "")
            texts[model, state.get("dimensions"), state.get("revision"), work.spec.text(query)] = None
        sizes = ((model, size) for model, _, _, text in texts for size in request_sizes([text]))
        return embedding_forecast(sizes)

    def perform(self, index: LedgerIndex, plan: Plan) -> Perform:
        """Ask one query of one state, once for all budgets."""
        for work in plan.work:
            if work.spec.budget:
                self._askings[Trial.of(work)].due += 1

        async def ask(work: Work) -> Sequence[Record]:
            turns = self.opened.turns(_plugin(index, work.parent))
            if not work.spec.budget:
                return [await turns.take(self._ask, index, work)]
            trial = Trial.of(work)
            asking = self._askings[trial]
            async with asking.turn:
                try:
                    made = await turns.take(self._under_budget, index, work, asking)
                    self._notice(work, made)
                    return [made]
                finally:
                    asking.due -= 1
                    if not asking.due:
                        del self._askings[trial]

        return ask

    # --- budgets ---

    def _under_budget(self, index: LedgerIndex, work: Work, asking: _Asking) -> Record:
        """Cut the context from the one that holds the items; ask for that one if there is none yet. What failed for
        one budget failed for all that come after it."""
        if asking.failure is not None:
            failed = asking.failure
            raise WorkFailedError(failed.cause, failed.class_, failed.message, attempts=0)
        if asking.held is None:
            holding = self._holding(index, work)
            asking.held = Record(holding, self.ledger.body(holding, RetrievalBody)) if holding else None
        if asking.held is not None:
            return self._cut(index, work, asking.held)
        try:
            asking.held = self._ask(index, work)
        except WorkFailedError as failure:
            asking.failure = failure
            raise
        return asking.held

    def _notice(self, work: Work, made: Record) -> None:
        """Remember that a budget wasn't filled where more items could fill it."""
        assert isinstance(made.body, RetrievalBody)
        fit, k = made.body.fit, work.spec.settings.get("k")
        if k and fit and fit.is_whole and fit.whole == k and fit.used < fit.asked:
            self.unfilled[work.parent.system or "", fit.asked, k] += 1

    def _holding(self, index: LedgerIndex, work: Work) -> Header | None:
        """The retrieval of the same trial that holds as much as a budget asks for: under a larger one, or uncut."""
        config: FetchConfig = work.spec
        if not config.budget:
            return None
        mine = _but_budget(config.settings)
        for other in index.children.get(work.parent.id, ()):
            if (other.kind, other.query, other.repeat, other.metric) != ("retrieval", work.query, work.repeat, None):
                continue
            settings = index.config(other.fetch or "").settings
            if "budget" not in settings or _but_budget(settings) != mine:
                continue
            body = self.ledger.body(other, RetrievalBody)
            if body.items_in is not None or body.fit is None:
                continue
            if settings["budget"] >= config.budget or body.fit.is_whole:
                return other
        return None

    def _cut(self, index: LedgerIndex, work: Work, held: Record) -> Record:
        body = held.body
        assert isinstance(body, RetrievalBody)
        assert body.context is not None
        pieces = [body.context[begin:end] for begin, end in body.spans]
        begins = [begin for begin, _ in body.spans]
        places = begins if begins != sorted(begins) else ()
        fitted = fit_budget(pieces, places, work.spec.budget, body.fit)
        cut = msgspec.structs.replace(
            body,
            context=fitted.context,
            spans=fitted.spans,
            fit=fitted.fit,
            items=None,
            items_in=held.header.id,
            usage=None,
            raw=None,
        )
        return record(index, work, cut)

    # --- asking ---

    def _ask(self, index: LedgerIndex, work: Work) -> Record:
        ingest = work.parent
        system = self._open(index, ingest.system or "")
        with billed(system.meter, self.opened.purse):
            return self._asked(index, work, system)

    def _asked(self, index: LedgerIndex, work: Work, system: System) -> Record:
        ingest = work.parent
        task = index.task(ingest.benchmark or "", ingest.task or "")
        assert work.query is not None
        query = task.query(work.query)
        state = self._states[ingest.id]
        namespace = state.namespace
        assert namespace is not None
        if state.stores and isinstance(system, Service):
            system.attach(namespace, state.stores)
        return record(index, work, ask(system, namespace, query, task.gold_of(query.id), work.spec, self.options))

    def _open(self, index: LedgerIndex, system: str) -> System:
        return self.opened.system(system, index.config(system).settings)
