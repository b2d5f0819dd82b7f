"""attribute: ask what would tell where wrong answers come from, as ordinary trials, and no more than that.

In this order, cheapest first: a storage probe for each piece of evidence that didn't come back; other judges on wrong
answers; the oracle (the evidence alone, control `in-context`) where all evidence was in the context; the whole history
(control `full-context`). All of it is done by the stages and is in the ledger, so the same command again asks nothing
twice, and `metrics` shows the same waterfalls.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from memtrials import benchmarks, systems
from memtrials.benchmarks.base import PLAIN
from memtrials.benchmarks.timeline import turn_id
from memtrials.errors import UserError
from memtrials.index import LedgerIndex, probed_turn
from memtrials.judging.probing import probed
from memtrials.ledger import Ledger
from memtrials.llm import prompts as prompt_files
from memtrials.llm.pool import CallLimits
from memtrials.llm.roles import OFFLINE, SYSTEM, judge_config, reader_config, reader_profile
from memtrials.metrics.numbers import Cell, Place
from memtrials.outcome import Outcome
from memtrials.records import AnswerBody, FailureBody, Header, RetrievalBody, VerdictBody, config_id
from memtrials.selection import Chosen, Selection, choose
from memtrials.stages import answer, fetch, judge, replay
from memtrials.stages.common import Options
from memtrials.stages.locating import ORACLE, WHOLE, Known
from memtrials.systems.embedding import endpoint_model


@dataclass(frozen=True)
class AttributeRequest:
    """What may be asked. max_requests: to models, endpoints and services, together, in this run. judges: others than
    those whose verdicts are there. data: where the release is, if it moved; upstream: for official prompts."""

    max_requests: int
    judges: tuple[str, ...] = ()
    full_context: bool = False
    data: Path | None = None
    upstream: Path | None = None


class Probing(NamedTuple):
    """Pieces of evidence to ask one system's states for."""

    benchmark: str
    system: str


class Rejudging(NamedTuple):
    """Wrong answers of one reader on one system, by another judge."""

    benchmark: str
    system: str
    reader: str
    metric: str
    judge: str


class Control(NamedTuple):
    """What one reader and judge make of what a control shows."""

    benchmark: str
    kind: str
    reader: str
    judge: str
    metric: str


@dataclass
class Planned:
    """What would be asked. requests: how many that takes, if nothing has to be asked again; left_out: questions that
    didn't fit the cap, by what they were for. notes: what can't be asked."""

    probes: dict[Probing, dict[Place, list[str]]] = field(default_factory=lambda: defaultdict(dict))
    rejudged: dict[Rejudging, list[Place]] = field(default_factory=lambda: defaultdict(list))
    controls: dict[Control, list[Place]] = field(default_factory=lambda: defaultdict(list))
    requests: int = 0
    left_out: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    notes: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """How much there is of each kind."""
        of_kind = {kind: [some for c, some in self.controls.items() if c.kind == kind] for kind in (ORACLE, WHOLE)}
        return {
            "storage_probes": sum(len(turns) for places in self.probes.values() for turns in places.values()),
            "other_judge": sum(map(len, self.rejudged.values())),
            "oracle": sum(map(len, of_kind[ORACLE])),
            "full_context": sum(map(len, of_kind[WHOLE])),
        }


def run(request: AttributeRequest, options: Options) -> Iterator[Outcome]:
    """The outcome of each stage as it ends, then that of the whole; in a dry run only what would be asked. Raises
    UserError."""
    planned, wanted = _now(request, options)
    whole = Outcome("attribute", pending=wanted, left=wanted, dry_run=options.dry_run, notes=list(planned.notes))
    whole.details = {**planned.counts(), "requests": planned.requests}
    for what, count in planned.left_out.items():
        whole.notes.append(f"--max-requests {request.max_requests} leaves out {count} questions for {what}")
    if not options.dry_run:
        for outcome in _Asking(request, options, planned).all():
            yield outcome
            if outcome.exit_code >= 2:
                return
        whole.left = _now(request, options)[1]
        whole.done = wanted - whole.left
    yield whole


def _now(request: AttributeRequest, options: Options) -> tuple[Planned, int]:
    """What would be asked, and how much there is to ask without a cap."""
    with Ledger.open(options.trials) as ledger:
        index = LedgerIndex(ledger)
        chosen = choose(index, options.selection, "unit")
        everything = plan(index, replace(request, max_requests=sys.maxsize), chosen)
        planned = plan(index, request, chosen) if everything.requests > request.max_requests else everything
        return planned, sum(everything.counts().values())


