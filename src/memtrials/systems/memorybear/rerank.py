"""A second ranking of a store's items by a reranking model, on this side of the service, with a cache."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from memtrials.errors import UserError
from memtrials.llm.troubles import Trouble, classify, error_in
from memtrials.records import sha256
from memtrials.settings import Settings
from memtrials.systems.calling import Caller, Place
from memtrials.systems.memorybear.assembly import PINNED, Picked, document_of, score_of

TIMEOUT = 60.0
ATTEMPTS = 3


@dataclass(frozen=True)
class Ranked:
    """Which items are shown. seconds: what the ranking took when it was made; cached: whether that was now."""

    picked: Picked
    seconds: float = 0.0
    waited: float = 0.0
    cached: bool = False


def place(settings: Settings) -> Place:
    """The reranker that RERANK_URL names. Raises UserError when it or a key is missing."""
    url, key = settings.find("RERANK_URL"), settings.text("RERANK_API_KEY", "LLM_API_KEY")
    if url is None:
        raise UserError("reranking is on and RERANK_URL isn't set; set it, or leave `rerank` out")
    parts = urlsplit(url.text)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UserError(f"{url.source}: {url.text!r} is no http(s) URL")
    if key is None:
        raise UserError("reranking is on and has no key; set RERANK_API_KEY")
    return Place("reranker", url.text, {"Authorization": f"Bearer {key}"}, key, TIMEOUT, ATTEMPTS)


class Reranker:
    """One reranking model. where: its base URL is the whole of its address."""

    def __init__(self, where: Place, cache: Path) -> None:
        self.url = where.base_url
        self.caller = Caller(where)
        self._path = cache / "reranked.sqlite"

    async def rank(self, model: str, query: str, items: Sequence[Mapping[str, Any]], count: int) -> Ranked:
        """Pinned items in their order and the `count` best of the others; all of them, unranked, where there are no
        more. Raises WorkFailedError."""
        pinned = [item for item in items if score_of(item) >= PINNED]
        others = [item for item in items if score_of(item) < PINNED]
        if len(others) <= count:
            return Ranked(Picked(pinned, others, reranked=True))
        documents = [document_of(item) for item in others]
        key = sha256([self.url, model, count, query, documents])
        if (known := self._look_up(key)) is not None:
            order, seconds = known
            return Ranked(Picked(pinned, [others[n] for n in order], reranked=True), seconds, cached=True)
        body = {
            "model": model,
            "input": {"query": query, "documents": documents},
            "parameters": {"return_documents": False, "top_n": count},
        }
        began = time.monotonic()
        reply = await self.caller.call("POST", self.url, _judge(len(documents)), body=body)
        order = _order(reply.body, len(documents))[:count]
        self._keep(key, order, reply.seconds)
        waited = time.monotonic() - began - reply.seconds
        return Ranked(Picked(pinned, [others[n] for n in order], reranked=True), reply.seconds, waited)

    def _look_up(self, key: str) -> tuple[list[int], float] | None:
        with self._cache() as cache:
            row = cache.execute("SELECT picked, seconds FROM picks WHERE key = ?", (key,)).fetchone()
        return None if row is None else (json.loads(row[0]), row[1])

    def _keep(self, key: str, order: Sequence[int], seconds: float) -> None:
        with self._cache() as cache, cache:
            cache.execute("INSERT OR IGNORE INTO picks VALUES (?, ?, ?)", (key, json.dumps(order), seconds))

    @contextmanager
    def _cache(self) -> Iterator[sqlite3.Connection]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=60)) as cache:
                cache.execute("CREATE TABLE IF NOT EXISTS picks (key TEXT PRIMARY KEY, picked TEXT, seconds REAL)")
                yield cache
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"{self._path}: the cache can't be used ({error}); see MEMTRIALS_CACHE") from None


def _judge(count: int) -> Any:
    def judge(status: int, body: Any, headers: Mapping[str, str]) -> Trouble | None:
        if status >= 400:
            return classify(status, error_in(json.dumps(body)), headers, {})
        if not _order(body, count):
            return Trouble("transient", "the reply doesn't rank the documents it was given")
        return None

    return judge


def _order(body: Any, count: int) -> list[int]:
    """The documents' places by descending relevance; empty when the reply isn't a ranking of them."""
    output = body.get("output") if isinstance(body, dict) else None
    results = output.get("results") if isinstance(output, dict) else None
    try:
        ranked = sorted(results or (), key=lambda result: -float(result["relevance_score"]))
        order = [result["index"] for result in ranked]
    except (TypeError, KeyError, ValueError, OverflowError):
        return []
    valid = all(type(n) is int and 0 <= n < count for n in order) and len(set(order)) == len(order)
    return order if valid else []
