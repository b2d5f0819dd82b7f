"""LoCoMo's recall of evidence, raw and repaired, by turns and sessions."""

import json

import pytest

from memtrials.benchmarks.locomo_ranking import MEASURES
from memtrials.metrics.locomo_recall import official_recall, recall, statistics_recall
from memtrials.records import Gold, Item

BY_NAME = {measure.name: measure for measure in MEASURES}


@pytest.mark.parametrize(
    ("evidence", "context", "expected"),
    [
        (["D1:3", "D2:5"], ["D1:3", "D4:1"], 0.5),
        (["D1:3", "D2:5", "D2:9"], ["S2", "S7"], 0.6667),
        (["D8:6; D9:17"], ["D8:6", "D9:17"], 0),
        (["D8:6; D9:17"], ["S8"], 1),
        (["D4:5", "D4:5", "D5:5"], ["D4:5"], 0.6667),
        (["D11:3"], ["S1"], 0),
        (["D:11:26"], ["S11"], 0),
        (["D1:3"], [], 0),
        ([], ["D1:3"], 1),
        ([], [], 1),
    ],
)
def test_the_published_value_of_a_row(evidence: list[str], context: list[str], expected: float):
    assert official_recall(evidence, context) == pytest.approx(expected, abs=5e-5)


def test_three_conventions_for_questions_without_evidence():
    assert (recall([], ["D1:3"]), official_recall([], ["D1:3"]), statistics_recall([], ["D1:3"])) == (None, 1.0, 0.0)
    assert [of(["D1:3"], ["D1:3"]) for of in (recall, official_recall, statistics_recall)] == [1.0, 1.0, 1.0]


# --- as measures ---


def gold(*elements: tuple[str, str | None, int | None], repaired: tuple[str, ...] = ()) -> Gold:
    return Gold(query="0", evidence=repaired, details={"evidence": json.dumps(elements)})


def items(*turns: tuple[str, ...] | None) -> tuple[Item, ...]:
    return tuple(Item(rank=rank, text="…", turns=some) for rank, some in enumerate(turns, 1))


TWO_IN_ONE = gold(("D8:6; D9:17", None, 7), repaired=("7.5", "8.16"))
TWICE = gold(("D4:5", "3.4", 3), ("D4:5", "3.4", 3), ("D5:5", "4.4", 4), repaired=("3.4", "4.4"))


@pytest.mark.parametrize(
    ("name", "asked", "turns", "expected"),
    [
        ("official-recall", TWO_IN_ONE, [("7.5",), ("8.16",)], 0.0),
        ("official-recall-sessions", TWO_IN_ONE, [("7.0",)], 1.0),
        ("evidence-recall", TWO_IN_ONE, [("7.5",), ("8.16",)], 0.0),
        ("evidence-recall-repaired", TWO_IN_ONE, [("7.5",), ("8.16",)], 1.0),
        ("dialog-recall-any@5", TWO_IN_ONE, [("7.5",), ("8.16",)], 0.0),
        ("session-recall-any@5", TWO_IN_ONE, [("7.5",), ("8.16",)], None),
        ("official-recall", TWICE, [("3.4",)], 2 / 3),
        ("evidence-recall-repaired", TWICE, [("3.4",)], 0.5),
        ("dialog-recall-fraction@5", TWICE, [("3.4",)], 0.5),
        ("dialog-recall-all@5", TWICE, [("4.3", "4.4"), ("3.4",)], 1.0),
        ("session-recall-all@3", TWICE, [("3.0",), ("4.0",)], 1.0),
        ("session-mrr@3", TWICE, [("0.0",), ("4.0",)], 0.5),
    ],
)
def test_what_a_measure_makes_of_retrieved_turns(
    name: str, asked: Gold, turns: list[tuple[str, ...]], expected: float | None
):
    assert BY_NAME[name].value(items(*turns), asked) == (None if expected is None else pytest.approx(expected))


def test_without_evidence_only_the_published_conventions_have_a_value():
    values = {name: measure.value(items(("0.0",)), gold()) for name, measure in BY_NAME.items()}
    assert {name: value for name, value in values.items() if value is not None} == {
        "official-recall": 1.0,
        "official-recall-sessions": 1.0,
        "official-recall-statistics": 0.0,
    }


def test_no_ids_are_unknown_and_no_items_are_nothing_found():
    assert {measure.value(None, TWICE) for measure in MEASURES} == {None}
    assert {measure.value(items(None), TWICE) for measure in MEASURES} == {None}
    assert {measure.value((), TWICE) for measure in MEASURES} == {0.0}
