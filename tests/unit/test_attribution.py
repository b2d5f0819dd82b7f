"""Where a memory failed: one class for every combination of verdicts, by the order of the rules."""

from collections import Counter
from itertools import product

import pytest

from memtrials.benchmarks import inmind as benchmark
from memtrials.metrics.attribution import INMIND, INMIND_BY_RULE, LOST, UNRETRIEVABLE, inmind, inmind_by_rule

PROBED = {LOST, UNRETRIEVABLE}
"""Classes that only a storage probe can tell."""

WITH_A_MODEL = """
direct target application  class
1      1      1            success
0      1      1            success
-      1      1            success
1      0      1            judges inconsistent
0      0      1            judges inconsistent
-      0      1            judges inconsistent
1      1      0            surfaced, not used
0      1      0            surfaced, not used
-      1      0            surfaced, not used
1      0      0            blind spot
0      0      0            not stored or not retrievable
-      0      0            undetermined
1      -      1            undetermined
0      -      1            undetermined
-      -      1            undetermined
1      -      0            undetermined
0      -      0            undetermined
-      -      0            undetermined
1      1      -            undetermined
0      1      -            undetermined
-      1      -            undetermined
1      0      -            undetermined
0      0      -            undetermined
-      0      -            undetermined
1      -      -            undetermined
0      -      -            undetermined
-      -      -            undetermined
"""
"""A missing verdict (-) leaves a task undetermined only where the rule that decides it needs that verdict."""

BY_RULE = """
direct target  class
1      1       surfaced
0      1       surfaced
-      1       surfaced
1      0       stored, not surfaced
0      0       not stored or not retrievable
-      0       undetermined
1      -       undetermined
0      -       undetermined
-      -       undetermined
"""


def rows(table: str) -> list[tuple[list[float | None], str]]:
    """The verdicts and the class of each line below the heading."""
    heading, *lines = table.strip().splitlines()
    verdicts = len(heading.split()) - 1
    split = [line.split(None, verdicts) for line in lines]
    return [([None if v == "-" else float(v) for v in cells[:-1]], cells[-1]) for cells in split]


@pytest.mark.parametrize(("verdicts", "expected"), rows(WITH_A_MODEL))
def test_classes_from_a_models_verdicts(verdicts: list[float | None], expected: str):
    assert inmind(*verdicts) == expected


@pytest.mark.parametrize(("verdicts", "expected"), rows(BY_RULE))
def test_classes_from_rules(verdicts: list[float | None], expected: str):
    assert inmind_by_rule(*verdicts) == expected


def test_the_tables_are_complete():
    values = (0.0, 1.0, None)
    assert {tuple(v) for v, _ in rows(WITH_A_MODEL)} == set(product(values, repeat=3))
    assert {tuple(v) for v, _ in rows(BY_RULE)} == set(product(values, repeat=2))
    assert {c for _, c in rows(WITH_A_MODEL)} == set(INMIND) - PROBED
    assert {c for _, c in rows(BY_RULE)} == set(INMIND_BY_RULE) - PROBED


def test_classes_are_exclusive_and_sum_to_the_number_of_tasks():
    counts = Counter(inmind(*verdicts) for verdicts in product((0.0, 1.0, None), repeat=3))
    assert sum(counts.values()) == 27
    assert counts == {
        "success": 3,
        "judges inconsistent": 3,
        "surfaced, not used": 3,
        "blind spot": 1,
        "not stored or not retrievable": 1,
        "undetermined": 16,
    }


def test_inmind_reads_its_own_metrics():
    judged = {"direct-recall": 1.0, "target-recall": 0.0, "application": 0.0, "naive": 0.0, "answer-only": 1.0}
    assert benchmark.attribute(judged, by_rule=False) == "blind spot"
    assert benchmark.attribute({**judged, "target-recall": 1.0}, by_rule=False) == "surfaced, not used"
    assert benchmark.attribute({}, by_rule=False) == "undetermined"


def test_inmind_keeps_rules_and_models_apart():
    rules = {"direct-verbatim": 1.0, "target-verbatim": 0.0}
    assert benchmark.attribute(rules, by_rule=True) == "stored, not surfaced"
    assert benchmark.attribute(rules, by_rule=False) == "undetermined"
    assert benchmark.attribute({"direct-recall": 1.0, "target-recall": 0.0}, by_rule=True) == "undetermined"
