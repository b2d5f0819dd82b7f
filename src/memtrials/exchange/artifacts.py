"""Released results of other evaluations: what each file says of each question.

A format is told by its structure, never by a file's name. Two families of released files are known, each with judged
answers and with retrieved memories: a list whose records carry their question's id, and an object whose records stand
under a user's name. The third is MemoryBear's array of trials (see `trials_array`).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from memtrials.errors import UserError
from memtrials.exchange import trials_array
from memtrials.exchange.results import Family, Fields, Place, RecordError, Result, context_of, shown

MEASURED = ("context_tokens", "latency_ms", "search_duration_ms")
"""What files say of a retrieval; everything else that they measured is about the answer."""


@dataclass(frozen=True)
class Artifact:
    """One file of results, or judged answers with the memories they were given. hashes: SHA-256 of the contents,
    uncompressed, by role of the file. judged: whether it holds answers."""

    path: Path
    family: Family
    results: Sequence[Result]
    hashes: Mapping[str, str]
    judged: bool


# --- files ------------------------------------------------------------------------------------------------------


def read(path: Path) -> Artifact:
    """A released file, plain or gzip. Raises UserError that names record and field."""
    data = _bytes(path)
    content = _parse(path, data)
    kind, family, rows = _recognise(path, content)
    try:
        results = tuple(PARSERS[kind](rows, family))
    except RecordError as error:
        raise UserError(f"{path}, {error}") from None
    _refuse_repeats(path, results)
    role = "memories_sha256" if kind in MEMORIES else "file_sha256"
    return Artifact(path, family, results, {role: hashlib.sha256(data).hexdigest()}, kind not in MEMORIES)


def together(judged: Artifact, memories: Artifact) -> Artifact:
    """Judged answers with the memories they were given. Raises UserError when they aren't about the same questions."""
    contexts = {result.name: result for result in memories.results}
    named = {result.name: result for result in judged.results}
    strangers = [name for name in contexts if name not in named or contexts[name].question != named[name].question]
    if strangers:
        some = ", ".join(strangers[:3]) + (" …" if len(strangers) > 3 else "")
        raise UserError(f"{memories.path}: {len(strangers)} records ({some}) belong to none of {judged.path}")
    results = [
        replace(result, context=found.context, retrieved={**found.retrieved, **result.retrieved})
        if (found := contexts.get(result.name))
        else result
        for result in judged.results
    ]
    return replace(judged, results=results, hashes={**judged.hashes, **memories.hashes})


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror or error})") from None
    except (EOFError, zlib.error):
        raise UserError(f"{path}: the compressed file is cut off or damaged; get it again") from None


