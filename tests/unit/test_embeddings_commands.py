"""`embeddings generate` and `validate`: what is asked, what is written, and what leaves everything as it was."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memtrials.benchmarks.continuity.binding import bind
from memtrials.benchmarks.continuity.rules import read
from memtrials.benchmarks.continuity.scripts import catalogue_path, catalogue_store_path, manifest_path
from memtrials.embeddings import frozen
from memtrials.embeddings.frozen import Frozen, canonical, read_store, text_key, write_store
from memtrials.errors import UserError
from support.cli import Finished, call_cli
from support.embedding_server import DIMENSIONS, TOKENS_EACH, EmbeddingServer, embedded, unit_of
from support.model_server import KEY, Reply, drop, error, raw, reset

pytestmark = pytest.mark.usefixtures("quick", "key_stays_secret")

TEXTS = {"q": "aaaa", "t": "aaab", "n": "bbbb", "again": "aaaa"}
"""As the server sees them: `t` has cosine 0.9487 to `q`, `n` none at all."""
BEFORE = b"what was there before"


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with EmbeddingServer() as server:
        yield server


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return manifest_in(tmp_path, "t", "n")


def manifest_in(folder: Path, *descending: str, margin: float = 0.01) -> Path:
    ordering = {"description": "letters", "anchor_id": "q", "descending_ids": descending, "min_margin": margin}
    texts = [{"id": name, "text": text} for name, text in TEXTS.items()]
    path = folder / "manifest.json"
    path.write_text(json.dumps({"schema_version": 1, "texts": texts, "similarity_orderings": [ordering]}), "utf-8")
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A store's place, where something is already."""
    (tmp_path / "kept").mkdir()
    path = tmp_path / "kept" / "store.json"
    path.write_bytes(BEFORE)
    return path


def generate(
    manifest: Path, out: Path, *more: str, model: str = "model-e", server: EmbeddingServer | None = None
) -> Finished:
    arguments = ("--manifest", str(manifest), "--model", model, "--out", str(out), *more)
    return call_cli("embeddings", "generate", *arguments, env=server.environment() if server else None)


def validate(manifest: Path, store: Path, *more: str) -> Finished:
    return call_cli("embeddings", "validate", "--manifest", str(manifest), "--store", str(store), *more)


def refused(finished: Finished, message: str, out: Path, code: int = 2) -> None:
    """It ended so, said so in one line at the end, and left what was there and nothing beside it."""
    assert finished.code == code, finished.err
    assert message in finished.err.rstrip("\n").rpartition("\n")[2], finished.err
    assert finished.err.rstrip("\n").rpartition("\n")[2].startswith("memtrials: ")
    assert out.read_bytes() == BEFORE
    assert list(out.parent.iterdir()) == [out]


# --- generate ---


def test_each_text_is_sent_once_in_the_order_of_hashes_in_one_request(
    server: EmbeddingServer, manifest: Path, out: Path
):
    finished = generate(manifest, out, model="  model-e\n", server=server)
    assert finished.code == 0, finished.err
    (request,) = server.requests
    ordered = sorted({"aaaa", "aaab", "bbbb"}, key=text_key)
    assert request.body == {"model": "model-e", "input": ordered, "encoding_format": "float"}
    assert request.headers["authorization"] == f"Bearer {KEY}"
    store = read_store(out)
    assert (store.model, store.vector_size, store.dimension_policy, store.source) == (
        "model-e",
        DIMENSIONS,
        "provider_default",
        "open_ai_api",
    )
    assert [entry.text for entry in store.entries] == ordered
    for entry in store.entries:
        assert np.array(entry.embedding, np.float32).tobytes() == unit_of(entry.text)
    assert list(out.parent.iterdir()) == [out]


