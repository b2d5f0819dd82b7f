"""Continuity in the shapes of a retrieval harness: rows with all that was told and done up to their query, reports by
scenario. Ids are the fixture's; labels stand in `expected`, so that a row's own lists of gold are empty.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memtrials.benchmarks.base import Trial
from memtrials.benchmarks.continuity.scoring import REQUIRED, asked, history, measured
from memtrials.benchmarks.life import DECLARED
from memtrials.exchange.runs import (
    Dataset,
    Entry,
    Folded,
    Json,
    Reported,
    Run,
    binding,
    context_of,
    extent,
    latency,
    row,
)
from memtrials.index import LedgerIndex
from memtrials.metrics.continuity import change, probe
from memtrials.metrics.traces import Outcome, outcomes, returned
from memtrials.records import Header, IngestBody, Item, Operated, Restarted, RetrievalBody, text_sha256

LINKS, LIFECYCLE = ("link",), ("correct", "forget")
HUBS = "recurring_hub_entity"
"""The pattern whose searches are looked at as a whole."""


def rows(index: LedgerIndex, run: Run, data: Path | None) -> Iterator[Json]:
    """A row for each query, in the order in which they were asked. data: isn't needed, a ledger holds it all. Raises
    UserError where a context or a time that a row needs is unknown."""
    for header in run.trials:
        yield _row(index, run, header)


def _row(index: LedgerIndex, run: Run, header: Header) -> Json:
    place = f"{header.task}/{header.query} of {run.system}"
    ingest = index.ledger.body(index.parent(header), IngestBody)
    body = index.ledger.body(header, RetrievalBody)
    task = index.task(run.benchmark, header.task or "")
    shown = index.shown(body)
    trial = Trial(task, header.query or "", ingest, body, shown, index.config(run.fetch).settings)
    context = context_of(body, place)
    told, query = history(trial), task.query(trial.query)
    details = task.gold_of(query.id).details
    expected = json.loads(details["expected"])
    done = [one for one in ingest.operations if query.after is None or one.step <= query.after]
    entry = Entry(
        query.id,
        query.type,
        ((), ()),
        None if shown is None else [_item(item) for item in sorted(shown, key=lambda item: item.rank)],
        extent(told),
        measured(trial),
        writes=_reports(one for one in done if one.operation not in (*LINKS, *LIFECYCLE)),
        links=_reports(one for one in done if one.operation in LINKS),
        lifecycle=_reports(one for one in done if one.operation in LIFECYCLE),
    )
    return {
        **row(run, entry, body, context, latency(index, header, body, place)),
        "fixture_id": header.task,
        "namespace": task.source.options["namespace"],
        "event_id": details["event"],
        "timestamp": query.date,
        "expected": {f"{name}_external_ids": expected[name] for name in ("relevant", "irrelevant")},
        "history_text": told,
        "restart_observations": restarts(trial),
    }


def _item(item: Item) -> Json:
    """An item as rows list it. One that doesn't say what it is has its text's hash for a name."""
    memory = item.memory
    return {
        "kind": memory.kind if memory else "derived_memory",
        "internal_id": memory.internal_id if memory else text_sha256(item.text),
        "external_id": memory.external_id if memory else None,
        "episode_external_id": memory.episode_external_id if memory else None,
        "score": item.score,
        "rank": item.rank,
        "rationale": list(memory.rationale) if memory else [],
        "text": item.text,
    }


def _reports(done: Iterable[Operated]) -> list[Reported]:
    """What was reported of operations; of some nothing is, because others did the work."""
    return [Reported(one.operation_id, json.loads(one.reported)) for one in done if one.reported is not None]


# --- restarts ---------------------------------------------------------------------------------------------------


def restarts(trial: Trial) -> list[Json]:
    """The restarts that a trial's query probed, what it brought before and after each, and how that differs."""
    events = {
        step: (event, time) for step, event, time in json.loads(trial.task.gold_of(trial.query).details["restarts"])
    }
    relevant = asked(trial).relevant
    return [
        _restart(one, *events[one.step], trial.task.source.options["namespace"], relevant)
        for one in trial.ingest.restarts
        if one.query == trial.query
    ]


def _restart(one: Restarted, event: str, time: str, namespace: str, relevant: frozenset[str]) -> Json:
    sides = [probe(returned(items) or (), relevant) for items in (one.items_before, one.items_after)]
    counts = [_counts(outcomes(raw)) for raw in (one.raw_before, one.raw_after)]
    apart = change(*sides)
    before, after = (
        {
            "returned_object_ids": list(side.returned),
            "relevant_returned_count": side.relevant,
            "expected_relevant_count": side.expected,
            "recall": side.recall,
            **counted,
        }
        for side, counted in zip(sides, counts, strict=True)
    )
    return {
        "event_id": event,
        "timestamp": time,
        "reopen_graph": True,
        "reopen_stats": True,
        "lifecycle": {"namespace": namespace, "restored_identity_count": one.restored},
        "probe_query_id": one.query,
        "before_restart": before,
        "after_restart": after,
        "delta": {
            "returned_object_count": apart.returned,
            "relevant_returned_count": apart.relevant,
            "recall": apart.recall,
            "stable_returned_objects": apart.stable,
            **{name: _less(counts[1][name], counts[0][name]) for name in counts[0]},
        },
    }


