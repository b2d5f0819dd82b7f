"""What sessions are to the substrate: each an episode that says who spoke, its turns observations, word for word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from memtrials.benchmarks import enrichment
from memtrials.benchmarks.enrichment import Graph
from memtrials.benchmarks.timeline import Session, turn_id
from memtrials.errors import UserError
from memtrials.systems.substrate.building import Building
from memtrials.systems.substrate.objects import (
    Derived,
    Entity,
    Episode,
    Link,
    Object,
    Observation,
    Ref,
    Thread,
    refused,
    surface,
)
from memtrials.systems.times import iso_time


def add(state: Building, session: Session) -> None:
    """Write the next session. Their ids are places in the timeline. Turns without words aren't kept, nor sessions
    without other turns. Raises WorkFailedError for a time in no known form."""
    number, state.sessions = state.sessions, state.sessions + 1
    try:
        batches = _batches(session, number)
    except ValueError as error:
        raise refused(f"session {number}: {error}") from None
    for batch in batches:
        state.memory.ingest_enrichment(state.namespace, batch)


def enrich(state: Building, graph: Graph) -> None:
    """Write what was precomputed of the sessions, in one batch."""
    objects = [_draft(part) for parts in (graph.entities, graph.threads, graph.derived) for part in parts]
    state.memory.ingest_enrichment(state.namespace, objects, [_edge(link) for link in graph.links])


def embeds(state: Mapping[str, Any], session: Session, number: int) -> list[list[str]]:
    """The texts that `add` asks vectors for, request by request."""
    return [[surface(draft) for draft in batch] for batch in _batches(session, number)]


def fits(session: Session) -> int:
    """How many turns are without words. Raises UserError for a time in no known form."""
    for written in (session.time, *(turn.time for turn in session.turns)):
        try:
            _time(written)
        except ValueError as error:
            raise UserError(f"{error}, and the substrate keeps times as RFC 3339") from None
    return sum(not turn.content.strip() for turn in session.turns)


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


def _time(written: str | None) -> str | None:
    return iso_time(written) if written is not None and written.strip() else None
