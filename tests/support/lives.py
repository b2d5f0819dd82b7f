"""Continuity fixtures for tests: two short lives, every name of which tells whose it is."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memtrials.benchmarks.base import Trial
from memtrials.index import LedgerIndex
from memtrials.ledger import Ledger
from memtrials.records import IngestBody, RetrievalBody

Json = dict[str, Any]

FIRST, THEN, AT_LAST = "canary-ask-first", "canary-ask-then", "canary-ask-at-last"
KEY, JAR = "Ada hid the brass key under the fern.", "The brass key is in the blue jar."
WHERE = "Where is the brass key?"


def _day(n: int) -> str:
    return f"2025-01-{n:02}T09:00:00Z"


def remember(n: int, name: str, text: str, **more: Any) -> Json:
    told: Json = {
        "external_id": f"canary-{name}",
        "text": text,
        "entity_external_ids": [],
        "thread": None,
        "salience": 0.5,
    }
    return {"kind": "remember", "event_id": f"canary-event-{n}", "timestamp": _day(n), **told, **more}


def query(n: int, name: str, text: str, relevant: list[str], irrelevant: list[str] | None = None) -> Json:
    expected = {"relevant_external_ids": relevant, "irrelevant_external_ids": irrelevant or []}
    told = {"query_id": name, "text": text, "expected": expected}
    return {"kind": "query", "event_id": f"canary-event-{n}", "timestamp": _day(n), **told}


def _scenario(name: str, pattern: str, entities: list[Json], events: list[Json]) -> Json:
    return {
        "fixture_id": f"canary-{name}",
        "namespace": f"canary-space-{name}",
        "pattern": pattern,
        "entities": entities,
        "embedding": {"provider": "frozen"},
        "events": events,
    }


def key() -> Json:
    """Something is said, asked for, corrected, asked for, forgotten, and asked for after a restart."""
    ada = {"external_id": "canary-ada", "entity_type": "person", "label": "Ada", "is_hub": True}
    thread = {"thread_external_id": "canary-house", "confidence": 0.9}
    link = {"external_id": "canary-tie", "from_external_id": "canary-ada", "relation": "about"}
    correction = {"target_external_id": "canary-hid", "replacement_external_id": "canary-jar", "replacement_text": JAR}
    forgotten = {"target_external_ids": ["canary-hid", "canary-hid:observation"]}
    flags = {"suppress_derived_from_target": False, "apply_to_derived_from_target": False}
    events = [
        remember(1, "hid", KEY, entity_external_ids=["canary-ada"], thread=thread),
        query(2, FIRST, WHERE, ["canary-hid"]),
        remember(3, "ford", "The east ford is shallow.", thread=thread),
        {
            "kind": "link",
            "event_id": "canary-event-4",
            "timestamp": _day(4),
            **link,
            "to_external_id": "canary-hid:derived",
        },
        {"kind": "correct", "event_id": "canary-event-5", "timestamp": _day(5), **correction},
        query(6, THEN, WHERE, ["canary-jar"], ["canary-hid", "canary-tie"]),
        {"kind": "forget", "event_id": "canary-event-7", "timestamp": _day(7), **forgotten, **flags},
        {
            "kind": "restart",
            "event_id": "canary-event-8",
            "timestamp": _day(8),
            "reopen_graph": True,
            "reopen_stats": True,
        },
        query(9, AT_LAST, WHERE, ["canary-jar"], ["canary-ford"]),
    ]
    return _scenario("key", "entrenched_correction", [ada], events)


def visitors() -> Json:
    """Nothing but what is remembered, asked for twice on the way and once at the end."""
    who = "Who came to the mill?"
    events = [
        query(1, "canary-ask-before", who, []),
        remember(2, "miller", "A miller came to the mill."),
        query(3, "canary-ask-once", who, []),
        remember(4, "smith", "A smith came to the mill."),
        query(5, "canary-ask-again", who, []),
    ]
    return _scenario("visitors", "abstention", [], events)


def fixture(path: Path, *scenarios: Json) -> Path:
    """A file with these scenarios, or with both."""
    found = list(scenarios) or [key(), visitors()]
    path.write_text(json.dumps({"schema_version": 3, "seed": 7, "scenarios": found}), encoding="utf-8")
    return path


def trials_of(ledger: Path, system: str) -> Iterator[Trial]:
    """The trials of the systems whose id begins so, in the order of the ledger."""
    index = LedgerIndex(Ledger.open(ledger))
    for header in index.of("retrieval"):
        if (header.system or "").startswith(system):
            body = index.ledger.body(header, RetrievalBody)
            task = index.task(header.benchmark or "", header.task or "")
            ingest = index.ledger.body(index.parent(header), IngestBody)
            yield Trial(
                task, header.query or "", ingest, body, index.shown(body), index.config(header.fetch or "").settings
            )
