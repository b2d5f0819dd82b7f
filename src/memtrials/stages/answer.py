"""answer: the reader turns question and context into an answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from memtrials import benchmarks
from memtrials.benchmarks.base import PLAIN, Benchmark, ReaderProfile
from memtrials.errors import UserError, WorkFailedError
from memtrials.index import LedgerIndex, Pair
from memtrials.judging.payloads import Message
from memtrials.ledger import Ledger
from memtrials.llm import prompts as prompt_files
from memtrials.llm.engine import ChatModel
from memtrials.llm.money import Purse
from memtrials.llm.offline import OfflineReader
from memtrials.llm.pool import NO_LIMITS, CallLimits, ModelPool
from memtrials.llm.roles import (
    SYSTEM,
    Places,
    RoleConfig,
    answer_in,
    ask_reader,
    check_model_path,
    chosen_model,
    reader_config,
    reader_messages,
    reader_profile,
)
from memtrials.outcome import Outcome
from memtrials.records import (
    AnswerBody,
    Header,
    Record,
    RetrievalBody,
    clean_text,
    text_sha256,
    work_key,
)
from memtrials.selection import Chosen, choose
from memtrials.stages.common import Options, Perform, Plan, Work, derived, explain_guard, guarded_off, run_plan
from memtrials.stages.handover import Batched, Batches, Recipient
from memtrials.stages.spending import check_priced, purse
from memtrials.stages.spending import forecast as foretell


@dataclass(frozen=True)
class AnswerRequest:
    """Which reader answers, in which profile, by which prompts. model_path: the file of the reader `local`."""

    reader: str | None = None
    profile: str = PLAIN
    prompts: str = "default"
    upstream: Path | None = None
    limits: CallLimits = NO_LIMITS
    model_path: Path | None = None


def run(request: AnswerRequest, options: Options) -> Outcome:
    """Answer what hasn't been answered. Raises UserError for a model without a key or prompts that can't be read."""
    model = chosen_model("reader", request.reader, options.settings)
    check_model_path(request.model_path, [model])
    ledger = Ledger.open(options.trials)
    until_end = ExitStack()
    readers = _Readers(
        model, Places("reader", options.settings, request.model_path, until_end), options, request.limits
    )

    @cache
    def config(name: str) -> RoleConfig:
        return _config(benchmarks.find(name), model, request)

    try:
        return run_plan(
            "answer",
            options,
            ledger,
            lambda index: pending(
                index,
                {name: config(name) for name in index.benchmarks if benchmarks.find(name).readers},
                options,
                choose(index, options.selection, "unit"),
            ),
            readers.perform,
            role="reader",
            guarded="answer",
            workers=request.limits.in_hand,
            check=readers.check,
            finish=readers.pool.close,
            halt=readers.pool.stop,
            forecast=readers.forecast,
            batches=Batches(BATCHED, options, readers.recipient, messages, readers.purse),
        )
    finally:
        until_end.close()
        ledger.close()


def _config(benchmark: Benchmark, model: str, request: AnswerRequest) -> RoleConfig:
    """The reader's configuration. Raises UserError for a profile or prompts that the benchmark doesn't have."""
    profile = request.profile
    if request.prompts not in ("default", "official"):
        raise UserError(f"--prompts {request.prompts}: a reader takes default or official; --profile names other ways")
    if profile != PLAIN and request.prompts == "official":
        raise UserError(f"--profile {profile} has prompts of its own; leave out --prompts official")
    names = reader_profile(benchmark, profile).names
    source = request.prompts if profile == PLAIN else profile
    prompts = prompt_files.load(benchmark, names, source, request.upstream)
    return reader_config(benchmark, model, prompts, profile, request.model_path)


def pending(index: LedgerIndex, configs: Mapping[str, RoleConfig], options: Options, chosen: Chosen) -> Plan:
    """Answers this reader still owes, oldest trial first, one for each missing ordinal.

    configs: the reader's configuration for each benchmark that asks for answers. A (benchmark, system) that only other
    readers have answered is left alone unless forced: switching costs money, so it must be asked for.
    """
    plan = Plan()
    begun = index.begun("answer", "reader")
    alone: Counter[Pair] = Counter()
    bare: Counter[Pair] = Counter()
    unknown: Counter[Pair] = Counter()
    silent: Counter[Pair] = Counter()
    for trial in index.of("retrieval"):
        if not chosen.holds(trial):
            continue
        pair = Pair(trial.benchmark or "", trial.system or "")
        if pair.benchmark not in configs:
            continue
        if configs[pair.benchmark].name == SYSTEM:
            answers = "answers" in index.config(pair.system).provenance.get("capabilities", ())
            if not answers or "budget" in index.config(trial.fetch or "").settings:
                silent[pair] += 1
                continue
        elif trial.content is None:
            unknown[pair] += 1
            continue
        config = configs[pair.benchmark]
        if guarded_off(begun, pair, config.id, options.force):
            alone[pair] += 1
            bare[pair] += not any(child.kind == "answer" for child in index.children.get(trial.id, ()))
            continue
        key = answer_key(trial, config.id)
        for ordinal in range(1, options.repeat + 1):
            plan.owe(index, Work(key, ordinal, trial, None, config.id, config))
    plan.notes += [f"{name} asks for no answers" for name in chosen.benchmarks if name not in configs]
    for config in configs.values():
        plan.announce("reader", config.name, config.settings, config.provenance)
    for pair, count in alone.items():
        config = configs[pair.benchmark]
        settings = dict(config.settings)
        plan.notes.append(explain_guard(index, "reader", config.id, settings, begun[pair], pair, count, bare[pair]))
        plan.left_alone += count
        plan.must_ask = plan.must_ask or bare[pair] > 0
    for pair, count in silent.items():
        plan.notes.append(
            f"{pair.benchmark} on {pair.system}: it gives no answers of its own, or none under a budget; {count} left "
            "alone"
        )
    for pair, count in unknown.items():
        plan.notes.append(
            f"{pair.benchmark} on {pair.system}: {count} trials came without the context that was read; they can't be "
            "answered again"
        )
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


def messages(index: LedgerIndex, work: Work) -> list[Message]:
    """What a model is sent. Only a profile that isn't blind has a look at the question's type and gold."""
    trial, settings = index.ledger.body(work.parent, RetrievalBody), work.spec.settings
    guidance = profile_of(index, work).guidance
    if guidance is None:
        return reader_messages(settings, trial)
    task, query = index.task(work.parent.benchmark or "", work.parent.task or ""), work.parent.query or ""
    return reader_messages(settings, trial, guidance(task.query(query), task.gold_of(query)))


def profile_of(index: LedgerIndex, work: Work) -> ReaderProfile:
    """How the reader of a piece of work is asked; not for the offline reader, which has no profile."""
    settings = work.spec.settings if work.spec is not None else index.config(work.config).settings
    return benchmarks.find(work.parent.benchmark or "").readers[settings["profile"]]


def own_answer(trial: RetrievalBody) -> AnswerBody:
    """What the system said by itself. Raises WorkFailedError when it said nothing."""
    if not (trial.answer or "").strip():
        raise WorkFailedError("system", "content", "the system gave no answer of its own with this retrieval")
    return AnswerBody(text=trial.answer or "")


def record(index: LedgerIndex, work: Work, body: AnswerBody) -> Record:
    """The record of an answer."""
    content = text_sha256(clean_text(body.text))
    return Record(derived(work, "answer", index, reader=work.config, content=content), body)


BATCHED = Batched(
    "answer",
    "answer",
    "reader",
    "reader",
    lambda index, work, reply: record(index, work, answer_in(reply, profile_of(index, work).clean)),
)


class _Readers:
    """The reader of each benchmark, opened when it is first needed."""

    def __init__(self, model: str, places: Places, options: Options, limits: CallLimits) -> None:
        self.model = model
        self.places = places
        self.options = options
        self.limits = limits
        self.pool = ModelPool(limits, "reader")
        self.offline = OfflineReader()

    def check(self, index: LedgerIndex, plan: Plan) -> None:
        """A model needs a key, and a price under a cap, before anything is sent. Raises UserError."""
        if not self.options.dry_run and any(not work.spec.is_offline for work in plan.work):
            self.places.check(self.model)
            check_priced([self.model], self.limits)

    def forecast(self, index: LedgerIndex, plan: Plan) -> dict[str, Any]:
        """What a dry run says: requests, the exact tokens that would be sent, and what they cost where it is known."""
        from memtrials.tokens import count_tokens

        def call(work: Work) -> tuple[str, Mapping[str, Any], int]:
            settings = work.spec.settings
            tokens = sum(count_tokens(message["content"]) for message in messages(index, work))
            return settings["model"], settings["parameters"], tokens

        calls = [work for work in plan.work if not work.spec.is_offline]
        return foretell(map(call, calls), batch=self.options.batch)

    def _model(self, config: RoleConfig) -> ChatModel:
        return self.pool.model(config, self.places.open(self.model))

    def perform(self, index: LedgerIndex, plan: Plan) -> Perform:
        """Answer one trial."""
        models = {work.config: self.model for work in plan.work if not work.spec.is_offline}
        self.pool.purse = self.purse(index, models)
        if models:
            self.places.open(self.model)  # before the event loop: a local model takes seconds to load

        async def answer(work: Work) -> Sequence[Record]:
            if work.spec.is_offline:
                trial = index.ledger.body(work.parent, RetrievalBody)
                if work.spec.name == SYSTEM:
                    return [record(index, work, own_answer(trial))]
                assert trial.context is not None
                return [record(index, work, await self.offline.answer(trial.question, trial.date, trial.context))]
            model, asked = self._model(work.spec), messages(index, work)
            return [record(index, work, await ask_reader(model, asked, profile_of(index, work).clean))]

        return answer

    def recipient(self, work: Work) -> Recipient:
        """Whom a batch is sent to. Raises UserError."""
        config: RoleConfig = work.spec
        return Recipient(config, None if config.is_offline else self.places.remote(self.model))

    def purse(self, index: LedgerIndex, models: Mapping[str, str]) -> Purse:
        """What may be spent."""
        return purse(index, "answer", models, self.limits)
