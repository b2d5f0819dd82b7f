"""Where a memory failed: ordered, exclusive classes that sum to the number of tasks (MEASURING §7)."""

from __future__ import annotations

UNDETERMINED = "undetermined"
INCONSISTENT = "judges inconsistent"
SUCCESS = "success"
SURFACED_UNUSED = "surfaced, not used"
BLIND_SPOT = "blind spot"
NOT_STORED = "not stored or not retrievable"

SURFACED = "surfaced"
STORED_UNSURFACED = "stored, not surfaced"

INMIND = (SUCCESS, SURFACED_UNUSED, BLIND_SPOT, NOT_STORED, INCONSISTENT, UNDETERMINED)
INMIND_BY_RULE = (SURFACED, STORED_UNSURFACED, NOT_STORED, UNDETERMINED)


def inmind(direct: float | None, target: float | None, application: float | None) -> str:
    """One of INMIND for a task's pair of trials.

    direct: the fact is in the direct query's context (direct-recall); target: in the indirect one's (target-recall);
    application: the indirect answer applies it. 0.0, 1.0 or None for a missing verdict. The storage probe isn't asked,
    so what it would split stays one class.
    """
    if target is None or application is None:
        return UNDETERMINED
    if application:
        return SUCCESS if target else INCONSISTENT
    if target:
        return SURFACED_UNUSED
    if direct is None:
        return UNDETERMINED
    return BLIND_SPOT if direct else NOT_STORED


def inmind_by_rule(direct: float | None, target: float | None) -> str:
    """One of INMIND_BY_RULE, from whether the fact stands verbatim in each query's context."""
    if target:
        return SURFACED
    if target is None or direct is None:
        return UNDETERMINED
    return STORED_UNSURFACED if direct else NOT_STORED
