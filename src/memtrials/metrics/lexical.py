"""Comparisons of text that need no model. As verdicts they have their own names and class R (MEASURING §2)."""

from __future__ import annotations


def verbatim(context: str, fact: str) -> tuple[float, str]:
    """1.0 when the text stands in the context character for character, else 0.0; with the reason."""
    if fact in context:
        return 1.0, "the text stands verbatim in the context"
    return 0.0, "the text doesn't stand verbatim in the context"
