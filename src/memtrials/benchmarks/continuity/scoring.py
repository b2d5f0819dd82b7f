"""What a trial of a scripted query is worth, and why a value that it has no number for has none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean as mean
from typing import NamedTuple

from memtrials.benchmarks.base import Rows, Trial
from memtrials.benchmarks.continuity import labels
from memtrials.metrics.continuity import (
    ABSTENTION,
    CORRECTIONS,
    TEMPORAL,
    Asked,
    Change,
    Probe,
    Values,
    change,
    names,
    probe,
    values,
)
from memtrials.metrics.rows import BASE_KEYS, CHECKED_KEYS, CONTEXT_KEYS, NEVER_KEYS, base_values
from memtrials.metrics.traces import checked, counts, outcomes, returned, traced
from memtrials.records import Restarted
from memtrials.tokens import count_tokens

UNTRACED = "the system gives no trace"
REQUIRED = (*BASE_KEYS, *names())
"""What every row has."""
RESTARTS = ("restart_recall_change", "restart_stable_share", "restart_graph_relation_change")
"""What a query says of the restarts before it, as means over these: the recall after less that before, whether the same
came back, and how many more relations its search met. They are ours, and stand in no row."""
SHOWN = (
    "continuity_recall_fraction_gap_short@5",
    "continuity_recall_fraction_gap_medium@5",
    "continuity_recall_fraction_gap_long@5",
    "temporal_recall_fraction@5",
    "supersession_replacement_recall",
    "correction_lifecycle_safe_admission_rate",
    "sampled_context_pollution_rate",
    "sampled_event_pollution_rate",
    "restart_recall_change",
    "restart_stable_share",
    "hub_expansion_relevant_hit_rate",
    "suppressed_memory_leakage_rate",
    "superseded_current_leakage_rate",
    "typed_rationale_coverage",
    "context_reduction_rate",
)
"""What was found again and when, what corrections, forgetting and restarts left, and at which price."""


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


class Observed(NamedTuple):
    """A restart that a query probed. counted: what the searches on either side counted, and the second less the first;
    null without a trace."""

    restart: Restarted
    before: Probe
    after: Probe
    change: Change
    counted_before: Mapping[str, int | None]
    counted_after: Mapping[str, int | None]

    @property
    def counted_change(self) -> dict[str, int | None]:
        """After less before."""
        both = ((name, before, self.counted_after[name]) for name, before in self.counted_before.items())
        return {name: None if None in (a, b) else (b or 0) - (a or 0) for name, a, b in both}


def observed(trial: Trial) -> list[Observed]:
    """The restarts that a trial's query probed."""
    relevant = asked(trial).relevant
    found = []
    for one in trial.ingest.restarts:
        if one.query == trial.query:
            before, after = (probe(returned(items) or (), relevant) for items in (one.items_before, one.items_after))
            counted = [counts(outcomes(raw)) for raw in (one.raw_before, one.raw_after)]
            found.append(Observed(one, before, after, change(before, after), *counted))
    return found


def _restarts(trial: Trial) -> dict[str, float | str]:
    """The values of RESTARTS, or why there are none."""
    found = observed(trial)
    if not found:
        return dict.fromkeys(RESTARTS, "no restart came before it")
    recalls = [one.change.recall for one in found if one.change.recall is not None]
    relations = [n for one in found if (n := one.counted_change["graph_relation_count"]) is not None]
    means = (
        mean(recalls) if recalls else "nothing is relevant",
        mean(one.change.stable for one in found),
        mean(relations) if relations else UNTRACED,
    )
    return dict(zip(RESTARTS, means, strict=True))


def explained(trial: Trial) -> dict[str, float | str]:
    """The values of a trial by REQUIRED and RESTARTS: a number, or why there is none."""
    found, reasons = measured(trial), _reasons(trial)
    told = {name: _why(reasons, name) if (value := found[name]) is None else value for name in REQUIRED}
    return told | _restarts(trial)


def _why(reasons: Sequence[tuple[str, str]], name: str) -> str:
    return next(reason for known, reason in reasons if name.startswith(known))


def _reasons(trial: Trial) -> list[tuple[str, str]]:
    """Why a trial has no value, by how the value's name begins; the first that fits."""
    known, trace = asked(trial), traced(outcomes(trial.retrieval.raw))
    whole = [(name, "the context, or the history, isn't known or is empty") for name in CONTEXT_KEYS]
    whole += [(name, "nothing is measured here but retrieval") for name in NEVER_KEYS]
    if returned(trial.items) is None:
        return [*whole, ("", "the system doesn't say what it brought back")]
    by_vectors = trace is not None and checked(trace, trial.fetch) is None
    unchecked = "what vectors alone find isn't checked" if by_vectors else UNTRACED
    whole += [("num_entities", "no entity came back"), *((name, unchecked) for name in CHECKED_KEYS)]
    polluting = [
        ("sampled_pollution_rationale_share_", UNTRACED if trace is None else "nothing that pollutes says why it came"),
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
        ("hub_expansion_", "it has no hub" if not hub else UNTRACED if trace is None else "no entity led to a label"),
        ("correction_lifecycle_", UNTRACED if corrects else other + ", ".join(CORRECTIONS)),
        ("supersession_", "no replacement is relevant" if corrects else other + ", ".join(CORRECTIONS)),
        ("typed_rationale_coverage", UNTRACED),
        ("rationale_category_share_", UNTRACED if trace is None else "no item says why it came"),
    ]


ROWS = Rows((*REQUIRED, *RESTARTS), explained, SHOWN)
