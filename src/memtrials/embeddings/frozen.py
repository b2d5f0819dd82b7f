"""Vectors that a model made once, kept in a file, and the manifest of what they are expected to say.

A store is a JSON file of schema 2: every entry is a text, the SHA-256 of its exact UTF-8 bytes and its vector, in the
order of the hashes. A manifest (schema 1) lists texts by id and orderings: which texts have to be nearer to an anchor
than which others, and by how much. It is a gate for authors: where an ordering doesn't hold, the texts are rewritten.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from memtrials.embeddings.base import Offline
from memtrials.embeddings.surfaces import bare
from memtrials.errors import UserError
from memtrials.ledger import sync_path

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FILE = "EMBED_FILE"
"""The setting that names a store, or a fixture."""
STORE_SCHEMA = 2
MANIFEST_SCHEMA = 1
REPLACING = 4
"""How often a store is put into its place where that isn't permitted, as while another program reads it."""
PAUSE = 0.025
"""Seconds after the first time; after the second twice as long, and so on."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text and its vector."""

    text_sha256: str
    text: str
    embedding: tuple[float, ...]


class Store(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A store as written. dimension_policy and source describe it and decide nothing."""

    schema_version: int
    model: str
    vector_size: int
    dimension_policy: str
    source: str
    entries: tuple[Entry, ...]


class Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text of a manifest; the same text may stand under several ids."""

    id: str
    text: str


class Ordering(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The texts of descending_ids are ever farther from the anchor, each by more than min_margin of cosine."""

    description: str
    anchor_id: str
    descending_ids: tuple[str, ...]
    min_margin: float = 0.0


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a store has to hold, and what its vectors have to say."""

    schema_version: int
    texts: tuple[Text, ...]
    similarity_orderings: tuple[Ordering, ...] = ()


_File = TypeVar("_File", Store, Manifest)


def text_key(text: str) -> str:
    """The key of a text: SHA-256 of its exact UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()


def read_store(path: Path) -> Store:
    """A store, checked. Raises UserError for what is wrong in it."""
    store = _read(path, Store, STORE_SCHEMA)
    if found := store_problems(store):
        raise UserError(f"{path}: {found[0]}", found[1:])
    return store


def read_manifest(path: Path) -> Manifest:
    """A manifest, checked. Raises UserError for what is wrong in it."""
    manifest = _read(path, Manifest, MANIFEST_SCHEMA)
    if found := manifest_problems(manifest):
        raise UserError(f"{path}: {found[0]}", found[1:])
    return manifest


def store_problems(store: Store) -> list[str]:
    """What is wrong with the entries of a store; empty when nothing is."""
    found = []
    if not store.model.strip():
        found.append("model is blank; it has to name what made the vectors")
    if store.vector_size < 1:
        found.append(f"vector_size is {store.vector_size}; it counts numbers, so 1 or more")
    if not store.entries:
        found.append("entries is empty; there has to be one at least")
    for n, entry in enumerate(store.entries):
        place = f"entry {n}"
        if not entry.text:
            found.append(f"{place}: its text is empty")
        if entry.text_sha256 != text_key(entry.text):
            found.append(f"{place}: text_sha256 is {entry.text_sha256}, and its text has {text_key(entry.text)}")
        if len(entry.embedding) != store.vector_size:
            found.append(f"{place}: {len(entry.embedding)} numbers, and vector_size is {store.vector_size}")
        if not _are_single(entry.embedding):
            found.append(f"{place}: a number that isn't finite in float32")
    for n, (one, other) in enumerate(pairwise(store.entries), 1):
        if other.text_sha256 <= one.text_sha256:
            found.append(f"entry {n}: text_sha256 doesn't come after that of the entry before; hashes have to increase")
    texts = [entry.text for entry in store.entries]
    return found + [f"text {text!r} has several entries" for text in _repeated(texts)]


def manifest_problems(manifest: Manifest) -> list[str]:
    """What is wrong with a manifest itself; empty when nothing is."""
    found = []
    if not manifest.texts:
        found.append("texts is empty; there has to be one at least")
    ids = [text.id for text in manifest.texts]
    for n, text in enumerate(manifest.texts):
        if not text.id.strip():
            found.append(f"text {n}: its id is blank")
        if not text.text:
            found.append(f"text {n} ({text.id!r}): its text is empty")
    found += [f"id {name!r} stands for several texts" for name in _repeated(ids)]
    for n, ordering in enumerate(manifest.similarity_orderings):
        place = f"ordering {n} ({ordering.description!r})"
        if not ordering.description.strip():
            found.append(f"ordering {n}: its description is blank")
        if ordering.anchor_id not in ids:
            found.append(f"{place}: anchor_id {ordering.anchor_id!r} is no text's id")
        if len(ordering.descending_ids) < 2:
            found.append(f"{place}: descending_ids has {len(ordering.descending_ids)}; an ordering is of 2 or more")
        for name in dict.fromkeys(ordering.descending_ids):
            if name not in ids:
                found.append(f"{place}: descending_ids has {name!r}, which is no text's id")
            if name == ordering.anchor_id:
                found.append(f"{place}: descending_ids has the anchor {name!r}")
        found += [f"{place}: descending_ids has {name!r} twice" for name in _repeated(ordering.descending_ids)]
        if not math.isfinite(ordering.min_margin) or ordering.min_margin < 0:
            found.append(f"{place}: min_margin is {ordering.min_margin}; it has to be finite and 0 or more")
    return found


def match_problems(manifest: Manifest, vectors: Mapping[str, Sequence[float]]) -> list[str]:
    """What a manifest expects and vectors by text don't give: texts that are missing, orderings that don't hold."""
    missing = dict.fromkeys(text.text for text in manifest.texts if text.text not in vectors)
    if missing:
        return [f"no vector for {text!r} (SHA-256 {text_key(text)})" for text in missing]
    found = []
    for ordering in manifest.similarity_orderings:
        try:
            cosines = cosines_of(ordering, manifest, vectors)
        except ValueError as error:
            found.append(f"ordering {ordering.description!r}: {error}")
            continue
        for (nearer, high), (farther, low) in pairwise(cosines.items()):
            if not high > low + ordering.min_margin:
                found.append(
                    f"ordering {ordering.description!r}: {nearer!r} has cosine {high:.4f} to {ordering.anchor_id!r} "
                    f"and {farther!r} {low:.4f}; the first has to be above the second by more than "
                    f"{ordering.min_margin}; rewrite the texts"
                )
    return found


def cosines_of(ordering: Ordering, manifest: Manifest, vectors: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The cosine of each text of an ordering to its anchor, by id, in the ordering's order. Raises ValueError."""
    texts = {text.id: text.text for text in manifest.texts}
    anchor = vectors[texts[ordering.anchor_id]]
    return {name: cosine(anchor, vectors[texts[name]]) for name in ordering.descending_ids}


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """The cosine of two vectors in float32. Raises ValueError where one has no direction or isn't finite."""
    import numpy as np

    first, second = np.array(one, np.float32), np.array(other, np.float32)
    norms = np.float32(np.linalg.norm(first)) * np.float32(np.linalg.norm(second))
    if not np.isfinite(norms):
        raise ValueError("a vector that isn't finite")
    if norms == 0:
        raise ValueError("a vector of length zero")
    return float(np.float32(np.dot(first, second)) / norms)


def store_of(model: str, dimension_policy: str, source: str, vectors: Mapping[str, NDArray[np.float32]]) -> Store:
    """A store of vectors by text, of which there is one at least; each number is the shortest decimal of its float32.

    Raises ValueError for vectors of several sizes.
    """
    sizes = sorted({len(vector) for vector in vectors.values()})
    if len(sizes) > 1:
        raise ValueError(f"vectors of {' and of '.join(map(str, sizes))} dimensions")
    entries = (Entry(text_key(text), text, tuple(float(str(x)) for x in vector)) for text, vector in vectors.items())
    ordered = tuple(sorted(entries, key=lambda entry: entry.text_sha256))
    return Store(STORE_SCHEMA, model, sizes[0], dimension_policy, source, ordered)


def canonical(store: Store) -> bytes:
    """A store as it is written: JSON with an indent of two, and LF at the end."""
    return (json.dumps(msgspec.to_builtins(store), indent=2, ensure_ascii=False) + "\n").encode()


def write_store(store: Store, path: Path) -> None:
    """Write a store whole and durably, in place of one that is there. Raises UserError; what was there is left then."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("xb") as file:
            file.write(canonical(store))
            file.flush()
            os.fsync(file.fileno())
        _put(fresh, path)
        sync_path(path.parent)
    except OSError as error:
        raise UserError(f"{path}: can't be written ({error.strerror}); what was there is as it was") from None
    finally:
        fresh.unlink(missing_ok=True)


def _put(fresh: Path, path: Path) -> None:
    for attempt in range(1, REPLACING):
        try:
            fresh.replace(path)
        except PermissionError:
            time.sleep(PAUSE * attempt)
        else:
            return
    fresh.replace(path)


class Frozen:
    """The vectors of a store. path: where it is, for messages.

    Raises UserError where the store isn't of the model or the width that are asked for; None asks for none.
    """

    def __init__(self, store: Store, path: Path, model: str | None = None, width: int | None = None) -> None:
        if model is not None and store.model != model:
            raise UserError(
                f"{path}: its vectors are of {store.model!r}, and {model!r} is set; name that model's store"
            )
        if width is not None and store.vector_size != width:
            raise UserError(f"{path}: its vectors have {store.vector_size} components, and {width} is set")
        self.store, self.path = store, path
        self._entries = {entry.text_sha256: entry for entry in store.entries}

    def __contains__(self, text: str) -> bool:
        return bare(text, self._holds) is not None

    def vector(self, text: str) -> NDArray[np.float32]:
        """The vector of a text that is kept, bare or behind one surface prefix: float32, shape (vector_size,).

        Raises UserError for any other text: nothing is made while a memory runs.
        """
        import numpy as np

        name = bare(text, self._holds)
        if name is None:
            raise UserError(missing_text(text, self.store.model, self.path))
        return np.array(self._entries[text_key(name)].embedding, np.float32)

    def embedder(self, digest: str) -> Offline:
        """These vectors as a system takes them. digest: of the store's file."""
        store = self.store
        about = {"source": store.source, "dimension_policy": store.dimension_policy}
        return Offline("frozen", store.model, digest, store.vector_size, self.vector, normalises=True, about=about)

    def _holds(self, text: str) -> bool:
        entry = self._entries.get(text_key(text))
        return entry is not None and entry.text == text


def missing_text(text: str, model: str, path: Path) -> str:
    """What is said of a text that a store doesn't hold."""
    return (
        f"{path}: no vector of {model!r} for {text!r} (SHA-256 {text_key(text)}); put the text into the manifest and "
        "make the store again with `memtrials embeddings generate`"
    )


def _read(path: Path, of: type[_File], schema: int) -> _File:
    try:
        plain = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid JSON ({error})") from None
    version = plain.get("schema_version") if isinstance(plain, dict) else None
    if version != schema or isinstance(version, bool):
        raise UserError(f"{path}: schema_version is {version!r}, and only {schema} can be read")
    try:
        return msgspec.convert(plain, of)
    except msgspec.ValidationError as error:
        raise UserError(f"{path}: {error}") from None


def _are_single(numbers: Sequence[float]) -> bool:
    import numpy as np

    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.array(numbers, np.float32)).all())


def _repeated(values: Sequence[str]) -> list[str]:
    return [value for value, count in Counter(values).items() if count > 1]
