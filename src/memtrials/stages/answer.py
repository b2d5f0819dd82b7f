"""answer: the reader turns question and context into an answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from memtrials import benchmarks
from memtrials.index import LedgerIndex, Pair
from memtrials.ledger import Ledger
from memtrials.llm import prompts as prompt_files
from memtrials.llm.engine import ChatModel
from memtrials.llm.offline import OfflineReader
from memtrials.llm.roles import (
    ModelReader,
    Reader,
    RoleConfig,
    chosen_model,
    endpoint,
    reader_config,
    reader_messages,
)
from memtrials.outcome import Outcome
from memtrials.records import Header, Record, RetrievalBody, clean_text, config_record, text_sha256, work_key
from memtrials.selection import Chosen, choose
from memtrials.stages.common import Options, Perform, Plan, Work, derived, explain_guard, guard, run_plan

WORKERS = 8
"""Calls in flight unless --workers says otherwise: enough to hide latency, few enough for any account's limits."""


@dataclass(frozen=True)
class AnswerRequest:
    """Which reader answers, by which prompts."""

    reader: str | None = None
    prompts: Literal["default", "official"] = "default"
    upstream: Path | None = None


def run(request: AnswerRequest, options: Options) -> Outcome:
    """Answer what hasn't been answered. Raises UserError for a model without a key or prompts that can't be read."""
    model = chosen_model("reader", request.reader, options.settings)
    ledger = Ledger.open(options.trials)
    workers = options.workers or WORKERS
    readers = _Readers(model, options, workers)

    @cache
    def config(name: str) -> RoleConfig:
        benchmark = benchmarks.find(name)
        return reader_config(benchmark, model, prompt_files.load(benchmark, request.prompts, request.upstream))

    try:
        return run_plan(
            "answer",
            options,
            ledger,
            lambda index: pending(
                index,
                {name: config(name) for name in index.benchmarks},
                options,
                choose(index, options.selection, "unit"),
            ),
            readers.perform,
            role="reader",
            guarded="answer",
            workers=workers,
            check=readers.check,
            finish=readers.close,
            forecast=forecast,
        )
    finally:
        ledger.close()


def pending(index: LedgerIndex, configs: Mapping[str, RoleConfig], options: Options, chosen: Chosen) -> Plan:
    """Answers this reader still owes, oldest trial first, one for each missing ordinal.

    configs: the reader's configuration by benchmark. A (benchmark, system) that only other readers have answered is
    left alone unless forced: switching costs money, so it must be asked for.
    """
    plan = Plan()
    begun = index.begun("answer", "reader")
    alone: Counter[Pair] = Counter()
    bare: Counter[Pair] = Counter()
    for trial in index.of("retrieval"):
        if not chosen.holds(trial):
            continue
        pair = Pair(trial.benchmark or "", trial.system or "")
        config = configs[pair.benchmark]
        if guard(index, plan, begun, pair, config.id, options.force):
            alone[pair] += 1
            bare[pair] += not any(child.kind == "answer" for child in index.children.get(trial.id, ()))
            continue
        key = answer_key(trial, config.id)
        for ordinal in range(1, options.repeat + 1):
            plan.owe(index, Work(key, ordinal, trial, None, config.id, config))
    for config in configs.values():
        plan.configs[config.id] = config_record("reader", config.name, config.settings, config.provenance)
    for pair, count in alone.items():
        config = configs[pair.benchmark]
        settings = dict(config.settings)
        plan.notes.append(explain_guard(index, "reader", config.id, settings, begun[pair], pair, count, bare[pair]))
        plan.left_alone += count
        plan.must_ask = plan.must_ask or bare[pair] > 0
    return plan


def answer_key(trial: Header, reader: str) -> str:
    """The name of the work of answering a trial."""
    return work_key(
        "answer",
        benchmark=trial.benchmark or "",
        task=trial.task or "",
        query=trial.query,
        parent=trial,
        config=reader,
    )


def forecast(index: LedgerIndex, plan: Plan) -> dict[str, Any]:
    """What a dry run says: requests and the exact tokens that would be sent."""
    from memtrials.tokens import count_tokens

    calls = [work for work in plan.work if not work.spec.is_offline]
    tokens = 0
    for work in calls:
        body = index.ledger.body(work.parent, RetrievalBody)
        messages = reader_messages(work.spec.settings["prompt"], body.question, body.date, body.context)
        tokens += sum(count_tokens(message["content"]) for message in messages)
    return {"requests": len(calls), "prompt_tokens": tokens}


class _Readers:
    """The reader of each benchmark, opened when it is first needed."""

    def __init__(self, model: str, options: Options, workers: int) -> None:
        self.model = model
        self.options = options
        self.workers = workers
        self._open: dict[str, Reader] = {}

    def check(self, index: LedgerIndex, plan: Plan) -> None:
        """A model needs a key before anything is sent. Raises UserError."""
        if not self.options.dry_run and any(not work.spec.is_offline for work in plan.work):
            endpoint("reader", self.model, self.options.settings)

    def _reader(self, config: RoleConfig) -> Reader:
        if config.is_offline:
            return self._open.setdefault(config.id, OfflineReader())
        if config.id not in self._open:
            where = endpoint("reader", self.model, self.options.settings)
            model = ChatModel(where, config.settings["parameters"], "reader", workers=self.workers)
            self._open[config.id] = ModelReader(model, config.settings["prompt"])
        return self._open[config.id]

    def perform(self, index: LedgerIndex, plan: Plan) -> Perform:
        """Answer one trial."""

        async def answer(work: Work) -> Sequence[Record]:
            trial = index.ledger.body(work.parent, RetrievalBody)
            body = await self._reader(work.spec).answer(trial.question, trial.date, trial.context)
            content = text_sha256(clean_text(body.text))
            return [Record(derived(work, "answer", index, reader=work.config, content=content), body)]

        return answer

    async def close(self) -> None:
        """Close connections."""
        for reader in self._open.values():
            if isinstance(reader, ModelReader):
                await reader.model.close()
