"""Embeddings and the one cache they go through.

The bundled model is static and ships inside a wheel, so nothing is downloaded; others are behind an endpoint
(`endpoint.py`). The cache is a SQLite file keyed by the SHA-256 of provider, model, revision, dimensions, role and
text; each vector carries what it cost when it was made, in seconds and, where they are reported, in tokens.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from memtrials.embeddings.base import Embedder, Role
from memtrials.errors import UserError, WorkFailedError, unknown
from memtrials.index import LedgerIndex
from memtrials.llm.limits import ClosedError
from memtrials.progress import say
from memtrials.records import FailureBody, Header, IngestBody, RetrievalBody
from memtrials.settings import Settings
from memtrials.systems.base import Meter
from memtrials.systems.offline import NAMES, is_offline

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEPT_IN_MEMORY = 16_384
"""How many vectors of 256 dimensions stay in memory beside the file, 16 MB; of larger ones fewer."""
WRITTEN_TOGETHER = 2048
"""How many vectors that were made here wait to be written: one transaction for each takes longer than making it."""


class Made(NamedTuple):
    """A vector as float32 bytes (None for a text without tokens) and what it cost when it was made.

    seconds and tokens are the text's share of its request, by characters; tokens None: not reported.
    """

    vector: bytes | None
    seconds: float
    tokens: float | None = None


@runtime_checkable
class BatchEmbedder(Protocol):
    """A model behind an endpoint. dimensions 0: whatever it gives. requests: how many were sent. stopped: set when
    nobody is to wait any longer."""

    provider: str
    model: str
    revision: str
    dimensions: int
    requests: int
    stopped: Event

    @property
    def base_url(self) -> str:
        """Where it is."""

    def ready(self) -> None:
        """Raise UserError when it has no usable key or base URL."""

    def batches(self, texts: Sequence[str], role: Role) -> Iterator[list[Made]]:
        """The vectors of texts that aren't empty, in order, as replies arrive. Raises WorkFailedError."""

    def close(self) -> None:
        """Close connections."""


class WordLlama:
    """The static embedding model inside the `wordllama` wheel; documents and queries alike, text by text."""

    provider = "wordllama"
    model = "l2_supercat"

    def __init__(self, dimensions: int = 256) -> None:
        self.dimensions = dimensions
        from importlib.metadata import version

        self.revision = version("wordllama")
        self._model: Any = None

    def embed(self, text: str, role: Role) -> NDArray[Any] | None:
        """The unit vector of a text, shape (dimensions,); None when it has no tokens."""
        import numpy as np

        self.load()
        ids = self._model.tokenizer.encode(text, add_special_tokens=False).ids
        rows = self._model.embedding.take(ids, axis=0, mode="clip")
        vector = np.add.reduce(rows, axis=0) / np.float32(max(len(ids), 1))
        norm = float(np.linalg.norm(vector))
        return vector / np.float32(norm) if np.isfinite(norm) and norm > 0 else None

    def load(self) -> None:
        """Read the model from the wheel, once."""
        if self._model is None:
            import wordllama

            folder = Path(wordllama.__file__).parent
            self._model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True, dim=self.dimensions)


BUNDLED = "wordllama-256"
REMOTE = "openai:"
"""What stands before the model of an OpenAI-compatible endpoint: `openai:text-embedding-3-small`."""
CONFIGURED = "endpoint"
"""The setting that takes EMBED_MODEL; what it was is what makes the system's id."""


def embedding_model(state: Mapping[str, Any], settings: Settings) -> str:
    """The embedding model of `[state]`, spelled out: `wordllama-256`, `openai:MODEL` or one of `offline.py`.

    Raises UserError for another name, and for `dimensions` or `revision` beside a model that has its own.
    """
    name: str = state["embedding"]
    if name == CONFIGURED:
        configured = settings.text("EMBED_MODEL")
        if configured is None:
            raise UserError(
                f'embedding = "{CONFIGURED}" takes its model from EMBED_MODEL, which isn\'t set; set it, or write '
                f'embedding = "{REMOTE}MODEL"'
            )
        name = REMOTE + configured
    local = name == BUNDLED or is_offline(name)
    if not local and not name.removeprefix(REMOTE).strip():
        raise UserError(f'embedding is {name!r}; name the model too, for example "{REMOTE}text-embedding-3-small"')
    if not local and not name.startswith(REMOTE):
        raise unknown("embedding", name, [BUNDLED, f"{REMOTE}MODEL", CONFIGURED, *NAMES])
    for key in ("dimensions", "revision"):
        if key in state and not name.startswith(REMOTE):
            raise UserError(f'{key} is for a model behind an endpoint, "{REMOTE}MODEL"; {name} has its own')
    if state.get("dimensions", 1) < 1:
        raise UserError(f"dimensions is {state['dimensions']}; it counts numbers, so 1 or more")
    return name


