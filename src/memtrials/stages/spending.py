"""What a stage may spend: the caps before it starts, what its ledger spent already, and what a dry run foretells."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from memtrials.errors import UserError
from memtrials.index import LedgerIndex
from memtrials.llm.money import Purse, cost, longest_reply, price
from memtrials.llm.pool import CallLimits
from memtrials.records import AnswerBody, Call, FailureBody, Header, VerdictBody


def check_priced(models: Iterable[str], limits: CallLimits) -> None:
    """Raise UserError for a cap on the cost of a model without a price."""
    for model in models if limits.max_cost is not None else ():
        if price(model) is None:
            raise UserError(f"--max-cost: {model} has no price; add it to evaluation/prices.toml or use --max-requests")


def purse(index: LedgerIndex, stage: str, models: Mapping[str, str], limits: CallLimits) -> Purse:
    """The purse of a stage, with what this ledger already spent in it: void and failed work was paid for, too, and what
    is in flight in a batch may cost what it can at most.

    models: the model of each configuration that is about to work. Raises UserError where a cap on the cost meets a call
    of which the endpoint didn't say what it took.
    """
    if limits.max_cost is None and limits.max_requests is None:
        return Purse()
    spent, requests = 0.0, 0
    for config, call, attempts in _paid(index, stage, models):
        requests += attempts
        dollars = cost(call, models[config]) if call else 0.0
        if dollars is None and limits.max_cost is not None:
            raise UserError(
                f"--max-cost: {models[config]} reported no usage for calls in this ledger, so what they cost is "
                "unknown; use --max-requests"
            )
        spent += dollars or 0.0
    for header, batch in index.open_batches.values():
        if header.stage != stage or (header.reader if stage == "answer" else header.judge) not in models:
            continue
        if batch.dearest is None and limits.max_cost is not None:
            raise UserError("--max-cost: a batch in flight was sent without a cap; `memtrials batch collect` it first")
        requests += len(batch.work)
        spent += batch.dearest or 0.0
    return Purse(limits.max_cost, limits.max_requests, spent, requests)


def _paid(index: LedgerIndex, stage: str, configs: Collection[str]) -> Iterable[tuple[str, Call | None, int]]:
    """Configuration, call and attempts of everything that was done, or that failed, in a stage."""
    for header in index.ledger.headers:
        config = _config(header, stage)
        if config not in configs:
            continue
        if header.kind == "failure":
            failure = index.ledger.body(header, FailureBody)
            yield config, failure.call, failure.attempts
        else:
            body_type: type[AnswerBody | VerdictBody] = AnswerBody if header.kind == "answer" else VerdictBody
            call = index.ledger.body(header, body_type).call
            yield config, call, call.attempts if call else 0


def _config(header: Header, stage: str) -> str:
    """The reader's or judge's configuration of a record that `stage` made; empty for any other record."""
    made = header.stage if header.kind == "failure" else {"answer": "answer", "verdict": "judge"}.get(header.kind)
    return (header.reader if stage == "answer" else header.judge) or "" if made == stage else ""


def forecast(calls: Iterable[tuple[str, Mapping[str, Any], int]]) -> dict[str, Any]:
    """What a dry run says of calls: how many, the exact tokens of their prompts and, where all prices are known,
    dollars at least (no reply) and at most (the longest replies; left out where one has no limit).

    calls: model, parameters and tokens of the prompt.
    """
    requests, tokens = 0, 0
    least: float | None = 0.0
    most: float | None = 0.0
    for model, parameters, prompt in calls:
        requests += 1
        tokens += prompt
        known, reply = price(model), longest_reply(parameters)
        least = least + known.of(prompt, 0) if known and least is not None else None
        most = most + known.of(prompt, reply) if known and reply and most is not None else None
    dollars = {"cost_usd_min": least, "cost_usd_max": most} if requests else {}
    known_dollars = {name: round(value, 6) for name, value in dollars.items() if value is not None}
    return {"requests": requests, "prompt_tokens": tokens, **known_dollars}
