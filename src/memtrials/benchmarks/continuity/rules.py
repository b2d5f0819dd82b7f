"""What a fixture has to keep to, so that a life can be replayed and scored: every rule with a message of its own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from pathlib import Path

import msgspec

from memtrials.benchmarks.continuity.fixture import (
    ABSTENTION,
    Event,
    Fixture,
    Query,
    Scenario,
    authored_texts,
    creations,
    decode,
)
from memtrials.benchmarks.life import RELATIONS, Correct, Forget, Link, Remember, Restart, SurfaceTexts
from memtrials.embeddings.controllable import problems as geometry_problems
from memtrials.errors import UserError

CORRECTED = ("episode", "observation", "derived_memory")
"""Kinds that can be corrected."""
FORGOTTEN = (*CORRECTED, "memory_thread")
"""Kinds that can be forgotten."""
LINKED = ("episode", "observation", "entity", "memory_thread", "derived_memory")
"""Kinds that a link can join."""
LABELED = (*LINKED, "memory_link")
"""Kinds that a query can expect or not: all."""

ENDS = "a scenario has to end in a scripted query, so that every cumulative outcome is emitted"


def read(path: Path) -> Fixture:
    """The fixture of a file, checked. Raises UserError with everything that is wrong in it."""
    return checked(path, content_of(path))


def content_of(path: Path) -> bytes:
    """A fixture's bytes. Raises UserError when they can't be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from None


def checked(path: Path, content: bytes) -> Fixture:
    """The fixture that stands in a file's bytes. Raises UserError with everything that is wrong in it."""
    try:
        fixture = decode(content)
    except UserError as error:
        raise UserError(f"{path}: {error}", error.details) from None
    if found := problems(fixture):
        raise UserError(f"{path}: {found[0]}", found[1:])
    return fixture


def problems(fixture: Fixture) -> list[str]:
    """Everything in a fixture that breaks a rule, in the order of the file; empty when nothing does."""
    if not fixture.scenarios:
        return [f"scenarios is empty; there has to be one at least, and {ENDS}"]
    found = []
    for field in ("fixture_id", "namespace"):
        values = [getattr(scenario, field) for scenario in fixture.scenarios]
        found += [f"{field} {value!r} is blank; name it" for value in values if not value.strip()]
        found += [f"{field} {value!r} names several scenarios" for value in _repeated(values) if value.strip()]
    asked: set[str] = set()
    for scenario in fixture.scenarios:
        found += _Life(scenario, asked).problems()
    return found