def _less(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before


def _counts(found: Sequence[Outcome]) -> dict[str, int | None]:
    """What a probe's searches counted; null without a trace."""
    names = ("graph_relation_count", "graph_verified_count", "fanout_decision_count", *Decisions._fields)
    traces = [outcome.trace for outcome in found if outcome.trace is not None]
    if not traces:
        return dict.fromkeys(names)
    return {
        "graph_relation_count": sum(outcome.rationale.graph_relation_count for outcome in found),
        "graph_verified_count": sum(outcome.rationale.graph_verified_count for outcome in found),
        "fanout_decision_count": sum(len(trace.fanout_utilization) for trace in traces),
        **_decisions(found)._asdict(),
    }


class Decisions(NamedTuple):
    """Decisions on how many memories are taken from a hub, and on what ground."""

    selectivity_decision_count: int
    scored_selectivity_count: int
    fallback_selectivity_count: int


def _decisions(found: Iterable[Outcome]) -> Decisions:
    made = [one.fallback for outcome in found if outcome.trace for one in outcome.trace.selectivity_decisions]
    return Decisions(len(made), made.count(False), made.count(True))


# --- header and report ------------------------------------------------------------------------------------------


def _bindings(index: LedgerIndex, run: Run) -> Json:
    """Where each scenario's vectors are from: its own where the system takes those, else the system's."""
    settings = index.config(run.system).settings
    found: Json = {}
    for header in run.trials:
        task = header.task or ""
        if task not in found:
            own = index.ledger.body(index.parent(header), IngestBody).declared
            said = json.loads(index.task(run.benchmark, task).source.options["embedding"])
            found[task] = _declared(said, own) if settings.get("embedding") == DECLARED else binding(settings)
    return found


def _declared(said: Json, own: Mapping[str, str]) -> Json:
    """A script's own vectors. Of a store it is known which it was, not how it was made."""
    if said["kind"] != "frozen":
        return said
    size = own.get("dimensions")
    return {
        "kind": "frozen",
        "store_sha256": own.get("revision"),
        "source": None,
        "model": own.get("model"),
        "vector_size": None if size is None else int(size),
        "dimension_policy": None,
    }


def report(index: LedgerIndex, run: Run, rows: Iterable[Json]) -> Json:
    """The report of a run: of all rows, and of each scenario's."""
    whole = Folded(REQUIRED)
    scenarios: dict[str, Folded] = defaultdict(lambda: Folded(REQUIRED))
    restarts = 0
    hubs: list[Sequence[Outcome]] = []
    for one in rows:
        whole.add(one)
        scenarios[one["fixture_id"]].add(one)
        restarts += len(one["restart_observations"])
        if one["question_type"] == HUBS and one["retrieval_outcomes"]:
            hubs.append(outcomes(json.dumps(one["retrieval_outcomes"])))
    settings = index.config(run.fetch).settings
    return {
        "aggregate": {
            "degradation": whole.degradation(),
            "query_count": len(whole.metrics),
            "restart_count": restarts,
            **whole.measured(),
            "latency": whole.latency(),
        },
        "scenarios": {
            name: {"query_count": len(folded.metrics), **folded.measured()}
            for name, folded in sorted(scenarios.items())
        },
        "tuning_observations": [_limit(settings, hubs)] if hubs else [],
    }


def _limit(settings: Mapping[str, Any], queries: Sequence[Sequence[Outcome]]) -> Json:
    """How far the limit on what a search begins from cut into what it could have begun from, of whatever type."""
    found = [outcome for query in queries for outcome in query]
    cut = sum(one.reason == "root_limit" for outcome in found if outcome.trace for one in outcome.trace.omissions)
    taken = sum(outcome.rationale.telemetry.root_count for outcome in found)
    decisions = _decisions(found)
    observed = {
        "root_counter_query_count": len(queries),
        "unique_graph_root_candidate_count": taken + cut,
        "selected_graph_root_count": taken,
        "graph_root_omission_count": cut,
        **decisions._asdict(),
    }
    return {
        "id": "entity_root_candidate_limit",
        "finding": f"{taken + cut} objects could be roots, {taken} were, and {cut} were cut by the limit; of "
        f"{decisions.selectivity_decision_count} decisions on hubs {decisions.fallback_selectivity_count} knew no "
        "statistics",
        "measurement_regime": {name: settings.get(name) for name in ("max_vector_candidates", "max_graph_roots")},
        "observed": observed,
    }


DATASET = Dataset("continuity", lambda benchmark: "continuity", "traces.jsonl", rows, _bindings, report)
