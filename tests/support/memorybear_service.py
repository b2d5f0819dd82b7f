"""A MemoryBear service on loopback, as its contract says, with the faults it is known for.

    with MemoryBearService() as service:
        service.fault("/v1/memory/read/sync", status_200(4001))
        …  # environment: service.environment()
    assert service.writes[0]["messages"][0]["dialog_at"] == "2024-03-02T10:15:00Z"

It keeps what it is told and finds messages by the words they share with a question. Every request is kept.
"""

import json
import re
import threading
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

KEY = "sk-service-0123456789abcdef0123456789abcdef"

CREATE = "/v1/end_user/create"
WRITE_SYNC = "/v1/memory/write/sync"
WRITE = "/v1/memory/write"
STATUS = "/v1/memory/write/status"
READ_SYNC = "/v1/memory/read/sync"
READ_INTERNAL = "/v1/memory/read/internal"


@dataclass(frozen=True)
class Reply:
    """What is sent back. after: seconds to wait first; dropped: no byte comes; undone: what was asked isn't done."""

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)
    after: float = 0.0
    dropped: bool = False
    undone: bool = True


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    query: Mapping[str, str]


def envelope(code: int, data: Any = None, error: str = "") -> dict[str, Any]:
    """The body that success and business failures share."""
    return {"code": code, "msg": "ok" if code == 0 else "failed", "data": data or {}, "error": error, "time": 0}


def failing(status: int, code: int, error: str = "", headers: Mapping[str, str] | None = None) -> Reply:
    """A failure in the envelope."""
    return Reply(status, envelope(code, error=error), headers or {})


def limited(code: int, reset_in: float) -> Reply:
    """429 with the headers of the limit that was hit."""
    return failing(429, code, "limit", {"X-RateLimit-Reset": str(int(time.time() + reset_in))})


def invalid(status: int, error_code: str, message: str) -> Reply:
    """402 and 422, which have no code."""
    return Reply(status, {"success": False, "error_code": error_code, "message": message, "errors": []})


DROPPED = Reply(0, None, dropped=True)
HEARD_AND_DROPPED = replace(DROPPED, undone=False)
"""The connection breaks before, or after, what was asked is done."""

Fault = Reply | Callable[[Asked], Reply | None]


