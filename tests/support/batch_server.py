"""A batch service on loopback, as OpenAI has it: files and batches, and chat completions beside them.

    with BatchServer(always(ok("Oslo"))) as server:
        …                       # base URL server.url; batches wait
        server.finish()         # the script answers their requests

A batch ends when a test says so. `submitted` counts how often each request was in a batch that was started. `gates`
hold requests up: `with server.held("upload") as gate: gate.arrived.wait()`.
"""

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.parser import BytesParser
from email.policy import HTTP
from itertools import count
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from support.model_server import ModelServer, Reply, Script, error, raw

Status = Literal["completed", "expired", "cancelled"]
PREFIX = "/v1"


@dataclass
class Gate:
    """Where requests of one kind wait. arrived: one has come; opened: they may pass."""

    arrived: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)


@dataclass
class File:
    """A file at the service."""

    id: str
    name: str
    purpose: str
    content: bytes
    created_at: int

    def as_json(self) -> dict[str, Any]:
        """What the API says of it."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": len(self.content),
            "created_at": self.created_at,
            "filename": self.name,
            "purpose": self.purpose,
            "status": "processed",
        }


class BatchServer(ModelServer):
    """A server for the time of a `with` block. script answers the requests in batches and live ones."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.files: dict[str, File] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        self.submitted: Counter[str] = Counter()
        self.asked: list[str] = []
        self.gates: dict[str, Gate] = {}
        self.refuses: dict[str, Reply] = {}
        self.keeps_metadata = True
        self.cancels_at_once = True
        self._numbers = count(1)
        self._mutex = threading.Lock()
        self._http.RequestHandlerClass = _handler(self, self._http.RequestHandlerClass)

    # --- what a test does ---

    @contextmanager
    def held(self, what: str) -> Iterator[Gate]:
        """Hold requests up while the block runs: `upload`, `create` (before it is done), `created` (after)."""
        gate = self.gates[what] = Gate()
        try:
            yield gate
        finally:
            gate.opened.set()
            self.gates.pop(what, None)

    def finish(
        self,
        batch: str | None = None,
        status: Status = "completed",
        answered: Callable[[int], bool] = lambda number: True,
    ) -> None:
        """End one batch, or all that wait. answered: which of its requests, counted from 1, are; of the rest an expired
        or cancelled batch says so, and a completed one says nothing."""
        for name in [batch] if batch else [n for n, b in self.batches.items() if b["status"] == "in_progress"]:
            self._end(self.batches[name], status, answered)

    def fail(self, batch: str, problem: str) -> None:
        """End a batch as one that the service can't take."""
        told = {"object": "list", "data": [{"code": "invalid", "message": problem, "line": None, "param": None}]}
        self.batches[batch] |= {"status": "failed", "errors": told}

    def requests_of(self, batch: str) -> list[dict[str, Any]]:
        """The lines of a batch's file."""
        return [json.loads(line) for line in self.files[self.batches[batch]["input_file_id"]].content.splitlines()]

    # --- what the service does ---

    def _end(self, batch: dict[str, Any], status: Status, answered: Callable[[int], bool]) -> None:
        output, errors = [], []
        for number, request in enumerate(self.requests_of(batch["id"]), 1):
            line: dict[str, Any] = {"id": f"line_{number}", "custom_id": request["custom_id"]}
            if answered(number):
                reply = self.script(number, request["body"])
                body = json.loads(reply.body)
                response = {"status_code": reply.status, "request_id": f"req_{number}", "body": body}
                (output if reply.status == 200 else errors).append(line | {"response": response, "error": None})
            elif status != "completed":
                told = {"code": f"batch_{status}", "message": "not in time"}
                errors.append(line | {"response": None, "error": told})
        batch |= {
            "status": status,
            "output_file_id": self._results(output),
            "error_file_id": self._results(errors),
            "request_counts": {"total": number, "completed": len(output), "failed": len(errors)},
        }

    def _results(self, lines: list[dict[str, Any]]) -> str | None:
        if not lines:
            return None
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        return self._keep("results.jsonl", "batch_output", text.encode()).id

    def _keep(self, name: str, purpose: str, content: bytes) -> File:
        with self._mutex:
            file = File(f"file-{next(self._numbers)}", name, purpose, content, int(time.time()))
            self.files[file.id] = file
        return file

    def _pass(self, what: str) -> None:
        if gate := self.gates.get(what):
            gate.arrived.set()
            gate.opened.wait(60)

    def serve(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """The reply to a request for a file or a batch."""
        parts = urlsplit(target)
        path, query = parts.path.removeprefix(PREFIX), {k: v[0] for k, v in parse_qs(parts.query).items()}
        self.asked.append(f"{method} {path}")
        for name, reply in self.refuses.items():
            if re.fullmatch(name, f"{method} {path}"):
                return reply
        match method, path.strip("/").split("/"):
            case "POST", ["files"]:
                self._pass("upload")
                return _json(self._uploaded(headers, body).as_json())
            case "POST", ["batches"]:
                self._pass("create")
                reply = self._created(json.loads(body))
                self._pass("created")
                return reply
            case "GET", ["files"]:
                files = [f for f in self.files.values() if f.purpose == query.get("purpose", f.purpose)]
                return _page([f.as_json() for f in reversed(files)], query)
            case "GET", ["batches"]:
                return _page(list(reversed(self.batches.values())), query)
            case "GET", ["files", name, "content"] if name in self.files:
                return raw(self.files[name].content, "application/octet-stream")
            case "DELETE", ["files", name] if name in self.files:
                del self.files[name]
                return _json({"id": name, "object": "file", "deleted": True})
            case "GET", ["batches", name] if name in self.batches:
                return _json(self.batches[name])
            case "POST", ["batches", name, "cancel"] if name in self.batches:
                if self.cancels_at_once:
                    self.finish(name, "cancelled", lambda number: number <= 2)
                else:
                    self.batches[name]["status"] = "cancelling"
                return _json(self.batches[name])
        return error(404, "not_found", f"no such {path}")

    def _uploaded(self, headers: Mapping[str, str], body: bytes) -> File:
        message = BytesParser(policy=HTTP).parsebytes(
            b"Content-Type: " + headers["content-type"].encode() + b"\r\n\r\n" + body
        )
        parts = {part.get_param("name", header="content-disposition"): part for part in message.iter_parts()}
        file = parts["file"]
        content = file.get_payload(decode=True)
        assert isinstance(content, bytes)
        return self._keep(str(file.get_filename()), str(parts["purpose"].get_content()).strip(), content)

    def _created(self, asked: dict[str, Any]) -> Reply:
        file = self.files.get(asked["input_file_id"])
        if file is None:
            return error(400, "invalid_request", f"No such File object: {asked['input_file_id']}")
        with self._mutex:
            name = f"batch_{len(self.batches) + 1}"
            self.batches[name] = {
                "id": name,
                "object": "batch",
                "endpoint": asked["endpoint"],
                "completion_window": asked["completion_window"],
                "input_file_id": file.id,
                "created_at": int(time.time()),
                "status": "in_progress",
                "metadata": asked.get("metadata") if self.keeps_metadata else None,
                "request_counts": {"total": file.content.count(b"\n"), "completed": 0, "failed": 0},
            }
        self.submitted.update(request["custom_id"] for request in self.requests_of(name))
        return _json(self.batches[name])


def _json(value: dict[str, Any]) -> Reply:
    return raw(json.dumps(value).encode())


def _page(rows: list[dict[str, Any]], query: Mapping[str, str]) -> Reply:
    """A page of a list that begins with the newest."""
    ids = [row["id"] for row in rows]
    first = ids.index(query["after"]) + 1 if query.get("after") in ids else 0
    last = first + int(query.get("limit", 20))
    page = rows[first:last]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {}
    return _json({"object": "list", "data": page, "has_more": last < len(rows), **ends})


def _handler(server: BatchServer, live: type[Any]) -> type[Any]:
    class Handler(live):  # type: ignore[misc]
        def do_GET(self) -> None:  # noqa: N802
            self._serve()

        def do_DELETE(self) -> None:  # noqa: N802
            self._serve()

        def do_POST(self) -> None:  # noqa: N802
            if self.path.endswith("/chat/completions"):
                super().do_POST()
            else:
                self._serve()

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if "chunked" in self.headers.get("Transfer-Encoding", ""):
                body = self._chunks()
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = server.serve(self.command, self.path, headers, body)
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        def _chunks(self) -> bytes:
            found = b""
            while size := int(self.rfile.readline(), 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return found

    return Handler
