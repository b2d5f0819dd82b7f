"""Continuity in the shapes of a retrieval harness: rows with all that was told and done up to their query, reports by
scenario. Ids are the fixture's; labels stand in `expected`, so that a row's own lists of gold are empty.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memtrials.benchmarks.base import Trial
from memtrials.benchmarks.continuity.scoring import REQUIRED, Observed, history, measured, observed
from memtrials.benchmarks.life import DECLARED
from memtrials.exchange.runs import (
    DERIVED,
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
    listed,
    row,
)
from memtrials.index import LedgerIndex
from memtrials.metrics.traces import Outcome, decisions, outcomes
from memtrials.records import Header, IngestBody, Item, Operated, RetrievalBody

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
    """An item as rows list it; one that doesn't say what it is counts as derived."""
    if (memory := item.memory) is None:
        return listed(item, DERIVED, None, None)
    return listed(item, memory.kind, memory.external_id, memory.episode_external_id)


def _reports(done: Iterable[Operated]) -> list[Reported]:
    """What was reported of operations; of some nothing is, because others did the work."""
    return [Reported(one.operation_id, json.loads(one.reported)) for one in done if one.reported is not None]


# --- restarts ---------------------------------------------------------------------------------------------------


def restarts(trial: Trial) -> list[Json]:
    """The restarts that a trial's query probed, what it brought before and after each, and how that differs."""
    events = {
        step: (event, time) for step, event, time in json.loads(trial.task.gold_of(trial.query).details["restarts"])
    }
    return [_restart(one, *events[one.restart.step], trial.task.source.options["namespace"]) for one in observed(trial)]


def _restart(one: Observed, event: str, time: str, namespace: str) -> Json:
    before, after = (
        {
            "returned_object_ids": list(side.returned),
            "relevant_returned_count": side.relevant,
            "expected_relevant_count": side.expected,
            "recall": side.recall,
            **counted,
        }
        for side, counted in ((one.before, one.counted_before), (one.after, one.counted_after))
    )
    return {
        "event_id": event,
        "timestamp": time,
        "reopen_graph": True,
        "reopen_stats": True,
        "lifecycle": {"namespace": namespace, "restored_identity_count": one.restart.restored},
        "probe_query_id": one.restart.query,
        "before_restart": before,
        "after_restart": after,
        "delta": {
            "returned_object_count": one.change.returned,
            "relevant_returned_count": one.change.relevant,
            "recall": one.change.recall,
            "stable_returned_objects": one.change.stable,
            **one.counted_change,
        },
    }


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
    """A script's own vectors. How those of a store were made was not always recorded."""
    if said["kind"] != "frozen":
        return said
    size = own.get("dimensions")
    return {
        "kind": "frozen",
        "store_sha256": own.get("revision"),
        "source": own.get("source"),
        "model": own.get("model"),
        "vector_size": None if size is None else int(size),
        "dimension_policy": own.get("dimension_policy"),
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
    decided = decisions(found)
    counted = {
        "root_counter_query_count": len(queries),
        "unique_graph_root_candidate_count": taken + cut,
        "selected_graph_root_count": taken,
        "graph_root_omission_count": cut,
        **decided._asdict(),
    }
    return {
        "id": "entity_root_candidate_limit",
        "finding": f"{taken + cut} objects could be roots, {taken} were, and {cut} were cut by the limit; of "
        f"{decided.selectivity_decision_count} decisions on hubs {decided.fallback_selectivity_count} knew no "
        "statistics",
        "measurement_regime": {name: settings.get(name) for name in ("max_vector_candidates", "max_graph_roots")},
        "observed": counted,
    }


DATASET = Dataset("continuity", lambda benchmark: "continuity", "traces.jsonl", rows, _bindings, report)
