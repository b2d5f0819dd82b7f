"""MemoryBear: a memory service that extracts statements and entities from what it is told, asked over HTTP.

A timeline with named speakers goes into one store for each of them, in which that person is the user and the other the
assistant; any other timeline goes into one store. The names of end users are random.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memtrials.benchmarks.timeline import Session, Turn
from memtrials.errors import UserError, WorkFailedError
from memtrials.records import Effort, Item, Store
from memtrials.settings import Settings, masked
from memtrials.systems.base import Capability, Meter, Plugin, Retrieved, Surroundings
from memtrials.systems.calling import Answered, Loop
from memtrials.systems.memorybear import assembly, rerank
from memtrials.systems.memorybear.assembly import Picked
from memtrials.systems.memorybear.manifests import read_manifests
from memtrials.systems.memorybear.service import READ, Service, connection, items_in, named_path
from memtrials.systems.times import iso_time

CAPABILITIES: frozenset[Capability] = frozenset(("restart", "event_time", "multi_speaker", "async_indexing", "answers"))
SWITCHES = ("0", "1", "2", "3", "4", "5")
SUMMARISED = ("0", "1")
"""Search switches with which the service's answer is a model's, not its items' contents."""
CANDIDATES = 10
"""Items that a service gives of each store, and that reranking keeps, unless another number is asked for."""


def messages_of(session: Session, owner: str | None) -> list[dict[str, str]]:
    """What is written of a session: its turns that aren't blank, with the session's or their own time.

    owner: whose store it is; that speaker is the user, every other the assistant, and the name stands before the text.
    Raises ValueError for a time that can't be read.
    """
    messages = []
    for turn in session.turns:
        if not turn.content.strip():
            continue
        role, content = turn.role, turn.content
        if owner is not None:
            role = "user" if turn.speaker == owner else "assistant"
            content = f"{turn.speaker}: {turn.content}"
        messages.append({"role": role, "content": content, "dialog_at": iso_time(turn.time or session.time or "")})
    return messages


def blank_turns(session: Session) -> int:
    """How many turns aren't sent, because a blank one fails the whole call. Raises UserError for a time that can't be
    read: the service would take its own clock's."""
    try:
        return len(session.turns) - len(messages_of(session, None))
    except ValueError as error:
        raise UserError(f"MemoryBear needs the time of every session, and {error}") from None


@dataclass
class _Asked:
    """What one store gave. items: those that are shown."""

    store: Store
    reply: Answered
    ranked: rerank.Ranked


