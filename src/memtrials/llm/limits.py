"""How much is sent at once, and how fast: one gate for each endpoint and model.

The first call goes alone: a wrong key or a rejected parameter costs one request, not one per worker. After that either
a fixed number may be in flight, or as many as the endpoint takes: the number doubles while every call succeeds, halves
when the endpoint says it is overloaded, then grows by one for each full round (the rule that keeps networks stable).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

FIRST, MOST = 8, 256
"""In flight at the start of automatic growth, and at most: 256 hide any latency and one client can hold them."""


LONGEST_HOLD = 60.0
"""Seconds for which an overloaded endpoint may hold back all calls. Whoever asks for more (a quota of the day) is left
alone only by the call that it told so."""


class ClosedError(Exception):
    """Nothing more is sent; work that is left stays pending."""


class Gate:
    """Lets calls through. workers None: as many as the endpoint takes.

    rpm, tpm: requests and tokens of prompt per minute. in_flight: places taken; sending: of these, calls that are past
    the pace.
    """

    def __init__(self, workers: int | None, rpm: int | None = None, tpm: int | None = None) -> None:
        self.adaptive = workers is None
        self.limit = float(FIRST if workers is None else workers)
        self.in_flight = 0
        self.sending = 0
        self.counts_tokens = tpm is not None
        self._requests, self._tokens = _Pace(rpm), _Pace(tpm)
        self._turn = asyncio.Lock()
        self._threshold = float(MOST)
        self._proved = False
        self._cut_at = 0.0
        self._held_until = 0.0
        self._closed = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def _room(self) -> int:
        return (int(self.limit) if self._proved else 1) - self.in_flight

    @asynccontextmanager
    async def slot(self, tokens: int) -> AsyncIterator[None]:
        """Hold one of the places. tokens: the request's size, where it matters. Raises ClosedError."""
        await self._place()
        try:
            await self._pace(tokens)
            self.sending += 1
            try:
                yield
            finally:
                self.sending -= 1
        finally:
            self.in_flight -= 1
            self._wake()

    async def _place(self) -> None:
        self.check_open()
        while self._room <= 0:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self._wake()  # the turn may have been given to this one already
                raise
            self.check_open()
        self.in_flight += 1

    async def _pace(self, tokens: int) -> None:
        async with self._turn:  # one after the other, so that a hold is followed by no burst
            self.check_open()
            while (delay := max(self._requests.ready, self._tokens.ready, self._held_until) - time.monotonic()) > 0:
                await self.pause(delay)
            self._requests.take(1)
            self._tokens.take(tokens)

    async def pause(self, seconds: float) -> None:
        """Let so much time pass. Raises ClosedError at once when nothing more is to be sent."""
        if seconds > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), seconds)
        self.check_open()

    def succeeded(self) -> None:
        """A call came back with anything but an overload."""
        self._proved = True
        if self.adaptive:
            step = 1.0 if self.limit < self._threshold else 1.0 / self.limit
            self.limit = min(float(MOST), self.limit + step)
        self._wake()

    def overloaded(self, sent_at: float, wait: float | None = None) -> None:
        """The endpoint said it has too much; several replies to one round count once.

        wait: seconds that it asks for; they hold for every call.
        """
        self._proved = True
        if wait is not None and wait <= LONGEST_HOLD:
            self.hold(wait)
        if self.adaptive and sent_at > self._cut_at:
            self.limit = self._threshold = max(1.0, self.limit / 2)
            self._cut_at = time.monotonic()
        self._wake()

    def hold(self, seconds: float) -> None:
        """Let no call through for so long."""
        self._held_until = max(self._held_until, time.monotonic() + seconds)

    def close(self) -> None:
        """Send nothing more: whoever waits, for a place or for time to pass, gets a ClosedError at once; what is in
        flight goes on."""
        self._closed.set()
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)
        self._waiting.clear()

    def check_open(self) -> None:
        """Raise ClosedError once it is closed."""
        if self._closed.is_set():
            raise ClosedError("the stage has stopped")

    def _wake(self) -> None:
        """Let in as many of those who wait as there is room for."""
        room = self._room
        while room > 0 and self._waiting:
            turn = self._waiting.pop(0)
            if not turn.done():
                turn.set_result(None)
                room -= 1


class _Pace:
    """Evenly spaced: never more than `per_minute` in any minute, no burst at the start of one. None: no limit.

    ready: the moment from which something may go again.
    """

    def __init__(self, per_minute: int | None) -> None:
        self._seconds_each = 60.0 / per_minute if per_minute else 0.0
        self.ready = 0.0

    def take(self, amount: int) -> None:
        """So much goes now."""
        self.ready = time.monotonic() + amount * self._seconds_each
