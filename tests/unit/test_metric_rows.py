"""Support and coverage of metric keys over rows, as the retrieval harness reports them."""

import pytest

from memtrials.metrics.rows import BASE_KEYS, metric_support, nearest_percentile, ranking_keys, registry_coverage


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
def test_percentiles_are_values_and_halves_go_up(values: list[float], q: float, expected: float | None):
    assert nearest_percentile(list(values), q) == expected
