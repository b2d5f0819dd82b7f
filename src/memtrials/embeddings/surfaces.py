"""What stands before a text when a memory embeds one of its surfaces, and how it is taken off again."""

from __future__ import annotations

from collections.abc import Callable

PREFIXES = ("Episode summary: ", "Observation excerpt: ", "Reflection: ", "Entity: ", "Thread summary: ")


def bare(text: str, known: Callable[[str], bool]) -> str | None:
    """The text under which something is known: as it is, else without one surface prefix; None when it is neither."""
    if known(text):
        return text
    for prefix in PREFIXES:
        if text.startswith(prefix):
            rest = text.removeprefix(prefix)
            return rest if known(rest) else None
    return None


def normalised(text: str) -> str:
    """A text as a memory writes it: what white space separates, joined by single blanks. Queries stay as they are."""
    return " ".join(text.split())