class MemoryBear:
    """The system. config: the memory configuration that end users are made with; empty is the workspace's own."""

    capabilities = CAPABILITIES
    embedded = False

    def __init__(self, config: str, surroundings: Surroundings) -> None:
        self.config = config
        self.surroundings = surroundings
        self.meter = Meter()
        self.service = Service(connection(surroundings.settings))
        self._reranker: rerank.Reranker | None = None
        self._loop = Loop()
        self._stores: dict[str, tuple[Store, ...]] = {}
        self._frozen: set[str] = set()

    # --- writing ---

    def begin(self, namespace: str, user: str, speakers: Sequence[str]) -> tuple[Store, ...]:
        """Make the end users of a state."""
        names: list[tuple[str, str | None]] = [(f"{user}-{n}", speaker) for n, speaker in enumerate(speakers)]
        made = [(self._loop.run(self.service.create(n, self.config)), label) for n, label in names or [(user, None)]]
        stores = tuple(Store(*store) for store in made)
        self._stores[namespace] = stores
        return stores

    def create(self, namespace: str, user: str) -> None:
        """Begin a state without named speakers."""
        self.begin(namespace, user, ())

    def attach(self, namespace: str, stores: Sequence[Store]) -> None:
        """Take up a state."""
        self._stores[namespace] = tuple(stores)
        self._frozen.add(namespace)

    def send(self, namespace: str, store: Store, session: Session) -> str | None:
        """Write a session to one end user; a ticket where the service has queued it."""
        try:
            messages = messages_of(session, store.label)
        except ValueError as error:
            raise UserError(f"MemoryBear needs the time of every session, and {error}") from None
        if not messages:
            return None
        tasks = self._loop.run(self.service.write(store.id, messages, self.config))
        return None if tasks is None else json.dumps(tasks)

    def settle(self, namespace: str, store: Store, ticket: str) -> None:
        """Wait until queued writes are finished."""
        self._loop.run(self.service.settle(store.id, json.loads(ticket)))

    def add(self, namespace: str, session: Session) -> None:
        """Write a session to every store of a state, and wait for it."""
        for store in self._stores[namespace]:
            if ticket := self.send(namespace, store, session):
                self.settle(namespace, store, ticket)

    def fork(self, source: str, namespace: str) -> None:
        """The service can't copy an end user."""
        raise UserError("MemoryBear can't copy a state")

    def freeze(self, namespace: str) -> None:
        """Every write has been waited for, so there is nothing left to do."""
        self._frozen.add(namespace)

    def discard(self, namespace: str) -> None:
        """Forget where it is: the service has no call that removes an end user."""
        self._stores.pop(namespace, None)
        self._frozen.discard(namespace)

    def exists(self, namespace: str) -> bool:
        """Whether the service knows every end user of a state that was taken up or frozen."""
        stores = self._stores.get(namespace, ()) if namespace in self._frozen else ()
        return bool(stores) and all(self._loop.run(self.service.knows(store.id)) for store in stores)

    # --- asking ---

    def query(self, namespace: str, text: str, date: str | None, settings: Mapping[str, Any]) -> Retrieved:
        """Ask every store of a state at once, and put together what they gave."""
        stores = self._stores[namespace]
        asked = self._loop.run(self._ask(stores, text, settings))
        if len(stores) == 1 and stores[0].label is None:
            context = assembly.memory(asked[0].ranked.picked.items)
        else:
            blocks = [assembly.labelled(a.store.label or "", a.ranked.picked, _answer(a)) for a in asked]
            context = "\n\n".join(blocks)
        shown = [item for a in asked for item in a.ranked.picked.items]
        items = tuple(
            Item(rank=rank, text=assembly.text_of(item), score=assembly.score_of(item) if "score" in item else None)
            for rank, item in enumerate(shown, 1)
        )
        summarised = len(asked) == 1 and settings["search_switch"] in SUMMARISED and not settings["skip_summary"]
        return Retrieved(
            context,
            items,
            json.dumps([_raw(a) for a in asked], ensure_ascii=False),
            answer=_answer(asked[0]).strip() if summarised else None,
            effort=_effort(asked),
        )

    async def _ask(self, stores: Sequence[Store], text: str, settings: Mapping[str, Any]) -> list[_Asked]:
        asked: list[_Asked] = []
        problems: list[BaseException] = []
        asking = (self._ask_one(store, text, settings) for store in stores)
        for one in await asyncio.gather(*asking, return_exceptions=True):
            if isinstance(one, BaseException):
                problems.append(one)
            else:
                asked.append(one)
        if problems:  # a closed gate is what another's failure left
            raise next((one for one in problems if isinstance(one, WorkFailedError)), problems[0])
        return asked

    async def _ask_one(self, store: Store, text: str, settings: Mapping[str, Any]) -> _Asked:
        limit = settings.get("candidates") if settings["rerank"] else settings.get("k")
        body = {
            "message": text,
            "search_switch": settings["search_switch"],
            "end_user_id": store.id,
            **({"config_id": self.config} if self.config else {}),
            **({"limit": limit} if limit else {}),
            **({"skip_summary": True} if settings["skip_summary"] else {}),
        }
        reply = await self.service.read(settings["read_path"], body)
        items = items_in(reply.body)
        fragments = sum(assembly.score_of(item) < assembly.PINNED for item in items)
        if limit and fragments > limit:
            raise WorkFailedError(
                "service",
                "fatal",
                f"MemoryBear gave {fragments} items where at most {limit} were asked for: {settings['read_path']} "
                "heeds no limit; ask another path with MEMORY_READ_PATH, or leave the number out",
            )
        if not settings["rerank"]:
            return _Asked(store, reply, rerank.Ranked(Picked((), items)))
        ranked = await self._reranking().rank(settings["rerank_model"], text, items, settings["k"])
        return _Asked(store, reply, ranked)

    def _reranking(self) -> rerank.Reranker:
        if self._reranker is None:
            around = self.surroundings
            self._reranker = rerank.Reranker(rerank.place(around.settings), around.cache)
        return self._reranker

    # --- the end ---

    def stop(self) -> None:
        """Send nothing more."""
        for caller in self._callers():
            self._loop.tell(caller.gate.close)

    def _callers(self) -> list[Any]:
        return [self.service.caller, *([self._reranker.caller] if self._reranker else [])]

    def close(self) -> None:
        """Close connections."""
        for caller in self._callers():
            self._loop.run(caller.close())
        self._loop.close()


