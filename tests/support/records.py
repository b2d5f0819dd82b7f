"""Small records with ids a reader can follow, and ledger files written without the code under test."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from memtrials.records import (
    AnswerBody,
    BatchBody,
    Body,
    ConfigBody,
    FailureBody,
    Header,
    IngestBody,
    Kind,
    Query,
    Record,
    Release,
    RetrievalBody,
    StepBody,
    TaskBody,
    TimelineSource,
    VerdictBody,
    VoidBody,
    encode,
)

AT = "2026-11-30T12:00:00.000Z"

SAMPLE_BODIES: dict[Kind, Body] = {
    "config": ConfigBody(role="reader", name="offline", settings={}),
    "task": TaskBody(
        release=Release(sha256="00", files=(), known=True, attribution=""),
        data="data",
        source=TimelineSource(file="data.jsonl", sha256="00", start=0, end=2),
        sessions=("d1", "d2"),
        turns=4,
        queries=(Query(id="q", text="Where?", unit="q", cluster="q"),),
        gold=(),
    ),
    "step": StepBody(namespace="n", session=1, state="sent"),
    "ingest": IngestBody(namespace="n", system_version="1", capabilities=(), sessions=2, turns=4),
    "retrieval": RetrievalBody(question="Where?", context="In Oslo."),
    "answer": AnswerBody(text="Oslo"),
    "verdict": VerdictBody(score=1.0, reason="same city"),
    "failure": FailureBody(cause="reader", message="empty reply", attempts=3),
    "void": VoidBody(reason="wrong key", kinds={}, right=0, wrong=0),
    "batch": BatchBody(state="open", work=()),
}


def record(
    record_id: str, kind: Kind = "answer", parents: Iterable[str] = (), *, body: Body | None = None, **header: Any
) -> Record:
    """A record of that kind with a body of that kind."""
    return Record(Header(id=record_id, kind=kind, parents=tuple(parents), at=AT, **header), body or SAMPLE_BODIES[kind])


def answer(record_id: str, text: str = "Oslo") -> Record:
    """An answer of that text."""
    return record(record_id, "answer", body=AnswerBody(text=text))


def file_of(lines: Sequence[bytes]) -> bytes:
    """A ledger in canonical form."""
    return b"[\n" + b",\n".join(lines) + b"\n]\n"


def write_ledger(path: Path, records: Sequence[Record]) -> Path:
    """A ledger file of these records."""
    path.write_bytes(file_of([encode(record) for record in records]))
    return path
