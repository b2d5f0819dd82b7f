"""Batches: a stage hands its work to a provider's batch service, and a later run takes in what came of it.

A batch is a chain of `batch` records, each with the one before as parent. The first is open and stands before anything
is sent; its id is the submission's name at the provider. The second is open, too, and holds the provider's id. The last
is closed: what has no record by then is pending again. Where the second is missing, the submission was cut off and the
provider is asked whether it has it. One process at a time holds a batch, so none is sent or taken in twice.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any, Literal, NamedTuple

import msgspec

from memtrials import locks
from memtrials.errors import Cause, UserError, WorkFailedError
from memtrials.index import LedgerIndex
from memtrials.index import Work as Name
from memtrials.ledger import Ledger
from memtrials.llm import batch as service
from memtrials.llm.batch import BatchService, Job, RejectedError
from memtrials.llm.engine import PROVIDER, ChatModel, Endpoint, Reply
from memtrials.llm.money import BudgetError, Purse, longest_reply, price
from memtrials.llm.roles import RoleConfig, endpoint
from memtrials.outcome import Outcome
from memtrials.records import AnswerBody, BatchBody, Call, FailureBody, Header, Record, VerdictBody, new_id, now
from memtrials.settings import Settings
from memtrials.stages.common import Collected, Options, Plan, Work, failure_record

GROUP = 200
"""Results appended in one write."""

Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Batched:
    """How a stage works through a batch service.

    kind and role: of what it makes and under whose configuration. cause: whose fault unusable content is. record_of:
    the record that a reply becomes, the same as a call's would; raises UnusableError.
    """

    stage: Literal["answer", "judge"]
    kind: Literal["answer", "verdict"]
    role: Literal["reader", "judge"]
    cause: Cause
    record_of: Callable[[LedgerIndex, Work, Reply], Record]

    def config_of(self, header: Header) -> str:
        """The configuration of the stage's own role in a header."""
        return getattr(header, self.role) or ""


class Recipient(NamedTuple):
    """Whom work is sent to. endpoint: None for a rule. own: the prefix of the variables that say where, if they aren't
    the role's."""

    config: RoleConfig
    endpoint: Endpoint | None
    own: str | None = None

    @property
    def where(self) -> Endpoint:
        """The endpoint of a model."""
        assert self.endpoint is not None
        return self.endpoint


@dataclass(frozen=True)
class Batches:
    """One run of a stage that may hand work over. messages_of: what a model is sent. purse_of: what may be spent, by
    the model of each configuration."""

    batched: Batched
    options: Options
    recipient_of: Callable[[Work], Recipient]
    messages_of: Callable[[LedgerIndex, Work], Messages]
    purse_of: Callable[[LedgerIndex, Mapping[str, str]], Purse]

    def check(self, plan: Plan) -> None:
        """Raises UserError where work needs no model."""
        if any(self.recipient_of(work).config.is_offline for work in plan.work):
            raise UserError(f"--batch needs a model: name one with --{self.batched.role}")

    def collect(self, index: LedgerIndex, names: Collection[Name]) -> Collected:
        """Take in the finished ones of the batches that hold any of this work."""
        roots = [
            root_of(header) for header, body in index.open_batches.values() if not set(names).isdisjoint(body.work)
        ]
        return collect(index, roots, {self.batched.stage: self.batched}, self.options)

    def submit(self, index: LedgerIndex, work: Sequence[Work], outcome: Outcome) -> None:
        """Hand work over, in as many batches as it takes; what can't be sent fails as it would in a call. What keeps
        the provider from taking more is the outcome's error: what it took before stays handed over."""
        recipients = {item.config: self.recipient_of(item) for item in work}
        purse = self.purse_of(index, {name: who.where.model for name, who in recipients.items()})
        batches = 0
        try:
            with ExitStack() as open_:
                providers = {
                    name: open_.enter_context(closing(BatchService(who.where))) for name, who in recipients.items()
                }
                for part in _parts(self, index, work, recipients, purse, outcome):
                    with part.file:
                        _send(self.batched, index.ledger, part, providers[part.config])
                    batches += 1
                    outcome.sent += len(part.work)
        except UserError as error:
            outcome.error = error
        outcome.left = outcome.pending - outcome.done - outcome.failed
        if batches:
            outcome.notes.append(
                f"{outcome.sent} handed over in {batches} batch{'es' if batches > 1 else ''}; `memtrials "
                f"{self.batched.stage}` again, or `memtrials batch collect`, takes in what is finished"
            )


