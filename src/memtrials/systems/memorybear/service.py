"""What a MemoryBear service is sent and what it answers: end users, writes, reads, and what their failures mean.

Success and failure share one envelope, `{code, msg, data, error}`, and some failures come with status 200, so the code
decides. A write is never repeated where it may have been heard.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from memtrials.errors import UserError, WorkFailedError
from memtrials.llm.limits import LONGEST_HOLD
from memtrials.llm.money import BudgetError
from memtrials.llm.troubles import Trouble
from memtrials.settings import Settings
from memtrials.systems.calling import Answered, Caller, Place

CREATE = "/v1/end_user/create"
WRITE = "/v1/memory/write/sync"
STATUS = "/v1/memory/write/status"
READ = "/v1/memory/read/sync"
QPS, DAY, QUOTA = 3014, 3015, 3016
UNKNOWN_USER, BROKEN, UNAVAILABLE = 4001, 10001, 10003
FATAL_CODES = frozenset((1003, 3007, 3009, 3012, 6010, 9503))
TIMEOUT = 120.0
"""Seconds of one request; a synchronous write extracts memories before it answers."""
ATTEMPTS = 3
SETTLING = 1800.0
"""Seconds after which a queued write that isn't finished has failed: an id the service forgot is pending for ever."""
LONGEST_PAUSE = 10.0
RECENT, PROFILE = "3", "4"
"""The search switches that show messages which aren't taken in yet, and the profile alone."""
_BAD_CONTENT = re.compile(r"\brole\b|content|messages?\b.*(empty|blank)", re.IGNORECASE)
_BAD_CONFIG = re.compile(r"config", re.IGNORECASE)


@dataclass(frozen=True)
class Connection:
    """How the service is reached; nothing of it shapes a state. settling: seconds a queued write may take."""

    place: Place
    write_path: str = WRITE
    status_path: str = STATUS
    settling: float = SETTLING


def connection(settings: Settings) -> Connection:
    """The service that MEMORY_* or MEM_* name. Raises UserError for what is missing or can't be."""
    named = settings.find("MEMORY_SERVICE_URL", "MEM_SERVICE_URL")
    if named is None:
        raise UserError("the MemoryBear service isn't named; set MEMORY_SERVICE_URL, such as http://localhost:8000")
    url = urlsplit(named.text)
    if url.scheme not in ("http", "https") or not url.netloc:
        raise UserError(f"{named.source}: {named.text!r} is no http(s) URL")
    base_url = named.text.rstrip("/") if named.source.startswith("MEMORY_") else f"{url.scheme}://{url.netloc}"
    key = settings.text("MEMORY_API_KEY", "MEM_API_KEY")
    if key is None:
        raise UserError("the MemoryBear service needs a key; set MEMORY_API_KEY")
    header = settings.text("MEMORY_API_KEY_HEADER", "MEM_AUTH_HEADER") or "Authorization"
    place = Place(
        "MemoryBear",
        base_url,
        {header: _value(header, key, settings)},
        key,
        _number(settings, "SERVICE_TIMEOUT", TIMEOUT),
        int(_number(settings, "SERVICE_MAX_RETRIES", ATTEMPTS)),
    )
    return Connection(
        place,
        _path(settings, "MEMORY_WRITE_PATH", WRITE),
        _path(settings, "MEMORY_STATUS_PATH", STATUS),
        _number(settings, "MEMORY_WRITE_DEADLINE", SETTLING),
    )


def named_path(settings: Settings) -> str | None:
    """The path of MEM_SERVICE_URL, which is a whole read URL."""
    whole = settings.text("MEM_SERVICE_URL")
    return urlsplit(whole).path or None if whole else None


def _value(header: str, key: str, settings: Settings) -> str:
    """The header's value: `Bearer KEY` under Authorization unless the key says so itself, else the bare key."""
    prefix = settings.text("MEM_AUTH_PREFIX") or ("Bearer" if header.lower() == "authorization" else "")
    return key if not prefix or key.startswith(f"{prefix} ") else f"{prefix} {key}"


def _path(settings: Settings, name: str, default: str) -> str:
    path = settings.text(name) or default
    if not path.startswith("/"):
        raise UserError(f"{name} is {path!r}; a path begins with /")
    return path


