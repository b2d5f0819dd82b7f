"""Work that blocks, in threads, so that the event loop commits results and hears Ctrl-C."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from memtrials.llm.limits import ClosedError

P = ParamSpec("P")
T = TypeVar("T")


class Turns:
    """Systems are called synchronously and may wait for a service for minutes. at_once: how many calls are made at one
    time. stopped: set when nothing more is to begin; it wakes who waits between two tries.
    """

    def __init__(self, at_once: int = 1) -> None:
        self._places = asyncio.Semaphore(at_once)
        self.stopped = threading.Event()

    def close(self) -> None:
        """Begin nothing more."""
        self.stopped.set()

    def check_open(self) -> None:
        """Raise ClosedError when nothing more is to begin."""
        if self.stopped.is_set():
            raise ClosedError("stopped")

    async def take(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the call returns, when its turn has come. Raises ClosedError when nothing more is to begin."""
        async with self._places:
            self.check_open()
            return await asyncio.to_thread(call, *args, **kwargs)
