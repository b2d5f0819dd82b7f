"""The types of the ledger: ten kinds of records, each a header and a body.

A record is one line of JSON: the header's fields, then one last field `body`. A resume decodes headers only, so
everything that decides what is pending stands in the header and everything large stands in the body. One field name
has one JSON type in all kinds, so that data-frame libraries can read the file; what a service sent is kept as text.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import orjson

from memtrials.errors import Cause, FailureClass, UserError

SCHEMA = 1

Kind = Literal["config", "task", "step", "ingest", "retrieval", "answer", "verdict", "failure", "void", "batch"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Role = Literal["system", "fetch", "reader", "judge"]
ROLES: tuple[Role, ...] = get_args(Role)


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What a resume reads of a record. Fields that don't apply are left out of the file.

    id: ULID, names the record. key: SHA-256 that names the work (see `work_key`), a configuration's id for `config`.
    content: SHA-256 of what the next stage reads. parents: ids of the records it was made from (for `void`, of what
    it takes out). system, fetch, reader, judge: configuration ids, copied down from parent to child.
    """

    id: str
    kind: Kind
    schema: int = msgspec.field(default_factory=lambda: SCHEMA)  # a plain default would be left out of the file
    key: str | None = None
    content: str | None = None
    parents: tuple[str, ...]
    benchmark: str | None = None
    task: str | None = None
    query: str | None = None
    type: str | None = None
    system: str | None = None
    fetch: str | None = None
    reader: str | None = None
    judge: str | None = None
    metric: str | None = None
    stage: str | None = None
    class_: FailureClass | None = msgspec.field(default=None, name="class")
    repeat: int | None = None
    at: str


class Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """What all bodies share: nothing but, where some were found, the mark `replaced_surrogates` that `encode` adds."""


class ConfigBody(Body, frozen=True, kw_only=True):
    """The whole of one configuration, prompt text included, secrets never. settings is what its id is the hash of;
    provenance holds what doesn't shape the work (the `[fetch]` defaults of a system, the file of an import)."""

    role: Role
    name: str
    settings: dict[str, Any]
    provenance: dict[str, Any] = {}


class DataFile(msgspec.Struct, frozen=True):
    """A file of a release: its path inside the release and the SHA-256 of its bytes."""

    path: str
    sha256: str


class Release(msgspec.Struct, frozen=True):
    """The data a ledger's benchmark was built from. sha256: of the files' hashes, what one ledger may hold once.

    known: whether that hash is in the table of known releases. attribution: the notice its licence asks to keep.
    """

    sha256: str
    files: tuple[DataFile, ...]
    known: bool
    attribution: str
    constants: dict[str, int] = {}


class Query(msgspec.Struct, frozen=True):
    """A question asked after step `after` of the timeline (-1: before the first; None: when all is told, of the
    frozen state). unit: what is scored once and is sampled and sharded as a whole. cluster: questions that share it
    aren't independent (MEASURING §5)."""

    id: str
    text: str
    unit: str
    cluster: str
    date: str | None = None
    type: str | None = None
    after: int | None = None


class Gold(msgspec.Struct, frozen=True):
    """What only judges, measures and controls behind the gold door may see. evidence: neutral turn ids."""

    query: str
    answers: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    abstention: bool = False
    details: dict[str, str] = {}


class TimelineSource(msgspec.Struct, frozen=True):
    """Where replay finds the timeline again: a file of the release, its SHA-256 and a byte range in it."""

    file: str
    sha256: str
    start: int
    end: int
    options: dict[str, str] = {}


class TaskBody(Body, frozen=True, kw_only=True):
    """Everything later stages need of a task without its data. sessions: the digest of every session, in order (in
    the file `session_digests`, because an ingest's `sessions` is a number); of a scripted life, of every event. needs:
    what a system must be able to do to be told of it."""

    release: Release
    data: str
    source: TimelineSource
    sessions: tuple[str, ...] = msgspec.field(name="session_digests")
    turns: int
    queries: tuple[Query, ...]
    gold: tuple[Gold, ...]
    needs: tuple[str, ...] = ()

    @property
    def scripted(self) -> bool:
        """Whether its queries have places in the timeline, where replay asks them."""
        return any(query.after is not None for query in self.queries)

    def query(self, query_id: str) -> Query:
        """The query of that id. Raises KeyError."""
        for query in self.queries:
            if query.id == query_id:
                return query
        raise KeyError(query_id)

    def gold_of(self, query_id: str) -> Gold:
        """The gold of that query; empty gold where the benchmark has none."""
        return next((gold for gold in self.gold if gold.query == query_id), Gold(query=query_id))


