"""What one continuity query says of a memory.

Every value is null until it can be measured: null is "not measurable here", never zero. An item belongs to an id when
that is its own or its episode's; where it belongs to a relevant and to an irrelevant one, it is relevant. What belongs
to neither is unlabeled and counts for no pollution. Names and formulas: `ebigunso/character-memory-evals`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from memtrials.metrics.rows import Returned, Traced

Values = dict[str, float | None]
"""The values of one row, by name."""

KS = (5, 10)
"""The cut-offs of recall that are looked at where nothing else is said."""
CATEGORIES = ("semantic", "entity", "thread", "temporal", "salience", "scope", "lifecycle", "graph_bound")
"""Why a memory brought an item: what its trace can say."""
GAPS = ("short", "medium", "long")
"""How long something wasn't spoken of: under 30 days, under 180, longer."""
TEMPORAL = ("temporal_structure", "temporal_patterns")
CORRECTIONS = ("correction_chains", "entrenched_correction")
ABSTENTION = "abstention"


def names(ks: Sequence[int] = KS) -> tuple[str, ...]:
    """The names of a continuity row's own values: 8, two for each category, four for each k."""
    return (
        "continuity_gap_days",
        *(f"continuity_recall_fraction_gap_{gap}@{k}" for gap in GAPS for k in ks),
        *(f"temporal_recall_fraction@{k}" for k in ks),
        "hub_context_share",
        "hub_expansion_relevant_hit_rate",
        "correction_lifecycle_safe_admission_rate",
        "supersession_replacement_recall",
        "typed_rationale_coverage",
        *(f"rationale_category_share_{category}" for category in CATEGORIES),
        "sampled_context_pollution_rate",
        "sampled_event_pollution_rate",
        *(f"sampled_pollution_rationale_share_{category}" for category in CATEGORIES),
    )


@dataclass(frozen=True)
class Asked:
    """What a scenario says of one query. gap_days: since the oldest relevant object was made; None: none was made by an
    event. hub_events: the remembered events in which a hub took part; None: the scenario has no hub. replacements: the
    relevant ones of those that corrections have made so far."""

    pattern: str
    relevant: frozenset[str]
    irrelevant: frozenset[str] = frozenset()
    gap_days: float | None = None
    hub_events: frozenset[str] | None = None
    replacements: frozenset[str] = frozenset()


def values(asked: Asked, items: Sequence[Returned], trace: Traced | None, ks: Sequence[int] = KS) -> Values:
    """The values of one query, by name. items: in their rank's order; trace: None where the memory gives none.

    For an abstention query only pollution is measured: nothing else about it can be right.
    """
    found: Values = dict.fromkeys(names(ks))
    found |= _pollution(asked, items, trace)
    if asked.pattern == ABSTENTION:
        return found
    found["continuity_gap_days"] = asked.gap_days
    for k in ks:
        recall = recall_fraction(asked, items, k)
        if asked.gap_days is not None:
            found[f"continuity_recall_fraction_gap_{gap_bucket(asked.gap_days)}@{k}"] = recall
        if asked.pattern in TEMPORAL:
            found[f"temporal_recall_fraction@{k}"] = recall
    if asked.hub_events is not None:
        found["hub_context_share"] = _share(item.belongs(asked.hub_events) for item in items)
        if trace is not None:
            expanded = [item for item in _labeled(asked, items) if "entity" in trace.of(item)]
            found["hub_expansion_relevant_hit_rate"] = _share(item.belongs(asked.relevant) for item in expanded)
    if asked.pattern in CORRECTIONS:
        found["supersession_replacement_recall"] = replacement_recall(asked, items)
        if trace is not None:
            found["correction_lifecycle_safe_admission_rate"] = safe_admission_rate(items, trace.barred)
    if trace is not None:
        covered = _share(bool(trace.of(item)) for item in items)
        found["typed_rationale_coverage"] = 1.0 if covered is None else covered
        for category, share in category_shares(items, trace).items():
            found[f"rationale_category_share_{category}"] = share
    return found


def gap_bucket(days: float) -> str:
    """Which of GAPS a gap is."""
    return GAPS[0] if days < 30 else GAPS[1] if days < 180 else GAPS[2]


