"""Our own continuity catalogue, made of scripts: texts, ids and times are the script's, the seed decides the rest.

A script (`evaluation/continuity/scripts.toml`) lists scenarios as their author thinks of them. What follows from that
is made here: names, event ids, the geometry of texts, the places of entity labels in it. The same script and seed give
the same bytes everywhere; another seed changes the namespaces, the seeds that stand in the file, and so the noise.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from memtrials.benchmarks.continuity.fixture import CONTROLLABLE, FROZEN, SCHEMA, Pattern
from memtrials.embeddings.frozen import MANIFEST_SCHEMA
from memtrials.embeddings.surfaces import normalised
from memtrials.errors import UserError
from memtrials.settings import evaluation

SEED = 20260712
VECTOR_SIZE = 8
NOISE = 1 / 1024
BACKGROUND = "entity_background"
"""The concept and cluster of labels of entities that no event is about; no script may use it."""
MERGED_FROM = {"correct": 901, "link": 903, "query": 951}
"""Where the numbers of other events begin in a merged life, whose remembered events are numbered from 1."""


CATALOGUE, MANIFEST, STORE = "catalogue.json", "manifest.json", "store.json"


class Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entity of a script."""

    id: str
    type: str
    label: str
    hub: bool = False


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """An event of a script. One of remember, correct, forget, link, restart and query says which kind, and of what.

    concept: of its text; of several texts where observation and derived say other things. by: the id that a correction
    makes. dependents: whether what was derived from forgotten things is forgotten too.
    """

    at: datetime
    remember: str | None = None
    correct: str | None = None
    forget: tuple[str, ...] | None = None
    link: str | None = None
    restart: bool | None = None
    query: str | None = None
    text: str | None = None
    observation: str | None = None
    derived: str | None = None
    concept: str | tuple[str, str, str] | None = None
    entities: tuple[str, ...] = ()
    thread: str | None = None
    confidence: float | None = None
    salience: float | None = None
    by: str | None = None
    dependents: bool = False
    from_: str | None = None
    relation: str | None = None
    to: str | None = None
    relevant: tuple[str, ...] = ()
    irrelevant: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """What it is. Raises UserError unless it is one thing."""
        kinds = ("remember", "correct", "forget", "link", "restart", "query")
        named = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(named) != 1:
            raise UserError(
                f"the event of {self.at:%Y-%m-%d %H:%M} is {' and '.join(named) or 'nothing'}; name one kind"
            )
        return named[0]


