"""view: a ledger folded into self-contained trials, for people and exports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from memtrials.index import LedgerIndex, Pair
from memtrials.records import AnswerBody, Header, IngestBody, Item, RetrievalBody, VerdictBody
from memtrials.selection import Chosen


def trials(index: LedgerIndex, chosen: Chosen, reader: str | None) -> Iterator[dict[str, Any]]:
    """Trials in file order, one object for each answer; a retrieval that nobody answered is shown without one."""
    readers = index.readers_shown(reader)
    for retrieval in index.of("retrieval"):
        if not chosen.holds(retrieval):
            continue
        mine = readers.get(Pair(retrieval.benchmark or "", retrieval.system or ""), set())
        children = index.children.get(retrieval.id, [])
        answers = [c for c in children if c.kind == "answer" and c.reader in mine]
        if not answers:
            yield trial(index, retrieval, None)
        for answer in answers:
            yield trial(index, retrieval, answer)


def trial(index: LedgerIndex, retrieval: Header, answer: Header | None) -> dict[str, Any]:
    """One trial with everything it was made from and every verdict on it."""
    task = index.task(retrieval.benchmark or "", retrieval.task or "")
    query = task.query(retrieval.query or "")
    gold = task.gold_of(query.id)
    body = index.ledger.body(retrieval, RetrievalBody)
    ingest = index.ledger.body(index.parent(retrieval), IngestBody)
    said = index.ledger.body(answer, AnswerBody) if answer else None
    verdicts = [h for h in index.children.get(retrieval.id, []) if h.kind == "verdict"]
    verdicts += [h for h in (index.children.get(answer.id, []) if answer else []) if h.kind == "verdict"]
    return {
        "id": (answer or retrieval).id,
        "benchmark": retrieval.benchmark,
        "task": retrieval.task,
        "query": query.id,
        "type": query.type,
        "system": retrieval.system,
        "fetch": retrieval.fetch,
        "repeat": retrieval.repeat,
        "question": body.question,
        "question_date": body.date,
        "gold_answers": list(gold.answers),
        "gold_details": dict(gold.details),
        "evidence": list(gold.evidence),
        "context": body.context,
        "retrieved": [_item(item) for item in index.shown(body) or ()],
        "retrieval_seconds": body.effort.seconds if body.effort else None,
        "namespace": ingest.namespace,
        "reader": answer.reader if answer else None,
        "answer_repeat": answer.repeat if answer else None,
        "hypothesis": said.text if said else None,
        "cut": said.cut if said else None,
        "answer_seconds": said.call.seconds if said and said.call else None,
        "verdicts": [_verdict(index, h) for h in verdicts],
    }


def _item(item: Item) -> dict[str, Any]:
    """An item; of a memory of a kind, which one it is."""
    of = {} if item.memory is None else {"memory": msgspec.to_builtins(item.memory)}
    return {"rank": item.rank, "score": item.score, "turns": item.turns, "text": item.text, **of}


def _verdict(index: LedgerIndex, header: Header) -> dict[str, Any]:
    body = index.ledger.body(header, VerdictBody)
    return {
        "metric": header.metric,
        "judge": header.judge,
        "repeat": header.repeat,
        "score": body.score,
        "reason": body.reason,
    }
