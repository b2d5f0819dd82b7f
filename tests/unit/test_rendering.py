"""How turns become the text a reader sees."""

import pytest

from memtrials.errors import UserError
from memtrials.records import Fit
from memtrials.systems.rendering import Window, render, render_turn
from memtrials.systems.store import StoredTurn

TIME = "2024/03/02 (Sat) 10:15"


def turn(content: str, *, role: str = "user", speaker: str | None = None, time: str | None = TIME) -> StoredTurn:
    return StoredTurn("0.0", role, speaker, time, content)


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (turn("I eat no nuts."), "[2024/03/02 (Sat) 10:15] user: I eat no nuts."),
        (turn("Noted.", role="assistant"), "[2024/03/02 (Sat) 10:15] assistant: Noted."),
        (turn("Noted.", speaker="Ines"), "[2024/03/02 (Sat) 10:15] Ines: Noted."),
        (turn("Noted.", time=None), "user: Noted."),
        (turn(""), "[2024/03/02 (Sat) 10:15] user: "),
        (turn("one\ntwo"), "[2024/03/02 (Sat) 10:15] user: one\ntwo"),
    ],
    ids=["user", "assistant", "speaker", "no time", "empty", "lines"],
)
def test_a_turn_shows_time_role_and_content(stored: StoredTurn, expected: str):
    assert render_turn(stored) == expected


def test_a_time_is_not_shown_twice_where_the_content_ends_with_it():
    dated = f"I eat no nuts.\n---TIMESTAMP: {TIME}"
    assert render_turn(turn(dated)) == f"user: {dated}"
    assert render_turn(turn(f"{dated}\n")) == f"user: {dated}\n"


def test_a_time_elsewhere_in_the_content_changes_nothing():
    asked = f"Was it {TIME}, or later?"
    assert render_turn(turn(asked)) == f"[{TIME}] user: {asked}"


def test_content_is_data_and_stays_as_it_is():
    content = "  {context} [time] assistant: \x00 'quoted' %s  "
    assert render_turn(turn(content, time=None)) == f"user: {content}"


def test_turns_stand_on_lines_of_their_own():
    assert render([turn("One.", time=None), turn("Two.", role="assistant", time=None)]) == "user: One.\nassistant: Two."
    assert render([]) == ""


# Windows: a history of 5 + 4 + 4 tokens, with one for each line end between them

HISTORY = [
    turn("one two three", time=None),
    turn("four five", role="assistant", time=None),
    turn("six seven", time=None),
]


@pytest.mark.parametrize(
    ("setting", "shown", "used", "whole", "partial", "dropped"),
    [
        ("keep-newest 15", "user: one two three\nassistant: four five\nuser: six seven", 15, 3, 0, 0),
        ("keep-newest 14", ": one two three\nassistant: four five\nuser: six seven", 14, 2, 1, 0),
        ("keep-newest 10", "\nassistant: four five\nuser: six seven", 10, 2, 0, 1),
        ("keep-newest 7", " four five\nuser: six seven", 7, 1, 1, 1),
        ("keep-newest 4", "user: six seven", 4, 1, 0, 2),
        ("keep-newest 1", " seven", 1, 0, 1, 2),
        ("keep-oldest 99", "user: one two three\nassistant: four five\nuser: six seven", 15, 3, 0, 0),
        ("keep-oldest 14", "user: one two three\nassistant: four five\nuser: six", 14, 2, 1, 0),
        ("keep-oldest 10", "user: one two three\nassistant: four five", 10, 2, 0, 1),
        ("keep-oldest 6", "user: one two three\n", 6, 1, 0, 2),
        ("keep-oldest 4", "user: one two", 4, 0, 1, 2),
    ],
)
def test_a_window_keeps_one_end_and_counts_what_it_cut(
    setting: str, shown: str, used: int, whole: int, partial: int, dropped: int
):
    asked = int(setting.split()[1])
    expected = Fit(asked=asked, tokens=15, used=used, whole=whole, partial=partial, dropped=dropped)
    assert Window.of(setting).show(HISTORY) == (shown, expected)


def test_a_character_is_not_parted():
    """A woman is two tokens: with room for one of them she is left out."""
    family = [turn("\U0001f469 ok", time=None)]
    assert Window.of("keep-oldest 3").show(family)[0] == "user:"
    assert Window.of("keep-oldest 4").show(family)[0] == "user: \U0001f469"


def test_an_empty_history_fits():
    assert Window.of("keep-newest 5").show([]) == ("", Fit(asked=5, tokens=0, used=0, whole=0, partial=0, dropped=0))


@pytest.mark.parametrize("setting", ["", "newest 5", "keep-newest", "keep-newest 0", "keep-latest 5", "keep-newest 1k"])
def test_a_window_that_is_none_is_named(setting: str):
    with pytest.raises(UserError, match='write "keep-newest N" or "keep-oldest N"'):
        Window.of(setting)
