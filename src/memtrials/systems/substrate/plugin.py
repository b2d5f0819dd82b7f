"""The substrate as a memory system: sessions become episodes, their turns observations; a scripted life goes through
the substrate's own operations, event by event.

Inside a state stands one namespace: that of a life's script, so that all its identities follow from the script, and for
timelines one name for all, so that equal timelines give equal states under whatever name a state has.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import msgspec

from memtrials.benchmarks.enrichment import Graph
from memtrials.benchmarks.life import DECLARED, Life, LifeEvent
from memtrials.benchmarks.timeline import Session
from memtrials.embeddings.frozen import FILE
from memtrials.errors import UserError
from memtrials.records import Item, file_sha256
from memtrials.records import Memory as Remembered
from memtrials.settings import Settings
from memtrials.systems.base import Capability, Meter, Plugin, Retrieved, Surroundings
from memtrials.systems.embedded import OPTIONAL, embedder, embedding_ready, embedding_settings
from memtrials.systems.embedding import BUNDLED, CachedEmbedder
from memtrials.systems.life import Done
from memtrials.systems.store import StateFiles
from memtrials.systems.substrate import lives, timelines
from memtrials.systems.substrate.building import Building
from memtrials.systems.substrate.memory import Substrate
from memtrials.systems.substrate.objects import Episode, Observation, Ref, refused
from memtrials.systems.substrate.retrieval import BUDGETS, FANOUT, Found, Mode, Policy, rendered, retrieve
from memtrials.systems.substrate.store import Store

CAPABILITIES: frozenset[Capability] = frozenset(
    ("fork", "correct", "forget", "link", "enrich", "restart", "evidence_ids", "verbatim", "deterministic")
)
TIMELINE = ""
"""The namespace inside a state that is fed sessions. No script's is empty."""
WITHOUT = "none"
"""The setting by which there are no vectors, which bm25_only can do without."""
STATES_IN_MEMORY = 2


class NoEmbeddings:
    """What a state without vectors is written with."""

    def vectors(self, texts: Sequence[str], role: str) -> list[bytes | None]:
        """None for each."""
        return [None] * len(texts)


