"""A scripted file server on loopback: it keeps what it was asked for and sends what a test says.

    with FileServer(serving(data)) as server:
        …  # addresses server.url + "/any/path"
    assert server.asked[0].start is None

A script is called for every request. `serving` behaves well; `cut`, `stuck` and the rest spoil a reply.
"""

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True)
class Asked:
    """A request. number: from 1; start: the first byte that was asked for, None for the whole file."""

    number: int
    path: str
    start: int | None
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Sent:
    """A reply. keep: bytes after which it ends short of its Content-Length; hang: whether it then stays open, silent.

    sized: whether there is a Content-Length; without one the end of the connection is the end of the file.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    keep: int | None = None
    hang: bool = False
    sized: bool = True


Script = Callable[[Asked], Sent]


def serving(data: bytes, etag: str | None = '"v1"') -> Script:
    """A server that sends the file, or the part that is asked for if it is of the version it has."""
    own = {"ETag": etag} if etag else {}

    def script(asked: Asked) -> Sent:
        if asked.start is None or asked.headers.get("if-range", etag) != etag:
            return Sent(200, data, own)
        if asked.start >= len(data):
            return Sent(416, headers={"Content-Range": f"bytes */{len(data)}"})
        span = f"bytes {asked.start}-{len(data) - 1}/{len(data)}"
        return Sent(206, data[asked.start :], {**own, "Content-Range": span})

    return script


def whole(data: bytes) -> Script:
    """A server that knows no parts."""
    return lambda asked: Sent(200, data)


def refusing(status: int) -> Script:
    """A server that sends an error."""
    return lambda asked: Sent(status, b"<html>no</html>")


def cut(script: Script, keep: int) -> Script:
    """The connection is closed after so many bytes of each reply."""
    return lambda asked: replace(script(asked), keep=keep)


def stuck(script: Script, keep: int) -> Script:
    """The same, but it stays open and nothing more comes."""
    return lambda asked: replace(script(asked), keep=keep, hang=True)


def in_turn(*scripts: Script) -> Script:
    """The first script for the first request and so on; the last one for all that follow."""
    return lambda asked: scripts[min(asked.number, len(scripts)) - 1](asked)


class FileServer:
    """A server for the time of a `with` block. script may be replaced while it runs. sent: bytes of all bodies."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self.sent = 0
        self.over = threading.Event()
        self.arriving = threading.Lock()
        self._http = _Http(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        """Where its paths begin."""
        return f"http://127.0.0.1:{self._http.server_port}"

    @property
    def starts(self) -> list[int | None]:
        """The first byte of each request."""
        return [asked.start for asked in self.asked]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


def _handler(server: FileServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            span = re.fullmatch(r"bytes=(\d+)-", headers.get("range", ""))
            with server.arriving:
                asked = Asked(len(server.asked) + 1, self.path, int(span[1]) if span else None, headers)
                server.asked.append(asked)
            reply = server.script(asked)
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if reply.sized:
                self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            body = reply.body[: reply.keep]
            self.wfile.write(body)
            self.wfile.flush()
            server.sent += len(body)
            if reply.hang:
                server.over.wait()
            self.close_connection = reply.keep is not None or not reply.sized

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    return Handler
