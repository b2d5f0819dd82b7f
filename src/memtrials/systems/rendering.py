"""How turns become the text a reader sees."""

from __future__ import annotations

from collections.abc import Iterable

from memtrials.systems.store import StoredTurn

RENDERING = "time-role-1"


def render_turn(turn: StoredTurn) -> str:
    """`[time] role: content`; the speaker's name in place of the role; no time where the content ends with it."""
    label = f"{turn.speaker or turn.role}: {turn.content}"
    if turn.time and not turn.content.rstrip().endswith(turn.time):
        return f"[{turn.time}] {label}"
    return label


def render(turns: Iterable[StoredTurn]) -> str:
    """Turns, one after the other."""
    return "\n".join(render_turn(turn) for turn in turns)
