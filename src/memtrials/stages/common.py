"""What the stages share: options, pending work, the loop that does it, and its outcome.

A stage plans from the ledger's headers, claims what it will work on, plans again, then hands its work to `drive`,
which appends each result durably as it arrives.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from memtrials import locks
from memtrials.errors import UserError, WorkFailedError
from memtrials.index import MAX_CONTENT_FAILURES, LedgerIndex, Pair
from memtrials.ledger import Ledger
from memtrials.llm.limits import ClosedError
from memtrials.llm.money import BudgetError
from memtrials.outcome import Outcome
from memtrials.progress import Progress, say
from memtrials.records import (
    Body,
    ConfigBody,
    FailureBody,
    Header,
    Kind,
    Record,
    Role,
    config_id,
    config_record,
    describe,
    new_id,
    now,
)
from memtrials.selection import Selection
from memtrials.settings import Settings

PIPELINED = 16
"""In flight at once where this process does the work itself, one after the other: many wait for the same sync while
the next are made."""


@dataclass(frozen=True)
class Options:
    """What every stage is told. trials: the ledger; workers None: the stage's own default; batch: hand the work over to
    a batch service."""

    trials: Path
    settings: Settings
    selection: Selection = field(default_factory=Selection)
    repeat: int = 1
    force: bool = False
    dry_run: bool = False
    workers: int | None = None
    quiet: bool = False
    batch: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """One pending piece of work: its name, what it is made from, and the configuration it is made under.

    config is a configuration id; spec is what the stage needs to do it. fetch: the configuration under which a scripted
    life is asked while it is replayed.
    """

    key: str
    repeat: int
    parent: Header
    query: str | None
    config: str
    spec: Any = None
    metric: str | None = None
    fetch: str | None = None

    @property
    def pair(self) -> Pair:
        """The benchmark and system it belongs to."""
        return Pair(self.parent.benchmark or "", self.parent.system or self.config)


@dataclass
class Collected:
    """What taking in batches came to. missed: work that failed, which this run doesn't try again. unanswered: requests
    nobody worked on, whose work is pending again. waiting: work still in flight."""

    done: int = 0
    missed: set[tuple[str, int]] = field(default_factory=set)
    unanswered: int = 0
    waiting: int = 0
    batches: int = 0
    appended: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    error: UserError | None = None

    @property
    def notes(self) -> list[str]:
        """What a user is told beside the counts."""
        if not self.batches:
            return []
        again = f", {self.unanswered} of their requests unanswered and pending again" if self.unanswered else ""
        return [f"{self.batches} batch{'es' if self.batches > 1 else ''} taken in{again}"]


@dataclass
class Plan:
    """What a stage owes. skipped counts what is left alone by the guard, given up, or in flight.

    flying: names of work in flight. notes: for the user, about what was skipped. must_ask: something would go without
    any result unless the user says yes to a switch (exit code 2). configs: configurations the ledger must hold before
    the first record.
    """

    work: list[Work] = field(default_factory=list)
    left_alone: int = 0
    given_up: int = 0
    flying: set[tuple[str, int]] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    must_ask: bool = False
    configs: dict[str, ConfigBody] = field(default_factory=dict)

    @property
    def skipped(self) -> int:
        """How many pieces of work are neither done nor pending."""
        return self.left_alone + self.given_up + len(self.flying)

    def announce(self, role: Role, name: str, settings: Mapping[str, Any], provenance: Mapping[str, Any]) -> str:
        """The id of a configuration that is recorded before the first work under it."""
        own = config_id(name, settings)
        self.configs[own] = ConfigBody(role=role, name=name, settings=dict(settings), provenance=dict(provenance))
        return own

    def owe(self, index: LedgerIndex, work: Work) -> None:
        """Add a piece of work unless it is done, given up or in flight."""
        name = (work.key, work.repeat)
        if name in index.done:
            return
        if name in index.in_flight:
            self.flying.add(name)
        elif index.given_up(name):
            self.given_up += 1
        else:
            self.work.append(work)


Planner = Callable[[LedgerIndex], Plan]
Perform = Callable[[Work], Awaitable[Sequence[Record]]]


class Handover(Protocol):
    """How a stage works through a batch service."""

    def check(self, plan: Plan) -> None:
        """Raises UserError where work can't be handed over."""

    def collect(self, index: LedgerIndex, names: Collection[tuple[str, int]]) -> Collected:
        """Take in the finished ones of the batches that hold any of this work."""

    def submit(self, index: LedgerIndex, work: Sequence[Work], outcome: Outcome) -> None:
        """Hand work over."""


