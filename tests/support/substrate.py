"""A life in the substrate: an embedding of words that needs no model, and drafts made short."""

import sqlite3
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memtrials.systems.substrate.memory import Substrate
from memtrials.systems.substrate.objects import Correction, Derived, Entity, Forgetting, Ref, Target, Thread

SPACE = "ada's life"
TIME = "2025-01-03T09:00:00Z"
RAW = ("continuity://demo/event-001",)
DIMENSIONS = 256


class Words:
    """A text is the number of times each of its words occurs, at a place that the word's checksum gives."""

    def __init__(self) -> None:
        self.embedded: list[str] = []

    def vectors(self, texts: Sequence[str], role: str) -> list[bytes | None]:
        self.embedded += texts
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> bytes | None:
        numbers = [0.0] * DIMENSIONS
        for word in text.lower().replace(".", " ").replace(":", " ").replace("?", " ").split():
            numbers[zlib.crc32(word.encode()) % DIMENSIONS] += 1
        return struct.pack(f"{DIMENSIONS}f", *numbers) if any(numbers) else None


def dump(path: Path) -> list[str]:
    """Everything that a namespace's file holds, read by another connection."""
    connection = sqlite3.connect(path)
    try:
        return list(connection.iterdump())
    finally:
        connection.close()


def remember(
    memory: Substrate,
    name: str,
    text: str,
    entities: Sequence[str] = (),
    thread: str | None = None,
    salience: float = 0.5,
    **derived: Any,
) -> None:
    """An episode, its observation and what was concluded, as a script's `remember` has them."""
    plan = memory.prepare_remember(
        SPACE, text, name, f"{name}:observation", TIME, TIME, RAW, f"continuity:{name}", salience=salience
    )
    memory.commit(plan)
    store = memory.store(SPACE)
    new = (
        [] if thread is None or store.object(Ref("memory_thread", thread)) else [Thread(external_id=thread, title=text)]
    )
    memory.ingest_enrichment(
        SPACE,
        [
            *new,
            Derived(
                external_id=f"{name}:derived",
                derived_type="reflection",
                text=text,
                episodes=(name,),
                observations=(f"{name}:observation",),
                entities=tuple(entities),
                threads=(thread,) if thread else (),
                salience=salience,
                **derived,
            ),
        ],
    )


def meet(memory: Substrate, *names: str) -> None:
    memory.ingest_enrichment(
        SPACE, [Entity(external_id=name, entity_type="person", name=name.title(), canonical_key=name) for name in names]
    )


def corrected(target: str, replacement: str, text: str) -> Correction:
    """A correction of an episode, which names where it was taken from."""
    return Correction(
        (Target("episode", target, raw_refs=RAW, source_refs=(target,)),),
        Derived(external_id=replacement, derived_type="reflection", text=text, salience=1.0),
    )


def forgotten(*refs: Ref, dependents: bool = False) -> Forgetting:
    return Forgetting(refs, dependents, dependents)
