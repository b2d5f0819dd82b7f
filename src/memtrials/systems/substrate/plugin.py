"""The substrate as a memory system: sessions become episodes, their turns observations; a scripted life goes through
the substrate's own operations, event by event.

Inside a state stands one namespace: that of a life's script, so that all its identities follow from the script, and for
timelines one name for all, so that equal timelines give equal states under whatever name a state has.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, cast, get_args

import msgspec

from memtrials.benchmarks import enrichment
from memtrials.benchmarks.enrichment import Graph
from memtrials.benchmarks.life import DECLARED, Correct, Forget, Life, LifeEvent, Remember, Restart, SurfaceTexts
from memtrials.benchmarks.life import Link as Linked
from memtrials.benchmarks.timeline import Session, turn_id
from memtrials.errors import UserError
from memtrials.records import Item
from memtrials.records import Memory as Remembered
from memtrials.settings import Settings
from memtrials.systems.base import Capability, Meter, Plugin, Retrieved, Surroundings
from memtrials.systems.embedded import OPTIONAL, embedder, embedding_ready, embedding_settings
from memtrials.systems.embedding import BUNDLED, CachedEmbedder
from memtrials.systems.life import Done
from memtrials.systems.store import StateFiles
from memtrials.systems.substrate.memory import Substrate
from memtrials.systems.substrate.objects import (
    KINDS,
    Correction,
    Derived,
    Entity,
    Episode,
    Forgetting,
    Link,
    Object,
    Observation,
    Outcome,
    Ref,
    Target,
    Thread,
    refused,
    surface,
    surface_of,
)
from memtrials.systems.substrate.retrieval import BUDGETS, FANOUT, Found, Mode, Policy, rendered, retrieve
from memtrials.systems.substrate.store import Store, Stored
from memtrials.systems.times import iso_time

CAPABILITIES: frozenset[Capability] = frozenset(
    ("fork", "correct", "forget", "link", "enrich", "restart", "evidence_ids", "verbatim", "deterministic")
)
TIMELINE = ""
"""The namespace inside a state that is fed sessions. No script's is empty."""
WITHOUT = "none"
"""The setting by which there are no vectors, which bm25_only can do without."""
STATES_IN_MEMORY = 2
ENTITY_TYPES: dict[str, Any] = {"location": "place", "person": "person", "organization": "organization"}
"""A script's types of entities in the substrate's words."""


class NoEmbeddings:
    """What a state without vectors is written with."""

    def vectors(self, texts: Sequence[str], role: str) -> list[bytes | None]:
        """None for each."""
        return [None] * len(texts)


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
        """Take in the next session: an episode that says who spoke, and each turn as an observation, word for word.

        Their ids are places in the timeline. Turns without words aren't kept, nor sessions without other turns. Raises
        WorkFailedError for a time in no known form.
        """
        state = self._building[namespace]
        number, state.sessions = state.sessions, state.sessions + 1
        try:
            batches = _batches(session, number)
        except ValueError as error:
            raise refused(f"session {number}: {error}") from None
        for batch in batches:
            state.memory.ingest_enrichment(state.namespace, batch)

    def enrich(self, namespace: str, graph: Graph) -> None:
        """Take in what was precomputed of the sessions, in one batch."""
        state = self._building[namespace]
        objects = [_draft(part) for parts in (graph.entities, graph.threads, graph.derived) for part in parts]
        state.memory.ingest_enrichment(state.namespace, objects, [_edge(link) for link in graph.links])

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
        """Begin an empty state, and take in who is known, all in one batch."""
        embeddings = self.embeddings
        if self.declared:
            if life.vectors is None:
                raise UserError(f"{life.name} declares no vectors; name another embedding than {DECLARED!r}")
            embeddings = CachedEmbedder(life.vectors, self.cache, self.meter)
        state = self._begin(namespace, life.namespace, embeddings)
        state.script = life.name
        return [_done("remember", state.memory.ingest_enrichment(state.namespace, _entities(life)))]

    def live(self, namespace: str, event: LifeEvent) -> Sequence[Done]:
        """Take in the next event, by the operations that it stands for."""
        state = self._building[namespace]
        if isinstance(event, Remember):
            return _remember(state, event)
        if isinstance(event, Correct):
            return [_done("correct", state.memory.correct(state.namespace, _correction(state, event)))]
        if isinstance(event, Forget):
            forgetting = Forgetting(
                tuple(_ref(state.store, name) for name in event.target_external_ids),
                event.suppress_derived_from_target,
                event.apply_to_derived_from_target,
            )
            return [_done("forget", state.memory.forget(state.namespace, forgetting))]
        return [_done("link", state.memory.link(state.namespace, _link(state, event)))]

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


