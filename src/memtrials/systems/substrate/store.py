"""One SQLite file per namespace: objects, links and edges, vectors, statistics, operations.

The file is the whole durable identity. Every operation is one transaction (rollback journal, no syncs), so a process
killed at any moment leaves the state before it or after it. Vectors are float32 as they were given; cosines are exact.
The matrix and nothing else is held in memory beside the file, and it is read from there again after a restart or a
removal.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import quote

import msgspec

from memtrials.errors import UserError
from memtrials.systems.store import writing
from memtrials.systems.substrate.identity import internal_id
from memtrials.systems.substrate.objects import (
    KINDS,
    Derived,
    Kind,
    Link,
    Object,
    Outcome,
    Ref,
    Thread,
    content,
    kind_of,
    references,
    refused,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

PARTS = {
    "objects": "CREATE TABLE objects (seq INTEGER PRIMARY KEY, id TEXT UNIQUE, kind TEXT, external_id TEXT, "
    "content BLOB, salience REAL, retention TEXT, is_current INTEGER, status TEXT, UNIQUE (kind, external_id))",
    "links": "CREATE TABLE links (id TEXT PRIMARY KEY, external_id TEXT UNIQUE, content BLOB)",
    "edges": "CREATE TABLE edges (source TEXT, relation TEXT, target TEXT, link TEXT, "
    "UNIQUE (source, relation, target, link))",
    "vectors": "CREATE TABLE vectors (seq INTEGER PRIMARY KEY AUTOINCREMENT, object TEXT UNIQUE, kind TEXT, "
    "vector BLOB)",
    "statistics": "CREATE TABLE statistics (object TEXT, path TEXT, linked INTEGER, PRIMARY KEY (object, path)) "
    "WITHOUT ROWID",
    "operations": "CREATE TABLE operations (id TEXT PRIMARY KEY, digest BLOB, outcome BLOB)",
    "namespace": "CREATE TABLE namespace (name TEXT)",
}
"""The tables without which a namespace isn't whole."""
INDEXES = ("CREATE INDEX edges_by_target ON edges (target, relation)",)
COLUMNS = "id, kind, external_id, content, salience, retention, is_current, status, seq"

_DRAFTS: msgspec.json.Decoder[Object] = msgspec.json.Decoder(Object)


class Way(NamedTuple):
    """A way from a hub to memories, whose fan-out is limited and whose size is counted."""

    name: str
    hub: Kind
    memory: Kind
    relations: tuple[str, ...]


WAYS = (
    Way("about_entity.derived_memory", "entity", "derived_memory", ("about",)),
    Way("participant_entity.episode", "entity", "episode", ("mentions", "involves")),
    Way("part_of_thread.derived_memory", "memory_thread", "derived_memory", ("part_of_thread",)),
)


def way(relation: str, hub: str, memory: str) -> Way | None:
    """The way that an edge of this relation, in either direction, belongs to."""
    return next((w for w in WAYS if relation in w.relations and (w.hub, w.memory) == (hub, memory)), None)


class Stored(NamedTuple):
    """An object as it stands: its draft, and what became of it. status: of a thread, else None."""

    id: str
    kind: Kind
    external_id: str
    draft: Object
    salience: float
    retention: str
    is_current: bool
    status: str | None
    seq: int

    @property
    def live(self) -> bool:
        """Neither suppressed nor superseded."""
        return self.retention == "active" and self.is_current


class Edge(NamedTuple):
    """How a neighbour of an object is reached: its internal id and kind, and whether the edge leads to it."""

    relation: str
    outward: bool
    other: str
    kind: Kind


