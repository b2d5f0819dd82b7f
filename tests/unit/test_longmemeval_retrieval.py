"""LongMemEval's own measures of retrieval, and how a ledger's rankings become its."""

import json
from collections.abc import Sequence

import pytest

from memtrials.benchmarks import longmemeval
from memtrials.benchmarks.base import Measure
from memtrials.benchmarks.longmemeval_ranking import MEASURES, has_users_evidence, is_answerable
from memtrials.metrics.longmemeval_retrieval import (
    OFFICIAL_MEASURES,
    evidence,
    ndcg_any,
    ranked_turns,
    session_corpus,
    session_view,
    turn_corpus,
)
from memtrials.records import Gold, Item, Query
from support.longmemeval import as_published, instance

BY_NAME = {measure.name: measure for measure in MEASURES}


def three(ids: Sequence[str], order: Sequence[int], k: int) -> list[float]:
    """recall_any, recall_all and ndcg_any of the corpus in that order."""
    return [measure([ids[n] for n in order], ids, k) for measure in OFFICIAL_MEASURES.values()]


SEVERAL = ["answer_a_1", "f1", "answer_a_2", "f2", "f3", "f4"]


@pytest.mark.parametrize(("k", "expected"), [(1, [0, 0, 0]), (3, [1, 0, 0.5]), (5, [1, 1, 0.75])])
def test_ranks_1_and_2_weigh_the_same(k: int, expected: list[float]):
    assert three(SEVERAL, [1, 0, 3, 2, 4, 5], k) == expected


def test_without_gold_recall_all_is_1():
    assert three(["f1", "f2", "noans_a_1"], [2, 0, 1], 3) == [0, 1, 0]


def test_a_repeated_id_counts_repeatedly_in_the_ideal():
    assert three(["answer_a", "f", "answer_a"], [1, 0, 2], 2) == [1, 1, 0.5]


def test_rank_3_gains_more_than_in_a_textbook():
    assert ndcg_any(["f", "g", "answer_a"], ["answer_a", "f", "g"], 3) == pytest.approx(0.6309, abs=5e-5)


def test_weights_of_the_first_ten_ranks():
    corpus = ["answer_a", *(f"f{n}" for n in range(9))]
    weights = [ndcg_any([*corpus[1:rank], "answer_a"], corpus, 10) for rank in range(1, 11)]
    expected = [1, 1, 0.6309, 0.5, 0.4307, 0.3869, 0.3562, 0.3333, 0.3155, 0.3010]
    assert weights == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(
    ("k", "reach", "expected"),
    [(1, 1, [0, 0, 0]), (2, 3, [1, 0, 0.3155]), (3, 4, [1, 0, 0.3155]), (5, 5, [1, 1, 0.5308])],
)
def test_turns_seen_by_sessions(k: int, reach: int, expected: list[float]):
    ids = ["answer_q_1_1", "noans_q_1_3", "f_1", "f_3", "answer_q_2_5"]
    view = session_view([ids[n] for n in (2, 3, 0, 1, 4)], ids, k)
    assert view[2] == reach
    assert evidence(view[1]) == {"answer_q_1", "answer_q_2"}
    assert [measure(*view) for measure in OFFICIAL_MEASURES.values()] == pytest.approx(expected, abs=5e-5)


TIMELINE = [("ultrachat_1", "uaua"), ("answer_0a", "aUauA"), ("answer_0b_abs_1", "uA"), ("ultrachat_1", "ua")]


def test_the_published_ids():
    assert session_corpus(TIMELINE) == ["ultrachat_1", "answer_0a", "noans_0b_abs_1", "ultrachat_1"]
    assert turn_corpus(TIMELINE) == {
        "0.0": "ultrachat_1_1",
        "0.2": "ultrachat_1_3",
        "1.1": "answer_0a_2",
        "1.3": "noans_0a_4",
        "2.0": "noans_0b_abs_1_1",
        "3.0": "ultrachat_1_1",
    }


def test_only_turns_of_the_user_have_a_rank():
    corpus = turn_corpus(TIMELINE)
    assert ranked_turns([("1.4",), ("3.0", "3.1"), (), ("1.1",), ("3.0",), ("0.0",)], corpus) == [
        "ultrachat_1_1",
        "answer_0a_2",
        "ultrachat_1_1",
    ]
    assert ranked_turns([("1.1", "1.2", "1.3")], corpus) is None


# --- as measures ---


def gold(timeline: list[tuple[str, str]], evidence_sessions: list[int], **fields: bool) -> Gold:
    turns = tuple(f"{p}.{n}" for p, (_, letters) in enumerate(timeline) for n, x in enumerate(letters) if x.isupper())
    details = {"timeline": json.dumps(timeline), "evidence_sessions": json.dumps(evidence_sessions)}
    return Gold(query="question", evidence=turns, details=details, **fields)


