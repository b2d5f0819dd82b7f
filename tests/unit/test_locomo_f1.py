"""LoCoMo's own score: examples worked by hand, one for each way in which other F1s differ from it."""

import pytest

from memtrials.benchmarks.locomo import CATEGORIES
from memtrials.metrics.locomo_f1 import (
    ADVERSARIAL,
    MULTI_HOP,
    OPEN_DOMAIN,
    SINGLE_HOP,
    TEMPORAL,
    declines,
    refuses,
    score,
    stems,
    token_f1,
)

THIRDS = pytest.approx(2 / 3)


def test_the_numbers_of_the_categories_have_their_names():
    names = {
        MULTI_HOP: "multi-hop",
        TEMPORAL: "temporal",
        OPEN_DOMAIN: "open-domain",
        SINGLE_HOP: "single-hop",
        ADVERSARIAL: "adversarial",
    }
    assert names == CATEGORIES


@pytest.mark.parametrize(
    ("category", "gold", "prediction", "expected"),
    [
        (TEMPORAL, "3 June 2021", "June 3, 2021", 1.0),
        (TEMPORAL, "3 June 2021", "4 June 2021", THIRDS),  # a wrong day still scores
        (TEMPORAL, "2022", "in 2022", THIRDS),
        (TEMPORAL, "19 January, 2023", "19 January 2023", 1.0),
        (MULTI_HOP, "2", "two", 0.0),
        (MULTI_HOP, "2", "2", 1.0),
        (MULTI_HOP, "chess, rowing, baking, judo", "chess, rowing", 0.5),
        (MULTI_HOP, "chess, rowing, baking, judo", "chess rowing baking judo", pytest.approx(0.4)),
        (MULTI_HOP, "dusk", "dusk, the lake at dawn", 1.0),  # further parts are free
        (MULTI_HOP, "25 May, 2022", "25 May 2022", pytest.approx(0.65)),  # a date of two parts
        (MULTI_HOP, "25 May, 2022", "25 May, 2022", 1.0),
        (MULTI_HOP, "run, hike", "running and hiking", THIRDS),
        (SINGLE_HOP, "run, hike", "running and hiking", 1.0),
        (OPEN_DOMAIN, "Likely no; it went badly", "Likely no", 1.0),
        (OPEN_DOMAIN, "No; she is leaving", "No, she stays", 0.5),  # the prediction isn't cut
        (OPEN_DOMAIN, "Likely no; it went badly", "Likely no; it went badly", pytest.approx(4 / 7)),
        (SINGLE_HOP, "self-care", "self care", 0.0),
        (SINGLE_HOP, "U.S.A.", "USA", 1.0),
        (SINGLE_HOP, "$1,000", "1000", 1.0),
        (SINGLE_HOP, "a lamp", "", 0.0),
        (SINGLE_HOP, "a lamp", "The and a", 0.0),
        (ADVERSARIAL, "whatever", "a lamp", 0.0),
        (ADVERSARIAL, "a lamp", "Not mentioned in the conversation", 1.0),
        (ADVERSARIAL, "No", "No", 0.0),
        (ADVERSARIAL, "No", "No information available.", 1.0),
    ],
)
def test_the_score_follows_the_rule_of_its_category(category: int, gold: str, prediction: str, expected: float):
    assert score(prediction, gold, category) == expected


def test_tokens_are_a_multiset():
    assert token_f1("tea tea milk", "tea milk milk") == THIRDS
    assert token_f1("tea tea", "tea") == THIRDS


def test_words_are_stemmed_as_nltk_does_by_default():
    """Where Porter's own algorithm gives `dy`, `sky` from `skies`, `fli`, and cuts words of two letters."""
    assert stems("dying skies flies is Paintings, enjoyed") == ["die", "sky", "fli", "is", "paint", "enjoy"]


def test_the_articles_and_the_word_and_are_left_out_and_other_punctuation_stays():
    assert stems("The cat and an “owl”") == ["cat", "“owl”"]


def test_the_official_test_of_a_refusal_reads_two_phrases():
    assert refuses("That was NOT MENTIONED, but maybe a lamp")  # wrong in meaning
    assert not refuses("This information is unavailable.")  # right in meaning


@pytest.mark.parametrize(
    "said",
    [
        "Not mentioned in the conversation",
        "No information available.",
        "This information is unavailable.",
        "The memories don't say what she bought, and I don't know.",
        "It isn't stated anywhere.",
        "It isn’t specified.",
        "That cannot be determined from the conversation.",
        "There is no mention of it.",
        "Nothing in my memory bears on this.",
        "I'm unable to answer that.",
        "Unknown",
    ],
)
def test_the_wider_test_reads_the_usual_ways_to_decline(said: str):
    assert declines(said, "a lamp")


@pytest.mark.parametrize(
    "said",
    [
        "a lamp",
        "She bought a lamp.",
        "That was not mentioned, but maybe a lamp",
        "Knowingly or not, he did",
        "She could not find her way out",
        "",
    ],
)
def test_the_wider_test_takes_neither_answers_nor_hedged_guesses_for_refusals(said: str):
    assert not declines(said, "a lamp")


def test_a_refusals_own_words_are_not_the_false_answer():
    assert declines("No information available", "No")
    assert not declines("No, that isn't mentioned", "No")