def run_plan(
    stage: str,
    options: Options,
    ledger: Ledger,
    plan_from: Planner,
    perform: Callable[[LedgerIndex, Plan], Perform],
    *,
    role: Role,
    guarded: Kind | None = None,
    workers: int = 1,
    check: Callable[[LedgerIndex, Plan], None] | None = None,
    finish: Callable[[], Awaitable[None]] | None = None,
    halt: Callable[[], None] | None = None,
    forecast: Callable[[LedgerIndex, Plan], dict[str, Any]] | None = None,
    batches: Handover | None = None,
) -> Outcome:
    """Take in finished batches, plan, claim, plan again, check, then do the work or hand it over.

    role: whose configuration the work is made under. guarded: the kind of record by which a configuration has begun,
    where the guard of a switch applies; until then the claim is made without the configuration. check raises
    UserError before anything is written. halt is called once when the stage is to stop early: what hasn't begun must
    not begin. forecast adds what a dry run can tell. batches: how the stage works through a batch service, if it can.
    """
    collected: Collected | None = None

    def planned() -> tuple[LedgerIndex, Plan, Outcome]:
        index = LedgerIndex(ledger)
        plan = plan_from(index)
        if collected is not None:
            plan.work = [work for work in plan.work if (work.key, work.repeat) not in collected.missed]
        return index, plan, _outcome(stage, plan, options, collected)

    index, plan, outcome = planned()
    if batches and options.batch:
        batches.check(plan)
    if options.dry_run:
        if check and plan.work:
            check(index, plan)
        outcome.left = outcome.pending
        outcome.details = forecast(index, plan) if forecast else {}
        return outcome
    if batches and plan.flying:
        collected = batches.collect(index, plan.flying)
        index, plan, outcome = planned()
    if outcome.error or not plan.work:
        outcome.left = len(plan.work)
        return outcome
    ledger.check_writable()
    claims = _claims(stage, index, plan, options, role, guarded)
    with locks.hold(options.trials, claims, options.selection.shard):
        seen = len(ledger.headers)
        ledger.refresh()
        if len(ledger.headers) != seen:
            index, plan, _ = planned()
            claimed = {(claim.benchmark, claim.system, claim.config) for claim in claims}
            plan.work = [w for w in plan.work if not claimed.isdisjoint(((*w.pair, w.config), (*w.pair, None)))]
            outcome = _outcome(stage, plan, options, collected)
        if check:
            check(index, plan)
        before = len(ledger.headers)
        needed = {config for work in plan.work for config in (work.config, work.fetch)}
        fresh = [body for key, body in plan.configs.items() if key in needed and key not in index.configs]
        if fresh:
            ledger.append(*(config_record(b.role, b.name, b.settings, b.provenance) for b in fresh))
        try:
            if batches and options.batch:
                batches.submit(index, plan.work, outcome)
            else:
                doing = perform(index, plan)
                asyncio.run(drive(stage, plan.work, doing, ledger, options, outcome, workers, finish, halt))
        finally:
            outcome.appended += len(ledger.headers) - before
    return outcome


def _outcome(stage: str, plan: Plan, options: Options, collected: Collected | None) -> Outcome:
    notes = [*plan.notes, *(collected.notes if collected else ())]
    if plan.given_up:
        notes.append(f"{plan.given_up} given up after {MAX_CONTENT_FAILURES} runs; `memtrials status` lists them")
    if plan.flying:
        notes.append(f"{len(plan.flying)} in flight in a batch")
    done, failed = (collected.done, len(collected.missed)) if collected else (0, 0)
    return Outcome(
        stage,
        pending=len(plan.work) + done + failed,
        done=done,
        failed=failed,
        appended=collected.appended if collected else 0,
        failures=dict(collected.failures) if collected else {},
        error=collected.error if collected else None,
        skipped=plan.skipped,
        notes=notes,
        must_ask=plan.must_ask,
        dry_run=options.dry_run,
    )


def _claims(
    stage: str, index: LedgerIndex, plan: Plan, options: Options, role: Role, guarded: Kind | None
) -> list[locks.Claim]:
    begun = index.begun(guarded, role) if guarded else {}
    claims: dict[locks.Claim, None] = {}
    for work in plan.work:
        decided = guarded is None or options.force or work.config in begun.get(work.pair, ())
        claim = locks.Claim(stage, work.pair.benchmark, work.pair.system, work.config if decided else None)
        claims[claim] = None
    return list(claims)


def guarded_off(begun: dict[Pair, list[str]], pair: Pair, config: str, force: bool) -> bool:
    """Whether others have begun a benchmark on a system and `config` has not, so that it needs a yes."""
    others = begun.get(pair, [])
    return not force and bool(others) and config not in others


def explain_guard(
    index: LedgerIndex,
    what: str,
    mine: str,
    settings: dict[str, Any],
    others: Sequence[str],
    pair: Pair,
    count: int,
    bare: int,
) -> str:
    """One line on a switch that needs a yes: who is there, what differs, how many trials were left alone."""
    theirs = others[-1]
    body = index.config(theirs)
    differs = ", ".join(describe(settings, body.settings)) or "its name"
    return (
        f"{pair.benchmark} on {pair.system}: {what} {theirs} has begun here, {mine} has not "
        f"(they differ in {differs}); {count} left alone, {bare} of them without any result. To switch: --force"
    )