class Nearness(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What real geometry has to say of a frozen scenario: the objects of `descending` are ever farther from the query,
    each by more than the margin of cosine."""

    description: str
    query: str
    descending: tuple[str, ...]
    margin: float


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scenario as its author thinks of it.

    frozen: its vectors are from a store, so it has orderings where others have concepts. cluster_of: clusters of
    concepts that don't have their own; clusters: their vectors where they aren't simply orthogonal. merged: events are
    listed by kind and come in the order of time.
    """

    pattern: Pattern
    entities: tuple[Named, ...]
    events: tuple[Step, ...]
    frozen: bool = False
    merged: bool = False
    cluster_of: Mapping[str, str] = {}
    clusters: Mapping[str, tuple[float, ...]] = {}
    orderings: tuple[Nearness, ...] = ()

    @property
    def name(self) -> str:
        """The id of the scenario."""
        return self.pattern.replace("_", "-")


class _Scripts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    scenario: tuple[Script, ...]


def scripts_path() -> Path:
    """Our scripts."""
    return evaluation() / "continuity" / "scripts.toml"


def catalogue_path() -> Path:
    """The fixture that they make with SEED."""
    return evaluation() / "continuity" / CATALOGUE


def manifest_path() -> Path:
    """What a store for that fixture has to hold and to say."""
    return evaluation() / "continuity" / MANIFEST


def catalogue_store_path() -> Path:
    """The vectors of that fixture's frozen scenarios, of the bundled model."""
    return evaluation() / "continuity" / STORE


def catalogue(scripts: Path, seed: int = SEED) -> bytes:
    """The fixture that a file of scripts makes, in canonical form. Raises UserError for what is wrong in a script.

    seed: an unsigned integer of 64 bits. The fixture's own rules aren't checked here (see `rules`).
    """
    made = []
    for script in _read(scripts):
        try:
            made.append(_scenario(script, seed))
        except UserError as error:
            raise UserError(f"{scripts}, {script.pattern}: {error}") from None
    root = {"schema_version": SCHEMA, "seed": seed, "scenarios": made}
    return _canonical(root)


def manifest(scripts: Path) -> bytes:
    """The manifest of the frozen scenarios of a file of scripts, in canonical form. Raises UserError.

    Its ids are scenario, kind and the object's own id, with slashes between them.
    """
    texts: dict[str, str] = {}
    orderings = []
    for script in _read(scripts):
        if not script.frozen:
            continue
        ids: dict[str, str] = {}
        for own, kind, text in _embedded(script):
            ids[own] = f"{script.name}/{kind}/{own}"
            texts[ids[own]] = text
        for ordering in script.orderings:
            if missing := [own for own in (ordering.query, *ordering.descending) if own not in ids]:
                raise UserError(f"{scripts}, {script.pattern}: an ordering names {missing[0]!r}, which has no text")
            orderings.append(
                {
                    "description": ordering.description,
                    "anchor_id": ids[ordering.query],
                    "descending_ids": [ids[own] for own in ordering.descending],
                    "min_margin": ordering.margin,
                }
            )
    listed = [{"id": name, "text": text} for name, text in texts.items()]
    return _canonical({"schema_version": MANIFEST_SCHEMA, "texts": listed, "similarity_orderings": orderings})


def _embedded(script: Script) -> Iterator[tuple[str, str, str]]:
    """What a memory has embedded of a script: (id, kind, text)."""
    for entity in script.entities:
        yield entity.id, "entity", normalised(entity.label)
    for step in script.events:
        if step.text is None:
            continue
        kind = step.kind
        own = step.remember or step.by or step.query or ""
        yield own, kind, step.text if kind == "query" else normalised(step.text)
        for surface, text in (("observation", step.observation), ("derived", step.derived)):
            if text is not None:
                yield f"{own}:{surface}", kind, normalised(text)


def _canonical(plain: Any) -> bytes:
    return (json.dumps(plain, indent=2, ensure_ascii=False) + "\n").encode()


def _read(scripts: Path) -> tuple[Script, ...]:
    try:
        return msgspec.convert(tomllib.loads(scripts.read_text("utf-8")), _Scripts).scenario
    except OSError as error:
        raise UserError(f"{scripts}: can't be read ({error.strerror})") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise UserError(f"{scripts}: {error}") from None


def _scenario(script: Script, seed: int) -> dict[str, Any]:
    name = script.name
    entities = sorted(script.entities, key=lambda entity: entity.id)
    return {
        "fixture_id": name,
        "namespace": f"continuity-{name}-{seed:016x}",
        "pattern": script.pattern,
        "entities": [{"external_id": e.id, "entity_type": e.type, "label": e.label, "is_hub": e.hub} for e in entities],
        "embedding": {"provider": FROZEN} if script.frozen else _geometry(script, entities, seed),
        "events": [_event(step, name) for name, step in _numbered(script)],
    }


def _numbered(script: Script) -> Iterator[tuple[str, Step]]:
    """The events in order, each with its id."""
    if not script.merged:
        yield from ((f"event-{n:03}", step) for n, step in enumerate(script.events, 1))
        return
    following = {"remember": 1, **MERGED_FROM}
    named = []
    for step in script.events:
        if step.kind not in following:
            raise UserError(
                f"the event of {step.at:%Y-%m-%d %H:%M} is {step.kind}, for which a merged life has no number"
            )
        named.append((f"event-{following[step.kind]:03}", step))
        following[step.kind] += 1
    yield from sorted(named, key=lambda pair: pair[1].at)


def _event(step: Step, event_id: str) -> dict[str, Any]:
    kind = step.kind
    begin = {"kind": kind, "event_id": event_id}
    time = {"timestamp": step.at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    if kind == "remember":
        surfaces = {}
        if step.observation is not None or step.derived is not None:
            texts = {"episode": step.text, "observation": step.observation, "derived": step.derived}
            surfaces = {"surface_texts": texts}
        thread = None
        if step.thread is not None:
            thread = {"thread_external_id": step.thread, "confidence": step.confidence}
        return {
            **begin,
            "external_id": step.remember,
            **time,
            "text": step.text,
            **surfaces,
            "entity_external_ids": step.entities,
            "thread": thread,
            "salience": step.salience,
        }
    if kind == "correct":
        replacement = {"replacement_external_id": step.by, "replacement_text": step.text}
        return {**begin, **time, "target_external_id": step.correct, **replacement}
    if kind == "forget":
        flags = dict.fromkeys(("suppress_derived_from_target", "apply_to_derived_from_target"), step.dependents)
        return {**begin, **time, "target_external_ids": step.forget, **flags}
    if kind == "link":
        ends = {"from_external_id": step.from_, "relation": step.relation, "to_external_id": step.to}
        return {**begin, "external_id": step.link, **time, **ends}
    if kind == "restart":
        return {**begin, **time, "reopen_graph": True, "reopen_stats": True}
    expected = {"relevant_external_ids": step.relevant, "irrelevant_external_ids": step.irrelevant}
    return {**begin, "query_id": step.query, **time, "text": step.text, "expected": expected}


def _geometry(script: Script, entities: Sequence[Named], seed: int) -> dict[str, Any]:
    inputs: dict[str, list[str]] = {}
    home: dict[str, str] = {}
    for step in script.events:
        for concept, text in _texts(step):
            if BACKGROUND in (concept, script.cluster_of.get(concept)):
                raise UserError(f"{BACKGROUND} is where labels go that no event is about; take another name")
            if text not in inputs.setdefault(concept, []):
                inputs[concept].append(text)
        if step.kind == "remember":
            first = next(_texts(step))[0]
            for entity in step.entities:
                home.setdefault(entity, first)
    for named in entities:
        inputs.setdefault(home.get(named.id, BACKGROUND), []).append(named.label)
    cluster_of = {concept: script.cluster_of.get(concept, concept) for concept in inputs}
    return {
        "provider": CONTROLLABLE,
        "seed": seed,
        "vector_size": VECTOR_SIZE,
        "noise_magnitude": NOISE,
        "clusters": _clusters(script, sorted(set(cluster_of.values()))),
        "concepts": {name: {"cluster": cluster_of[name], "inputs": inputs[name]} for name in sorted(inputs)},
    }


def _texts(step: Step) -> Iterator[tuple[str, str]]:
    """The texts of an event with their concepts."""
    if step.text is None:
        return
    texts = [text for text in (step.text, step.observation, step.derived) if text is not None]
    concepts = (step.concept,) if isinstance(step.concept, str) else step.concept or ()
    if len(concepts) != len(texts):
        raise UserError(f"{step.text!r} has {len(texts)} texts and {len(concepts)} concepts; give each one")
    yield from zip(concepts, texts, strict=True)


def _clusters(script: Script, names: Sequence[str]) -> dict[str, Sequence[float]]:
    """The vectors of clusters: the authored ones, else unit vectors in the order of names."""
    if script.clusters:
        if missing := [name for name in names if name not in script.clusters]:
            raise UserError(f"clusters has no vector for {missing[0]!r}; write them all or none")
        return {name: script.clusters[name] for name in names}
    if len(names) > VECTOR_SIZE:
        raise UserError(f"{len(names)} clusters, and only {VECTOR_SIZE} can be orthogonal; write their vectors")
    return {name: [float(n == place) for n in range(VECTOR_SIZE)] for place, name in enumerate(names)}
