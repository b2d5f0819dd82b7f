"""The embedded memory systems: turns in one SQLite file per state, searched exactly by BM25, vectors or both."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from threading import Event
from typing import TYPE_CHECKING, Any

from memtrials.benchmarks.timeline import Session
from memtrials.embeddings.base import Embedder
from memtrials.errors import UserError, WorkFailedError
from memtrials.llm.money import Purse
from memtrials.records import Item
from memtrials.settings import Settings
from memtrials.systems.base import Capability, Meter, Plugin, Retrieved, Surroundings
from memtrials.systems.embedding import (
    BUNDLED,
    BatchEmbedder,
    CachedEmbedder,
    WordLlama,
    embedding_model,
    endpoint_model,
)
from memtrials.systems.offline import offline
from memtrials.systems.ranking import Bm25, Ranking, cosine, fuse, token_counts
from memtrials.systems.rendering import RENDERING, placed, render
from memtrials.systems.store import Chunk, StoredTurn, Stores

if TYPE_CHECKING:
    from numpy.typing import NDArray

CAPABILITIES: frozenset[Capability] = frozenset(
    ("fork", "restart", "evidence_ids", "verbatim", "deterministic", "event_time", "multi_speaker")
)
STATES_IN_MEMORY = 2


def chunk_bounds(session: Session, chunk: str) -> list[tuple[int, int]]:
    """First and last turn of each chunk. `turn`: each turn; `pair`: a user's turn with the assistant's after it."""
    turns = session.turns
    if chunk == "turn":
        return [(n, n) for n in range(len(turns))]
    bounds: list[tuple[int, int]] = []
    for n, turn in enumerate(turns):
        if n and turn.role == "assistant" and turns[n - 1].role == "user":
            bounds[-1] = (n - 1, n)
        else:
            bounds.append((n, n))
    return bounds


def chunk_texts(session: Session, chunk: str) -> list[str]:
    """The text of each chunk, as it is embedded."""
    turns = session.turns
    return ["\n".join(t.content for t in turns[first : last + 1]) for first, last in chunk_bounds(session, chunk)]


def embeds(state: Mapping[str, Any], session: Session, number: int) -> list[list[str]]:
    """The texts that a state's system has embedded of a session, all at once."""
    return [chunk_texts(session, state.get("chunk", "turn"))]


@dataclass
class Searchable:
    """Chunks ready to be ranked; index and vectors are made when the retriever first needs them."""

    chunks: Sequence[Chunk]
    index: Bm25 | None = None
    matrix: NDArray[Any] | None = None
    positions: NDArray[Any] | None = None

    def lexical(self, query: str) -> Ranking:
        """The BM25 ranking."""
        if self.index is None:
            self.index = Bm25([token_counts(chunk.text) for chunk in self.chunks])
        return self.index.rank(query)

    def dense(self, query: bytes | None) -> Ranking:
        """The cosine ranking."""
        import numpy as np

        if self.matrix is None or self.positions is None:
            held = [n for n, chunk in enumerate(self.chunks) if chunk.vector is not None]
            joined = b"".join(chunk.vector for chunk in self.chunks if chunk.vector is not None)
            self.positions = np.array(held, np.intp)
            self.matrix = np.frombuffer(joined, np.float32).reshape(len(held), -1 if joined else 0)
        vector = None if query is None else np.frombuffer(query, np.float32)
        if vector is not None and len(self.positions) and len(vector) != self.matrix.shape[1]:
            raise WorkFailedError(
                "service",
                "fatal",
                f"the state's vectors have {self.matrix.shape[1]} dimensions and the query's {len(vector)}: the "
                "embedding endpoint doesn't give what it gave at replay",
            )
        return cosine(vector, self.matrix, self.positions)