# --- what would be asked ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Wrong:
    """A verdict that an answer, or a context, is wrong, with what it is about. missing: evidence that didn't come back;
    all_shown: all of it stands in the context."""

    cell: Cell
    metric: str
    place: Place
    ingest: Header
    missing: tuple[str, ...]
    all_shown: bool


def plan(index: LedgerIndex, request: AttributeRequest, chosen: Chosen) -> Planned:
    """What is worth asking and isn't known yet, within the cap."""
    planned = Planned()
    found = [(known, wrong) for name in chosen.benchmarks for known, wrong in _wrong_ones(index, name, chosen)]
    asked = {(index.parent(p).id, p.task, p.query, probed_turn(p)) for p in index.storage_probes}

    def admit(price: int, what: str) -> bool:
        if planned.requests + price > request.max_requests and price:
            planned.left_out[what] += 1
            return False
        planned.requests += price
        return True

    for _, wrong in found:
        group = Probing(wrong.cell.benchmark, wrong.cell.system)
        place = (wrong.ingest.id, *wrong.place)
        turns = [turn for turn in wrong.missing if (*place, turn) not in asked]
        price = _price_of_asking(index, wrong.cell.system) * len(turns)
        if turns and wrong.place not in planned.probes[group] and admit(price, "storage probes"):
            planned.probes[group][wrong.place] = turns
    for known, wrong in found:
        for name in request.judges:
            again = Rejudging(wrong.cell.benchmark, wrong.cell.system, wrong.cell.reader or "", wrong.metric, name)
            models = {str(index.config(j).settings.get("model")) for j in _judges(index, wrong)}
            if name in models or not _decides(known, wrong.metric, name) or wrong.place in planned.rejudged[again]:
                continue
            if admit(int(name != OFFLINE), "other judges"):
                planned.rejudged[again].append(wrong.place)
    for kind in (ORACLE, *((WHOLE,) if request.full_context else ())):
        for known, wrong in found:
            cell = wrong.cell
            control = Control(cell.benchmark, kind, cell.reader or "", cell.judge or "", wrong.metric)
            if known.benchmark.attribute is not None or not cell.reader or (kind == ORACLE and not wrong.all_shown):
                continue
            if index.config(cell.judge or "").settings.get("model") in request.judges:
                continue  # it is asked only whether it agrees
            known_as = (kind, control.reader, control.judge, wrong.metric, wrong.place)
            if known_as in known.control_scores or wrong.place in planned.controls[control]:
                continue
            if why := _cant(index, request, control):
                planned.notes += [why] if why not in planned.notes else []
            elif admit(_price_of_reading(index, control), "the oracle" if kind == ORACLE else WHOLE):
                planned.controls[control].append(wrong.place)
    return planned


def _wrong_ones(index: LedgerIndex, name: str, chosen: Chosen) -> Iterator[tuple[Known, _Wrong]]:
    """Wrong verdicts of the metrics that are looked into, of trials with ordinal 1 of systems that aren't controls."""
    benchmark = benchmarks.find(name)
    known = Known(index, benchmark, name)
    for verdict in index.of("verdict"):
        if verdict.benchmark != name or verdict.metric not in benchmark.located or probed(verdict):
            continue
        config = index.config(verdict.system or "")
        if not chosen.holds(verdict) or config.provenance.get("control"):
            continue
        chain = [verdict]
        while chain[0].kind != "ingest":
            chain.insert(0, index.parent(chain[0]))
        score = index.ledger.body(verdict, VerdictBody).score
        if score or any((h.repeat or 1) != 1 for h in chain):
            continue
        trial = next(h for h in chain if h.kind == "retrieval")
        cell = Cell(name, verdict.system or "", verdict.fetch or "", verdict.reader, verdict.judge)
        place = (verdict.task or "", verdict.query or "")
        facts = known.facts(cell, verdict.metric, index.parent(verdict), chain[0], trial, score)
        if facts.disputed:
            continue
        probes = benchmark.probed(index.task(name, place[0]).gold_of(place[1]))
        missing = tuple(turn for turn in probes if turn not in (facts.retrieved or ()))
        all_shown = bool(facts.evidence) and facts.shown is not None and facts.shown >= facts.evidence
        can_be_probed = config.settings.get("system") != fetch.IMPORTED
        yield known, _Wrong(cell, verdict.metric, place, chain[0], missing if can_be_probed else (), all_shown)


