"""judge: one verdict for each metric and judge of each answer, or of each trial where the metric reads no answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from memtrials import benchmarks
from memtrials.benchmarks.base import Benchmark, Metric, Prompts
from memtrials.errors import UserError, unknown
from memtrials.index import LedgerIndex, Pair
from memtrials.judging.payloads import Message, judge_messages
from memtrials.judging.verdicts import holds_verdict
from memtrials.ledger import Ledger
from memtrials.llm import prompts as prompt_files
from memtrials.llm.engine import ChatModel
from memtrials.llm.roles import RoleConfig, ask_judge, chosen_model, endpoint, judge_config, read_verdict
from memtrials.outcome import Outcome
from memtrials.records import AnswerBody, Header, Record, RetrievalBody, VerdictBody, config_record, work_key
from memtrials.selection import Chosen, choose
from memtrials.stages.answer import WORKERS
from memtrials.stages.common import Options, Perform, Plan, Work, derived, run_plan


@dataclass(frozen=True)
class JudgeRequest:
    """Which judge decides which metrics of whose answers. reader: None for the current one, `all`, or a name."""

    judge: str | None = None
    metrics: tuple[str, ...] = ()
    prompts: Literal["default", "official"] = "default"
    upstream: Path | None = None
    reader: str | None = None
    export_requests: Path | None = None
    import_replies: Path | None = None


@dataclass(frozen=True)
class Judging:
    """How one benchmark is judged in this run."""

    benchmark: Benchmark
    config: RoleConfig
    prompts: Prompts
    metrics: tuple[Metric, ...]


def run(request: JudgeRequest, options: Options) -> Outcome:
    """Decide what hasn't been decided. Raises UserError for unknown metrics, a missing key or unreadable prompts."""
    if request.export_requests and request.import_replies:
        raise UserError("--export-requests and --import-replies: one at a time")
    model = chosen_model("judge", request.judge, options.settings)
    ledger = Ledger.open(options.trials)
    workers = options.workers or WORKERS
    judges = _Judges(model, options, workers, _replies(request))

    @cache
    def judging(name: str) -> Judging:
        return _judging(name, model, request)

    def plan(index: LedgerIndex) -> Plan:
        chosen = choose(index, options.selection, "unit")
        return pending(
            index, {name: judging(name) for name in chosen.benchmarks}, request.reader, options.repeat, chosen
        )

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
            workers=workers,
            check=judges.check,
            finish=judges.close,
            forecast=judges.forecast,
        )
    finally:
        ledger.close()


def _judging(name: str, model: str, request: JudgeRequest) -> Judging:
    benchmark = benchmarks.find(name)
    prompts = prompt_files.load(benchmark, request.prompts, request.upstream)
    config = judge_config(benchmark, model, prompts)
    decidable = {
        m.name for m in benchmark.metrics if (m.rule is not None if config.is_offline else m.prompt is not None)
    }
    for metric in request.metrics:
        if metric not in {m.name for m in benchmark.metrics}:
            raise unknown("metric", metric, [m.name for m in benchmark.metrics])
        if metric not in decidable:
            needs = (
                "needs a model judge: name one with --judge" if config.is_offline else "is decided by --judge offline"
            )
            raise UserError(f"metric {metric} {needs}")
    wanted = set(request.metrics) or decidable
    return Judging(benchmark, config, prompts, tuple(m for m in benchmark.metrics if m.name in wanted))


def pending(
    index: LedgerIndex, judgings: Mapping[str, Judging], reader: str | None, repeat: int, chosen: Chosen
) -> Plan:
    """Verdicts this judge still owes: metric by metric, oldest first, one for each missing ordinal.

    Metrics that read answers are decided on those of each (benchmark, system)'s current reader, unless one is named.
    """
    plan = Plan()
    whose = index.readers_shown(reader)
    verbatim = _verbatim_systems(index)
    for name, judging in judgings.items():
        config = judging.config
        plan.configs[config.id] = config_record("judge", config.name, config.settings, config.provenance)
        for metric in judging.metrics:
            for parent in index.of(metric.reads):
                if parent.benchmark != name or metric.query not in (None, parent.query) or not chosen.holds(parent):
                    continue
                if metric.verbatim and parent.system not in verbatim:
                    continue
                if metric.reads == "answer" and parent.reader not in whose[Pair(name, parent.system or "")]:
                    continue
                key = verdict_key(parent, config.id, metric.name)
                for ordinal in range(1, repeat + 1):
                    plan.owe(index, Work(key, ordinal, parent, None, config.id, (judging, metric), metric.name))
    return plan


