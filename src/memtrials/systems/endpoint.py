"""Embeddings from any OpenAI-compatible endpoint: in batches, bounded, with the cost of each text.

A request carries texts and nothing else. What goes wrong is sorted as for readers and judges: fatal ends the stage
after one request, transient is tried again, content is about one text. A batch that is refused is sent again in halves:
so a text that is too long fails alone, and how many texts a server takes at once is found by itself.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Event
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from memtrials.embeddings.base import Role
from memtrials.errors import WorkFailedError
from memtrials.llm.engine import ATTEMPTS, CONNECTING, PROVIDER, SECRET, Endpoint
from memtrials.llm.limits import ClosedError
from memtrials.llm.money import Purse, price
from memtrials.llm.roles import endpoint
from memtrials.llm.troubles import Trouble, classify, error_in, pauses
from memtrials.records import clean_text
from memtrials.settings import Settings
from memtrials.systems.embedding import Made

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from openai import OpenAI

MOST_TEXTS = 128
MOST_CHARACTERS = 200_000
"""In one request: about 50,000 tokens of English, and in any language under the 300,000 that OpenAI takes."""

TIMEOUT = 120.0
"""Seconds for one request; a full batch takes a few."""
MAX_SECONDS = 600.0
"""Seconds of tries and pauses for one request after which none begins."""

_TOO_MUCH = re.compile(
    r"too large to process|request too large|must have less than \d+ tokens|batch.?size|in one batch"
    r"|per (submitted )?batch|too many (inputs|texts)",
    re.IGNORECASE,
)
_TOO_MANY = re.compile(r"(?<!physical )batch.?size|in one batch|too many (inputs|texts)", re.IGNORECASE)
"""What servers say of a request that holds too much, and of one that holds too many texts."""


class _Datum(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _Reply(msgspec.Struct):
    """What is read of a response; compatible servers vary in all the rest."""

    data: list[_Datum] | None = None
    usage: Any = None


class _TroubleError(Exception):
    """A try that didn't end well. raw: what came back."""

    def __init__(self, trouble: Trouble, raw: str | None = None) -> None:
        super().__init__(trouble.message)
        self.trouble = trouble
        self.raw = raw


@dataclass
class _Tries:
    """The tries of one request. most: how many there may be; pause: seconds before the next one."""

    began: float
    most: int = ATTEMPTS
    made: int = 0
    pause: float = 0.0

    def postpone(self, seconds: float) -> float:
        """Leave a pause to who can be woken."""
        self.pause = seconds
        return 0.0

    def over(self, error: Exception) -> bool:
        """Whether to try no more after this error. A text that was refused will be again, so content isn't retried."""
        assert isinstance(error, _TroubleError)
        busy = time.monotonic() - self.began + (error.trouble.wait or 0.0)
        if error.trouble.class_ != "transient" or busy > MAX_SECONDS:
            return True
        return self.made >= self.most and not error.trouble.no_path