def derived(work: Work, kind: Kind, index: LedgerIndex, **fields: Any) -> Header:
    """The header of a record made from `work.parent`: place and configurations are copied down."""
    parent = work.parent
    values: dict[str, Any] = {
        "benchmark": parent.benchmark,
        "task": parent.task,
        "query": work.query or parent.query,
        "type": parent.type,
        "system": parent.system,
        "fetch": parent.fetch,
        "reader": parent.reader,
        "metric": work.metric,
    }
    values.update(fields)
    return Header(id=new_id(), kind=kind, key=work.key, repeat=work.repeat, parents=(parent.id,), at=now(), **values)


async def drive(
    stage: str,
    work: Sequence[Work],
    perform: Perform,
    ledger: Ledger,
    options: Options,
    outcome: Outcome,
    workers: int,
    finish: Callable[[], Awaitable[None]] | None,
    halt: Callable[[], None] | None = None,
) -> None:
    """Do the work with so many at once; each result is durable before it counts. The first fatal error ends it.

    Interrupted, it takes nothing new, finishes what is in flight, and says so in the outcome.
    """
    stop = _Stop(halt or (lambda: None))
    todo = iter(work)
    with Progress(stage, outcome.pending, quiet=options.quiet) as progress, _interruptible(stop):

        async def one_after_the_other() -> None:
            for item in todo:
                if stop.requested:
                    return
                await _one(stage, item, perform, ledger, outcome, stop)
                progress.advance(done=outcome.done, failed=outcome.failed)

        try:
            await asyncio.gather(*(one_after_the_other() for _ in range(min(workers, len(work)) or 1)))
        finally:
            outcome.left = outcome.pending - outcome.done - outcome.failed
            if finish:
                await finish()
    outcome.interrupted = stop.by_user
    outcome.error = stop.error
    if stop.cap is not None:
        outcome.notes.append(f"stopped at {stop.cap}: {outcome.done} of {outcome.pending} done, {outcome.left} left")


async def _one(stage: str, item: Work, perform: Perform, ledger: Ledger, outcome: Outcome, stop: _Stop) -> None:
    began = time.perf_counter()
    try:
        records = await perform(item)
    except WorkFailedError as failure:
        if failure.class_ == "fatal":  # before it is written: what waits for its turn meanwhile must not begin
            stop.stop(UserError(failure.message))
        body = FailureBody(
            cause=failure.cause,
            message=failure.message,
            attempts=failure.attempts,
            seconds=time.perf_counter() - began,
            call=failure.call,
            usage=failure.usage,
            raw=failure.raw,
        )
        await ledger.append_async(failure_record(stage, item, failure, body))
        outcome.failed += 1
        outcome.failures[failure.message] = outcome.failures.get(failure.message, 0) + 1
    except UserError as error:
        stop.stop(error)
    except BudgetError as error:
        stop.at_cap(str(error))
    except ClosedError:
        stop.now()
    else:
        try:
            await ledger.append_async(*records)
        except UserError as error:
            stop.stop(error)
        else:
            outcome.done += 1


def failure_record(stage: str, item: Work, failure: WorkFailedError, body: Body) -> Record:
    """The `failure` record of a piece of work."""
    parent = item.parent
    return Record(
        Header(
            id=new_id(),
            kind="failure",
            key=item.key,
            parents=(parent.id,),
            benchmark=parent.benchmark,
            task=parent.task,
            query=item.query or parent.query,
            type=parent.type,
            system=item.config if stage == "replay" else parent.system,
            fetch=item.config if stage == "fetch" else item.fetch or parent.fetch,
            reader=item.config if stage == "answer" else parent.reader,
            judge=item.config if stage == "judge" else None,
            metric=item.metric,
            stage=stage,
            class_=failure.class_,
            repeat=item.repeat,
            at=now(),
        ),
        body,
    )


class _Stop:
    """Whether to take no more work, and why. halt: see `run_plan`."""

    def __init__(self, halt: Callable[[], None]) -> None:
        self.requested = False
        self.error: UserError | None = None
        self.cap: str | None = None
        self.by_user = False
        self._halt = halt
        self._since: float | None = None

    def now(self) -> None:
        if not self.requested:
            self.requested = True
            self._halt()

    def stop(self, error: UserError) -> None:
        self.error = self.error or error
        self.now()

    def at_cap(self, cap: str) -> None:
        self.cap = self.cap or cap
        self.now()

    def interrupt(self) -> None:
        """The first time: finish what is in flight. More than a second later: abort (what is durable stays)."""
        if self._since is None:
            self._since = time.monotonic()
            self.by_user = True
            say("interrupted: finishing what is in flight; press Ctrl-C again to abort")
            self.now()
        elif time.monotonic() - self._since > 1:
            sys.stderr.flush()
            os._exit(130)


@contextmanager
def _interruptible(stop: _Stop) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, stop.interrupt)
    except (NotImplementedError, ValueError, RuntimeError):  # not the main thread, or no signals on this platform
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        if stop.by_user:  # one Ctrl-C may arrive twice, by way of `uv run`, and what is left to do is to say so
            signal.signal(signal.SIGINT, signal.SIG_IGN)