def verdict_key(parent: Header, judge: str, metric: str) -> str:
    """The name of the work of deciding a metric of an answer or a trial."""
    return work_key(
        "verdict",
        benchmark=parent.benchmark or "",
        task=parent.task or "",
        query=parent.query,
        parent=parent,
        config=judge,
        metric=metric,
    )


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
    if any(work.spec[0].config.is_offline for work in plan.work):
        raise UserError("--export-requests needs a model: name one with --judge; the offline judge sends nothing")
    index = LedgerIndex(ledger)
    rows = []
    for work in plan.work:
        metric: Metric = work.spec[1]
        rows.append(
            {
                "custom_id": custom_id(work),
                "task_id": _outside_id(work.parent.task or ""),
                "metric": metric.name,
                "messages": judges.messages(index, work),
                "response_contract": {"score": "0 or 1", "reason": "brief explanation"},
            }
        )
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


class _Judges:
    """The judge of each benchmark, opened when it is first needed. replies: obtained elsewhere, by custom_id."""

    def __init__(self, model: str, options: Options, workers: int, replies: dict[str, str] | None) -> None:
        self.model = model
        self.options = options
        self.workers = workers
        self.replies = replies
        self._models: dict[str, ChatModel] = {}

    def only_replied(self, index: LedgerIndex, plan: Plan) -> Plan:
        """The part of a plan that the replies answer. Raises UserError for a reply that belongs to no verdict."""
        assert self.replies is not None
        known = {custom_id(work) for work in plan.work}
        known |= {f"{key}:{repeat}" for key, repeat in (*index.done, *index.failures)}  # given up is known, too
        for name in self.replies:
            if name not in known:
                raise UserError(
                    f"custom_id {name} belongs to no verdict that judge {self.model} owes here; import with the same "
                    "ledger, --judge, --prompts and --metric as the export"
                )
        plan.work = [work for work in plan.work if custom_id(work) in self.replies]
        return plan

    def check(self, index: LedgerIndex, plan: Plan) -> None:
        """A model needs a key before anything is sent. Raises UserError."""
        if self.options.dry_run or self.replies is not None:
            return
        if any(not work.spec[0].config.is_offline for work in plan.work):
            endpoint("judge", self.model, self.options.settings)

    def forecast(self, index: LedgerIndex, plan: Plan) -> dict[str, Any]:
        """What a dry run says: requests and the exact tokens that would be sent."""
        from memtrials.tokens import count_tokens

        calls = [work for work in plan.work if not work.spec[0].config.is_offline and self.replies is None]
        tokens = sum(count_tokens(m["content"]) for work in calls for m in self.messages(index, work))
        return {"requests": len(calls), "prompt_tokens": tokens}

    def perform(self, index: LedgerIndex, plan: Plan) -> Perform:
        """Decide one metric of one answer or trial."""

        async def decide(work: Work) -> Sequence[Record]:
            body = await self._decide(index, work)
            return [Record(derived(work, "verdict", index, judge=work.config), body)]

        return decide

    async def _decide(self, index: LedgerIndex, work: Work) -> VerdictBody:
        judging, metric = work.spec
        if judging.config.is_offline:
            retrieval, answer = self._evidence(index, work)
            gold = index.task(work.parent.benchmark or "", work.parent.task or "").gold_of(work.parent.query or "")
            score, reason = metric.rule(retrieval.context, answer or "", gold)
            return VerdictBody(score=score, reason=reason)
        if self.replies is not None:
            reply = self.replies[custom_id(work)]
            verdict = read_verdict(reply, raw=reply)
        else:
            verdict = await ask_judge(self._model(judging.config), self.messages(index, work))
        answer = self._evidence(index, work)[1] if "answer" in metric.fields else None
        return msgspec.structs.replace(verdict, flagged=answer is not None and holds_verdict(answer))

    def _evidence(self, index: LedgerIndex, work: Work) -> tuple[RetrievalBody, str | None]:
        """The retrieval a verdict is about, and the answer's text where the metric reads one."""
        parent = work.parent
        if parent.kind == "retrieval":
            return index.ledger.body(parent, RetrievalBody), None
        return index.ledger.body(index.parent(parent), RetrievalBody), index.ledger.body(parent, AnswerBody).text

    def messages(self, index: LedgerIndex, work: Work) -> list[Message]:
        """What the judge is sent."""
        judging, metric = work.spec
        retrieval, answer = self._evidence(index, work)
        task = index.task(work.parent.benchmark or "", work.parent.task or "")
        return judge_messages(
            metric,
            judging.prompts,
            context=retrieval.context,
            query=retrieval.question,
            answer=answer,
            gold=task.gold_of(work.parent.query or ""),
        )

    def _model(self, config: RoleConfig) -> ChatModel:
        if config.id not in self._models:
            where = endpoint("judge", self.model, self.options.settings)
            self._models[config.id] = ChatModel(where, config.settings["parameters"], "service", workers=self.workers)
        return self._models[config.id]

    async def close(self) -> None:
        """Close connections."""
        for model in self._models.values():
            await model.close()