def _draft(part: enrichment.Entity | enrichment.Thread | enrichment.Derived) -> Object:
    """The draft of something precomputed."""
    given = {name: value for name, value in msgspec.structs.asdict(part).items() if name != "metadata"}
    if isinstance(part, enrichment.Entity):
        return Entity(**given)
    return Thread(**given) if isinstance(part, enrichment.Thread) else Derived(**given)


def _edge(link: enrichment.Link) -> Link:
    source, target = (Ref(end.object_type, end.external_id) for end in (link.source, link.target))
    return Link(
        external_id=link.external_id,
        source=source,
        relation=link.relation,
        target=target,
        confidence=link.confidence,
        rationale=link.rationale,
    )


def _batches(session: Session, number: int) -> list[list[Object]]:
    """A session as it is written: its episode, then its observations. Raises ValueError for a time in no known form."""
    said = [(n, turn) for n, turn in enumerate(session.turns) if turn.content.strip()]
    if not said:
        return []
    began = _time(session.time)
    names = ", ".join(sorted({turn.speaker or turn.role for _, turn in said}))
    summary = f"Session {number} with {names}."
    observations: list[Object] = [
        Observation(
            external_id=turn_id(number, n),
            text=turn.content,
            episode=str(number),
            observed_at=_time(turn.time) or began,
        )
        for n, turn in said
    ]
    return [[Episode(external_id=str(number), summary=summary, started_at=began, ended_at=began)], observations]


def _embeds(state: Mapping[str, Any], session: Session, number: int) -> list[list[str]]:
    return [[surface(draft) for draft in batch] for batch in _batches(session, number)]


def _time(written: str | None) -> str | None:
    return iso_time(written) if written is not None and written.strip() else None


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


# --- what an event stands for -----------------------------------------------------------------------------------


def _done(operation: Any, outcome: Outcome) -> Done:
    return Done(operation, outcome.operation_id, outcome.outcome)


def _entities(life: Life) -> list[Entity]:
    return [
        Entity(
            external_id=known.external_id,
            entity_type=ENTITY_TYPES[known.entity_type],
            name=known.label,
            canonical_key=known.external_id,
        )
        for known in life.entities
    ]


def _remember(state: Building, event: Remember) -> list[Done]:
    """An episode and its observation, then in one batch what was concluded and how it hangs together."""
    if event.surface_texts is msgspec.UNSET:
        done, derived = _staged(state, event), event.text
    else:
        done, derived = _direct(state, event), event.surface_texts.derived
    objects, links = _enrichment(state, event, derived)
    batch = state.memory.ingest_enrichment(state.namespace, objects, links)
    return [*done, _done("remember", batch), *(Done("link", link.external_id) for link in links)]


def _staged(state: Building, event: Remember) -> list[Done]:
    memory, time = state.memory, _moment(event)
    raw = f"continuity://{state.script}/{event.event_id}?at={time}"
    plan = memory.prepare_remember(
        state.namespace,
        event.text,
        event.external_id,
        event.observation_id,
        time,
        time,
        (raw,),
        f"continuity:{state.script}:{event.event_id}:{event.external_id}",
        salience=event.salience,
    )
    for verdict in memory.validate_plan(plan):
        if verdict.reason is not None:
            raise refused(verdict.reason)
    written = memory.commit(plan)
    if written.outcome["repair_needed"] or not written.outcome["vector_indexed_object_ids"]:
        raise refused(f"{event.external_id}: it was written and can't be found by a vector")
    state.raw_refs |= {event.external_id: raw, event.observation_id: raw}
    return [Done("prepare", plan.operation_id), Done("validate_plan", plan.operation_id), _done("commit", written)]


def _direct(state: Building, event: Remember) -> list[Done]:
    assert event.surface_texts is not msgspec.UNSET
    memory, time = state.memory, _moment(event)
    episode = Episode(
        external_id=event.external_id,
        summary=event.surface_texts.episode,
        started_at=time,
        ended_at=time,
        salience=event.salience,
    )
    observation = Observation(
        external_id=event.observation_id,
        text=event.surface_texts.observation,
        episode=event.external_id,
        observed_at=time,
        salience=event.salience,
    )
    return [
        _done("remember_episode", memory.remember_episode(state.namespace, episode)),
        _done("remember_observation", memory.remember_observation(state.namespace, observation)),
    ]


