"""What a reply of one word says: yes, no, or nothing; and what two published rules make of it."""

import json
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memtrials.benchmarks.base import WordRule
from memtrials.judging.verdicts import UnreadableError, parse_yes_no

RIGHT = {
    "the word": "yes",
    "a capital": "Yes",
    "capitals and marks (W8)": "YES!!",
    "a full stop (W8)": "Yes.",
    "bold (W8)": "**Yes**",
    "bold, full stop outside": "**Yes**.",
    "underscores": "__yes__",
    "code": "`yes`",
    "white space around it": " \n\tYes\r\n\n",
    "a space that doesn't break": "Yes\u00a0",
    "a byte order mark": "\ufeffYes",
    "quotes": '"Yes."',
    "curly quotes": "“Yes”",
    "brackets": "[[yes]]",
    "a heading": "# Yes",
    "a list item": "- Yes",
    "a fence": "```\nyes\n```",
    "a fence with a language": "```text\nYes\n```",
    "a fence on one line": "```yes```",
    "a label": "Answer: yes.",
    "a bold label": "**Answer:** Yes",
    "a bold label and verdict": "**Final answer: yes**",
    "a quoted verdict under a label": 'Verdict: "yes"',
    "a label in a sentence": "So my verdict is yes.",
    "a label on a line of its own": "## Verdict\n\nYes",
    "first, then prose": "Yes\n\nThe response names Paris, as the answer does.",
    "first, then a sentence": "Yes. There is no contradiction, and yesterday is the right day.",
    "first, then a comma": "Yes, the response holds the answer.",
    "first, then a dash": "Yes — the response holds the answer.",
    "first, then a hyphen": "Yes - the response holds the answer.",
    "first, then a colon": "Yes: the response holds the answer.",
    "first, then brackets": "Yes (it names Paris)",
    "first, then a reason": "Yes because it names Paris",
    "last, after prose": "The response names Paris. No fact is missing.\n\nYes",
    "last, after a rule": "The response names Paris.\n\n---\n\n**Yes**",
    "last, before an ornament": "Yes\n---",
    "last on the line under a label": "The response names Paris, as it should. Answer: yes.",
    "first and last": "Yes.\nThe response names Paris.\nSo the final answer is: yes",
    "the gold is no, quoted": 'Yes. The gold says "no", and so does the response.',
    "the gold is no, labelled": "Gold: No. Response: no, she doesn't. They match.\nYes",
    "the question repeated": "Is the response correct? Answer yes or no.\nYes",
    "no doubt": "Yes, no doubt about it.",
    "an object": '{"answer": "yes"}',
    "an object with another name": '{"verdict": "YES"}',
    "an object with a sentence": '{"answer": "Yes, it names Paris."}',
    "an object in a fence": '```json\n{"answer": "yes"}\n```',
    "an object in prose": 'My verdict: {"answer": "yes"} It names Paris.',
    "an object whose reason says no": '{"answer": "yes", "reason": "No. 5 is right; no, really: no"}',
    "the reason first": '{"reason": "it names Paris", "answer": "yes"}',
    "an object and the word": '{"answer": "yes"}\nYes.',
    "an object twice the same": '{"answer": "yes"} {"answer": "Yes."}',
    "thoughts before it": "<think>\nIs it Paris? No.\nWait, yes.\n</think>\n\nYes",
}

WRONG = {
    "the word": "no",
    "a full stop": "No.",
    "bold": "**No**",
    "all in capitals": "NO",
    "a fence": "```\nNo\n```",
    "a label": "Answer: no",
    "a curly quote under a label": "Verdict: ‘No’.",
    "yesterday (W10)": "No. The response says yesterday, not today.",
    "eyes": "No. Blue eyes, not green ones.",
    "negation after it": "no, that isn't right",
    "no twice": "No, no.",
    "no without end": "No, no, no!",
    "a yes that would need more": "No. A yes would need the year.",
    "the response says yes, quoted": "No. The response says “yes”.",
    "the response says yes, labelled": "No. The response: yes. The gold: rarely.",
    "last, after prose": "The response says yesterday.\nNo",
    "last, after a struck word": "~~Yes~~\nNo",
    "last, after a quoted line": "> Yes\n\nThat is what the response says.\n\nNo.",
    "last on the line under a label": "She moved in May; the response says June. Verdict: no.",
    "the yes is a question": "Does she smoke, yes?\nNo",
    "an object": '{"answer": "no"}',
    "an object with a label": '{"Label": "No", "reason": "yes, but the year differs"}',
    "an object's reason holds an object": '{"answer": "no", "reason": "it says {\\"answer\\": \\"yes\\"}"}',
    "thoughts before it": "<think>yes</think>No",
}

