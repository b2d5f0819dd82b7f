"""Readers and judges: what each is called, what shapes its work, and how it is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from memtrials.benchmarks.base import PLAIN, Benchmark, JudgeProfile, Prompts, ReaderProfile, VerdictRule
from memtrials.errors import UserError, WorkFailedError, unknown
from memtrials.judging.payloads import Message, fill
from memtrials.judging.verdicts import PARSER_VERSION, STRICT, VERDICT_FORMAT, UnreadableError, read_verdict
from memtrials.llm import local, offline
from memtrials.llm.engine import ChatModel, Endpoint, Reply, UnusableError
from memtrials.records import AnswerBody, RetrievalBody, VerdictBody, config_id
from memtrials.settings import EndpointRole, ModelRole, Settings, Value

OFFLINE = "offline"
LOCAL = "local"
SYSTEM = "system"
"""The reader that is the memory system itself: its own answer, which came with the retrieval."""
Clean = Callable[[str], str]
"""Makes the answer of a reply's text."""
RULES_VERSION = 1
REASONING_LIMIT = 4096
"""Tokens of reply for a judge whose published limit leaves a reasoning model no room to say anything."""


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
        """Whether it asks no model: the rule, or what the system said by itself."""
        return self.name in (OFFLINE, SYSTEM)

    @property
    def is_local(self) -> bool:
        """Whether it is a model on this machine, started for it."""
        return self.name == LOCAL


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


def reader_profile(benchmark: Benchmark, name: str) -> ReaderProfile:
    """A benchmark's reader profile. Raises UserError when it has none of that name."""
    if name not in benchmark.readers:
        raise unknown(f"reader profile of {benchmark.name}", name, benchmark.readers)
    return benchmark.readers[name]


def reader_config(
    benchmark: Benchmark, model: str, prompts: Prompts, profile: str = PLAIN, model_path: Path | None = None
) -> RoleConfig:
    """What shapes a reader's answers on a benchmark: model, parameters as asked, prompt texts, profile.

    The offline reader asks nobody, so it has no profile.
    """
    if model == OFFLINE:
        return RoleConfig(OFFLINE, {"model": OFFLINE, "version": offline.VERSION}, {})
    if model == SYSTEM:
        return RoleConfig(SYSTEM, {"model": SYSTEM}, {})
    asked = reader_profile(benchmark, profile)
    file = local.model_file(model_path) if model == LOCAL else None
    settings = {
        "model": model,
        **(local.identity(file) if file else {}),
        "parameters": local.reader_parameters(file) if file else dict(asked.parameters),
        "prompt": prompts.texts[asked.prompt],
        "profile": profile,
        **({"guidance": {name: prompts.texts[name] for name in asked.texts}} if asked.texts else {}),
        **({"whole_message": True} if asked.whole_message else {}),
        **({"clean": asked.clean.__name__} if asked.clean else {}),
    }
    return RoleConfig(model, settings, _provenance(benchmark, prompts, model == asked.model))


def judge_profile(benchmark: Benchmark, prompts: Prompts) -> JudgeProfile:
    """How judges are asked with these prompts; the user's own take the place of ours."""
    return benchmark.judges["default" if prompts.source == "own" else prompts.source]


def judge_config(benchmark: Benchmark, model: str, prompts: Prompts, model_path: Path | None = None) -> RoleConfig:
    """What shapes a judge's verdicts on a benchmark: model, parameters as asked, prompt texts, rule and parser.

    Beside prompts that aren't the publisher's the form of a verdict is asked for; official runs ask for what was
    published and no more.
    """
    if model == OFFLINE:
        return RoleConfig(OFFLINE, {"model": OFFLINE, "rules": RULES_VERSION}, {})
    profile = judge_profile(benchmark, prompts)
    form = {"response_format": VERDICT_FORMAT} if profile.rule == "score" and not prompts.official else {}
    parameters = {**profile.parameters, **form}
    file = local.model_file(model_path) if model == LOCAL else None
    settings = {
        "model": model,
        **(local.identity(file) if file else {}),
        "parameters": local.judge_parameters(parameters) if file else parameters,
        "prompts": {name: prompts.texts[name] for name in benchmark.judge_prompts},
        "fenced": not prompts.official,
        "parser": PARSER_VERSION,
        **({"rule": profile.rule} if profile.rule != "score" else {}),
        **({"reasoning_limit": REASONING_LIMIT} if profile.rule in STRICT else {}),
    }
    return RoleConfig(model, settings, _provenance(benchmark, prompts, model == profile.model))


def _provenance(benchmark: Benchmark, prompts: Prompts, published_model: bool) -> dict[str, Any]:
    return {
        "benchmark": benchmark.name,
        "prompts": prompts.source,
        "published": prompts.official and published_model,
    }


def reader_messages(settings: Mapping[str, Any], trial: RetrievalBody, guidance: str | None = None) -> list[Message]:
    """The prompt with the context in it as system message; the question, with its date if it has one, as user's.

    Or, for a profile whose prompt is the whole message, that alone; its guidance may hold `{date}`, too. settings: the
    reader's configuration.
    """
    assert trial.context is not None
    date = {"date": trial.date or "unknown"}
    guided = fill(settings["guidance"][guidance], date).strip() if guidance else ""
    values = {"context": trial.context, "guidance": guided}
    if settings.get("whole_message"):
        values |= {"question": trial.question, **date}
        return [{"role": "user", "content": fill(settings["prompt"], values)}]
    asked = f"(Asked on {trial.date}.)\n{trial.question}" if trial.date else trial.question
    return [{"role": "system", "content": fill(settings["prompt"], values)}, {"role": "user", "content": asked}]


async def ask_reader(model: ChatModel, messages: Sequence[Message], clean: Clean | None = None) -> AnswerBody:
    """One answer. Raises WorkFailedError."""
    return await model.complete(messages, lambda reply: answer_in(reply, clean))


def answer_in(reply: Reply, clean: Clean | None = None) -> AnswerBody:
    """The answer in a reply, cleaned as the reader's profile says. Raises UnusableError when nothing is left."""
    text = reply.text if clean is None else clean(reply.text)
    if not text.strip():
        raise UnusableError("the reply is empty but for labels")
    return AnswerBody(text=text, cut=reply.cut, call=reply.call, raw=reply.raw)


async def ask_judge(model: ChatModel, messages: Sequence[Message], rule: VerdictRule = "score") -> VerdictBody:
    """One verdict. Raises WorkFailedError, also for a length stop and for a reply that can't be read."""
    return await model.complete(messages, lambda reply: verdict_in(reply, rule))


def verdict_in(reply: Reply, rule: VerdictRule = "score") -> VerdictBody:
    """The verdict in a reply. Raises UnusableError."""
    if reply.cut and rule not in STRICT:
        raise UnusableError("the judge's reply stopped at the length limit")
    try:
        score, reason = read_verdict(reply.text, rule)
    except UnreadableError as error:
        raise UnusableError(f"unreadable verdict: {error}") from None
    return VerdictBody(score=score, reason=reason, call=reply.call, raw=reply.raw)


def imported_verdict(text: str, rule: VerdictRule = "score") -> VerdictBody:
    """The verdict in a reply obtained elsewhere. Raises WorkFailedError when there is none: that is no score."""
    try:
        score, reason = read_verdict(text, rule)
    except UnreadableError as error:
        raise WorkFailedError("service", "content", f"unreadable verdict: {error}", raw=text) from None
    return VerdictBody(score=score, reason=reason, raw=text)