def test_what_it_made_and_took_is_told(server: EmbeddingServer, manifest: Path, out: Path):
    finished = generate(manifest, out, "--json", model="text-embedding-3-small", server=server)
    told = json.loads(finished.out)
    assert (told["vector_size"], told["entries"], told["texts"]) == (DIMENSIONS, 3, 3)
    assert told["orderings"][0]["cosines"] == pytest.approx({"t": 3 / 10**0.5, "n": 0.0})
    assert told["usage"] == {"embedding_requests": 1, "embedding_tokens": 3 * TOKENS_EACH}
    assert told["cost_usd"] == pytest.approx(3 * TOKENS_EACH * 0.02 / 1e6)


def test_tokens_that_are_not_reported_are_no_number(server: EmbeddingServer, manifest: Path, out: Path):
    server.script = lambda number, body: embedded(body, usage={})
    told = json.loads(generate(manifest, out, "--json", model="text-embedding-3-small", server=server).out)
    assert told["usage"] == {"embedding_requests": 1}
    assert told["cost_usd"] is None


def test_dimensions_are_asked_for_and_named(server: EmbeddingServer, manifest: Path, out: Path):
    assert generate(manifest, out, "--dimensions", "4", server=server).code == 0
    assert server.requests[0].body["dimensions"] == 4
    store = read_store(out)
    assert (store.vector_size, store.dimension_policy) == (4, "requested_dimensions=4")


@pytest.mark.parametrize("model", ["text-embedding-ada-002", " text-embedding-ada-002 ", "wordllama-256"])
def test_dimensions_that_a_model_does_not_take_are_refused_before_a_key_is_looked_for(
    model: str, manifest: Path, out: Path
):
    finished = generate(manifest, out, "--dimensions", "64", model=model)
    refused(finished, f"{model.strip()} can't be asked for a number of dimensions", out)
    assert "key" not in finished.err


def test_without_a_key_nothing_is_written(manifest: Path, out: Path):
    refused(generate(manifest, out), "no key for embed model-e", out)


@pytest.mark.parametrize("model", ["", " \t"])
def test_a_blank_model_is_refused(model: str, manifest: Path, out: Path):
    refused(generate(manifest, out, model=model), "--model is blank", out)


def test_a_place_that_can_hold_no_file_is_told_before_anything_is_sent(
    server: EmbeddingServer, manifest: Path, tmp_path: Path
):
    for place in (tmp_path, tmp_path / "none" / "store.json"):
        finished = generate(manifest, place, server=server)
        assert finished.code == 2
        assert f"{place}: not a file in a folder that is there" in finished.err
    assert server.requests == []


def changed(body: dict[str, Any], change: Any) -> Reply:
    """A good reply with its list of vectors changed."""
    reply = json.loads(embedded(body).body)
    change(reply["data"])
    return raw(json.dumps(reply).encode())


@pytest.mark.parametrize(
    ("script", "message", "code"),
    [
        (lambda n, body: drop(), "no answer", 1),
        (lambda n, body: reset(embedded(body)), "no answer", 1),
        (lambda n, body: error(500), "HTTP 500: no", 1),
        (lambda n, body: error(429, headers={"retry-after": "0"}), "HTTP 429: no", 1),
        (lambda n, body: raw(b"<html>"), "the body isn't a list of embeddings", 1),
        (lambda n, body: error(400, "invalid_input", "input is too long"), "input is too long; 3 texts", 1),
        (lambda n, body: error(401, "invalid_api_key"), "HTTP 401: no; check the model", 2),
        (lambda n, body: changed(body, lambda data: data.pop()), "2 vectors for 3 texts", 1),
        (lambda n, body: changed(body, lambda data: data.append({**data[0], "index": 3})), "4 vectors for 3 texts", 1),
        (lambda n, body: changed(body, lambda data: data[1].update(index=0)), "not one for each", 1),
        (lambda n, body: changed(body, lambda data: data[1].update(embedding=[1e300] * 8)), "isn't finite", 1),
        (
            lambda n, body: changed(body, lambda data: data[1].update(embedding=[float("nan")] * 8)),
            "isn't a list of embeddings",
            1,
        ),
        (
            lambda n, body: changed(body, lambda data: data[2]["embedding"].pop()),
            "model-e gave vectors of 7 and of 8 dimensions in one reply",
            2,
        ),
        (
            lambda n, body: changed(body, lambda data: data[0].update(embedding=[0.0] * 8)),
            "has no direction",
            2,
        ),
    ],
)
def test_a_reply_that_is_of_no_use_is_one_request_and_no_store(
    script: Any, message: str, code: int, server: EmbeddingServer, manifest: Path, out: Path
):
    server.script = script
    finished = generate(manifest, out, server=server)
    refused(finished, message, out, code)
    assert "nothing is written" in finished.err
    assert len(server.requests) == 1