UNREADABLE = {
    "empty": "",
    "white space": " \n",
    "marks": "**.**",
    "another word (W9)": "correct",
    "nearly yes": "Yeah.",
    "nearly no": "Nope",
    "a letter": "y",
    "a number": "1",
    "true": "true",
    "other letters": "ｙｅｓ",
    "a long s": "yeſ",
    "an accent behind": "no\u0308",
    "not said at all": "The response names Paris.",
    "yesterday": "yesterday",
    "yesterday first": "Yesterday, the response says.",
    "eyes alone": "eyes",
    "a name": "Noël.",
    "no one": "No-one says so.",
    "none": "None of it.",
    "no with a noun": "No errors were found.",
    "no problem": "No problem: it is right.",
    "number five": "No. 5 is the right one.",
    "number five, close": "No.5",
    "not yes": "not yes",
    "not yes, with a label": "Answer: not yes",
    "no and not yes": "No, not yes.",
    "not a no": "This is not a no.",
    "a yes it isn't": "Yes is not what this deserves.",
    "yes and no": "Yes and no.",
    "yes or no": "yes or no",
    "yes/no": "Yes/No",
    "a label with both": "Answer: yes/no",
    "a question": "Yes?",
    "both": "Yes, no.",
    "both, joined": "Yes: no",
    "both in turn": "Yes. No.",
    "both on lines": "Yes\nNo",
    "both, prose between": "No\nThe year differs, but it isn't asked for.\nYes",
    "a change of mind": "Yes.\nWait — no, the year differs.",
    "a change of mind in a sentence": "Yes. On reflection it should be no.",
    "a change of mind at the end": "No, the year differs. Then again, my final verdict is yes.",
    "a list of verdicts": "1. Yes\n2. No",
    "a rhetorical question": "Does she smoke? No.",
    "a quoted line before prose": "> No.\nThat is what it says.",
    "a word between prose": "The year differs. No. But it isn't asked for.",
    "the last of a sentence": "I would say yes",
    "what the answer is": "The correct answer is yes.",
    "what the response says": "The response says: yes",
    "what someone says": '"No, never" is what the response says.',
    "struck out": "~~Yes~~",
    "a quoted line": "> Yes",
    "the language of a fence": "```yes\n```",
    "an empty object": "{}",
    "an object with another key": '{"response": "yes"}',
    "one level down": '{"result": {"answer": "yes"}}',
    "an object with true": '{"answer": true}',
    "an object with null": '{"answer": null}',
    "an object with a list": '{"answer": ["yes"]}',
    "an object with both": '{"answer": "yes", "verdict": "no"}',
    "an object with an answer beside the verdict": '{"answer": "Paris", "verdict": "yes"}',
    "an object with the choice": '{"answer": "yes or no"}',
    "an object with another word": '{"answer": "yesterday"}',
    "an object said twice": '{"answer": "yes", "answer": "no"}',
    "objects that disagree": '{"answer": "yes"} {"answer": "no"}',
    "an object against the word": 'No.\n{"answer": "yes"}',
    "a quoted verdict that isn't escaped": '{"answer": "no", "reason": "it says "{"answer": "yes"}""}',
    "an object cut off": '{"answer": "yes", "reason": "it',
    "an object cut off before a line that is a verdict": '{"answer": "no", "reason": "it says\nyes',
    "single quotes": "{'answer': 'yes'}",
    "curly quotes": "{“answer”: “yes”}",
    "an object in a sentence, not a line": 'The set {"a": 1} no.',
    "thoughts without end": "<think>\nIs it Paris?\nYes",
    "thoughts alone": "<think>Yes</think>",
    "thoughts later": "The response\n<think>hm</think>\nYes",
    "nested without end": '{"answer": ' + 100_000 * "[",
    "objects without end": 100_000 * '{"a":',
    "braces without end": 10_000 * "{",
}


