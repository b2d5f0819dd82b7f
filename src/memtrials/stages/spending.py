"""What a stage may spend: the caps before it starts, what its ledger spent already, and what a dry run foretells."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from memtrials.errors import UserError, WorkFailedError
from memtrials.index import LedgerIndex
from memtrials.llm.limits import ClosedError
from memtrials.llm.money import BudgetError, Purse, cost, embedding_cost, longest_reply, price
from memtrials.llm.pool import CallLimits
from memtrials.records import AnswerBody, FailureBody, Header, VerdictBody
from memtrials.systems.base import Meter
from memtrials.systems.embedding import embedding_of, usage_of

MAKES = {"ingest": "replay", "retrieval": "fetch", "answer": "answer", "verdict": "judge"}
"""The stage that makes a kind of record."""
ROLE_OF = {"replay": "system", "fetch": "fetch", "answer": "reader", "judge": "judge"}
"""Whose configuration a stage works under."""


def check_priced(models: Iterable[str], limits: CallLimits) -> None:
    """Raise UserError for a cap on the cost of a model without a price."""
    for model in models if limits.max_cost is not None else ():
        if price(model) is None:
            raise UserError(f"--max-cost: {model} has no price; add it to evaluation/prices.toml or use --max-requests")


def purse(index: LedgerIndex, stage: str, models: Mapping[str, str], limits: CallLimits) -> Purse:
    """The purse of answer or judge, with what this ledger already spent in that stage: void and failed work was paid
    for, too, and what is in flight in a batch may cost what it can at most.

    models: the model of each configuration that is about to work. Raises UserError where a cap on the cost meets a call
    of which the endpoint didn't say what it took.
    """
    if limits.max_cost is None and limits.max_requests is None:
        return Purse()
    if limits.anew:
        return Purse(limits.max_cost, limits.max_requests)
    spent, requests = 0.0, 0
    for header in _made_in(index, stage, models):
        model = models[_config(header, stage)]
        if header.kind == "failure":
            failure = index.ledger.body(header, FailureBody)
            call, attempts = failure.call, failure.attempts
        else:
            body_type: type[AnswerBody | VerdictBody] = AnswerBody if header.kind == "answer" else VerdictBody
            call = index.ledger.body(header, body_type).call
            attempts = call.attempts if call else 0
        requests += attempts
        spent += _known(cost(call, model) if call else 0.0, model, limits)
    for header, batch in index.open_batches.values():
        if header.stage != stage or getattr(header, ROLE_OF[stage]) not in models:
            continue
        if batch.dearest is None and limits.max_cost is not None:
            raise UserError("--max-cost: a batch in flight was sent without a cap; `memtrials batch collect` it first")
        requests += len(batch.work)
        spent += batch.dearest or 0.0
    return Purse(limits.max_cost, limits.max_requests, spent, requests)


def embedding_purse(index: LedgerIndex, stage: str, configs: Collection[str], limits: CallLimits) -> Purse:
    """The same for replay or fetch, where what is sent are texts to be embedded. configs: those about to work."""
    if limits.max_cost is None and limits.max_requests is None:
        return Purse()
    if limits.anew:
        return Purse(limits.max_cost, limits.max_requests)
    spent, requests = 0.0, 0
    for header in _made_in(index, stage, configs):
        model, usage = embedding_of(index, header), usage_of(index, header)
        if model is not None and usage:
            requests += usage.get("embedding_requests", 0)
            spent += _known(embedding_cost(usage, model), model, limits)
    return Purse(limits.max_cost, limits.max_requests, spent, requests)


def _made_in(index: LedgerIndex, stage: str, configs: Collection[str]) -> Iterable[Header]:
    """What a stage made, and what failed in it, under these configurations, whether it counts or not."""
    return (header for header in index.ledger.headers if _config(header, stage) in configs)


def _config(header: Header, stage: str) -> str:
    """The configuration under which `stage` made a record or failed to; empty for any other record."""
    made = header.stage if header.kind == "failure" else MAKES.get(header.kind)
    return getattr(header, ROLE_OF[stage]) or "" if made == stage else ""


def _known(dollars: float | None, model: str, limits: CallLimits) -> float:
    if dollars is None and limits.max_cost is not None:
        raise UserError(
            f"--max-cost: {model} reported no usage for calls in this ledger, so what they cost is unknown; use "
            "--max-requests"
        )
    return dollars or 0.0


@contextmanager
def billed(meter: Meter, purse: Purse) -> Iterator[None]:
    """What a system sent for work that failed stands in its failure. Work that was stopped fails where it sent
    something that was paid for, or that a cap counts; else it stays pending."""
    before = replace(meter)
    try:
        yield
    except WorkFailedError as failure:
        failure.usage = meter.usage(before, before)
        raise
    except (BudgetError, ClosedError) as stop:
        sent = meter.requests - before.requests
        if not sent or not (purse.max_requests or meter.answered_since(before)):
            raise
        usage = meter.usage(before, before)
        message = f"{stop} after {sent} embedding requests; what they brought is in the cache"
        raise WorkFailedError("service", "transient", message, attempts=sent, usage=usage) from None


def forecast(calls: Iterable[tuple[str, Mapping[str, Any], int]], *, batch: bool) -> dict[str, Any]:
    """What a dry run says of calls: how many, the exact tokens of their prompts and, where all prices are known,
    dollars at least (no reply) and at most (the longest replies; left out where one has no limit).

    calls: model, parameters and tokens of the prompt. batch: whether they go by a batch service, at its prices.
    """
    requests, tokens = 0, 0
    least: float | None = 0.0
    most: float | None = 0.0
    for model, parameters, prompt in calls:
        requests += 1
        tokens += prompt
        known, reply = price(model), longest_reply(parameters)
        share = known.batch if known and batch else 1.0
        least = least + known.of(prompt, 0) * share if known and least is not None else None
        most = most + known.of(prompt, reply) * share if known and reply and most is not None else None
    dollars = {"cost_usd_min": least, "cost_usd_max": most} if requests else {}
    known_dollars = {name: round(value, 6) for name, value in dollars.items() if value is not None}
    return {"requests": requests, "prompt_tokens": tokens, **known_dollars}


def embedding_forecast(requests: Iterable[tuple[str, int]]) -> dict[str, Any]:
    """What a dry run says of texts that go to an endpoint at most, since what is cached isn't sent again: requests, the
    tokens of their texts in o200k_base, and dollars where the prices are known.

    requests: model and tokens of each.
    """
    count, tokens = 0, 0
    most: float | None = 0.0
    for model, size in requests:
        count += 1
        tokens += size
        known = price(model)
        most = most + known.of(size, 0) if known and most is not None else None
    if not count:
        return {}
    dollars = {"cost_usd_max": round(most, 6)} if most is not None else {}
    return {"embedding_requests": count, "embedding_tokens": tokens, **dollars}
