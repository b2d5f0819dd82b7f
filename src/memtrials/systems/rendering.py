"""How turns become the text a reader sees."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from memtrials.errors import UserError
from memtrials.records import Fit, clean_text
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


@dataclass(frozen=True)
class Window:
    """How much of a history is shown, where not all of it is: at most so many tokens of its beginning or its end."""

    keep: Literal["oldest", "newest"]
    tokens: int

    @classmethod
    def of(cls, setting: str) -> Window:
        """The window that `keep-newest N` or `keep-oldest N` says. Raises UserError."""
        match = re.fullmatch(r"keep-(oldest|newest) ([1-9]\d*)", setting)
        if match is None:
            raise UserError(f'window is {setting!r}; write "keep-newest N" or "keep-oldest N", N tokens')
        return cls("oldest" if match[1] == "oldest" else "newest", int(match[2]))

    def show(self, turns: Sequence[StoredTurn]) -> tuple[str, Fit]:
        """The text of the turns, cut between two tokens where it doesn't fit, and what became of each turn."""
        from memtrials.tokens import count_tokens, cut_tokens

        rendered = [clean_text(render_turn(turn)) for turn in turns]
        text = "\n".join(rendered)
        shown = cut_tokens(text, self.tokens, self.keep)
        left = len(shown)
        whole = partial = 0
        for piece in rendered if self.keep == "oldest" else reversed(rendered):
            whole += left >= len(piece)
            partial += 0 < left < len(piece)
            left = max(0, left - len(piece) - 1)
            if not left:
                break
        fit = Fit(
            asked=self.tokens,
            tokens=count_tokens(text),
            used=count_tokens(shown),
            whole=whole,
            partial=partial,
            dropped=len(rendered) - whole - partial,
        )
        return shown, fit