def _number(settings: Settings, name: str, default: float) -> float:
    value = settings.find(name)
    if value is None:
        return default
    try:
        number = float(value.text)
    except ValueError:
        number = 0.0
    if not 1 <= number < float("inf"):
        raise UserError(f"{value.source}: {value.text!r} must be a number of 1 or more")
    return number


def trouble_in(
    status: int, body: Any, headers: Mapping[str, str], *, passed: bool, now: float | None = None
) -> Trouble | None:
    """What is wrong with a reply of the service; None for code 0.

    passed: whether such a request has passed already; then one that isn't valid is this item's trouble. now: seconds
    since the epoch. Raises BudgetError at a limit of the day or of the key.
    """
    code = body.get("code") if isinstance(body, dict) else None
    if status < 400 and type(code) is int and code == 0:
        return None
    told = _told(status, code, body)
    if status == 429:
        wait = _until_reset(headers, now)
        if code in (DAY, QUOTA):
            raise BudgetError(f"{told}; {_when(headers)}")
        return Trouble("transient", told, wait=max(1.0, min(wait or 1.0, LONGEST_HOLD)), overload=True)
    if status == 402 or code in FATAL_CODES or code == UNKNOWN_USER or status in (401, 403, 404, 405):
        return Trouble("fatal", told, no_path=status == 404)
    if status in (400, 413, 422):
        return Trouble("content" if passed else "fatal", told)
    if status == 503 or code == UNAVAILABLE:
        return Trouble("transient", told, overload=True)
    if status < 400 and code == BROKEN:
        error = str(body.get("error") or body.get("msg") or "")
        if _BAD_CONFIG.search(error):
            return Trouble("fatal", told)
        return Trouble("content" if _BAD_CONTENT.search(error) else "transient", told)
    if 400 < status < 500 and status not in (408, 409, 425):
        return Trouble("fatal", told)
    return Trouble("transient", told)


def _told(status: int, code: Any, body: Any) -> str:
    """One line that says what came back."""
    said = ""
    if isinstance(body, dict):
        errors = body.get("errors")
        listed = errors if isinstance(errors, list) else ()
        fields = [f"{e.get('field')}: {e.get('message')}" for e in listed if isinstance(e, dict)]
        parts = [body.get("error") or body.get("message") or body.get("msg") or body.get("detail"), *fields]
        said = "; ".join(" ".join(str(part).split()) for part in parts if part)[:500]
    else:
        said = "the body is no envelope with a code"
    named = code if code is not None else body.get("error_code") if isinstance(body, dict) else None
    hint = "; the end user is unknown to the service" if code == UNKNOWN_USER else ""
    return f"HTTP {status}{f', code {named}' if named is not None else ''}: {said or 'no message'}{hint}"


def _until_reset(headers: Mapping[str, str], now: float | None) -> float | None:
    try:
        return float(headers["X-RateLimit-Reset"]) - (time.time() if now is None else now)
    except (KeyError, ValueError):
        return None


def _when(headers: Mapping[str, str]) -> str:
    try:
        at = datetime.fromtimestamp(float(headers["X-RateLimit-Reset"]), UTC)
    except (KeyError, ValueError, OverflowError):
        return "run again when the limit is lifted"
    return f"run again after {at:%Y-%m-%d %H:%M:%S} UTC"


