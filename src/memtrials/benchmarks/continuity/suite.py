"""Continuity as the stages know it: each scenario is a task, each of its queries is asked where it stands.

The steps of a timeline are a scenario's events but the queries. What a query expects is gold; no answer is asked for.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from memtrials.benchmarks.base import Benchmark, Loaded, LoadOptions
from memtrials.benchmarks.continuity import labels, rules, scripts
from memtrials.benchmarks.continuity.binding import bind
from memtrials.benchmarks.continuity.fixture import ABSTENTION, PATTERNS, Fixture, Query, Scenario, creations
from memtrials.benchmarks.continuity.scoring import ROWS
from memtrials.benchmarks.life import DECLARED, Known, Life, LifeEvent, Remember, Script, moment
from memtrials.benchmarks.timeline import Session, Turn, turn_id
from memtrials.embeddings.base import Offline
from memtrials.embeddings.controllable import Controllable
from memtrials.embeddings.frozen import FILE, Frozen, read_store
from memtrials.errors import UserError
from memtrials.records import DataFile, Gold, Release, TaskBody, TimelineSource, file_sha256, sha256
from memtrials.records import Query as Question
from memtrials.settings import Settings

CATALOGUE = "catalogue"
KNOWN = {
    "586b303fe2abe0c04f28d206ed319cca7f74ea1e50661050e73b89811f45c608": CATALOGUE,
    "bf5e392eb3f0eb79f2f48fca6ead38a2e69109a7bebd257a47aea62f091f8eb3": "v3",
    "16c0eef36fa0bcde05a70b3a18b5c02d39d8169076bd3e60cf6dc4d47f7d9b49": "benchmarks-v1",
}
"""Known fixtures by the SHA-256 of their bytes: ours, and two of `ebigunso/character-memory-evals`."""
OWN_ATTRIBUTION = "continuity catalogue: fictional, written for memtrials, Apache-2.0"
ATTRIBUTION = (
    "continuity fixture of ebigunso/character-memory-evals; what it takes from LongMemEval is MIT, from LoCoMo "
    "CC BY-NC 4.0 (no commercial use)"
)
LIFECYCLE = ("correct", "forget", "link", "restart")
"""Events that not every memory can be told of."""


class _Read(NamedTuple):
    path: Path
    file: DataFile
    size: int
    fixture: Fixture


def _path(data: Path) -> Path:
    return data / scripts.catalogue_path().name if data.is_dir() else data


def _read(data: Path) -> _Read:
    """The fixture of a file, or the catalogue in a folder, checked. Raises UserError."""
    path = _path(data)
    content = rules.content_of(path)
    file = DataFile(path.name, hashlib.sha256(content).hexdigest())
    return _Read(path, file, len(content), rules.checked(path, content))


# --- tasks ------------------------------------------------------------------------------------------------------


def load(data: Path, options: LoadOptions) -> Loaded:
    """Validate a fixture and derive a task of each scenario. Raises UserError."""
    read = _read(data)
    digest = read.file.sha256
    variant = KNOWN.get(digest)
    if variant is None and not options.allow_modified:
        raise UserError(
            f"{read.path}: not a known continuity fixture (SHA-256 {digest[:8]}…); add --allow-modified to build it as "
            f"continuity@modified-{digest[:8]}"
        )
    if options.variant not in (None, variant):
        raise UserError(
            f"{read.path}: this is continuity@{variant or 'modified'} and not @{options.variant}; give that file "
            "with --data"
        )
    release = Release(
        sha256=sha256([digest]),
        files=(read.file,),
        known=variant is not None,
        attribution=OWN_ATTRIBUTION if variant == CATALOGUE else ATTRIBUTION if variant else "continuity: own fixture",
        constants=_constants(read.fixture),
    )
    source = TimelineSource(file=read.file.path, sha256=digest, start=0, end=read.size)
    tasks = [
        (
            s.fixture_id,
            str(s.pattern),
            _body(s, release, read.path, msgspec.structs.replace(source, options=_options(s))),
        )
        for s in read.fixture.scenarios
    ]
    return Loaded(f"continuity@{variant or f'modified-{digest[:8]}'}", release, tasks)


def _constants(fixture: Fixture) -> dict[str, int]:
    kinds = Counter(event.__struct_config__.tag for scenario in fixture.scenarios for event in scenario.events)
    return {"scenarios": len(fixture.scenarios), **{str(kind): count for kind, count in sorted(kinds.items())}}


def _options(scenario: Scenario) -> dict[str, str]:
    """`namespace`: the scenario's own; `embedding`: JSON of where its vectors are from."""
    binding = {"kind": "frozen"} if scenario.geometry is None else Controllable(scenario.geometry).binding()
    return {"namespace": scenario.namespace, "embedding": json.dumps(binding)}


