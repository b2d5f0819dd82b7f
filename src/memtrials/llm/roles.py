"""Readers and judges: what each is called, what shapes its work, and how it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from memtrials.benchmarks.base import Benchmark, Prompts
from memtrials.errors import UserError, WorkFailedError
from memtrials.judging.payloads import Message, fill
from memtrials.judging.verdicts import PARSER_VERSION, UnreadableError, parse_score
from memtrials.llm import offline
from memtrials.llm.engine import ChatModel, Endpoint
from memtrials.records import AnswerBody, Call, VerdictBody, config_id
from memtrials.settings import ModelRole, Settings, Value

OFFLINE = "offline"
RULES_VERSION = 1


@dataclass(frozen=True)
class RoleConfig:
    """A reader or judge as configured: its settings make its id; provenance goes with its record."""

    name: str
    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]

    @property
    def id(self) -> str:
        """Its configuration id."""
        return config_id(self.name, self.settings)

    @property
    def is_offline(self) -> bool:
        """Whether it is the rule that needs no model."""
        return self.name == OFFLINE


class Reader(Protocol):
    """What answers. It is blind: it gets the question, its date and the context, and no more."""

    async def answer(self, question: str, date: str | None, context: str) -> AnswerBody:
        """The answer. Raises WorkFailedError."""


def chosen_model(role: ModelRole, asked: str | None, settings: Settings) -> str:
    """The model of a role: the command line's, else the configured one, else `offline`. A key alone never spends."""
    if asked:
        return asked
    configured = settings.model(role)
    return configured.text if configured else OFFLINE


def endpoint(role: ModelRole, model: str, settings: Settings) -> Endpoint:
    """Where that model is. Raises UserError when no key is configured, or key or base URL can't be used."""
    key = settings.api_key(role)
    if key is None:
        raise UserError(
            f"no key for {role} {model}: set {role.upper()}_API_KEY, LLM_API_KEY or OPENAI_API_KEY "
            "(any text for a server that asks for none)"
        )
    if not (key.text.isascii() and key.text.isprintable()):
        raise UserError(f"{key.source}: not a key, it holds characters that no HTTP header can carry; copy it again")
    base_url = settings.base_url(role)
    return Endpoint(model, key.text, _checked(base_url) if base_url else None)


def _checked(base_url: Value) -> str:
    """The URL, which isn't repeated in the error where it may hold a password."""
    try:
        parts = urlsplit(base_url.text)
        if parts.username or parts.password:
            raise UserError(f"{base_url.source}: holds a user name or password; the key goes into its own variable")
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise UserError(f"{base_url.source}: not a URL; write it like http://127.0.0.1:8000/v1")
    return base_url.text


def reader_config(benchmark: Benchmark, model: str, prompts: Prompts) -> RoleConfig:
    """What shapes a reader's answers on a benchmark: model, parameters as asked, prompt text, profile."""
    if model == OFFLINE:
        return RoleConfig(OFFLINE, {"model": OFFLINE, "version": offline.VERSION}, {})
    settings = {
        "model": model,
        "parameters": dict(benchmark.reader.parameters),
        "prompt": prompts.texts[benchmark.reader_prompt],
        "profile": "blind",
    }
    return RoleConfig(model, settings, _provenance(benchmark, prompts, model == benchmark.reader.model))


def judge_config(benchmark: Benchmark, model: str, prompts: Prompts) -> RoleConfig:
    """What shapes a judge's verdicts on a benchmark: model, parameters as asked, prompt texts, parser."""
    if model == OFFLINE:
        return RoleConfig(OFFLINE, {"model": OFFLINE, "rules": RULES_VERSION}, {})
    names = sorted({metric.prompt for metric in benchmark.metrics if metric.prompt})
    settings = {
        "model": model,
        "parameters": dict(benchmark.judge.parameters),
        "prompts": {name: prompts.texts[name] for name in names},
        "fenced": not prompts.official,
        "parser": PARSER_VERSION,
    }
    return RoleConfig(model, settings, _provenance(benchmark, prompts, model == benchmark.judge.model))


def _provenance(benchmark: Benchmark, prompts: Prompts, published_model: bool) -> dict[str, Any]:
    return {
        "benchmark": benchmark.name,
        "prompts": prompts.source,
        "published": prompts.official and published_model,
    }


def reader_messages(prompt: str, question: str, date: str | None, context: str) -> list[Message]:
    """The prompt with the context in it as system message; the question, with its date if it has one, as user's."""
    return [
        {"role": "system", "content": fill(prompt, {"context": context})},
        {"role": "user", "content": f"(Asked on {date}.)\n{question}" if date else question},
    ]


class ModelReader:
    """A reader behind an endpoint."""

    def __init__(self, model: ChatModel, prompt: str) -> None:
        self.model = model
        self.prompt = prompt

    async def answer(self, question: str, date: str | None, context: str) -> AnswerBody:
        """Ask the model. Raises WorkFailedError."""
        reply = await self.model.complete(reader_messages(self.prompt, question, date, context))
        return AnswerBody(text=reply.text, cut=reply.cut, call=reply.call, raw=reply.raw)


async def ask_judge(model: ChatModel, messages: Sequence[Message]) -> VerdictBody:
    """One verdict. Raises WorkFailedError, also for a length stop and for a reply that can't be read."""
    reply = await model.complete(messages)
    if reply.cut:
        raise WorkFailedError(
            "service",
            "content",
            "the judge's reply stopped at the length limit",
            attempts=reply.call.attempts,
            raw=reply.raw,
        )
    return read_verdict(reply.text, raw=reply.raw, call=reply.call)


def read_verdict(text: str, *, raw: str, call: Call | None = None) -> VerdictBody:
    """The verdict in a reply. Raises WorkFailedError when there is none: an unreadable reply is no score."""
    try:
        score, reason = parse_score(text)
    except UnreadableError as error:
        attempts = call.attempts if call else 1
        raise WorkFailedError(
            "service", "content", f"unreadable verdict: {error}", attempts=attempts, raw=raw
        ) from None
    return VerdictBody(score=score, reason=reason, call=call, raw=raw)
