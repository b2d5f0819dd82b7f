"""Substrates with one fault each, so that a suite can be asked whether it tells them apart.

`PLUGINS` has one for each of `FAULTS`, and `sound`, which has none. A test registers each of them with
`monkeypatch.setitem(systems.BUILT_IN, name, "support.faulty")`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import msgspec

from memtrials.benchmarks.life import Correct, Forget, LifeEvent, Remember
from memtrials.systems.base import Plugin, Retrieved, Surroundings
from memtrials.systems.life import Done
from memtrials.systems.substrate import lives, plugin, retrieval
from memtrials.systems.substrate.plugin import EmbeddedSubstrate
from memtrials.systems.substrate.store import Store, Stored, Way


class Searching(EmbeddedSubstrate):
    """Searches in another way."""

    search: type[retrieval.Search]

    def query(self, namespace: str, text: str, date: str | None, settings: Mapping[str, Any]) -> Retrieved:
        with patch.object(retrieval, "Search", self.search):
            return super().query(namespace, text, date, settings)


class Lenient(retrieval.Search):
    """Says what should be left out for having been superseded, and doesn't leave it out."""

    def _omitted(self, stored: Stored) -> str | None:
        reason = super()._omitted(stored)
        return None if reason == "superseded" else reason


class ServesSuperseded(Searching):
    """Knows what superseded what, keeps the vectors of both, and serves both."""

    search = Lenient

    def live(self, namespace: str, event: LifeEvent) -> Sequence[Done]:
        if not isinstance(event, Correct):
            return super().live(namespace, event)
        with patch.object(Store, "unindex", lambda store, id_: False):
            return super().live(namespace, event)


class OnlyAdds(EmbeddedSubstrate):
    """Takes a correction for one thing more that was said."""

    def live(self, namespace: str, event: LifeEvent) -> Sequence[Done]:
        if not isinstance(event, Correct):
            return super().live(namespace, event)
        state = self._building[namespace]
        replacement = lives.correction(state, event).replacement
        return [lives.done("correct", state.memory.ingest_enrichment(state.namespace, [replacement]))]


class ForgetsToForget(EmbeddedSubstrate):
    """Says that it forgot."""

    def live(self, namespace: str, event: LifeEvent) -> Sequence[Done]:
        return [Done("forget")] if isinstance(event, Forget) else super().live(namespace, event)


class LosesLinks(EmbeddedSubstrate):
    """Comes back from a restart without its links."""

    def restart(self, namespace: str) -> tuple[int, Sequence[Done]]:
        told = super().restart(namespace)
        store = self._building[namespace].store
        with store.transaction():
            store._db.execute("DELETE FROM edges WHERE link IS NOT NULL")
            store._db.execute("DELETE FROM links")
        return told


class LosesNames(EmbeddedSubstrate):
    """Comes back from a restart with its memories, and without the names that others know them by."""

    nameless: frozenset[str] = frozenset()

    def restart(self, namespace: str) -> tuple[int, Sequence[Done]]:
        self.nameless |= {namespace}
        return super().restart(namespace)

    def query(self, namespace: str, text: str, date: str | None, settings: Mapping[str, Any]) -> Retrieved:
        found = super().query(namespace, text, date, settings)
        if namespace not in self.nameless:
            return found
        assert found.items
        items = [
            msgspec.structs.replace(
                item, memory=msgspec.structs.replace(item.memory, external_id=None, episode_external_id=None)
            )
            for item in found.items
            if item.memory
        ]
        return replace(found, items=tuple(items))


class IgnoresThreads(EmbeddedSubstrate):
    """Keeps what is said, and not what it belongs to."""

    def live(self, namespace: str, event: LifeEvent) -> Sequence[Done]:
        told = msgspec.structs.replace(event, thread=None) if isinstance(event, Remember) else event
        return super().live(namespace, told)


class Unlimited(retrieval.Search):
    """Takes all that a hub leads to."""

    def _cap(self, hub: Stored, via: Way, score: float) -> int:
        super()._cap(hub, via, score)
        return 1000


class IgnoresFanout(Searching):
    """Has no limits on hubs."""

    search = Unlimited


SOUND = "sound"
FAULTS: dict[str, type[EmbeddedSubstrate]] = {
    "serves-superseded": ServesSuperseded,
    "only-adds": OnlyAdds,
    "forgets-to-forget": ForgetsToForget,
    "loses-links": LosesLinks,
    "loses-names": LosesNames,
    "ignores-threads": IgnoresThreads,
    "ignores-fanout": IgnoresFanout,
}


def _plugin(name: str, kind: type[EmbeddedSubstrate]) -> Plugin:
    def opened(state: Mapping[str, Any], around: Surroundings) -> EmbeddedSubstrate:
        return kind(around.stores, around.cache, None, declared=True)

    return replace(plugin.PLUGINS["substrate"], name=name, open=opened)


PLUGINS = {name: _plugin(name, FAULTS.get(name, EmbeddedSubstrate)) for name in (SOUND, *FAULTS)}
