"""Embeddings and the one cache they go through.

The bundled model is static and ships inside a wheel, so nothing is downloaded. The cache is a SQLite file keyed by the
SHA-256 of provider, model, revision, dimensions, role and text; each vector carries what it cost when it was made.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from memtrials.errors import UserError
from memtrials.systems.base import Meter

if TYPE_CHECKING:
    from numpy.typing import NDArray

Role = Literal["document", "query"]
KEPT_IN_MEMORY = 16_384
"""How many vectors stay in memory beside the file: 16 MB of 256 dimensions."""


class Embedder(Protocol):
    """A model that turns a text into a unit vector of float32, or None for a text without tokens."""

    provider: str
    model: str
    revision: str
    dimensions: int

    def load(self) -> None:
        """Make ready to embed; does nothing the second time."""

    def embed(self, text: str, role: Role) -> NDArray[Any] | None:
        """The vector of one text."""


class WordLlama:
    """The static embedding model inside the `wordllama` wheel; documents and queries alike, text by text."""

    provider = "wordllama"
    model = "l2_supercat"

    def __init__(self, dimensions: int = 256) -> None:
        self.dimensions = dimensions
        self.revision = version("wordllama")
        self._model: Any = None

    def embed(self, text: str, role: Role) -> NDArray[Any] | None:
        """The unit vector of a text, shape (dimensions,); None when it has no tokens."""
        import numpy as np

        self.load()
        vector = self._model.embed(text)[0].astype(np.float32)
        norm = float(np.linalg.norm(vector))
        return vector / np.float32(norm) if np.isfinite(norm) and norm > 0 else None

    def load(self) -> None:
        """Read the model from the wheel, once."""
        if self._model is None:
            import wordllama

            folder = Path(wordllama.__file__).parent
            self._model = wordllama.WordLlama.load(cache_dir=folder, disable_download=True, dim=self.dimensions)


MODELS = ("wordllama-256",)


def embedder(name: str) -> Embedder:
    """The embedding model of a setting. Raises KeyError for a name that `MODELS` doesn't hold."""
    return {"wordllama-256": WordLlama}[name]()


class CachedEmbedder:
    """An embedder behind the cache. No text is embedded twice, by any process that shares the cache file."""

    def __init__(self, model: Embedder, folder: Path, meter: Meter) -> None:
        self.model = model
        self.meter = meter
        self._recent: OrderedDict[bytes, tuple[bytes | None, float]] = OrderedDict()
        self._path = folder / "embeddings.sqlite"
        self._connection: sqlite3.Connection | None = None

    def vectors(self, texts: Sequence[str], role: Role) -> list[bytes | None]:
        """The vectors of texts as float32 bytes, in order; None for a text without tokens."""
        keys = [self._key(text, role) for text in texts]
        known = self._look_up(keys)
        fresh: dict[bytes, tuple[bytes | None, float]] = {}
        if any(key not in known for key in keys):
            began = time.perf_counter()
            self.model.load()
            self.meter.setup_seconds += time.perf_counter() - began
        for key, text in zip(keys, texts, strict=True):
            if key in known or key in fresh:
                continue
            began = time.perf_counter()
            vector = self.model.embed(text, role)
            fresh[key] = (None if vector is None else vector.tobytes(), time.perf_counter() - began)
        if fresh:
            self._keep(fresh)
        first_seen: set[bytes] = set()
        out = []
        for key in keys:
            made_now = key in fresh and key not in first_seen
            first_seen.add(key)
            vector_bytes, seconds = fresh[key] if key in fresh else known[key]
            if made_now:
                self.meter.cache_misses += 1
            else:
                self.meter.cache_hits += 1
                self.meter.first_cost_seconds += seconds
            out.append(vector_bytes)
        return out

    def _key(self, text: str, role: Role) -> bytes:
        model = self.model
        name = f"{model.provider}\0{model.model}\0{model.revision}\0{model.dimensions}\0{role}\0"
        return hashlib.sha256((name + text).encode("utf-8", "surrogatepass")).digest()

    def _look_up(self, keys: Sequence[bytes]) -> dict[bytes, tuple[bytes | None, float]]:
        known = {key: self._recent[key] for key in keys if key in self._recent}
        missing = list({key for key in keys if key not in known})
        connection = self._connect()
        for first in range(0, len(missing), 500):
            some = missing[first : first + 500]
            rows = connection.execute(
                f"SELECT key, vector, seconds FROM vectors WHERE key IN ({','.join('?' * len(some))})", some
            )
            known.update({key: (vector, seconds) for key, vector, seconds in rows})
        self._remember(known)
        return known

    def _remember(self, found: dict[bytes, tuple[bytes | None, float]]) -> None:
        self._recent.update(found)
        while len(self._recent) > KEPT_IN_MEMORY:
            self._recent.popitem(last=False)

    def _keep(self, fresh: dict[bytes, tuple[bytes | None, float]]) -> None:
        self._connect().executemany(
            "INSERT OR IGNORE INTO vectors VALUES (?, ?, ?)", [(key, *value) for key, value in fresh.items()]
        )
        self._connect().commit()
        self._remember(fresh)

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                connection = sqlite3.connect(self._path, timeout=60, check_same_thread=False)
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS vectors (key BLOB PRIMARY KEY, vector BLOB, seconds REAL) WITHOUT ROWID"
                )
            except (OSError, sqlite3.Error) as error:
                raise UserError(
                    f"{self._path}: the cache can't be used ({error}); name a folder with MEMTRIALS_CACHE"
                ) from None
            self._connection = connection
        return self._connection

    def close(self) -> None:
        """Release the cache file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
