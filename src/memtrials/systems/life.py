"""What a system is told of a scripted life, event by event, and what it says it did.

A system whose memories can be corrected, forgotten or linked has these methods beside those of `System`. It is asked
between events, while its state isn't frozen yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from memtrials.benchmarks.life import Life, LifeEvent

Operation = Literal[
    "remember",
    "prepare",
    "validate_plan",
    "commit",
    "remember_episode",
    "remember_observation",
    "correct",
    "forget",
    "link",
    "restart",
]
"""What is counted."""


@dataclass(frozen=True)
class Done:
    """One operation that was carried out. id and outcome: the system's own name for it and its own report, plain data;
    None where it gives none."""

    operation: Operation
    id: str | None = None
    outcome: dict[str, Any] | None = None


@runtime_checkable
class Lifecycle(Protocol):
    """What a system has beside the methods of `System` whose memories live on between events.

    Operations raise WorkFailedError; none is half done then. An item it gives to a query says in `memory` what it is.
    """

    def begin_life(self, namespace: str, user: str, life: Life) -> Sequence[Done]:
        """Begin an empty state, in place of `create`, and take in who is known."""

    def live(self, namespace: str, event: LifeEvent) -> Sequence[Done]:
        """Take in the next event."""

    def restart(self, namespace: str) -> tuple[int, Sequence[Done]]:
        """Close whatever is open and take the state up again from what is stored; how many identities it then knows."""
