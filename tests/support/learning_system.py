"""Systems whose states are in a service without ids of its own; one of them learns when it is asked.

A test names them with `monkeypatch.setitem(systems.BUILT_IN, "learning", "support.learning_system")`.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from memtrials.benchmarks.timeline import Session
from memtrials.systems.base import Capability, Meter, Plugin, Retrieved

HELD: dict[str, list[str]] = defaultdict(list)
"""What the service holds, by namespace: what it was told and, after `asked: `, what it was asked."""


class Learning:
    """It remembers every question and shows all of them."""

    capabilities: frozenset[Capability] = frozenset(("restart", "learns_on_read"))
    embedded = False

    def __init__(self) -> None:
        self.meter = Meter()

    def create(self, namespace: str, user: str) -> None:
        HELD[namespace] = []

    def add(self, namespace: str, session: Session) -> None:
        HELD[namespace] += [turn.content for turn in session.turns]

    def fork(self, source: str, namespace: str) -> None:
        raise NotImplementedError

    def freeze(self, namespace: str) -> None:
        """Nothing to do."""

    def discard(self, namespace: str) -> None:
        HELD.pop(namespace, None)

    def exists(self, namespace: str) -> bool:
        return namespace in HELD

    def query(self, namespace: str, text: str, date: str | None, settings: Mapping[str, Any]) -> Retrieved:
        HELD[namespace].append(f"asked: {text}")
        return Retrieved("\n".join(held for held in HELD[namespace] if held.startswith("asked: ")))

    def close(self) -> None:
        """Nothing is open."""


PLUGINS = {"learning": Plugin("learning", "1", lambda state, around: Learning(), capabilities=Learning.capabilities)}
