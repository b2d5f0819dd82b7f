"""BM25, cosine and their fusion: worked examples by hand, and the same scores as a reference implementation."""

import math

import bm25s
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from memtrials.benchmarks.timeline import Session, Turn
from memtrials.systems.embedded import Searchable, chunk_bounds
from memtrials.systems.ranking import K1, B, Bm25, Ranking, cosine, fuse, token_counts, tokens
from memtrials.systems.store import Chunk, StoredTurn

TEA = ("Conversation about tea", "I like green tea, green tea only.", "Coffee is fine")
"""Three documents of 3, 7 and 3 tokens; the average is 4.333333."""

WORDS = st.sampled_from(["a", "b", "c", "d", "e", "f"])
DOCUMENTS = st.lists(st.lists(WORDS, max_size=12), min_size=1, max_size=9)
QUERY = st.lists(WORDS, max_size=6)


Hits = list[tuple[int, float]]


def ranked(query: str, *documents: str) -> Hits:
    """The BM25 ranking of documents by position."""
    return Bm25([token_counts(document) for document in documents]).rank(query).first()


def fused(*rankings: Hits) -> Hits:
    """The fusion of rankings."""
    columns = [tuple(zip(*hits, strict=True)) or ((), ()) for hits in rankings]
    return fuse(*(Ranking(np.array(n, np.intp), np.array(scores)) for n, scores in columns)).first()


def texts(words: list[list[str]]) -> list[str]:
    return [" ".join(some) for some in words]


# Tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't stop—Ünïcode_42 ok", ["don", "t", "stop", "Ünïcode", "42", "ok"]),
        ("ÉCOLE École", ["École", "École"]),
        ("snake_case o'clock", ["snake", "case", "o", "clock"]),
        ("図書館 3.5", ["図書館", "3", "5"]),
        ("", []),
        ("—?!_ '\n", []),
    ],
)
def test_tokens_are_runs_of_alphanumerics_with_only_ascii_lower_cased(text: str, expected: list[str]):
    assert tokens(text) == expected


def test_tokens_are_counted_once_per_text():
    assert token_counts("Tea, green tea") == {"tea": 2, "green": 1}
    assert token_counts("Tea, green tea") is token_counts("Tea, green tea")


# BM25


def test_scores_of_the_worked_example():
    assert ranked("green tea", *TEA) == [(1, pytest.approx(1.700566, abs=1e-6)), (0, pytest.approx(0.537684, abs=1e-6))]
    assert ranked("tea", *TEA) == [(1, pytest.approx(0.550906, abs=1e-6)), (0, pytest.approx(0.537684, abs=1e-6))]


@given(documents=DOCUMENTS, queries=st.lists(QUERY, min_size=1, max_size=40))
def test_many_queries_of_one_index_rank_as_each_alone_would(documents: list[list[str]], queries: list[list[str]]):
    """However the index has come to know a token: by a search, from an earlier query, or from the sorted whole."""
    some = texts(documents)
    shared = Bm25([token_counts(text) for text in some])
    for query in texts(queries):
        assert shared.rank(query).first() == ranked(query, *some)


def test_a_repeated_query_token_counts_each_time():
    assert ranked("TEA tea", *TEA) == [(1, pytest.approx(1.101812, abs=1e-6)), (0, pytest.approx(1.075368, abs=1e-6))]


def test_one_term_by_hand():
    """N 2, df 1: idf = ln(1.5/1.5 + 1) = ln 2. tf 1, length 1, average 2: 2.2 / (1 + 1.2 · (0.25 + 0.75 / 2))."""
    assert ranked("x", "x", "y y y") == [(0, pytest.approx(math.log(2) * 2.2 / 1.75))]


def test_documents_without_a_query_token_are_not_hits():
    assert [n for n, _ in ranked("coffee", *TEA)] == [2]
    assert ranked("water", *TEA) == []


@pytest.mark.parametrize("query", ["", "?!", "tea"])
def test_nothing_is_found_without_query_tokens_or_documents(query: str):
    assert ranked(query) == []
    assert ranked(query, "", "…") == []


def test_a_token_in_every_document_still_scores():
    assert all(score > 0 for _, score in ranked("tea", "tea", "tea", "tea"))


def test_ties_keep_document_order():
    assert [n for n, _ in ranked("b", "a b", "b a", "b", "a b")] == [2, 0, 1, 3]


@settings(max_examples=200, deadline=None)
@given(DOCUMENTS, QUERY)
def test_scores_equal_the_reference(documents: list[list[str]], query: list[str]):
    """bm25s' `lucene` method leaves out the constant factor k1 + 1."""
    assume(query and any(documents))
    reference = bm25s.BM25(method="lucene", k1=K1, b=B)
    with np.errstate(invalid="ignore"):
        reference.index(documents, show_progress=False)
    expected = reference.get_scores(query) * (K1 + 1)
    found = dict(ranked(" ".join(query), *texts(documents)))
    assert found == {n: pytest.approx(score, rel=1e-5) for n, score in enumerate(expected) if score > 0}


