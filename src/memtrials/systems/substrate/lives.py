"""What a scripted life is to the substrate: the operations that each event stands for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec

from memtrials.benchmarks.life import Correct, Forget, Life, LifeEvent, Remember, Restart, SurfaceTexts
from memtrials.benchmarks.life import Link as Linked
from memtrials.systems.life import Done, Operation
from memtrials.systems.substrate.building import Building
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
from memtrials.systems.substrate.store import Store, Stored

ENTITY_TYPES: dict[str, Any] = {"location": "place", "person": "person", "organization": "organization"}
"""A script's types of entities in the substrate's words."""


def begin(state: Building, life: Life) -> list[Done]:
    """Write who is known, all in one batch."""
    state.script = life.name
    return [done("remember", state.memory.ingest_enrichment(state.namespace, _entities(life)))]


def live(state: Building, event: LifeEvent) -> list[Done]:
    """Carry out what an event stands for."""
    if isinstance(event, Remember):
        return _remember(state, event)
    if isinstance(event, Correct):
        return [done("correct", state.memory.correct(state.namespace, correction(state, event)))]
    if isinstance(event, Forget):
        forgetting = Forgetting(
            tuple(_ref(state.store, name) for name in event.target_external_ids),
            event.suppress_derived_from_target,
            event.apply_to_derived_from_target,
        )
        return [done("forget", state.memory.forget(state.namespace, forgetting))]
    return [done("link", state.memory.link(state.namespace, _link(state, event)))]


def embeds(state: Mapping[str, Any], life: Life, events: Sequence[LifeEvent | Restart]) -> Iterator[Sequence[str]]:
    """Who is known in one request, then what each event writes, as `_remember` and `correction` have it."""
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


def done(operation: Operation, outcome: Outcome) -> Done:
    """An operation that was carried out, with its own report."""
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
        written, derived = _staged(state, event), event.text
    else:
        written, derived = _direct(state, event), event.surface_texts.derived
    objects, links = _enrichment(state, event, derived)
    batch = state.memory.ingest_enrichment(state.namespace, objects, links)
    return [*written, done("remember", batch), *(Done("link", link.external_id) for link in links)]


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
    return [Done("prepare", plan.operation_id), Done("validate_plan", plan.operation_id), done("commit", written)]


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
        done("remember_episode", memory.remember_episode(state.namespace, episode)),
        done("remember_observation", memory.remember_observation(state.namespace, observation)),
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


def correction(state: Building, event: Correct) -> Correction:
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
