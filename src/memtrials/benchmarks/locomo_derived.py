"""What LoCoMo's annotation concluded from each session: a summary, and statements about each speaker.

A statement names the turns it is from; a reference to a turn that isn't there, or an entry of another shape, is counted
and left out. Shapes and ids: those of `ebigunso/character-memory-evals`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from memtrials.benchmarks.enrichment import Derived, Graph
from memtrials.records import clean_text

SALIENCE = 0.6


class Concluded(NamedTuple):
    """What a sample's annotation concluded. references: to turns, unresolved ones among them; dropped: entries of
    another shape."""

    graph: Graph
    summaries: int
    observations: int
    references: int
    unresolved: int
    dropped: int


def concluded(sample: Mapping[str, Any], sessions: Sequence[int], turns: Mapping[str, str]) -> Concluded:
    """Summaries as reflections and generated observations as claims, each from its session and the turns it names.

    sessions: the numbers of the conversation's; turns: those there are, by `dia_id`.
    """
    memories: list[Derived] = []
    summaries = observations = references = unresolved = dropped = 0
    for number in sessions:
        session = f"session_{number}"
        summary = _annotated(sample.get("session_summary"), number, "summary")
        if isinstance(summary, str) and summary.strip():
            summaries += 1
            memories.append(_memory("reflection", f"{session}:derived:session_summary", summary, session))
        entries, malformed = _statements(_annotated(sample.get("observation"), number, "observation"))
        dropped += malformed
        for n, (statement, evidence) in enumerate(entries, 1):
            named = [name for text in evidence for name in _evidence(text, turns)]
            there = tuple(dict.fromkeys(name for name in named if name in turns))
            observations += 1
            references += len(named)
            unresolved += sum(name not in turns for name in named)
            external_id = f"{session}:derived:generated_observation:{n}"
            memories.append(_memory("claim", external_id, statement, session, there))
    return Concluded(Graph(derived=tuple(memories)), summaries, observations, references, unresolved, dropped)


def _memory(
    kind: Literal["reflection", "claim"], name: str, text: str, session: str, turns: tuple[str, ...] = ()
) -> Derived:
    return Derived(
        external_id=name,
        derived_type=kind,
        text=clean_text(text),
        episodes=(session,),
        observations=turns,
        salience=SALIENCE,
    )


def _annotated(annotation: Any, number: int, kind: str) -> Any:
    """What an annotation has for a session, under the first of the names that are in use; None for nothing."""
    names = (f"session_{number}", f"session_{number}_{kind}", str(number))
    found = annotation if isinstance(annotation, dict) else {}
    return next((found[name] for name in names if name in found), None)


def _statements(value: Any) -> tuple[list[tuple[str, list[str]]], int]:
    """Statements with their evidence, in order, and how many entries have another shape. They come by speaker, in a
    list or alone; each a text, or a text with one or several references."""
    lists = list(value.values()) if isinstance(value, dict) else [] if value is None else [value]
    if not isinstance(value, dict):
        lists = [[entry] if isinstance(entry, str) else entry for entry in lists]
    entries = [entry for some in lists if isinstance(some, list) for entry in some]
    read = [found for entry in entries if (found := _statement(entry)) is not None]
    return read, len(entries) - len(read) + sum(not isinstance(some, list) for some in lists)


def _statement(entry: Any) -> tuple[str, list[str]] | None:
    text, evidence = entry if isinstance(entry, list) and len(entry) == 2 else (entry, [])
    named = [evidence] if isinstance(evidence, str) else evidence
    if not (isinstance(text, str) and text.strip() and isinstance(named, list)):
        return None
    return (text, named) if all(isinstance(name, str) for name in named) else None


def _evidence(text: str, turns: Mapping[str, str]) -> list[str]:
    """The turns that a reference names: itself, or the parts between commas."""
    return [text] if text in turns else [part for piece in text.split(",") if (part := piece.strip())]


def census(concluded: Sequence[Concluded]) -> dict[str, int]:
    """What there is in all samples together."""
    return {
        "session_summaries": sum(found.summaries for found in concluded),
        "generated_observations": sum(found.observations for found in concluded),
        "evidence_references": sum(found.references for found in concluded),
        "unresolved_evidence_references": sum(found.unresolved for found in concluded),
        "dropped_observation_entries": sum(found.dropped for found in concluded),
    }
