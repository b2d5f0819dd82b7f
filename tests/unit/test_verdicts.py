"""What a judge's reply says: 1, 0, or nothing. An unreadable reply is never a score."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memtrials.judging.verdicts import UnreadableError, parse_score

RIGHT = {
    "the object alone": '{"score": 1, "reason": "the nut allergy is there"}',
    "no reason": '{"score": 1}',
    "no spaces": '{"score":1,"reason":""}',
    "pretty-printed": '{\n  "score": 1,\n  "reason": "yes"\n}',
    "Windows line ends": '{\r\n"score": 1\r\n}\r\n',
    "white space around it": ' \n\t{"score": 1}\n\n',
    "a byte order mark": '\ufeff{"score": 1}',
    "in a fence": '```json\n{"score": 1, "reason": "yes"}\n```',
    "in a fence without a language": '```\n{"score": 1}\n```',
    "in an open fence": '```json\n{"score": 1}',
    "text before it": 'My verdict: {"score": 1}',
    "text after it": '{"score": 1}\nThe context names the allergy.',
    "in a list": '[{"score": 1}]',
    "text quotes 1": '{"score": "1"}',
    "text quotes 1.0": '{"score": "1.0"}',
    "spaces in the text": '{"score": " 1 "}',
    "a float": '{"score": 1.0}',
    "an exponent": '{"score": 1e0}',
    "more fields": '{"verdict": "pass", "score": 1, "confidence": 0.4}',
    "the reason first": '{"reason": "yes", "score": 1}',
    "a reason in braces": '{"score": 1, "reason": "{\\"score\\": 0} is what the answer claims"}',
    "a reason over two lines": '{"score": 1, "reason": "the context holds it\nword for word"}',
    "an object as reason": '{"score": 1, "reason": {"score": 0}}',
    "twice the same": '{"score": 1}\nIn short: {"score": "1.0"}',
    "braces in the text before it": 'The set {a, b} is there. {"score": 1}',
    "the format repeated before it": 'Format: {"score": 0 or 1, "reason": "one sentence"}\n{"score": 1}',
    "an object without a score before it": '{"facts": ["allergy"]}\n{"score": 1}',
    "broken, then said again": '{"score": 1, "reason": "it says "nuts""}\n{"score": 1}',
}

WRONG = {
    "the object alone": '{"score": 0, "reason": "absent"}',
    "a float": '{"score": 0.0}',
    "minus nothing": '{"score": -0.0}',
    "text quotes 0": '{"score": "0"}',
    "in a fence": '```json\n{"score": 0}\n```',
    "an answer that holds a verdict, escaped": '{"score": 0, "reason": "it only says {\\"score\\": 1}"}',
}

UNREADABLE = {
    "empty": "",
    "white space": " \n",
    "no object": "The answer applies the fact.",
    "a bare number": "1",
    "a bare text": '"1"',
    "a line in words": "score: 1",
    "yes": "yes",
    "an empty object": "{}",
    "a missing score": '{"reason": "the fact is there"}',
    "another name": '{"Score": 1, "verdict": 1}',
    "one level down": '{"result": {"score": 1}}',
    "null": '{"score": null}',
    "a half": '{"score": 0.5}',
    "a half as text": '{"score": "0.5"}',
    "nearly 1": '{"score": 0.999}',
    "two": '{"score": 2}',
    "minus one": '{"score": -1}',
    "out of ten": '{"score": "1/1"}',
    "percent": '{"score": "100%"}',
    "true": '{"score": true}',
    "false": '{"score": false}',
    "true as text": '{"score": "true"}',
    "yes as text": '{"score": "yes"}',
    "an empty text": '{"score": ""}',
    "other digits": '{"score": "１"}',
    "an underscore": '{"score": "0_1"}',
    "a sign": '{"score": "+1"}',
    "not a number": '{"score": NaN}',
    "infinity": '{"score": Infinity}',
    "a number no float holds": '{"score": 1' + 400 * "0" + "}",
    "a number too long to read": '{"score": 1' + 5000 * "0" + "}",
    "a list": '{"score": [1]}',
    "an object": '{"score": {"value": 1}}',
    "the prompt's own words": '{"score": 0 or 1, "reason": "one short sentence"}',
    "cut off in the reason": '{"score": 1, "reason": "the context',
    "cut off at once": '{"score": 1',
    "single quotes": "{'score': 1}",
    "no quotes": "{score: 1}",
    "a trailing comma": '{"score": 1,}',
    "two that disagree": '{"score": 1} {"score": 0}',
    "one of two is a half": '{"score": 1} {"score": 0.5}',
    "said twice in one object": '{"score": 1, "score": 0}',
    "a quoted verdict that isn't escaped": '{"score": 0, "reason": "it says "{"score": 1}""}',
    "cut off behind a quoted verdict": '{"score": 0, "reason": "it says "{"score": 1, "reason": "fine"} and',
    "nested without end": '{"score": ' + 100_000 * "[",
    "objects without end": 100_000 * '{"a":',
}


@pytest.mark.parametrize("reply", RIGHT.values(), ids=RIGHT)
def test_right(reply: str) -> None:
    assert parse_score(reply)[0] == 1.0


@pytest.mark.parametrize("reply", WRONG.values(), ids=WRONG)
def test_wrong(reply: str) -> None:
    score = parse_score(reply)[0]
    assert str(score) == "0.0"  # and not -0.0


@pytest.mark.parametrize("reply", UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable(reply: str) -> None:
    with pytest.raises(UnreadableError) as error:
        parse_score(reply)
    assert 0 < len(str(error.value)) < 200


def test_the_reason_comes_with_the_score() -> None:
    assert parse_score('{"score": "0", "reason": "only the topic"}') == (0.0, "only the topic")
    assert parse_score('{"score": 1}') == (1.0, "")
    assert parse_score('{"score": 1, "reason": null}') == (1.0, "null")
    assert parse_score('{"score": 1, "reason": ["ä"]}') == (1.0, '["ä"]')


PIECES = st.sampled_from(
    [
        "{",
        "}",
        "[",
        "]",
        '"score"',
        '"score": 1',
        '"score": 0',
        ":",
        ",",
        '"',
        "\\",
        "0",
        "1",
        ".5",
        "true",
        "null",
        " ",
    ]
)
REPLIES = st.text(st.characters(exclude_categories=())) | st.lists(PIECES).map("".join)
NUMBERS = st.integers() | st.floats() | st.sampled_from((0, 1, 0.0, 1.0, -0.0))
OTHERS = st.none() | st.booleans() | st.lists(NUMBERS, max_size=2) | st.dictionaries(st.text(), NUMBERS, max_size=2)


@given(REPLIES)
@example('{"score": "\ud800"}')
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_score_of_0_or_1_or_unreadable(reply: str) -> None:
    try:
        score, reason = parse_score(reply)
    except UnreadableError:
        return
    assert type(score) is float
    assert score in (0.0, 1.0)
    assert isinstance(reason, str)


@given(NUMBERS | OTHERS)
@settings(max_examples=200, deadline=None)
def test_only_the_numbers_0_and_1_are_scores(value: object) -> None:
    reply = json.dumps({"score": value, "reason": "r"})
    if value in (0, 1) and not isinstance(value, bool):
        assert parse_score(reply) == (value, "r")
    else:
        with pytest.raises(UnreadableError):
            parse_score(reply)


@given(st.sampled_from((0, 1)), st.text(), st.text(st.characters(exclude_characters="{}")))
@settings(max_examples=200, deadline=None)
def test_nothing_said_around_or_inside_changes_the_score(score: int, reason: str, around: str) -> None:
    reply = around + json.dumps({"score": score, "reason": reason}) + around
    assert parse_score(reply) == (float(score), reason)
