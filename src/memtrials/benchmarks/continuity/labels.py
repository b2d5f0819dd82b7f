"""What a scenario says of one of its queries: gold for scoring, which no memory sees."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from memtrials.benchmarks.continuity.fixture import Event, Query, Scenario, creations
from memtrials.benchmarks.life import Correct, Forget, Link, Remember, Restart, moment
from memtrials.metrics.continuity import Asked

DAY = 86400


def asked(scenario: Scenario, query: Query) -> Asked:
    """What is known of a query at its own time."""
    relevant = frozenset(query.expected.relevant_external_ids)
    hubs = {entity.external_id for entity in scenario.entities if entity.is_hub}
    remembered = [event for event in scenario.events if isinstance(event, Remember)]
    corrected = [e for e in scenario.events if isinstance(e, Correct) and e.timestamp <= query.timestamp]
    return Asked(
        pattern=scenario.pattern,
        relevant=relevant,
        irrelevant=frozenset(query.expected.irrelevant_external_ids),
        gap_days=gap_days(scenario, query),
        hub_events=frozenset(e.external_id for e in remembered if hubs.intersection(e.entity_external_ids))
        if hubs
        else None,
        replacements=relevant.intersection(event.replacement_external_id for event in corrected),
    )


def gap_days(scenario: Scenario, query: Query) -> float | None:
    """Days since the oldest relevant object was made, of whole seconds; None where no event made one.

    What is made beside an event's own object (its observation and derived memory) has no date of its own here.
    """
    ages = [
        int((query.timestamp - event.timestamp).total_seconds()) / DAY
        for event in scenario.events
        if event.timestamp <= query.timestamp
        and next(iter(creations(event)), None) in query.expected.relevant_external_ids
    ]
    return max(ages, default=None)


# --- as a task keeps it -------------------------------------------------------------------------------------------


def details(scenario: Scenario, query: Query) -> dict[str, str]:
    """What is kept of a query, so that scoring and export need no fixture.

    `event`: its event id. `expected`: JSON of `relevant` and `irrelevant`, in the fixture's order. `known`: JSON of
    `pattern`, `gap_days`, `hub_events` and `replacements` (see `Asked`), sorted. `restarts`: JSON of one
    [place in the timeline, event id, time] for each restart that it probes. `history`: a line for each step of the
    timeline since the query before, joined by LF; see `history`.
    """
    found = asked(scenario, query)
    known = {
        "pattern": found.pattern,
        "gap_days": found.gap_days,
        "hub_events": None if found.hub_events is None else sorted(found.hub_events),
        "replacements": sorted(found.replacements),
    }
    restarts: list[tuple[int, str, str]] = []
    lines: list[str] = []
    step = 0
    for event in scenario.events:
        if event is query:
            break
        if isinstance(event, Query):
            restarts, lines = [], []
            continue
        if isinstance(event, Restart):
            restarts.append((step, event.event_id, moment(event.timestamp)))
        lines.append(history_line(event))
        step += 1
    expected = query.expected
    return {
        "event": query.event_id,
        "expected": _json({"relevant": expected.relevant_external_ids, "irrelevant": expected.irrelevant_external_ids}),
        "known": _json(known),
        "restarts": _json(restarts),
        "history": "\n".join(lines),
    }


def asked_of(kept: Mapping[str, str]) -> Asked:
    """What `details` kept, as scoring takes it."""
    expected, known = json.loads(kept["expected"]), json.loads(kept["known"])
    return Asked(
        pattern=known["pattern"],
        relevant=frozenset(expected["relevant"]),
        irrelevant=frozenset(expected["irrelevant"]),
        gap_days=known["gap_days"],
        hub_events=None if known["hub_events"] is None else frozenset(known["hub_events"]),
        replacements=frozenset(known["replacements"]),
    )


def history(kept: Iterable[Mapping[str, str]]) -> str:
    """The whole history at a query, of what `details` kept of all queries up to it, in order."""
    return "\n".join(part for details in kept if (part := details["history"]))


def history_line(event: Event) -> str:
    """What an event adds to the whole history that a context is compared with."""
    said: list[str]
    if isinstance(event, Remember):
        said = ["remember", event.external_id, "|".join(event.said)]
    elif isinstance(event, Correct):
        said = ["correct", event.target_external_id, event.replacement_external_id, event.replacement_text]
    elif isinstance(event, Forget):
        said = ["forget", ",".join(event.target_external_ids)]
    elif isinstance(event, Link):
        said = ["link", event.from_external_id, event.relation, event.to_external_id]
    else:
        said = ["restart"]
    return "|".join([moment(event.timestamp), *said])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
