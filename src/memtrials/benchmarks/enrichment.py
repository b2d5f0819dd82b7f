"""What was precomputed of a history beside its sessions: entities, threads, derived memories and the links among them.

A file is JSON lines, each a graph for one namespace (`locomo:<conversation>`, `lme:<question>`); the lines of a
namespace are one graph. A snapshot is such a file with one row for each item of a data set, and a manifest beside it
that says what it was made of. Both name sessions and turns as the data does; `neutral` puts positions in their place,
which is all that a memory system sees. Formats: those of `ebigunso/character-memory-evals`.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec

from memtrials.benchmarks.life import Relation
from memtrials.benchmarks.timeline import turn_id
from memtrials.embeddings.surfaces import PREFIXES, normalised
from memtrials.errors import UserError
from memtrials.records import Release, TaskBody, file_sha256

ThreadStatus = Literal["active", "dormant", "resolved", "archived"]
Stability = Literal["low", "medium", "high"]
EntityType = Literal[
    "person", "user", "assistant", "project", "concept", "tool", "document", "place", "organization", "other"
]
DerivedType = Literal[
    "reflection",
    "user_preference",
    "assistant_preference",
    "commitment",
    "open_loop",
    "character_signal",
    "relationship_note",
    "project_note",
    "claim",
    "correction",
]
ObjectType = Literal["episode", "observation", "entity", "memory_thread", "derived_memory"]
"""What a link can join. An episode is a session, an observation a turn."""

Text = Annotated[str, msgspec.Meta(pattern=r"\S")]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Ids = tuple[Text, ...]
T = TypeVar("T")

GOLD_KEYS = frozenset(
    (
        "answer",
        "answers",
        "answer_session_ids",
        "evidence",
        "evidence_dialog_ids",
        "has_answer",
        "gold",
        "gold_label",
        "gold_labels",
        "label",
        "labels",
    )
)
"""Keys that no file of this kind may have at any depth, whatever their case; nor any that begins with `gold_`."""


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    external_id: Text


class Entity(_Part, frozen=True, kw_only=True):
    """Someone or something that memories are about."""

    entity_type: EntityType
    name: Text
    aliases: tuple[str, ...] = ()
    canonical_key: str | None = None
    summary: str | None = None


class Thread(_Part, frozen=True, kw_only=True):
    """A matter that goes on. last_touched_at: RFC 3339."""

    title: Text
    summary: Text
    status: ThreadStatus = "active"
    last_touched_at: str | None = None
    salience: Share = msgspec.field(default=0.5, name="salience_score")
    canonical_key: str | None = None


class Derived(_Part, frozen=True, kw_only=True):
    """What was concluded from sessions or turns, at least one of them. metadata: its maker's; no system sees it."""

    derived_type: DerivedType
    text: Text
    episodes: Ids = msgspec.field(default=(), name="source_episode_external_ids")
    observations: Ids = msgspec.field(default=(), name="source_observation_external_ids")
    threads: Ids = msgspec.field(default=(), name="thread_external_ids")
    entities: Ids = msgspec.field(default=(), name="entity_external_ids")
    confidence: Share = 1.0
    salience: Share = msgspec.field(default=0.5, name="salience_score")
    stability: Stability = "medium"
    is_current: bool = True
    supersedes: Ids = msgspec.field(default=(), name="supersedes_external_ids")
    metadata: dict[str, Any] | None = None