def items(*turns: tuple[str, ...] | None) -> tuple[Item, ...]:
    return tuple(Item(rank=rank, text="…", turns=some) for rank, some in enumerate(turns, 1))


def value(name: str, shown: tuple[Item, ...] | None, of: Gold) -> float | None:
    return BY_NAME[name].value(shown, of)


def test_a_session_that_comes_twice_counts_once():
    repeated = gold([("s", "Ua"), ("single", "ua"), ("s", "Ua")], [0, 2])
    shown = items(("2.0",), ("1.0",), ("0.0",))
    for level in ("session", "turn"):
        assert value(f"{level}-recall-all@5", shown, repeated) == 1.0
        assert value(f"{level}-recall-fraction@5", shown, repeated) == 1.0
        assert value(f"{level}-ndcg@5", shown, repeated) == 1.0
    assert value("session-mrr@3", items(("1.1",), ("2.1",)), repeated) == 0.5


def test_evidence_of_the_assistant_counts_except_for_the_publisher():
    told = gold(TIMELINE, [1, 2])
    shown = items(("2.1",), ("1.4",))
    assert value("turn-recall-fraction@5", shown, told) == pytest.approx(2 / 3)
    assert value("session-recall-all@3", shown, told) == 1.0
    assert value("official-turn-recall-any@5", shown, told) == 0.0
    assert value("official-turn-recall-all@5", items(("2.1",), ("1.1",)), told) == 1.0


def test_the_publishers_session_view_of_retrieved_turns():
    told = gold(TIMELINE, [1, 2])
    shown = items(("0.0",), ("0.2",), ("1.1",))
    assert value("official-session-recall-all@5", shown, told) == 1.0
    assert value("official-session-ndcg-any@5", shown, told) == pytest.approx(0.6309, abs=5e-5)


def test_without_evidence_ids_and_beyond_the_published_corpus_there_is_no_value():
    told = gold(TIMELINE, [1, 2])
    assert {measure.value(None, told) for measure in MEASURES} == {None}
    assert {measure.value(items(("1.1",), None), told) for measure in MEASURES} == {None}
    long = items(("1.1", "1.2", "1.3"))
    assert value("official-turn-recall-any@5", long, told) is None
    assert value("turn-recall-any@5", long, told) == 1.0


def test_an_empty_retrieval_finds_nothing():
    told = gold(TIMELINE, [1, 2])
    assert {measure.value((), told) for measure in MEASURES} == {0.0}


def in_average(measure: Measure, of: Gold) -> bool:
    return measure.asks(Query("question", "?", "q", "q"), of)


def test_the_two_published_averages_and_ours_are_over_other_questions():
    by_user, by_assistant = gold(TIMELINE, [1, 2]), gold([("answer_0", "uA")], [0])
    unanswerable = gold(TIMELINE, [1, 2], abstention=True)
    runner, printed, ours = (
        BY_NAME[name] for name in ("official-turn-recall-all@5", "official-printed-turn-recall-all@5", "turn-mrr@5")
    )
    assert [in_average(runner, g) for g in (by_user, by_assistant, unanswerable)] == [True, False, False]
    assert [in_average(printed, g) for g in (by_user, by_assistant, unanswerable)] == [True, True, False]
    assert [in_average(ours, g) for g in (by_user, by_assistant, unanswerable)] == [True, True, False]
    nothing = items(("0.0",))
    assert printed.value(nothing, by_assistant) == 1.0
    assert BY_NAME["official-printed-turn-recall-any@5"].value(nothing, by_assistant) == 0.0
    assert BY_NAME["official-printed-turn-ndcg-any@5"].value(nothing, by_assistant) == 0.0
    assert ours.value(nothing, by_assistant) == 0.0


def test_the_published_denominators():
    """500 questions of the published types, 51 of the answerable ones without evidence of the user's."""
    assistant_only = [
        {"role": "user", "content": "Where is it?", "has_answer": False},
        {"role": "assistant", "content": "In the attic.", "has_answer": True},
    ]
    published = as_published()
    answerable = [n for n, item in enumerate(published) if "_abs" not in item["question_id"]]
    of_assistant = [n for n in answerable if published[n]["question_type"] == "single-session-assistant"][:51]
    assert len(of_assistant) == 51
    counts = {is_answerable: 0, has_users_evidence: 0}
    for n, item in enumerate(published):
        sessions = item["haystack_sessions"]
        changed = {"haystack_sessions": [sessions[0], assistant_only]} if n in of_assistant else {}
        told = longmemeval._gold(instance(**{**item, **changed}))
        for asks in counts:
            counts[asks] += asks(Query("question", "?", "q", "q"), told)
    assert counts == {is_answerable: 470, has_users_evidence: 419}
