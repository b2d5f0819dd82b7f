"""The reader that needs no model: which sentences of a context it quotes, and that it always says something."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from memtrials.llm.offline import NOTHING, OfflineReader, extract

TEXT = st.text(st.characters(exclude_categories=("Cs",)) | st.sampled_from(" .!?\n"), max_size=200)
WORDS = st.lists(st.sampled_from(("cat", "dog", "eel", "the", "of")), min_size=1, max_size=4)
SENTENCES = st.lists(WORDS.map(" ".join), max_size=6)


def test_the_sentence_that_shares_most_words_with_the_question_is_quoted() -> None:
    context = "I sail at weekends. My sister fears large dogs. Rome is old."
    assert extract("What does my sister fear: dogs or cats?", context) == "My sister fears large dogs."


def test_at_most_three_sentences_are_quoted_in_their_own_order() -> None:
    # distinct shared words: 1, 0, 2, 1, 3; of the two with one, the earlier goes in
    context = "An oven. Nothing. Red oven door. A door. Red oven door handle."
    assert extract("red oven handle", context) == "An oven. Red oven door. Red oven door handle."


def test_ties_go_to_the_earlier_sentences() -> None:
    assert extract("tea", "Tea one. Tea two. Tea three. Tea four.") == "Tea one. Tea two. Tea three."


def test_a_word_counts_once_however_often_it_stands_there() -> None:
    # "tea tea tea" shares one word, each of the other three shares two
    context = "Tea tea tea. Green tea a. Green tea b. Green tea c."
    assert extract("green tea", context) == "Green tea a. Green tea b. Green tea c."


def test_case_and_punctuation_do_not_matter() -> None:
    assert extract("NUTS?", 'He said: "nuts!"') == 'He said: "nuts!"'


def test_words_of_one_or_two_letters_are_not_shared_words() -> None:
    assert extract("is it so?", "It is so. So it is.") == NOTHING


def test_every_line_is_a_sentence_of_its_own() -> None:
    assert extract("Which honey?", "[2024/03/02] user: Honey is out\nassistant: Noted") == (
        "[2024/03/02] user: Honey is out"
    )


def test_full_stops_of_other_scripts_end_a_sentence() -> None:
    assert extract("茶道 kettle", "kettle 茶道。 Something else。") == "kettle 茶道。"


def test_where_nothing_is_shared_it_says_so() -> None:
    assert extract("Where do I live?", "") == NOTHING
    assert extract("Where do I live?", " \n\n ") == NOTHING
    assert extract("Where do I live?", "The oven is red.") == NOTHING
    assert extract("", "The oven is red.") == NOTHING


@given(TEXT, TEXT)
@settings(max_examples=100, deadline=None)
def test_the_answer_is_never_empty_and_the_same_each_time(question: str, context: str) -> None:
    answer = extract(question, context)
    assert answer.strip()
    assert answer == extract(question, context)


@given(SENTENCES, SENTENCES)
@settings(max_examples=100, deadline=None)
def test_everything_it_says_is_quoted(question: list[str], context: list[str]) -> None:
    answer = extract(". ".join(question), ". ".join(context))
    if answer != NOTHING:
        quoted = [sentence.rstrip(".") for sentence in answer.split(". ")]
        assert len(quoted) <= 3
        positions = iter(context)
        assert all(sentence in positions for sentence in quoted)  # an iterator, so in their order


def test_the_reader_quotes_and_takes_no_notice_of_the_date() -> None:
    context = "The oven is red. Rome is old."
    answers = [asyncio.run(OfflineReader().answer("Which oven?", date, context)) for date in (None, "2024/03/02")]
    assert [a.text for a in answers] == ["The oven is red.", "The oven is red."]
    assert not any(a.cut or a.call or a.raw for a in answers)
