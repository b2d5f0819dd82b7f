"""Calls to any OpenAI-compatible endpoint: bounded, honest about failures, with a record of what was really sent."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from memtrials.errors import Cause, WorkFailedError
from memtrials.llm.limits import ClosedError, Gate
from memtrials.llm.money import BudgetError, Purse, cost, longest_reply, price, window
from memtrials.llm.troubles import Trouble, classify, error_in, pauses
from memtrials.records import Call

if TYPE_CHECKING:
    from openai import AsyncOpenAI

ATTEMPTS = 6
"""Tries of one item that end in something that may pass: with pauses of 1, 2, 4, 8 and 16 seconds they bridge a
restart."""
CONTENT_ATTEMPTS = 3
"""Tries of one item that end in unusable content: models are random, but not often twice."""
TIMEOUT = 600.0
"""Seconds for one reply: a reasoning model may think for minutes."""
CONNECTING = 10.0
"""Seconds for a connection: a server that is there accepts at once."""
MAX_SECONDS = 3 * TIMEOUT
"""Seconds of tries and pauses after which none begins; waiting for a place isn't counted."""
SECRET = 12
"""Characters from which a key is a secret and is masked in what is kept. A shorter one ("none", "EMPTY") is for a
server that asks for none, and masking such a word would change what the model said."""
LIMITS = frozenset(("max_tokens", "max_completion_tokens"))
"""The two names of the length limit of a reply."""
FRAMING = 200
"""Tokens that a prompt may have beside its texts: roles, and the form of the reply."""
LOOPBACK = frozenset(("127.0.0.1", "localhost", "::1"))
"""This machine: no proxy that HTTP_PROXY names leads there, and the client would ask it all the same [tried]."""
PROVIDER = "https://api.openai.com/v1"
MOST_TOKENS = 2**63 - 1
"""The largest count that a ledger can hold."""

_THOUGHTS = re.compile(r"(?:\s*<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z))+\s*", re.DOTALL)
_UNOPENED = re.compile(r"\A(?:(?!<think).)*?</think(?:ing)?>\s*", re.DOTALL)
"""Reasoning without its first tag, which some chat templates put into the prompt."""

T = TypeVar("T")


@dataclass(frozen=True)
class Endpoint:
    """Where a model is. base_url None is the provider's default; the key never leaves this object but in a request."""

    model: str
    api_key: str = field(repr=False)
    base_url: str | None = None


@dataclass(frozen=True)
class Reply:
    """What a model said, without its reasoning. cut: it stopped at the length limit. raw: the response as JSON text."""

    text: str
    cut: bool
    call: Call
    raw: str


class UnusableError(Exception):
    """What a caller raises when a reply holds nothing it can use: the item is tried again, then it has failed."""


class _Part(msgspec.Struct):
    type: str | None = None
    text: str | None = None


class _Message(msgspec.Struct):
    content: str | list[str | _Part] | None = None
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


class _TroubleError(Exception):
    """A try that didn't end well. raw: what came back; call: its usage, where a reply was paid for."""

    def __init__(self, trouble: Trouble, raw: str | None = None, call: Call | None = None) -> None:
        super().__init__(trouble.message)
        self.trouble = trouble
        self.raw = raw
        self.call = call


