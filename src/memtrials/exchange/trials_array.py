"""MemoryBear's trials: one JSON array whose records grow from fetched to answered to judged.

What is imported comes out again without loss: of a trial, all but the answer and the verdict is kept as JSON text
beside its retrieval.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from memtrials.exchange.cells import Answered, model_of
from memtrials.exchange.results import Family, Fields, Place, Result, context_of
from memtrials.index import LedgerIndex
from memtrials.records import AnswerBody, Header, IngestBody, RetrievalBody, VerdictBody

LATER = ("hypothesis", "reader", "autoeval_label")
"""What generate and evaluate set, in this order."""


def results(rows: Sequence[tuple[str, Any]], family: Family) -> Iterator[Result]:
    """The trials of a file, numbered for each question and end user in the order of the file."""
    ordinals: Counter[tuple[str, str | None]] = Counter()
    for number, value in rows:
        row = Fields(number, value)
        row.name = f"{number} ({row.text('trial_id')})"
        question, user = row.text("question_id"), row.optional("end_user_id")
        ordinals[question, user] += 1
        said, label = row.optional("hypothesis"), row.inner("autoeval_label").flag("label")
        answered = bool(said and said.strip())
        judged = answered and label is not None
        taken = (*(LATER[:2] if answered else ()), *(LATER[2:] if judged else ()))
        yield Result(
            row.name,
            Place(family, id=question),
            row.text("question"),
            row.text("question_type"),
            row.gold("answer"),
            row.optional("question_date"),
            context=None if row.value.get("read_response") is None else _context(row),
            answer=said if answered else None,
            verdicts=(label,) if judged and label is not None else (),
            retrieved=row.without(*taken),
            said={"reader": row.value.get("reader")} if answered else {},
            judged={"autoeval_label": row.value.get("autoeval_label")} if judged else {},
            state=user,
            trial=ordinals[question, user],
            reader=row.inner("reader").optional("model"),
            judge=row.inner("autoeval_label").optional("model"),
        )


def _context(row: Fields) -> str:
    return context_of(row.inner("read_response").inner("data"))


def export(
    index: LedgerIndex, benchmark: str, trials: Iterable[Answered], verdicts: dict[str, Header]
) -> Iterator[dict[str, Any]]:
    """Trials in the array's shape, each with its last answer. verdicts: the one that counts, by the answer's id."""
    taken: Counter[str] = Counter()
    last = {trial.retrieval.id: trial for trial in trials}
    for retrieval, answer in last.values():
        body = index.ledger.body(retrieval, RetrievalBody)
        kept = json.loads(body.raw) if body.raw else None
        whole = kept if isinstance(kept, dict) and "trial_id" in kept else _new(index, benchmark, retrieval, body, kept)
        if whole is not kept:
            name = whole["trial_id"]
            taken[name] += 1
            whole["trial_id"] = name if taken[name] == 1 else f"{name}_{taken[name]}"
        whole = {**whole, **{name: whole.get(name) for name in LATER}}
        if answer is not None:
            said = index.ledger.body(answer, AnswerBody)
            whole["hypothesis"] = said.text
            whole["reader"] = _of_import(said.raw, "reader", {"model": model_of(index, answer.reader)})
            verdict = verdicts.get(answer.id)
            if verdict is not None:
                decided = index.ledger.body(verdict, VerdictBody)
                label = {"model": model_of(index, verdict.judge), "label": decided.score == 1.0}
                whole["autoeval_label"] = _of_import(decided.raw, "autoeval_label", label)
        yield whole


def _of_import(raw: str | None, name: str, otherwise: Any) -> Any:
    """An imported object as it was, else what the ledger knows."""
    try:
        kept = json.loads(raw or "")
    except ValueError:
        return otherwise
    return kept[name] if isinstance(kept, dict) and name in kept else otherwise


def _new(index: LedgerIndex, benchmark: str, retrieval: Header, body: RetrievalBody, kept: Any) -> dict[str, Any]:
    """A trial that memtrials made itself, or one that no trials array gave."""
    task = index.task(benchmark, retrieval.task or "")
    query = task.query(retrieval.query or "")
    state = index.ledger.body(index.parent(retrieval), IngestBody)
    at = retrieval.at
    run = f"{at[:10]}_{at[11:19]}".replace("-", "").replace(":", "")
    effort = body.effort
    return {
        "trial_id": f"{run}_{retrieval.task}",
        "run_ts": run,
        "question_id": retrieval.task,
        "question_type": query.type,
        "question": query.text,
        "question_date": body.date,
        "answer": next(iter(task.gold_of(query.id).answers), None),
        "end_user_id": state.stores[0].id if state.stores else state.namespace,
        "latency_s": None if effort is None else round(effort.seconds + effort.waited_seconds, 2),
        "read_response": _response(body, kept),
    }


def _response(body: RetrievalBody, kept: Any) -> dict[str, Any] | None:
    """The service's reply where there is one; else its form, with each item's text or the whole context as content."""
    if isinstance(kept, list) and kept and isinstance(kept[0], dict) and isinstance(kept[0].get("response"), dict):
        response: dict[str, Any] = kept[0]["response"]
        return response
    if body.context is None:
        return None
    whole = body.items if body.fit is None else None  # what a budget or window cut is told by the context alone
    texts = [item.text for item in whole] if whole is not None else [body.context] if body.context else []
    return {"data": {"intermediate_outputs": [{"content": text} for text in texts]}}
