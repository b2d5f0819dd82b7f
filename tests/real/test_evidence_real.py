"""Retrieval measures on released LongMemEval instances and the released LoCoMo conversations.

The data is not part of this project. It is looked for in the folder that MEMTRIALS_REAL_DATA names, else in
`shared/data` beside the repository; a test whose data isn't there is skipped. Only numbers are kept here.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rank_bm25 import BM25Okapi

from memtrials.benchmarks import locomo, locomo_ranking, longmemeval, longmemeval_ranking
from memtrials.benchmarks.base import Benchmark, Loaded, LoadOptions
from memtrials.benchmarks.longmemeval_ranking import timeline
from memtrials.benchmarks.timeline import Session
from memtrials.metrics.longmemeval_retrieval import (
    OFFICIAL_MEASURES,
    evidence,
    session_corpus,
    session_view,
    turn_corpus,
)
from memtrials.records import Gold, Item

DATA = Path(os.environ.get("MEMTRIALS_REAL_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
S = DATA / "longmemeval" / "longmemeval_s_e47becba.json"
ORACLE = DATA / "longmemeval" / "longmemeval_oracle_2.json"
LOCOMO = DATA / "locomo" / "locomo10.json"

CUTOFFS = (1, 3, 5, 10, 30, 50)


def needs(*files: Path) -> pytest.MarkDecorator:
    return pytest.mark.skipif(
        not all(file.is_file() for file in files),
        reason="no released data; set MEMTRIALS_REAL_DATA to its folder",
    )


def instance(file: Path, task: str) -> tuple[str, Gold, list[Session]]:
    """A question's text, gold and timeline."""
    loaded = longmemeval.BENCHMARK.load(file, LoadOptions(allow_modified=True))
    body = next(body for name, _, body in loaded.tasks if name == task)
    (query,) = body.queries
    return query.text, body.gold_of(query.id), longmemeval.BENCHMARK.sessions(file, loaded.name, task, body)


def said_by_user(session: Session) -> list[str]:
    return [turn.content for turn in session.turns if turn.role == "user"]


def published_order(texts: Sequence[str], question: str) -> list[int]:
    """The published retriever: Okapi BM25 with its defaults, split at spaces; the reverse of an ascending sort."""
    scores = BM25Okapi([text.split(" ") for text in texts]).get_scores(question.split(" "))
    return [int(n) for n in np.argsort(scores)[::-1]]


@needs(S)
def test_published_bm25_over_sessions():
    question, gold, sessions = instance(S, "e47becba")
    corpus = session_corpus(timeline(gold))
    assert len(corpus) == 53
    assert evidence(corpus) == {"answer_280352e9"}
    order = published_order([" ".join(said_by_user(session)) for session in sessions], question)
    ranked = [corpus[n] for n in order]
    assert ranked[:2] == ["ultrachat_214101", "answer_280352e9"]
    values = {k: [measure(ranked, corpus, k) for measure in OFFICIAL_MEASURES.values()] for k in CUTOFFS}
    assert values == {1: [0, 0, 0], **{k: [1, 1, 1] for k in CUTOFFS[1:]}}


@needs(S)
def test_published_bm25_over_turns_and_the_same_from_a_ledgers_items():
    question, gold, sessions = instance(S, "e47becba")
    names = turn_corpus(timeline(gold))
    corpus = list(names.values())
    assert len(corpus) == 273
    assert evidence(corpus) == {"answer_280352e9_5"}
    assert {name for name in corpus if "noans" in name} == {f"noans_280352e9_{n}" for n in (1, 3, 7, 9, 11)}
    order = published_order([text for session in sessions for text in said_by_user(session)], question)
    ranked = [corpus[n] for n in order]
    assert ranked.index("answer_280352e9_5") == 1
    turns = list(names)
    items = [Item(rank=rank, text="…", turns=(turns[n],)) for rank, n in enumerate(order, 1)]
    measures = {measure.name: measure for measure in longmemeval_ranking.MEASURES}
    for k in CUTOFFS:
        expected = [0, 0, 0] if k == 1 else [1, 1, 1]
        assert [measure(ranked, corpus, k) for measure in OFFICIAL_MEASURES.values()] == expected
        view = session_view(ranked, corpus, k)
        assert [measure(*view) for measure in OFFICIAL_MEASURES.values()] == expected
        for level in ("turn", "session"):
            for name in OFFICIAL_MEASURES:
                if measure := measures.get(f"official-{level}-{name}@{k}"):
                    assert measure.value(items, gold) == 1.0
    assert measures["turn-mrr@5"].value(items, gold) == 0.5
    assert measures["turn-recall-fraction@50"].value(items, gold) == 0.5  # the other half is the assistant's


