"""A continuity fixture (schema 3): scripted lives, each in a namespace of its own, event by event.

UTF-8 JSON. A field that isn't known is an error wherever it stands. Ids in a fixture are its author's; what a memory
calls the same object never appears in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

import msgspec

from memtrials.benchmarks.life import Correct, Forget, Happening, Link, Remember, Restart, SurfaceTexts
from memtrials.embeddings.controllable import Geometry, is_seed
from memtrials.embeddings.surfaces import normalised
from memtrials.errors import UserError

SCHEMA = 3

Pattern = Literal[
    "long_gap_recall",
    "recurring_hub_entity",
    "hub_scale",
    "selective_entity",
    "correction_chains",
    "thread_drift",
    "temporal_structure",
    "mixed_salience_accumulation",
    "cross_store_stress",
    "surface_contribution",
    "graded_similarity",
    "combined_life",
    "temporal_patterns",
    "entrenched_correction",
    "autobiographical",
    "multi_evidence_assembly",
    "abstention",
]
"""What a scenario is about, one of 17."""
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
ABSTENTION: Pattern = "abstention"
"""The pattern whose queries have no answer."""


class Entity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Somebody or something that is there from the beginning. is_hub: whether scoring counts it as a hub; a memory is
    never told."""

    external_id: str
    entity_type: Literal["location", "person", "organization"]
    label: str
    is_hub: bool


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Gold: what a query should bring and what it shouldn't. Whatever stands in neither is unlabeled."""

    relevant_external_ids: tuple[str, ...]
    irrelevant_external_ids: tuple[str, ...]


class Query(Happening, frozen=True, kw_only=True, tag="query"):
    """A question at that point of the life."""

    query_id: str
    text: str
    expected: Expected


Event = Remember | Correct | Forget | Link | Restart | Query


class Scenario(msgspec.Struct, frozen=True):
    """One life. geometry: of its texts; None where vectors come from a store."""

    fixture_id: str
    namespace: str
    pattern: Pattern
    entities: tuple[Entity, ...]
    geometry: Geometry | None
    events: tuple[Event, ...]

    @property
    def queries(self) -> tuple[Query, ...]:
        """Its queries, in order."""
        return tuple(event for event in self.events if isinstance(event, Query))


class Fixture(msgspec.Struct, frozen=True):
    """A file's scenarios. seed: what its generator was given."""

    seed: int
    scenarios: tuple[Scenario, ...]

    def scenario(self, fixture_id: str) -> Scenario:
        """The scenario of that id. Raises KeyError."""
        for scenario in self.scenarios:
            if scenario.fixture_id == fixture_id:
                return scenario
        raise KeyError(fixture_id)


class _Root(msgspec.Struct, forbid_unknown_fields=True):
    schema_version: int
    seed: int
    scenarios: tuple[Any, ...]


class _Scenario(msgspec.Struct, forbid_unknown_fields=True):
    fixture_id: str
    namespace: str
    pattern: Pattern
    entities: tuple[Any, ...]
    embedding: Any
    events: tuple[Any, ...]


class _FixtureError(ValueError):
    """A part that has another form than the schema's."""


def decode(data: bytes) -> Fixture:
    """A fixture of these bytes; its rules aren't checked here (see `rules`).

    Raises UserError for anything of another form than the schema's, with every place where that shows.
    """
    try:
        plain = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"not valid JSON ({error})") from None
    version = plain.get("schema_version") if isinstance(plain, dict) else None
    if version != SCHEMA or isinstance(version, bool):
        raise UserError(f"schema_version is {version!r}, and expected is {SCHEMA}")
    try:
        root = msgspec.convert(plain, _Root)
    except msgspec.ValidationError as error:
        raise UserError(str(error)) from None
    if not is_seed(root.seed):
        raise UserError(f"seed is {root.seed}; it has to be an unsigned integer of 64 bits")
    found: list[str] = []
    scenarios = [_scenario(raw, n, found) for n, raw in enumerate(root.scenarios)]
    if found:
        raise UserError(found[0], found[1:])
    return Fixture(root.seed, tuple(scenario for scenario in scenarios if scenario is not None))


