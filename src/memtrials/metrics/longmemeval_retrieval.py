"""LongMemEval's own measures of retrieval: of its corpus, by its ids, with its discount and its rule for no evidence.

The published retrievers rank the whole history of a question, session by session or turn by turn, and only what the
user said is in it. A corpus is the list of its items' ids, in order; ids may repeat. Evidence is told by the id: it has
`answer` in it, and an item of an evidence session that doesn't itself hold the answer has `noans` there.

Source: the retrieval scripts of xiaowu0162/LongMemEval. These values differ from textbook ones: ranks 1 and 2 weigh the
same, the ideal is over the corpus, and without evidence recall_all is 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from memtrials.metrics.retrieval import Ranking

Timeline = Sequence[tuple[str, str]]
"""For each session its published id and a letter for each turn: u or a for the role, a capital if it has the answer."""
Corpus = Sequence[str]


def session_corpus(timeline: Timeline) -> list[str]:
    """One id for each session; `noans` for an evidence session in which no turn of the user has the answer."""
    return [name if "U" in letters else _without_answer(name) for name, letters in timeline]


def turn_corpus(timeline: Timeline) -> dict[str, str]:
    """The ids of the user's turns in order, by neutral turn id: session id, `_`, place among all its turns from 1."""
    return {
        f"{position}.{n}": f"{name}_{n + 1}" if letter == "U" else _without_answer(f"{name}_{n + 1}")
        for position, (name, letters) in enumerate(timeline)
        for n, letter in enumerate(letters)
        if letter in "uU"
    }


def _without_answer(name: str) -> str:
    return name.replace("answer", "noans")


def evidence(corpus: Iterable[str]) -> set[str]:
    """The ids in a corpus that are gold."""
    return {name for name in corpus if "answer" in name}


def recall_any(ranked: Sequence[str], corpus: Corpus, k: int) -> float:
    """1.0 if any gold id is among the first k, else 0.0, also without gold."""
    return float(not evidence(corpus).isdisjoint(ranked[:k]))


def recall_all(ranked: Sequence[str], corpus: Corpus, k: int) -> float:
    """1.0 if every gold id is among the first k, and without gold; else 0.0."""
    return float(evidence(corpus).issubset(ranked[:k]))


def ndcg_any(ranked: Sequence[str], corpus: Corpus, k: int) -> float:
    """The gain of the first k over that of the best order of the whole corpus; 0.0 without gold.

    A gold item gains 1 at rank 1 and 1/log2(rank) after it. An id that stands several times in the corpus counts as
    often in the ideal.
    """
    gold = evidence(corpus)
    best = _gain(sorted((name in gold for name in corpus), reverse=True)[:k])
    return _gain(name in gold for name in ranked[:k]) / best if best else 0.0


def _gain(relevant: Iterable[bool]) -> float:
    return sum(1 / (math.log2(rank) if rank > 1 else 1.0) for rank, is_gold in enumerate(relevant, 1) if is_gold)


OFFICIAL_MEASURES: dict[str, Callable[[Sequence[str], Corpus, int], float]] = {
    "recall-any": recall_any,
    "recall-all": recall_all,
    "ndcg-any": ndcg_any,
}


def session_view(ranked: Sequence[str], corpus: Corpus, k: int) -> tuple[list[str], list[str], int]:
    """A ranking of turns seen by sessions: what the measures take instead of ranked, corpus and k.

    Every id loses its last `_` part, and k grows until the first k hold so many different sessions, or to the ranking's
    end. Turns stay the items that are ranked, and an evidence session's `noans` turns are a session of their own.
    """
    sessions = [_session(name) for name in ranked]
    reach = k
    while len(set(sessions[:reach])) < k and reach < len(sessions):
        reach += 1
    return sessions, [_session(name) for name in corpus], reach


def _session(turn: str) -> str:
    return turn.rpartition("_")[0]


def ranked_turns(ranking: Ranking, corpus: Mapping[str, str]) -> list[str] | None:
    """A ranking by neutral turn ids as one of the published corpus of turns; None where it can't be one.

    corpus: as `turn_corpus`. Places without a turn of the user aren't in that corpus and take up no rank, and a turn
    that comes again doesn't count. A place with two of the user's turns has no counterpart in it.
    """
    found: dict[str, None] = {}
    for ids in ranking:
        known = [turn for turn in ids if turn in corpus]
        if len(known) > 1:
            return None
        found.update(dict.fromkeys(known))
    return [corpus[turn] for turn in found]
