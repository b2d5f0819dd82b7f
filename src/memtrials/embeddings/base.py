"""What turns a text into a vector, as systems and benchmarks see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

from memtrials.embeddings.surfaces import normalised

if TYPE_CHECKING:
    from numpy.typing import NDArray

Role = Literal["document", "query"]


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


class Offline:
    """Vectors that a function gives, made unit vectors. Texts that are written are looked up normalised where that is
    how they are kept. about: what else is known of them, for the record."""

    def __init__(
        self,
        provider: str,
        model: str,
        revision: str,
        dimensions: int,
        vector: Callable[[str], NDArray[Any]],
        normalises: bool = False,
        about: Mapping[str, str] | None = None,
    ) -> None:
        self.provider, self.model, self.revision, self.dimensions = provider, model, revision, dimensions
        self.about = dict(about or {})
        self._vector, self._normalises = vector, normalises

    def load(self) -> None:
        """Make ready: it is."""

    def embed(self, text: str, role: Role) -> NDArray[Any] | None:
        """The unit vector of a text, shape (dimensions,); None where it has no direction. Raises UserError for a text
        that isn't in the file."""
        import numpy as np

        vector = self._vector(normalised(text) if self._normalises and role == "document" else text)
        norm = np.float32(np.linalg.norm(vector))
        return (vector / norm).astype(np.float32) if norm > 0 else None