class End(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An object that a link joins."""

    object_type: ObjectType
    external_id: Text


class Link(_Part, frozen=True, kw_only=True):
    """A typed edge between two objects."""

    source: End = msgspec.field(name="from")
    relation: Relation
    target: End = msgspec.field(name="to")
    confidence: Share = 1.0
    rationale: str | None = None


class Graph(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """All that was precomputed of one history. namespace: whose, in a file."""

    namespace: str = ""
    entities: tuple[Entity, ...] = ()
    threads: tuple[Thread, ...] = ()
    derived: tuple[Derived, ...] = msgspec.field(default=(), name="derived_memories")
    links: tuple[Link, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.entities or self.threads or self.derived or self.links)

    def texts(self) -> list[str]:
        """What each object is embedded by."""
        _, _, derived, entity, thread = PREFIXES
        said = [
            *(f"{entity}{part.name}" for part in self.entities),
            *(f"{thread}{part.summary}" for part in self.threads),
            *(f"{derived}{part.text}" for part in self.derived),
        ]
        return list(map(normalised, said))


class Utterance(NamedTuple):
    """A turn as files name it. speaker: a name, or the role where the data has none; text: what was said, alone."""

    name: str
    speaker: str
    text: str


class Sitting(NamedTuple):
    """A session as files name it. time: as the data writes it."""

    name: str
    time: str
    turns: tuple[Utterance, ...]


def merged(graphs: Sequence[Graph]) -> Graph:
    """One graph of several, in order."""
    return Graph(
        namespace=graphs[0].namespace if graphs else "",
        entities=tuple(part for graph in graphs for part in graph.entities),
        threads=tuple(part for graph in graphs for part in graph.threads),
        derived=tuple(part for graph in graphs for part in graph.derived),
        links=tuple(part for graph in graphs for part in graph.links),
    )


def problems(graph: Graph) -> Iterator[str]:
    """What is wrong with a graph beside its fields' types, whatever its references lead to."""
    kinds: tuple[tuple[str, Sequence[_Part]], ...] = (
        ("entity", graph.entities),
        ("thread", graph.threads),
        ("derived memory", graph.derived),
        ("link", graph.links),
    )
    for kind, parts in kinds:
        seen: set[str] = set()
        for part in parts:
            if part.external_id in seen:
                yield f"{kind} {part.external_id!r} stands there twice"
            seen.add(part.external_id)
    for thread in graph.threads:
        if thread.last_touched_at is not None and not _is_moment(thread.last_touched_at):
            yield f"thread {thread.external_id!r}: last_touched_at is {thread.last_touched_at!r}, not RFC 3339"
    for memory in graph.derived:
        if not (memory.episodes or memory.observations):
            yield f"derived memory {memory.external_id!r} has no source; name an episode or observation"
        for ids in (memory.episodes, memory.observations, memory.threads, memory.entities, memory.supersedes):
            if len(set(ids)) < len(ids):
                yield f"derived memory {memory.external_id!r} names an object twice"


_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def _is_moment(text: str) -> bool:
    try:
        return _RFC_3339.fullmatch(text) is not None and bool(datetime.fromisoformat(text.upper()))
    except ValueError:
        return False


def neutral(graph: Graph, history: Sequence[Sitting]) -> Graph:
    """The graph as a system may see it: sessions and turns by their positions, all else numbered in order, a session's
    name in a text replaced by its position, and no metadata. Raises UserError for a reference that leads nowhere.

    Names of sessions tell which of them hold answers, so none may stay; a mere word or number is none that does.
    A turn without words, and a session of such turns, is no source, since no memory has to keep it: a derived memory
    keeps its others. To one that has none, and at the end of a link, it leads nowhere.
    """
    sessions = {sitting.name: str(n) for n, sitting in enumerate(history)}
    known: dict[ObjectType, dict[str, str]] = {
        "episode": sessions,
        "observation": {turn.name: turn_id(n, m) for n, s in enumerate(history) for m, turn in enumerate(s.turns)},
        "entity": {part.external_id: f"e{n}" for n, part in enumerate(graph.entities)},
        "memory_thread": {part.external_id: f"t{n}" for n, part in enumerate(graph.threads)},
        "derived_memory": {part.external_id: f"d{n}" for n, part in enumerate(graph.derived)},
    }

    blank = {turn_id(n, m) for n, s in enumerate(history) for m, turn in enumerate(s.turns) if not turn.text.strip()}
    blank |= {str(n) for n, s in enumerate(history) if not any(turn.text.strip() for turn in s.turns)}

    def named(kind: ObjectType, name: str, by: str) -> str:
        if name not in known[kind]:
            raise UserError(f"{by} names {kind} {name!r}, which there isn't")
        return known[kind][name]

    def all_named(kind: ObjectType, names: Ids, by: str) -> Ids:
        return tuple(named(kind, name, by) for name in names)

    telling = sorted((name for name in sessions if not (name.isalpha() or name.isdecimal())), key=len, reverse=True)

    def said(text: str) -> str:
        found = [re.escape(name) for name in telling if name in text]
        if not found:
            return text
        return re.sub(rf"(?<![\w#-])(?:{'|'.join(found)})(?![\w#-])", lambda name: sessions[name[0]], text)

    def noted(text: str | None) -> str | None:
        return None if text is None else said(text)

    change = msgspec.structs.replace
    entities = tuple(
        change(
            entity,
            external_id=f"e{n}",
            name=said(entity.name),
            aliases=tuple(map(said, entity.aliases)),
            canonical_key=noted(entity.canonical_key),
            summary=noted(entity.summary),
        )
        for n, entity in enumerate(graph.entities)
    )
    threads = tuple(
        change(
            thread,
            external_id=f"t{n}",
            title=said(thread.title),
            summary=said(thread.summary),
            canonical_key=noted(thread.canonical_key),
        )
        for n, thread in enumerate(graph.threads)
    )
    derived = []
    for n, memory in enumerate(graph.derived):
        by = f"derived memory {memory.external_id!r}"
        episodes = [name for name in all_named("episode", memory.episodes, by) if name not in blank]
        observations = [name for name in all_named("observation", memory.observations, by) if name not in blank]
        if not (episodes or observations):
            sources = ", ".join(memory.episodes + memory.observations)
            raise UserError(f"{by} has no source but {sources}, where nothing was said")
        derived.append(
            change(
                memory,
                external_id=f"d{n}",
                text=said(memory.text),
                episodes=tuple(episodes),
                observations=tuple(observations),
                threads=all_named("memory_thread", memory.threads, by),
                entities=all_named("entity", memory.entities, by),
                supersedes=all_named("derived_memory", memory.supersedes, by),
                metadata=None,
            )
        )
    links = []
    for n, link in enumerate(graph.links):
        by = f"link {link.external_id!r}"
        source, target = (
            End(end.object_type, named(end.object_type, end.external_id, by)) for end in (link.source, link.target)
        )
        for end, seen in ((link.source, source), (link.target, target)):
            if seen.external_id in blank:
                raise UserError(f"{by} names {end.object_type} {end.external_id!r}, where nothing was said")
        links.append(change(link, external_id=f"l{n}", source=source, target=target, rationale=noted(link.rationale)))
    return Graph(entities=entities, threads=threads, derived=tuple(derived), links=tuple(links))


# --- files ------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """Where a graph stands in a file. digest: of its bytes, so that a file which changes meanwhile is noticed."""

    line: int
    start: int
    end: int
    digest: bytes


@dataclass(frozen=True)
class Precomputed:
    """A checked file. rows: by namespace in an enrichment file, by item in a snapshot; its graphs are read on demand,
    so memory is bounded by the largest."""

    path: Path
    snapshot: bool
    sha256: str
    rows: Mapping[str, Sequence[Row]]

    def graph(self, namespace: str, item: str) -> Graph | None:
        """What the file holds of an item; None for nothing. Raises UserError for an item without its snapshot."""
        rows = self.rows.get(item if self.snapshot else namespace, ())
        if self.snapshot and not rows:
            raise UserError(f"{self.path}: holds no snapshot of {item!r}; every item that is used needs one")
        graph = merged([self.read(row) for row in rows]) if rows else None
        if graph is not None and graph.namespace != namespace:
            raise UserError(
                f"{self.path}, line {rows[0].line}: namespace is {graph.namespace!r}, that of {item!r} is {namespace!r}"
            )
        return graph

    def read(self, row: Row) -> Graph:
        """The graph of one row. Raises UserError when the file is another by now."""
        try:
            with self.path.open("rb") as file:
                file.seek(row.start)
                data = file.read(row.end - row.start)
        except OSError as error:
            raise UserError(f"{self.path}: can't be read ({error.strerror})") from None
        if hashlib.sha256(data).digest() != row.digest:
            raise UserError(f"{self.path}: line {row.line} has changed since it was checked; start again")
        return (
            msgspec.json.decode(data, type=Snapshot).graph if self.snapshot else msgspec.json.decode(data, type=Graph)
        )


def read_enrichment(path: Path) -> Precomputed:
    """A file of graphs, checked line by line and each namespace as a whole. Raises UserError with the line."""
    rows: dict[str, list[Row]] = defaultdict(list)
    digest = hashlib.sha256()
    for row, value in _lines(path, digest):
        if "graph" in value:
            raise UserError(
                f"{path}, line {row.line}: a snapshot's row; name the file as `snapshot`, with its manifest beside it"
            )
        graph = _decoded(value, Graph, path, row.line)
        if not graph.namespace.strip():
            raise UserError(f"{path}, line {row.line}: namespace is missing or blank")
        _check(graph, path, row.line)
        rows[graph.namespace].append(row)
    if not rows:
        raise UserError(f"{path}: holds no line")
    found = Precomputed(path, False, digest.hexdigest(), rows)
    for several in rows.values():
        graphs = [found.read(row) for row in several] if len(several) > 1 else []
        if any(problems(merged(graphs))):
            for n, row in enumerate(several, 1):  # which line it is that doesn't go with those before it
                _check(merged(graphs[:n]), path, row.line)
    return found


def _check(graph: Graph, path: Path, line: int) -> None:
    for problem in problems(graph):
        raise UserError(f"{path}, line {line}: {problem} in {graph.namespace}")


class Cutoff(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far into a history a snapshot reaches."""

    type: Text
    value: str | int | float | None


class Snapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of a snapshot file."""

    snapshot_id: Text
    namespace: Text
    dataset_item_id: Text
    cutoff: Cutoff
    graph: Graph


@dataclass(frozen=True)
class Naming:
    """How such files call what is a benchmark's.

    prefix: what stands before the task's id in a namespace. dataset: the data's name, from the benchmark's with its
    variant. workflow: how snapshots of it are made. hashed: whether their manifests have to give the data's SHA-256.
    history(data, benchmark, task, body): a task's sessions and turns by the data's own names, without gold.
    """

    prefix: str
    dataset: Callable[[str], str]
    workflow: str
    hashed: bool
    history: Callable[[Path, str, str, TaskBody], Sequence[Sitting]]

    def namespace(self, task: str) -> str:
        """The namespace of a task."""
        return f"{self.prefix}:{task}"

    def origin(self, benchmark: str, release: Release) -> Origin:
        """What a snapshot of this data has to be made of."""
        return Origin(self.workflow, self.dataset(benchmark), release.files[0].sha256, self.hashed)


@dataclass(frozen=True)
class Origin:
    """What a snapshot has to be made of. workflow: how it is made; dataset: the data's name; sha256: of its file;
    hashed: whether the manifest has to give that."""

    workflow: str
    dataset: str
    sha256: str
    hashed: bool


def manifest_of(path: Path) -> Path:
    """Where the manifest of a snapshot stands: `NAME_manifest.json` beside `NAME.jsonl`."""
    return path.with_name(f"{path.stem}_manifest.json")


def read_snapshot(path: Path, origin: Origin) -> Precomputed:
    """A snapshot whose manifest says that it is of this origin, checked. Raises UserError."""
    if path.suffix != ".jsonl":
        raise UserError(f"{path}: a snapshot's file is called NAME.jsonl")
    said = _manifest(manifest_of(path), origin)
    rows: dict[str, list[Row]] = defaultdict(list)
    actual = file_sha256(path)
    if said != actual:
        raise UserError(f"{manifest_of(path)}: artifact.sha256 is {said}, and {path.name} is {actual[:12]}…")
    digest = hashlib.sha256()
    for row, value in _lines(path, digest):
        snapshot = _decoded(value, Snapshot, path, row.line)
        if snapshot.graph.namespace != snapshot.namespace:
            raise UserError(
                f"{path}, line {row.line}: namespace is {snapshot.namespace!r}, its graph's "
                f"{snapshot.graph.namespace!r}"
            )
        if snapshot.dataset_item_id in rows:
            first = rows[snapshot.dataset_item_id][0].line
            raise UserError(
                f"{path}, line {row.line}: dataset_item_id {snapshot.dataset_item_id!r} has a snapshot in line {first}"
            )
        _check(snapshot.graph, path, row.line)
        rows[snapshot.dataset_item_id].append(row)
    if digest.hexdigest() != actual:
        raise UserError(f"{path}: changed while it was read; start again")
    if not rows:
        raise UserError(f"{path}: holds no snapshot")
    return Precomputed(path, True, actual, rows)


def _manifest(path: Path, origin: Origin) -> str:
    """The hash that a manifest gives its artifact, everything else in it being right."""
    try:
        manifest = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: missing; a snapshot needs its manifest") from None
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(manifest, dict):
        raise UserError(f"{path}: not an object")
    if manifest.get("workflow_id") != origin.workflow:
        raise UserError(f"{path}: workflow_id is {manifest.get('workflow_id')!r}, not {origin.workflow!r}")
    dataset = manifest.get("dataset")
    about = dataset if isinstance(dataset, dict) else {"name": dataset}
    if about.get("name") != origin.dataset:
        raise UserError(f"{path}: dataset is {about.get('name')!r}, the data that is used {origin.dataset!r}")
    made_of = about.get("sha256")
    if made_of is None and origin.hashed:
        raise UserError(f"{path}: dataset.sha256 is missing")
    if made_of is not None and str(made_of).lower() != origin.sha256:
        raise UserError(f"{path}: dataset.sha256 is {made_of}, the data that is used {origin.sha256[:12]}…")
    artifact = manifest.get("artifact")
    said = artifact.get("sha256") if isinstance(artifact, dict) else None
    if not isinstance(said, str):
        raise UserError(f"{path}: artifact.sha256 is missing")
    return said.lower()


def _lines(path: Path, digest: Any) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Every line that isn't blank, as an object without gold keys. digest: takes in all bytes."""
    try:
        with path.open("rb") as file:
            at = 0
            for number, data in enumerate(file, 1):
                digest.update(data)
                start, at = at, at + len(data)
                line = data.removeprefix(b"\xef\xbb\xbf") if number == 1 else data
                start += len(data) - len(line)
                if line.strip():
                    row = Row(number, start, at, hashlib.sha256(line).digest())
                    yield row, _object(line, f"{path}, line {number}")
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from None


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise UserError(f"{where}: not an object")
    if (key := _gold_key(value)) is not None:
        raise UserError(f"{where}: key {key!r} is one of gold; nothing that is precomputed may come from it")
    return value


def _gold_key(value: Any) -> str | None:
    """The first key of gold that is met anywhere in a value."""
    open_ = [value]
    while open_:
        some = open_.pop()
        if isinstance(some, dict):
            for key in some:
                name = key.casefold()
                if name in GOLD_KEYS or name.startswith("gold_"):
                    return str(key)
            open_.extend(some.values())
        elif isinstance(some, list):
            open_.extend(some)
    return None


def _decoded(value: dict[str, Any], form: type[T], path: Path, line: int) -> T:
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError as error:
        raise UserError(f"{path}, line {line}: {error}") from None
