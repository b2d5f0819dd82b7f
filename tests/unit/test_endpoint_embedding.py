"""Embeddings from an endpoint: what is sent, what is made of replies, and what each trouble leads to."""

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memtrials.errors import UserError, WorkFailedError
from memtrials.llm.limits import ClosedError
from memtrials.settings import Settings
from memtrials.systems import endpoint
from memtrials.systems.base import Meter
from memtrials.systems.embedding import CachedEmbedder, embedding_model
from memtrials.systems.endpoint import EndpointEmbedder
from support.embedding_server import DIMENSIONS, TOKENS_EACH, EmbeddingServer, embedded, refusing, unit_of
from support.model_server import KEY, Script, drop, error, in_turn, raw


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EndpointEmbedder, "pause", 0.0)


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with EmbeddingServer() as server:
        yield server


def model_at(server: EmbeddingServer, dimensions: int = 0, revision: str = "") -> EndpointEmbedder:
    return EndpointEmbedder("model-e", dimensions, revision, Settings((("test", server.environment()),)))


def cached_at(server: EmbeddingServer, folder: Path, dimensions: int = 0, revision: str = "") -> CachedEmbedder:
    return CachedEmbedder(model_at(server, dimensions, revision), folder, Meter())


def failure(cached: CachedEmbedder, *texts: str) -> WorkFailedError:
    with pytest.raises(WorkFailedError) as caught:
        cached.vectors(texts, "document")
    assert "\n" not in caught.value.message
    return caught.value


# What is sent


def test_a_request_holds_model_and_texts_and_no_more(server: EmbeddingServer, tmp_path: Path):
    cached_at(server, tmp_path).vectors(["one", "two"], "document")
    (request,) = server.requests
    assert request.body == {"model": "model-e", "input": ["one", "two"], "encoding_format": "float"}
    assert request.headers["authorization"] == f"Bearer {KEY}"
    cached_at(server, tmp_path, dimensions=4).vectors(["one"], "query")
    assert server.requests[1].body == {
        "model": "model-e",
        "input": ["one"],
        "encoding_format": "float",
        "dimensions": 4,
    }


def test_a_batch_holds_at_most_128_texts_and_200_000_characters(server: EmbeddingServer, tmp_path: Path):
    texts = [f"text {n}" for n in range(300)]
    cached_at(server, tmp_path).vectors(texts, "document")
    assert list(map(len, server.batches)) == [128, 128, 44]
    assert server.texts == texts
    del server.requests[:]
    long = ["a" * 150_000, "b" * 50_000, "c", "d" * 250_000, "e"]
    cached_at(server, tmp_path).vectors(long, "document")
    assert server.batches == [long[:2], long[2:3], long[3:4], long[4:]]


def test_an_empty_text_has_no_vector_and_is_not_sent(server: EmbeddingServer, tmp_path: Path):
    cached = cached_at(server, tmp_path)
    assert cached.vectors(["", "one", " \n"], "document") == [None, unit_of("one"), None]
    assert cached.vectors([""], "query") == [None]
    assert server.batches == [["one"]]


def test_lone_surrogates_are_replaced(server: EmbeddingServer, tmp_path: Path):
    cached_at(server, tmp_path).vectors(["half \ud83d of it"], "document")
    assert server.texts == ["half \ufffd of it"]


def test_a_base_url_without_its_path_is_completed(server: EmbeddingServer, tmp_path: Path):
    settings = Settings((("test", {"EMBED_BASE_URL": server.url.removesuffix("/v1"), "EMBED_API_KEY": KEY}),))
    cached = CachedEmbedder(EndpointEmbedder("model-e", 0, "", settings), tmp_path, Meter())
    assert cached.vectors(["one"], "document") == [unit_of("one")]
    assert [request.path for request in server.requests] == ["/embeddings", "/v1/embeddings"]
    assert cached.meter.endpoint == server.url


# What is made of a reply