def test_a_base_url_without_its_path_is_found_as_by_the_systems(server: EmbeddingServer, manifest: Path, out: Path):
    bare = {"EMBED_BASE_URL": server.url.removesuffix("/v1"), "EMBED_API_KEY": KEY}
    arguments = ("--manifest", str(manifest), "--model", "model-e", "--out", str(out))
    assert call_cli("embeddings", "generate", *arguments, env=bare).code == 0
    assert [request.path for request in server.requests] == ["/embeddings", "/v1/embeddings"]


def test_an_ordering_that_does_not_hold_leaves_the_store_as_it_was(server: EmbeddingServer, tmp_path: Path, out: Path):
    finished = generate(manifest_in(tmp_path, "n", "t"), out, server=server)
    refused(finished, "'n' has cosine 0.0000 to 'q' and 't' 0.9487", out)
    assert f"{tmp_path / 'manifest.json'} isn't met by model-e" in finished.err
    assert len(server.requests) == 1


# --- writing ---


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A folder that doesn't let a file into its place so many `times`, and how long was waited."""
    seen: dict[str, Any] = {"times": 0, "tried": 0, "waits": []}
    replace = os.replace

    def stubborn(self: Path, target: Path) -> Path:
        seen["tried"] += 1
        if seen["tried"] <= seen["times"]:
            raise PermissionError(13, "Permission denied")
        replace(self, target)
        return target

    monkeypatch.setattr(Path, "replace", stubborn)
    monkeypatch.setattr(frozen.time, "sleep", seen["waits"].append)
    return seen


@pytest.mark.parametrize("times", [1, 3])
def test_a_place_that_is_held_for_a_moment_is_waited_for(times: int, refusals: dict[str, Any], out: Path):
    refusals["times"] = times
    store = read_store(catalogue_store_path())
    write_store(store, out)
    assert out.read_bytes() == canonical(store)
    assert (refusals["tried"], refusals["waits"]) == (times + 1, pytest.approx([0.025, 0.05, 0.075][:times]))
    assert list(out.parent.iterdir()) == [out]


def test_after_four_refusals_the_old_store_stays(refusals: dict[str, Any], out: Path):
    refusals["times"] = 9
    with pytest.raises(UserError, match=r"Permission denied\); what was there is as it was"):
        write_store(read_store(catalogue_store_path()), out)
    assert (refusals["tried"], len(refusals["waits"])) == (4, 3)
    assert out.read_bytes() == BEFORE
    assert list(out.parent.iterdir()) == [out]


def test_another_trouble_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, out: Path):
    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device"):
        write_store(read_store(catalogue_store_path()), out)
    assert out.read_bytes() == BEFORE
    assert list(out.parent.iterdir()) == [out]


# --- validate ---


@pytest.fixture
def store(server: EmbeddingServer, manifest: Path, tmp_path: Path) -> Path:
    path = tmp_path / "store.json"
    assert generate(manifest, path, server=server).code == 0
    return path


def test_a_store_that_meets_its_manifest_is_told_with_its_cosines(store: Path, manifest: Path):
    finished = validate(manifest, store)
    assert finished == Finished(
        0,
        f"{store}: 3 vectors of model-e with {DIMENSIONS} dimensions, 3 texts\nholds: letters (0.9487, 0.0000)\n",
        "",
    )
    told = json.loads(validate(manifest, store, "--json").out)
    assert (told["usage"], told["cost_usd"], told["orderings"][0]["min_margin"]) == ({}, 0.0, 0.01)


