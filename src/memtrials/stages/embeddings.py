"""embeddings: the texts of a manifest embedded and kept in a store, and a store held against a manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from memtrials.embeddings.frozen import (
    Manifest,
    Store,
    cosines_of,
    match_problems,
    read_manifest,
    read_store,
    store_of,
    store_problems,
    text_key,
    write_store,
)
from memtrials.errors import UserError
from memtrials.llm.money import takes_dimensions
from memtrials.settings import Settings
from memtrials.systems.embedding import BUNDLED, WordLlama

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

API = "open_ai_api"
"""What a store says it is from when an endpoint gave its vectors."""


@dataclass(frozen=True)
class Held:
    """A store that gives what a manifest expects.

    cosines: of the texts of each ordering to its anchor, by id, in the manifest's order. usage: what making it took,
    as a record has it.
    """

    store: Store
    manifest: Manifest
    cosines: tuple[Mapping[str, float], ...]
    usage: Mapping[str, int] = field(default_factory=dict)


def generate(manifest: Path, model: str, out: Path, dimensions: int | None, settings: Settings) -> Held:
    """Embed each text of a manifest once, in one request, and write the store where every ordering holds.

    model: the bundled one, or one at the embedding endpoint. dimensions: asked for; None takes what the model gives.
    Raises UserError, and WorkFailedError when the request fails; a store that was there is left as it was then.
    """
    name = model.strip()
    if not name:
        raise UserError(f"--model is blank; name one, for example {BUNDLED}")
    if dimensions is not None and (name == BUNDLED or not takes_dimensions(name)):
        raise UserError(f"{name} can't be asked for a number of dimensions; leave --dimensions out")
    if out.is_dir() or not out.parent.is_dir():
        raise UserError(f"{out}: not a file in a folder that is there; name another with --out")
    wanted = read_manifest(manifest)
    texts = sorted({text.text for text in wanted.texts}, key=text_key)
    vectors, source, usage = _bundled(texts) if name == BUNDLED else _asked(name, texts, dimensions or 0, settings)
    policy = "provider_default" if dimensions is None else f"requested_dimensions={dimensions}"
    try:
        store = store_of(name, policy, source, vectors)
    except ValueError as error:
        raise UserError(f"{name} gave {error} in one reply; nothing is written") from None
    if found := store_problems(store):
        raise UserError(f"{name}: {found[0]}; nothing is written", found[1:])
    held = Held(store, wanted, _cosines(wanted, store, f"{manifest} isn't met by {name}"), usage)
    write_store(store, out)
    return held


def validate(manifest: Path, store: Path) -> Held:
    """A store held against a manifest; nobody is asked. Raises UserError, with all that is wrong in a file, every text
    without a vector, or every ordering that doesn't hold."""
    wanted, kept = read_manifest(manifest), read_store(store)
    return Held(kept, wanted, _cosines(wanted, kept, f"{manifest} isn't met by {store}"))


def _bundled(texts: Sequence[str]) -> tuple[dict[str, NDArray[np.float32]], str, dict[str, int]]:
    model = WordLlama()
    vectors = {text: model.embed(text, "document") for text in texts}
    return _all(vectors), f"{model.provider} {model.revision}, {model.model}", {}


def _asked(
    name: str, texts: Sequence[str], dimensions: int, settings: Settings
) -> tuple[dict[str, NDArray[np.float32]], str, dict[str, int]]:
    import numpy as np

    from memtrials.systems.endpoint import EndpointEmbedder

    model = EndpointEmbedder(name, dimensions, "", settings)
    try:
        made = model.request(texts)
    finally:
        model.close()
    vectors = {
        text: None if one.vector is None else np.frombuffer(one.vector, np.float32)
        for text, one in zip(texts, made, strict=True)
    }
    usage = {"embedding_requests": model.requests}
    tokens = [one.tokens for one in made if one.tokens is not None]
    if len(tokens) == len(made):
        usage["embedding_tokens"] = round(sum(tokens))
    return _all(vectors), API, usage


def _all(vectors: Mapping[str, NDArray[np.float32] | None]) -> dict[str, NDArray[np.float32]]:
    """Vectors of which none is missing. Raises UserError."""
    found = {text: vector for text, vector in vectors.items() if vector is not None}
    if missing := [text for text in vectors if text not in found]:
        raise UserError(f"the model's vector of {missing[0]!r} has no direction; rewrite that text, nothing is written")
    return found


def _cosines(manifest: Manifest, store: Store, summary: str) -> tuple[dict[str, float], ...]:
    vectors = {entry.text: entry.embedding for entry in store.entries}
    if found := match_problems(manifest, vectors):
        raise UserError(f"{summary}: {found[0]}", found[1:])
    return tuple(cosines_of(ordering, manifest, vectors) for ordering in manifest.similarity_orderings)
