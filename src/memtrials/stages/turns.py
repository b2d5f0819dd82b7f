"""Work that blocks, in threads, so that the event loop commits results and hears Ctrl-C."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from memtrials.errors import WorkFailedError
from memtrials.llm.limits import ClosedError

P = ParamSpec("P")
T = TypeVar("T")


class Turns:
    """Systems are called synchronously and may wait for a service for minutes. at_once: how many calls are made at one
    time. stopped: set when nothing more is to begin; it wakes who waits between two tries.
    """

    def __init__(self, at_once: int = 1) -> None:
        self._threads = ThreadPoolExecutor(at_once, "turns")
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
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, partial(self._in_turn, partial(call, *args, **kwargs))
        )

    def _in_turn(self, call: Callable[[], T]) -> T:
        """Call, and begin nothing more after what ends a stage: the next in turn doesn't wait until the loop hears."""
        self.check_open()
        try:
            return call()
        except WorkFailedError as failure:
            if failure.class_ == "fatal":
                self.close()
            raise
        except BaseException:
            self.close()
            raise

    async def end(self) -> None:
        """Begin nothing more, and wait for what is on its way."""
        self.close()
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