def test_vectors_have_unit_length_and_the_order_of_the_texts(server: EmbeddingServer, tmp_path: Path):
    server.script = lambda number, body: embedded(body, order=[2, 0, 1])
    texts = ["one", "three", "図書館"]
    assert cached_at(server, tmp_path).vectors(texts, "document") == [unit_of(text) for text in texts]
    vector = np.frombuffer(unit_of("one"), np.float32)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)


def test_places_may_be_left_to_the_order(server: EmbeddingServer, tmp_path: Path):
    server.script = lambda number, body: raw(b'{"data": [{"embedding": [3, 4]}, {"embedding": [0, -2.5]}]}')
    cached = cached_at(server, tmp_path)
    expected = [np.array(v, np.float32).tobytes() for v in ([0.6, 0.8], [0, -1])]
    assert cached.vectors(["one", "two"], "document") == expected


def test_a_vector_of_zeros_is_none(server: EmbeddingServer, tmp_path: Path):
    server.script = lambda number, body: raw(b'{"data": [{"embedding": [0, 0]}]}')
    assert cached_at(server, tmp_path).vectors(["one"], "document") == [None]


@pytest.mark.parametrize(
    "spoiled",
    [
        b"<html>",
        b"{}",
        b'{"data": []}',
        b'{"data": [{"index": 1, "embedding": [1]}]}',
        b'{"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]}',
        b'{"data": [{"index": 0, "embedding": [NaN]}]}',
        b'{"data": [{"index": 0, "embedding": [null]}]}',
        b'{"data": [{"index": 0, "embedding": [1e308, 1e308]}]}',
        b'{"data": [{"index": 0, "embedding": "AACAPw=="}]}',
    ],
    ids=lambda body: body.decode(),
)
def test_a_reply_that_is_no_list_of_vectors_is_asked_for_again(server: EmbeddingServer, tmp_path: Path, spoiled: bytes):
    server.script = lambda number, body: raw(spoiled) if number < 3 else embedded(body)
    assert cached_at(server, tmp_path).vectors(["one"], "document") == [unit_of("one")]
    server.script = lambda number, body: raw(spoiled)
    failed = failure(cached_at(server, tmp_path), "two")
    assert (failed.cause, failed.class_, failed.attempts) == ("service", "transient", 6)


# Cost


