"""Calls to any OpenAI-compatible endpoint: bounded, honest about failures, with a record of what was really sent."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from memtrials.errors import Cause, WorkFailedError
from memtrials.records import Call

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion

ATTEMPTS = 5
MAX_SECONDS = 300.0
TIMEOUT = 600.0
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
            response = await self._connect().chat.completions.create(
                model=self.endpoint.model,
                messages=list(messages),  # type: ignore[arg-type]
                **self.parameters,
            )
        except openai.APIStatusError as error:
            raise self._classify(error, attempt) from None
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            raise _TransientError(f"{self._place()}: no answer ({type(cause).__name__})") from None
        except openai.APIError as error:
            raise _TransientError(f"{self._place()}: unusable answer ({error.message})") from None
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise _TransientError(f"{self._place()}: the body isn't JSON") from None
        return self._read(response, attempt, time.perf_counter() - began)

    def _classify(self, error: Any, attempt: int) -> Exception:
        """What to do about an error status, decided by its code first."""
        status, code = error.status_code, error.code
        said = f"{self._place()}: HTTP {status} {self._without_key(error.message)}"
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

    def _read(self, response: ChatCompletion, attempt: int, seconds: float) -> Reply:
        raw = response.model_dump_json(exclude_unset=True)
        if not response.choices:
            raise _TransientError(f"{self._place()}: a reply without choices")
        choice, usage = response.choices[0], response.usage
        prompt_details = usage.prompt_tokens_details if usage else None
        completion_details = usage.completion_tokens_details if usage else None
        call = Call(
            model_returned=response.model,
            base_url=self.endpoint.base_url,
            sent=json.dumps({"model": self.endpoint.model, **self.parameters}, sort_keys=True),
            finish_reason=choice.finish_reason,
            request_id=response._request_id,
            attempts=attempt,
            seconds=seconds,
            workers=self.workers,
            prompt_tokens=usage.prompt_tokens if usage else None,
            cached_tokens=prompt_details.cached_tokens if prompt_details else None,
            completion_tokens=usage.completion_tokens if usage else None,
            reasoning_tokens=completion_details.reasoning_tokens if completion_details else None,
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
                api_key=self.endpoint.api_key, base_url=self.endpoint.base_url, max_retries=0, timeout=TIMEOUT
            )
        return self._client

    async def close(self) -> None:
        """Close connections; needed once per event loop."""
        if self._client is not None:
            await self._client.close()
            self._client = None
