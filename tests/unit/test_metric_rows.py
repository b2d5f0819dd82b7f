"""Support and coverage of metric keys over rows, as the retrieval harness reports them."""

import pytest

from memtrials.metrics.rows import (
    BASE_KEYS,
    Returned,
    Traced,
    base_values,
    composition,
    marks_of,
    metric_support,
    nearest_percentile,
    orphan_rate,
    ranking_keys,
    registry_coverage,
    summary,
    validation_rate,
)


def test_support_counts_rows_numbers_and_nulls():
    rows = [{"a": 0.0, "b": None}, {"a": None, "b": None}, {"a": 1.0}]
    assert metric_support(rows) == {
        "a": {"rows_present": 3, "numeric_rows": 2, "null_rows": 1, "unsupported": False},
        "b": {"rows_present": 2, "numeric_rows": 0, "null_rows": 2, "unsupported": True},
    }
    assert metric_support([]) == {}


def test_the_required_keys_of_the_maintained_cut_offs():
    keys = [*BASE_KEYS, *ranking_keys({"dialog": (5, 10, 20, 50), "session": (1, 3, 5, 10)})]
    assert len(set(keys)) == len(keys) == 62
    assert {"dialog_recall_fraction@20", "session_ndcg@1", "session_recall_any@10", "dialog_mrr@50"} <= set(keys)


def test_coverage_of_the_required_keys():
    required = ranking_keys({"session": (1, 5)})
    null = dict.fromkeys(required)
    assert registry_coverage([null, null | {"session_mrr@5": 0.5, "extra": 1.0}], required) == {
        "required_metrics_total": 10,
        "required_metrics_present": 10,
        "required_metrics_numeric": 1,
        "required_metrics_null_only": 9,
        "missing_required_metrics": [],
    }
    partly = registry_coverage([{"session_mrr@5": 0.0, "session_ndcg@5": None}], required)
    assert partly["required_metrics_present"] == 2
    assert partly["required_metrics_null_only"] == 1
    assert partly["missing_required_metrics"] == sorted(set(required) - {"session_mrr@5", "session_ndcg@5"})


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [
        ([10, 20, 30, 40], 50, 30),
        ([10, 20, 30, 40], 95, 40),
        ([20, 10], 50, 20),
        ([1, 2, 3, 4, 5, 6], 50, 4),
        (range(1, 21), 95, 19),
        ([120, 80, 95, 400, 100], 50, 100),
        ([120, 80, 95, 400, 100], 95, 400),
        (range(1, 42), 95, 39),
        ([7], 95, 7),
        ([], 50, None),
    ],
)
def test_percentiles_are_values_and_halves_go_up(values: list[float], q: int, expected: float | None):
    assert nearest_percentile(list(values), q) == expected


def test_nulls_count_as_nothing_in_a_summary():
    rows: list[dict[str, float | None]] = [{"m": 1.0, "n": None}, {"m": None}, {"m": 0.5}]
    assert metric_support(rows)["m"] == {"rows_present": 3, "numeric_rows": 2, "null_rows": 1, "unsupported": False}
    assert summary([v for row in rows if (v := row["m"]) is not None]) == {
        "mean": 0.75,
        "median": 1.0,
        "p50": 1.0,
        "p95": 1.0,
    }
    assert summary([120, 80, 95, 400, 100]) == {"mean": 159.0, "median": 100, "p50": 100, "p95": 400}
    assert set(summary([]).values()) == {None}


# --- what every row has ---


def test_the_share_of_items_about_which_nothing_is_wrong():
    assert validation_rate(10, 9, 1, 0) == 0.8
    assert validation_rate(4, 0, 3, 2) == 0.0
    assert validation_rate(0, 5, 0, 0) == 1.0
    assert validation_rate(3, 40, 0, 0) == 1.0


def test_orphans_are_a_share_of_what_came_back_and_what_was_left_out_for_it():
    assert orphan_rate(10, 1, 3) == pytest.approx(0.076923, abs=1e-6)
    assert orphan_rate(0, 0, 0) == 0.0


ITEMS = [
    Returned("episode", "e", "e", None, explained=True),
    Returned("observation", "o", "e:observation", "e", explained=True),
    Returned("derived_memory", "d", "e:derived", "e"),
    Returned("derived_memory", "x", None, None),
]


def test_what_came_back_is_counted_by_kind():
    assert composition(ITEMS) == {
        "total_items": 4,
        "episodes": 1,
        "observations": 1,
        "derived_memories": 2,
        "memory_threads": 0,
        "entities": 0,
        "items_with_rationale": 2,
        "rationale_coverage": 0.5,
    }
    assert composition([])["rationale_coverage"] == 1.0
    assert set(composition(None).values()) == {None}


def test_a_trace_tells_what_should_not_have_come_back():
    trace = Traced(
        suppressed=frozenset({"o", "gone"}), superseded=frozenset({"d", "x"}), missing=frozenset({"x", "y"}), verified=3
    )
    found = base_values(10, 40, ITEMS, trace)
    assert found["suppressed_memory_leakage_rate"] == 0.25
    assert found["superseded_current_leakage_rate"] == 0.5
    assert found["orphan_vector_leakage_rate"] == 1 / 5
    assert found["context_validation_pass_rate"] == 0.0  # one unverified, three unsafe, one missing
    assert found["suppressed_or_deleted_items_returned"] == 1
    assert found["superseded_items_returned_as_current"] == 2
    assert base_values(10, 40, [], trace)["suppressed_memory_leakage_rate"] == 0.0


def test_what_nobody_checked_or_knows_is_null():
    numeric = {
        name for name, value in base_values(10, 40, ITEMS, None).items() if value is not None and name in BASE_KEYS
    }
    assert numeric == {
        *BASE_KEYS[:9],
        "retrieval_rationale_coverage",
        "provenance_coverage",
    }
    unknown = base_values(0, None, None, None)
    assert {name for name, value in unknown.items() if value is not None} == {"retrieved_context_tokens"}
    assert base_values(10, 40, [Returned("entity", "n")], None)["num_entities"] == 1


def test_a_report_of_its_own_says_what_was_done_in_part_only():
    whole = {"vector_indexing_failure": None, "stats_update_status": {"failure": None}, "repair_needed": []}
    assert marks_of(whole) == []
    assert marks_of({}) == []
    assert marks_of(whole | {"vector_indexing_failure": {"reason": "disk"}, "repair_needed": ["a"]}) == [
        "vector failure",
        "repair needed",
    ]
    assert marks_of({"vector_maintenance_failure": {}, "stats_update_status": {"failure": {"reason": "disk"}}}) == [
        "vector upkeep failure",
        "statistics failure",
    ]
