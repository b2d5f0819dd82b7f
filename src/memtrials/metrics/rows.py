"""Rows of metric values as the retrieval harness folds them: which metrics there must be, and which are measured.

A row is one question's values by key. Null means that the metric can't be measured there: never zero, never a failure.
Source: `ebigunso/character-memory-evals`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypedDict

from memtrials.metrics.retrieval import RANKING_MEASURES

Row = Mapping[str, float | None]

BASE_KEYS = (
    "retrieved_context_tokens",
    "full_history_tokens",
    "context_compression_ratio",
    "context_reduction_rate",
    "num_retrieved_items",
    "num_relevant_episodes",
    "num_relevant_observations",
    "num_derived_memories",
    "num_active_threads",
    "num_entities",
    "retrieval_rationale_coverage",
    "provenance_coverage",
    "suppressed_memory_leakage_rate",
    "superseded_current_leakage_rate",
    "orphan_vector_leakage_rate",
    "context_validation_pass_rate",
    "cross_store_id_validation_pass_rate",
    "qa_accuracy",
    "qa_f1",
    "qa_exact_match",
    "abstention_accuracy",
    "unsupported_answer_rate",
)
"""What every row has, whatever its data set."""


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


def nearest_percentile(values: Sequence[float], q: float) -> float | None:
    """The q-th percentile as one of the values: the one at q/100·(n-1), halves rounded up; None without values.

    q: in percent, 0 to 100. Other numbers of the project interpolate instead (see `statistics.percentile`).
    """
    return sorted(values)[math.floor(q / 100 * (len(values) - 1) + 0.5)] if values else None