class MemoryBearService:
    """A service for the time of a `with` block. generation: `A` or `B`; heeds_limit: whether read/internal does."""

    def __init__(self, generation: str = "A", limit: int = 10) -> None:
        self.generation = generation
        self.limit = limit
        self.pending_polls = 0
        self.headers: dict[str, str] = {}
        self.asked: list[Asked] = []
        self.users: dict[str, str] = {}
        self.stored: dict[str, list[dict[str, str]]] = defaultdict(list)
        self.calls: dict[str, list[list[dict[str, str]]]] = defaultdict(list)
        self.descriptions: dict[str, str] = {}
        self._faults: dict[str, deque[Fault]] = defaultdict(deque)
        self._polls: dict[str, int] = {}
        self._mutex = threading.Lock()
        self._http = _Http(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self._http.server_port}"

    def environment(self, **more: str) -> dict[str, str]:
        """The variables that name this service."""
        return {"MEMORY_SERVICE_URL": self.url, "MEMORY_API_KEY": KEY, **more}

    def fault(self, path: str, *replies: Fault) -> None:
        """The next requests to a path get these replies, one each; then it is well again."""
        self._faults[path].extend(replies)

    def to(self, *paths: str) -> list[Asked]:
        """The requests to these paths."""
        return [asked for asked in self.asked if asked.path in paths]

    @property
    def writes(self) -> list[dict[str, Any]]:
        """The bodies of all writes."""
        return [asked.body for asked in self.to(WRITE, WRITE_SYNC)]

    @property
    def reads(self) -> list[dict[str, Any]]:
        """The bodies of all reads."""
        return [asked.body for asked in self.to(READ_SYNC, READ_INTERNAL)]

    # --- answering ---

    def answer(self, asked: Asked) -> Reply:
        """Keep a request, and what it gets."""
        with self._mutex:
            self.asked.append(asked)
            fault = self._faults[asked.path].popleft() if self._faults[asked.path] else None
            reply = fault(asked) if callable(fault) else fault
            if reply is not None and reply.undone:
                return reply
            done = self._do(asked)
        return done if reply is None else reply

    def _do(self, asked: Asked) -> Reply:
        key = asked.headers.get("authorization", "").removeprefix("Bearer ") or asked.headers.get("x-api-key", "")
        if not key:
            return failing(400, 3007)
        if key != KEY:
            return failing(401, 3009)
        handlers = {CREATE: self._create, WRITE: self._queue, READ_SYNC: self._read, READ_INTERNAL: self._read}
        if self.generation == "A":
            handlers |= {WRITE_SYNC: self._write, STATUS: self._status}
            del handlers[READ_INTERNAL]
        if asked.path not in handlers:
            return Reply(404, {"code": 404, "msg": "Not Found", "data": {}, "error": "", "time": 0})
        return replace(handlers[asked.path](asked), headers=self.headers)

    def _create(self, asked: Asked) -> Reply:
        other = asked.body["other_id"]
        user = self.users.setdefault(other, str(uuid.uuid4()))
        return Reply(200, envelope(0, {"id": user, "other_id": other, "memory_config_id": None}))

    def _store(self, asked: Asked) -> Reply | None:
        user, messages = asked.body["end_user_id"], asked.body["messages"]
        if user not in self.users.values():
            return failing(200, 4001)
        if not messages:
            return invalid(422, "VALIDATION_FAILED", "messages is empty")
        for message in messages:
            if message["role"] not in ("user", "assistant") or not message["content"].strip():
                return failing(200, 10001, "message content is empty")
        self.stored[user] += messages
        self.calls[user].append(messages)
        return None

    def _write(self, asked: Asked) -> Reply:
        data = {"status": "success", "data": asked.body["messages"]}
        return self._store(asked) or Reply(200, envelope(0, data))

    def _queue(self, asked: Asked) -> Reply:
        if failed := self._store(asked):
            return failed
        task = str(uuid.uuid4())
        self._polls[task] = self.pending_polls
        data = {"task_id": task} if self.generation == "A" else {"task_ids": [task], "merged": False}
        return Reply(200, envelope(0, data))

    def _status(self, asked: Asked) -> Reply:
        task = asked.query["task_id"]
        left = self._polls.get(task, 1)
        if left > 0:
            if task in self._polls:
                self._polls[task] -= 1
            return Reply(200, envelope(0, {"status": "PENDING", "task_id": task, "message": ""}))
        return Reply(200, envelope(0, {"result": {"status": "success"}, "task_id": task, "elapsed_time": 1.0}))

    def _read(self, asked: Asked) -> Reply:
        user, switch = asked.body["end_user_id"], asked.body["search_switch"]
        if user not in self.users.values():
            return failing(200, 4001)
        if not isinstance(switch, str) or switch not in "012345":
            return failing(500, 10001)
        if switch == "3":
            waiting = max(self._polls.values(), default=0) > 0
            for task in self._polls:
                self._polls[task] = max(0, self._polls[task] - 1)
            items = [{"source": "HISTORY", "score": 0.5, "content": "recent", "data": {}, "query": "", "id": "h"}]
            return Reply(200, envelope(0, {"answer": "", "intermediate_outputs": items if waiting else []}))
        items = [_profile(user)]
        if switch != "4":
            limit = asked.body.get("limit", self.limit) if asked.path == READ_INTERNAL else self.limit
            items += self._found(user, asked.body["message"])[:limit]
        answer = "\n".join(item["content"] for item in items)
        if switch in ("0", "1") and not asked.body.get("skip_summary"):
            answer = f"In short: {items[-1]['data'].get('content', '')}"
        return Reply(200, envelope(0, {"answer": answer, "intermediate_outputs": items}))

    def _found(self, user: str, question: str) -> list[dict[str, Any]]:
        words = set(re.findall(r"\w+", question.lower()))
        items = []
        for number, message in enumerate(self.stored[user]):
            shared = len(words & set(re.findall(r"\w+", message["content"].lower())))
            data = {"id": str(number), "content": message["content"], "kw_score": 0.0, "emb_score": 0.0}
            for word, description in self.descriptions.items():
                if word in message["content"]:
                    data["description"] = description
            text = f"<statement><content>{message['content']}</content></statement>"
            score = round(0.9 * shared / (len(words) or 1), 6)
            items.append({"source": "Statement", "score": score, "content": text, "data": data, "query": question})
            items[-1]["id"] = str(number)
        return sorted(items, key=lambda item: -item["score"])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def _profile(user: str) -> dict[str, Any]:
    """What stands first even for an empty store."""
    data = {"id": user, "aliases_name": [], "description": "", "core_facts": []}
    content = "<user-info></user-info>"
    return {"source": "ExtractedEntity", "score": 1, "content": content, "data": data, "query": "", "id": user}


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


def _handler(service: MemoryBearService) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # status, headers and body leave in one write

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._reply("POST", json.loads(text) if text else {})

        def do_GET(self) -> None:
            self._reply("GET", {})

        def _reply(self, method: str, body: dict[str, Any]) -> None:
            parts = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = service.answer(Asked(method, parts.path, headers, body, query))
            if reply.after:
                time.sleep(reply.after)
            if reply.dropped:
                self.close_connection = True
                return
            content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    return Handler
