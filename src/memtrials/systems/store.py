"""One SQLite file per state: turns, and chunks of them with optional vectors.

A store is built as `.part` (rollback journal, no syncs), synced, renamed, and then never written again; it is read with
`immutable=1`. A `.part` that a killed run left is deleted by the next replay.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from memtrials.benchmarks.timeline import Session, turn_id
from memtrials.errors import UserError, WorkFailedError
from memtrials.ledger import sync_path

SCHEMA = """
CREATE TABLE turns (id INTEGER PRIMARY KEY, session INTEGER, turn INTEGER, role TEXT, speaker TEXT, time TEXT,
                    content TEXT);
CREATE TABLE chunks (id INTEGER PRIMARY KEY, session INTEGER, first INTEGER, last INTEGER, vector BLOB);
"""


class StoredTurn(msgspec.Struct, frozen=True):
    """A turn as it was taken in; id is its neutral turn id."""

    id: str
    role: str
    speaker: str | None
    time: str | None
    content: str


class Chunk(msgspec.Struct, frozen=True):
    """What is retrieved as a whole: one turn or several. vector: float32 bytes, or None."""

    turns: tuple[StoredTurn, ...]
    vector: bytes | None

    @property
    def text(self) -> str:
        """What is searched: the contents, without roles or times."""
        return self.turns[0].content if len(self.turns) == 1 else "\n".join(turn.content for turn in self.turns)


class StateFiles:
    """Where the states of one system are: a file each, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, namespace: str) -> Path:
        """Where a frozen state is."""
        return self.folder / f"{namespace}.sqlite"

    def part(self, namespace: str) -> Path:
        """Where a state is while it is built."""
        return self.folder / f"{namespace}.part"

    def copy(self, source: str, namespace: str) -> None:
        """Copy a file that is being built and has no transaction open."""
        with writing(self.part(namespace)):
            shutil.copyfile(self.part(source), self.part(namespace))

    def settle(self, namespace: str) -> None:
        """Sync a file that is built and closed, and give it its name."""
        part = self.part(namespace)
        with writing(part):
            sync_path(part)
            part.rename(self.path(namespace))
            sync_path(self.folder)

    def remove(self, namespace: str) -> None:
        """Remove a state's files, whether it is frozen or not."""
        for path in (self.part(namespace), self.path(namespace), Path(f"{self.part(namespace)}-journal")):
            with suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()


class Stores(StateFiles):
    """The states of one system that are turns and chunks."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._open: dict[str, sqlite3.Connection] = {}
        self._sessions: dict[str, int] = {}

    def create(self, namespace: str) -> None:
        """Begin an empty store. Raises UserError when the folder can't be written."""
        with writing(self.part(namespace)):
            self.folder.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self.part(namespace), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644))
            self._connect(namespace).executescript(SCHEMA)
        self._sessions[namespace] = 0

    def _connect(self, namespace: str) -> sqlite3.Connection:
        connection = sqlite3.connect(self.part(namespace), check_same_thread=False)
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA synchronous = OFF")
        self._open[namespace] = connection
        return connection

    def add(self, namespace: str, session: Session, chunks: Sequence[tuple[int, int, bytes | None]]) -> None:
        """Take in the next session. chunks: (first turn, last turn, vector), in order."""
        position = self._sessions[namespace]
        self._sessions[namespace] = position + 1
        connection = self._open[namespace]
        with writing(self.part(namespace)):
            connection.executemany(
                "INSERT INTO turns (session, turn, role, speaker, time, content) VALUES (?, ?, ?, ?, ?, ?)",
                [(position, n, t.role, t.speaker, t.time, t.content) for n, t in enumerate(session.turns)],
            )
            connection.executemany(
                "INSERT INTO chunks (session, first, last, vector) VALUES (?, ?, ?, ?)",
                [(position, first, last, vector) for first, last, vector in chunks],
            )

    def fork(self, source: str, namespace: str) -> None:
        """Begin a store as a copy of one being built."""
        with writing(self.part(namespace)):
            self._open[source].commit()  # only then is its file whole
            self.copy(source, namespace)
            self._connect(namespace)
        self._sessions[namespace] = self._sessions[source]

    def freeze(self, namespace: str) -> None:
        """Sync the store and give it its name."""
        with writing(self.part(namespace)):
            self._open[namespace].commit()
            self._close(namespace)
        self.settle(namespace)

    def discard(self, namespace: str) -> None:
        """Remove a store, frozen or not."""
        self._close(namespace)
        self.remove(namespace)

    def _close(self, namespace: str) -> None:
        self._sessions.pop(namespace, None)
        connection = self._open.pop(namespace, None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close every open store; what isn't frozen stays behind as `.part`."""
        for namespace in list(self._open):
            self._close(namespace)

    def read(self, namespace: str) -> tuple[list[StoredTurn], list[Chunk]]:
        """The whole of a frozen store: turns and chunks, in order."""
        path = self.path(namespace)
        try:
            connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
            try:
                turns = connection.execute(
                    "SELECT session, turn, role, speaker, time, content FROM turns ORDER BY id"
                ).fetchall()
                chunks = connection.execute("SELECT session, first, last, vector FROM chunks ORDER BY id").fetchall()
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise WorkFailedError("system", "fatal", f"{path}: can't be read ({error})") from None
        stored = [StoredTurn(turn_id(session, n), *rest) for session, n, *rest in turns]
        begins: dict[int, int] = {}
        for position, (session, *_) in enumerate(turns):
            begins.setdefault(session, position)
        return stored, [
            Chunk(tuple(stored[begins[session] + first : begins[session] + last + 1]), vector)
            for session, first, last, vector in chunks
        ]


def stores_folder(ledger: Path) -> Path:
    """Where the states of a ledger's embedded systems are."""
    return ledger.with_suffix(".stores")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say what goes wrong with a file so that the user can act on it. Raises UserError."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"{path}: this state can't be written ({reason}); make room or fix it, then run again"
        ) from None


def remove_parts(folder: Path) -> int:
    """Delete what killed runs left half-built; how many. The caller knows that no other run builds there."""
    count = 0
    for part in folder.glob("*.part"):
        with suppress(FileNotFoundError):
            part.unlink()
            count += 1
        Path(f"{part}-journal").unlink(missing_ok=True)
    return count