def _enrichment(state: Building, event: Remember, text: str) -> tuple[list[Object], list[Link]]:
    objects: list[Object] = []
    thread = event.thread
    if thread and state.store.object(Ref("memory_thread", thread.thread_external_id)) is None:
        objects.append(
            Thread(
                external_id=thread.thread_external_id,
                title=event.text,
                last_touched_at=_moment(event),
                salience=event.salience,
                canonical_key=thread.thread_external_id,
            )
        )
    objects.append(
        Derived(
            external_id=event.derived_id,
            derived_type="reflection",
            text=text,
            episodes=(event.external_id,),
            observations=(event.observation_id,),
            entities=event.entity_external_ids,
            threads=(thread.thread_external_id,) if thread else (),
            confidence=thread.confidence if thread else 1.0,
            salience=event.salience,
        )
    )
    named = f"continuity:{state.script}:{event.event_id}"
    episode, derived = Ref("episode", event.external_id), Ref("derived_memory", event.derived_id)
    links: list[Link] = []
    for n, name in enumerate(event.entity_external_ids):
        entity = Ref("entity", name)
        links += [
            Link(external_id=f"{named}:entity-mentions-{n:04d}", source=episode, relation="mentions", target=entity),
            Link(external_id=f"{named}:entity-involves-{n:04d}", source=entity, relation="involves", target=episode),
        ]
    if thread:
        links.append(
            Link(
                external_id=f"{named}:derived-thread",
                source=derived,
                relation="part_of_thread",
                target=Ref("memory_thread", thread.thread_external_id),
                confidence=thread.confidence,
            )
        )
    return objects, links


def _correction(state: Building, event: Correct) -> Correction:
    """What a correction asks for: a source is named together with where it was taken from."""
    stored = _named(state.store, event.target_external_id)
    draft = stored.draft
    raw = state.raw_refs.get(stored.external_id)
    raws = () if raw is None else (raw,)
    if isinstance(draft, Episode):
        sources: tuple[str, ...] = (draft.external_id,)
        target = Target("episode", draft.external_id, raws, sources)
    elif isinstance(draft, Observation):
        sources = (draft.episode,)
        target = Target("observation", draft.external_id, raws, sources)
    elif isinstance(draft, Derived):
        sources = draft.episodes[:1]
        target = Target("derived_memory", draft.external_id)
    else:
        raise refused(f"correct: {stored.external_id} is of kind {stored.kind}, which can't be corrected")
    replacement = Derived(
        external_id=event.replacement_external_id,
        derived_type="reflection",
        text=event.replacement_text,
        episodes=sources,
        salience=1.0,
    )
    return Correction((target,), replacement)


def _link(state: Building, event: Linked) -> Link:
    return Link(
        external_id=event.external_id,
        source=_ref(state.store, event.from_external_id),
        relation=cast("Any", event.relation),  # refused there unless it is one
        target=_ref(state.store, event.to_external_id),
    )


def _embeds_life(
    state: Mapping[str, Any], life: Life, events: Sequence[LifeEvent | Restart]
) -> Iterator[Sequence[str]]:
    """Who is known in one request, then what each event writes, as `_remember` and `_correction` have it."""
    yield [surface(entity) for entity in _entities(life)]
    threads: set[str] = set()
    for event in events:
        if isinstance(event, Correct):
            yield [surface_of("derived_memory", event.replacement_text)]
        elif isinstance(event, Remember):
            alike = event.surface_texts is msgspec.UNSET
            said = event.surface_texts or SurfaceTexts(*[event.text] * 3)
            written = [surface_of("episode", said.episode), surface_of("observation", said.observation)]
            yield from [written] if alike else ([text] for text in written)
            thread = event.thread and event.thread.thread_external_id
            opened = [surface_of("memory_thread", event.text)] if thread and thread not in threads else []
            threads.update([thread] if thread else ())
            yield [*opened, surface_of("derived_memory", said.derived)]


def _named(store: Store, name: str) -> Stored:
    """The object of an id, whose kind a script doesn't say."""
    for kind in KINDS:
        if stored := store.object(Ref(kind, name)):
            return stored
    raise refused(f"there is nothing of the name {name!r}")


def _ref(store: Store, name: str) -> Ref:
    return Ref(_named(store, name).kind, name)


def _moment(event: Remember) -> str:
    return str(msgspec.to_builtins(event.timestamp))


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
    return {}


def _ready(state: Mapping[str, Any], settings: Settings) -> None:
    if state["embedding"] not in (DECLARED, WITHOUT):
        embedding_ready(state, settings)


def _fits(session: Session) -> int:
    """How many turns are without words. Raises UserError for a time in no known form."""
    for written in (session.time, *(turn.time for turn in session.turns)):
        try:
            _time(written)
        except ValueError as error:
            raise UserError(f"{error}, and the substrate keeps times as RFC 3339") from None
    return sum(not turn.content.strip() for turn in session.turns)


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
        fits=_fits,
        embeds=_embeds,
        embeds_life=_embeds_life,
        capabilities=CAPABILITIES,
        lives=True,
        named=True,
    )
}