class Service:
    """One service, asked from within one event loop."""

    poll = 0.1

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.caller = Caller(connection.place)
        self._passed: set[str] = set()
        self._spent_day: str | None = None
        self._has_status = True

    async def create(self, other_id: str, config: str) -> str:
        """The end user of that name, made if there is none."""
        body = {"other_id": other_id, **({"memory_config_id": config} if config else {})}
        data = (await self._call("POST", CREATE, body)).body.get("data")
        made = data.get("id") if isinstance(data, dict) else None
        if not isinstance(made, str):
            raise WorkFailedError("service", "transient", f"MemoryBear: {CREATE} gave no id of an end user")
        return made

    async def write(self, user: str, messages: Sequence[Mapping[str, str]], config: str) -> list[str] | None:
        """Store messages; the ids to ask with, where the service has queued them. See `Caller.call` for errors."""
        path = self.connection.write_path
        body = {"messages": list(messages), "end_user_id": user, **({"config_id": config} if config else {})}
        data = (await self._call("POST", path, body, writes=True)).body.get("data")
        if isinstance(data, dict) and isinstance(data.get("task_ids"), list):
            return [str(task) for task in data["task_ids"]]
        if isinstance(data, dict) and data.get("task_id"):
            return [str(data["task_id"])]
        return None

    async def settle(self, user: str, tasks: Sequence[str]) -> None:
        """Ask until queued writes are finished: by their ids, or, where the service has no such answer, until it shows
        no message of this user that isn't taken in. Raises WorkFailedError for a failed one and after the deadline."""
        deadline, pause = time.monotonic() + self.connection.settling, self.poll
        waiting = list(tasks)
        while True:
            if waiting and self._has_status:
                if await self._finished(waiting[0]):
                    waiting.pop(0)
                    continue
            elif (not waiting and tasks and self._has_status) or not await self._recent(user):
                return
            if time.monotonic() + pause > deadline:
                raise WorkFailedError(
                    "service",
                    "transient",
                    f"MemoryBear: a queued write isn't finished after {self.connection.settling:g} s",
                )
            await self.caller.gate.pause(pause)
            pause = min(LONGEST_PAUSE, pause * 1.5)

    async def _finished(self, task: str) -> bool:
        reply = await self._call("GET", self.connection.status_path, params={"task_id": task})
        if not self._has_status:
            return False
        data = reply.body.get("data")
        if isinstance(data, dict) and data.get("status") in ("PENDING", "STARTED"):
            return False
        if not isinstance(data, dict) or data.get("result") is None:
            raise WorkFailedError("service", "transient", "MemoryBear: a queued write ended without a result")
        return True

    async def _recent(self, user: str) -> bool:
        reply = await self.read(READ, {"message": "recent", "search_switch": RECENT, "end_user_id": user})
        return any(item.get("source") == "HISTORY" for item in items_in(reply.body))

    async def read(self, path: str, body: Mapping[str, Any]) -> Answered:
        """Ask one end user; the body is the whole envelope, checked to hold an answer and items."""
        return await self._call("POST", path, body, reads=True)

    async def knows(self, user: str) -> bool:
        """Whether there is an end user of that id: a look at the profile finds out."""
        body = {"message": "profile", "search_switch": PROFILE, "end_user_id": user}
        reply = await self._call("POST", READ, body, known=False)
        return bool(reply.body.get("code") == 0)

    async def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        params: Mapping[str, str] | None = None,
        writes: bool = False,
        reads: bool = False,
        known: bool = True,
    ) -> Answered:
        if self._spent_day is not None:
            raise BudgetError(self._spent_day)

        def judge(status: int, found: Any, headers: Mapping[str, str]) -> Trouble | None:
            if path == self.connection.status_path and status in (404, 405):
                self._has_status = False
                return None
            if not known and isinstance(found, dict) and found.get("code") == UNKNOWN_USER:
                return None
            trouble = trouble_in(status, found, headers, passed=path in self._passed)
            if trouble is None and reads:
                trouble = _unreadable(found)
            if trouble is None:
                self._passed.add(path)
                self._heed(headers)
            return trouble

        try:
            return await self.caller.call(
                method,
                path,
                judge,
                body=body,
                params=params,
                headers={"X-Language-Type": "en"} if writes else None,
                writes=writes,
            )
        except BudgetError as limit:
            self._spent_day = str(limit)
            raise

    def _heed(self, headers: Mapping[str, str]) -> None:
        """What a good reply says of the limits: nothing goes out in a second, or on a day, that has none left."""
        if headers.get("X-RateLimit-Remaining-QPS") == "0":
            self.caller.gate.hold(1.0 - time.time() % 1.0)
        if headers.get("X-RateLimit-Remaining-Day") == "0":
            self._spent_day = "the service's limit of requests for today"


def items_in(envelope: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The items of a read's reply, in the service's order."""
    items: list[dict[str, Any]] = envelope["data"]["intermediate_outputs"]
    return items


def _unreadable(envelope: Mapping[str, Any]) -> Trouble | None:
    """A reply that isn't what a read gives: it may have been cut, and an empty memory is not what it means."""
    data = envelope.get("data")
    if not isinstance(data, dict) or not isinstance(data.get("answer"), str):
        return Trouble("transient", "the reply has no text `answer`")
    items = data.get("intermediate_outputs")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return Trouble("transient", "the reply has no list `intermediate_outputs`")
    return None
