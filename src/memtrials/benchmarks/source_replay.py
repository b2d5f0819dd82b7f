"""Graphs made of a conversation alone, without a model: every turn once more, word for word, in its session's thread.

An entity for each speaker, a thread for each session, and for each turn that isn't blank a memory with its exact text,
about its speaker and part of its session's thread. What is read can't hold gold, and the same history gives the same
bytes. Identities and rows: the workflow `deterministic-exact-source-replay` of `ebigunso/character-memory-evals`; but a
session is called by its number, for in LongMemEval its id tells whether it holds the answer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from memtrials.benchmarks.enrichment import (
    Cutoff,
    Derived,
    End,
    Entity,
    Graph,
    Link,
    Sitting,
    Snapshot,
    Thread,
)
from memtrials.benchmarks.life import Relation


def source_graph(namespace: str, item: str, history: Sequence[tuple[Sitting, str]]) -> Graph:
    """The graph of a history: sessions in order, each with its time as RFC 3339."""
    speakers = sorted({turn.speaker for sitting, _ in history for turn in sitting.turns})
    entities = tuple(
        Entity(
            external_id=_token("entity", item, name),
            entity_type="person",
            name=name,
            canonical_key=f"speaker:{hashlib.sha256(name.encode()).hexdigest()}",
        )
        for name in speakers
    )
    about = {entity.name: entity.external_id for entity in entities}
    threads, memories, links = [], [], []
    for number, (sitting, time) in enumerate(history, 1):
        thread = _token("thread", item, sitting.name)
        threads.append(
            Thread(
                external_id=thread,
                title=f"Session {number}",
                summary=f"Source session {number}",
                last_touched_at=time,
                canonical_key=f"session:{number}",
            )
        )
        for turn in sitting.turns:
            if not turn.text.strip():
                continue
            memory, speaker = _token("memory", item, turn.name), about[turn.speaker]
            memories.append(
                Derived(
                    external_id=memory,
                    derived_type="reflection",
                    text=turn.text,
                    episodes=(sitting.name,),
                    observations=(turn.name,),
                    threads=(thread,),
                    entities=(speaker,),
                )
            )
            ends: tuple[tuple[Relation, End], ...] = (
                ("part_of_thread", End("memory_thread", thread)),
                ("about", End("entity", speaker)),
            )
            links += [
                Link(
                    external_id=_token("link", memory, relation, end.external_id),
                    source=End("derived_memory", memory),
                    relation=relation,
                    target=end,
                )
                for relation, end in ends
            ]
    return Graph(
        namespace=namespace, entities=entities, threads=tuple(threads), derived=tuple(memories), links=tuple(links)
    )


def _token(kind: str, *parts: str) -> str:
    """An id that follows from what it names: 20 hex digits of the SHA-256 of kind and parts, joined by NUL."""
    return f"{kind}:{hashlib.sha256(chr(0).join((kind, *parts)).encode()).hexdigest()[:20]}"


def snapshot_line(namespace: str, item: str, cutoff: Cutoff, graph: Graph) -> bytes:
    """A snapshot's row: ASCII, keys sorted, compact, with its line end."""
    return line_of(msgspec.to_builtins(Snapshot(f"{namespace}@{cutoff.type}", namespace, item, cutoff, graph)))


def source_line(item: str, history: Sequence[Sitting]) -> bytes:
    """All that was read for an item, as bytes to hash."""
    return line_of([item, [[sitting.name, sitting.time, [list(t) for t in sitting.turns]] for sitting in history]])


def line_of(value: Any) -> bytes:
    """A value as one line."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii") + b"\n"