@pytest.mark.parametrize("reply", RIGHT.values(), ids=RIGHT)
def test_right(reply: str) -> None:
    assert parse_yes_no(reply)[0] == 1.0


@pytest.mark.parametrize("reply", WRONG.values(), ids=WRONG)
def test_wrong(reply: str) -> None:
    assert parse_yes_no(reply)[0] == 0.0


@pytest.mark.parametrize("reply", UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable(reply: str) -> None:
    with pytest.raises(UnreadableError) as error:
        parse_yes_no(reply)
    assert 0 < len(str(error.value)) < 200


def test_the_words_alone_are_read() -> None:
    """What the sentence after the word means is not weighed: the verdict is what the judge began with."""
    assert parse_yes_no("Yes, that isn't right.")[0] == 1.0
    assert parse_yes_no("No, that is correct.")[0] == 0.0


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (" Yes. \n", "Yes."),
        ("No. The year differs.", "No. The year differs."),
        ("<think>hm</think>\nYes", "Yes"),
        ('{"answer": "no", "reason": "the year differs"}', "the year differs"),
        ('{"answer": "no", "reason": ["the year"]}', '{"answer": "no", "reason": ["the year"]}'),
        ('{"answer": "no"} The year differs.', '{"answer": "no"} The year differs.'),
    ],
    ids=str,
)
def test_the_reason_is_the_objects_or_the_reply(reply: str, reason: str) -> None:
    assert parse_yes_no(reply)[1] == reason


# The rules as published


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("Yes.", 1.0),
        ("YES!!", 1.0),
        ("**Yes**", 1.0),
        ("No", 0.0),
        ("correct", 0.0),
        ("", 0.0),
        ("No. The response says yesterday, not today.", 1.0),
        ("Blue eyes.", 1.0),
        ("not yes", 1.0),
        ("Yes and no.", 1.0),
        ("<think>\nYes, but", 1.0),
        ("ＹＥＳ", 0.0),
    ],
    ids=str,
)
def test_longmemevals_rule_is_yes_anywhere(reply: str, score: float) -> None:
    """W8 to W10 of the format's description, and its traps."""
    assert parse_yes_no(reply, rule="official") == (score, reply.strip())


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("CORRECT", 1.0),
        ("WRONG", 0.0),
        ("Incorrect.", 0.0),
        ("The date is wrong by a week, within bounds.\nCORRECT", 1.0),
        ("The answer is correct in part.\n\n**WRONG**\n \n", 0.0),
        ("The date is wrong.\nSo it is.", 0.0),  # nothing on the last line: the whole reply, negative first
        ("The date is correct.\nSo it is.", 1.0),
        ("The date is correct, the year wrong.\nHm.", 0.0),
        ("not correct", 1.0),
        ("nothing wrong", 0.0),
        ("CORRECT or WRONG", 0.0),
        ("yes", 0.0),
        ("", 0.0),
        (" \n", 0.0),
    ],
    ids=str,
)
def test_memorybears_rule_is_the_last_line_with_the_negative_first(reply: str, score: float) -> None:
    assert parse_yes_no(reply, rule="last-line") == (score, reply.strip())


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("CORRECT", 1.0),
        ("**Wrong.**", 0.0),
        ("incorrect", 0.0),
        ("Label: CORRECT", 1.0),
        ('{"label": "WRONG"}', 0.0),
        ("The date is wrong by a week, which is within bounds.\nCORRECT", 1.0),
        ("The answer is correct in part, the city is incorrect.\n\nWRONG\n", 0.0),
        ("not correct", None),
        ("nothing wrong", None),
        ("The date is correct.", None),
        ("CORRECT or WRONG", None),
        ("CORRECT\nWRONG", None),
        ("Correct, says the gold.\nWRONG", None),
        ("Correct answer: May", None),
        ("yes", None),
        ("", None),
    ],
    ids=str,
)
def test_the_strict_rule_for_labels(reply: str, score: float | None) -> None:
    if score is None:
        with pytest.raises(UnreadableError):
            parse_yes_no(reply, rule="strict-label")
    else:
        assert parse_yes_no(reply, rule="strict-label")[0] == score


