"""Controllable similarity: every text belongs to a concept, every concept to a cluster whose vector is written down.

A concept's vector is its cluster's plus a small noise that follows from seed, concept and dimension alone, all in
float32 and not normalised. So the cosine of two texts is what the author of the clusters meant it to be. Noise: FNV-1a
(Fowler, Noll and Vo) of the concept's id, mixed by splitmix64 (Steele, Lea and Flood 2014).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from memtrials.embeddings.base import Offline
from memtrials.embeddings.surfaces import bare
from memtrials.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Concept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Texts that mean the same: one vector for all of them. cluster: whose vector that is, but for noise."""

    cluster: str
    inputs: tuple[str, ...]


class Geometry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is written down. clusters: vectors of vector_size numbers by id; concepts by id; noise_magnitude: how far
    noise moves a component."""

    seed: int
    vector_size: int
    noise_magnitude: float
    clusters: Mapping[str, tuple[float, ...]]
    concepts: Mapping[str, Concept]

    def digest(self) -> str:
        """SHA-256 of the compact JSON of all fields in their order, clusters and concepts sorted by id."""
        plain = {
            "seed": self.seed,
            "vector_size": self.vector_size,
            "noise_magnitude": _single(self.noise_magnitude),
            "clusters": {name: [_single(x) for x in self.clusters[name]] for name in sorted(self.clusters)},
            "concepts": {
                name: {"cluster": self.concepts[name].cluster, "inputs": self.concepts[name].inputs}
                for name in sorted(self.concepts)
            },
        }
        return hashlib.sha256(msgspec.json.encode(plain)).hexdigest()


def problems(geometry: Geometry) -> list[str]:
    """What keeps a geometry from giving every text one vector; empty when nothing does."""
    found = []
    if not is_seed(geometry.seed):
        found.append(f"seed is {geometry.seed}; it has to be an unsigned integer of 64 bits")
    if geometry.vector_size < 1:
        found.append(f"vector_size is {geometry.vector_size}; it counts numbers, so 1 or more")
    if not math.isfinite(_single(geometry.noise_magnitude)) or geometry.noise_magnitude < 0:
        found.append(f"noise_magnitude is {geometry.noise_magnitude}; it has to be finite in float32 and 0 or more")
    if not geometry.clusters:
        found.append("clusters is empty; there has to be one at least")
    if not geometry.concepts:
        found.append("concepts is empty; there has to be one at least")
    for name, vector in geometry.clusters.items():
        if not name.strip():
            found.append("clusters has a blank id")
        if len(vector) != geometry.vector_size:
            found.append(f"cluster {name!r} has {len(vector)} numbers, and vector_size is {geometry.vector_size}")
        if not all(math.isfinite(_single(x)) for x in vector):
            found.append(f"cluster {name!r} has a number that isn't finite in float32")
    for name, concept in geometry.concepts.items():
        if not name.strip():
            found.append("concepts has a blank id")
        if concept.cluster not in geometry.clusters:
            found.append(f"concept {name!r} is in cluster {concept.cluster!r}, which isn't declared")
        if not concept.inputs:
            found.append(f"concept {name!r} has no inputs")
        if "" in concept.inputs:
            found.append(f"concept {name!r} has an empty input")
    times = Counter(text for concept in geometry.concepts.values() for text in concept.inputs if text)
    for text in (text for text, count in times.items() if count > 1):
        owners = sorted(name for name, concept in geometry.concepts.items() if text in concept.inputs)
        found.append(f"input {text!r} is listed more than once, under {', '.join(map(repr, owners))}")
    return found


def is_seed(number: int) -> bool:
    """Whether a number is an unsigned integer of 64 bits."""
    return 0 <= number <= _MASK


class Controllable:
    """The vectors of a geometry. width: how many components they are padded to with zeros, which leaves every cosine.

    Raises UserError for a geometry with problems and for a width below its vector_size.
    """

    def __init__(self, geometry: Geometry, width: int | None = None) -> None:
        if found := problems(geometry):
            raise UserError(f"controllable similarity: {found[0]}", found[1:])
        self.width = geometry.vector_size if width is None else width
        if self.width < geometry.vector_size:
            raise UserError(
                f"controllable similarity: vectors have {geometry.vector_size} components and the store holds "
                f"{self.width}; give it {geometry.vector_size} or more"
            )
        self.geometry = geometry
        self._concept_of = {text: name for name, concept in geometry.concepts.items() for text in concept.inputs}

    def vector(self, text: str) -> NDArray[np.float32]:
        """The vector of a text that is assigned, bare or behind one surface prefix: float32, shape (width,).

        Raises UserError for any other text, and where noise makes a component infinite.
        """
        import numpy as np

        name = bare(text, self._concept_of.__contains__)
        if name is None:
            raise UserError(f"controllable similarity: {text!r} belongs to no concept; list it in a concept's inputs")
        concept = self._concept_of[name]
        padded = np.zeros(self.width, np.float32)
        vector = concept_vector(self.geometry, concept)
        if not np.isfinite(vector).all():
            raise UserError(f"controllable similarity: concept {concept!r} has a component that isn't finite")
        padded[: len(vector)] = vector
        return padded

    def embedder(self, name: str) -> Offline:
        """These vectors as a system takes them, under a name for the model."""
        return Offline("controllable", name, self.geometry.digest(), self.width, self.vector)

    def binding(self) -> dict[str, Any]:
        """What a trace says of where its vectors are from."""
        size = self.geometry.vector_size
        return {
            "kind": "controllable",
            "fixture_sha256": self.geometry.digest(),
            "vector_size": size,
            "dimension_policy": "fixture_declared" if self.width == size else {"exact": {"vector_size": self.width}},
        }


def concept_vector(geometry: Geometry, concept: str) -> NDArray[np.float32]:
    """A concept's vector: float32, shape (vector_size,)."""
    import numpy as np

    cluster = np.array(geometry.clusters[geometry.concepts[concept].cluster], np.float32)
    signs = np.array([noise_sign(geometry.seed, concept, d) for d in range(len(cluster))], np.float32)
    with np.errstate(over="ignore"):
        vector: NDArray[np.float32] = cluster + signs * np.float32(geometry.noise_magnitude)
    return vector


def noise_sign(seed: int, concept: str, dimension: int) -> int:
    """Which way noise moves a component: -1, 0 or 1."""
    hashed = fnv1a(concept.encode())
    rotated = (hashed << 17 | hashed >> 47) & _MASK
    return _mix(seed ^ rotated ^ (dimension * _GOLDEN & _MASK)) % 3 - 1


def fnv1a(data: bytes) -> int:
    """FNV-1a of 64 bits."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & _MASK
    return value


def _mix(state: int) -> int:
    """The finaliser of splitmix64."""
    value = (state + _GOLDEN) & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31


def _single(number: float) -> float:
    """The shortest decimal that is the same float32; infinite where float32 has none."""
    import numpy as np

    with np.errstate(over="ignore"):
        return float(str(np.float32(number)))