def test_entries_that_no_manifest_lists_are_fine(store: Path, manifest: Path):
    wanted = json.loads(manifest.read_bytes())
    wanted["texts"] = [text for text in wanted["texts"] if text["id"] in ("q", "n")]
    wanted["similarity_orderings"] = []
    manifest.write_text(json.dumps(wanted), "utf-8")
    assert "3 vectors of model-e with 8 dimensions, 2 texts" in validate(manifest, store).out


def test_all_texts_without_a_vector_are_told(store: Path, manifest: Path):
    wanted = json.loads(manifest.read_bytes())
    wanted["texts"] += [{"id": "c", "text": "cccc"}, {"id": "d", "text": "aaaa "}]
    manifest.write_text(json.dumps(wanted), "utf-8")
    finished = validate(manifest, store)
    assert finished.code == 2
    assert f"{manifest} isn't met by {store}: no vector for 'cccc' (SHA-256 {text_key('cccc')})" in finished.err
    assert f"no vector for 'aaaa ' (SHA-256 {text_key('aaaa ')})" in finished.err


def test_an_ordering_that_does_not_hold_is_told_with_its_cosines(store: Path, tmp_path: Path):
    finished = validate(manifest_in(tmp_path, "t", "n", margin=0.95), store)
    assert finished.code == 2
    assert "ordering 'letters': 't' has cosine 0.9487 to 'q' and 'n' 0.0000" in finished.err
    assert "above the second by more than 0.95; rewrite the texts" in finished.err


def test_a_vector_without_direction_is_told(store: Path, manifest: Path):
    plain = json.loads(store.read_bytes())
    for entry in plain["entries"]:
        entry["embedding"] = [0.0] * DIMENSIONS if entry["text"] == "bbbb" else entry["embedding"]
    store.write_text(json.dumps(plain), "utf-8")
    finished = validate(manifest, store)
    assert finished.code == 2
    assert "ordering 'letters': a vector of length zero" in finished.err


def test_a_store_that_was_changed_by_hand_is_told(store: Path, manifest: Path):
    plain = json.loads(store.read_bytes())
    plain["entries"][0]["text"] += "!"
    store.write_text(json.dumps(plain), "utf-8")
    finished = validate(manifest, store)
    assert finished.code == 2
    assert f"{store}: entry 0: text_sha256 is" in finished.err


def test_files_in_each_others_place_are_told(store: Path, manifest: Path):
    finished = validate(store, manifest)
    assert finished.code == 2
    assert f"{store}: schema_version is 2, and only 1 can be read" in finished.err


# --- our own store ---


def test_the_bundled_model_makes_our_store_without_a_key(out: Path):
    finished = generate(manifest_path(), out, model="wordllama-256")
    assert finished.code == 0, finished.err
    made, ours = read_store(out), read_store(catalogue_store_path())
    assert (made.model, made.vector_size, made.dimension_policy) == ("wordllama-256", 256, "provider_default")
    assert made.source.startswith("wordllama 0.4.")
    for one, other in zip(made.entries, ours.entries, strict=True):
        assert one.text == other.text
        assert np.allclose(one.embedding, other.embedding, rtol=0, atol=1e-6)
    assert (made.model, made.dimension_policy, made.source) == (ours.model, ours.dimension_policy, ours.source)


def test_our_store_is_canonical_and_meets_our_manifest():
    path = catalogue_store_path()
    assert path.read_bytes() == canonical(read_store(path))
    told = json.loads(validate(manifest_path(), path, "--json").out)
    assert (told["entries"], told["texts"], len(told["orderings"])) == (71, 71, 4)


def test_our_catalogue_has_all_its_vectors_out_of_the_box():
    scenarios = read(catalogue_path()).scenarios
    kept = Frozen(read_store(catalogue_store_path()), catalogue_store_path())
    assert len(bind(scenarios, kept)) == len(scenarios) == 17
