"""What a memory system is to the stages, and what it may be told: sessions, a query's text, a query's date.

No method takes a benchmark's ids, types or gold; controls that need gold implement `GoldDoor` and are excepted by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from memtrials.errors import WorkFailedError
from memtrials.llm.money import Purse
from memtrials.records import Effort, Fit, Gold, Item, Store
from memtrials.settings import Settings

if TYPE_CHECKING:
    from memtrials.benchmarks.enrichment import Graph
    from memtrials.benchmarks.life import Life, LifeEvent, Restart
    from memtrials.benchmarks.timeline import Session

Capability = Literal[
    "fork",
    "correct",
    "forget",
    "link",
    "enrich",
    "restart",
    "evidence_ids",
    "async_indexing",
    "learns_on_read",
    "verbatim",
    "deterministic",
    "event_time",
    "multi_speaker",
    "answers",
]
"""What a system can do. fork: copy a state. enrich: take in what was precomputed of a history (`Enriched`). restart: a
frozen state outlives the process. evidence_ids: items name their turns. verbatim: turns come back unchanged.
deterministic: the same timeline gives the same answers to a query. event_time: session times are kept. multi_speaker:
speakers' names are kept. answers: it answers by itself."""


@dataclass(frozen=True)
class Retrieved:
    """What a query brought back. context: exactly what a reader will see; items: best first, None without ids.

    pieces: the context's parts, best first, one for each item where there are items, which stand on lines of their own
    (None: it is one text); places: the order in which they are shown, smallest first, where it isn't that of rank.
    fit: how the context was cut, where the system has a window. answer: the system's own, where it answers by itself.
    effort: of a service, which knows its attempts; else the stage measures.
    """

    context: str
    items: tuple[Item, ...] | None = None
    raw: str | None = None
    fit: Fit | None = None
    answer: str | None = None
    effort: Effort | None = None
    pieces: tuple[str, ...] | None = None
    places: tuple[int, ...] = ()


Usage = dict[str, int] | None


@dataclass
class Meter:
    """What a system has counted since it was opened. first_cost_seconds: what cache hits cost when they were made;
    setup_seconds: what loading a model took, which no query or session has to bear.

    endpoint: where embeddings came from, if anything was sent; requests: sent there. tokens: of what was sent, as
    reported; charged_tokens: of all texts, the cached ones as they were first reported; unreported: texts of which no
    tokens are known.
    """

    cache_hits: int = 0
    cache_misses: int = 0
    first_cost_seconds: float = 0.0
    setup_seconds: float = 0.0
    endpoint: str | None = None
    requests: int = 0
    tokens: float = 0.0
    charged_tokens: float = 0.0
    unreported: int = 0

    def answered_since(self, before: Meter) -> bool:
        """Whether any request was answered since an earlier state of this meter, and so was paid for."""
        return self.tokens > before.tokens or self.unreported > before.unreported

    def usage(self, sent_since: Meter, charged_since: Meter, prefix: Mapping[str, int] | None = None) -> Usage:
        """What embeddings from an endpoint took since earlier states of this meter; None without an endpoint.

        `embedding_requests` and `embedding_tokens` were sent; `charged_embedding_tokens` are those of all texts, with
        what a shared prefix was charged. Tokens that weren't reported are left out.
        """
        if self.endpoint is None and not self.charged_tokens:
            return None
        used = {"embedding_requests": self.requests - sent_since.requests}
        if self.unreported == sent_since.unreported:
            used["embedding_tokens"] = round(self.tokens - sent_since.tokens)
            charged = round(self.charged_tokens - charged_since.charged_tokens)
            used["charged_embedding_tokens"] = charged + (prefix or {}).get("charged_embedding_tokens", 0)
        return used

    def effort_since(self, before: Meter, elapsed: float, prefix_seconds: float = 0.0) -> Effort:
        """What a piece of work took (MEASURING §9). before: a copy of this meter from when it began; elapsed: wall time
        since then; prefix_seconds: what a shared beginning cost alone."""
        seconds = elapsed - (self.setup_seconds - before.setup_seconds)
        return Effort(
            seconds=seconds,
            charged_seconds=seconds + self.first_cost_seconds - before.first_cost_seconds + prefix_seconds,
            prefix_seconds=prefix_seconds,
            cache_hits=self.cache_hits - before.cache_hits,
            cache_misses=self.cache_misses - before.cache_misses,
        )


