"""How turns become the text a reader sees."""

import pytest

from memtrials.systems.rendering import render, render_turn
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