def _answer(asked: _Asked) -> str:
    answer: str = asked.reply.body["data"]["answer"]
    return answer


def _raw(asked: _Asked) -> dict[str, Any]:
    """The whole of a store's reply, with what it took and what reranking left of it."""
    reply, ranked = asked.reply, asked.ranked
    kept = {
        "end_user_id": asked.store.id,
        "label": asked.store.label,
        "seconds": reply.seconds,
        "waited_seconds": reply.waited,
        "attempts": reply.attempts,
        "response": reply.body,
    }
    if ranked.picked.reranked:
        kept["reranked"] = [{key: item.get(key) for key in ("source", "id", "score")} for item in ranked.picked.items]
        kept["rerank_seconds"] = ranked.seconds
    return kept


def _effort(asked: Sequence[_Asked]) -> Effort:
    """What a query took: stores are asked at once, so the slowest counts. Cached rankings are charged, not measured."""
    seconds = max(a.reply.seconds + (0.0 if a.ranked.cached else a.ranked.seconds) for a in asked)
    return Effort(
        seconds=seconds,
        charged_seconds=max(a.reply.seconds + a.ranked.seconds for a in asked),
        cache_hits=sum(a.ranked.cached for a in asked),
        cache_misses=sum(not a.ranked.cached and a.ranked.seconds > 0 for a in asked),
        attempts=sum(a.reply.attempts for a in asked),
        waited_seconds=max(a.reply.waited + a.ranked.waited for a in asked),
    )


# --- settings ---

FETCH: Mapping[str, Any] = {
    "search_switch": "",
    "read_path": "",
    "k": 0,
    "candidates": 0,
    "skip_summary": False,
    "rerank": False,
    "rerank_model": "",
}
"""Empty, 0 and false: what the environment says, else the default."""


