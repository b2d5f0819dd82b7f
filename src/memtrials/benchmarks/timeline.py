"""What a system may see of a task's timeline: sessions of turns, in order."""

from __future__ import annotations

import msgspec

from memtrials.records import sha256


class Turn(msgspec.Struct, frozen=True):
    """One message of a session, as a system may see it. role: `user` or `assistant`; time: as the data writes it."""

    role: str
    content: str
    time: str | None = None
    speaker: str | None = None


class Session(msgspec.Struct, frozen=True):
    """One sitting: turns in order. time: when it began, as the data writes it."""

    turns: tuple[Turn, ...]
    time: str | None = None

    def digest(self) -> str:
        """SHA-256 of what a system is shown of this session."""
        return sha256([self.time, [[t.role, t.speaker, t.time, t.content] for t in self.turns]])


def turn_id(session: int, turn: int) -> str:
    """The neutral name of a turn: positions in the timeline, both counted from 0."""
    return f"{session}.{turn}"
