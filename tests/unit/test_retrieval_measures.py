"""Hits and ranks of evidence among retrieved items."""

import pytest

from memtrials.metrics.retrieval import first_hit, hit
from memtrials.records import Item

EVIDENCE = ("4.8",)


def items(*turns: tuple[str, ...] | None) -> list[Item]:
    """Items of these turns, best first."""
    return [Item(rank=rank, text="…", turns=some) for rank, some in enumerate(turns, 1)]


@pytest.mark.parametrize(
    ("turns", "rank"),
    [
        ([("4.8",)], 1.0),
        ([("0.0",), ("4.7", "4.8"), ("4.8",)], 2.0),
        ([("0.0",), ("4.80",), ("14.8",)], None),
        ([], None),
    ],
    ids=["first", "second, in a chunk", "never", "nothing retrieved"],
)
def test_the_first_item_that_holds_the_evidence(turns: list[tuple[str, ...]], rank: float | None):
    assert first_hit(items(*turns), EVIDENCE) == rank
    assert hit(items(*turns), EVIDENCE) == (0.0 if rank is None else 1.0)


def test_ranks_decide_not_the_order_of_the_list():
    assert first_hit(items(("0.0",), ("4.8",), ("4.8",))[::-1], EVIDENCE) == 2.0


def test_one_of_several_turns_is_enough():
    assert first_hit(items(("0.0",), ("4.9",)), ("4.8", "4.9")) == 2.0
    assert hit(items(("4.9",)), ("4.8", "4.9")) == 1.0


def test_without_evidence_ids_nothing_is_known():
    assert hit(None, EVIDENCE) is None
    assert first_hit(None, EVIDENCE) is None
    assert hit(items(None, None), EVIDENCE) is None
    assert hit(items(("4.8",), None), EVIDENCE) is None


def test_without_evidence_there_is_nothing_to_hit():
    assert hit(items(("4.8",)), ()) is None
    assert first_hit(items(("4.8",)), ()) is None


def test_an_empty_retrieval_is_a_miss():
    assert hit([], EVIDENCE) == 0.0
    assert first_hit([], EVIDENCE) is None