class Store(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a service keeps a state in, by its own id. label: whose memories these are, where a state has several."""

    id: str
    label: str | None = None


class StepBody(Body, frozen=True, kw_only=True):
    """A session on its way to a system that isn't embedded: written before it goes out and when it has arrived.

    store: where it goes, by the service's id (None: the service has no ids of its own). refused: the service surely has
    nothing of it. ticket: the service's word for what it has taken but not finished; it can be asked with it. stores:
    all that the state is kept in, so that the next run can go on. seconds: from sent to acknowledged, in one run.
    """

    namespace: str
    session: int
    state: Literal["sent", "acknowledged", "refused"]
    user: str | None = None
    store: str | None = None
    stores: tuple[Store, ...] = ()
    ticket: str | None = None
    seconds: float | None = None


class Effort(msgspec.Struct, frozen=True, omit_defaults=True):
    """Time and calls of one piece of work (MEASURING §9).

    seconds: measured wall time; where a service was asked, of the attempt that succeeded. charged_seconds: what it
    would have taken alone, with the first cost of every cached embedding and its own copy of a shared prefix.
    prefix_seconds: the shared prefix's part of charged_seconds. attempts and waited_seconds: tries of a service, and
    what failed ones and pauses took beside `seconds`. workers: pieces of work in flight at once.
    """

    seconds: float
    charged_seconds: float | None = None
    prefix_seconds: float = 0.0
    cache_hits: int = 0
    cache_misses: int = 0
    workers: int = 1
    attempts: int = 1
    waited_seconds: float = 0.0


class Memory(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a system with memories of several kinds says of an item: by its own id and by the one it was given.

    episode_external_id: of the episode an observation belongs to, or the first that a memory was derived from.
    """

    kind: str
    internal_id: str
    external_id: str | None = None
    episode_external_id: str | None = None
    rationale: tuple[str, ...] = ()


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """One retrieved memory. rank counts from 1; turns are neutral turn ids (None: the system gives no evidence), in
    the file `turn_ids`, because elsewhere `turns` is a number."""

    rank: int
    text: str
    score: float | None = None
    turns: tuple[str, ...] | None = msgspec.field(default=None, name="turn_ids")
    time: str | None = None
    memory: Memory | None = None


class Operated(msgspec.Struct, frozen=True, omit_defaults=True):
    """An operation of a scripted life. step: the event's place in the timeline, -1 before the first.

    operation_id: the system's own name for it; reported: its own report, as JSON text; seconds: of the whole event, at
    its first operation.
    """

    step: int
    operation: str
    operation_id: str | None = None
    reported: str | None = None
    seconds: float | None = None


class Restarted(msgspec.Struct, frozen=True):
    """A restart in a life, probed by the next query before and after. restored: identities that the system then knew.

    items_before, items_after: what the probe brought back; raw_before, raw_after: the system's own traces of that.
    """

    step: int
    query: str
    restored: int
    items_before: tuple[Item, ...]
    items_after: tuple[Item, ...]
    raw_before: str | None = None
    raw_after: str | None = None


class IngestBody(Body, frozen=True, kw_only=True):
    """A state. namespace and user are random and opaque; an imported result has no state (namespace null). usage: what
    the system reports of its own calls. embedded_at: base URL of the endpoint that vectors were fetched from. stores:
    what a service keeps it in. skipped_turns: turns that the system doesn't take. imported_from: the manifest of a
    state that others made; ids_leaked: it goes by names that tell which task it is. operations, restarts: of a scripted
    life, in order; declared: what its own vectors are of, if it took those: provider, model, revision, dimensions, and
    of a store its source and dimension_policy."""

    namespace: str | None
    user: str | None = None
    system_version: str | None
    capabilities: tuple[str, ...]
    sessions: int
    turns: int
    forked_at: int | None = None
    effort: Effort | None = None
    usage: dict[str, int] | None = None
    embedded_at: str | None = None
    stores: tuple[Store, ...] = ()
    skipped_turns: int = 0
    imported_from: str | None = None
    ids_leaked: bool = False
    operations: tuple[Operated, ...] = ()
    restarts: tuple[Restarted, ...] = ()
    declared: dict[str, str] = {}


class Fit(msgspec.Struct, frozen=True):
    """How a context was made to fit (MEASURING §8), in tokens of o200k_base: at most `asked` of its `tokens`, of which
    `used` were kept. Of its turns so many are whole, partial (cut) and dropped."""

    asked: int
    tokens: int
    used: int
    whole: int
    partial: int
    dropped: int

    @property
    def is_whole(self) -> bool:
        """Whether nothing was cut."""
        return not self.partial + self.dropped


class RetrievalBody(Body, frozen=True, kw_only=True):
    """One trial's retrieval. context is the exact text a reader sees (null where an import came without it, and so is
    the header's content); date is the question's own. fit: None where everything is shown however long it is. answer:
    what a system that answers by itself said. protocol: `state shared` where earlier queries may have changed the
    state.

    Under a budget, items are all that came back; `fit` says how many of them, best first, stand in the context, and
    spans where (from, to, in characters). items_in: the retrieval whose query this one was cut from; it holds items and
    usage of both.
    """

    question: str
    context: str | None
    date: str | None = None
    items: tuple[Item, ...] | None = None
    items_in: str | None = None
    fit: Fit | None = None
    spans: tuple[tuple[int, int], ...] = ()
    effort: Effort | None = None
    usage: dict[str, int] | None = None
    answer: str | None = None
    protocol: str | None = None
    raw: str | None = None


class Call(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a model call really was: sent are the parameters as sent (JSON text), model_returned what answered.
    seconds: of the last attempt alone; queued_seconds: waiting for a place, all attempts together.
    wasted: tokens of earlier replies to the same request that were of no use. batch: it came by a batch service, which
    has prices of its own and no time."""

    model_returned: str | None = None
    base_url: str | None = None
    sent: str | None = None
    finish_reason: str | None = None
    request_id: str | None = None
    attempts: int = 1
    seconds: float | None = None
    queued_seconds: float | None = None
    workers: int = 1
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    wasted_prompt_tokens: int = 0
    wasted_completion_tokens: int = 0
    batch: bool = False


class AnswerBody(Body, frozen=True, kw_only=True):
    """A reader's answer. cut: the reply stopped at the length limit."""

    text: str
    cut: bool = False
    call: Call | None = None
    raw: str | None = None


class VerdictBody(Body, frozen=True, kw_only=True):
    """A judge's decision: score is 0.0 or 1.0. flagged: the judged answer itself holds a verdict in the judge's form,
    so it may have steered the judge. probe: the constructed answer, where the verdict is about none of a reader's."""

    score: float
    reason: str
    flagged: bool = False
    probe: str | None = None
    call: Call | None = None
    raw: str | None = None


class FailureBody(Body, frozen=True, kw_only=True):
    """Work that failed; its header has the key and repeat of that work, its stage and class. call and usage: what it
    took all the same."""

    cause: Cause
    message: str
    attempts: int
    seconds: float | None = None
    call: Call | None = None
    usage: dict[str, int] | None = None
    raw: str | None = None


class VoidBody(Body, frozen=True, kw_only=True):
    """Why records were taken out of the count. right and wrong: verdicts among them and below, by score."""

    reason: str
    kinds: dict[str, int]
    right: int
    wrong: int


class BatchBody(Body, frozen=True, kw_only=True):
    """Work handed to a provider's batch service, and what became of it (see `stages/handover.py`).

    work: (key, repeat) of what is in flight while the record is open and none has it as parent. made_from: for each
    the id of the record it is made from, its metric, and its query where that record is a task. provider: where it was
    sent, what was sent, and the provider's own names and words. dearest: US dollars it can cost at most, where a cap
    made that matter.
    """

    state: Literal["open", "closed"]
    work: tuple[tuple[str, int], ...]
    made_from: tuple[tuple[str | None, ...], ...] = ()
    provider: dict[str, str] = {}
    dearest: float | None = None


BODIES: dict[Kind, type[Body]] = {
    "config": ConfigBody,
    "task": TaskBody,
    "step": StepBody,
    "ingest": IngestBody,
    "retrieval": RetrievalBody,
    "answer": AnswerBody,
    "verdict": VerdictBody,
    "failure": FailureBody,
    "void": VoidBody,
    "batch": BatchBody,
}


class Record(msgspec.Struct, frozen=True):
    """A header with its body."""

    header: Header
    body: Body


# --- identity ---------------------------------------------------------------------------------------------------


def canonical(value: Any) -> bytes:
    """Canonical JSON: sorted keys, no spaces, UTF-8, lone surrogates replaced as they are when it is written. What
    every hash of the project is taken of."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return orjson.dumps(_clean(value, [0]), option=orjson.OPT_SORT_KEYS)


def sha256(value: Any) -> str:
    """Hex SHA-256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical(value)).hexdigest()


def text_sha256(text: str) -> str:
    """Hex SHA-256 of a text's UTF-8 bytes, lone surrogates replaced as they are when it is written."""
    return hashlib.sha256(clean_text(text).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of a file's bytes. Raises UserError when it can't be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from None


def new_id() -> str:
    """A new ULID."""
    from ulid import ULID  # a stage with nothing to do makes none, and this import takes its time

    return str(ULID())


def now() -> str:
    """The time in UTC, to the millisecond. Only for people: nothing is ordered by it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def plain_name(name: str) -> str:
    """The name as it stands in a configuration's id: characters outside `A–Z a–z 0–9 . _ -` become `-`."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", name)


def config_id(name: str, settings: Mapping[str, Any]) -> str:
    """The plain name, `-` and 8 hex digits of the SHA-256 of the settings."""
    return f"{plain_name(name)}-{sha256(settings)[:8]}"


def config_record(role: Role, name: str, settings: Mapping[str, Any], provenance: Mapping[str, Any]) -> Record:
    """The record that must precede the first record made under a configuration."""
    own = config_id(name, settings)
    header = Header(id=new_id(), kind="config", key=own, parents=(), at=now(), **{role: own})  # type: ignore[arg-type]
    return Record(header, ConfigBody(role=role, name=name, settings=dict(settings), provenance=dict(provenance)))


def work_key(
    kind: Kind,
    *,
    benchmark: str,
    task: str,
    query: str | None = None,
    parent: Header | None = None,
    config: str | None = None,
    metric: str | None = None,
) -> str:
    """The name of a piece of work: what is made (kind, place, metric), from what (parent) and how (configuration).

    Equal work on two machines has equal keys; the work's own ordinal (`repeat`) is not in it.
    """
    made_from = None if parent is None else [parent.key, parent.repeat, parent.content]
    return sha256([kind, benchmark, task, query, made_from, config, metric])


# --- encoding ---------------------------------------------------------------------------------------------------

_SURROGATE = re.compile("[\ud800-\udfff]")


def clean_text(text: str) -> str:
    """The text with lone surrogates replaced by U+FFFD; the same object when there is none."""
    return _SURROGATE.sub("\ufffd", text) if not text.isascii() and _SURROGATE.search(text) else text


def _clean(value: Any, count: list[int]) -> Any:
    """Plain JSON data without lone surrogates; `count` grows by one for each replaced. Raises ValueError for NaN."""
    if isinstance(value, str):
        cleaned = clean_text(value)
        if cleaned is not value:
            count[0] += len(_SURROGATE.findall(value))
        return cleaned
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} can't be recorded: a value that isn't known is null")
    if isinstance(value, dict):
        return {_clean(k, count): _clean(v, count) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(v, count) for v in value]
    return value


def encode(record: Record) -> bytes:
    """The record's line, without a comma or line end.

    Raises ValueError for NaN or infinity. Runs where the record is made, before it joins a batch.
    """
    header, body = msgspec.to_builtins(record.header), msgspec.to_builtins(record.body)
    try:
        line = _line(header, body)
    except orjson.JSONEncodeError:
        line = None
    if line is not None and b"null" not in line:  # orjson writes NaN as null; looking at every value takes much longer
        return line
    count = [0]
    header, body = _clean(header, count), _clean(body, count)
    if count[0]:
        body["replaced_surrogates"] = count[0]
    return _line(header, body)


def _line(header: dict[str, Any], body: dict[str, Any]) -> bytes:
    return orjson.dumps(header)[:-1] + BODY_MARK + orjson.dumps(body) + b"}"


BODY_MARK = b',"body":'
_body_decoders: dict[Kind, msgspec.json.Decoder[Any]] = {kind: msgspec.json.Decoder(t) for kind, t in BODIES.items()}


decode_header = msgspec.json.Decoder(Header).decode
"""A header from the bytes before the body mark and a `}`. Raises msgspec.DecodeError or ValidationError."""


def decode_body(kind: Kind, body: bytes | memoryview) -> Any:
    """A body of that kind; fields this version doesn't know are passed over."""
    return _body_decoders[kind].decode(body)


def describe(settings: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The names of the settings in which two configurations differ, sorted."""
    return sorted(k for k in {*settings, *other} if settings.get(k) != other.get(k))