# --- sending ----------------------------------------------------------------------------------------------------


@dataclass
class _Part:
    """Requests that go out in one file. place: a header without a name, of what they have in common."""

    place: Header
    config: str
    to: Recipient
    parameters: Mapping[str, Any]
    file: IO[bytes]
    work: list[Work] = field(default_factory=list)
    size: int = 0
    dearest: float | None = None

    def add(self, item: Work, line: bytes, dearest: float | None) -> None:
        self.file.write(line)
        self.work.append(item)
        self.size += len(line)
        if dearest is not None:
            self.dearest = (self.dearest or 0.0) + dearest

    def holds(self, line: bytes) -> bool:
        """Whether there is room for one more line."""
        return len(self.work) < service.MAX_REQUESTS and self.size + len(line) <= service.MAX_BYTES


def _parts(
    batches: Batches,
    index: LedgerIndex,
    work: Sequence[Work],
    recipients: Mapping[str, Recipient],
    purse: Purse,
    outcome: Outcome,
) -> Iterator[_Part]:
    """The work in files that a provider takes, each with work of one place and configuration; ends at a cap."""
    batched = batches.batched
    parameters = {name: _parameters(batched, index, name, who) for name, who in recipients.items()}
    models = {name: ChatModel(who.where, parameters[name], batched.cause) for name, who in recipients.items()}
    for place, some in _by_place(batched, work):
        config = batched.config_of(place)
        part: _Part | None = None
        for item in some:
            messages = batches.messages_of(index, item)
            try:
                line = _line(item, models[config].request(messages))
                dearest = _reserve(purse, models[config], messages)
            except WorkFailedError as failure:
                index.ledger.append(_failure(batched, item, failure))
                outcome.failed += 1
                outcome.failures[failure.message] = outcome.failures.get(failure.message, 0) + 1
                continue
            except BudgetError as cap:
                outcome.notes.append(f"stopped at {cap}")
                if part is not None:
                    yield part
                return
            if part is not None and not part.holds(line):
                yield part
                part = None
            if part is None:
                file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by who sends it
                part = _Part(place, config, recipients[config], parameters[config], file)
            part.add(item, line, dearest)
        if part is not None:
            yield part


def _by_place(batched: Batched, work: Sequence[Work]) -> Iterator[tuple[Header, list[Work]]]:
    groups: dict[tuple[str | None, ...], list[Work]] = {}
    names = ("benchmark", "system", "fetch", "reader", "judge")
    for item in work:
        values = {name: getattr(item.parent, name) for name in names} | {batched.role: item.config}
        groups.setdefault(tuple(values.values()), []).append(item)
    for values_, some in groups.items():
        fields: dict[str, Any] = dict(zip(names, values_, strict=True))
        yield Header(id="", kind="batch", parents=(), at="", stage=batched.stage, **fields), some


def _parameters(batched: Batched, index: LedgerIndex, config: str, to: Recipient) -> Mapping[str, Any]:
    """A configuration's parameters as its endpoint takes them, where its last record says so; else as asked."""
    asked: Mapping[str, Any] = to.config.settings["parameters"]
    last = next((h for h in reversed(index.of(batched.kind)) if batched.config_of(h) == config), None)
    if last is None:
        return asked
    body_type: type[AnswerBody | VerdictBody] = AnswerBody if batched.kind == "answer" else VerdictBody
    call = index.ledger.body(last, body_type).call
    if call is None or call.sent is None or call.base_url != to.where.base_url:
        return asked
    return _without_model(call.sent)


def _without_model(sent: str) -> dict[str, Any]:
    return {name: value for name, value in json.loads(sent).items() if name != "model"}


def _line(item: Work, body: Mapping[str, Any]) -> bytes:
    """A request as the service reads it, in ASCII: some take other line separators for line ends."""
    row = {"custom_id": f"{item.key}:{item.repeat}", "method": "POST", "url": service.PATH, "body": body}
    return json.dumps(row).encode() + b"\n"