class EmbeddedSubstrate:
    """The system. embeddings: None where vectors come with each life, or there are none (`declared` says which)."""

    capabilities = CAPABILITIES
    embedded = True

    def __init__(self, folder: Path, cache: Path, embeddings: CachedEmbedder | None, declared: bool = False) -> None:
        self.files = StateFiles(folder)
        self.cache = cache
        self.embeddings = embeddings
        self.declared = declared
        self.meter = embeddings.meter if embeddings else Meter()
        self._building: dict[str, Building] = {}
        self._frozen: OrderedDict[str, Store] = OrderedDict()

    # --- a timeline ---

    def create(self, namespace: str, user: str) -> None:
        """Begin an empty state."""
        if self.declared:
            raise UserError(_only_for_lives())
        self._begin(namespace, TIMELINE, self.embeddings)

    def _begin(self, namespace: str, inner: str, embeddings: CachedEmbedder | None) -> Building:
        state = Building(Substrate(self.files.folder, embeddings or NoEmbeddings()), inner, self.files.part(namespace))
        state.memory.open_namespace(inner, state.file)
        self._building[namespace] = state
        return state

    def add(self, namespace: str, session: Session) -> None:
        """Take in the next session. Raises WorkFailedError for a time in no known form."""
        timelines.add(self._building[namespace], session)

    def enrich(self, namespace: str, graph: Graph) -> None:
        """Take in what was precomputed of the sessions."""
        timelines.enrich(self._building[namespace], graph)

    def fork(self, source: str, namespace: str) -> None:
        """Begin a state as a copy of one being built."""
        trunk = self._building[source]
        self.files.copy(source, namespace)
        branch = Building(
            Substrate(self.files.folder, trunk.memory.embeddings),
            trunk.namespace,
            self.files.part(namespace),
            trunk.sessions,
            trunk.script,
            dict(trunk.raw_refs),
        )
        branch.memory.reattach_namespace(branch.namespace, branch.file)
        self._building[namespace] = branch

    def freeze(self, namespace: str) -> None:
        """Make the state durable."""
        self._detach(namespace)
        self.files.settle(namespace)

    def discard(self, namespace: str) -> None:
        """Remove a state."""
        self._detach(namespace)
        if frozen := self._frozen.pop(namespace, None):
            frozen.close()
        self.files.remove(namespace)

    def _detach(self, namespace: str) -> None:
        if state := self._building.pop(namespace, None):
            state.memory.close()
            if isinstance(state.memory.embeddings, CachedEmbedder) and state.memory.embeddings is not self.embeddings:
                state.memory.embeddings.close()

    def exists(self, namespace: str) -> bool:
        """Whether the frozen state is here."""
        return self.files.path(namespace).exists()

    def close(self) -> None:
        """Release states and cache; what isn't frozen stays behind as `.part`."""
        for namespace in list(self._building):
            self._detach(namespace)
        while self._frozen:
            self._frozen.popitem()[1].close()
        if self.embeddings is not None:
            self.embeddings.close()

    # --- a life ---

    def begin_life(self, namespace: str, user: str, life: Life) -> Sequence[Done]:
        """Begin an empty state, and take in who is known."""
        embeddings = self.embeddings
        if self.declared:
            if life.vectors is None:
                raise UserError(f"{life.name} declares no vectors; name another embedding than {DECLARED!r}")
            embeddings = CachedEmbedder(life.vectors, self.cache, self.meter)
        return lives.begin(self._begin(namespace, life.namespace, embeddings), life)

    def live(self, namespace: str, event: LifeEvent) -> Sequence[Done]:
        """Take in the next event, by the operations that it stands for."""
        return lives.live(self._building[namespace], event)

    def restart(self, namespace: str) -> tuple[int, Sequence[Done]]:
        """Close the state and take it up from its file alone."""
        state = self._building[namespace]
        state.memory.close()
        state.memory = Substrate(self.files.folder, state.memory.embeddings)
        return state.memory.reattach_namespace(state.namespace, state.file), [Done("restart")]

    # --- asking ---

    def query(self, namespace: str, text: str, date: str | None, settings: Mapping[str, Any]) -> Retrieved:
        """What the sections hold, in their order. Of a life the trace is kept, too."""
        policy = policy_of(settings)
        state = self._building.get(namespace)
        store = state.store if state else self._read(namespace)
        lived = store.namespace != TIMELINE
        if lived and policy.mode == "bm25_only":
            raise refused(_no_lives(policy.mode))
        embeddings = state.memory.embeddings if state else self.embeddings

        def embed(query: str) -> bytes | None:
            if not isinstance(embeddings, CachedEmbedder):
                raise refused(f"{policy.mode} needs a vector of what is asked, and there is none")
            return embeddings.vectors([query], "query")[0]

        found = retrieve(store, text, date, msgspec.structs.replace(policy, trace=policy.trace or lived), embed)
        pieces = tuple(rendered(item, policy.mode) for item in found.items)
        items = tuple(_item(store, item, lived) for item in found.items)
        raw = msgspec.json.encode(found.outcomes).decode() if found.outcomes else None
        return Retrieved("\n".join(pieces), items, raw, pieces=pieces)

    def _read(self, namespace: str) -> Store:
        """A frozen state, opened once for the queries that follow each other on it."""
        if namespace not in self._frozen:
            self._frozen[namespace] = Store.read(self.files.path(namespace))
            while len(self._frozen) > STATES_IN_MEMORY:
                self._frozen.popitem(last=False)[1].close()
        return self._frozen[namespace]


def _item(store: Store, found: Found, lived: bool) -> Item:
    """An item as every system has it. Of a timeline an observation is its turn; an episode repeats none."""
    stored = store.object(Ref(found.kind, found.external_id))
    draft = stored.draft if stored else None
    time = draft.started_at if isinstance(draft, Episode) else None
    turns: tuple[str, ...] | None = None
    if not lived:
        turns = (found.external_id,) if found.kind == "observation" else ()
    return Item(
        rank=found.rank,
        text=found.text,
        score=found.score,
        turns=turns,
        time=draft.observed_at if isinstance(draft, Observation) else time,
        memory=Remembered(
            kind=found.kind,
            internal_id=found.internal_id,
            external_id=found.external_id,
            episode_external_id=found.episode_external_id,
            rationale=found.rationale,
        ),
    )


