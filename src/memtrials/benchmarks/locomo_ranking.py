"""LoCoMo's measures of retrieval: the harness' by session and dialog turn, and the publisher's recall beside them.

The harness takes evidence as it is written, so that an element which names no turn is out of reach; `repaired` reads it
first. The publisher's recall knows no k: all that was retrieved counts, and questions without evidence have 1 in its
rows and 0 in its averages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from memtrials.benchmarks.base import Measure
from memtrials.benchmarks.ranking import ranking_measures, sessions_of
from memtrials.metrics.locomo_recall import official_recall, recall, statistics_recall
from memtrials.metrics.retrieval import Ranking, places
from memtrials.records import Gold

OF_SESSIONS = (1, 3, 5, 10)
OF_DIALOG = (5, 10, 20, 50)


class Element(NamedTuple):
    """A piece of evidence: as the data writes it, the turn that is exactly that, the position of the session it names;
    None where there is none."""

    text: str
    turn: str | None
    session: int | None


def elements(gold: Gold) -> list[Element]:
    """A question's evidence as it is written."""
    return [Element(*element) for element in json.loads(gold.details["evidence"])]


def by_session(ranking: Ranking, gold: Gold) -> tuple[Ranking, set[str]]:
    """By session; those of evidence that names no turn aren't known."""
    return sessions_of(ranking), {e.turn.partition(".")[0] for e in elements(gold) if e.turn is not None}


def by_dialog(ranking: Ranking, gold: Gold) -> tuple[Ranking, set[str]]:
    """By turn; evidence that names none stays a gold id."""
    return ranking, set(_turns_named(gold))


def _turns_named(gold: Gold) -> list[str]:
    return [e.text if e.turn is None else e.turn for e in elements(gold)]


def _sessions_named(gold: Gold) -> list[str]:
    return [e.text if e.session is None else str(e.session) for e in elements(gold)]


def _repaired(gold: Gold) -> list[str]:
    return list(gold.evidence)


def _of_context(
    value: Callable[[Sequence[str], Sequence[str]], float | None],
    named: Callable[[Gold], Sequence[str]],
    by_sessions: bool = False,
) -> Callable[[Any, Gold], float | None]:
    """A recall over all that was retrieved; None where the system gives no evidence ids."""

    def of(items: Any, gold: Gold) -> float | None:
        ranking = places(items, "session" if by_sessions else "turn")
        if ranking is None:
            return None
        seen = sessions_of(ranking) if by_sessions else ranking
        return value(named(gold), [name for ids in seen for name in ids])

    return of


MEASURES = (
    *ranking_measures("session", OF_SESSIONS, by_session),
    *ranking_measures("dialog", OF_DIALOG, by_dialog),
    Measure(
        "official-recall",
        "LoCoMo's own recall of evidence as it is written, 1 where there is none (its rows)",
        _of_context(official_recall, _turns_named),
        "mean",
    ),
    Measure(
        "official-recall-statistics",
        "the same, 0 where there is no evidence (its averages)",
        _of_context(statistics_recall, _turns_named),
        "mean",
    ),
    Measure(
        "official-recall-sessions",
        "LoCoMo's own recall of the sessions that evidence names, 1 where there is none (its rows)",
        _of_context(official_recall, _sessions_named, by_sessions=True),
        "mean",
    ),
    Measure(
        "evidence-recall",
        "recall of evidence as it is written, where there is some",
        _of_context(recall, _turns_named),
        "mean",
    ),
    Measure(
        "evidence-recall-repaired",
        "recall of the turns that evidence means, each once, where there are some",
        _of_context(recall, _repaired),
        "mean",
    ),
)
