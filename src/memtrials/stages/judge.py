"""judge: one verdict for each metric and judge of each answer, or of each trial where the metric reads no answer.

Several judges are one plan: each has a configuration, prompts and an endpoint of its own. With `probe` they are asked
about constructed answers instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from memtrials import benchmarks
from memtrials.benchmarks.base import Benchmark, JudgeProfile, Metric, Prompts
from memtrials.errors import UserError, unknown
from memtrials.index import LedgerIndex, Pair
from memtrials.judging import panel as panel_file
from memtrials.judging.panel import Member
from memtrials.judging.payloads import Message, judge_messages
from memtrials.judging.probing import Probe, constructed, probe_metric, probed
from memtrials.judging.verdicts import holds_verdict
from memtrials.ledger import Ledger
from memtrials.llm import prompts as prompt_files
from memtrials.llm.engine import ChatModel, Endpoint, Reply
from memtrials.llm.money import Purse
from memtrials.llm.pool import NO_LIMITS, CallLimits, ModelPool
from memtrials.llm.roles import (
    LOCAL,
    Places,
    RoleConfig,
    ask_judge,
    check_model_path,
    chosen_model,
    imported_verdict,
    judge_config,
    judge_profile,
    verdict_in,
)
from memtrials.outcome import Outcome
from memtrials.records import (
    AnswerBody,
    Gold,
    Header,
    Query,
    Record,
    RetrievalBody,
    VerdictBody,
    work_key,
)
from memtrials.selection import Chosen, choose
from memtrials.stages.common import Options, Perform, Plan, Work, derived, run_plan
from memtrials.stages.handover import Batched, Batches, Recipient
from memtrials.stages.spending import check_priced, purse
from memtrials.stages.spending import forecast as foretell


@dataclass(frozen=True)
class JudgeRequest:
    """Which judges decide which metrics of whose answers.

    judges: models, or none for the configured one; panel: a file of them instead. reader: None for the current one,
    `all`, or a name. probe: ask about constructed answers, not about readers'. model_path: the file of judge `local`.
    """

    judges: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    prompts: str = "default"
    upstream: Path | None = None
    reader: str | None = None
    export_requests: Path | None = None
    import_replies: Path | None = None
    limits: CallLimits = NO_LIMITS
    panel: Path | None = None
    probe: bool = False
    model_path: Path | None = None


@dataclass(frozen=True)
class Judging:
    """How one judge decides one benchmark in this run."""

    benchmark: Benchmark
    member: Member
    config: RoleConfig
    prompts: Prompts
    metrics: tuple[Metric, ...]

    @property
    def profile(self) -> JudgeProfile:
        """How it is asked."""
        return judge_profile(self.benchmark, self.prompts)


@dataclass(frozen=True)
class Decision:
    """What one verdict is to be about. probe: the constructed answer, where it is about none of a reader's."""

    judging: Judging
    metric: Metric
    probe: Probe | None = None


class Evidence(NamedTuple):
    """What is judged. answer: None where the metric reads none."""

    context: str
    query: Query
    answer: str | None


def run(request: JudgeRequest, options: Options) -> Outcome:
    """Decide what hasn't been decided. Raises UserError for unknown metrics, a missing key or unreadable prompts."""
    if request.export_requests and request.import_replies:
        raise UserError("--export-requests and --import-replies: one at a time")
    members = _members(request, options)
    if len(members) > 1 and (request.export_requests or request.import_replies):
        raise UserError("--export-requests and --import-replies take one judge; name it with --judge")
    live = not request.import_replies
    if options.batch and not live:
        raise UserError("--batch sends requests; it doesn't go with --import-replies")
    check_model_path(request.model_path, [member.model for member in members])
    ledger = Ledger.open(options.trials)
    until_end = ExitStack()
    places = Places("judge", options.settings, request.model_path, until_end)
    judges = _Judges(places, options, request.limits, _replies(request))

    @cache
    def judgings(name: str) -> list[Judging]:
        return _judgings(name, members, request)

    def plan(index: LedgerIndex) -> Plan:
        chosen = choose(index, options.selection, "unit")
        panel = {name: judgings(name) for name in chosen.benchmarks if benchmarks.find(name).metrics}
        if request.probe:
            return pending_probes(index, panel, options.repeat, chosen)
        owed = pending(index, panel, request.reader, options.repeat, chosen)
        owed.notes += [f"{name} asks for no verdicts" for name in chosen.benchmarks if name not in panel]
        return owed

    try:
        if request.export_requests is not None:
            return _export(plan(LedgerIndex(ledger)), judges, ledger, request.export_requests, options)
        return run_plan(
            "judge",
            options,
            ledger,
            plan if request.import_replies is None else lambda index: judges.only_replied(index, plan(index)),
            judges.perform,
            role="judge",
            workers=request.limits.in_hand,
            check=judges.check,
            finish=judges.pool.close,
            halt=judges.pool.stop,
            forecast=judges.forecast,
            batches=Batches(BATCHED, options, judges.recipient, judges.messages, judges.purse) if live else None,
        )
    finally:
        until_end.close()
        ledger.close()


