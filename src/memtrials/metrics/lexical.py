"""Comparisons of text that need no model. As verdicts they have their own names and class R (MEASURING §2)."""

from __future__ import annotations

import re
from collections.abc import Sequence

_WORD = re.compile(r"[^\W_]+")
_ARTICLES = frozenset(("a", "an", "the"))


def verbatim(context: str, fact: str) -> tuple[float, str]:
    """1.0 when the text stands in the context character for character, else 0.0; with the reason."""
    if fact in context:
        return 1.0, "the text stands verbatim in the context"
    return 0.0, "the text doesn't stand verbatim in the context"


def words(text: str) -> list[str]:
    """Lower-cased runs of letters and digits without the articles a, an, the (SQuAD's normalisation)."""
    return [word for word in _WORD.findall(text.lower()) if word not in _ARTICLES]


def holds(text: Sequence[str], phrase: Sequence[str]) -> bool:
    """Whether these words stand in a text's words, one after the other. A phrase without words stands nowhere."""
    return bool(phrase) and f" {' '.join(phrase)} " in f" {' '.join(text)} "


def contained(answer: str, golds: Sequence[str]) -> tuple[float, str]:
    """1.0 when the words of one of the gold answers stand in the answer, one after the other, else 0.0; with the
    reason. It finds far fewer answers right than people do (MEASURING §2)."""
    said = words(answer)
    for gold in golds:
        if holds(said, words(gold)):
            return 1.0, f"the answer holds the words of {gold!r}"
    return 0.0, "the answer doesn't hold the words of the gold answer"
