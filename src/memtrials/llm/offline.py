"""The reader that needs no model: it quotes from the context what shares most words with the question."""

from __future__ import annotations

import re

from memtrials.records import AnswerBody

VERSION = 1
NOTHING = "Nothing in my memory bears on this."
QUOTED = 3
_SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s+|\n+")
_WORD = re.compile(r"[^\W_]+")


def extract(question: str, context: str) -> str:
    """Up to three sentences of the context, those that share most distinct words with the question, in their order.

    Ties go to the earlier sentence. A fixed sentence where nothing is shared: the answer is never empty.
    """
    wanted = set(_words(question))
    sentences = [s.strip() for s in _SENTENCE_END.split(context) if s.strip()]
    shared = [(len(wanted.intersection(_words(sentence))), -n) for n, sentence in enumerate(sentences)]
    best = sorted((pair for pair in shared if pair[0] > 0), reverse=True)[:QUOTED]
    return " ".join(sentences[-n] for _, n in sorted(best, key=lambda pair: -pair[1])) or NOTHING


def _words(text: str) -> list[str]:
    return [w.lower() for w in _WORD.findall(text) if len(w) > 2]


class OfflineReader:
    """Deterministic and extractive; its answers are class R."""

    async def answer(self, question: str, date: str | None, context: str) -> AnswerBody:
        """Quote from the context. The date isn't used."""
        return AnswerBody(text=extract(question, context))