@dataclass
class _Tries:
    """What one item has taken so far. queued: seconds of waiting for a place. pause: seconds before the next try. last:
    what the last try ended in; paid: the last reply of no use, and the tokens of all such replies."""

    began: float
    made: int = 0
    unusable: int = 0
    adapted: int = 0
    queued: float = 0.0
    pause: float = 0.0
    last: _TroubleError | None = None
    paid: Call | None = None
    wasted_prompt: int = 0
    wasted_completion: int = 0

    def postpone(self, seconds: float) -> float:
        """Leave a pause to the gate, which can be woken; whoever asks has nothing left to wait for."""
        self.pause = seconds
        return 0.0

    def waste(self, call: Call) -> None:
        """A reply was paid for and is of no use."""
        self.paid = call
        self.wasted_prompt = min(self.wasted_prompt + (call.prompt_tokens or 0), MOST_TOKENS)
        self.wasted_completion = min(self.wasted_completion + (call.completion_tokens or 0), MOST_TOKENS)

    def with_waste(self, call: Call) -> Call:
        """A usable reply's call with what was wasted before it."""
        return msgspec.structs.replace(
            call, wasted_prompt_tokens=self.wasted_prompt, wasted_completion_tokens=self.wasted_completion
        )

    @property
    def call(self) -> Call | None:
        """Where nothing usable came: the last reply that was paid for, with what was wasted before it."""
        last = self.paid
        return last and msgspec.structs.replace(
            last,
            wasted_prompt_tokens=self.wasted_prompt - (last.prompt_tokens or 0),
            wasted_completion_tokens=self.wasted_completion - (last.completion_tokens or 0),
        )

    def over(self, error: Exception) -> bool:
        """Whether to try no more after this error."""
        assert isinstance(error, _TroubleError)
        self.last, trouble = error, error.trouble
        if trouble.class_ == "content":
            self.unusable += 1
            return trouble.too_long or self.unusable >= CONTENT_ATTEMPTS
        self.adapted += trouble.adapted
        busy = time.monotonic() - self.began - self.queued + (trouble.wait or 0.0)
        enough = self.made >= ATTEMPTS + self.unusable + self.adapted
        return trouble.class_ == "fatal" or enough or busy > MAX_SECONDS