def _reserve(purse: Purse, model: ChatModel, messages: Messages) -> float | None:
    """Set aside what a request can cost at most, which is known under a cap. Raises BudgetError."""
    dearest = None
    if purse.max_cost is not None and (known := price(model.endpoint.model)):
        from memtrials.tokens import count_tokens

        tokens = sum(count_tokens(message["content"]) for message in messages)
        dearest = known.of(tokens, longest_reply(model.parameters)) * known.batch
    if purse.max_cost is not None or purse.max_requests is not None:
        ticket = purse.admit(dearest or 0.0)
        assert ticket is not None  # nothing is in flight that could turn out cheaper
        purse.settle(ticket, dearest or 0.0)
    return dearest


def _send(batched: Batched, ledger: Ledger, part: _Part, provider: BatchService) -> None:
    """Record, upload, start, record again. Raises UserError."""
    first = msgspec.structs.replace(part.place, id=new_id(), at=now())
    where, model = part.to.where.base_url, part.to.where.model
    told = {
        "sent": json.dumps({"model": model, **part.parameters}, sort_keys=True),
        **({"base_url": where} if where else {}),
        **({"own": part.to.own} if part.to.own else {}),
    }
    body = BatchBody(
        state="open",
        work=tuple((item.key, item.repeat) for item in part.work),
        made_from=tuple((item.parent.id, item.metric, *([item.query] if item.query else ())) for item in part.work),
        provider=told,
        dearest=part.dearest,
    )
    part.file.seek(0)
    with locks.hold(ledger.path, [_claim(first)], None):
        ledger.append(Record(first, body))
        try:
            job = provider.submit(first.id, part.file)
        except RejectedError as error:
            ledger.append(_closed(first, {"problem": str(error)}))
            raise
        except UserError as error:
            raise UserError(
                f"{error}; whether it was started isn't known: `memtrials {batched.stage}` or `memtrials batch collect`"
                " finds out"
            ) from None
        ledger.append(_acknowledged(first, body, job))


# --- the chain --------------------------------------------------------------------------------------------------


def root_of(header: Header) -> str:
    """The name of an open batch: the id of its first record."""
    return header.parents[0] if header.parents else header.id


def _claim(header: Header) -> locks.Claim:
    return locks.Claim("batch", header.benchmark or "", root_of(header))


def _next(header: Header, body: BatchBody) -> Record:
    return Record(msgspec.structs.replace(header, id=new_id(), parents=(header.id,), at=now()), body)


def _acknowledged(first: Header, body: BatchBody, job: Job) -> Record:
    """The second record: the provider has it."""
    return _next(first, msgspec.structs.replace(body, provider={**body.provider, "batch": job.id}))


def _closed(header: Header, told: dict[str, str]) -> Record:
    """The last record: nothing is in flight any more."""
    return _next(header, BatchBody(state="closed", work=(), provider=told))


# --- taking in --------------------------------------------------------------------------------------------------


def collect(
    index: LedgerIndex, roots: Collection[str], stages: Mapping[str, Batched], options: Options, *, cancel: bool = False
) -> Collected:
    """Take in what is finished of these batches; what isn't stays in flight. cancel: have them end first.

    Raises UserError when another process holds one, no key is configured or the provider can't be asked.
    """
    collected = Collected()
    ledger = index.ledger
    mine = [header for header, _ in index.open_batches.values() if root_of(header) in roots]
    if not mine:
        return collected
    ledger.check_writable()
    with locks.hold(options.trials, [_claim(header) for header in mine], None), ExitStack() as open_:
        ledger.refresh()
        index = LedgerIndex(ledger)
        before = len(ledger.headers)
        try:
            for header, body in index.open_batches.values():
                if root_of(header) in roots:
                    batched = stages[header.stage or ""]
                    where = endpoint_of(header, body, options.settings)
                    provider = open_.enter_context(closing(BatchService(where)))
                    _collect_one(batched, index, header, body, provider, collected, cancel)
        finally:
            collected.appended += len(ledger.headers) - before
    return collected


def endpoint_of(header: Header, body: BatchBody, settings: Settings) -> Endpoint:
    """Where a batch was sent. Raises UserError when that isn't where today's settings lead: keys don't travel."""
    role: Literal["reader", "judge"] = "judge" if header.stage == "judge" else "reader"
    own, was = body.provider.get("own"), body.provider.get("base_url")
    found = endpoint(role, json.loads(body.provider["sent"])["model"], settings, own)
    if found.base_url != was:
        raise UserError(
            f"batch {root_of(header)} was sent to {was or PROVIDER}, and {own or role.upper()}_BASE_URL leads to "
            f"{found.base_url or PROVIDER}; set it, with the key that goes with it, to take the batch in"
        )
    return found


