"""What a retrieval of memories kept of itself: its items as they are measured, and the reports of its searches.

A report is what `systems/substrate` gives of each search; any other system may give the same. A retrieval that kept
something else has no trace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from memtrials.metrics.rows import Returned, Traced
from memtrials.records import Item, text_sha256


def returned(items: Sequence[Item] | None) -> list[Returned] | None:
    """Items by rank as they are measured; None where one of them doesn't say what it is. An item that says it holds
    nothing that was told belongs to nothing."""
    if items is None or any(item.memory is None and item.turns is None for item in items):
        return None
    return [_returned(item) for item in sorted(items, key=lambda item: item.rank)]


def _returned(item: Item) -> Returned:
    memory = item.memory
    if memory is None:
        return Returned("derived_memory", text_sha256(item.text))
    return Returned(
        memory.kind,
        memory.internal_id,
        memory.external_id,
        memory.episode_external_id,
        any(text.strip() for text in memory.rationale),
    )


class Object(msgspec.Struct, frozen=True):
    """An object of the memory."""

    internal_id: str


class Assigned(msgspec.Struct, frozen=True):
    """An object that was shown, and why."""

    object: Object
    rationale_categories: tuple[str, ...]


class Decided(msgspec.Struct, frozen=True):
    """Whether an object may be shown. reason: why not."""

    object: Object
    action: str
    reason: str | None = None


class Stale(msgspec.Struct, frozen=True):
    """A candidate that was left out."""

    candidate: Object
    reason: str | None = None


class Omitted(msgspec.Struct, frozen=True):
    """An object that could have been shown."""

    object: Object
    reason: str


class Selected(msgspec.Struct, frozen=True):
    """How many memories were taken from a hub. fallback: nobody knew how telling it is."""

    fallback: bool = False


class Trace(msgspec.Struct, frozen=True):
    """What one search did, as far as anybody looks at it here."""

    section_assignments: tuple[Assigned, ...]
    lifecycle_filter_decisions: tuple[Decided, ...]
    stale_candidate_omissions: tuple[Stale, ...]
    fanout_utilization: tuple[msgspec.Raw, ...] = ()
    selectivity_decisions: tuple[Selected, ...] = ()
    omissions: tuple[Omitted, ...] = ()


class Telemetry(msgspec.Struct, frozen=True):
    """What a search counted. root_count: objects that it began from."""

    root_count: int = 0


class Rationale(msgspec.Struct, frozen=True):
    """What a search counted of the graph."""

    graph_relation_count: int
    graph_verified_count: int
    telemetry: Telemetry = Telemetry()


class Outcome(msgspec.Struct, frozen=True):
    """The report of one search (`docs/exchange.md`). trace: None where it wasn't asked for."""

    rationale: Rationale
    trace: Trace | None


def outcomes(raw: str | None) -> tuple[Outcome, ...]:
    """The reports of a retrieval's searches; none where what it kept is something else."""
    try:
        return msgspec.json.decode(raw or "[]", type=tuple[Outcome, ...])
    except (msgspec.ValidationError, msgspec.DecodeError):
        return ()


def traced(found: Sequence[Outcome]) -> Traced | None:
    """What all searches of a retrieval say together; None where none of them says anything."""
    traces = [outcome.trace for outcome in found if outcome.trace is not None]
    if not traces:
        return None
    categories: dict[str, set[str]] = defaultdict(set)
    barred: dict[str | None, set[str]] = defaultdict(set)
    for trace in traces:
        for assigned in trace.section_assignments:
            categories[assigned.object.internal_id].update(assigned.rationale_categories)
        for decided in trace.lifecycle_filter_decisions:
            if decided.action == "omit":
                barred[decided.reason].add(decided.object.internal_id)
        for stale in trace.stale_candidate_omissions:
            if stale.reason == "missing_object":
                barred[stale.reason].add(stale.candidate.internal_id)
    return Traced(
        dict(categories),
        suppressed=frozenset(barred["suppressed"] | barred["deleted"]),
        superseded=frozenset(barred["superseded"]),
        missing=frozenset(barred["missing_object"]),
        verified=sum(outcome.rationale.graph_verified_count for outcome in found),
    )


def checked(trace: Traced | None, fetch: Mapping[str, Any]) -> Traced | None:
    """The trace of a search that is checked against the graph, by its fetch settings: one by vectors alone isn't."""
    return None if fetch.get("mode") == "vector_only" else trace


def counts(found: Sequence[Outcome]) -> dict[str, int | None]:
    """What searches counted; null without a trace."""
    names = ("graph_relation_count", "graph_verified_count", "fanout_decision_count", *Decisions._fields)
    traces = [outcome.trace for outcome in found if outcome.trace is not None]
    if not traces:
        return dict.fromkeys(names)
    return {
        "graph_relation_count": sum(outcome.rationale.graph_relation_count for outcome in found),
        "graph_verified_count": sum(outcome.rationale.graph_verified_count for outcome in found),
        "fanout_decision_count": sum(len(trace.fanout_utilization) for trace in traces),
        **decisions(found)._asdict(),
    }


class Decisions(NamedTuple):
    """Decisions on how many memories are taken from a hub, and on what ground."""

    selectivity_decision_count: int
    scored_selectivity_count: int
    fallback_selectivity_count: int


def decisions(found: Iterable[Outcome]) -> Decisions:
    """Those of these searches."""
    made = [one.fallback for outcome in found if outcome.trace for one in outcome.trace.selectivity_decisions]
    return Decisions(len(made), made.count(False), made.count(True))
