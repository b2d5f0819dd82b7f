"""How turns become the text a reader sees."""

from __future__ import annotations

from collections.abc import Iterable

from memtrials.systems.store import StoredTurn

RENDERING = "time-role-1"


def render_turn(turn: StoredTurn) -> str:
    """`[time] role: content`; the speaker's name in place of the role.

    The time is shown even where the content ends with it, as InMind's background does: shown only elsewhere, it would
    mark the turns that were put in between.
    """
    label = f"{turn.speaker or turn.role}: {turn.content}"
    return f"[{turn.time}] {label}" if turn.time else label


def render(turns: Iterable[StoredTurn]) -> str:
    """Turns, one after the other."""
    return "\n".join(render_turn(turn) for turn in turns)