def fetch_configuration(fetch: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """The whole of a fetch configuration: what was asked for, then the environment, then defaults. Raises UserError."""
    find = settings.text
    reranks = fetch["rerank"] or _yes(settings, "RERANK_ENABLED")
    found: dict[str, Any] = {
        "search_switch": fetch["search_switch"] or find("MEMORY_SEARCH_SWITCH", "SEARCH_SWITCH") or "2",
        "read_path": fetch["read_path"] or find("MEMORY_READ_PATH") or named_path(settings) or READ,
        "skip_summary": fetch["skip_summary"] or _yes(settings, "MEM_SKIP_SUMMARY"),
        "rerank": reranks,
    }
    if found["search_switch"] not in SWITCHES:
        raise UserError(f"search_switch is {found['search_switch']!r}; known: {', '.join(SWITCHES)}")
    if not found["read_path"].startswith("/"):
        raise UserError(f"read_path is {found['read_path']!r}; a path begins with /")
    limit = _count(settings, "TOP_K_LIMIT")
    if reranks:
        found["rerank_model"] = fetch["rerank_model"] or find("RERANK_MODEL") or "gte-rerank-v2"
        found["k"] = fetch["k"] or _count(settings, "RERANK_TOP_N") or CANDIDATES
        limit = fetch["candidates"] or limit
        return {**found, "candidates": limit} if limit else found
    limit = fetch["k"] or limit
    return {**found, "k": limit} if limit else found


def _yes(settings: Settings, name: str) -> bool:
    return (settings.text(name) or "").lower() in ("1", "true", "yes")


def _count(settings: Settings, name: str) -> int:
    value = settings.find(name)
    if value is None:
        return 0
    if not value.text.isdecimal() or int(value.text) < 1:
        raise UserError(f"{value.source}: {value.text!r} must be a whole number of 1 or more")
    return int(value.text)


def _state(state: Mapping[str, Any], settings: Settings) -> Mapping[str, Any]:
    """The memory configuration that shapes what is extracted."""
    return {"memory_config": state["memory_config"] or settings.text("MEMORY_CONFIG_ID", "MEM_CONFIG_ID") or ""}


def _ready(state: Mapping[str, Any], settings: Settings) -> None:
    connection(settings)
    if _yes(settings, "RERANK_ENABLED"):
        rerank.place(settings)


# --- preflight ---

LINES = (
    ("The greenhouse key hangs behind the blue watering can.", "Behind the blue can, noted."),
    ("My neighbour Odile waters the orchids on Mondays.", "Good to know who looks after them."),
)
QUESTION = "Where is the key of the greenhouse?"
TIME = "2024/03/02 (Sat) 10:15"


def preflight(
    state: Mapping[str, Any], fetch: Mapping[str, Any], surroundings: Surroundings
) -> Iterator[tuple[str, str, str]]:
    """Create an end user, write two sessions, ask one question, and tell what came of each. Raises UserError or
    WorkFailedError. The end user stays: the service has no call that removes one."""
    where = connection(surroundings.settings)
    yield "service", where.place.base_url, f"timeout {where.place.timeout:g} s, {where.place.attempts} attempts"
    yield "key", masked(where.place.secret), ", ".join(where.place.headers)
    yield "write path", where.write_path, "MEMORY_WRITE_PATH"
    yield "memory config", state["memory_config"] or "the workspace's own", "MEMORY_CONFIG_ID"
    for name, value in fetch.items():
        yield name, str(value), "asked for"
    system = MemoryBear(state["memory_config"], surroundings)
    try:
        user = secrets.token_hex(8)
        (store,) = system.begin(user, user, ())
        yield "create", store.id, "end user"
        for said, replied in LINES:
            session = Session((Turn("user", said, TIME), Turn("assistant", replied, TIME)), TIME)
            ticket = system.send(user, store, session)
            if ticket:
                yield "write", "queued", ticket
                system.settle(user, store, ticket)
        yield "write", f"{len(LINES)} sessions, taken in", ""
        found = system.query(user, QUESTION, None, fetch)
        assert found.items is not None
        assert found.effort is not None
        yield "question", QUESTION, f"{found.effort.seconds:.2f} s, {found.effort.attempts} attempts"
        for item in found.items:
            yield f"item {item.rank}", " ".join(item.text.split())[:100], f"score {item.score}"
        if all((item.score or 0.0) >= assembly.PINNED for item in found.items):
            yield "items", "nothing but the profile: what was written isn't found", "check the memory configuration"
        for line in found.context.splitlines():
            yield "context", line, ""
        yield "answer", found.answer or "none of its own with this search switch", ""
        yield "limit", *_probe(system, store, fetch)
    finally:
        system.close()


def _probe(system: MemoryBear, store: Store, fetch: Mapping[str, Any]) -> tuple[str, str]:
    """Whether the read path heeds a limit: an unknown field is ignored without a word."""
    body = {"message": QUESTION, "search_switch": fetch["search_switch"], "end_user_id": store.id, "limit": 1}
    reply = system._loop.run(system.service.read(fetch["read_path"], body))
    count = sum(assembly.score_of(item) < assembly.PINNED for item in items_in(reply.body))
    told = f"1 asked for, {count} came"
    if count > 1:
        return told, f"{fetch['read_path']} heeds no limit: k and candidates have no effect there"
    return told, "heeded" if count == 1 else "nothing to tell by"


PLUGINS = {
    "memorybear": Plugin(
        name="memorybear",
        version="1",
        open=lambda state, around: MemoryBear(state["memory_config"], around),
        state={"memory_config": ""},
        fetch=FETCH,
        choices={"search_switch": ("", *SWITCHES)},
        resolve=_state,
        ready=_ready,
        asked=fetch_configuration,
        fits=blank_turns,
        at_once=True,
        manifest=read_manifests,
        preflight=preflight,
        capabilities=CAPABILITIES,
    )
}
