"""Ledgers of nothing but verdicts that a test wants, with all that they are made from."""

from collections.abc import Mapping
from pathlib import Path

from memtrials.records import (
    AnswerBody,
    ConfigBody,
    Gold,
    Query,
    Record,
    Release,
    Role,
    TaskBody,
    TimelineSource,
    VerdictBody,
    text_sha256,
)
from support.records import record, write_ledger

BENCHMARK = "locomo@10"
CONTROLS = ("in-context", "none")


def config(role: Role, name: str) -> Record:
    """A configuration whose id is its name. Controls are those that are named so."""
    provenance = {"control": True} if name in CONTROLS else {}
    settings = {"system": name} if role == "system" else {"model": name}
    body = ConfigBody(role=role, name=name, settings=settings, provenance=provenance)
    return record(f"config {name}", "config", key=name, body=body, **{role: name})


def task(name: str, questions: int) -> Record:
    """A conversation with so many questions of category 4."""
    ids = [str(n) for n in range(questions)]
    body = TaskBody(
        release=Release(sha256="00", files=(), known=True, attribution=""),
        data="data",
        source=TimelineSource(file="data.json", sha256="00", start=0, end=2),
        sessions=(),
        turns=0,
        queries=tuple(
            Query(id=n, text=f"Question {name}/{n}?", unit=n, cluster=name, type="4-single-hop") for n in ids
        ),
        gold=tuple(Gold(query=n, answers=(f"gold {n}",), details={"category": "4"}) for n in ids),
    )
    return record(f"task {name}", "task", key=f"task {name}", benchmark=BENCHMARK, task=name, body=body)


Scores = Mapping[tuple[str, str], Mapping[str, float]]
"""By system and judge: by `task/query`, the score."""


def records_of(questions: Mapping[str, int], scores: Scores) -> list[Record]:
    """Tasks with so many questions, and verdicts on the first answer of the reader `model-r` to each trial."""
    systems, judges = (list(dict.fromkeys(names)) for names in zip(*scores, strict=True))
    made = [task(name, count) for name, count in questions.items()]
    made += [config("system", name) for name in systems] + [config("judge", name) for name in judges]
    made += [config("reader", "model-r"), config("fetch", "k10")]
    there = {one.header.id for one in made}

    def add(kind: str, about: str, parent: str, **fields: object) -> str:
        name = f"{kind} {about}"
        if name not in there:
            made.append(record(name, kind, [parent], key=name, benchmark=BENCHMARK, repeat=1, **fields))  # type: ignore[arg-type]
            there.add(name)
        return name

    for (system, judge), by_place in scores.items():
        for place, score in by_place.items():
            name, _, query = place.partition("/")
            at = {"task": name, "system": system}
            asked = {**at, "query": query, "fetch": "k10"}
            state = add("ingest", f"{system} {name}", f"task {name}", **at)
            trial = add("retrieval", f"{system} {place}", state, **asked, content=text_sha256("In Oslo."))
            said = add(
                "answer",
                f"{system} {place}",
                trial,
                **asked,
                reader="model-r",
                body=AnswerBody(text=f"answer to {place}"),
            )
            decided = {"judge": judge, "metric": "accuracy", "body": VerdictBody(score=score, reason="as told")}
            add("verdict", f"{system} {place} {judge}", said, **asked, reader="model-r", **decided)
    return made


def ledger_of(path: Path, questions: Mapping[str, int], scores: Scores) -> Path:
    """A ledger of `records_of`."""
    return write_ledger(path, records_of(questions, scores))