@needs(ORACLE)
def test_gold_of_two_evidence_sessions():
    _, gold, _ = instance(ORACLE, "6a1eabeb")
    assert evidence(turn_corpus(timeline(gold)).values()) == {"answer_a25d4a91_1_5", "answer_a25d4a91_2_1"}
    assert evidence(session_corpus(timeline(gold))) == {"answer_a25d4a91_1", "answer_a25d4a91_2"}


# --- LoCoMo: everything retrieved ---


@pytest.fixture(scope="module")
def conversations() -> Loaded:
    return locomo.BENCHMARK.load(LOCOMO, LoadOptions())


def everything(benchmark: Benchmark, loaded: Loaded) -> list[tuple[int, Gold, list[Item]]]:
    """Each question's category and gold, with an item for every turn of its conversation."""
    found = []
    for task, _, body in loaded.tasks:
        sessions = benchmark.sessions(Path(body.data), loaded.name, task, body)
        places = [f"{position}.{n}" for position, session in enumerate(sessions) for n in range(len(session.turns))]
        items = [Item(rank=rank, text="…", turns=(turn,)) for rank, turn in enumerate(places, 1)]
        found += [(locomo.category_of(gold), gold, items) for gold in body.gold]
    return found


def means(rows: Sequence[tuple[int, Any]]) -> list[float]:
    """By category 1 to 5, then over 1 to 4 and over all, of the questions that have a value."""

    def mean(wanted: Callable[[int], bool]) -> float:
        values = [value for category, value in rows if wanted(category) and value is not None]
        return sum(values) / len(values)

    return [
        *(mean(lambda category, c=c: category == c) for c in range(1, 6)),
        mean(lambda category: category < 5),
        mean(lambda category: True),
    ]


@needs(LOCOMO)
@pytest.mark.parametrize(
    ("name", "n", "expected"),
    [
        ("official-recall", 1986, [0.994259, 0.996885, 0.968750, 0.999604, 1, 0.996135, 0.997003]),
        ("official-recall-statistics", 1986, [0.994259, 0.996885, 0.927083, 0.999604, 1, 0.993537, 0.994989]),
        ("evidence-recall-repaired", 1982, [1] * 7),
        ("official-recall-sessions", 1986, [0.999493, 1, 1, 0.999604, 1, None, None]),
    ],
)
def test_locomo_ceilings(conversations: Loaded, name: str, n: int, expected: list[float | None]):
    measure = next(measure for measure in locomo_ranking.MEASURES if measure.name == name)
    rows = [(c, measure.value(items, gold)) for c, gold, items in everything(locomo.BENCHMARK, conversations)]
    assert sum(value is not None for _, value in rows) == n
    found = [f for f, e in zip(means(rows), expected, strict=True) if e is not None]
    assert found == pytest.approx([e for e in expected if e is not None], abs=5e-7)


@needs(LOCOMO)
def test_locomo_raw_recall_over_questions_with_evidence(conversations: Loaded):
    measure = next(measure for measure in locomo_ranking.MEASURES if measure.name == "evidence-recall")
    rows = [(c, measure.value(items, gold)) for c, gold, items in everything(locomo.BENCHMARK, conversations)]
    assert sum(value is not None for _, value in rows) == 1982
    assert sum(value is not None for c, value in rows if c < 5) == 1536
    # the published averages are the same sum over all 1,986 and 1,540
    assert means(rows)[-1] * 1982 / 1986 == pytest.approx(0.994989, abs=5e-7)
    assert means(rows)[-2] * 1536 / 1540 == pytest.approx(0.993537, abs=5e-7)


@needs(LOCOMO)
def test_locomo_evidence_counts(conversations: Loaded):
    """Evidence as written and repaired, by category."""
    counts = {"raw": dict.fromkeys(range(1, 6), 0), "repaired": dict.fromkeys(range(1, 6), 0)}
    for category, gold, _ in everything(locomo.BENCHMARK, conversations):
        counts["raw"][category] += len(locomo_ranking.elements(gold))
        counts["repaired"][category] += len(gold.evidence)
    assert list(counts["raw"].values()) == [884, 375, 200, 896, 460]
    assert list(counts["repaired"].values()) == [882, 375, 208, 895, 460]