@given(DOCUMENTS, QUERY)
def test_a_ranking_is_ordered_by_score_then_position(documents: list[list[str]], query: list[str]):
    found = ranked(" ".join(query), *texts(documents))
    assert found == sorted(found, key=lambda hit: (-hit[1], hit[0]))
    assert {n for n, _ in found} == {n for n, words in enumerate(documents) if set(words) & set(query)}


# Cosine


def unit(*values: float) -> np.ndarray:
    vector = np.array(values, np.float32)
    return vector / np.linalg.norm(vector)


def test_cosine_ranks_every_document_that_has_a_vector():
    matrix = np.array([[1, 0], [0, 1], [0.6, 0.8]], np.float32)
    assert cosine(unit(1, 0), matrix, np.array([0, 2, 5])).first() == [(0, 1.0), (5, pytest.approx(0.6)), (2, 0.0)]


def test_opposite_documents_come_last():
    assert cosine(unit(1, 0), np.array([[-1, 0], [0, 1]], np.float32), np.array([0, 1])).first() == [
        (1, 0.0),
        (0, -1.0),
    ]


def test_a_query_without_vector_finds_nothing():
    assert cosine(None, np.eye(2, dtype=np.float32), np.array([0, 1])).first() == []
    assert cosine(unit(1, 0), np.empty((0, 0), np.float32), np.array([], np.intp)).first() == []


@pytest.mark.parametrize("size", [3, 7, 13, 63, 489])
def test_equal_texts_tie_wherever_they_stand(size: int):
    """A matrix product rounds equal rows differently, by their place in its blocks."""
    random = np.random.default_rng(size)
    matrix = random.normal(size=(size, 256)).astype(np.float32)
    matrix[::2] = unit(*random.normal(size=256))
    found = cosine(unit(*random.normal(size=256)), matrix, np.arange(size)).first()
    assert len({score for n, score in found if n % 2 == 0}) == 1
    assert [n for n, _ in found if n % 2 == 0] == list(range(0, size, 2))


def chunk(text: str, vector: np.ndarray | None = None) -> Chunk:
    return Chunk((StoredTurn("0.0", "user", None, None, text),), None if vector is None else vector.tobytes())


def test_a_document_without_vector_is_never_a_dense_hit():
    state = Searchable([chunk("…"), chunk("tea", unit(0, 1)), chunk("—"), chunk("coffee", unit(1, 0))])
    assert state.dense(unit(1, 1).tobytes()).first() == [(1, pytest.approx(0.5**0.5)), (3, pytest.approx(0.5**0.5))]
    assert state.dense(None).first() == []
    assert Searchable([chunk("…")]).dense(unit(1, 0).tobytes()).first() == []
    assert Searchable([]).dense(unit(1, 0).tobytes()).first() == []


def test_the_lexical_ranking_reads_the_chunks_texts():
    state = Searchable([chunk(text) for text in TEA])
    assert state.lexical("green tea").first() == ranked("green tea", *TEA)


# Fusion


def test_fusion_adds_reciprocal_ranks():
    """1 is second, then first: 1/62 + 1/61. 0 is first alone: 1/61. 2 is second alone: 1/62."""
    assert fused([(0, 9.0), (1, 8.0)], [(1, 0.5), (2, 0.4)]) == [
        (1, pytest.approx(1 / 62 + 1 / 61)),
        (0, pytest.approx(1 / 61)),
        (2, pytest.approx(1 / 62)),
    ]


def test_fusion_ignores_scores_and_breaks_ties_by_document():
    assert [n for n, _ in fused([(3, 100.0), (1, 0.1)], [(1, 0.9), (3, 0.8)])] == [1, 3]


def test_fusion_with_an_empty_ranking_keeps_the_other():
    assert fused([(4, 2.0), (2, 1.0)], []) == [(4, pytest.approx(1 / 61)), (2, pytest.approx(1 / 62))]
    assert fused([], []) == []


# Chunks


def session(roles: str) -> Session:
    """A session of one turn for each letter: u or a."""
    return Session(tuple(Turn({"u": "user", "a": "assistant"}[role], "…") for role in roles))


@pytest.mark.parametrize(
    ("roles", "pairs"),
    [
        ("uaua", [(0, 1), (2, 3)]),
        ("uau", [(0, 1), (2, 2)]),
        ("aua", [(0, 0), (1, 2)]),
        ("a", [(0, 0)]),
        ("uuaa", [(0, 0), (1, 2), (3, 3)]),
        ("aau", [(0, 0), (1, 1), (2, 2)]),
        ("", []),
    ],
)
def test_a_pair_is_a_users_turn_with_the_answer_after_it(roles: str, pairs: list[tuple[int, int]]):
    assert chunk_bounds(session(roles), "pair") == pairs
    assert chunk_bounds(session(roles), "turn") == [(n, n) for n in range(len(roles))]


@given(st.text(alphabet="ua", max_size=20))
def test_every_turn_is_in_one_chunk(roles: str):
    turns = [n for first, last in chunk_bounds(session(roles), "pair") for n in range(first, last + 1)]
    assert turns == list(range(len(roles)))
