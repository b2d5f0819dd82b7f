"""Calls to any OpenAI-compatible endpoint: bounded, honest about failures, with a record of what was really sent."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from memtrials.errors import Cause, WorkFailedError
from memtrials.records import Call

if TYPE_CHECKING:
    from openai import AsyncOpenAI

ATTEMPTS = 5
MAX_SECONDS = 300.0
TIMEOUT = 600.0
PROVIDER = "https://api.openai.com/v1"
"""Where a model is when no base URL is configured. Always given: the client takes an empty OPENAI_BASE_URL for one."""
TRANSIENT_STATUS = frozenset((408, 409, 425, 429))
ITEM_CODES = frozenset(
    (
        "context_length_exceeded",
        "string_above_max_length",
        "content_filter",
        "content_policy_violation",
        "invalid_prompt",
    )
)
"""Error codes that are about one item: the next one may well pass."""
NO_CREDIT_CODES = frozenset(("insufficient_quota", "billing_hard_limit_reached", "billing_not_active"))


@dataclass(frozen=True)
class Endpoint:
    """Where a model is. base_url None is the provider's default; the key never leaves this object but in a request."""

    model: str
    api_key: str = field(repr=False)
    base_url: str | None = None


@dataclass(frozen=True)
class Reply:
    """What a model said. cut: it stopped at the length limit. raw: the whole response as JSON text."""

    text: str
    cut: bool
    call: Call
    raw: str


class _Message(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    """What is read of a response; compatible servers vary in all the rest."""

    choices: tuple[_Choice, ...]
    model: str | None = None
    usage: Any = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _TransientError(Exception):
    """A try that may succeed later."""


class ChatModel:
    """One model with fixed parameters. cause: who is to blame for unusable content (a judge's is the service's)."""

    def __init__(
        self,
        endpoint: Endpoint,
        parameters: Mapping[str, Any],
        cause: Cause,
        *,
        workers: int = 1,
        pause: float = 1.0,
    ) -> None:
        self.endpoint = endpoint
        self.parameters = dict(parameters)
        self.cause: Cause = cause
        self.workers = workers
        self.pause = pause
        self._client: AsyncOpenAI | None = None

    async def complete(self, messages: Sequence[Mapping[str, str]]) -> Reply:
        """One reply with text. Raises WorkFailedError: fatal, transient after bounded attempts, or content."""
        import backoff

        attempts = 0

        async def one_try() -> Reply:
            nonlocal attempts
            attempts += 1
            return await self._try(messages, attempts)

        retrying = backoff.on_exception(
            backoff.expo, _TransientError, max_tries=ATTEMPTS, max_time=MAX_SECONDS, factor=self.pause, logger=None
        )
        try:
            return await retrying(one_try)()
        except _TransientError as error:
            raise WorkFailedError("service", "transient", str(error), attempts=attempts) from None

    async def _try(self, messages: Sequence[Mapping[str, str]], attempt: int) -> Reply:
        import openai

        began = time.perf_counter()
        try:
            response = await self._connect().chat.completions.with_raw_response.create(
                model=self.endpoint.model,
                messages=list(messages),  # type: ignore[arg-type]
                **self.parameters,
            )
        except openai.APIStatusError as error:
            raise self._classify(error, attempt) from None
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            raise _TransientError(f"{self._place()}: no answer ({type(cause).__name__})") from None
        return self._read(response.content, response.request_id, attempt, time.perf_counter() - began)

    def _classify(self, error: Any, attempt: int) -> Exception:
        """What to do about an error status, decided by its code first."""
        status, code = error.status_code, error.code
        said = f"{self._place()}: HTTP {status} {' '.join(self._without_key(error.message).split())}"
        if code in ITEM_CODES:
            return WorkFailedError(
                self.cause, "content", said, attempts=attempt, raw=self._without_key(error.response.text)
            )
        if code in NO_CREDIT_CODES:
            return WorkFailedError("service", "fatal", f"{said}; the account has no credit left", attempts=attempt)
        if status in TRANSIENT_STATUS or status >= 500:
            return _TransientError(said)
        return WorkFailedError(
            "service", "fatal", f"{said}; check the model, its base URL and its key", attempts=attempt
        )

    def _read(self, body: bytes, request_id: str | None, attempt: int, seconds: float) -> Reply:
        try:
            raw = self._without_key(body.decode())
            completion = msgspec.convert(json.loads(raw), _Completion)  # json, because it takes lone surrogates
            choice = completion.choices[0]
        except (ValueError, RecursionError, msgspec.ValidationError, IndexError) as error:
            why = "no choices" if isinstance(error, IndexError) else f"{type(error).__name__}: {error}"
            raise _TransientError(f"{self._place()}: the body isn't a chat completion ({why})") from None
        try:
            usage = msgspec.convert(completion.usage or {}, _Usage)
        except msgspec.ValidationError:  # counts that can't be read are unknown; the text is as good
            usage = _Usage()
        call = Call(
            model_returned=completion.model,
            base_url=self.endpoint.base_url,
            sent=json.dumps({"model": self.endpoint.model, **self.parameters}, sort_keys=True),
            finish_reason=choice.finish_reason,
            request_id=request_id,
            attempts=attempt,
            seconds=seconds,
            workers=self.workers,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None,
            completion_tokens=usage.completion_tokens,
            reasoning_tokens=(
                usage.completion_tokens_details.reasoning_tokens if usage.completion_tokens_details else None
            ),
        )
        text = choice.message.content or ""
        if choice.finish_reason == "content_filter" or choice.message.refusal:
            raise self._unusable("the provider signalled a refusal or a filter", attempt, raw)
        if not text.strip():
            length = " after a length stop" if choice.finish_reason == "length" else ""
            raise self._unusable(f"the reply is empty{length}", attempt, raw)
        return Reply(text=text, cut=choice.finish_reason == "length", call=call, raw=raw)

    def _unusable(self, why: str, attempt: int, raw: str) -> WorkFailedError:
        return WorkFailedError(self.cause, "content", f"{self._place()}: {why}", attempts=attempt, raw=raw)

    def _place(self) -> str:
        return f"model {self.endpoint.model}" + (f" at {self.endpoint.base_url}" if self.endpoint.base_url else "")

    def _without_key(self, text: str) -> str:
        return text.replace(self.endpoint.api_key, "***")

    def _connect(self) -> AsyncOpenAI:
        if self._client is None:
            from openai import AsyncOpenAI

            self._client = AsyncOpenAI(
                api_key=self.endpoint.api_key,
                base_url=self.endpoint.base_url or PROVIDER,
                max_retries=0,
                timeout=TIMEOUT,
            )
        return self._client

    async def close(self) -> None:
        """Close connections; needed once per event loop."""
        if self._client is not None:
            await self._client.close()
            self._client = None