class Store:
    """An open namespace."""

    def __init__(self, path: Path, namespace: str, connection: sqlite3.Connection) -> None:
        self.path = path
        self.namespace = namespace
        self._db = connection
        self._matrix: Matrix | None = None

    @classmethod
    def create(cls, path: Path, namespace: str) -> Store:
        """Begin an empty namespace. Raises UserError when any part of it is there or the folder can't be written."""
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if there := next((file for file in files(path) if file.exists()), None):
                raise UserError(f"{there}: namespace {namespace!r} is already there; remove it or reattach it")
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644))
            store = cls(path, namespace, _connect(path))
            with store.transaction():
                for statement in (*PARTS.values(), *INDEXES):
                    store._db.execute(statement)
                store._db.execute("INSERT INTO namespace VALUES (?)", (namespace,))
        return store

    @classmethod
    def reattach(cls, path: Path, namespace: str) -> Store:
        """Take up a namespace from its file. Raises UserError that lists all missing parts, and for a file that
        is another namespace's."""
        if not path.is_file():
            raise UserError(f"{path}: namespace {namespace!r} isn't there (missing: {', '.join(PARTS)})")
        with writing(path):
            store = cls(path, namespace, _connect(path))
            there = {name for (name,) in store._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if missing := [part for part in PARTS if part not in there]:
                store.close()
                raise UserError(f"{path}: namespace {namespace!r} isn't whole (missing: {', '.join(missing)})")
            ((name,),) = store._db.execute("SELECT name FROM namespace")
            if name != namespace:
                store.close()
                raise UserError(f"{path}: this is namespace {name!r} and not {namespace!r}")
        return store

    @classmethod
    def read(cls, path: Path) -> Store:
        """A namespace whose file nobody writes any more, to be asked and never changed. Raises WorkFailedError."""
        try:
            connection = sqlite3.connect(
                f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False
            )
            ((name,),) = connection.execute("SELECT name FROM namespace")
        except sqlite3.Error as error:
            raise refused(f"{path}: can't be read ({error})") from None
        return cls(path, name, connection)

    def close(self) -> None:
        """Close the file, which then stands alone."""
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Everything or nothing."""
        with writing(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                self._matrix = None
                raise
            self._db.execute("COMMIT")

    def count(self) -> int:
        """How many objects and links there are."""
        ((objects, links),) = self._db.execute("SELECT (SELECT count(*) FROM objects), (SELECT count(*) FROM links)")
        return int(objects + links)

    def id(self, ref: Ref) -> str:
        """The internal id of an object."""
        return internal_id(self.namespace, *ref)

    def get(self, id_: str) -> Stored | None:
        """An object by its internal id."""
        row = self._db.execute(f"SELECT {COLUMNS} FROM objects AS o WHERE id = ?", (id_,)).fetchone()
        return _stored(row) if row else None

    def object(self, ref: Ref) -> Stored | None:
        """An object by kind and external id."""
        return self.get(self.id(ref))

    def link_content(self, external_id: str) -> bytes | None:
        """A link as it was written."""
        row = self._db.execute("SELECT content FROM links WHERE external_id = ?", (external_id,)).fetchone()
        return row[0] if row else None

    def operation(self, id_: str) -> tuple[bytes, Outcome] | None:
        """The digest of an operation that was carried out, and what came of it."""
        row = self._db.execute("SELECT digest, outcome FROM operations WHERE id = ?", (id_,)).fetchone()
        return (row[0], Outcome(id_, msgspec.json.decode(row[1]))) if row else None

    def record(self, outcome: Outcome, digest: bytes) -> None:
        """Keep what an operation did."""
        self._db.execute(
            "INSERT INTO operations VALUES (?, ?, ?)",
            (outcome.operation_id, digest, msgspec.json.encode(outcome.outcome)),
        )

    def insert(self, draft: Object) -> str:
        """Write an object and the edges that it implies; its internal id."""
        kind = kind_of(draft)
        id_ = internal_id(self.namespace, kind, draft.external_id)
        current = draft.is_current if isinstance(draft, Derived) else True
        status = draft.status if isinstance(draft, Thread) else None
        self._db.execute(
            "INSERT INTO objects (id, kind, external_id, content, salience, retention, is_current, status) "
            "VALUES (?, ?, ?, ?, ?, 'active', ?, ?)",
            (id_, kind, draft.external_id, content(draft), getattr(draft, "salience", 0.0), current, status),
        )
        if current:
            self._add("", kind, 1)
        for relation, ref, inward in references(draft):
            ends = (self.id(ref), id_) if inward else (id_, self.id(ref))
            self._edge(ends[0], relation, ends[1], None)
        return id_

    def insert_link(self, link: Link) -> str:
        """Write a link and its edge; its internal id."""
        id_ = internal_id(self.namespace, "memory_link", link.external_id)
        self._db.execute("INSERT INTO links VALUES (?, ?, ?)", (id_, link.external_id, content(link)))
        self._edge(self.id(link.source), link.relation, self.id(link.target), id_)
        return id_

    def supersede(self, new: str, old: str) -> str:
        """Add the edge between a replacement and what it replaces; its internal id."""
        id_ = internal_id(self.namespace, "memory_link", f"{new}:supersedes:{old}")
        self._edge(new, "supersedes", old, id_)
        return id_

    def _edge(self, source: str, relation: str, target: str, link: str | None) -> None:
        for hub, memory in ((source, target), (target, source)):
            found = self.get(hub), self.get(memory)
            if found[0] is None or found[1] is None or not found[1].live:
                continue
            via = way(relation, found[0].kind, found[1].kind)
            if via is not None and not self._linked(hub, memory, via):
                self._add(hub, via.name, 1)
        self._db.execute("INSERT INTO edges VALUES (?, ?, ?, ?)", (source, relation, target, link))

    def _linked(self, hub: str, memory: str, via: Way) -> bool:
        marks = ", ".join("?" * len(via.relations))
        return bool(
            self._db.execute(
                f"SELECT 1 FROM edges WHERE relation IN ({marks}) AND source = ? AND target = ? "
                f"UNION SELECT 1 FROM edges WHERE relation IN ({marks}) AND source = ? AND target = ?",
                (*via.relations, hub, memory, *via.relations, memory, hub),
            ).fetchone()
        )

    def _add(self, hub: str, name: str, amount: int) -> None:
        self._db.execute(
            "INSERT INTO statistics VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET linked = linked + excluded.linked",
            (hub, name, amount),
        )

    def recount(self) -> bool:
        """Count the statistics again from the graph; whether they were wrong."""
        live = "retention = 'active' AND is_current"
        counted: dict[tuple[str, str], int] = {
            ("", kind): count
            for kind, count in self._db.execute(f"SELECT kind, count(*) FROM objects WHERE {live} GROUP BY kind")
        }
        for via in WAYS:
            marks = ", ".join("?" * len(via.relations))
            rows = self._db.execute(
                "SELECT hub, count(DISTINCT memory) FROM ("
                f"SELECT source AS hub, target AS memory FROM edges WHERE relation IN ({marks}) "
                f"UNION SELECT target, source FROM edges WHERE relation IN ({marks})) "
                "JOIN objects AS h ON h.id = hub JOIN objects AS m ON m.id = memory "
                "WHERE h.kind = ? AND m.kind = ? AND m.retention = 'active' AND m.is_current GROUP BY hub",
                (*via.relations, *via.relations, via.hub, via.memory),
            )
            counted |= {(hub, via.name): count for hub, count in rows}
        held = self._db.execute("SELECT object, path, linked FROM statistics WHERE linked != 0")
        if {(hub, name): count for hub, name, count in held} == counted:
            return False
        self._db.execute("DELETE FROM statistics")
        self._db.executemany("INSERT INTO statistics VALUES (?, ?, ?)", [(*key, n) for key, n in counted.items()])
        return True

    def linked(self, hub: str, name: str) -> int | None:
        """How many live memories a way leads to from a hub; with an empty hub, how many there are of a kind. None:
        nothing was counted."""
        row = self._db.execute("SELECT linked FROM statistics WHERE object = ? AND path = ?", (hub, name)).fetchone()
        return int(row[0]) if row else None

    def suppress(self, memory: Stored) -> bool:
        """Take an object out of what may be retrieved; whether it was in it. A thread is archived."""
        if memory.kind == "memory_thread":
            changed = memory.status != "archived"
            self._db.execute("UPDATE objects SET status = 'archived' WHERE id = ?", (memory.id,))
        else:
            changed = memory.live
            current = memory.is_current and memory.kind != "derived_memory"
            self._db.execute(
                "UPDATE objects SET retention = 'suppressed', is_current = ? WHERE id = ?", (current, memory.id)
            )
            if changed:
                self._add("", memory.kind, -1)
                for hub, name in {
                    (edge.other, via.name)
                    for edge in self.neighbours(memory.id)
                    if (via := way(edge.relation, edge.kind, memory.kind))
                }:
                    self._add(hub, name, -1)
        return changed

    def neighbours(self, id_: str) -> Iterator[Edge]:
        """Where edges lead from an object, in both directions: the most salient first, then the newest."""
        for relation, outward, other, kind in self._db.execute(
            "SELECT relation, outward, other, kind FROM ("
            "SELECT relation, 1 AS outward, target AS other FROM edges WHERE source = ?1 "
            "UNION SELECT relation, 0, source FROM edges WHERE target = ?1) JOIN objects ON id = other "
            "ORDER BY salience DESC, seq DESC, relation, outward",
            (id_,),
        ):
            yield Edge(relation, bool(outward), other, kind)

    def replaces(self, id_: str) -> bool:
        """Whether an object superseded another."""
        row = self._db.execute("SELECT 1 FROM edges WHERE relation = 'supersedes' AND source = ?", (id_,)).fetchone()
        return row is not None

    def superseded_by(self, id_: str) -> str | None:
        """The replacement of an object, the first by id where there are several."""
        row = self._db.execute(
            "SELECT min(source) FROM edges WHERE relation = 'supersedes' AND target = ?", (id_,)
        ).fetchone()
        return cast("str | None", row[0])

    def grounded(self, source: str) -> list[Stored]:
        """The memories derived from an episode or observation; from an episode also those through its observations."""
        rows = self._db.execute(
            "SELECT source FROM edges WHERE relation = 'derived_from' AND target IN "
            "(SELECT ?1 UNION SELECT target FROM edges WHERE source = ?1 AND relation = 'has_observation')",
            (source,),
        ).fetchall()
        found = [self.get(id_) for id_ in {id_ for (id_,) in rows}]
        return sorted((m for m in found if m and m.kind == "derived_memory"), key=lambda memory: memory.seq)

    def index(self, vectors: Sequence[tuple[str, Kind, bytes]]) -> None:
        """Write vectors: internal id, kind and float32 bytes. Raises WorkFailedError for one of another length."""
        known = self._db.execute("SELECT length(vector) FROM vectors LIMIT 1").fetchone()
        for id_, kind, vector in vectors:
            known = known or (len(vector),)
            if len(vector) != known[0]:
                raise refused(
                    f"{self.path}: its vectors have {known[0] // 4} dimensions and that of {id_} {len(vector) // 4}"
                )
            self._db.execute("INSERT INTO vectors (object, kind, vector) VALUES (?, ?, ?)", (id_, kind, vector))

    def has_vector(self, id_: str) -> bool:
        """Whether an object can be found by its vector."""
        return self._db.execute("SELECT 1 FROM vectors WHERE object = ?", (id_,)).fetchone() is not None

    def unindex(self, id_: str) -> bool:
        """Remove an object's vector; whether it had one."""
        self._matrix = None
        return self._db.execute("DELETE FROM vectors WHERE object = ?", (id_,)).rowcount > 0

    def nearest(self, query: bytes, kinds: Sequence[Kind], count: int) -> Nearest:
        """The objects of these kinds whose vectors are nearest to the query's, by exact cosine: best first, then by
        kind's rank, then by id."""
        self._matrix = self._matrix or Matrix()
        for seq, id_, kind, vector in self._db.execute(
            "SELECT seq, object, kind, vector FROM vectors WHERE seq > ? ORDER BY seq", (self._matrix.seen,)
        ):
            self._matrix.append(seq, id_, kind, vector)
        return self._matrix.nearest(query, kinds, count)

    def texts(self, kinds: Sequence[Kind]) -> list[Stored]:
        """The live objects of these kinds, as they came in."""
        marks = ", ".join("?" * len(kinds))
        rows = self._db.execute(
            f"SELECT {COLUMNS} FROM objects AS o WHERE kind IN ({marks}) AND retention = 'active' AND is_current "
            "ORDER BY seq",
            tuple(kinds),
        )
        return [_stored(row) for row in rows]


class Nearest(NamedTuple):
    """Internal ids with kind and cosine, and how many vectors were compared."""

    hits: list[tuple[str, Kind, float]]
    scanned: int


class Matrix:
    """The vectors of a namespace, read so far, as unit rows with the ranks of their kinds."""

    def __init__(self) -> None:
        self.seen = 0
        self._ids: list[str] = []
        self._rows: NDArray[Any] | None = None
        self._kinds: NDArray[Any] | None = None

    def append(self, seq: int, id_: str, kind: Kind, vector: bytes) -> None:
        """Take in the next vector; the room is doubled when it runs out."""
        import numpy as np

        row = np.frombuffer(vector, np.float32)
        if self._rows is None or self._kinds is None:
            self._rows, self._kinds = np.empty((64, len(row)), np.float32), np.empty(64, np.int8)
        if len(self._ids) == len(self._rows):
            self._rows = np.concatenate((self._rows, np.empty_like(self._rows)))
            self._kinds = np.concatenate((self._kinds, np.empty_like(self._kinds)))
        self._rows[len(self._ids)] = row / (np.linalg.norm(row) or 1)
        self._kinds[len(self._ids)] = KINDS.index(kind)
        self._ids.append(id_)
        self.seen = seq

    def nearest(self, query: bytes, kinds: Sequence[Kind], count: int) -> Nearest:
        """See `Store.nearest`."""
        import numpy as np

        if self._rows is None or self._kinds is None:
            return Nearest([], 0)
        vector = np.frombuffer(query, np.float32)
        if len(vector) != self._rows.shape[1]:
            raise refused(f"the namespace's vectors have {self._rows.shape[1]} dimensions, the query's {len(vector)}")
        unit = vector / (np.linalg.norm(vector) or 1)
        every = np.vecdot(self._rows[: len(self._ids)], unit)  # row by row: equal rows tie
        among = np.flatnonzero(np.isin(self._kinds[: len(self._ids)], [KINDS.index(kind) for kind in kinds]))
        scores, scanned = every[among], len(among)
        if scanned > count:
            kept = scores >= np.partition(scores, -count)[-count]
            among, scores = among[kept], scores[kept]
        hits = [(self._ids[n], KINDS[self._kinds[n]], float(score)) for n, score in zip(among, scores, strict=True)]
        return Nearest(sorted(hits, key=lambda hit: (-hit[2], KINDS.index(hit[1]), hit[0]))[:count], scanned)


def file_of(folder: Path, namespace: str) -> Path:
    """Where a namespace is kept, whatever characters its name has."""
    return folder / f"{quote(namespace, safe='')}.sqlite"


def files(path: Path) -> tuple[Path, Path]:
    """All files that may belong to a namespace: its own, and the journal of a transaction that was cut off."""
    return path, Path(f"{path}-journal")


def _stored(row: Sequence[Any]) -> Stored:
    id_, kind, external_id, draft, salience, retention, is_current, status, seq = row
    parsed = _DRAFTS.decode(draft)
    return Stored(id_, kind, external_id, parsed, salience, retention, bool(is_current), status, seq)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute("PRAGMA synchronous = OFF")
    return connection