# --- settings ---------------------------------------------------------------------------------------------------


def policy_of(fetch: Mapping[str, Any]) -> Policy:
    """The policy of a `[fetch]` table, whose settings agree with each other. Raises UserError."""
    fanout = {
        f"{hub}.{memory}": (limits["min"], limits["max"])
        for hub, memories in fetch["fanout"].items()
        for memory, limits in memories.items()
    }
    given = {name: value for name, value in fetch.items() if name in Policy.__struct_fields__}
    try:
        return msgspec.convert({**given, "fanout": fanout}, Policy).checked()
    except msgspec.ValidationError as error:
        raise UserError(str(error)) from None


def _suits(state: Mapping[str, Any], fetch: Mapping[str, Any], life: bool | None) -> None:
    mode, embedding = policy_of(fetch).mode, state["embedding"]
    if embedding == WITHOUT and mode != "bm25_only":
        raise UserError(f'embedding = "{WITHOUT}" makes no vectors, which {mode} needs; take mode = "bm25_only"')
    if mode == "bm25_only" and (life or embedding == DECLARED):
        raise UserError(_no_lives(mode))
    if life is False and embedding == DECLARED:
        raise UserError(_only_for_lives())


def _no_lives(mode: str) -> str:
    return f"{mode} knows neither corrections nor links, so it isn't asked about scripted lives; take another mode"


def _only_for_lives() -> str:
    return (
        f'embedding = "{DECLARED}" takes vectors from a scripted life, and a timeline has none; name another embedding'
    )


def _resolve(state: Mapping[str, Any], settings: Settings) -> Mapping[str, Any]:
    if state["embedding"] not in (DECLARED, WITHOUT):
        return embedding_settings(state, settings)
    for key in OPTIONAL.keys() & state:
        raise UserError(f'{key} is for a model behind an endpoint; embedding = "{state["embedding"]}" has none')
    store = settings.text(FILE) if state["embedding"] == DECLARED else None
    return {} if store is None else {"embedding_revision": file_sha256(Path(store))}


def _ready(state: Mapping[str, Any], settings: Settings) -> None:
    if state["embedding"] not in (DECLARED, WITHOUT):
        embedding_ready(state, settings)


def _open(state: Mapping[str, Any], around: Surroundings) -> EmbeddedSubstrate:
    import_module("numpy")  # before anything is timed
    embeddings = None
    if state["embedding"] not in (DECLARED, WITHOUT):
        model = embedder(state, around.settings, around.purse, around.stopped)
        embeddings = CachedEmbedder(model, around.cache, Meter())
    return EmbeddedSubstrate(around.stores, around.cache, embeddings, state["embedding"] == DECLARED)


def _fanout() -> dict[str, dict[str, dict[str, int]]]:
    tables: dict[str, dict[str, dict[str, int]]] = {}
    for way, (low, high) in FANOUT.items():
        hub, _, memory = way.partition(".")
        tables.setdefault(hub, {})[memory] = {"min": low, "max": high}
    return tables


DEFAULTS = Policy()

PLUGINS = {
    "substrate": Plugin(
        name="substrate",
        version="1",
        open=_open,
        state={"embedding": BUNDLED},
        optional=OPTIONAL,
        fetch={
            "mode": DEFAULTS.mode,
            "object_types": list(DEFAULTS.object_types),
            "sections": dict(BUDGETS),
            "max_vector_candidates": DEFAULTS.max_vector_candidates,
            "max_graph_roots": DEFAULTS.max_graph_roots,
            "fanout": _fanout(),
            "alpha": DEFAULTS.alpha,
            "gamma": DEFAULTS.gamma,
            "trace": DEFAULTS.trace,
        },
        choices={"mode": get_args(Mode)},
        resolve=_resolve,
        ready=_ready,
        suits=_suits,
        baseline=lambda fetch: fetch["mode"] != "hybrid",
        fits=timelines.fits,
        embeds=timelines.embeds,
        embeds_life=lives.embeds,
        capabilities=CAPABILITIES,
        lives=True,
        named=True,
    )
}
