"""A ledger as data frames, one for each kind of record, to be joined by ids.

Frames are Polars': its wheel brings Parquet and everything else, DuckDB and plotting libraries take its frames as they
are, and `.to_pandas()` makes pandas' of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from memtrials.errors import not_installed
from memtrials.index import LedgerIndex
from memtrials.judging.probing import probed
from memtrials.ledger import Ledger
from memtrials.records import (
    AnswerBody,
    Call,
    FailureBody,
    Header,
    RetrievalBody,
    VerdictBody,
    canonical,
)

if TYPE_CHECKING:
    from polars import DataFrame

Rows = Iterator[dict[str, Any]]


class Frames(NamedTuple):
    """The records of a ledger that count, in file order; tasks: one row for each question. docs/ledger.md lists the
    columns."""

    tasks: DataFrame
    retrievals: DataFrame
    answers: DataFrame
    verdicts: DataFrame
    failures: DataFrame
    configs: DataFrame


PLACE = {"benchmark": "String", "task": "String", "query": "String", "type": "String"}
CALL = {"model_returned": "String", "seconds": "Float64", "prompt_tokens": "Int64", "completion_tokens": "Int64"}

COLUMNS: dict[str, dict[str, str]] = {
    "tasks": {
        **PLACE,
        "question": "String",
        "date": "String",
        "unit": "String",
        "cluster": "String",
        "answers": "List",
        "evidence": "List",
        "abstention": "Boolean",
        "sessions": "Int64",
        "turns": "Int64",
        "data_sha256": "String",
    },
    "retrievals": {
        "id": "String",
        **PLACE,
        "system": "String",
        "fetch": "String",
        "state": "String",
        "state_repeat": "Int64",
        "repeat": "Int64",
        "at": "String",
        "context": "String",
        "items": "Int64",
        "turn_ids": "List",
        "seconds": "Float64",
        "charged_seconds": "Float64",
    },
    "answers": {
        "id": "String",
        "retrieval": "String",
        **PLACE,
        "system": "String",
        "fetch": "String",
        "reader": "String",
        "repeat": "Int64",
        "at": "String",
        "text": "String",
        "cut": "Boolean",
        **CALL,
    },
    "verdicts": {
        "id": "String",
        "answer": "String",
        "retrieval": "String",
        **PLACE,
        "system": "String",
        "fetch": "String",
        "reader": "String",
        "judge": "String",
        "metric": "String",
        "repeat": "Int64",
        "at": "String",
        "score": "Float64",
        "reason": "String",
        "flagged": "Boolean",
        "probe": "String",
        **CALL,
    },
    "failures": {
        "id": "String",
        "stage": "String",
        "class": "String",
        "cause": "String",
        **PLACE,
        "system": "String",
        "fetch": "String",
        "reader": "String",
        "judge": "String",
        "metric": "String",
        "repeat": "Int64",
        "at": "String",
        "message": "String",
        "attempts": "Int64",
        "made_up_for": "Boolean",
    },
    "configs": {"id": "String", "role": "String", "name": "String", "settings": "String", "provenance": "String"},
}
"""Polars' types by column, by frame. List: of texts."""


def load(path: str | Path) -> Frames:
    """The frames of the ledger in that file. Raises UserError where it can't be read, and without the extra
    `tables`."""
    try:
        import polars
    except ImportError:
        raise not_installed("polars, which holds data frames,", "tables") from None
    types = {
        name: polars.List(polars.String) if name == "List" else getattr(polars, name)
        for columns in COLUMNS.values()
        for name in columns.values()
    }
    with Ledger.open(Path(path)) as ledger:
        index = LedgerIndex(ledger)
        return Frames(
            **{
                frame: polars.DataFrame(
                    list(ROWS[frame](index)), {name: types[type_] for name, type_ in columns.items()}
                )
                for frame, columns in COLUMNS.items()
            }
        )


def _tasks(index: LedgerIndex) -> Rows:
    for benchmark, task in index.tasks:
        body = index.task(benchmark, task)
        for query in body.queries:
            gold = body.gold_of(query.id)
            yield {
                "benchmark": benchmark,
                "task": task,
                "query": query.id,
                "type": query.type,
                "question": query.text,
                "date": query.date,
                "unit": query.unit,
                "cluster": query.cluster,
                "answers": list(gold.answers),
                "evidence": list(gold.evidence),
                "abstention": gold.abstention,
                "sessions": len(body.sessions),
                "turns": body.turns,
                "data_sha256": body.release.sha256,
            }


def _retrievals(index: LedgerIndex) -> Rows:
    for header in index.of("retrieval"):
        body, state = index.ledger.body(header, RetrievalBody), index.parent(header)
        items = index.shown(body)
        known = items is not None and all(item.turns is not None for item in items)
        yield {
            **_of(header, "retrievals"),
            "state": state.id,
            "state_repeat": state.repeat,
            "context": body.context,
            "items": None if items is None else len(items),
            "turn_ids": [turn for item in items or () for turn in item.turns or ()] if known else None,
            "seconds": body.effort.seconds if body.effort else None,
            "charged_seconds": body.effort.charged_seconds if body.effort else None,
        }


def _answers(index: LedgerIndex) -> Rows:
    for header in index.of("answer"):
        body = index.ledger.body(header, AnswerBody)
        made_from = {"retrieval": index.parent(header).id, "text": body.text, "cut": body.cut}
        yield {**_of(header, "answers"), **made_from, **_call(body.call)}


def _verdicts(index: LedgerIndex) -> Rows:
    for header in index.of("verdict"):
        body, parent = index.ledger.body(header, VerdictBody), index.parent(header)
        about = probed(header)
        chain = {parent.kind: parent.id} | ({"retrieval": index.parent(parent).id} if parent.kind == "answer" else {})
        yield {
            **_of(header, "verdicts"),
            "metric": about[0] if about else header.metric,
            "answer": chain.get("answer"),
            "retrieval": chain.get("retrieval"),
            "score": body.score,
            "reason": body.reason,
            "flagged": body.flagged,
            "probe": about[1] if about else None,
            **_call(body.call),
        }


def _failures(index: LedgerIndex) -> Rows:
    for header in index.of("failure"):
        body = index.ledger.body(header, FailureBody)
        yield {
            **_of(header, "failures"),
            "class": header.class_,
            "cause": body.cause,
            "message": body.message,
            "attempts": body.attempts,
            "made_up_for": (header.key or "", header.repeat) in index.done,
        }


def _configs(index: LedgerIndex) -> Rows:
    for name in index.configs:
        body = index.config(name)
        texts = {"settings": canonical(body.settings).decode(), "provenance": canonical(body.provenance).decode()}
        yield {"id": name, "role": body.role, "name": body.name, **texts}


ROWS: dict[str, Callable[[LedgerIndex], Rows]] = {
    "tasks": _tasks,
    "retrievals": _retrievals,
    "answers": _answers,
    "verdicts": _verdicts,
    "failures": _failures,
    "configs": _configs,
}


def _of(header: Header, frame: str) -> dict[str, Any]:
    """The header's own fields among a frame's columns."""
    return {name: getattr(header, name) for name in COLUMNS[frame] if hasattr(header, name)}


def _call(call: Call | None) -> dict[str, Any]:
    return {name: getattr(call, name, None) for name in CALL}
