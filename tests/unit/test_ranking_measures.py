"""The ranking measures at a cut-off: worked by hand, and beside another implementation."""

import random
from collections.abc import Sequence

import ir_measures
import pytest

from memtrials.metrics.retrieval import RANKING_MEASURES, mrr, ndcg, places, recall_all, recall_any, recall_fraction
from memtrials.records import Item


def ranked(*ids: str) -> list[tuple[str, ...]]:
    """Places of one id each."""
    return [(name,) for name in ids]


def five(ids: Sequence[str], gold: Sequence[str], k: int) -> list[float | None]:
    """any, all, fraction, mrr, ndcg."""
    return [measure(ranked(*ids), gold, k) for measure in RANKING_MEASURES.values()]


@pytest.mark.parametrize(
    ("ids", "gold", "k", "expected"),
    [
        ("xaybz", "abc", 3, [1, 0, 0.333333, 0.5, 0.296082]),
        ("xaybz", "abc", 5, [1, 0, 0.666667, 0.5, 0.498189]),
        ("aab", "ab", 3, [1, 1, 1, 1, 0.919721]),
        ("aa", "a", 2, [1, 1, 1, 1, 1]),
        ("", "a", 5, [0, 0, 0, 0, 0]),
        ("xyz", "a", 3, [0, 0, 0, 0, 0]),
        ("ab", "abcdef", 2, [1, 0, 0.333333, 1, 1]),
        (["s1", "s2"], ["s1", "s1", "s2"], 5, [1, 1, 1, 1, 1]),
        ("abaa", "a", 5, [1, 1, 1, 1, 1]),
        ("xa", "a", 1, [0, 0, 0, 0, 0]),
    ],
    ids=[
        "two of three, cut",
        "two of three",
        "a repeated id takes a rank and gains once",
        "a repeated id never goes above 1",
        "nothing retrieved",
        "no gold among it",
        "the ideal ends at k",
        "repeated gold counts once",
        "repeated sessions",
        "gold beyond k",
    ],
)
def test_worked_by_hand(ids: Sequence[str], gold: Sequence[str], k: int, expected: list[float]):
    assert five(ids, gold, k) == pytest.approx(expected, abs=5e-7)


def test_without_gold_no_measure_has_a_value():
    assert five("ab", [], 5) == [None] * 5


def test_a_place_with_several_ids_credits_each_and_gains_once():
    pairs = [("u1", "a1"), ("u2", "a2"), ("u3", "a3")]
    gold = {"a1", "u2", "a2"}
    assert recall_any(pairs, gold, 1) == 1.0
    assert recall_all(pairs, gold, 1) == 0.0
    assert recall_all(pairs, gold, 2) == 1.0
    assert recall_fraction(pairs, gold, 1) == pytest.approx(1 / 3)
    assert mrr(pairs, {"a3"}, 3) == pytest.approx(1 / 3)
    assert ndcg(pairs, gold, 3) == pytest.approx(1.0)  # nothing can be ranked better
    assert ndcg(pairs[::-1], gold, 3) == pytest.approx((0.630930 + 0.5) / (1 + 0.630930), abs=1e-6)


def test_a_place_without_ids_takes_up_a_rank():
    assert mrr([(), ("a",)], {"a"}, 5) == 0.5
    assert recall_any([(), ("a",)], {"a"}, 1) == 0.0


def test_ranks_order_places_and_unknown_turns_make_all_unknown():
    known = [Item(rank=2, text="…", turns=("0.1", "0.2")), Item(rank=1, text="…", turns=("3.0",))]
    assert places(known) == [("3.0",), ("0.1", "0.2")]
    assert places([*known, Item(rank=3, text="…")]) is None
    assert places(None) is None
    assert places([]) == []


def test_agrees_with_ir_measures_on_random_rankings():
    rng = random.Random(9)
    counterparts = {
        "recall-any": lambda k: ir_measures.Success @ k,
        "recall-fraction": lambda k: ir_measures.R @ k,
        "mrr": lambda k: ir_measures.RR @ k,
        "ndcg": lambda k: ir_measures.nDCG @ k,
    }
    cutoffs = (1, 3, 5, 10, 50)
    rankings, qrels, run = {}, {}, {}
    for n in range(1000):
        names = [f"d{i}" for i in range(rng.randint(1, 60))]
        gold = rng.sample(names, min(len(names), rng.randint(1, 8))) + ["never retrieved"] * rng.randint(0, 1)
        shown = rng.sample(names, rng.randint(1, len(names)))
        rankings[f"q{n}"] = (shown, gold)
        qrels[f"q{n}"] = dict.fromkeys(gold, 1)
        run[f"q{n}"] = {name: -float(rank) for rank, name in enumerate(shown)}
    asked = {str(make(k)): (name, k) for name, make in counterparts.items() for k in cutoffs}
    measures = [make(k) for make in counterparts.values() for k in cutoffs]
    compared = 0
    for found in ir_measures.iter_calc(measures, qrels, run):
        name, k = asked[str(found.measure)]
        shown, gold = rankings[found.query_id]
        assert RANKING_MEASURES[name](ranked(*shown), gold, k) == pytest.approx(found.value, abs=1e-9)
        if name == "recall-fraction":
            assert recall_all(ranked(*shown), gold, k) == float(found.value == 1.0)
        compared += 1
    assert compared == 1000 * len(measures)