def _judges(index: LedgerIndex, wrong: _Wrong) -> set[str]:
    """Who judged that metric of the answers to a question already."""
    cell = wrong.cell
    return {
        v.judge or ""
        for v in index.of("verdict")
        if (v.benchmark, v.system, v.fetch, v.reader) == (cell.benchmark, cell.system, cell.fetch, cell.reader)
        and v.metric == wrong.metric
        and (v.task, v.query) == wrong.place
    }


def _decides(known: Known, metric: str, judge: str) -> bool:
    decided = known.benchmark.metric(metric)
    return decided.reads == "answer" and bool(decided.rule if judge == OFFLINE else decided.prompts)


def _price_of_asking(index: LedgerIndex, system: str) -> int:
    """Requests of one query of a system: none where it keeps its states here and asks no endpoint."""
    state = index.config(system).settings
    return int(endpoint_model(state) is not None or systems.plugin(str(state["system"])).at_once)


def _price_of_reading(index: LedgerIndex, control: Control) -> int:
    return sum(index.config(config).settings.get("model") != OFFLINE for config in (control.reader, control.judge))


def _cant(index: LedgerIndex, request: AttributeRequest, control: Control) -> str | None:
    """Why a reader and judge can't be asked again as they were; None where they can."""
    benchmark = benchmarks.find(control.benchmark)
    reader, judged_by = index.config(control.reader), index.config(control.judge)
    model = str(reader.settings.get("model"))
    if model == SYSTEM:
        return "answers that systems gave by themselves have no reader to show the evidence to"
    for config in (control.reader, control.judge):
        if "model" not in index.config(config).settings:
            return f"{config}: imported results have no model to ask again"
    profile = str(reader.settings.get("profile", PLAIN))
    try:
        said, upstream = _source(str(reader.provenance.get("prompts", "default")), request)
        texts = prompt_files.load(benchmark, reader_profile(benchmark, profile).names, said, upstream)
        same = [reader_config(benchmark, model, texts, profile).id == control.reader]
        said, upstream = _source(str(judged_by.provenance.get("prompts", "default")), request)
        texts = prompt_files.load(benchmark, benchmark.judge_prompts, said, upstream)
        same.append(judge_config(benchmark, str(judged_by.settings["model"]), texts).id == control.judge)
    except UserError as error:
        return f"{control.reader} and {control.judge} can't be asked again as they were: {error}"
    if all(same):
        return None
    return f"{control.reader if not same[0] else control.judge} can't be asked again: its prompts or settings changed"


def _source(source: str, request: AttributeRequest) -> tuple[str, Path | None]:
    return source, request.upstream if source == "official" else None


# --- asking -----------------------------------------------------------------------------------------------------