def _members(request: JudgeRequest, options: Options) -> tuple[Member, ...]:
    """The judges that were asked for. Raises UserError."""
    if request.panel is None:
        names = request.judges or (chosen_model("judge", None, options.settings),)
        return tuple(Member(name, request.prompts) for name in names)
    if request.judges or request.prompts != "default":
        raise UserError("--panel names judges and their prompts itself: leave out --judge and --prompts")
    return panel_file.read(request.panel)


def _judgings(name: str, members: Sequence[Member], request: JudgeRequest) -> list[Judging]:
    benchmark = benchmarks.find(name)
    upstream = request.upstream
    if upstream is not None and not any(member.prompts == "official" for member in members):
        raise UserError("--upstream goes with official prompts")
    found: dict[str, Judging] = {}
    for member in members:
        prompts = _prompts(benchmark, member, upstream)
        config = judge_config(benchmark, member.model, prompts, request.model_path)
        if config.id in found:
            raise UserError(f"judge {member.model} is named twice with the same prompts; --repeat N asks one N times")
        found[config.id] = Judging(benchmark, member, config, prompts, _decidable(benchmark, config))
    return _narrowed(benchmark, list(found.values()), request.metrics)


def _prompts(benchmark: Benchmark, member: Member, upstream: Path | None) -> Prompts:
    if isinstance(member.prompts, Path):
        return prompt_files.own(benchmark, member.prompts)
    if member.prompts != "official" and member.prompts not in benchmark.judges:
        raise unknown(f"set of judge prompts of {benchmark.name}, or folder of yours", member.prompts, _sets(benchmark))
    source = upstream if member.prompts == "official" else None
    return prompt_files.load(benchmark, benchmark.judge_prompts, member.prompts, source)


def _sets(benchmark: Benchmark) -> list[str]:
    return sorted({*benchmark.judges, *(("official",) if benchmark.official_prompts else ())})


def _decidable(benchmark: Benchmark, config: RoleConfig) -> tuple[Metric, ...]:
    """The metrics that a judge can decide: a rule those that have one, a model those that have a prompt."""
    return tuple(m for m in benchmark.metrics if (m.rule if config.is_offline else m.prompts))


def _narrowed(benchmark: Benchmark, judgings: list[Judging], metrics: Sequence[str]) -> list[Judging]:
    """The judges with only these metrics. Raises UserError for one that is unknown, or that none of them decides."""
    for metric in metrics:
        if metric not in {m.name for m in benchmark.metrics}:
            raise unknown("metric", metric, [m.name for m in benchmark.metrics])
        if not any(metric == m.name for judging in judgings for m in judging.metrics):
            by_rules = all(judging.config.is_offline for judging in judgings)
            needs = "needs a model judge: name one with --judge" if by_rules else "is decided by --judge offline"
            raise UserError(f"metric {metric} {needs}")
    if not metrics:
        return judgings
    return [replace(j, metrics=tuple(m for m in j.metrics if m.name in metrics)) for j in judgings]


