"""Vectors that are made once and kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from memtrials.cli.options import COUNT, FILE, emit, json_option, no_ledger, settings_now
from memtrials.cli.root import cli

if TYPE_CHECKING:
    from memtrials.stages.embeddings import Held

manifest_option = click.option(
    "--manifest", type=FILE, required=True, help="The texts, and how near they have to be to each other."
)


@cli.group()
def embeddings() -> None:
    """Vectors that are made once and kept in a store: making one, and checking one."""


@embeddings.command("generate")
@manifest_option
@click.option("--model", required=True, help="One at the embedding endpoint, or wordllama-256, which is bundled.")
@click.option(
    "--out", type=FILE, required=True, callback=no_ledger, help="The store; it takes the place of one that is there."
)
@click.option("--dimensions", type=COUNT, help="Ask the model for so many [default: what it gives].")
@json_option
def generate_embeddings(manifest: Path, model: str, out: Path, dimensions: int | None, as_json: bool) -> int:
    """Embed a manifest's texts in one request, and keep the vectors where all its orderings hold.

    A request that fails isn't sent again: run the command again when you know what became of it.
    """
    from memtrials.errors import WorkFailedError
    from memtrials.progress import say
    from memtrials.stages import embeddings as stage

    try:
        held = stage.generate(manifest, model, out, dimensions, settings_now())
    except WorkFailedError as error:
        say(f"memtrials: {error}; nothing is written")
        return 2 if error.class_ == "fatal" else 1
    return _show(held, out, as_json)


@embeddings.command("validate")
@manifest_option
@click.option("--store", type=FILE, required=True, help="What holds the vectors.")
@json_option
def validate_embeddings(manifest: Path, store: Path, as_json: bool) -> int:
    """Check a store: its form, that it holds a manifest's texts, and that all orderings hold. Asks nobody."""
    from memtrials.stages import embeddings as stage

    return _show(stage.validate(manifest, store), store, as_json)


def _show(held: Held, path: Path, as_json: bool) -> int:
    """What a store holds and says."""
    from memtrials.llm.money import embedding_cost

    store, manifest = held.store, held.manifest
    texts = len({text.text for text in manifest.texts})
    orderings = list(zip(manifest.similarity_orderings, held.cosines, strict=True))
    if as_json:
        emit(
            {
                "store": str(path),
                "model": store.model,
                "vector_size": store.vector_size,
                "entries": len(store.entries),
                "texts": texts,
                "orderings": [
                    {"description": o.description, "min_margin": o.min_margin, "cosines": c} for o, c in orderings
                ],
                "usage": held.usage,
                "cost_usd": embedding_cost(held.usage, store.model),
            }
        )
        return 0
    print(f"{path}: {len(store.entries)} vectors of {store.model} with {store.vector_size} dimensions, {texts} texts")
    for ordering, cosines in orderings:
        print(f"holds: {ordering.description} ({', '.join(f'{value:.4f}' for value in cosines.values())})")
    return 0
