"""The two ways work ends badly: something the user must fix, and a piece of work that failed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, Literal

Cause = Literal["system", "reader", "service"]
FailureClass = Literal["content", "transient", "fatal"]


class UserError(Exception):
    """Something the user can fix. Its text is one line: what is wrong, where, what to do. Exit code 2.

    details: further lines, such as every problem of a data file, that are shown before it.
    """

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.details = tuple(details)


class WorkFailedError(Exception):
    """One piece of work failed after its bounded attempts; it becomes a `failure` record, never a score.

    cause: who failed (MEASURING §3). class_: `content` (this item), `transient` (may pass), `fatal` (every item
    will meet it, so the stage stops). raw: what the service really sent, kept for the record. call: the
    `Call` of a reply that was paid for. usage: what a system's own calls took.
    """

    def __init__(
        self,
        cause: Cause,
        class_: FailureClass,
        message: str,
        *,
        attempts: int = 1,
        raw: str | None = None,
        call: Any = None,
        usage: dict[str, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.cause: Cause = cause
        self.class_: FailureClass = class_
        self.message = message
        self.attempts = attempts
        self.raw = raw
        self.call = call
        self.usage = usage


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """An error for a name that isn't there, with the nearest ones that are."""
    names = sorted(set(known))
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names[:12]) or 'none'}"
    return UserError(f"unknown {what} {name!r}; {hint}")


def not_installed(what: str, extra: str) -> UserError:
    """An error for something of an extra that isn't there, with the commands that install it."""
    return UserError(
        f"{what} isn't installed: uv run --extra {extra} memtrials … in a checkout, "
        f"pip install 'memtrials[{extra}]' elsewhere"
    )