class System(Protocol):
    """A memory system, opened for one run.

    embedded: its states are files of ours beside the ledger. Namespaces are opaque. A state is created, fed sessions
    in order, frozen, then only queried. Methods are called one at a time (unless its plugin says `at_once`), though not
    always by the same thread. Errors of the system itself are raised as WorkFailedError.
    """

    capabilities: frozenset[Capability]
    embedded: bool
    meter: Meter

    def create(self, namespace: str, user: str) -> None:
        """Begin an empty state."""

    def add(self, namespace: str, session: Session) -> None:
        """Take in the next session through the normal write path."""

    def fork(self, source: str, namespace: str) -> None:
        """Begin a state as a copy of one that isn't frozen yet. Only with the capability `fork`."""

    def freeze(self, namespace: str) -> None:
        """Make the state durable; nothing is added afterwards."""

    def discard(self, namespace: str) -> None:
        """Remove a state, frozen or not."""

    def exists(self, namespace: str) -> bool:
        """Whether the frozen state is on this machine (or at its service)."""

    def query(self, namespace: str, text: str, date: str | None, settings: Mapping[str, Any]) -> Retrieved:
        """Ask the frozen state. Changes nothing in it."""

    def close(self) -> None:
        """Release what is open."""


@runtime_checkable
class Enriched(Protocol):
    """What a system with the capability `enrich` has beside the methods of `System`."""

    def enrich(self, namespace: str, graph: Graph) -> None:
        """Take in what was precomputed of the sessions that were added; called after the last of them, before `freeze`.

        An episode is a session, by its position from 0 (`3`), an observation a turn (`3.0`); all references lead
        somewhere, none to a turn without words. The same graph again changes nothing.
        """


class RefusedError(WorkFailedError):
    """A session that the service surely has nothing of. Any other failure of a write leaves that open."""


@runtime_checkable
class Service(Protocol):
    """What a system has beside the methods of `System` whose states are in a service that gives them ids of its own.

    replay then calls `begin` and `send` in place of `create` and `add`, and records each session before it goes out and
    when it has arrived, so that a killed run is gone on with and nothing is written twice.
    """

    def begin(self, namespace: str, user: str, speakers: Sequence[str]) -> tuple[Store, ...]:
        """Begin an empty state; what it is kept in. speakers: names in the timeline, in order of appearance."""

    def attach(self, namespace: str, stores: Sequence[Store]) -> None:
        """Take up a state that another run began or froze."""

    def send(self, namespace: str, store: Store, session: Session) -> str | None:
        """Write the next session to one store. A ticket, where the service finishes later: see `settle`.

        Raises RefusedError when the service surely has nothing of it, WorkFailedError when nobody knows.
        """

    def settle(self, namespace: str, store: Store, ticket: str) -> None:
        """Ask until the service has finished what the ticket stands for. Raises WorkFailedError after a time limit."""

    def stop(self) -> None:
        """Begin no more requests: whoever waits for one gets a ClosedError."""


@dataclass(frozen=True)
class ForeignState:
    """A state that others made. leaked: its names tell the task."""

    stores: tuple[Store, ...]
    leaked: bool


@dataclass(frozen=True)
class Manifest:
    """States by task, from a file or folder of others. notes: what was skipped, superseded or fallen back on."""

    states: Mapping[str, ForeignState]
    notes: tuple[str, ...] = ()