def ranked_ids(asked: Asked, items: Iterable[Returned]) -> list[str]:
    """The id that each item counts as: the first of its own and its episode's that is relevant, else the first of them
    that it has, else one made of the memory's own name. An id that comes again takes up a rank again."""
    return [
        next((name for name in item.ids if name in asked.relevant), None)
        or next(iter(item.ids), f"internal:{item.kind}.{item.internal_id}")
        for item in items
    ]


def recall_fraction(asked: Asked, items: Sequence[Returned], k: int) -> float | None:
    """The share of relevant ids among the first k items; None where nothing is relevant. k: 1 or more."""
    if not asked.relevant:
        return None
    return len(asked.relevant.intersection(ranked_ids(asked, items)[:k])) / len(asked.relevant)


def replacement_recall(asked: Asked, items: Sequence[Returned]) -> float | None:
    """The share of relevant replacements that any item brings; None where there is no such replacement."""
    if not asked.replacements:
        return None
    return len(asked.replacements.intersection(ranked_ids(asked, items))) / len(asked.replacements)


def safe_admission_rate(items: Sequence[Returned], barred: Set[str]) -> float:
    """The share of items that weren't also left out as suppressed or superseded; 1.0 for an empty retrieval, so it has
    to be read beside the recall of replacements."""
    if not items:
        return 1.0
    unsafe = len({(item.kind, item.internal_id) for item in items if item.internal_id in barred})
    return 1 - min(unsafe, len(items)) / len(items)


def context_pollution(asked: Asked, items: Iterable[Returned]) -> float | None:
    """The share of labeled items that aren't relevant; None where no item is labeled."""
    return _share(not item.belongs(asked.relevant) for item in _labeled(asked, items))


def event_pollution(asked: Asked, items: Iterable[Returned]) -> float | None:
    """The share of events among labeled items of which no item is relevant; None where no item is labeled.

    An item's event is its episode, or itself. One event can bring three items, so this counts wrong memories.
    """
    roots: dict[str, bool] = {}
    for item in _labeled(asked, items):
        root = item.ids[-1]
        roots[root] = roots.get(root, False) or item.belongs(asked.relevant)
    return _share(not relevant for relevant in roots.values())


def category_shares(items: Iterable[Returned], trace: Traced) -> Values:
    """Each category's share of all the items' categories; None everywhere where no item has one."""
    counts = Counter(category for item in items for category in trace.of(item))
    total = counts.total()
    return {category: counts[category] / total if total else None for category in CATEGORIES}


def _pollution(asked: Asked, items: Sequence[Returned], trace: Traced | None) -> Values:
    found: Values = {
        "sampled_context_pollution_rate": context_pollution(asked, items),
        "sampled_event_pollution_rate": event_pollution(asked, items),
    }
    if trace is not None:
        polluting = [item for item in _labeled(asked, items) if not item.belongs(asked.relevant)]
        for category, share in category_shares(polluting, trace).items():
            found[f"sampled_pollution_rationale_share_{category}"] = share
    return found


def _labeled(asked: Asked, items: Iterable[Returned]) -> list[Returned]:
    labels = asked.relevant | asked.irrelevant
    return [item for item in items if item.belongs(labels)]


def _share(answers: Iterable[bool]) -> float | None:
    counted = list(answers)
    return sum(counted) / len(counted) if counted else None


# --- restarts -----------------------------------------------------------------------------------------------------


class Probe(NamedTuple):
    """What a query brought on one side of a restart. returned: ids, sorted and unique; recall: None where nothing is
    expected."""

    returned: tuple[str, ...]
    relevant: int
    expected: int
    recall: float | None


class Change(NamedTuple):
    """After a restart less before it. recall: None where nothing is expected; stable: the same objects came back."""

    returned: int
    relevant: int
    recall: float | None
    stable: bool


def probe(items: Iterable[Returned], relevant: frozenset[str]) -> Probe:
    """What these items bring of what is relevant."""
    items = list(items)
    returned = {
        item.external_id if item.external_id is not None else f"{item.kind}:{item.internal_id}" for item in items
    }
    hits = len(relevant.intersection(name for item in items for name in item.ids))
    return Probe(tuple(sorted(returned)), hits, len(relevant), hits / len(relevant) if relevant else None)


def change(before: Probe, after: Probe) -> Change:
    """How the two sides of one restart differ. Both are of one query."""
    recall = None if before.recall is None or after.recall is None else after.recall - before.recall
    returned = len(after.returned) - len(before.returned)
    return Change(returned, after.relevant - before.relevant, recall, after.returned == before.returned)
