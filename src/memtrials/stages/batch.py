"""memtrials batch: the batches of all stages that are in flight, whichever run handed them over."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from typing import Any

from memtrials.errors import UserError, unknown
from memtrials.index import LedgerIndex
from memtrials.ledger import Ledger
from memtrials.llm.batch import BatchService
from memtrials.outcome import Outcome
from memtrials.records import BatchBody, Header
from memtrials.settings import Settings
from memtrials.stages import answer, judge
from memtrials.stages.common import Collected, Options
from memtrials.stages.handover import Batched, collect, endpoint_of, root_of

STAGES: dict[str, Batched] = {batched.stage: batched for batched in (answer.BATCHED, judge.BATCHED)}
PLACE = ("stage", "benchmark", "system", "fetch", "reader", "judge")


def status(index: LedgerIndex, settings: Settings) -> list[dict[str, Any]]:
    """One object for each batch in flight: its name, the provider's, whose work it holds, and how far it is."""
    return [
        {
            "id": root_of(header),
            "batch": body.provider.get("batch"),
            **{name: getattr(header, name) for name in PLACE},
            "requests": len(body.work),
            "at": header.at,
            **_progress(header, body, settings),
        }
        for header, body in index.open_batches.values()
    ]


def _progress(header: Header, body: BatchBody, settings: Settings) -> dict[str, Any]:
    """The provider's word for the batch's state, or why it isn't known."""
    name = body.provider.get("batch")
    if name is None:
        return {"state": "its submission was cut off; collect finds out", "answered": 0, "failed": 0}
    try:
        with closing(BatchService(endpoint_of(header, body, settings))) as provider:
            job = provider.job(name)
    except UserError as error:
        return {"state": f"unknown ({error})", "answered": None, "failed": None}
    if job is None:
        return {"state": "unknown to the provider; cancel gives it up", "answered": None, "failed": None}
    return {"state": job.status, "answered": job.answered, "failed": job.failed}


def run(ids: Collection[str], options: Options, *, cancel: bool) -> list[Outcome]:
    """Take in the batches of these names, ours or the provider's, or all; one outcome for each stage that has some.

    Raises UserError for an unknown name, and as `collect` does.
    """
    with Ledger.open(options.trials) as ledger:
        index = LedgerIndex(ledger)
        batches = list(index.open_batches.values())
        names = {name: root_of(h) for h, body in batches for name in (root_of(h), body.provider.get("batch")) if name}
        for name in ids:
            if name not in names:
                raise unknown("batch in flight", name, names)
        wanted = {names[name] for name in ids} or set(names.values())
        outcomes = []
        for stage in STAGES:
            roots = {root_of(header) for header, _ in batches if header.stage == stage} & wanted
            if roots:
                outcomes.append(_outcome(stage, collect(index, roots, STAGES, options, cancel=cancel)))
    return outcomes


def _outcome(stage: str, collected: Collected) -> Outcome:
    notes = [*collected.notes, f"{collected.waiting} still in flight"] if collected.waiting else collected.notes
    return Outcome(
        stage,
        pending=collected.done + len(collected.missed),
        done=collected.done,
        failed=len(collected.missed),
        skipped=collected.waiting,
        appended=collected.appended,
        failures=collected.failures,
        notes=notes,
        error=collected.error,
    )