def _scenario(raw: Any, number: int, found: list[str]) -> Scenario | None:
    place = f"scenario {_named(raw, 'fixture_id', number)}"
    try:
        outer = msgspec.convert(raw, _Scenario)
    except msgspec.ValidationError as error:
        found.append(f"{place}: {error}")
        return None
    before = len(found)
    entities = [
        _part(entity, Entity, f"{place}, entity {_named(entity, 'external_id', n)}", found)
        for n, entity in enumerate(outer.entities)
    ]
    events = [
        _part(event, Event, f"{place}, event {_named(event, 'event_id', n)}", found)
        for n, event in enumerate(outer.events)
    ]
    try:
        geometry = _geometry(outer.embedding)
    except _FixtureError as error:
        found.append(f"{place}, embedding: {error}")
        return None
    if len(found) > before:
        return None
    return Scenario(outer.fixture_id, outer.namespace, outer.pattern, tuple(entities), geometry, tuple(events))


def _named(raw: Any, field: str, number: int) -> str:
    name = raw.get(field) if isinstance(raw, dict) else None
    return repr(name) if isinstance(name, str) and name.strip() else f"number {number}"


def _part(raw: Any, of: Any, place: str, found: list[str]) -> Any:
    try:
        return msgspec.convert(raw, of)
    except msgspec.ValidationError as error:
        found.append(f"{place}: {error}")
        return None


FROZEN = "frozen"
CONTROLLABLE = "controllable_similarity"
_GEOMETRY_FIELDS = set(Geometry.__struct_fields__)


def _geometry(block: Any) -> Geometry | None:
    """The geometry of an embedding block; None for `frozen`. Raises _FixtureError, with one message for each fault."""
    if not isinstance(block, dict):
        raise _FixtureError("not an object")
    providers = f"{CONTROLLABLE!r} or {FROZEN!r}"
    if "provider" not in block:
        if unknown := _listed(block.keys() - _GEOMETRY_FIELDS):
            raise _FixtureError(f"unknown field {unknown}, and provider is missing; expected is {providers}")
        if block:
            raise _FixtureError(f"provider is missing; the fields are those of {CONTROLLABLE!r}")
        raise _FixtureError(f"provider is missing; expected is {providers}")
    provider = block["provider"]
    if not isinstance(provider, str):
        raise _FixtureError(f"provider is {provider!r} and not a string; expected is {providers}")
    if provider not in (CONTROLLABLE, FROZEN):
        raise _FixtureError(f"unknown provider {provider!r}; expected is {providers}")
    body = {name: value for name, value in block.items() if name != "provider"}
    if unknown := _listed(body.keys() - (_GEOMETRY_FIELDS if provider == CONTROLLABLE else set())):
        raise _FixtureError(f"unknown field {unknown}; {provider!r} has no such field")
    if provider == FROZEN:
        return None
    try:
        return msgspec.convert(body, Geometry)
    except msgspec.ValidationError as error:
        raise _FixtureError(f"malformed: {error}") from None


def _listed(names: set[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names))


# --- what a scenario is made of -----------------------------------------------------------------------------------


def creations(event: Event) -> Mapping[str, str]:
    """The kinds of the objects that an event makes, by id and in order. A thread that it may only join is left out."""
    if isinstance(event, Remember):
        return {event.external_id: "episode", event.observation_id: "observation", event.derived_id: "derived_memory"}
    if isinstance(event, Correct):
        return {event.replacement_external_id: "derived_memory"}
    if isinstance(event, Link):
        return {event.external_id: "memory_link"}
    return {}


def authored_texts(scenario: Scenario) -> Iterator[tuple[str | None, str, str]]:
    """Every text of a scenario that is embedded or replaced by one that is: (event id, field, text), in order.

    The event is None for labels. One text may come several times.
    """
    for entity in scenario.entities:
        yield None, f"label of entity {entity.external_id!r}", entity.label
    for event in scenario.events:
        if isinstance(event, Remember):
            yield event.event_id, "text", event.text
            if event.surface_texts is not msgspec.UNSET:
                for surface in SurfaceTexts.__struct_fields__:
                    yield event.event_id, f"surface_texts.{surface}", getattr(event.surface_texts, surface)
        elif isinstance(event, Correct):
            yield event.event_id, "replacement_text", event.replacement_text
        elif isinstance(event, Query):
            yield event.event_id, "text", event.text


def embedded_texts(scenario: Scenario) -> list[str]:
    """The distinct texts that a memory asks to have embedded, bare: what is written normalised, queries as they are."""
    found: dict[str, None] = {}
    for entity in scenario.entities:
        found[normalised(entity.label)] = None
    for event in scenario.events:
        if isinstance(event, Query):
            found[event.text] = None
        elif isinstance(event, Correct):
            found[normalised(event.replacement_text)] = None
        elif isinstance(event, Remember):
            surfaces = event.surface_texts
            texts = [event.text] if surfaces is msgspec.UNSET else list(msgspec.structs.astuple(surfaces))
            found.update({normalised(text): None for text in texts})
    return list(found)
