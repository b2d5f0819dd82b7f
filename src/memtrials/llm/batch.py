"""A provider's batch service: a file of requests goes in, files of results come out, in a day and at a lower price.

Every submission has a name of ours that stands in its metadata and in its file's name, so that after a crash the
provider can be asked whether there is one.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from memtrials.errors import UserError
from memtrials.llm.engine import PROVIDER, SECRET, TIMEOUT, Endpoint

if TYPE_CHECKING:
    from openai import OpenAI
    from openai.types import Batch

MAX_REQUESTS = 50_000
MAX_BYTES = 200_000_000
"""What one file may hold at OpenAI, whose service others copy."""
PATH: Final = "/v1/chat/completions"
WINDOW: Final = "24h"
MARK = "memtrials"
"""The metadata key under which a submission has its name."""
FINISHED = frozenset(("completed", "failed", "expired", "cancelled"))
UNANSWERED = frozenset(("batch_expired", "batch_cancelled"))


@dataclass(frozen=True)
class Job:
    """A batch at the provider. outputs: its files of results. problem: why it failed as a whole. answered and failed:
    how many requests so far."""

    id: str
    status: str
    outputs: tuple[str, ...]
    problem: str
    answered: int
    failed: int

    @property
    def finished(self) -> bool:
        """Whether nothing more will come of it."""
        return self.status in FINISHED


@dataclass(frozen=True)
class Result:
    """What became of one request. name: its custom_id. status and raw: as a call would have met them."""

    name: str
    status: int
    raw: str
    request_id: str | None


class RejectedError(UserError):
    """The provider took nothing, for certain."""


class BatchService:
    """The files and batches of an endpoint. Every method raises UserError when the provider doesn't do as asked."""

    def __init__(self, endpoint: Endpoint) -> None:
        from openai import OpenAI

        self.endpoint = endpoint
        self._client: OpenAI = OpenAI(
            api_key=endpoint.api_key, base_url=_with_path(endpoint.base_url or PROVIDER), timeout=TIMEOUT
        )

    def submit(self, name: str, requests: IO[bytes]) -> Job:
        """Upload a file of requests and start it. Raises RejectedError when nothing was started; after any other error
        that can't be known, and `settle` finds out."""
        try:
            with self._asking("uploading requests"):
                file = self._client.files.create(file=(_file_name(name), requests), purpose="batch")
        except UserError as error:
            raise RejectedError(str(error)) from None
        with self._asking("starting a batch"):
            once = self._client.with_options(max_retries=0)  # a second try could start a second batch
            return _job(
                once.batches.create(
                    input_file_id=file.id, endpoint=PATH, completion_window=WINDOW, metadata={MARK: name}
                )
            )

    def settle(self, name: str) -> Job | None:
        """The batch of a submission that was cut off, or None, and then there will be none: a request to start it that
        is still on its way finds no file."""
        job = self._find(name)
        if job is None:
            with self._asking("deleting requests"):
                for file in self._files(name):
                    self._client.files.delete(file)
            job = self._find(name)
        return job

    def _find(self, name: str) -> Job | None:
        """All batches are looked through, since services differ in their order."""
        with self._asking("listing batches"):
            files = self._files(name)
            for batch in self._client.batches.list(limit=100):
                if (batch.metadata or {}).get(MARK) == name or batch.input_file_id in files:
                    return _job(batch)
        return None

    def _files(self, name: str) -> list[str]:
        return [file.id for file in self._client.files.list(purpose="batch") if file.filename == _file_name(name)]

    def job(self, job_id: str) -> Job | None:
        """How far a batch is; None where the provider knows of none."""
        import openai

        with self._asking(f"asking for batch {job_id}"):
            try:
                return _job(self._client.batches.retrieve(job_id))
            except openai.NotFoundError:
                return None

    def cancel(self, job_id: str) -> Job:
        """Let a batch end; what was answered stays."""
        with self._asking(f"cancelling batch {job_id}"):
            return _job(self._client.batches.cancel(job_id))

    def results(self, job: Job) -> Iterator[Result]:
        """What became of each request that the provider answered, as its files have them, unreadable lines left out.

        Answers come before errors, so that one request's error can be told from one that all would have met.
        """
        for file in job.outputs:
            for line in self._lines(file):
                if (result := _result(line)) is not None:
                    yield result

    def _lines(self, file: str) -> Iterator[bytes]:
        """Lines end in LF alone: texts may hold other line separators unescaped. A file that is gone has none."""
        import openai

        with self._asking(f"downloading results {file}"):
            try:
                content = self._client.files.content(file).content
            except openai.NotFoundError:
                return
        if content.strip() and not content.lstrip().startswith(b"{"):
            raise UserError(self._told(f"downloading results {file}: what came is no file of results"))
        yield from io.BytesIO(content)

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        import openai

        try:
            yield
        except openai.APIStatusError as error:
            body = error.body if isinstance(error.body, dict) else {}
            said = " ".join(str(body.get("message") or error.response.reason_phrase).split())[:500]
            certain = error.status_code < 500 and error.status_code not in (408, 409)
            raise (RejectedError if certain else UserError)(
                self._told(f"{what}: HTTP {error.status_code}: {said}")
            ) from None
        except (AttributeError, TypeError, ValueError):  # the SDK doesn't check what it is given
            raise UserError(self._told(f"{what}: what came is no reply of a batch service")) from None
        except openai.OpenAIError as error:
            why = type(error.__cause__ or error).__name__
            raise UserError(self._told(f"{what}: no answer ({why})")) from None

    def _told(self, text: str) -> str:
        where, key = self.endpoint.base_url or PROVIDER, self.endpoint.api_key
        told = f"batch service at {where}: {text}"
        return told.replace(key, "***") if len(key) >= SECRET else told

    def close(self) -> None:
        """Close connections."""
        self._client.close()


def _with_path(base_url: str) -> str:
    """The base URL; without a path it is that of the version all services have."""
    return base_url if urlsplit(base_url).path.strip("/") else f"{base_url.rstrip('/')}/v1"


def _file_name(name: str) -> str:
    return f"{MARK}-{name}.jsonl"


def _job(batch: Batch) -> Job:
    counts = batch.request_counts
    problems = (batch.errors.data if batch.errors else None) or []
    return Job(
        id=batch.id,
        status=batch.status,
        outputs=tuple(file for file in (batch.output_file_id, batch.error_file_id) if file),
        problem="; ".join(dict.fromkeys(" ".join((p.message or p.code or "").split()) for p in problems[:3])),
        answered=counts.completed if counts else 0,
        failed=counts.failed if counts else 0,
    )


def _result(line: bytes) -> Result | None:
    """The result in a line, or None where there is none or nobody worked on the request."""
    try:
        row: dict[str, Any] = json.loads(line)
        name, response, error = row["custom_id"], row.get("response"), row.get("error")
        if not isinstance(name, str):
            return None
        if response:
            raw = json.dumps(response["body"], ensure_ascii=False)
            return Result(name, int(response["status_code"]), raw, response.get("request_id"))
        if not error or error.get("code") in UNANSWERED:
            return None
        return Result(name, 500, json.dumps({"error": error}, ensure_ascii=False), None)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