class _Asking:
    """One run: the stages one after the other, with what is left of the cap."""

    def __init__(self, request: AttributeRequest, options: Options, planned: Planned) -> None:
        self.request = request
        self.options = options
        self.planned = planned
        self.left = request.max_requests

    def all(self) -> Iterator[Outcome]:
        """The outcomes of all stages."""
        for probing, turns in self.planned.probes.items():
            if turns:
                yield self._probe(probing, turns)
        for again, places in self.planned.rejudged.items():
            if places:
                yield self._rejudge(again, places)
        for control, places in self.planned.controls.items():
            if places:
                yield from self._control(control, places)

    def _probe(self, probing: Probing, turns: Mapping[Place, Sequence[str]]) -> Outcome:
        texts = self._texts(probing.benchmark, turns)
        request = fetch.FetchRequest((probing.system,), limits=self.limits, probe=texts)
        options = self._options(probing.benchmark, list(turns), systems=(probing.system,))
        return replace(self._counted(lambda: fetch.run(request, options)), stage="storage probe")

    def _texts(self, name: str, turns: Mapping[Place, Sequence[str]]) -> dict[tuple[str, str, str], dict[str, str]]:
        """The turns' own texts, from the data that was built. Raises UserError where it isn't the same any more."""
        found: dict[tuple[str, str, str], dict[str, str]] = {}
        by_task: dict[str, dict[str, Sequence[str]]] = defaultdict(dict)
        for (task, query), some in turns.items():
            by_task[task][query] = some
        with Ledger.open(self.options.trials) as ledger:
            index = LedgerIndex(ledger)
            for task, queries in by_task.items():
                body = index.task(name, task)
                data = self.request.data or Path(body.data)
                sessions = benchmarks.find(name).sessions(data, name, task, body)
                if tuple(session.digest() for session in sessions) != tuple(body.sessions):
                    raise UserError(f"{data}: task {task} isn't what {name} was built from; give the same with --data")
                texts = {
                    turn_id(n, m): turn.content
                    for n, session in enumerate(sessions)
                    for m, turn in enumerate(session.turns)
                }
                for query, some in queries.items():
                    found[name, task, query] = {turn: texts[turn] for turn in some}
        return found

    def _rejudge(self, again: Rejudging, places: Sequence[Place]) -> Outcome:
        options = self._options(again.benchmark, places, systems=(again.system,))
        request = judge.JudgeRequest((again.judge,), (again.metric,), reader=again.reader, limits=self.limits)
        return self._counted(lambda: judge.run(request, options))

    def _control(self, control: Control, places: Sequence[Place]) -> Iterator[Outcome]:
        spec = systems.load(control.kind, self.options.settings)
        asked = systems.fetch_settings(spec.plugin, spec.fetch, self.options.settings)
        way = config_id(systems.fetch_name(asked), asked)
        here = self._options(control.benchmark, places)
        there = self._options(control.benchmark, places, systems=(spec.id,), configs=(way,))
        with Ledger.open(self.options.trials) as ledger:
            index = LedgerIndex(ledger)
            reader, judged_by = index.config(control.reader), index.config(control.judge)
        profile = str(reader.settings.get("profile", PLAIN))
        yield replay.run(replay.ReplayRequest((control.kind,), self.request.data), here)
        yield fetch.run(fetch.FetchRequest((spec.id,)), here)
        prompts, upstream = _source(str(reader.provenance.get("prompts", "default")), self.request)
        prompts = prompts if profile == PLAIN else "default"
        asking = answer.AnswerRequest(str(reader.settings["model"]), profile, prompts, upstream, self.limits)
        yield self._counted(lambda: answer.run(asking, there))
        prompts, upstream = _source(str(judged_by.provenance.get("prompts", "default")), self.request)
        judging = judge.JudgeRequest(
            (str(judged_by.settings["model"]),),
            (control.metric,),
            prompts,
            upstream,
            control.reader,
            limits=self.limits,
        )
        yield self._counted(lambda: judge.run(judging, there))

    # --- the cap ---

    @property
    def limits(self) -> CallLimits:
        """What is left."""
        return CallLimits(self.options.workers, max_requests=self.left, anew=True)

    def _options(
        self, name: str, places: Sequence[Place], systems: tuple[str, ...] = (), configs: tuple[str, ...] = ()
    ) -> Options:
        chosen = Selection(name, systems, configs, tuple(f"{task}/{query}" for task, query in places))
        return replace(self.options, selection=chosen, repeat=1, force=True)

    def _counted(self, stage: Callable[[], Outcome]) -> Outcome:
        """A stage's outcome; what it sent is taken from what is left."""
        with Ledger.open(self.options.trials) as ledger:
            before = len(ledger.headers)
        outcome = stage()
        with Ledger.open(self.options.trials) as ledger:
            index = LedgerIndex(ledger)
            self.left -= sum(_sent(index, header) for header in ledger.headers[before:])
        self.left = max(0, self.left)
        return outcome


def _sent(index: LedgerIndex, header: Header) -> int:
    """How many requests were sent for a record of this run."""
    if header.kind == "failure":
        return index.ledger.body(header, FailureBody).attempts
    if header.kind == "retrieval":
        body = index.ledger.body(header, RetrievalBody)
        if body.usage is not None:
            return body.usage["embedding_requests"]
        return _price_of_asking(index, header.system or "") * (body.effort.attempts if body.effort else 1)
    if header.kind in ("answer", "verdict"):
        kind: type[AnswerBody | VerdictBody] = AnswerBody if header.kind == "answer" else VerdictBody
        call = index.ledger.body(header, kind).call
        return call.attempts if call else 0
    return 0