class ChatModel:
    """One model with fixed parameters. cause: who is to blame for unusable content (a judge's is the service's).

    Parameters that the endpoint rejects are left out, or take their other name, for the rest of the run; a base URL
    without a path that leads nowhere takes `/v1`. reasoning_limit: the length limit for the rest of the run once a
    reply has been empty because reasoning took all of the one asked for (None: that is a failure).
    """

    def __init__(
        self,
        endpoint: Endpoint,
        parameters: Mapping[str, Any],
        cause: Cause,
        *,
        gate: Gate | None = None,
        purse: Purse | None = None,
        pause: float = 1.0,
        reasoning_limit: int | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.base_url = endpoint.base_url or PROVIDER
        self.parameters = dict(parameters)
        self.cause: Cause = cause
        self.gate = gate or Gate(1)
        self.purse = purse or Purse()
        self.pause = pause
        self.reasoning_limit = reasoning_limit
        self._rejected: set[str] = set()
        self._passed = False
        self._client: AsyncOpenAI | None = None

    async def complete(self, messages: Sequence[Mapping[str, str]], read: Callable[[Reply], T]) -> T:
        """What `read` makes of one reply with text.

        read may raise UnusableError. Raises WorkFailedError: fatal at once, transient after ATTEMPTS or MAX_SECONDS,
        content after CONTENT_ATTEMPTS (a prompt that is too long: at once, since it won't get shorter; one that is over
        the window in `models.toml` isn't sent). Raises BudgetError or ClosedError when nothing was sent because nothing
        more may be; ClosedError also between two tries, unless one was paid for or a cap counts them.
        """
        import backoff

        tokens = self._size(messages)
        self._check_window(tokens)
        tries = _Tries(time.monotonic())

        async def one_try() -> T:
            await self.gate.pause(tries.pause)
            arrived = time.monotonic()
            async with self.gate.slot(tokens):
                dearest = self._dearest(tokens)
                ticket = await self.purse.reserve(dearest)
                sent_at = time.monotonic()
                paid = 0.0
                try:
                    self.gate.check_open()
                    tries.made += 1
                    tries.queued += sent_at - arrived
                    reply = await self._send(messages, tries)
                    paid = self._price_of(reply.call, dearest)
                except _TroubleError as error:
                    if error.call is not None:
                        tries.waste(error.call)
                        paid = self._price_of(error.call, dearest)
                    self._tell_gate(error.trouble, sent_at)
                    raise
                finally:
                    self.purse.settle(ticket, paid)
                self.gate.succeeded()
            try:
                return read(replace(reply, call=tries.with_waste(reply.call)))
            except UnusableError as error:
                tries.waste(reply.call)
                raise _TroubleError(Trouble("content", str(error)), reply.raw, reply.call) from None

        retrying = backoff.on_exception(
            lambda: pauses(self.pause), _TroubleError, jitter=tries.postpone, giveup=tries.over, logger=None
        )
        try:
            return await retrying(one_try)()
        except _TroubleError as error:
            raise self._failed(error, tries) from None
        except (BudgetError, ClosedError) as stop:
            counts = tries.paid is not None or self.purse.max_requests is not None
            if tries.last is None or (isinstance(stop, ClosedError) and not counts):
                raise
            trouble = replace(tries.last.trouble, class_="transient", message=f"{stop} after {tries.last}")
            raise self._failed(_TroubleError(trouble, tries.last.raw), tries) from None

    def request(self, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        """The body that a call would send. Raises WorkFailedError for a prompt that is over the window."""
        self._check_window(self._size(messages))
        return {"model": self.endpoint.model, "messages": list(messages), **self.parameters}

    def take(self, status: int, raw: str, call: Call, read: Callable[[Reply], T]) -> T:
        """What `read` makes of a reply that came otherwise than by a call, with the HTTP status it came with.

        Raises WorkFailedError for what a call would have tried again or given up.
        """
        raw, tries = self._without_key(raw), _Tries(time.monotonic(), made=1)
        try:
            completion = _completion_in(raw) if status < 400 else None
            if completion is None:
                trouble = classify(status, error_in(raw), {}, self.parameters, passed=self._passed)
                raise _TroubleError(replace(trouble, message=f"HTTP {status}: {trouble.message}"), raw)
            self._passed = True
            reply = _reply_in(completion, raw, call)
            try:
                return read(reply)
            except UnusableError as error:
                raise _TroubleError(Trouble("content", str(error)), raw, reply.call) from None
        except _TroubleError as error:
            if error.call is not None:
                tries.waste(error.call)
            raise self._failed(error, tries) from None

    def _failed(self, error: _TroubleError, tries: _Tries) -> WorkFailedError:
        trouble = error.trouble
        hint = "; check the model, its base URL and its key" if trouble.class_ == "fatal" else ""
        over = "over window: " if trouble.too_long else ""
        return WorkFailedError(
            self.cause if trouble.class_ == "content" else "service",
            trouble.class_,
            self._without_key(f"{self._place()}: {over}{trouble.message}{hint}"),
            attempts=tries.made,
            raw=None if error.raw is None else self._without_key(error.raw),
            call=tries.call,
        )

    def _size(self, messages: Sequence[Mapping[str, str]]) -> int:
        """Tokens of a request, where a limit, a price or a window makes them matter; else 0."""
        if not (self.gate.counts_tokens or self.purse.max_cost is not None or window(self.endpoint.model)):
            return 0
        from memtrials.tokens import count_tokens

        return sum(count_tokens(message["content"]) for message in messages)

    def _check_window(self, tokens: int) -> None:
        """Raise WorkFailedError for a prompt that the model's window can't hold beside the longest reply."""
        size = window(self.endpoint.model)
        reply = longest_reply(self.parameters)
        if size is not None and tokens + reply > size:
            message = f"over window: {tokens:,} tokens of prompt and {reply:,} of reply, the window is {size:,}"
            raise WorkFailedError(self.cause, "content", f"{self._place()}: {message}", attempts=0)

    def _dearest(self, tokens: int) -> float:
        """The most a request can cost, where a cap makes it matter."""
        known = price(self.endpoint.model) if self.purse.max_cost is not None else None
        return known.of(tokens + FRAMING, longest_reply(self.parameters)) if known else 0.0

    def _price_of(self, call: Call, dearest: float) -> float:
        """What a reply cost, where a cap makes it matter; the most it can where the endpoint doesn't say."""
        known = cost(call, self.endpoint.model) if self.purse.max_cost is not None else 0.0
        return dearest if known is None else known

    def _tell_gate(self, trouble: Trouble, sent_at: float) -> None:
        if trouble.class_ == "fatal":
            self.gate.close()
        elif trouble.overload:
            self.gate.overloaded(sent_at, trouble.wait)
        elif trouble.class_ == "content":
            self.gate.succeeded()

    async def _send(self, messages: Sequence[Mapping[str, str]], tries: _Tries) -> Reply:
        import httpx2
        import openai

        sent, base_url = dict(self.parameters), self.base_url
        beside = self.gate.sending
        began = time.monotonic()
        try:
            response = await self._connect().post(  # `create` would check every field of the body, for 0.6 ms
                "/chat/completions",
                cast_to=httpx2.Response,
                body={"model": self.endpoint.model, "messages": list(messages), **sent},
            )
        except openai.APIStatusError as error:
            raw = error.response.content.decode("utf-8", "replace")
            trouble = self._trouble(error.status_code, raw, error.response.headers, sent, base_url)
            told = f"HTTP {error.status_code}: {trouble.message}"
            raise _TroubleError(replace(trouble, message=told), raw) from None
        except openai.APIConnectionError as error:
            raise _TroubleError(Trouble("transient", f"no answer ({_root(error)})")) from None
        raw = self._without_key(response.content.decode("utf-8", "replace"))
        call = Call(
            base_url=base_url if self.endpoint.base_url else None,
            sent=json.dumps({"model": self.endpoint.model, **sent}, sort_keys=True),
            request_id=response.headers.get("x-request-id"),
            attempts=tries.made,
            seconds=time.monotonic() - began,
            queued_seconds=tries.queued,
            workers=beside,
        )
        completion = _completion_in(raw)
        if completion is None:
            raise _TroubleError(self._trouble(200, raw, response.headers, sent, base_url), raw)
        self._passed = True
        try:
            return _reply_in(completion, raw, call)
        except _TroubleError as error:
            if error.call is None or not self._out_of_reasoning(error.call, sent):
                raise
            trouble = replace(error.trouble, class_="transient", wait=0.0, adapted=True)
            raise _TroubleError(trouble, error.raw, error.call) from None

    def _out_of_reasoning(self, call: Call, sent: Mapping[str, Any]) -> bool:
        """Whether a reply is empty because reasoning took the whole length, and there is more from now on."""
        if self.reasoning_limit is None or call.finish_reason != "length" or not call.reasoning_tokens:
            return False
        for name in LIMITS & self.parameters.keys():
            self.parameters[name] = max(self.parameters[name], self.reasoning_limit)
        return self.parameters != sent

    def _trouble(
        self, status: int, raw: str, headers: Mapping[str, str], sent: Mapping[str, Any], base_url: str
    ) -> Trouble:
        """The trouble behind a reply that is no completion; one that goes away when the request is changed, changes
        it."""
        trouble = classify(status, error_in(raw), headers, sent, passed=self._passed)
        if trouble.parameter and self._adapt(trouble.parameter, sent):
            return replace(trouble, class_="transient", wait=0.0, adapted=True)
        if trouble.no_path and not self._passed and not urlsplit(base_url).path:
            self.base_url = f"{base_url}/v1"
            self._connect().base_url = self.base_url
            return replace(trouble, class_="transient", wait=0.0, adapted=True)
        return trouble

    def _adapt(self, parameter: str, sent: Mapping[str, Any]) -> bool:
        """Do without a parameter from now on; whether that changes the request (another call may have done so)."""
        if parameter in self.parameters:
            other = {"max_completion_tokens": "max_tokens", "max_tokens": "max_completion_tokens"}.get(parameter)
            if other in self._rejected:
                return False  # a limit by no name is no limit, which nobody asked for
            self._rejected.add(parameter)
            value = self.parameters.pop(parameter)
            if other is not None:
                self.parameters[other] = value
        return self.parameters != sent

    def _place(self) -> str:
        return f"model {self.endpoint.model}" + (f" at {self.endpoint.base_url}" if self.endpoint.base_url else "")

    def _without_key(self, text: str) -> str:
        key = self.endpoint.api_key
        return text.replace(key, "***") if len(key) >= SECRET else text

    def _connect(self) -> AsyncOpenAI:
        """The client, with connections by aiohttp: with 64 in flight a call takes it less than half of the processor
        time of the SDK's default, whose pool looks at every connection for every request."""
        if self._client is None:
            from openai import AsyncOpenAI, DefaultAioHttpClient, Timeout

            timeout = Timeout(TIMEOUT, connect=CONNECTING)
            here = urlsplit(self.base_url).hostname in LOOPBACK
            self._client = AsyncOpenAI(
                api_key=self.endpoint.api_key,
                base_url=self.base_url,
                max_retries=0,
                timeout=timeout,
                http_client=DefaultAioHttpClient(timeout=timeout, trust_env=not here),
            )
        return self._client

    async def close(self) -> None:
        """Close connections; needed once per event loop."""
        if self._client is not None:
            await self._client.close()
            self._client = None


def _root(error: BaseException) -> str:
    """What an error began with; what wraps it takes a connection that was closed for one that was never made."""
    while error.__cause__ is not None:
        error = error.__cause__
    return type(error).__name__


def _completion_in(raw: str) -> _Completion | None:
    """The chat completion in a body, or None when it holds an error. Raises _TroubleError when it is neither."""
    try:
        body = json.loads(raw)  # json, because it takes lone surrogates
    except (ValueError, RecursionError) as error:
        raise _TroubleError(Trouble("transient", f"the body isn't JSON ({type(error).__name__})"), raw) from None
    if isinstance(body, dict) and body.get("error") and not body.get("choices"):
        return None
    try:
        completion = msgspec.convert(body, _Completion)
    except msgspec.ValidationError as error:
        raise _TroubleError(Trouble("transient", f"the body isn't a chat completion ({error})"), raw) from None
    if not completion.choices:
        raise _TroubleError(Trouble("transient", "the body isn't a chat completion (no choices)"), raw)
    return completion


def _reply_in(completion: _Completion, raw: str, call: Call) -> Reply:
    """The reply in a completion. Raises _TroubleError when it holds no text or the provider signals a refusal."""
    choice = completion.choices[0]
    call = _with_usage(call, completion, choice.finish_reason)
    if choice.finish_reason == "error":  # how routers tell that the model behind them broke off
        raise _TroubleError(Trouble("transient", "the reply broke off"), raw, call)
    if choice.finish_reason == "content_filter" or choice.message.refusal:
        raise _TroubleError(Trouble("content", "the provider signalled a refusal or a filter"), raw, call)
    text = without_thoughts(_spoken(choice.message))
    if not text.strip():
        length = " after a length stop" if choice.finish_reason == "length" else ""
        raise _TroubleError(Trouble("content", f"the reply is empty{length}"), raw, call)
    return Reply(text=text, cut=choice.finish_reason == "length", call=call, raw=raw)


def _spoken(message: _Message) -> str:
    """The text of a message; parts of a list that aren't text (reasoning, images) are left out."""
    if not isinstance(message.content, list):
        return message.content or ""
    texts = [_Part("text", part) if isinstance(part, str) else part for part in message.content]
    return "".join(part.text or "" for part in texts if part.type in (None, "text", "output_text"))


def without_thoughts(text: str) -> str:
    """A reply without the reasoning before it; as it came where there is none. Cut off in its reasoning it is empty."""
    begins = text.lstrip().startswith("<think")
    return (_THOUGHTS if begins else _UNOPENED).sub("", text, count=1) if begins or "</think" in text else text


def _with_usage(call: Call, completion: _Completion, finish_reason: str | None) -> Call:
    """The call with what the response says of it; counts that can't be read or can't be are unknown, the text is as
    good."""
    try:
        usage = msgspec.convert(completion.usage or {}, _Usage)
    except msgspec.ValidationError:
        usage = _Usage()
    prompt, completed = usage.prompt_tokens_details or _Details(), usage.completion_tokens_details or _Details()
    sent = _count(usage.prompt_tokens)
    return msgspec.structs.replace(
        call,
        model_returned=completion.model,
        finish_reason=finish_reason,
        prompt_tokens=sent,
        cached_tokens=_count(prompt.cached_tokens, MOST_TOKENS if sent is None else sent),
        completion_tokens=_count(usage.completion_tokens),
        reasoning_tokens=_count(completed.reasoning_tokens),
    )


def _count(tokens: int | None, most: int = MOST_TOKENS) -> int | None:
    """A reported number of tokens; None for what can't be one."""
    return tokens if tokens is not None and 0 <= tokens <= most else None