def pending(
    index: LedgerIndex, panel: Mapping[str, Sequence[Judging]], reader: str | None, repeat: int, chosen: Chosen
) -> Plan:
    """Verdicts these judges still owe: judge by judge, metric by metric, oldest first, one for each missing ordinal.

    Metrics that read answers are decided on those of each (benchmark, system)'s current reader, unless one is named.
    """
    plan = Plan()
    whose = index.readers_shown(reader)
    verbatim = _verbatim_systems(index)
    for name, judging in _each(panel):
        _announce(plan, judging.config)
        for metric in judging.metrics:
            about = index.questions(name, metric.asks)
            for parent in index.of(metric.reads):
                if parent.benchmark != name or not chosen.holds(parent):
                    continue
                if (parent.task, parent.query) not in about:
                    continue
                if metric.verbatim and parent.system not in verbatim:
                    continue
                if metric.reads == "answer" and parent.reader not in whose[Pair(name, parent.system or "")]:
                    continue
                if metric.reads_context and _trial(index, parent).content is None:
                    continue
                config = judging.config.id
                key = verdict_key(parent, config, metric.name)
                for ordinal in range(1, repeat + 1):
                    decision = Decision(judging, metric)
                    plan.owe(index, Work(key, ordinal, parent, None, config, decision, metric.name))
    return plan


def pending_probes(index: LedgerIndex, panel: Mapping[str, Sequence[Judging]], repeat: int, chosen: Chosen) -> Plan:
    """Verdicts these judges still owe on constructed answers, of every metric that reads answers.

    Raises UserError when none of the judges decides such a metric.
    """
    plan = Plan()
    probes = {name: list(constructed(index, benchmarks.find(name), name)) for name in panel}
    plan.notes += [f"{name} constructs no answers to probe with" for name, some in probes.items() if not some]
    reads_answers = False
    for name, judging in _each(panel):
        _announce(plan, judging.config)
        for metric in (m for m in judging.metrics if m.reads == "answer"):
            reads_answers = True
            about = index.questions(name, metric.probed or metric.asks)
            for probe in probes[name]:
                task, query = probe.task.task or "", probe.query
                if (task, query) not in about or (name, task, query) not in chosen.queries:
                    continue
                called = probe_metric(metric.name, probe.kind)
                config = judging.config.id
                key = verdict_key(probe.task, config, called, query)
                for ordinal in range(1, repeat + 1):
                    decision = Decision(judging, metric, probe)
                    plan.owe(index, Work(key, ordinal, probe.task, query, config, decision, called))
    if panel and not reads_answers:
        raise UserError("--probe asks about answers, and none of these judges decides a metric of those; name a model")
    return plan


def _each(panel: Mapping[str, Sequence[Judging]]) -> Iterator[tuple[str, Judging]]:
    return ((name, judging) for name, judgings in panel.items() for judging in judgings)


def _announce(plan: Plan, config: RoleConfig) -> None:
    plan.announce("judge", config.name, config.settings, config.provenance)


def verdict_key(parent: Header, judge: str, metric: str, query: str | None = None) -> str:
    """The name of the work of deciding a metric of an answer or a trial, or of a query of a task."""
    return work_key(
        "verdict",
        benchmark=parent.benchmark or "",
        task=parent.task or "",
        query=query or parent.query,
        parent=parent,
        config=judge,
        metric=metric,
    )


def _trial(index: LedgerIndex, parent: Header) -> Header:
    """The retrieval that a verdict is about."""
    return parent if parent.kind == "retrieval" else index.parent(parent)


def _verbatim_systems(index: LedgerIndex) -> set[str]:
    """Systems whose store returns turns unchanged."""
    systems = {h.system for h in index.of("ingest") if h.system}
    return {s for s in systems if "verbatim" in index.config(s).provenance.get("capabilities", ())}


