"""Comparisons of text that need no model."""

import pytest

from memtrials.metrics.lexical import contained, holds, words


def test_words_are_runs_of_letters_and_digits_without_articles():
    assert words("The cat's 3.5 kg; an Émile_2") == ["cat", "s", "3", "5", "kg", "émile", "2"]


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("You keep two hours free, on average.", "2 hours", 0.0),  # strict on purpose
        ("About 2 hours a day.", "2 hours", 1.0),
        ("About 12 hours a day.", "2 hours", 0.0),  # whole words
        ("the old LIGHTHOUSE!", "An old lighthouse", 1.0),
        ("old white lighthouse", "old lighthouse", 0.0),  # one after the other
        ("", "lighthouse", 0.0),
        ("anything", "?", 0.0),  # a gold answer without words is in nothing
    ],
)
def test_an_answer_contains_a_gold_answer(answer: str, gold: str, expected: float):
    assert contained(answer, (gold,))[0] == expected


def test_one_of_several_gold_answers_is_enough():
    score, reason = contained("She has a dog", ("a cat", "a dog"))
    assert score == 1.0
    assert "'a dog'" in reason
    assert contained("She has a dog", ())[0] == 0.0


def test_a_phrase_stands_where_its_words_do():
    assert holds(["green", "tea"], ["tea"])
    assert not holds(["green", "teapot"], ["tea"])
    assert not holds(["green"], [])