def _parse(path: Path, data: bytes) -> Any:
    try:
        return json.loads(data.removeprefix(b"\xef\xbb\xbf").decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON ({error}); is the file cut off?") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


Kind = Literal["trials", "listed", "listed memories", "by user", "by user memories"]
MEMORIES: tuple[Kind, ...] = ("listed memories", "by user memories")
Rows = Sequence[tuple[str, Any]]
"""Records with their names for messages."""


def _recognise(path: Path, content: Any) -> tuple[Kind, Family, Rows]:
    """What a file is, by its first record. Raises UserError."""
    if isinstance(content, dict) and ("overall" in content or "category_scores" in content):
        raise UserError(f"{path}: aggregates, not results; import the file of judged answers, metrics recomputes them")
    rows: list[tuple[str, Any]] = []
    if isinstance(content, list):
        rows = [(f"record {number}", row) for number, row in enumerate(content, 1)]
    elif isinstance(content, dict):
        for user, value in content.items():
            if isinstance(value, list):
                rows += [(f"{user}, record {number}", row) for number, row in enumerate(value, 1)]
            else:
                rows.append((user, value))
    first = rows[0][1] if rows else None
    if isinstance(first, dict):
        listed = isinstance(content, list)
        if listed and "trial_id" in first:
            return "trials", "longmemeval", rows
        found: Kind | None = None
        if listed:
            found = "listed" if "llm_judge" in first else "listed memories" if "retrieved_memories" in first else None
        else:
            found = "by user" if "llm_judgments" in first else "by user memories" if "search_context" in first else None
        if found:
            return found, "locomo" if isinstance(first.get("category"), int) else "longmemeval", rows
    raise UserError(f"{path}: no known form of results; docs/exchange.md lists those that can be imported")


def _refuse_repeats(path: Path, results: Sequence[Result]) -> None:
    seen: dict[tuple[Place, str | None, str | None, int], int] = {}
    for number, result in enumerate(results, 1):
        text = result.question if result.place == Place(result.place.family) else None
        first = seen.setdefault((result.place, text, result.state, result.trial), number)
        if first != number:
            raise UserError(f"{path}, record {number} ({result.name}): the same question as record {first}")


# --- records that carry their question's id ---------------------------------------------------------------------

_LOCOMO_ID = re.compile(r"(.+)_q0*([1-9][0-9]*)")


def _by_id(row: Fields, family: Family) -> tuple[Place, str]:
    """The question of a record, and its type."""
    own = row.text("question_id")
    if family == "longmemeval":
        return Place(family, id=own), row.text("question_type")
    match = _LOCOMO_ID.fullmatch(own)
    if match is None or match[1] != row.text("conv_id"):
        raise row.error("question_id", f"is {shown(own)}, conv_id and ordinal (conv-26_q001) are expected")
    return Place(family, sample=match[1], position=int(match[2]) - 1), row.category()


ASKED = ("question_id", "conv_id", "question", "question_type", "question_date", "category", "golden_answer")


def _asked(rows: Rows, family: Family) -> Iterator[tuple[Fields, Result]]:
    """Each record with what it says of its question; errors name the question from then on."""
    for number, value in rows:
        row = Fields(number, value)
        place, type_ = _by_id(row, family)
        own = row.text("question_id")
        row.name = f"{number} ({own})"
        yield row, Result(own, place, row.text("question"), type_, row.gold(), row.optional("question_date"))


def _listed(rows: Rows, family: Family) -> Iterator[Result]:
    """Judged answers of MemoryBear and Mem0."""
    for row, asked in _asked(rows, family):
        label = row.inner("llm_judge").flag("correct")
        measured = row.inner("metrics").value
        rest = row.without(*ASKED, "hypothesis", "llm_judge", "metrics", "latency_ms", "adversarial_answer")
        yield replace(
            asked,
            answer=row.text("hypothesis"),
            verdicts=() if label is None else (label,),
            retrieved={**_about_retrieval(measured), **_about_retrieval(row.value)},
            said={**_about_answer(measured), **rest},
            judged=row.inner("llm_judge").value,
        )


def _listed_memories(rows: Rows, family: Family) -> Iterator[Result]:
    """Memories of MemoryBear and Mem0: the context as text, or the service's items."""
    for row, asked in _asked(rows, family):
        is_text = isinstance(row.value.get("retrieved_memories"), str)
        yield replace(
            asked,
            context=row.text("retrieved_memories") if is_text else context_of(row.inner("retrieved_memories")),
            retrieved=row.without(*ASKED, *(("retrieved_memories",) if is_text else ())),
        )


# --- records under a user's name --------------------------------------------------------------------------------


def _place_of_user(name: str, family: Family) -> Place:
    """`…_user_9, record 3` is the third question of the tenth conversation; LongMemEval's users say nothing."""
    if family == "longmemeval":
        return Place(family)
    user, _, record = name.rpartition(", record ")
    match = re.search(r"_(\d+)$", user)
    if match is None:
        raise RecordError(f"{name}: the user's name doesn't end with the number of a conversation")
    return Place(family, sample=int(match[1]), position=int(record) - 1)


def _by_user(rows: Rows, family: Family) -> Iterator[Result]:
    """Judged answers of MemOS."""
    for name, value in rows:
        row = Fields(name, value)
        measured = row.inner("nlp_metrics").value
        runs = row.inner("llm_judgments")
        labels = [runs.flag(run) for run in runs.value]
        yield Result(
            name,
            _place_of_user(name, family),
            row.text("question"),
            row.category() if family == "locomo" else row.text("category"),
            row.gold(),
            row.optional("question_date"),
            answer=row.text("answer"),
            verdicts=tuple(label for label in labels if label is not None),
            retrieved={**_about_retrieval(measured), **_about_retrieval(row.value)},
            said={
                **_about_answer(measured),
                **row.without(*ASKED, *MEASURED, "answer", "nlp_metrics", "llm_judgments"),
            },
            judged=runs.value,
        )


def _by_user_memories(rows: Rows, family: Family) -> Iterator[Result]:
    """Memories of MemOS; LongMemEval's users have a list of one."""
    for name, value in rows:
        row = Fields(name, value)
        yield Result(
            name.removesuffix(", record 1") if family == "longmemeval" else name,
            _place_of_user(name, family),
            row.text("question"),
            row.category() if family == "locomo" else row.text("category"),
            row.gold(),
            row.optional("date"),
            context=row.text("search_context"),
            retrieved=row.without(*ASKED, "date", "search_context"),
        )


def _about_retrieval(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in MEASURED if name in values}


def _about_answer(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in MEASURED}


PARSERS = {
    "trials": trials_array.results,
    "listed": _listed,
    "listed memories": _listed_memories,
    "by user": _by_user,
    "by user memories": _by_user_memories,
}