def _replies(request: JudgeRequest) -> dict[str, str] | None:
    """Replies by custom_id from a file of JSON lines. Raises UserError that names the line."""
    path = request.import_replies
    if path is None:
        return None
    try:
        lines = path.read_text("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: can't be read ({error})") from None
    replies: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            custom_id, reply = row["custom_id"], row["reply"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UserError(f"{path}, line {number}: not an object with custom_id and reply") from None
        if not isinstance(custom_id, str) or not isinstance(reply, str):
            raise UserError(f"{path}, line {number}: custom_id and reply must be texts")
        if custom_id in replies:
            raise UserError(f"{path}, line {number}: custom_id {custom_id} occurs twice")
        replies[custom_id] = reply
    return replies


def custom_id(work: Work) -> str:
    """The name of a verdict outside the ledger: its key and ordinal."""
    return f"{work.key}:{work.repeat}"


def _export(plan: Plan, judges: _Judges, ledger: Ledger, path: Path, options: Options) -> Outcome:
    """Write the payloads of the verdicts that are owed, without calling anything."""
    if any(work.spec.judging.config.is_offline for work in plan.work):
        raise UserError("--export-requests needs a model: name one with --judge; the offline judge sends nothing")
    index = LedgerIndex(ledger)
    rows = [
        {
            "custom_id": custom_id(work),
            "task_id": _outside_id(work.parent.task or ""),
            "metric": work.metric,
            "messages": judges.messages(index, work),
            "response_contract": {"score": "0 or 1", "reason": "brief explanation"},
        }
        for work in plan.work
    ]
    outcome = Outcome("judge", pending=len(rows), left=len(rows), skipped=plan.skipped, notes=plan.notes)
    outcome.dry_run = True
    if not options.dry_run:
        try:
            path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
        except OSError as error:
            raise UserError(f"{path}: can't be written ({error.strerror})") from None
        outcome.notes.append(f"{len(rows)} requests written to {path}")
    return outcome


def _outside_id(task: str) -> int | str:
    """A task id as payloads and submissions write it: an integer where it is one."""
    return int(task) if task.lstrip("-").isdigit() else task


def flagged(verdict: VerdictBody, metric: Metric, answer: str | None) -> VerdictBody:
    """The verdict, marked where the judge saw an answer that holds one itself."""
    seen = answer is not None and "answer" in metric.fields
    return msgspec.structs.replace(verdict, flagged=seen and holds_verdict(answer or ""))


def _verdict_record(index: LedgerIndex, work: Work, reply: Reply) -> Record:
    """The record of a verdict that came in a batch."""
    parent, name = work.parent, work.metric or ""
    header = derived(work, "verdict", index, judge=work.config)
    probe = probed(header)
    if probe is not None:
        name, kind = probe
        answer: str | None = _probe_answers(index, parent.benchmark or "")[parent.id, header.query or "", kind]
    else:
        answer = index.ledger.body(parent, AnswerBody).text if parent.kind == "answer" else None
    metric = benchmarks.find(parent.benchmark or "").metric(name)
    rule = index.config(work.config).settings.get("rule", "score")
    verdict = flagged(verdict_in(reply, rule), metric, answer)
    return Record(header, verdict if probe is None else msgspec.structs.replace(verdict, probe=answer))


@lru_cache(maxsize=1)
def _probe_answers(index: LedgerIndex, benchmark: str) -> dict[tuple[str, str, str], str]:
    """The constructed answers by task record, query and kind."""
    probes = constructed(index, benchmarks.find(benchmark), benchmark)
    return {(probe.task.id, probe.query, probe.kind): probe.answer for probe in probes}


BATCHED = Batched("judge", "verdict", "judge", "service", _verdict_record)


class _Judges:
    """The judges' models, opened when they are first needed. replies: obtained elsewhere, by custom_id."""

    def __init__(self, places: Places, options: Options, limits: CallLimits, replies: dict[str, str] | None) -> None:
        self.places = places
        self.options = options
        self.limits = limits
        self.replies = replies
        self.pool = ModelPool(limits, "service")

    def only_replied(self, index: LedgerIndex, plan: Plan) -> Plan:
        """The part of a plan that the replies answer. Raises UserError for a reply that belongs to no verdict."""
        assert self.replies is not None
        known = {custom_id(work) for work in plan.work}
        known |= {f"{key}:{repeat}" for key, repeat in (*index.done, *index.failures)}  # given up is known, too
        for name in self.replies:
            if name not in known:
                raise UserError(
                    f"custom_id {name} belongs to no verdict that this judge owes here; import with the same "
                    "ledger, --judge, --prompts and --metric as the export"
                )
        plan.work = [work for work in plan.work if custom_id(work) in self.replies]
        return plan

    def check(self, index: LedgerIndex, plan: Plan) -> None:
        """A model needs a key, and a price under a cap, before anything is sent. Raises UserError."""
        if self.options.dry_run or self.replies is not None:
            return
        members = {work.spec.judging.member for work in plan.work if not work.spec.judging.config.is_offline}
        for member in members:
            self.places.check(member.model, member.endpoint)
        check_priced(sorted(member.model for member in members), self.limits)

    def forecast(self, index: LedgerIndex, plan: Plan) -> dict[str, Any]:
        """What a dry run says: requests, the exact tokens that would be sent, and what they cost where it is known."""
        from memtrials.tokens import count_tokens

        def call(work: Work) -> tuple[str, Mapping[str, Any], int]:
            settings = work.spec.judging.config.settings
            tokens = sum(count_tokens(m["content"]) for m in self.messages(index, work))
            return settings["model"], settings["parameters"], tokens

        calls = [work for work in plan.work if not work.spec.judging.config.is_offline and self.replies is None]
        return foretell(map(call, calls), batch=self.options.batch)

    def perform(self, index: LedgerIndex, plan: Plan) -> Perform:
        """Decide one metric of one answer or trial."""
        models = {
            work.config: work.spec.judging.member.model for work in plan.work if not work.spec.judging.config.is_offline
        }
        self.pool.purse = self.purse(index, models)
        if self.replies is None and LOCAL in models.values():
            self.places.open(LOCAL)  # before the event loop: it takes seconds to load

        async def decide(work: Work) -> Sequence[Record]:
            body = await self._decide(index, work)
            return [Record(derived(work, "verdict", index, judge=work.config), body)]

        return decide

    async def _decide(self, index: LedgerIndex, work: Work) -> VerdictBody:
        decision: Decision = work.spec
        evidence = self._evidence(index, work)
        if decision.judging.config.is_offline:
            assert decision.metric.rule is not None
            score, reason = decision.metric.rule(evidence.context, evidence.answer or "", self._gold(index, work))
            verdict = VerdictBody(score=score, reason=reason)
        else:
            rule = decision.judging.profile.rule
            if self.replies is not None:
                verdict = imported_verdict(self.replies[custom_id(work)], rule)
            else:
                verdict = await ask_judge(self._model(decision.judging), self.messages(index, work), rule)
            verdict = flagged(verdict, decision.metric, evidence.answer)
        return verdict if decision.probe is None else msgspec.structs.replace(verdict, probe=decision.probe.answer)

    def recipient(self, work: Work) -> Recipient:
        """Whom a batch is sent to. Raises UserError."""
        judging: Judging = work.spec.judging
        where = None if judging.config.is_offline else self._remote(judging.member)
        return Recipient(judging.config, where, judging.member.endpoint)

    def _remote(self, member: Member) -> Endpoint:
        return self.places.remote(member.model, member.endpoint)

    def purse(self, index: LedgerIndex, models: Mapping[str, str]) -> Purse:
        """What may be spent."""
        return purse(index, "judge", models, self.limits)

    def _evidence(self, index: LedgerIndex, work: Work) -> Evidence:
        """What a verdict is about: a trial or an answer with its trial, or what was constructed."""
        parent, decision = work.parent, work.spec
        probe = decision.probe
        if probe is not None:
            return Evidence(probe.context, self._query(index, work), probe.answer)
        said = index.ledger.body(parent, AnswerBody).text if parent.kind == "answer" else None
        context = index.ledger.body(_trial(index, parent), RetrievalBody).context
        assert context is not None or not decision.metric.reads_context
        return Evidence(context or "", self._query(index, work), said)

    def _query(self, index: LedgerIndex, work: Work) -> Query:
        task = index.task(work.parent.benchmark or "", work.parent.task or "")
        return task.query(work.query or work.parent.query or "")

    def _gold(self, index: LedgerIndex, work: Work) -> Gold:
        task = index.task(work.parent.benchmark or "", work.parent.task or "")
        return task.gold_of(work.query or work.parent.query or "")

    def messages(self, index: LedgerIndex, work: Work) -> list[Message]:
        """What the judge is sent."""
        decision: Decision = work.spec
        evidence = self._evidence(index, work)
        return judge_messages(
            decision.metric,
            decision.judging.prompts,
            decision.judging.profile,
            context=evidence.context,
            query=evidence.query,
            answer=evidence.answer,
            gold=self._gold(index, work),
        )

    def _model(self, judging: Judging) -> ChatModel:
        return self.pool.model(judging.config, self.places.open(judging.member.model, judging.member.endpoint))