def endpoint_model(state: Mapping[str, Any]) -> str | None:
    """The embedding model behind an endpoint of resolved settings; None where vectors are made here, or none are."""
    name = state.get("embedding")
    return name.removeprefix(REMOTE) if isinstance(name, str) and name.startswith(REMOTE) else None


def embedding_of(index: LedgerIndex, header: Header) -> str | None:
    """The embedding model behind an endpoint of a record's system."""
    return endpoint_model(index.config(header.system or "").settings)


def usage_of(index: LedgerIndex, header: Header) -> dict[str, int] | None:
    """What a system's own calls took for an ingest, a retrieval or a failure of either."""
    if header.kind == "ingest":
        return index.ledger.body(header, IngestBody).usage
    if header.kind == "retrieval":
        return index.ledger.body(header, RetrievalBody).usage
    return index.ledger.body(header, FailureBody).usage


class CachedEmbedder:
    """An embedder behind the cache. No text is embedded twice, by any process that shares the cache file.

    Where texts are sent somewhere, one process at a time sends for a model, and looks again before it does. What is
    made here costs little, so it is written some at a time: processes that run at once may make the same.
    """

    def __init__(self, model: Embedder | BatchEmbedder, folder: Path, meter: Meter) -> None:
        self.model = model
        self.meter = meter
        self._recent: OrderedDict[bytes, Made] = OrderedDict()
        self._unwritten: dict[bytes, Made] = {}
        self._width: int | None = None
        self._path = folder / "embeddings.sqlite"
        self._connection: sqlite3.Connection | None = None

    def vectors(self, texts: Sequence[str], role: Role) -> list[bytes | None]:
        """The vectors of texts as float32 bytes, in order; None for a text without tokens.

        Raises WorkFailedError when the model is behind an endpoint and fails; what came before that is kept.
        """
        keys = [self._key(text, role) for text in texts]
        known = self._look_up(keys)
        wanted = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
        fresh: dict[bytes, Made] = {}
        if wanted:
            model = self.model
            if isinstance(model, BatchEmbedder):
                with self._alone(model):
                    known.update(self._look_up(list(wanted)))
                    wanted = {key: text for key, text in wanted.items() if key not in known}
                    fresh = self._send(model, wanted, role)
            else:
                fresh = self._embed(model, wanted, role)
        first_seen: set[bytes] = set()
        out = []
        for key in keys:
            made_now = key in fresh and key not in first_seen
            first_seen.add(key)
            made = fresh[key] if key in fresh else known[key]
            self._count(made, made_now)
            self._check_width(made.vector)
            out.append(made.vector)
        return out

    def _embed(self, model: Embedder, wanted: Mapping[bytes, str], role: Role) -> dict[bytes, Made]:
        fresh = {}
        began = time.perf_counter()
        model.load()
        self.meter.setup_seconds += time.perf_counter() - began
        for key, text in wanted.items():
            began = time.perf_counter()
            vector = model.embed(text, role)
            fresh[key] = Made(None if vector is None else vector.tobytes(), time.perf_counter() - began)
        self._unwritten.update(fresh)
        if len(self._unwritten) >= WRITTEN_TOGETHER:
            self._write()
        self._remember(fresh)
        return fresh

    def _write(self) -> None:
        waiting, self._unwritten = self._unwritten, {}
        if waiting:
            self._keep(waiting)

    def _send(self, model: BatchEmbedder, wanted: Mapping[bytes, str], role: Role) -> dict[bytes, Made]:
        """Every reply is kept before the next request, so a stage that is killed pays for nothing again."""
        fresh = {key: Made(None, 0.0, 0.0) for key, text in wanted.items() if not text.strip()}
        keys = [key for key in wanted if key not in fresh]
        before = model.requests
        try:
            waiting = iter(keys)
            for batch in model.batches([wanted[key] for key in keys], role):
                some = {next(waiting): made for made in batch}
                self.meter.tokens += sum(made.tokens or 0.0 for made in batch)
                self.meter.unreported += sum(made.tokens is None for made in batch)
                self._keep(some)
                fresh.update(some)
        finally:
            if model.requests > before:
                self.meter.endpoint = model.base_url
                self.meter.requests += model.requests - before
        return fresh

    def _count(self, made: Made, made_now: bool) -> None:
        meter = self.meter
        if made_now:
            meter.cache_misses += 1
        else:
            meter.cache_hits += 1
            meter.first_cost_seconds += made.seconds
            meter.unreported += made.tokens is None
        meter.charged_tokens += made.tokens or 0.0

    def _check_width(self, vector: bytes | None) -> None:
        """An endpoint that changes its model under the same name is found out."""
        if vector is None:
            return
        if self._width is None:
            self._width = len(vector)
        if len(vector) != self._width:
            model = self.model
            raise WorkFailedError(
                "service",
                "fatal",
                f"embedding model {model.model}: gave vectors of {self._width // 4} and of {len(vector) // 4} "
                "dimensions, so it isn't one model; set `dimensions`, or tell them apart with `revision`",
            )

    @contextmanager
    def _alone(self, model: BatchEmbedder) -> Iterator[None]:
        """Hold what lets one process at a time send for this model."""
        from filelock import FileLock, Timeout

        name = hashlib.sha256(self._name.encode()).hexdigest()[:16]
        lock = FileLock(self._path.with_name(f"embeddings-{name}.lock"))
        try:
            lock.acquire(cancel_check=model.stopped.is_set)
        except Timeout:
            raise ClosedError("stopped") from None
        except OSError as error:
            raise _unusable(self._path, error) from None
        try:
            yield
        finally:
            lock.release()

    def _key(self, text: str, role: Role) -> bytes:
        return hashlib.sha256(f"{self._name}{role}\0{text}".encode("utf-8", "surrogatepass")).digest()

    @property
    def _name(self) -> str:
        model = self.model
        return f"{model.provider}\0{model.model}\0{model.revision}\0{model.dimensions}\0"

    def _look_up(self, keys: Sequence[bytes]) -> dict[bytes, Made]:
        known = {key: self._recent[key] for key in keys if key in self._recent}
        known.update({key: self._unwritten[key] for key in keys if key in self._unwritten})
        missing = list({key for key in keys if key not in known})
        for first in range(0, len(missing), 500):
            some = missing[first : first + 500]
            with self._file() as connection:
                rows = connection.execute(
                    "SELECT key, vector, seconds, tokens.tokens FROM vectors LEFT JOIN tokens USING (key) "
                    f"WHERE key IN ({','.join('?' * len(some))})",
                    some,
                )
                known.update({key: Made(vector, seconds, tokens) for key, vector, seconds, tokens in rows})
        self._remember(known)
        return known

    def _remember(self, found: Mapping[bytes, Made]) -> None:
        self._recent.update(found)
        most = KEPT_IN_MEMORY * 1024 // max(1024, self._width or 0)
        while len(self._recent) > most:
            self._recent.popitem(last=False)

    def _keep(self, fresh: Mapping[bytes, Made]) -> None:
        rows = sorted(fresh.items())  # by key, as the file is
        with self._file() as connection, connection:
            connection.executemany(
                "INSERT OR IGNORE INTO vectors VALUES (?, ?, ?)", [(k, m.vector, m.seconds) for k, m in rows]
            )
            connection.executemany(
                "INSERT OR IGNORE INTO tokens VALUES (?, ?)", [(k, m.tokens) for k, m in rows if m.tokens is not None]
            )
        self._remember(fresh)

    @contextmanager
    def _file(self) -> Iterator[sqlite3.Connection]:
        """The cache file, opened when it is first used. Raises UserError where it can't be used."""
        try:
            if self._connection is None:
                self._connection = self._opened()
            yield self._connection
        except (OSError, sqlite3.Error) as error:
            raise _unusable(self._path, error) from None

    def _opened(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=60, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB, seconds REAL) WITHOUT ROWID"
        )
        connection.execute(  # a table of its own, so that caches from before it are still good
            "CREATE TABLE IF NOT EXISTS tokens (key BLOB PRIMARY KEY, tokens REAL) WITHOUT ROWID"
        )
        return connection

    def close(self) -> None:
        """Write what isn't yet; release the cache file and connections."""
        try:
            self._write()
        except UserError as error:
            say(f"{error}. Vectors that were made here are made again next time")
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if isinstance(self.model, BatchEmbedder):
            self.model.close()


def _unusable(path: Path, error: Exception) -> UserError:
    return UserError(f"{path}: the cache can't be used ({error}); name a folder with MEMTRIALS_CACHE")
