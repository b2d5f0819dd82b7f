"""Control systems: what no memory, all of it, or the right part of it gives. They are never members of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memtrials.benchmarks.timeline import Session
from memtrials.records import Gold, Item
from memtrials.settings import Settings
from memtrials.systems.base import Capability, Meter, Plugin, Retrieved, Surroundings
from memtrials.systems.embedded import (
    CHOICES,
    FETCH,
    OPTIONAL,
    Embedded,
    Searchable,
    embedding_ready,
    embedding_settings,
    embeds,
    open_embedded,
)
from memtrials.systems.embedding import BUNDLED
from memtrials.systems.rendering import RENDERING, Window, render, render_turn
from memtrials.systems.store import Chunk, Stores

CAPABILITIES: frozenset[Capability] = frozenset(
    ("fork", "restart", "verbatim", "deterministic", "event_time", "multi_speaker")
)


class Forgetful:
    """`none`: takes in everything, keeps nothing."""

    capabilities: frozenset[Capability] = frozenset(("restart", "verbatim", "deterministic"))
    embedded = True

    def __init__(self) -> None:
        self.meter = Meter()

    def create(self, namespace: str, user: str) -> None:
        """Nothing to begin."""

    def add(self, namespace: str, session: Session) -> None:
        """Nothing is kept."""

    def fork(self, source: str, namespace: str) -> None:
        """Nothing to copy."""

    def freeze(self, namespace: str) -> None:
        """Nothing to make durable."""

    def discard(self, namespace: str) -> None:
        """Nothing to remove."""

    def exists(self, namespace: str) -> bool:
        """An empty state is everywhere."""
        return True

    def query(self, namespace: str, text: str, date: str | None, settings: Mapping[str, Any]) -> Retrieved:
        """An empty context."""
        return Retrieved("")

    def close(self) -> None:
        """Nothing is open."""


class Whole(Embedded):
    """`full-context` and `always-visible`: turns in order, chosen without the query. only_user: the user's alone.
    window: how many tokens of them, where not all are shown."""

    capabilities = CAPABILITIES

    def __init__(self, stores: Stores, only_user: bool, window: Window | None = None) -> None:
        super().__init__("bm25", "turn", None, stores)
        self.only_user = only_user
        self.window = window

    def query(self, namespace: str, text: str, date: str | None, settings: Mapping[str, Any]) -> Retrieved:
        """Every turn, or every turn of the user, as far as the window holds them."""
        turns = [turn for turn in self.state(namespace)[0] if turn.role == "user" or not self.only_user]
        if self.window is None:
            pieces = tuple(render_turn(turn) for turn in turns)
            return Retrieved("\n".join(pieces), pieces=pieces)
        context, fit = self.window.show(turns)
        return Retrieved(context, fit=fit)


class InContext(Embedded):
    """`in-context`: the evidence and nothing else."""

    def query(self, namespace: str, text: str, date: str | None, settings: Mapping[str, Any]) -> Retrieved:
        """Without gold there is nothing to show."""
        return Retrieved("", ())

    def query_with_gold(
        self, namespace: str, text: str, date: str | None, settings: Mapping[str, Any], gold: Gold
    ) -> Retrieved:
        """The evidence turns, in order, as one item."""
        turns, _ = self.state(namespace)
        shown = tuple(turn for turn in turns if turn.id in gold.evidence)
        if not shown:
            return Retrieved("", ())
        chunk = Chunk(shown, None)
        return Retrieved(render(shown), (Item(rank=1, text=chunk.text, turns=tuple(t.id for t in shown)),))


class NaiveRag(Embedded):
    """`naive-rag`: single-shot retrieval over the background's turns plus the evidence as one last chunk.

    It has no memory of its own to test: the evidence stands outside the order of sessions. Source: InMind's
    single-shot control.
    """

    def query_with_gold(
        self, namespace: str, text: str, date: str | None, settings: Mapping[str, Any], gold: Gold
    ) -> Retrieved:
        """The k best of the other turns and the evidence chunk."""
        turns, state = self.state(namespace)
        target = tuple(turn for turn in turns if turn.id in gold.evidence)
        others = [chunk for chunk in state.chunks if chunk.turns[0].id not in gold.evidence]
        vector = None
        if self.embeddings is not None:
            vector = self.embeddings.vectors([Chunk(target, None).text], "document")[0]
        return self.retrieve(Searchable([*others, Chunk(target, vector)]), text, settings)


def _whole(only_user: bool) -> Any:
    return lambda state, around: Whole(Stores(around.stores), only_user, _window(state))


def _window(state: Mapping[str, Any]) -> Window | None:
    return Window.of(state["window"]) if "window" in state else None


def _checked_window(state: Mapping[str, Any], settings: Settings) -> Mapping[str, Any]:
    """Nothing is added to the settings. Raises UserError for a window that is none."""
    _window(state)
    return {}


def _in_context(state: Mapping[str, Any], surroundings: Surroundings) -> InContext:
    return InContext("bm25", "turn", None, Stores(surroundings.stores))


def _naive_rag(state: Mapping[str, Any], surroundings: Surroundings) -> NaiveRag:
    base = open_embedded(state, surroundings)
    return NaiveRag(base.retriever, "turn", base.embeddings, base.stores)


WHOLE_FETCH = {"rendering": RENDERING}
WINDOW = {"window": ""}
"""The optional setting `keep-newest N` or `keep-oldest N`: part of the system's id, since a history that was cut is
another system than the whole one (MEASURING §8)."""
RENDERINGS = {"rendering": (RENDERING,)}

PLUGINS = {
    "none": Plugin(
        "none",
        "1",
        lambda state, around: Forgetful(),
        capabilities=Forgetful.capabilities,
        control=True,
        silent=True,
    ),
    "full-context": Plugin(
        "full-context",
        "1",
        _whole(only_user=False),
        optional=WINDOW,
        fetch=WHOLE_FETCH,
        resolve=_checked_window,
        choices=RENDERINGS,
        capabilities=CAPABILITIES,
        control=True,
    ),
    "always-visible": Plugin(
        "always-visible",
        "1",
        _whole(only_user=True),
        optional=WINDOW,
        fetch=WHOLE_FETCH,
        resolve=_checked_window,
        choices=RENDERINGS,
        capabilities=CAPABILITIES,
        control=True,
    ),
    "in-context": Plugin(
        "in-context",
        "1",
        _in_context,
        fetch=WHOLE_FETCH,
        choices=RENDERINGS,
        capabilities=Embedded.capabilities,
        control=True,
        opens_gold=True,
    ),
    "naive-rag": Plugin(
        "naive-rag",
        "1",
        _naive_rag,
        state={"retriever": "vector", "embedding": BUNDLED},
        optional=OPTIONAL,
        fetch=FETCH,
        choices=CHOICES,
        resolve=embedding_settings,
        ready=embedding_ready,
        embeds=embeds,
        capabilities=Embedded.capabilities,
        control=True,
        opens_gold=True,
    ),
}