class _Life:
    """One scenario on the way through its events. kinds: of every object admitted so far; asked: query ids of the file
    so far."""

    def __init__(self, scenario: Scenario, asked: set[str]) -> None:
        self.scenario = scenario
        self.asked = asked
        self.kinds: dict[str, str] = {}
        self.found: list[str] = []
        self.event: Event | None = None

    def problems(self) -> list[str]:
        scenario = self.scenario
        self._entities()
        seen: set[str] = set()
        for event in scenario.events:
            self.event = event
            if not event.event_id.strip():
                self.say("event_id", f"{event.event_id!r} is blank")
            elif event.event_id in seen:
                self.say("event_id", f"{event.event_id!r} names an earlier event of the scenario too")
            seen.add(event.event_id)
            self._one(event)
        for before, self.event in pairwise(scenario.events):
            if self.event.timestamp < before.timestamp:
                self.say("timestamp", "earlier than that of the event before; events have to be chronological")
        self.event = None
        if not scenario.queries:
            self.say("events", f"no query; {ENDS}")
        elif not isinstance(scenario.events[-1], Query):
            self.say("events", f"event {scenario.events[-1].event_id!r} is the last; {ENDS}")
        self._restarts()
        self._geometry()
        return self.found

    def say(self, field: str, what: str) -> None:
        place = f"scenario {self.scenario.fixture_id!r}"
        if self.event is not None:
            place += f", event {self.event.event_id!r}"
        self.found.append(f"{place}, {field}: {what}")

    def _entities(self) -> None:
        for entity in self.scenario.entities:
            name = entity.external_id
            if not name.strip():
                self.say("entities.external_id", f"{name!r} is blank")
            elif name in self.kinds:
                self.say("entities.external_id", f"{name!r} names several entities")
            if not entity.label.strip():
                self.say("entities.label", f"that of entity {name!r} is blank")
            self.kinds[name] = "entity"

    def _one(self, event: Event) -> None:
        if isinstance(event, Remember):
            self._remember(event)
        elif isinstance(event, Correct):
            self._refer("target_external_id", event.target_external_id, CORRECTED)
            self._admit("replacement_external_id", event)
            self._written("replacement_text", event.replacement_text)
        elif isinstance(event, Forget):
            self._forget(event)
        elif isinstance(event, Link):
            self._refer("from_external_id", event.from_external_id, LINKED)
            if event.relation not in RELATIONS:
                self.say("relation", f"{event.relation!r} is no relation; known: {', '.join(RELATIONS)}")
            self._refer("to_external_id", event.to_external_id, LINKED)
            self._admit("external_id", event)
        elif isinstance(event, Restart):
            for field in ("reopen_graph", "reopen_stats"):
                if not getattr(event, field):
                    self.say(field, "false; a restart opens everything again, so it has to be true")
        else:
            self._query(event)

    def _remember(self, event: Remember) -> None:
        self._written("text", event.text)
        surfaces = event.surface_texts
        if surfaces is not msgspec.UNSET:
            self._surfaces(event.text, surfaces)
        for name in _repeated(event.entity_external_ids):
            self.say("entity_external_ids", f"{name!r} is listed more than once")
        for name in event.entity_external_ids:
            if self.kinds.get(name) != "entity":
                self.say("entity_external_ids", f"entity {name!r} isn't declared")
        self._share("salience", event.salience)
        self._admit("external_id", event)
        if event.thread is not None:
            name = event.thread.thread_external_id
            kind = self.kinds.setdefault(name, "memory_thread")
            if not name.strip():
                self.say("thread.thread_external_id", f"{name!r} is blank")
            elif kind != "memory_thread":
                self.say("thread.thread_external_id", f"{name!r} collides with an admitted {kind}")
            self._share("thread.confidence", event.thread.confidence)

    def _surfaces(self, text: str, surfaces: SurfaceTexts) -> None:
        texts = msgspec.structs.asdict(surfaces)
        if surfaces.episode != text:
            self.say("surface_texts.episode", "differs from text; it has to be the same")
        for surface, content in texts.items():
            self._written(f"surface_texts.{surface}", content)
        for (one, first), (other, second) in combinations(texts.items(), 2):
            if first == second:
                self.say("surface_texts", f"{one} and {other} are equal; the three have to be distinct")

    def _forget(self, event: Forget) -> None:
        if not event.target_external_ids:
            self.say("target_external_ids", "empty; name what is forgotten")
        for name in _repeated(event.target_external_ids):
            self.say("target_external_ids", f"{name!r} is listed more than once")
        for name in event.target_external_ids:
            self._refer("target_external_ids", name, FORGOTTEN)

    def _query(self, event: Query) -> None:
        self._written("text", event.text)
        if not event.query_id.strip():
            self.say("query_id", f"{event.query_id!r} is blank")
        elif event.query_id in self.asked:
            self.say("query_id", f"{event.query_id!r} names an earlier query of the file too")
        self.asked.add(event.query_id)
        relevant, irrelevant = event.expected.relevant_external_ids, event.expected.irrelevant_external_ids
        if self.scenario.pattern == ABSTENTION and relevant:
            self.say("expected.relevant_external_ids", f"has {relevant[0]!r}; an {ABSTENTION} query has no answer")
        if self.scenario.pattern != ABSTENTION and not relevant:
            self.say("expected.relevant_external_ids", f"empty; only queries of the pattern {ABSTENTION} have none")
        for field, names in (("relevant_external_ids", relevant), ("irrelevant_external_ids", irrelevant)):
            for name in _repeated(names):
                self.say(f"expected.{field}", f"{name!r} is listed more than once")
            for name in names:
                self._refer(f"expected.{field}", name, LABELED)
        for name in (name for name in dict.fromkeys(relevant) if name in irrelevant):
            self.say("expected", f"{name!r} is both relevant and irrelevant")

    def _restarts(self) -> None:
        events = self.scenario.events
        for n, self.event in enumerate(events):
            if isinstance(self.event, Restart) and not any(isinstance(later, Query) for later in events[n:]):
                self.say("kind", "no probe query; a restart is looked at with the query that comes next")
        self.event = None

    def _geometry(self) -> None:
        geometry = self.scenario.geometry
        if geometry is None:
            return
        for problem in geometry_problems(geometry):
            self.say("embedding", problem)
        inputs = [text for concept in geometry.concepts.values() for text in concept.inputs]
        times = Counter(inputs)
        events = {event.event_id: event for event in self.scenario.events}
        for event_id, field, text in authored_texts(self.scenario):
            self.event = None if event_id is None else events[event_id]
            if text not in times:
                self.say(field, f"{text!r} is assigned to no concept")
            elif event_id is None and times[text] > 1:
                self.say(field, f"{text!r} is listed {times[text]} times in concepts; once is what it has to be")
        self.event = None

    def _admit(self, field: str, event: Event) -> None:
        for name, kind in creations(event).items():
            if not name.strip():
                self.say(field, f"{name!r} is blank")
            elif name in self.kinds:
                self.say(field, f"{name!r} duplicates existing external id of kind {self.kinds[name]}")
            else:
                self.kinds[name] = kind

    def _refer(self, field: str, name: str, accepted: Sequence[str]) -> None:
        kind = self.kinds.get(name)
        if kind is None:
            self.say(field, f"{name!r} is referred to before it is admitted")
        elif kind not in accepted:
            self.say(field, f"{name!r} is of kind {kind}; accepted: {', '.join(accepted)}")

    def _written(self, field: str, text: str) -> None:
        if not text:
            self.say(field, "an empty text")
        elif not text.strip():
            self.say(field, "a blank text")

    def _share(self, field: str, value: float) -> None:
        if not (math.isfinite(value) and 0 <= value <= 1):
            self.say(field, f"{value}; it has to be a finite number from 0 to 1")


def _repeated(values: Sequence[str]) -> Iterator[str]:
    return (value for value, count in Counter(values).items() if count > 1)
