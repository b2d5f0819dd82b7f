"""What a person sees while a stage works: a bar on a terminal, nothing elsewhere; messages on standard error."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self


def say(message: str) -> None:
    """One line for the person, on standard error."""
    print(message, file=sys.stderr, flush=True)


class Progress:
    """A bar with rate, time left and failures; silent when quiet or when standard error isn't a terminal."""

    def __init__(self, stage: str, total: int, *, quiet: bool) -> None:
        self._bar: Any = None
        self._task: Any = None
        if not quiet and total and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[failed]} failed"),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(stage, total=total, failed=0, rate="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, *, done: int, failed: int) -> None:
        """Show how many are done and how many failed."""
        if self._bar is not None:
            speed = self._bar.tasks[0].speed
            rate = f"{speed:.1f}/s" if speed else ""
            self._bar.update(self._task, completed=done + failed, failed=failed, rate=rate)
