"""What a budget leaves of a context: whole pieces in the order of rank, then a cut one, then nothing."""

from itertools import pairwise

import pytest

from memtrials.records import Fit
from memtrials.systems.rendering import fit_budget
from memtrials.tokens import count_tokens

PIECES = ("one two three", "four five", "six seven eight nine")
"""3, 2 and 4 tokens; a line end is a token more."""


@pytest.mark.parametrize(
    ("budget", "context", "fit"),
    [
        (2, "one two", (2, 0, 1, 2)),
        (3, "one two three", (3, 1, 0, 2)),
        (5, "one two three\nfour", (5, 1, 1, 1)),
        (6, "one two three\nfour five", (6, 2, 0, 1)),
        (9, "one two three\nfour five\nsix seven", (9, 2, 1, 0)),
        (11, "one two three\nfour five\nsix seven eight nine", (11, 3, 0, 0)),
        (500, "one two three\nfour five\nsix seven eight nine", (11, 3, 0, 0)),
    ],
)
def test_the_first_that_does_not_fit_is_cut_and_nothing_follows(
    budget: int, context: str, fit: tuple[int, int, int, int]
):
    used, whole, partial, dropped = fit
    found = fit_budget(PIECES, (), budget)
    assert found.context == context
    assert found.fit == Fit(budget, 11, used, whole, partial, dropped)
    assert [context[begin:end] for begin, end in found.spans] == context.split("\n")


def test_contexts_are_prefixes_of_one_another():
    contexts = [fit_budget(PIECES, (), budget).context for budget in range(1, 13)]
    assert all(larger.startswith(smaller) for smaller, larger in pairwise(contexts))
    assert [count_tokens(context) for context in contexts] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 11]


def test_pieces_are_put_in_their_places_after_the_cut():
    found = fit_budget(PIECES, (2, 0, 1), 9)
    assert found.context == "four five\nsix seven\none two three"
    assert [found.context[begin:end] for begin, end in found.spans] == ["one two three", "four five", "six seven"]
    sets = [set(fit_budget(PIECES, (2, 0, 1), budget).context.split("\n")) for budget in (3, 6, 11)]
    assert sets == [set(PIECES[:1]), set(PIECES[:2]), set(PIECES)]


def test_what_is_counted_is_the_context_as_it_is_shown():
    pieces = ("They said: 世界", "\u2028end", "x" * 40)
    for budget in range(1, 30):
        for places in ((), (1, 2, 0), (2, 1, 0)):
            found = fit_budget(pieces, places, budget)
            assert count_tokens(found.context) == found.fit.used <= budget


def test_a_smaller_budget_is_cut_from_what_a_larger_one_left():
    large = fit_budget(PIECES, (), 9)
    pieces = [large.context[begin:end] for begin, end in large.spans]
    assert fit_budget(pieces, (), 5, large.fit) == fit_budget(PIECES, (), 5)
    again = fit_budget(pieces, (), 9, large.fit)
    assert (again.context, again.fit) == (large.context, large.fit)


def test_nothing_came_back():
    assert fit_budget((), (), 10) == ("", (), Fit(10, 0, 0, 0, 0, 0))
