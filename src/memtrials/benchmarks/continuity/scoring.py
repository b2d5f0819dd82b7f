"""What a trial of a scripted query is worth, and why a value that it has no number for has none."""

from __future__ import annotations

from collections.abc import Sequence

from memtrials.benchmarks.base import Rows, Trial
from memtrials.benchmarks.continuity import labels
from memtrials.metrics.continuity import ABSTENTION, CORRECTIONS, TEMPORAL, Asked, Values, names, values
from memtrials.metrics.rows import BASE_KEYS, CHECKED_KEYS, CONTEXT_KEYS, NEVER_KEYS, base_values
from memtrials.metrics.traces import checked, outcomes, returned, traced
from memtrials.tokens import count_tokens

REQUIRED = (*BASE_KEYS, *names())
"""What every row has."""
SHOWN = (
    "continuity_recall_fraction_gap_short@5",
    "continuity_recall_fraction_gap_medium@5",
    "continuity_recall_fraction_gap_long@5",
    "temporal_recall_fraction@5",
    "supersession_replacement_recall",
    "correction_lifecycle_safe_admission_rate",
    "sampled_context_pollution_rate",
    "sampled_event_pollution_rate",
    "hub_expansion_relevant_hit_rate",
    "suppressed_memory_leakage_rate",
    "superseded_current_leakage_rate",
    "typed_rationale_coverage",
    "context_reduction_rate",
)
"""What was found again and when, what corrections and forgetting left, and at which price."""


def asked(trial: Trial) -> Asked:
    """What the script says of a trial's query."""
    return labels.asked_of(trial.task.gold_of(trial.query).details)


def history(trial: Trial) -> str:
    """All that was told before a trial's query, a line for each event."""
    places = [query.id for query in trial.task.queries]
    before = places[: places.index(trial.query) + 1]
    return labels.history(trial.task.gold_of(query).details for query in before)


def measured(trial: Trial) -> Values:
    """The values of a trial, by REQUIRED and what a row has beside these."""
    items, trace = returned(trial.items), traced(outcomes(trial.retrieval.raw))
    context = trial.retrieval.context
    tokens = None if context is None else count_tokens(context)
    found: Values = base_values(tokens, count_tokens(history(trial)), items, checked(trace, trial.fetch))
    return found | (dict.fromkeys(names()) if items is None else values(asked(trial), items, trace))


def explained(trial: Trial) -> dict[str, float | str]:
    """The values of a trial by REQUIRED: a number, or why there is none."""
    found, reasons = measured(trial), _reasons(trial)
    return {name: _why(reasons, name) if (value := found[name]) is None else value for name in REQUIRED}


def _why(reasons: Sequence[tuple[str, str]], name: str) -> str:
    return next(reason for known, reason in reasons if name.startswith(known))


def _reasons(trial: Trial) -> list[tuple[str, str]]:
    """Why a trial has no value, by how the value's name begins; the first that fits."""
    known, trace = asked(trial), traced(outcomes(trial.retrieval.raw))
    untraced = "the system gives no trace"
    whole = [(name, "the context, or the history, isn't known or is empty") for name in CONTEXT_KEYS]
    whole += [(name, "nothing is measured here but retrieval") for name in NEVER_KEYS]
    if returned(trial.items) is None:
        return [*whole, ("", "the system doesn't say what it brought back")]
    by_vectors = trace is not None and checked(trace, trial.fetch) is None
    unchecked = "what vectors alone find isn't checked" if by_vectors else untraced
    whole += [("num_entities", "no entity came back"), *((name, unchecked) for name in CHECKED_KEYS)]
    polluting = [
        ("sampled_pollution_rationale_share_", untraced if trace is None else "nothing that pollutes says why it came"),
        ("sampled_", "no labeled item came back"),
    ]
    if known.pattern == ABSTENTION:
        return [*whole, *polluting, ("", "of an abstention only pollution is measured")]
    hub, corrects = known.hub_events is not None, known.pattern in CORRECTIONS
    other = "its pattern is none of "
    return [
        *whole,
        *polluting,
        ("continuity_gap_days", "no event made what is relevant"),
        ("continuity_recall_fraction_gap_", "its gap is another, or none"),
        ("temporal_recall_fraction", other + ", ".join(TEMPORAL)),
        ("hub_context_share", "nothing came back" if hub else "it has no hub"),
        ("hub_expansion_", "it has no hub" if not hub else untraced if trace is None else "no entity led to a label"),
        ("correction_lifecycle_", untraced if corrects else other + ", ".join(CORRECTIONS)),
        ("supersession_", "no replacement is relevant" if corrects else other + ", ".join(CORRECTIONS)),
        ("typed_rationale_coverage", untraced),
        ("rationale_category_share_", untraced if trace is None else "no item says why it came"),
    ]


ROWS = Rows(REQUIRED, explained, SHOWN)
