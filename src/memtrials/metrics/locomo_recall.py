"""LoCoMo's own recall of evidence: how much of what a question names is among all that was retrieved.

Evidence is a list of elements as the data writes them, a few of which name no turn (`raw`) unless they are repaired
first; the two are never mixed. Source: the scoring and statistics modules of snap-research/locomo.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def recall(evidence: Sequence[str], context: Collection[str]) -> float | None:
    """The share of the elements that are in the context, one that is named twice counted twice; None without any.

    Nothing retrieved is 0.0, where the published code stops with an error.
    """
    return sum(element in context for element in evidence) / len(evidence) if evidence else None


def official_recall(evidence: Sequence[str], context: Sequence[str]) -> float:
    """`recall` as in the published rows: a question without evidence has 1.0. By sessions where the context's first id
    begins with `S`, by turns else."""
    if context and context[0].startswith("S"):
        evidence, context = sessions_named(evidence), [name[1:] for name in context]
    found = recall(evidence, context)
    return 1.0 if found is None else found


def statistics_recall(evidence: Sequence[str], context: Collection[str]) -> float:
    """`recall` as in the published averages: a question without evidence is counted and adds nothing."""
    return recall(evidence, context) or 0.0


def sessions_named(evidence: Iterable[str]) -> list[str]:
    """The number of each element's session, as text: what stands before its first colon, without its first letter."""
    return [element.partition(":")[0][1:] for element in evidence]