class Embedded:
    """An embedded system. retriever: `bm25`, `vector` or `hybrid`; chunk: `turn` or `pair`."""

    capabilities = CAPABILITIES
    embedded = True

    def __init__(self, retriever: str, chunk: str, embeddings: CachedEmbedder | None, stores: Stores) -> None:
        self.retriever = retriever
        self.chunk = chunk
        self.embeddings = embeddings
        self.stores = stores
        self.meter = embeddings.meter if embeddings else Meter()
        self._states: OrderedDict[str, tuple[list[StoredTurn], Searchable]] = OrderedDict()

    def create(self, namespace: str, user: str) -> None:
        """Begin an empty state."""
        self.stores.create(namespace)

    def add(self, namespace: str, session: Session) -> None:
        """Take in the next session, with a vector for each chunk where the retriever needs one."""
        bounds = chunk_bounds(session, self.chunk)
        vectors: list[bytes | None] = [None] * len(bounds)
        if self.embeddings is not None:
            vectors = self.embeddings.vectors(chunk_texts(session, self.chunk), "document")
        self.stores.add(namespace, session, [(*b, v) for b, v in zip(bounds, vectors, strict=True)])

    def fork(self, source: str, namespace: str) -> None:
        """Begin a state as a copy of one being built."""
        self.stores.fork(source, namespace)

    def freeze(self, namespace: str) -> None:
        """Make the state durable."""
        self.stores.freeze(namespace)

    def discard(self, namespace: str) -> None:
        """Remove a state."""
        self._states.pop(namespace, None)
        self.stores.discard(namespace)

    def exists(self, namespace: str) -> bool:
        """Whether the state is here."""
        return self.stores.path(namespace).exists()

    def query(self, namespace: str, text: str, date: str | None, settings: Mapping[str, Any]) -> Retrieved:
        """The k best chunks. The date isn't used: nothing here decays."""
        return self.retrieve(self.state(namespace)[1], text, settings)

    def state(self, namespace: str) -> tuple[list[StoredTurn], Searchable]:
        """A frozen state, read once for the queries that follow each other on it."""
        if namespace not in self._states:
            turns, chunks = self.stores.read(namespace)
            self._states[namespace] = (turns, Searchable(chunks))
            while len(self._states) > STATES_IN_MEMORY:
                self._states.popitem(last=False)
        return self._states[namespace]

    def retrieve(self, state: Searchable, text: str, settings: Mapping[str, Any]) -> Retrieved:
        """Rank the chunks for a text and render the first k."""
        best = self._rank(state, text).first(settings["k"])
        items = tuple(
            Item(
                rank=rank,
                text=state.chunks[n].text,
                score=score,
                turns=tuple(turn.id for turn in state.chunks[n].turns),
                time=state.chunks[n].turns[0].time,
            )
            for rank, (n, score) in enumerate(best, 1)
        )
        pieces = tuple(render(state.chunks[n].turns) for n, _ in best)
        places = () if settings["order"] == "rank" else tuple(n for n, _ in best)
        return Retrieved("\n".join(placed(pieces, places)), items, pieces=pieces, places=places)

    def _rank(self, state: Searchable, text: str) -> Ranking:
        if self.retriever == "bm25":
            return state.lexical(text)
        assert self.embeddings is not None
        dense = state.dense(self.embeddings.vectors([text], "query")[0])
        return dense if self.retriever == "vector" else fuse(state.lexical(text), dense)

    def close(self) -> None:
        """Release stores and cache."""
        self._states.clear()
        self.stores.close()
        if self.embeddings is not None:
            self.embeddings.close()


OPTIONAL = {"dimensions": 256, "revision": ""}
"""Settings of a model behind an endpoint, with their types. dimensions: asked for and checked. revision: any text that
tells two models of one name apart; an endpoint doesn't say what it runs."""


def embedding_settings(state: Mapping[str, Any], settings: Settings) -> Mapping[str, Any]:
    """The embedding model and revision behind a state; nothing for BM25, which has no vectors. Raises UserError."""
    if state.get("retriever") == "bm25":
        for key in OPTIONAL.keys() & state:
            raise UserError(f"{key} is for embeddings, and the retriever bm25 makes none; remove it")
        if state["embedding"] is not None:
            embedding_model(state, settings)
        return {"embedding": None}
    name = embedding_model(state, settings)
    model = embedder({**state, "embedding": name}, settings)
    return {"embedding": name, "embedding_model": model.model, "embedding_revision": model.revision}


def embedding_ready(state: Mapping[str, Any], settings: Settings) -> None:
    """Raise UserError when the embedding model is behind an endpoint and has no usable key or base URL."""
    if state["embedding"] is not None:
        model = embedder(state, settings)
        if isinstance(model, BatchEmbedder):
            model.ready()


def embedder(
    state: Mapping[str, Any], settings: Settings, purse: Purse | None = None, stopped: Event | None = None
) -> Embedder | BatchEmbedder:
    """The embedding model of resolved settings. purse and stopped: see `Surroundings`."""
    name = endpoint_model(state)
    if name is None:
        local: str = state["embedding"]
        return WordLlama() if local == BUNDLED else offline(local, settings, state.get("embedding_revision"))
    from memtrials.systems.endpoint import EndpointEmbedder

    dimensions, revision = state.get("dimensions", 0), state.get("revision", "")
    return EndpointEmbedder(name, dimensions, revision, settings, purse, stopped)


def open_embedded(state: Mapping[str, Any], surroundings: Surroundings) -> Embedded:
    """The system of resolved settings."""
    meter = Meter()
    embeddings = None
    import_module("numpy")  # before anything is timed
    if state["retriever"] != "bm25":
        model = embedder(state, surroundings.settings, surroundings.purse, surroundings.stopped)
        embeddings = CachedEmbedder(model, surroundings.cache, meter)
    return Embedded(state["retriever"], state.get("chunk", "turn"), embeddings, Stores(surroundings.stores))


RETRIEVERS = ("bm25", "vector", "hybrid")
FETCH = {"k": 10, "order": "rank", "rendering": RENDERING}
CHOICES = {
    "retriever": RETRIEVERS,
    "chunk": ("turn", "pair"),
    "order": ("rank", "time"),
    "rendering": (RENDERING,),
}

PLUGINS = {
    "embedded": Plugin(
        name="embedded",
        version="1",
        open=open_embedded,
        state={"retriever": "hybrid", "chunk": "turn", "embedding": BUNDLED},
        optional=OPTIONAL,
        fetch=FETCH,
        choices=CHOICES,
        resolve=embedding_settings,
        ready=embedding_ready,
        embeds=embeds,
        capabilities=CAPABILITIES,
    )
}
