"""Where a memory failed: ordered, exclusive classes that sum to the number of tasks or questions (MEASURING §7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

UNDETERMINED = "undetermined"
INCONSISTENT = "judges inconsistent"
SUCCESS = "success"
SURFACED_UNUSED = "surfaced, not used"
BLIND_SPOT = "blind spot"
NOT_STORED = "not stored or not retrievable"
LOST = "not stored"
UNRETRIEVABLE = "stored, not retrievable even directly"

SURFACED = "surfaced"
STORED_UNSURFACED = "stored, not surfaced"

INMIND = (SUCCESS, SURFACED_UNUSED, BLIND_SPOT, UNRETRIEVABLE, LOST, NOT_STORED, INCONSISTENT, UNDETERMINED)
INMIND_BY_RULE = (SURFACED, STORED_UNSURFACED, UNRETRIEVABLE, LOST, NOT_STORED, UNDETERMINED)


def inmind(direct: float | None, target: float | None, application: float | None, stored: float | None = None) -> str:
    """One of INMIND for a task's pair of trials.

    direct: the fact is in the direct query's context (direct-recall); target: in the indirect one's (target-recall);
    application: the indirect answer applies it; stored: a query made of the fact itself finds it. 0.0, 1.0 or None for
    a missing verdict. Where the storage probe wasn't asked, what it would split stays one class.
    """
    if target is None or application is None:
        return UNDETERMINED
    if application:
        return SUCCESS if target else INCONSISTENT
    if target:
        return SURFACED_UNUSED
    if direct is None:
        return UNDETERMINED
    return BLIND_SPOT if direct else _never(stored)


def _never(stored: float | None) -> str:
    """What it is that not even the direct query surfaces."""
    if stored is None:
        return NOT_STORED
    return UNRETRIEVABLE if stored else LOST


def inmind_by_rule(direct: float | None, target: float | None, stored: float | None = None) -> str:
    """One of INMIND_BY_RULE, from whether the fact stands verbatim in each query's context. stored: see `inmind`."""
    if target:
        return SURFACED
    if target is None or direct is None:
        return UNDETERMINED
    return STORED_UNSURFACED if direct else _never(stored)


# --- benchmarks whose questions name their evidence -------------------------------------------------------------

DISPUTED = "gold disputed"
JUDGES_DISAGREE = "judges disagree"
RIGHT_ALL = "right with all evidence"
RIGHT_PART = "right with part of it"
RIGHT_WITHOUT = "right without evidence"
RIGHT_UNKNOWN = "right, evidence unknown (no ids)"
RIGHT_NONE_NAMED = "right, gold names no evidence"
NOT_RETRIEVED = "stored, not retrieved"
NOT_PROBED = "not stored or not retrieved (not probed)"
CUT = "retrieved, cut by budget or window"
NOT_RETRIEVED_OR_CUT = "not retrieved or cut (no ids)"
ORACLE_FAILS = "all evidence in context, oracle fails too"
DISTRACTED = "all evidence in context, oracle succeeds (distracted)"
ORACLE_UNASKED = "all evidence in context, oracle not asked"
PART_ONLY = "part of the evidence only"
WRONG_UNKNOWN = "wrong, evidence unknown (no ids)"
WRONG_NONE_NAMED = "wrong, gold names no evidence"

BY_EVIDENCE = (
    UNDETERMINED,
    DISPUTED,
    JUDGES_DISAGREE,
    RIGHT_ALL,
    RIGHT_PART,
    RIGHT_WITHOUT,
    RIGHT_UNKNOWN,
    RIGHT_NONE_NAMED,
    LOST,
    NOT_RETRIEVED,
    NOT_PROBED,
    CUT,
    NOT_RETRIEVED_OR_CUT,
    ORACLE_FAILS,
    DISTRACTED,
    ORACLE_UNASKED,
    PART_ONLY,
    WRONG_UNKNOWN,
    WRONG_NONE_NAMED,
)
"""In the order of the waterfall."""


@dataclass(frozen=True)
class Facts:
    """What is known of one trial of a question.

    score: its verdict, 0.0 or 1.0 (None: there is none). disputed: the gold is known to be wrong or in doubt. disagree:
    verdicts on the same answer differ. evidence: turns that gold names; retrieved: those of them that came back; shown:
    those that stand whole in the context (both None where a system gives no ids and nothing else tells). stored: by
    turn, whether a query made of its own text finds it (left out: not asked, or it can't be told). oracle: the score of
    the same reader shown the evidence alone, by the same judge.
    """

    score: float | None
    disputed: bool = False
    disagree: bool = False
    evidence: frozenset[str] = frozenset()
    retrieved: frozenset[str] | None = None
    shown: frozenset[str] | None = None
    stored: Mapping[str, bool] = field(default_factory=dict)
    oracle: float | None = None


def by_evidence(facts: Facts) -> str:
    """One of BY_EVIDENCE.

    Of what went wrong the earliest cause counts: a piece of evidence that isn't stored before one that isn't
    retrieved. NOT_RETRIEVED: none of it came back. CUT: all of it came back, or none of what did is shown. PART_ONLY:
    some is shown, and more didn't come back.
    """
    if facts.score is None:
        return UNDETERMINED
    if facts.disputed:
        return DISPUTED
    if facts.disagree:
        return JUDGES_DISAGREE
    return _right(facts) if facts.score else _wrong(facts)


def _right(facts: Facts) -> str:
    if not facts.evidence:
        return RIGHT_NONE_NAMED
    if facts.shown is None:
        return RIGHT_UNKNOWN
    if facts.shown >= facts.evidence:
        return RIGHT_ALL
    return RIGHT_PART if facts.shown else RIGHT_WITHOUT


def _wrong(facts: Facts) -> str:
    if not facts.evidence:
        return WRONG_NONE_NAMED
    back = facts.retrieved if facts.retrieved is not None else facts.shown or frozenset()
    missing = facts.evidence - back
    if any(facts.stored.get(turn) is False for turn in missing):
        return LOST
    if facts.shown is None:
        return WRONG_UNKNOWN
    if facts.shown >= facts.evidence:
        if facts.oracle is None:
            return ORACLE_UNASKED
        return DISTRACTED if facts.oracle else ORACLE_FAILS
    if facts.retrieved is None:
        return PART_ONLY if facts.shown else NOT_RETRIEVED_OR_CUT
    if not facts.retrieved:
        return NOT_RETRIEVED if all(facts.stored.get(turn) for turn in facts.evidence) else NOT_PROBED
    if not facts.shown or facts.retrieved >= facts.evidence:
        return CUT
    return PART_ONLY
