"""Rows of metric values as the retrieval harness folds them: what every row has, and what many rows say together.

A row is one question's values by key. Null means that the metric can't be measured there: never zero, never a failure.
Names and formulas: `ebigunso/character-memory-evals`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict, cast

from memtrials.metrics.context import efficiency
from memtrials.metrics.retrieval import RANKING_MEASURES

Row = Mapping[str, float | None]

CONTEXT_KEYS = (
    "retrieved_context_tokens",
    "full_history_tokens",
    "context_compression_ratio",
    "context_reduction_rate",
)
COUNT_KEYS = (
    "num_retrieved_items",
    "num_relevant_episodes",
    "num_relevant_observations",
    "num_derived_memories",
    "num_active_threads",
    "num_entities",
    "retrieval_rationale_coverage",
    "provenance_coverage",
)
CHECKED_KEYS = (
    "suppressed_memory_leakage_rate",
    "superseded_current_leakage_rate",
    "orphan_vector_leakage_rate",
    "context_validation_pass_rate",
)
"""What is measured by a trace alone."""
NEVER_KEYS = (
    "cross_store_id_validation_pass_rate",
    "qa_accuracy",
    "qa_f1",
    "qa_exact_match",
    "abstention_accuracy",
    "unsupported_answer_rate",
)
"""What no run that only retrieves can measure."""
BASE_KEYS = (*CONTEXT_KEYS, *COUNT_KEYS, *CHECKED_KEYS, *NEVER_KEYS)
"""What every row has, whatever its data set."""
BESIDE_KEYS = (
    "returned_items_without_external_id",
    "returned_derived_memories_without_provenance",
    "suppressed_or_deleted_items_returned",
    "superseded_items_returned_as_current",
    "returned_items_with_authoritative_validation",
)
"""What a row has beside what is required of it."""

# --- what came back ---------------------------------------------------------------------------------------------


class Returned(NamedTuple):
    """An item that a memory brought. episode: of an observation, its episode's id; of a derived memory, its first
    source's; None for episodes and threads. internal_id: the memory's own name of it. explained: it says why it came.
    """

    kind: str
    internal_id: str
    external_id: str | None = None
    episode: str | None = None
    explained: bool = False

    @property
    def ids(self) -> tuple[str, ...]:
        """What it belongs to, its own id first."""
        return tuple(name for name in (self.external_id, self.episode) if name is not None)

    def belongs(self, names: Set[str]) -> bool:
        """Whether its own id or its episode's is among them."""
        return not names.isdisjoint(self.ids)


@dataclass(frozen=True)
class Traced:
    """What a memory's trace says, by internal id. categories: why an item was brought. suppressed (or deleted) and
    superseded: objects that were left out somewhere as such; missing: those that a vector led to and that aren't there.
    verified: how many objects the graph was found to hold."""

    categories: Mapping[str, Set[str]] = field(default_factory=dict)
    suppressed: frozenset[str] = frozenset()
    superseded: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()
    verified: int = 0

    @property
    def barred(self) -> frozenset[str]:
        """What was left out as it may not be shown any more."""
        return self.suppressed | self.superseded

    def of(self, item: Returned) -> Set[str]:
        """The categories of an item."""
        return self.categories.get(item.internal_id, frozenset())


class Composition(TypedDict):
    """How many items of each kind; null where nobody knows what came back."""

    total_items: int | None
    episodes: int | None
    observations: int | None
    derived_memories: int | None
    memory_threads: int | None
    entities: int | None
    items_with_rationale: int | None
    rationale_coverage: float | None


def composition(items: Sequence[Returned] | None) -> Composition:
    """The kinds of what came back. Nothing at all is covered."""
    if items is None:
        return cast("Composition", dict.fromkeys(Composition.__annotations__))
    kinds = Counter(item.kind for item in items)
    explained = sum(item.explained for item in items)
    return Composition(
        total_items=len(items),
        episodes=kinds["episode"],
        observations=kinds["observation"],
        derived_memories=kinds["derived_memory"],
        memory_threads=kinds["memory_thread"],
        entities=kinds["entity"],
        items_with_rationale=explained,
        rationale_coverage=share(explained, len(items)),
    )


def share(count: int, of: int) -> float:
    """The share of all, 1.0 of none."""
    return count / of if of else 1.0


def base_values(
    tokens: int | None, full_tokens: int | None, items: Sequence[Returned] | None, trace: Traced | None
) -> dict[str, float | None]:
    """The values that every row has, by BASE_KEYS and BESIDE_KEYS.

    tokens, full_tokens: of the context, and of the history (None: unknown). items: None where nobody knows what
    came back. trace: None where nothing was checked.
    """
    found: dict[str, float | None] = dict.fromkeys((*BASE_KEYS, *BESIDE_KEYS))
    ratios = (None, None) if tokens is None else efficiency(tokens, full_tokens)
    found |= zip(CONTEXT_KEYS, (tokens, full_tokens, *ratios), strict=True)
    if items is None:
        return found
    kinds = composition(items)
    derived = [item for item in items if item.kind == "derived_memory"]
    sourceless = sum(item.episode is None for item in derived)
    found |= {
        "num_retrieved_items": kinds["total_items"],
        "num_relevant_episodes": kinds["episodes"],
        "num_relevant_observations": kinds["observations"],
        "num_derived_memories": kinds["derived_memories"],
        "num_active_threads": kinds["memory_threads"],
        "num_entities": kinds["entities"] or None,
        "retrieval_rationale_coverage": kinds["rationale_coverage"],
        "provenance_coverage": share(len(derived) - sourceless, len(derived)),
        "returned_items_without_external_id": sum(item.external_id is None for item in items),
        "returned_derived_memories_without_provenance": sourceless,
    }
    return found if trace is None else found | _checked(items, trace)


