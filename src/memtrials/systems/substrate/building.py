"""A state of the substrate that isn't frozen yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from memtrials.systems.substrate.memory import Substrate
from memtrials.systems.substrate.store import Store


@dataclass
class Building:
    """A state that isn't frozen yet. sessions: how many it was given.

    Of a life: script, its name; raw_refs of the episodes and observations that were written in stages.
    """

    memory: Substrate
    namespace: str
    file: Path
    sessions: int = 0
    script: str | None = None
    raw_refs: dict[str, str] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        """What it is kept in."""
        return self.memory.store(self.namespace)