def _body(scenario: Scenario, release: Release, path: Path, source: TimelineSource) -> TaskBody:
    steps = _steps(scenario)
    kinds = {event.__struct_config__.tag for event in steps}
    own = {next(iter(creations(event)), None): turn_id(step, 0) for step, event in enumerate(steps)}
    queries, gold = [], []
    before = -1
    for event in scenario.events:
        if not isinstance(event, Query):
            before += 1
            continue
        queries.append(
            Question(
                id=event.query_id,
                text=event.text,
                unit=scenario.fixture_id,
                cluster=scenario.fixture_id,
                date=moment(event.timestamp),
                type=scenario.pattern,
                after=before,
            )
        )
        gold.append(
            Gold(
                query=event.query_id,
                evidence=tuple(own[name] for name in event.expected.relevant_external_ids if name in own),
                abstention=scenario.pattern == ABSTENTION,
                details=labels.details(scenario, event),
            )
        )
    return TaskBody(
        release=release,
        data=str(path.resolve()),
        source=source,
        sessions=_digests(scenario),
        turns=sum(isinstance(event, Remember) for event in steps),
        queries=tuple(queries),
        gold=tuple(gold),
        needs=tuple(kind for kind in LIFECYCLE if kind in kinds),
    )


def _steps(scenario: Scenario) -> tuple[LifeEvent | Any, ...]:
    return tuple(event for event in scenario.events if not isinstance(event, Query))


def _digests(scenario: Scenario) -> tuple[str, ...]:
    """The SHA-256 of each step together with what the life begins with, its geometry included."""
    begins = sha256(
        msgspec.to_builtins([scenario.fixture_id, scenario.namespace, scenario.entities, scenario.geometry])
    )
    return tuple(sha256([begins, msgspec.to_builtins(event)]) for event in _steps(scenario))


# --- the data again ---------------------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def _reopened(path: Path, modified: int) -> _Read:
    return _read(path)


def _fixture(data: Path) -> _Read:
    """A fixture that was built from. modified: a file that was written anew is read anew."""
    path = _path(data)
    return _reopened(path, path.stat().st_mtime_ns if path.is_file() else 0)


def _scenario(data: Path, task: str, body: TaskBody) -> Scenario:
    """A task's scenario. Raises UserError for another file than the one it was built from."""
    read = _fixture(data)
    if [read.file.sha256] != [file.sha256 for file in body.release.files]:
        raise UserError(f"{read.path}: not the file this ledger was built from; give it with --data")
    return read.fixture.scenario(task)


def life(data: Path, benchmark: str, task: str, body: TaskBody) -> Script:
    """The life of a scenario. Raises UserError."""
    scenario = _scenario(data, task, body)
    known = tuple(Known(e.external_id, e.entity_type, e.label) for e in scenario.entities)
    return Script(Life(scenario.fixture_id, scenario.namespace, known), _steps(scenario), _digests(scenario))


def vectors(data: Path, tasks: Sequence[str], settings: Settings) -> dict[str, Offline]:
    """The vectors of scenarios, all of them settled. Those of frozen ones are in the store that EMBED_FILE names, for
    the catalogue in the one that comes with it. Raises UserError, naming the command that makes a store."""
    read = _fixture(data)
    scenarios = [read.fixture.scenario(task) for task in tasks]
    path = _store(read, settings)
    digest = ""
    store = None
    if path is not None and any(scenario.geometry is None for scenario in scenarios):
        store = Frozen(read_store(path), path)
        digest = file_sha256(path)
    bound = bind(scenarios, store)
    return {
        task: found.embedder(DECLARED if isinstance(found, Controllable) else digest) for task, found in bound.items()
    }


def _store(read: _Read, settings: Settings) -> Path | None:
    named = settings.text(FILE)
    if named is not None:
        return Path(named)
    own = scripts.catalogue_store_path()
    return own if KNOWN.get(read.file.sha256) == CATALOGUE and own.is_file() else None


def sessions(data: Path, benchmark: str, task: str, body: TaskBody) -> list[Session]:
    """A life in which nothing but remembering happens, each event a session of one turn. Raises UserError."""
    if body.needs:
        raise UserError(f"{benchmark}, task {task}: {' and '.join(body.needs)} can't be told in sessions")
    events = (event for event in _scenario(data, task, body).events if isinstance(event, Remember))
    times = ((event, moment(event.timestamp)) for event in events)
    return [Session((Turn("user", event.text, time),), time) for event, time in times]


def export_timeline(data: Path, benchmark: str, task: str, body: TaskBody) -> dict[str, Any]:
    """One scenario as it is told, with its questions in their places and without what they expect."""
    scenario = _scenario(data, task, body)
    told: list[Mapping[str, Any]] = [
        {name: value for name, value in msgspec.to_builtins(event).items() if name != "expected"}
        for event in scenario.events
    ]
    entities = [msgspec.to_builtins(entity) for entity in scenario.entities]
    return {"fixture_id": scenario.fixture_id, "namespace": scenario.namespace, "entities": entities, "events": told}


BENCHMARK = Benchmark(
    name="continuity",
    citation="character-memory-evals, github.com/ebigunso/character-memory-evals",
    reference={"author": "ebigunso", "title": "character-memory-evals", "howpublished": "GitHub repository"},
    variants=tuple(KNOWN.values()),
    load=load,
    sessions=sessions,
    metrics=(),
    measures=(),
    readers={},
    judges={},
    export_timeline=export_timeline,
    published_tasks=len(PATTERNS),
    published=(),
    types=PATTERNS,
    bundled=lambda: scripts.catalogue_path(),
    life=life,
    vectors=vectors,
    rows=ROWS,
    sample=False,
    condition="continuity: lives that were written, no sample of lives, so there are no intervals and no tests",
)