def _collect_one(
    batched: Batched,
    index: LedgerIndex,
    header: Header,
    body: BatchBody,
    provider: BatchService,
    collected: Collected,
    cancel: bool,
) -> None:
    ledger = index.ledger
    known = body.provider.get("batch")
    if known is not None:
        job: Job | None = provider.job(known)
        if job is None and not cancel:
            where = body.provider.get("base_url") or PROVIDER
            raise UserError(
                f"batch {known} isn't known at {where}: set the key it was sent with, "
                f"or `memtrials batch cancel {root_of(header)}` gives it up, and its work is pending again"
            )
    elif job := provider.settle(header.id):
        second = _acknowledged(header, body, job)
        ledger.append(second)
        header = second.header
    if job is None:
        collected.batches += 1
        collected.unanswered += len(body.work)
        told = {"status": "never submitted"} if known is None else {"batch": known, "status": "unknown to the provider"}
        ledger.append(_closed(header, told))
        return
    if cancel and not job.finished:
        job = provider.cancel(job.id)
    if not job.finished:
        collected.waiting += len(body.work)
        return
    answered, failed = _take_in(batched, index, header, body, provider, job, collected)
    left = len(body.work) - answered - failed
    collected.batches += 1
    collected.unanswered += left
    counts = {"answered": str(answered), "failed": str(failed), "unanswered": str(left)}
    told = {"batch": job.id, "status": job.status, **counts, **({"problem": job.problem} if job.problem else {})}
    ledger.append(_closed(header, told))
    if job.status == "failed":
        problem = f"batch {job.id} was refused by the provider: {job.problem or 'it does not say why'}"
        collected.error = collected.error or UserError(f"{problem}; its work is pending again")


def _take_in(
    batched: Batched,
    index: LedgerIndex,
    header: Header,
    body: BatchBody,
    provider: BatchService,
    job: Job,
    collected: Collected,
) -> tuple[int, int]:
    """Append a record for each result that has none, and count the batch's results: usable and failed.

    A result has one when a record of its work stands after the batch's first: meanwhile nobody else did that work.
    """
    ledger = index.ledger
    model = ChatModel(provider.endpoint, _without_model(body.provider["sent"]), batched.cause)
    waiting = dict(zip(body.work, body.made_from, strict=True))
    answered = failed = 0
    for later in ledger.headers[ledger.position(root_of(header)) + 1 :]:
        name = (later.key or "", later.repeat or 0)
        if later.kind in (batched.kind, "failure") and waiting.pop(name, None) is not None:
            answered += later.kind != "failure"
            failed += later.kind == "failure"
    group: list[Record] = []
    for result in provider.results(job):
        key, _, ordinal = result.name.rpartition(":")
        name = (key, int(ordinal) if ordinal.isdecimal() else 0)
        made_from = waiting.pop(name, None)
        if made_from is None:
            continue
        parent, metric, *query = made_from
        config = batched.config_of(header)
        item = Work(*name, ledger.header(parent or ""), query[0] if query else None, config, metric=metric)
        call = Call(
            base_url=body.provider.get("base_url"), sent=body.provider["sent"], request_id=result.request_id, batch=True
        )
        try:
            group.append(model.take(result.status, result.raw, call, partial(batched.record_of, index, item)))
            answered += 1
            collected.done += 1
        except WorkFailedError as failure:
            group.append(_failure(batched, item, failure))
            failed += 1
            collected.missed.add(name)
            collected.failures[failure.message] = collected.failures.get(failure.message, 0) + 1
            if failure.class_ == "fatal":
                collected.error = collected.error or UserError(failure.message)
        if len(group) >= GROUP:
            ledger.append(*group)
            group = []
    if group:
        ledger.append(*group)
    return answered, failed


def _failure(batched: Batched, item: Work, failure: WorkFailedError) -> Record:
    body = FailureBody(
        cause=failure.cause, message=failure.message, attempts=failure.attempts, call=failure.call, raw=failure.raw
    )
    return failure_record(batched.stage, item, failure, body)