@runtime_checkable
class GoldDoor(Protocol):
    """A control that sees a query's gold when it is asked."""

    def query_with_gold(
        self, namespace: str, text: str, date: str | None, settings: Mapping[str, Any], gold: Gold
    ) -> Retrieved:
        """Ask the frozen state, knowing the evidence."""


@dataclass(frozen=True)
class Surroundings:
    """Where a system may keep things. stores: a folder of its own beside the ledger; cache: shared by everything.

    settings: where endpoints and keys are looked for; never shown. purse: what may be sent and spent. stopped: set when
    nobody is to wait any longer.
    """

    stores: Path
    cache: Path
    settings: Settings = field(default=Settings(), repr=False, compare=False)
    purse: Purse = field(default_factory=Purse, repr=False, compare=False)
    stopped: Event = field(default_factory=Event, repr=False, compare=False)


@dataclass(frozen=True)
class Plugin:
    """A kind of system, found by name.

    state: its `[state]` settings with their defaults; optional: those that may be left out and then are no part of
    its id, with a value of their type; fetch: the `[fetch]` settings it heeds, with defaults. choices: allowed values
    by setting. resolve checks the rest and adds what else shapes a state (versions of models); open makes the system
    of resolved settings; ready raises UserError when something it needs from outside, such as a key, is missing.
    suits(state, fetch, life) raises UserError for settings that contradict each other, or that what will be told makes
    impossible: a scripted life (life True), a timeline (False), None where that isn't known.
    asked: the fetch configuration that settings and environment make together. fits: how many turns of a session the
    system doesn't take; raises UserError for a session that it can't take at all. embeds(state, session, number): the
    texts of a session that it has embedded, by the requests they go out in; number: the session's place.
    embeds_life(state, life, events): those of a scripted life that it is told event by event, None where nobody knows.
    at_once: it may be called from several threads. manifest(path, tasks): the states of a manifest, for a benchmark's
    tasks in order. preflight: one question end to end, as lines of what, value and source. control: stands apart in
    tables. opens_gold: comes through the gold door. silent: its contexts are always empty, so no budget shapes them.
    lives: it can be told of a life event by event (`systems/life.py`), as far as its capabilities go; named: by the
    script's own names. baseline(fetch): whether it then looks in what was said alone, so that it is given nothing that
    was precomputed.
    """

    name: str
    version: str
    open: Callable[[Mapping[str, Any], Surroundings], System]
    state: Mapping[str, Any] = field(default_factory=dict)
    optional: Mapping[str, Any] = field(default_factory=dict)
    fetch: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    resolve: Callable[[Mapping[str, Any], Settings], Mapping[str, Any]] = lambda state, settings: {}
    ready: Callable[[Mapping[str, Any], Settings], None] = lambda state, settings: None
    suits: Callable[[Mapping[str, Any], Mapping[str, Any], bool | None], None] = lambda state, fetch, life: None
    asked: Callable[[Mapping[str, Any], Settings], Mapping[str, Any]] = lambda fetch, settings: fetch
    baseline: Callable[[Mapping[str, Any]], bool] = lambda fetch: False
    fits: Callable[[Session], int] = lambda session: 0
    embeds: Callable[[Mapping[str, Any], Session, int], Sequence[Sequence[str]]] = lambda state, session, number: ()
    embeds_life: Callable[[Mapping[str, Any], Life, Sequence[LifeEvent | Restart]], Iterator[Sequence[str]]] | None = (
        None
    )
    at_once: bool = False
    manifest: Callable[[Path, Sequence[str]], Manifest] | None = None
    preflight: Callable[[Mapping[str, Any], Mapping[str, Any], Surroundings], Iterator[tuple[str, str, str]]] | None = (
        None
    )
    capabilities: frozenset[Capability] = frozenset()
    control: bool = False
    opens_gold: bool = False
    silent: bool = False
    lives: bool = False
    named: bool = False
