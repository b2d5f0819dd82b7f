"""Whether a system can be told of a scripted life, and the names under which it is told."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec

from memtrials.benchmarks.life import Correct, Forget, Known, Life, LifeEvent, Remember
from memtrials.records import Item, Memory
from memtrials.systems.base import Plugin


def obstacle(plugin: Plugin, needs: Sequence[str]) -> str | None:
    """Why a system can't be told of a life that needs this, in a few words; None where it can.

    One that is told event by event must be able to do what happens. Any other is told of what is remembered, in
    sessions, and asked by means of copies, so it must be able to fork.
    """
    if missing := [need for need in needs if not plugin.lives or need not in plugin.capabilities]:
        return f"it can't {' or '.join(missing)}"
    if not plugin.lives and "fork" not in plugin.capabilities:
        return "it can't be asked in the middle: it neither takes events nor forks"
    return None


class Names:
    """Random names for a life and all that is in it, and the way back. A name that a system makes up has none.

    An observation and a derived memory keep the end of the name that their event implies for them.
    """

    def __init__(self) -> None:
        self._opaque: dict[str, str] = {}
        self._own: dict[str, str] = {}

    def life(self, life: Life) -> Life:
        """What a life begins with, under other names."""
        entities = tuple(Known(self._name(e.external_id), e.entity_type, e.label) for e in life.entities)
        return Life(secrets.token_hex(8), secrets.token_hex(8), entities, life.vectors)

    def event(self, event: LifeEvent) -> LifeEvent:
        """An event under other names."""
        other = msgspec.structs.replace(event, event_id=secrets.token_hex(8))
        if isinstance(other, Remember):
            thread = other.thread and msgspec.structs.replace(
                other.thread, thread_external_id=self._name(other.thread.thread_external_id)
            )
            entities = tuple(map(self._name, other.entity_external_ids))
            renamed = msgspec.structs.replace(
                other, external_id=self._name(other.external_id), entity_external_ids=entities, thread=thread
            )
            self._pair(other.observation_id, renamed.observation_id)
            self._pair(other.derived_id, renamed.derived_id)
            return renamed
        if isinstance(other, Correct):
            return msgspec.structs.replace(
                other,
                target_external_id=self._name(other.target_external_id),
                replacement_external_id=self._name(other.replacement_external_id),
            )
        if isinstance(other, Forget):
            return msgspec.structs.replace(other, target_external_ids=tuple(map(self._name, other.target_external_ids)))
        return msgspec.structs.replace(
            other,
            external_id=self._name(other.external_id),
            from_external_id=self._name(other.from_external_id),
            to_external_id=self._name(other.to_external_id),
        )

    def items(self, items: Sequence[Item] | None) -> tuple[Item, ...] | None:
        """Items by their author's names."""
        return None if items is None else tuple(map(self._back, items))

    def _back(self, item: Item) -> Item:
        memory = item.memory
        if memory is None:
            return item
        own = msgspec.structs.replace(
            memory,
            external_id=self._own.get(memory.external_id or ""),
            episode_external_id=self._own.get(memory.episode_external_id or ""),
        )
        return msgspec.structs.replace(item, memory=own)

    def _name(self, own: str) -> str:
        if own not in self._opaque:
            self._pair(own, secrets.token_hex(8))
        return self._opaque[own]

    def _pair(self, own: str, opaque: str) -> None:
        self._opaque[own], self._own[opaque] = opaque, own


def as_episode(item: Item, episodes: Sequence[str | None]) -> Item:
    """An item of a system that was told in sessions, each one episode. episodes: their ids by the author, in order."""
    if not item.turns:
        return item
    session = int(item.turns[0].partition(".")[0])
    return msgspec.structs.replace(item, memory=Memory("episode", item.turns[0], episodes[session]))
