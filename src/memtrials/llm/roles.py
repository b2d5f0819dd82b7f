"""Readers and judges: what each is called, what shapes its work, and how it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from memtrials.benchmarks.base import Benchmark, Prompts
from memtrials.errors import UserError, WorkFailedError
from memtrials.judging.payloads import Message, fill
from memtrials.judging.verdicts import PARSER_VERSION, VERDICT_FORMAT, UnreadableError, parse_score
from memtrials.llm import local, offline
from memtrials.llm.engine import ChatModel, Endpoint, Reply, UnusableError
from memtrials.records import AnswerBody, VerdictBody, config_id
from memtrials.settings import EndpointRole, ModelRole, Settings, Value

OFFLINE = "offline"
LOCAL = "local"
RULES_VERSION = 1


@dataclass(frozen=True)
class RoleConfig:
    """A reader or judge as configured: its settings make its id; provenance goes with its record."""

    name: str
    settings: Mapping[str, Any]
    provenance: Mapping[str, Any]

    @cached_property
    def id(self) -> str:
        """Its configuration id."""
        return config_id(self.name, self.settings)

    @property
    def is_offline(self) -> bool:
        """Whether it is the rule that needs no model."""
        return self.name == OFFLINE

    @property
    def is_local(self) -> bool:
        """Whether it is a model on this machine, started for it."""
        return self.name == LOCAL


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


def endpoint(role: EndpointRole, model: str, settings: Settings, own: str | None = None) -> Endpoint:
    """Where that model is. own: the prefix of variables that stand for the role's, OWN_BASE_URL and OWN_API_KEY; both
    must be set, so that no key goes where it doesn't belong.

    Raises UserError when no key is configured, or key or base URL can't be used.
    """
    if own:
        key, base_url = settings.find(f"{own}_API_KEY"), settings.find(f"{own}_BASE_URL")
        if key is None or base_url is None:
            raise UserError(f"{role} {model}: set {own}_BASE_URL and {own}_API_KEY (any text where none is asked for)")
    else:
        key, base_url = settings.api_key(role), settings.base_url(role)
    if key is None:
        raise UserError(
            f"no key for {role} {model}: set {role.upper()}_API_KEY, LLM_API_KEY or OPENAI_API_KEY "
            "(any text for a server that asks for none)"
        )
    if not (key.text.isascii() and key.text.isprintable()):
        raise UserError(f"{key.source}: not a key, it holds characters that no HTTP header can carry; copy it again")
    return Endpoint(model, key.text, _checked(base_url) if base_url else None)


class Places:
    """Where the models of a run are. The local one is started when it is first asked for and ends with `until_end`."""

    def __init__(self, role: ModelRole, settings: Settings, model_path: Path | None, until_end: ExitStack) -> None:
        self.role: ModelRole = role
        self.settings = settings
        self.model_path = model_path
        self._until_end = until_end
        self._served: Endpoint | None = None

    def check(self, model: str, own: str | None = None) -> None:
        """Whether a model can be asked, found out without asking. Raises UserError."""
        if model == LOCAL:
            local.identity(local.model_file(self.model_path))
        else:
            endpoint(self.role, model, self.settings, own)

    def open(self, model: str, own: str | None = None) -> Endpoint:
        """A model's endpoint, for as long as `until_end` is open. Raises UserError."""
        if model != LOCAL:
            return endpoint(self.role, model, self.settings, own)
        if self._served is None:
            self._served = self._until_end.enter_context(local.serve(local.model_file(self.model_path)))
        return self._served

    def remote(self, model: str, own: str | None = None) -> Endpoint:
        """The endpoint of a model that goes on without this process. Raises UserError."""
        if model == LOCAL:
            raise UserError("--batch needs a provider that takes batches; the local model takes none")
        return endpoint(self.role, model, self.settings, own)


def check_model_path(model_path: Path | None, models: Sequence[str]) -> None:
    """Raise UserError for a model file that none of these models is."""
    if model_path is not None and LOCAL not in models:
        raise UserError(f"--model-path is the file of the model {LOCAL}, and this run uses {', '.join(models)}")


def _checked(base_url: Value) -> str:
    """The URL without what a client adds to it; it isn't repeated in the error where it may hold a password."""
    try:
        parts = urlsplit(base_url.text)
        if parts.username or parts.password:
            raise UserError(f"{base_url.source}: holds a user name or password; the key goes into its own variable")
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise UserError(f"{base_url.source}: not a URL; write it like http://127.0.0.1:8000/v1")
    return base_url.text.rstrip("/").removesuffix("/chat/completions")


def reader_config(benchmark: Benchmark, model: str, prompts: Prompts, model_path: Path | None = None) -> RoleConfig:
    """What shapes a reader's answers on a benchmark: model, parameters as asked, prompt text, profile."""
    if model == OFFLINE:
        return RoleConfig(OFFLINE, {"model": OFFLINE, "version": offline.VERSION}, {})
    file = local.model_file(model_path) if model == LOCAL else None
    settings = {
        "model": model,
        **(local.identity(file) if file else {}),
        "parameters": local.reader_parameters(file) if file else dict(benchmark.reader.parameters),
        "prompt": prompts.texts[benchmark.reader_prompt],
        "profile": "blind",
    }
    return RoleConfig(model, settings, _provenance(benchmark, prompts, model == benchmark.reader.model))


def judge_config(benchmark: Benchmark, model: str, prompts: Prompts, model_path: Path | None = None) -> RoleConfig:
    """What shapes a judge's verdicts on a benchmark: model, parameters as asked, prompt texts, parser.

    Beside prompts that aren't the publisher's the form of a verdict is asked for; official runs ask for what was
    published and no more.
    """
    if model == OFFLINE:
        return RoleConfig(OFFLINE, {"model": OFFLINE, "rules": RULES_VERSION}, {})
    form = {} if prompts.official else {"response_format": VERDICT_FORMAT}
    parameters = {**benchmark.judge.parameters, **form}
    file = local.model_file(model_path) if model == LOCAL else None
    settings = {
        "model": model,
        **(local.identity(file) if file else {}),
        "parameters": local.judge_parameters(parameters) if file else parameters,
        "prompts": {name: prompts.texts[name] for name in benchmark.judge_prompts},
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
        return await self.model.complete(reader_messages(self.prompt, question, date, context), answer_in)


def answer_in(reply: Reply) -> AnswerBody:
    """The answer in a reply."""
    return AnswerBody(text=reply.text, cut=reply.cut, call=reply.call, raw=reply.raw)


async def ask_judge(model: ChatModel, messages: Sequence[Message]) -> VerdictBody:
    """One verdict. Raises WorkFailedError, also for a length stop and for a reply that can't be read."""
    return await model.complete(messages, verdict_in)


def verdict_in(reply: Reply) -> VerdictBody:
    """The verdict in a reply. Raises UnusableError."""
    if reply.cut:
        raise UnusableError("the judge's reply stopped at the length limit")
    try:
        score, reason = parse_score(reply.text)
    except UnreadableError as error:
        raise UnusableError(f"unreadable verdict: {error}") from None
    return VerdictBody(score=score, reason=reason, call=reply.call, raw=reply.raw)


def read_verdict(text: str) -> VerdictBody:
    """The verdict in a reply obtained elsewhere. Raises WorkFailedError when there is none: that is no score."""
    try:
        score, reason = parse_score(text)
    except UnreadableError as error:
        raise WorkFailedError("service", "content", f"unreadable verdict: {error}", raw=text) from None
    return VerdictBody(score=score, reason=reason, raw=text)
