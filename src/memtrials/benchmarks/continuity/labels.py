"""What a scenario says of one of its queries: gold for scoring, which no memory sees."""

from __future__ import annotations

from memtrials.benchmarks.continuity.fixture import Correct, Query, Remember, Scenario, creations
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
