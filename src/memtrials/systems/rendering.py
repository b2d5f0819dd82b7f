"""How turns become the text a reader sees."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

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


def placed(pieces: Sequence[str], places: Sequence[int]) -> list[str]:
    """Pieces in the order of their places; as they are without places."""
    return [piece for _, piece in sorted(zip(places, pieces, strict=True))] if places else list(pieces)


class Fitted(NamedTuple):
    """A context under a budget. spans: from and to, in characters, of each piece in it, best first."""

    context: str
    spans: tuple[tuple[int, int], ...]
    fit: Fit


def fit_budget(pieces: Sequence[str], places: Sequence[int], budget: int, before: Fit | None = None) -> Fitted:
    """As many pieces, best first, as so many tokens hold. The first that doesn't fit is cut between two tokens, and
    nothing follows it; then they are put in their places.

    Smaller budgets give prefixes of larger ones, with places (which are all different) prefixes as sets of pieces. What
    is counted is the context as it is shown, so moving pieces may cost the cut one a token more. before: how these
    pieces were cut already.
    """
    from memtrials.tokens import count_tokens, cut_tokens

    pieces = [clean_text(piece) for piece in pieces]
    text = "\n".join(pieces)
    room = budget
    while True:
        shown = cut_tokens(text, room, "oldest")
        parts = _parts(pieces, len(shown))
        context = "\n".join(placed(parts, places[: len(parts)])) if places else shown
        used = count_tokens(context)
        if used <= budget:
            break
        room -= used - budget
    cut = bool(parts) and (
        len(parts[-1]) < len(pieces[len(parts) - 1]) or (len(parts) == len(pieces) and bool(before and before.partial))
    )
    fit = Fit(
        asked=budget,
        tokens=before.tokens if before else count_tokens(text),
        used=used,
        whole=len(parts) - cut,
        partial=int(cut),
        dropped=len(pieces) - len(parts) + (before.dropped if before else 0),
    )
    return Fitted(context, _spans(parts, places), fit)


def _parts(pieces: Iterable[str], length: int) -> list[str]:
    """What the first so many characters of the joined pieces hold of each."""
    parts = []
    for piece in pieces:
        if length <= 0:
            break
        parts.append(piece[:length])
        length -= len(piece) + 1
    return parts


def _spans(parts: Sequence[str], places: Sequence[int]) -> tuple[tuple[int, int], ...]:
    order = sorted(range(len(parts)), key=lambda n: places[n] if places else n)
    starts = accumulate((len(parts[n]) + 1 for n in order), initial=0)
    at = dict(zip(order, starts, strict=False))
    return tuple((at[n], at[n] + len(part)) for n, part in enumerate(parts))


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
