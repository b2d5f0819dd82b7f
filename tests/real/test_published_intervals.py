"""Intervals of released results, recomputed from their per-question labels.

The files are not part of this project. They are looked for in the folder that MEMTRIALS_REAL_DATA names, else in
`shared/data` beside the repository; without them every test here is skipped. Only numbers are kept here.
"""

import gzip
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from memtrials.metrics.statistics import Interval, mean_interval, percentile

DATA = Path(os.environ.get("MEMTRIALS_REAL_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
CONVERSATIONS = [f"conv-{number}" for number in (26, 30, 41, 42, 43, 44, 47, 48, 49, 50)]
"""The ten conversations in the order of the data file, which is how `locomo_exp_user_<i>` counts them."""

Labels = list[tuple[str, bool]]
"""One (cluster, judged correct) per question."""


def released(name: str) -> Any:
    """A released result file as parsed JSON; skips the test when it is not there."""
    path = DATA / "memorybear" / name
    if not path.is_file():
        pytest.skip(f"no released results at {path}; set MEMTRIALS_REAL_DATA to the folder that holds memorybear/")
    return json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())


def memorybear_locomo() -> Labels:
    """Categories 1 to 4, the 1,540 questions that the other systems were asked too."""
    records = released("locomo/memorybear/memorybear_locomo_judged.json.gz")
    return [(r["conv_id"], r["llm_judge"]["correct"]) for r in records if r["category"] != 5]


def mem0_locomo() -> Labels:
    records = released("locomo/mem0/mem0_locomo_judged.json.gz")
    return [(r["conv_id"], r["llm_judge"]["correct"]) for r in records]


def memos_locomo() -> Labels:
    by_user: Mapping[str, list[dict[str, Any]]] = released("locomo/memos/memos_locomo_judged.json.gz")
    return [
        (conversation, record["llm_judgments"]["judgment_1"])
        for number, conversation in enumerate(CONVERSATIONS)
        for record in by_user[f"locomo_exp_user_{number}"]
    ]


def memorybear_longmemeval() -> Labels:
    records = released("lme/memorybear/memorybear_lme_judged.json")
    return [(r["question_id"].removesuffix("_abs"), r["llm_judge"]["correct"]) for r in records]


def memos_longmemeval() -> Labels:
    """Its records have no question id; the question texts are unique and the same in both files."""
    ids = {r["question"]: r["question_id"] for r in released("lme/memorybear/memorybear_lme_judged.json")}
    records = released("lme/memos/memos_lme_judged.json").values()
    assert len(ids) == len(records) == 500
    return [(ids[r["question"]].removesuffix("_abs"), r["llm_judgments"]["judgment_1"]) for r in records]


def interval_of(labels: Labels) -> Interval:
    interval = mean_interval([float(correct) for _, correct in labels], [cluster for cluster, _ in labels])
    assert interval is not None
    return interval


@pytest.mark.parametrize(
    ("labels", "right", "n", "clusters", "percent", "low", "high"),
    [
        (memos_locomo, 1298, 1540, 10, 84.3, 80.5, 87.5),
        (mem0_locomo, 1273, 1540, 10, 82.7, 80.5, 84.7),
        (memorybear_locomo, 1397, 1540, 10, 90.7, 88.3, 92.7),
        (memorybear_longmemeval, 475, 500, 471, 95.0, 92.7, 96.6),
        # Low bound 84.146. Also quoted as 84.2, which a normal quantile gives (84.155) and Student's t does not.
        (memos_longmemeval, 437, 500, 471, 87.4, 84.1, 90.1),
    ],
)
def test_intervals_of_released_results(
    labels: Callable[[], Labels], right: int, n: int, clusters: int, percent: float, low: float, high: float
) -> None:
    rows = labels()
    interval = interval_of(rows)
    assert (sum(correct for _, correct in rows), len(rows), interval.clusters) == (right, n, clusters)
    assert round(100 * right / n, 1) == percent
    assert (round(100 * interval.low, 1), round(100 * interval.high, 1)) == (low, high)


def test_percentiles_of_released_latencies() -> None:
    """Linear between ranks: other methods give 900, 910, 918.99… or 920 for the 95th."""
    latencies = [r["latency_ms"] for r in released("lme/memorybear/memorybear_lme_judged.json")]
    assert percentile(latencies, 50) == 510.0
    assert percentile(latencies, 95) == pytest.approx(900.9999999999991, rel=1e-9)