class EndpointEmbedder:
    """A model behind an endpoint. dimensions: what the model is asked for; 0 takes what it gives.

    The key is looked for when something is embedded, so that a dry run needs none. purse: what may be sent and spent.
    stopped: set when nobody is to wait between two tries any longer.
    """

    provider = "openai"
    pause = 1.0

    def __init__(
        self,
        model: str,
        dimensions: int,
        revision: str,
        settings: Settings,
        purse: Purse | None = None,
        stopped: Event | None = None,
    ) -> None:
        self.model = model
        self.dimensions = dimensions
        self.revision = revision
        self.settings = settings
        self.purse = purse or Purse()
        self.stopped = stopped or Event()
        self.requests = 0
        self._most_texts = MOST_TEXTS
        self._passed = False
        self._closed = False
        self._endpoint: Endpoint | None = None
        self._path = ""
        self._client: OpenAI | None = None

    def ready(self) -> None:
        """Raise UserError when no key is configured, or key or base URL can't be used."""
        self._place()

    @property
    def base_url(self) -> str:
        """Where the model is."""
        return (self._place().base_url or PROVIDER) + self._path

    def batches(self, texts: Sequence[str], role: Role) -> Iterator[list[Made]]:
        """The vectors of texts that aren't empty, in order, as replies arrive. Documents and queries are sent alike.

        Raises WorkFailedError: fatal at once, transient after ATTEMPTS or MAX_SECONDS, content for a text that the
        model doesn't take. Raises ClosedError without a request after a fatal one, and between two tries when it is
        stopped; BudgetError when no more may be sent.
        """
        if not texts:
            return
        pieces = [list(texts)]
        while pieces:
            piece = pieces.pop()
            if (most := _fitting(piece[: self._most_texts])) < len(piece):
                pieces.append(piece[most:])
                piece = piece[:most]
            tries = _Tries(time.monotonic())
            try:
                yield self._bounded(piece, tries)
            except _TroubleError as error:
                if error.trouble.class_ != "content" or len(piece) == 1:
                    raise self._failed(error, tries, piece) from None
                half = len(piece) // 2
                pieces += [piece[half:], piece[:half]]
                if _TOO_MANY.search(error.trouble.message):
                    self._most_texts = half

    def request(self, texts: Sequence[str]) -> list[Made]:
        """The vectors of texts, in order, from one request that isn't sent again: it may have been paid for, and nobody
        can tell. Only where nothing is at the URL but for its `/v1` is it sent there.

        Raises WorkFailedError.
        """
        tries = _Tries(time.monotonic(), most=1)
        try:
            return self._bounded(texts, tries)
        except _TroubleError as error:
            raise self._failed(error, tries, texts) from None

    def _bounded(self, texts: Sequence[str], tries: _Tries) -> list[Made]:
        import backoff

        if self._closed:
            raise ClosedError

        dearest = self._dearest(texts)

        def one_try() -> list[Made]:
            if tries.made and self.stopped.wait(tries.pause):
                raise ClosedError("stopped")
            ticket = self.purse.admit(dearest)
            assert ticket is not None  # one request is in flight at a time
            paid = 0.0
            try:
                tries.made += 1
                self.requests += 1
                made = self._send(texts)
                paid = self._price_of(made, dearest)
            finally:
                self.purse.settle(ticket, paid)
            return made

        retrying = backoff.on_exception(
            lambda: pauses(self.pause), _TroubleError, jitter=tries.postpone, giveup=tries.over, logger=None
        )
        return retrying(one_try)()

    def _dearest(self, texts: Sequence[str]) -> float:
        """What a request costs, where a cap makes it matter: as many tokens as the texts are in o200k_base."""
        known = price(self.model) if self.purse.max_cost is not None else None
        if known is None:
            return 0.0
        from memtrials.tokens import count_tokens

        return known.of(sum(map(count_tokens, texts)), 0)

    def _price_of(self, made: Sequence[Made], dearest: float) -> float:
        """What a reply cost, where a cap makes it matter; the most it can where the endpoint doesn't say."""
        known = price(self.model) if self.purse.max_cost is not None else None
        counts = [one.tokens for one in made if one.tokens is not None]
        return known.of(round(sum(counts)), 0) if known and len(counts) == len(made) else dearest

    def _send(self, texts: Sequence[str]) -> list[Made]:
        import openai

        asked: dict[str, Any] = {"dimensions": self.dimensions} if self.dimensions else {}
        began = time.perf_counter()
        try:
            response = self._connect().embeddings.with_raw_response.create(
                model=self.model, input=[clean_text(text) for text in texts], encoding_format="float", **asked
            )
        except openai.APIStatusError as error:
            raw = error.response.content.decode("utf-8", "replace")
            raise _TroubleError(self._trouble(error.status_code, raw, error.response.headers, asked), raw) from None
        except openai.APIConnectionError as error:
            why = type(error.__cause__ or error).__name__
            raise _TroubleError(Trouble("transient", f"no answer ({why})")) from None
        seconds = time.perf_counter() - began
        try:
            reply = msgspec.json.decode(response.content, type=_Reply)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _TroubleError(Trouble("transient", f"the body isn't a list of embeddings ({error})")) from None
        if reply.data is None:
            raw = response.content.decode("utf-8", "replace")
            raise _TroubleError(self._trouble(200, raw, response.headers, asked), raw)
        vectors = self._vectors(reply.data, len(texts))
        self._passed = True
        tokens = _tokens(reply.usage)
        size = sum(map(len, texts))
        return [
            Made(
                None if vector is None else vector.tobytes(),
                seconds * len(text) / size,
                None if tokens is None else tokens * len(text) / size,
            )
            for text, vector in zip(texts, vectors, strict=True)
        ]

    def _trouble(self, status: int, raw: str, headers: Mapping[str, str], sent: Mapping[str, Any]) -> Trouble:
        """The trouble behind a reply without embeddings: as for chat models, and what is too much for one request is
        content."""
        trouble = classify(status, error_in(raw), headers, sent, passed=self._passed)
        if _TOO_MUCH.search(trouble.message):
            trouble = replace(trouble, class_="content", too_long=True)
        if trouble.no_path and not self._passed and not urlsplit(self.base_url).path:
            self._path = "/v1"
            self._connect().base_url = self.base_url
            trouble = replace(trouble, class_="transient", wait=0.0)
        return replace(trouble, message=f"HTTP {status}: {trouble.message}")

    def _vectors(self, data: Sequence[_Datum], count: int) -> list[NDArray[Any] | None]:
        """Unit vectors in the order of the texts, whatever the order of the reply; None for one that is all zero."""
        import numpy as np

        places = [n if datum.index is None else datum.index for n, datum in enumerate(data)]
        if sorted(places) != list(range(count)):
            raise _TroubleError(Trouble("transient", f"{len(data)} vectors for {count} texts, or not one for each"))
        out: list[NDArray[Any] | None] = [None] * count
        for place, datum in zip(places, data, strict=True):
            vector = np.asarray(datum.embedding, np.float64)
            if not len(vector) or (self.dimensions and len(vector) != self.dimensions):
                wanted = f"{self.dimensions} were asked for" if self.dimensions else "there must be some"
                raise _TroubleError(Trouble("fatal", f"a vector has {len(vector)} dimensions, {wanted}"))
            with np.errstate(over="ignore"):
                norm = float(np.linalg.norm(vector))
            if not np.isfinite(norm):
                raise _TroubleError(Trouble("transient", "a vector isn't finite"))
            if norm > 0:
                out[place] = (vector / norm).astype(np.float32)
        return out

    def _failed(self, error: _TroubleError, tries: _Tries, texts: Sequence[str]) -> WorkFailedError:
        trouble = error.trouble
        self._closed = trouble.class_ == "fatal"
        hint = {
            "fatal": "; check the model, its base URL, its key and its dimensions",
            "content": f"; the text has {len(texts[0]):,} characters" if len(texts) == 1 else f"; {len(texts)} texts",
            "transient": "",
        }[trouble.class_]
        place = self._place()
        where = f" at {place.base_url}" if place.base_url else ""
        return WorkFailedError(
            "system" if trouble.class_ == "content" else "service",
            trouble.class_,
            self._without_key(f"embedding model {self.model}{where}: {trouble.message}{hint}"),
            attempts=tries.made,
            raw=None if error.raw is None else self._without_key(error.raw),
        )

    def _without_key(self, text: str) -> str:
        key = self._place().api_key
        return text.replace(key, "***") if len(key) >= SECRET else text

    def _place(self) -> Endpoint:
        if self._endpoint is None:
            self._endpoint = endpoint("embed", self.model, self.settings)
        return self._endpoint

    def _connect(self) -> OpenAI:
        if self._client is None:
            from openai import OpenAI, Timeout

            self._client = OpenAI(
                api_key=self._place().api_key,
                base_url=self.base_url,
                max_retries=0,
                timeout=Timeout(TIMEOUT, connect=CONNECTING),
            )
        return self._client

    def close(self) -> None:
        """Close connections."""
        if self._client is not None:
            self._client.close()
            self._client = None


def _fitting(texts: Sequence[str]) -> int:
    """How many of the first texts go into one request: at least one, together at most MOST_CHARACTERS."""
    size = 0
    for count, text in enumerate(texts):
        size += len(text)
        if count and size > MOST_CHARACTERS:
            return count
    return len(texts)


def request_sizes(texts: Sequence[str]) -> Iterator[int]:
    """Tokens in o200k_base of each request that these texts would go in; empty ones aren't sent."""
    from memtrials.tokens import count_tokens

    waiting = [text for text in texts if text.strip()]
    while waiting:
        count = _fitting(waiting[:MOST_TEXTS])
        yield sum(map(count_tokens, waiting[:count]))
        waiting = waiting[count:]


def _tokens(usage: Any) -> int | None:
    """What the endpoint says a request's texts came to; None when it doesn't say, or names what nobody can count to."""
    if not isinstance(usage, Mapping):
        return None
    counts = (usage.get("prompt_tokens"), usage.get("total_tokens"))
    return next((n for n in counts if isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**53), None)
