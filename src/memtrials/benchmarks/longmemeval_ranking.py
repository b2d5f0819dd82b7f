"""LongMemEval's measures of retrieval: the harness' by session and turn, and the publisher's own beside them.

The first are over all evidence, by whoever said it. The publisher's know only what the user said (see
`metrics/longmemeval_retrieval.py`) and are averaged twice: its runner leaves out questions without evidence of the
user's, its table script counts them, with 1 for recall-all. Neither counts questions that can't be answered.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from memtrials.benchmarks.base import Asks, CutOff, Measure
from memtrials.benchmarks.ranking import IN_A_HISTORY, ranking_measures
from memtrials.metrics.longmemeval_retrieval import (
    OFFICIAL_MEASURES,
    Corpus,
    Timeline,
    ranked_turns,
    session_view,
    turn_corpus,
)
from memtrials.metrics.retrieval import Ranking, places
from memtrials.records import Gold, Query, TaskBody

OF_SESSIONS = (1, 3, 5, 10)
OF_TURNS = (5, 10, 20, 50)
OFFICIAL_OF = {"session": (5, 10), "turn": (5, 10, 50)}
"""Cut-offs of the published tables."""


@lru_cache(maxsize=1024)
def _read(timeline: str) -> tuple[Timeline, dict[str, str]]:
    parts = [(name, letters) for name, letters in json.loads(timeline)]
    return parts, turn_corpus(parts)


def timeline(gold: Gold) -> Timeline:
    """The sessions of a question's history."""
    return _read(gold.details["timeline"])[0]


def is_answerable(query: Query, gold: Gold) -> bool:
    """Whether the history holds the answer."""
    return not gold.abstention


def has_users_evidence(query: Query, gold: Gold) -> bool:
    """Whether it is answerable, and by something that the user said."""
    return not gold.abstention and any("U" in letters for _, letters in timeline(gold))


def by_session(ranking: Ranking, gold: Gold) -> tuple[Ranking, set[str]]:
    """By the data's session ids, so that a session that comes twice in a history counts once."""
    names = [name for name, _ in timeline(gold)]
    found = [{names[int(turn.partition(".")[0])] for turn in turns} for turns in ranking]
    return found, {names[position] for position in json.loads(gold.details["evidence_sessions"])}


def by_turn(ranking: Ranking, gold: Gold) -> tuple[Ranking, set[str]]:
    """By session id and place, so that a turn of a session that comes twice counts once."""
    names = [name for name, _ in timeline(gold)]

    def name(turn: str) -> str:
        position, _, place = turn.partition(".")
        return f"{names[int(position)]}.{place}"

    return [{name(turn) for turn in turns} for turns in ranking], {name(turn) for turn in gold.evidence}


def _official(
    measure: Callable[[Sequence[str], Corpus, int], float], by_sessions: bool, k: int, items: Any, gold: Gold
) -> float | None:
    ranking, corpus = places(items), _read(gold.details["timeline"])[1]
    ranked = None if ranking is None else ranked_turns(ranking, corpus)
    if ranked is None:
        return None
    ids = list(corpus.values())
    return measure(*session_view(ranked, ids, k)) if by_sessions else measure(ranked, ids, k)


def _users_turns(task: TaskBody) -> int:
    return len(_read(task.gold[0].details["timeline"])[1])


def official_measures(prefix: str, whose: str, asks: Asks) -> tuple[Measure, ...]:
    """The publisher's measures, named like `official-turn-recall-all@5`, of the questions that an average is over.

    k counts the user's turns among what was retrieved; a retrieval that ends before k counts as it is. By session it is
    the publisher's session view of a ranking of turns. None where the system gives no evidence ids, or gives items of
    several turns of the user.
    """
    return tuple(
        Measure(
            f"{prefix}-{level}-{name}@{k}",
            f"LongMemEval's own {name} over the user's turns, by {level}; {whose}",
            partial(_official, measure, level == "session", k),
            "mean" if name == "ndcg-any" else "share",
            asks,
            cutoff=CutOff(k, *(IN_A_HISTORY[level] if level == "session" else ("turns of the user", _users_turns))),
        )
        for level, cutoffs in OFFICIAL_OF.items()
        for name, measure in OFFICIAL_MEASURES.items()
        for k in cutoffs
    )


MEASURES = (
    *ranking_measures("session", OF_SESSIONS, by_session, is_answerable),
    *ranking_measures("turn", OF_TURNS, by_turn, is_answerable),
    *official_measures("official", "its runner's average, 419 questions of S", has_users_evidence),
    *official_measures("official-printed", "its table script's average, 470 questions of S", is_answerable),
)