def test_where_the_strict_rule_and_longmemevals_differ() -> None:
    """Of what the strict rule reads, the official one misreads each no that holds the letters y, e, s."""
    readable = dict.fromkeys(RIGHT.values(), 1.0) | dict.fromkeys(WRONG.values(), 0.0)
    differ = {reply for reply, score in readable.items() if parse_yes_no(reply, rule="official")[0] != score}
    assert differ == {reply for reply in WRONG.values() if "yes" in reply.lower()}
    assert WRONG["yesterday (W10)"] in differ


def test_an_unknown_rule_is_no_rule() -> None:
    with pytest.raises(ValueError, match="unknown verdict rule 'lenient'") as error:
        parse_yes_no("yes", rule="lenient")  # type: ignore[arg-type]
    assert not isinstance(error.value, UnreadableError)


# What holds for any reply

PIECES = st.sampled_from(
    (
        *("yes", "no", "Yes", "NO", "not", "or", "and", "the", "answer", "Verdict", "label", "is", "my", "final"),
        *("correct", "wrong", "incorrect", "reason", "because", "5", "~~", "**", "`", "```", "```json", "#", "-", ">"),
        *(".", ",", ":", ";", "!", "?", "…", "—", "(", ")", "[", "]", "{", "}", '"', "“", "”", "'", "\\"),
        *(" ", "\n", "\r\n", "\u2028", "\u00a0", "<think>", "</think>", '{"answer": "yes"}', '{"answer": "no"', "null"),
    )
)
REPLIES = st.text(st.characters(exclude_categories=())) | st.lists(PIECES).map("".join) | st.lists(PIECES).map(" ".join)


@given(REPLIES, st.sampled_from(get_args(WordRule)))
@example('{"answer": "yes", "reason": "\ud800"}', "strict")
@settings(max_examples=500, deadline=None)
def test_any_text_is_a_score_of_0_or_1_or_unreadable(reply: str, rule: WordRule) -> None:
    try:
        score, reason = parse_yes_no(reply, rule=rule)
    except UnreadableError:
        assert rule.startswith("strict")
        return
    assert type(score) is float
    assert score in (0.0, 1.0)
    assert isinstance(reason, str)


@given(REPLIES)
@settings(max_examples=500, deadline=None)
def test_no_score_without_its_word(reply: str) -> None:
    try:
        score, _ = parse_yes_no(reply)
    except UnreadableError:
        return
    assert ("yes" if score else "no") in reply.lower()


@given(st.sampled_from(("Yes", "No")), REPLIES)
@settings(max_examples=500, deadline=None)
def test_a_first_word_is_never_turned_over(word: str, more: str) -> None:
    """Whatever follows can make the reply unreadable, but not the opposite."""
    try:
        score, _ = parse_yes_no(f"{word}.\n{more}")
    except UnreadableError:
        return
    assert score == float(word == "Yes")


@given(st.sampled_from(("Yes", "No")), st.text(st.characters(categories=("Lu", "Ll", "Nd", "Zs"))))
@settings(max_examples=200, deadline=None)
def test_prose_around_a_verdict_on_its_own_line_changes_nothing(word: str, prose: str) -> None:
    if {"yes", "no"} & set(prose.lower().split()):
        return
    for reply in (f"{word}\n{prose}", f"{prose}\n{word}", f"{prose}\n\n**{word}.**\n"):
        assert parse_yes_no(reply)[0] == float(word == "Yes")


@given(st.sampled_from(("yes", "no")), st.text(), st.text(st.characters(categories=("Ll", "Zs"))))
@settings(max_examples=200, deadline=None)
def test_nothing_said_inside_an_object_changes_its_verdict(word: str, reason: str, around: str) -> None:
    if {"yes", "no"} & set(around.split()):
        return
    reply = around + json.dumps({"answer": word, "reason": reason}) + around
    assert parse_yes_no(reply) == (float(word == "yes"), reason)


@pytest.mark.parametrize("depth", [*range(940, 1000), 5000])
def test_a_reply_nested_to_any_depth_is_unreadable_and_no_more(depth: int) -> None:
    with pytest.raises(UnreadableError):
        parse_yes_no('{"answer": ' + depth * "[" + depth * "]" + "}")