def test_each_text_carries_its_share_of_seconds_and_tokens(
    server: EmbeddingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Clock:
        now = 0.0

        def perf_counter(self) -> float:
            self.now += 0.5
            return self.now

        monotonic = perf_counter

    monkeypatch.setattr(endpoint, "time", Clock())
    first = cached_at(server, tmp_path)
    first.vectors(["a" * 30, "b" * 10], "document")
    assert (first.meter.tokens, first.meter.charged_tokens) == (2 * TOKENS_EACH, 2 * TOKENS_EACH)
    second = cached_at(server, tmp_path)
    second.vectors(["a" * 30], "document")
    meter = second.meter
    assert len(server.requests) == 1
    assert (meter.cache_hits, meter.first_cost_seconds) == (1, 0.5 * 30 / 40)
    assert (meter.requests, meter.tokens, meter.charged_tokens) == (0, 0, 2 * TOKENS_EACH * 30 / 40)


@pytest.mark.parametrize("usage", [{}, {"prompt_tokens": -3}, {"prompt_tokens": 10**30}], ids=["none", "-3", "10^30"])
def test_tokens_that_are_not_reported_are_unknown_not_zero(
    usage: dict[str, int], server: EmbeddingServer, tmp_path: Path
):
    server.script = lambda number, body: embedded(body, usage=usage)
    for requests in (1, 0):
        cached = cached_at(server, tmp_path)
        before = Meter()
        cached.vectors(["one"], "document")
        assert cached.meter.unreported == 1
        if requests:
            assert cached.meter.usage(before, before) == {"embedding_requests": 1}


# Nothing twice


def test_what_came_before_a_failure_is_kept(server: EmbeddingServer, tmp_path: Path):
    texts = [f"text {n}" for n in range(300)]
    server.script = lambda number, body: embedded(body) if number < 3 else error(500)
    assert failure(cached_at(server, tmp_path), *texts).class_ == "transient"
    del server.requests[:]
    server.script = lambda number, body: embedded(body)
    assert cached_at(server, tmp_path).vectors(texts, "document") == [unit_of(text) for text in texts]
    assert server.texts == texts[256:]


def test_two_at_once_send_no_text_twice(server: EmbeddingServer, tmp_path: Path):
    def slow(number: int, body: dict[str, Any]) -> Any:
        threading.Event().wait(0.05)
        return embedded(body)

    server.script = slow
    texts = [f"text {n}" for n in range(6)]
    found: list[list[bytes | None]] = []

    def embed() -> None:
        cached = cached_at(server, tmp_path)
        found.extend(cached.vectors([text], "document") for text in texts)

    threads = [threading.Thread(target=embed) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(server.texts) == texts
    assert sorted(found) == sorted([[unit_of(text)] for text in texts] * 3)


def test_revision_and_dimensions_tell_models_apart(server: EmbeddingServer, tmp_path: Path):
    for dimensions, revision in ((0, ""), (0, "q4"), (4, "")):
        cached_at(server, tmp_path, dimensions, revision).vectors(["one"], "document")
    assert server.texts == ["one"] * 3


def test_a_cache_from_before_endpoints_is_still_good(server: EmbeddingServer, tmp_path: Path):
    import sqlite3

    with sqlite3.connect(tmp_path / "embeddings.sqlite") as old:
        old.execute("CREATE TABLE vectors (key BLOB PRIMARY KEY, vector BLOB, seconds REAL) WITHOUT ROWID")
        key = cached_at(server, tmp_path)._key("one", "document")
        old.execute("INSERT INTO vectors VALUES (?, ?, ?)", (key, unit_of("one"), 0.25))
    cached = cached_at(server, tmp_path)
    assert cached.vectors(["one"], "document") == [unit_of("one")]
    assert (cached.meter.first_cost_seconds, cached.meter.unreported, server.requests) == (0.25, 1, [])


# Troubles


@pytest.mark.parametrize(
    "script",
    [
        in_turn(error(500), error(503), error(429)),
        in_turn(drop(), drop(), error(408)),
    ],
    ids=["status", "dropped"],
)
def test_what_may_pass_is_tried_again(server: EmbeddingServer, tmp_path: Path, script: Script):
    server.script = lambda number, body: script(number, body) if number < 4 else embedded(body)
    cached = cached_at(server, tmp_path)
    assert cached.vectors(["one"], "document") == [unit_of("one")]
    assert len(server.requests) == cached.meter.requests == 4
    assert cached.meter.tokens == TOKENS_EACH


def test_the_wait_that_a_server_asks_for_is_kept(
    server: EmbeddingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(EndpointEmbedder, "pause", 60.0)
    busy = error(429, "rate_limit_exceeded", headers={"Retry-After": "1"})
    server.script = lambda number, body: busy if number == 1 else embedded(body)
    cached_at(server, tmp_path).vectors(["one"], "document")
    first, second = server.requests
    assert 1.0 <= second.at - first.at < 10


def test_a_wait_beyond_the_bound_is_not_begun(server: EmbeddingServer, tmp_path: Path):
    server.script = lambda number, body: error(429, headers={"Retry-After": "3600"})
    failed = failure(cached_at(server, tmp_path), "one")
    assert (failed.class_, failed.attempts) == ("transient", 1)


@pytest.mark.parametrize(
    "trouble",
    [
        error(401, "invalid_api_key", f"Incorrect API key provided: {KEY}"),
        error(404, "model_not_found"),
        error(429, "insufficient_quota"),
        error(400, None, "dimensions isn't supported"),
    ],
)
def test_what_every_request_would_meet_ends_it_after_one(server: EmbeddingServer, tmp_path: Path, trouble: Any):
    server.script = lambda number, body: trouble
    cached = cached_at(server, tmp_path)
    failed = failure(cached, *map(str, range(200)))
    assert (failed.cause, failed.class_, failed.attempts) == ("service", "fatal", 1)
    assert KEY not in failed.message + (failed.raw or "")
    with pytest.raises(ClosedError):
        cached.vectors(["another"], "document")
    assert len(server.requests) == 1


@pytest.mark.parametrize(("asked", "given"), [(4, 8), (8, 7)])
def test_dimensions_are_checked(server: EmbeddingServer, tmp_path: Path, asked: int, given: int):
    server.script = lambda number, body: embedded(body, dimensions=given)
    failed = failure(cached_at(server, tmp_path, dimensions=asked), "one")
    assert failed.class_ == "fatal"
    assert f"has {given} dimensions, {asked} were asked for" in failed.message
    assert len(server.requests) == 1


def test_an_endpoint_that_changes_its_model_is_found_out(server: EmbeddingServer, tmp_path: Path):
    cached = cached_at(server, tmp_path)
    cached.vectors(["one"], "document")
    server.script = lambda number, body: embedded(body, dimensions=6)
    failed = failure(cached, "two")
    assert failed.class_ == "fatal"
    assert f"of {DIMENSIONS} and of 6 dimensions" in failed.message


@pytest.mark.parametrize("place", [0, 5, 37, 99])
def test_a_text_that_is_too_long_fails_alone(server: EmbeddingServer, tmp_path: Path, place: int):
    texts = [f"text {n}" for n in range(100)]
    texts[place] = "x" * 101
    server.script = refusing(100)
    failed = failure(cached_at(server, tmp_path), *texts)
    assert (failed.cause, failed.class_) == ("system", "content")
    assert "maximum context length" in failed.message
    assert "the text has 101 characters" in failed.message
    assert len(server.requests) <= 2 * 8
    assert "x" * 101 not in failed.message
    del server.requests[:]
    others = [text for text in texts[:place] if len(text) <= 100]
    cached_at(server, tmp_path).vectors(others, "document")
    assert server.requests == []  # what stands before it was kept


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (413, "batch size 128 > maximum allowed batch size 10"),
        (400, "batch size is invalid, it should not be larger than 10.: input.contents"),
        (400, "at most 10 requests can be in one batch"),
    ],
)
def test_a_server_that_takes_fewer_texts_gets_fewer(server: EmbeddingServer, tmp_path: Path, status: int, message: str):
    server.script = lambda number, body: error(status, None, message) if len(body["input"]) > 10 else embedded(body)
    texts = [f"text {n}" for n in range(130)]
    assert cached_at(server, tmp_path).vectors(texts, "document") == [unit_of(text) for text in texts]
    assert list(map(len, server.batches)) == [128, 64, 32, 16] + [8] * 16 + [2]


def test_a_refused_text_is_not_sent_again(server: EmbeddingServer, tmp_path: Path):
    server.script = lambda number, body: error(400, "content_filter")
    failed = failure(cached_at(server, tmp_path), "one")
    assert (failed.cause, failed.class_, failed.attempts) == ("system", "content", 1)
    assert len(server.requests) == 1


# What a TOML says


def state(embedding: str, **more: Any) -> dict[str, Any]:
    return {"embedding": embedding, **more}


def test_names_are_spelled_out():
    configured = Settings((("test", {"EMBED_MODEL": "model-e"}),))
    assert embedding_model(state("wordllama-256"), configured) == "wordllama-256"
    assert embedding_model(state("openai:org/model"), configured) == "openai:org/model"
    assert embedding_model(state("endpoint"), configured) == "openai:model-e"


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        (state("wordlama-256"), "unknown embedding 'wordlama-256'; did you mean wordllama-256?"),
        (state("openai:"), "name the model too"),
        (state("openai: "), "name the model too"),
        (state("endpoint"), "EMBED_MODEL, which isn't set"),
        (state("wordllama-256", dimensions=256), "dimensions is for a model behind an endpoint"),
        (state("wordllama-256", revision="2"), "revision is for a model behind an endpoint"),
        (state("openai:m", dimensions=0), "dimensions is 0"),
    ],
    ids=json.dumps,
)
def test_what_is_wrong_is_said(said: dict[str, Any], complaint: str):
    chat_model = Settings((("test", {"LLM_MODEL": "chat", "READER_MODEL": "chat"}),))
    with pytest.raises(UserError, match=re.escape(complaint)):
        embedding_model(said, chat_model)
