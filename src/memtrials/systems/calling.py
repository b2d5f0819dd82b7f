"""Requests to a service over HTTP: one gate for all, a bounded number of tries, the time of the one that succeeded.

Systems are called synchronously, perhaps by several threads at once; `Loop` lets them wait together in one event loop.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from memtrials.errors import WorkFailedError
from memtrials.llm.engine import CONNECTING, LOOPBACK, SECRET
from memtrials.llm.limits import Gate
from memtrials.llm.troubles import Trouble, pauses
from memtrials.systems.base import RefusedError

if TYPE_CHECKING:
    from httpx2 import AsyncClient

T = TypeVar("T")

Judge = Callable[[int, Any, Mapping[str, str]], Trouble | None]
"""What is wrong with a reply (status, JSON body or None, headers), or None. May raise BudgetError."""


@dataclass(frozen=True)
class Place:
    """Where a service is and how it is asked. headers hold the key. attempts: of one request; timeout: seconds."""

    name: str
    base_url: str
    headers: Mapping[str, str] = field(repr=False)
    secret: str = field(repr=False)
    timeout: float
    attempts: int


@dataclass(frozen=True)
class Answered:
    """A reply that is good. seconds: of its own attempt; waited: of failed attempts, pauses and the gate."""

    body: Any
    seconds: float
    waited: float
    attempts: int


class _TroubleError(Exception):
    """A try that didn't end well. sure: the service surely did nothing."""

    def __init__(self, trouble: Trouble, *, sure: bool, raw: str | None = None) -> None:
        super().__init__(trouble.message)
        self.trouble = trouble
        self.sure = sure
        self.raw = raw


class Caller:
    """One service."""

    pause = 1.0

    def __init__(self, place: Place) -> None:
        self.place = place
        self.gate = Gate(None)
        self._client: AsyncClient | None = None

    async def call(
        self,
        method: str,
        path: str,
        judge: Judge,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        writes: bool = False,
    ) -> Answered:
        """The first good reply. writes: an attempt that may have been heard is not repeated.

        Raises WorkFailedError, for a write that surely did nothing RefusedError. Raises ClosedError when nothing more
        is to be sent, as after a fatal failure, and what judge raises.
        """
        import backoff

        began, tries, pause = time.monotonic(), 0, 0.0

        def postpone(seconds: float) -> float:
            nonlocal pause
            pause = seconds
            return 0.0

        async def one_try() -> Answered:
            nonlocal tries
            await self.gate.pause(pause)  # which closing wakes
            async with self.gate.slot(0):
                tries += 1
                sent_at = time.monotonic()
                try:
                    reply = await self._send(method, path, judge, body, params, headers)
                except _TroubleError as error:
                    if error.trouble.overload:
                        self.gate.overloaded(sent_at, error.trouble.wait)
                    else:
                        self.gate.succeeded()
                    raise
                ended = time.monotonic()
                self.gate.succeeded()
                return Answered(reply, ended - sent_at, sent_at - began, tries)

        def over(error: Exception) -> bool:
            assert isinstance(error, _TroubleError)
            heard = writes and not error.sure
            return error.trouble.class_ != "transient" or heard or tries >= self.place.attempts

        retrying = backoff.on_exception(
            lambda: pauses(self.pause), _TroubleError, jitter=postpone, giveup=over, logger=None
        )
        try:
            return await retrying(one_try)()
        except _TroubleError as error:
            if error.trouble.class_ == "fatal":
                self.gate.close()  # every other request would meet it, too
            kind = RefusedError if error.sure else WorkFailedError
            raise kind(
                "service",
                error.trouble.class_,
                self._without_key(f"{self.place.name}, {urlsplit(path).path}: {error}"),
                attempts=tries,
                raw=None if error.raw is None else self._without_key(error.raw),
            ) from None

    async def _send(
        self,
        method: str,
        path: str,
        judge: Judge,
        body: Mapping[str, Any] | None,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
    ) -> Any:
        import httpx2

        try:
            reply = await self._connect().request(method, path, json=body, params=params, headers=headers)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise _TroubleError(Trouble("transient", f"no connection ({type(error).__name__})"), sure=True) from None
        except httpx2.TransportError as error:
            broken = Trouble("transient", f"no answer ({type(error).__name__})")
            raise _TroubleError(broken, sure=False) from None
        raw = reply.content.decode("utf-8", "replace")
        try:
            found = json.loads(raw, parse_constant=lambda name: None)  # NaN and Infinity are no JSON, and no numbers
        except (ValueError, RecursionError):
            found = None
        trouble = judge(reply.status_code, found, reply.headers)
        if trouble is not None:
            sure = reply.status_code == 503 or (reply.status_code < 500 and found is not None)
            raise _TroubleError(trouble, sure=sure, raw=raw)
        return found

    def _without_key(self, text: str) -> str:
        secret = self.place.secret
        return text.replace(secret, "***") if len(secret) >= SECRET else text

    def _connect(self) -> AsyncClient:
        if self._client is None:
            import httpx2

            self._client = httpx2.AsyncClient(
                base_url=self.place.base_url,
                headers=self.place.headers,
                timeout=httpx2.Timeout(self.place.timeout, connect=min(CONNECTING, self.place.timeout)),
                limits=httpx2.Limits(max_connections=None),
                trust_env=urlsplit(self.place.base_url).hostname not in LOOPBACK,
            )
        return self._client

    async def close(self) -> None:
        """Close connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What it returns or raises, for the thread that calls."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def tell(self, call: Callable[[], None]) -> None:
        """Have something called in the loop."""
        self._loop.call_soon_threadsafe(call)

    def close(self) -> None:
        """End the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