def _checked(items: Sequence[Returned], trace: Traced) -> dict[str, float | None]:
    """What a trace says of the items: how many shouldn't have come, and how many are there at all."""
    returned = {item.internal_id for item in items}
    suppressed, superseded = (len(returned & some) for some in (trace.suppressed, trace.superseded))
    unsafe, missing = len(returned & trace.barred), len(returned & trace.missing)
    n = len(items)
    return {
        "suppressed_memory_leakage_rate": suppressed / n if n else 0.0,
        "superseded_current_leakage_rate": superseded / n if n else 0.0,
        "orphan_vector_leakage_rate": orphan_rate(n, missing, len(trace.missing - returned)),
        "context_validation_pass_rate": validation_rate(n, trace.verified, unsafe, missing),
        "suppressed_or_deleted_items_returned": suppressed,
        "superseded_items_returned_as_current": superseded,
    }


def orphan_rate(items: int, missing: int, omitted: int) -> float:
    """The share of objects without a place in the graph: returned ones, of all items and of those that were left out
    for it."""
    return missing / (items + omitted) if items + omitted else 0.0


def validation_rate(items: int, verified: int, unsafe: int, missing: int) -> float:
    """The share of items about which nothing is wrong: unverified, not to be shown any more, or not there."""
    bad = items - min(verified, items) + unsafe + missing
    return 1 - min(bad, items) / items if items else 1.0


def marks_of(outcome: Mapping[str, Any]) -> list[str]:
    """In what respects an operation's own report says that it was done in part only, in words.

    outcome: as `systems/life.py` has it; a field that isn't there says nothing.
    """
    statistics = outcome.get("stats_update_status") or {}
    failed = {
        "vector failure": outcome.get("vector_indexing_failure"),
        "vector upkeep failure": outcome.get("vector_maintenance_failure"),
        "statistics failure": statistics.get("failure"),
        "repair needed": outcome.get("repair_needed"),
    }
    return [name for name, told in failed.items() if told not in (None, [])]


# --- many rows --------------------------------------------------------------------------------------------------


class Support(TypedDict):
    """How often a metric is there and is a number. unsupported: it is there and never one."""

    rows_present: int
    numeric_rows: int
    null_rows: int
    unsupported: bool


class Coverage(TypedDict):
    """How many of the required metrics there are, are a number in some row, and are null in all they stand in."""

    required_metrics_total: int
    required_metrics_present: int
    required_metrics_numeric: int
    required_metrics_null_only: int
    missing_required_metrics: list[str]


class Summary(TypedDict):
    """Values in short, percentiles by nearest rank; all null where there are none."""

    mean: float | None
    median: float | None
    p50: float | None
    p95: float | None


def ranking_keys(levels: Mapping[str, Iterable[int]]) -> list[str]:
    """The keys of the ranking measures, such as `session_recall_any@5`. levels: cut-offs by level."""
    return [
        f"{level}_{measure.replace('-', '_')}@{k}"
        for level, cutoffs in levels.items()
        for measure in RANKING_MEASURES
        for k in cutoffs
    ]


def metric_support(rows: Iterable[Row]) -> dict[str, Support]:
    """For each key of any row, in order of appearance, how far it is supported."""
    present: Counter[str] = Counter()
    numeric: Counter[str] = Counter()
    for row in rows:
        present.update(row.keys())
        numeric.update(key for key, value in row.items() if value is not None)
    return {
        key: Support(
            rows_present=count,
            numeric_rows=numeric[key],
            null_rows=count - numeric[key],
            unsupported=not numeric[key],
        )
        for key, count in present.items()
    }


def registry_coverage(rows: Iterable[Row], required: Collection[str]) -> Coverage:
    """How far rows hold what they must. required: keys; repeats count once."""
    wanted = set(required)
    support = {key: found for key, found in metric_support(rows).items() if key in wanted}
    null_only = sum(found["unsupported"] for found in support.values())
    return Coverage(
        required_metrics_total=len(wanted),
        required_metrics_present=len(support),
        required_metrics_numeric=len(support) - null_only,
        required_metrics_null_only=null_only,
        missing_required_metrics=sorted(wanted - support.keys()),
    )


def summary(values: Collection[float]) -> Summary:
    """Mean and percentiles of values."""
    middle = nearest_percentile(values, 50)
    mean = math.fsum(values) / len(values) if values else None
    return Summary(mean=mean, median=middle, p50=middle, p95=nearest_percentile(values, 95))


def nearest_percentile(values: Collection[float], q: int) -> float | None:
    """The q-th percentile as one of the values: the one at q/100·(n-1), halves rounded up; None without values.

    q: in percent, 0 to 100. Other numbers of the project interpolate instead (see `statistics.percentile`).
    """
    return sorted(values)[(q * (len(values) - 1) * 2 + 100) // 200] if values else None
