"""A scripted OpenAI-compatible server on loopback: it keeps what it was asked and answers as a test says.

    with ModelServer(lambda number, body: ok("Oslo")) as server:
        …  # base URL server.url
    assert server.requests[0].body["model"] == "model-a"

A script is called for every request with its number (from 1, in order of arrival) and its JSON body. It runs in the
request's own thread, so it may wait.
"""

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

KEY = "sk-test-0123456789abcdef"
"""A key that must never be seen again outside a request's own header."""


@dataclass(frozen=True)
class Request:
    """What was sent. headers have lower-case names; raw: the body as it came; at: when, in seconds since the server
    began."""

    number: int
    path: str
    headers: Mapping[str, str]
    raw: bytes
    body: dict[str, Any]
    at: float

    def message(self, role: str) -> str:
        """The text of the only message of that role."""
        (text,) = (m["content"] for m in self.body["messages"] if m["role"] == role)
        return text

    @property
    def system(self) -> str:
        """The system message."""
        return self.message("system")

    @property
    def user(self) -> str:
        """The user message."""
        return self.message("user")


@dataclass(frozen=True)
class Reply:
    """What is sent back. after: seconds to wait first; midway: seconds between the halves of the body; dropped: the
    connection is closed without a byte; reset: it is reset after half of the body."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    after: float = 0.0
    midway: float = 0.0
    dropped: bool = False
    reset: bool = False


Script = Callable[[int, dict[str, Any]], Reply]

USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


def ok(
    text: str | None,
    finish_reason: str = "stop",
    *,
    refusal: str | None = None,
    usage: Mapping[str, Any] | None = USAGE,
    model: str = "scripted-2026-11-30",
) -> Reply:
    """A chat completion with one choice."""
    message = {"role": "assistant", "content": text, "refusal": refusal}
    completion = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_795_996_800,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": usage,
    }
    return raw(json.dumps(completion).encode())


def error(status: int, code: str | None = None, message: str = "no", headers: Mapping[str, str] | None = None) -> Reply:
    """An error as OpenAI writes it."""
    body = json.dumps({"error": {"message": message, "type": "error", "param": None, "code": code}}).encode()
    return Reply(status, body, {"Content-Type": "application/json", **(headers or {})})


def drop() -> Reply:
    """No reply: the connection is closed."""
    return Reply(dropped=True)


def raw(body: bytes, content_type: str = "application/json", status: int = 200) -> Reply:
    """Any bytes."""
    return Reply(status, body, {"Content-Type": content_type})


def late(seconds: float, reply: Reply) -> Reply:
    """A reply after a wait."""
    return replace(reply, after=seconds)


def slow(seconds: float, reply: Reply) -> Reply:
    """A reply whose body takes so long."""
    return replace(reply, midway=seconds)


def reset(reply: Reply) -> Reply:
    """Half of a reply, then the connection is reset."""
    return replace(reply, reset=True)


def in_turn(*replies: Reply) -> Script:
    """The first reply to the first request and so on; the last one to all that follow."""
    return lambda number, body: replies[min(number, len(replies)) - 1]


def always(reply: Reply) -> Script:
    """The same reply to every request."""
    return in_turn(reply)


class ModelServer:
    """A server for the time of a `with` block. script may be replaced while it runs."""

    paths: tuple[str, ...] = ("/v1/chat/completions", "/chat/completions")

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Request] = []
        self._began = time.monotonic()
        self._arriving = threading.Lock()
        self._http = _Http(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """The base URL that a client is given."""
        return f"http://127.0.0.1:{self._http.server_port}/v1"

    def environment(self, role: str = "LLM") -> dict[str, str]:
        """The variables that point a role (`LLM`, `READER`, `JUDGE`) here, with a key."""
        return {f"{role}_BASE_URL": self.url, f"{role}_API_KEY": KEY}

    def answer(self, path: str, headers: Mapping[str, str], text: bytes) -> Reply:
        """Keep a request and ask the script for its reply."""
        body = json.loads(text)
        with self._arriving:
            number = len(self.requests) + 1
            self.requests.append(Request(number, path, headers, text, body, time.monotonic() - self._began))
        if path not in self.paths:
            return error(404, None, f"no such path: {path}")
        return self.script(number, body)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


def _handler(server: ModelServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # status, headers and body leave in one write

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = server.answer(self.path, headers, text)
            if reply.after:
                time.sleep(reply.after)
            if reply.dropped:
                self.close_connection = True
                return
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            half = len(reply.body) // 2
            self.wfile.write(reply.body[:half])
            if reply.reset:
                self._reset()
                return
            if reply.midway:
                self.wfile.flush()
                time.sleep(reply.midway)
            self.wfile.write(reply.body[half:])

        def _reset(self) -> None:
            self.wfile.flush()
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    return Handler
