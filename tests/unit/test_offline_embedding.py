"""Embeddings for which no model runs, as systems select them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memtrials.benchmarks.continuity.rules import read
from memtrials.benchmarks.continuity.scripts import catalogue_path
from memtrials.embeddings.base import Embedder
from memtrials.embeddings.controllable import Controllable
from memtrials.embeddings.frozen import cosine, text_key
from memtrials.errors import UserError
from memtrials.settings import Settings
from memtrials.systems.embedded import embedder, embedding_ready, embedding_settings
from memtrials.systems.embedding import BatchEmbedder, embedding_model

NOTHING = Settings()


def naming(path: Path) -> Settings:
    return Settings((("test", {"EMBED_FILE": str(path)}),))


def state(embedding: str, **more: Any) -> dict[str, Any]:
    return {"retriever": "vector", "embedding": embedding, **more}


def opened(embedding: str, settings: Settings, **more: Any) -> Embedder:
    model = embedder(state(embedding, **more), settings)
    assert not isinstance(model, BatchEmbedder)
    return model


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of three texts."""
    vectors = {"a b": [3.0, 4.0], "q": [0.0, 2.0], "zero": [0.0, 0.0]}
    entries = sorted(({"text_sha256": text_key(t), "text": t, "embedding": v} for t, v in vectors.items()), key=first)
    head = {"schema_version": 2, "model": "demo", "vector_size": 2, "dimension_policy": "x", "source": "y"}
    path = tmp_path / "store.json"
    path.write_text(json.dumps({**head, "entries": entries}), "utf-8")
    return path


def first(entry: dict[str, Any]) -> str:
    return str(entry["text_sha256"])


def test_hashed_words_are_unit_vectors_that_need_nothing():
    model = opened("deterministic-16", NOTHING)
    vector = model.embed("Alice likes tea", "document")
    assert vector is not None
    assert {n: round(float(x), 6) for n, x in enumerate(vector) if x} == dict.fromkeys((3, 13, 15), 0.57735)
    assert (vector.dtype, model.dimensions) == (np.float32, 16)


def test_kept_vectors_are_found_normalised_for_what_is_written_and_exact_for_queries(store: Path):
    model = opened("frozen:demo", naming(store))
    written = model.embed("  a\n b", "document")
    assert written is not None
    assert list(written) == pytest.approx([0.6, 0.8])
    assert model.embed("zero", "document") is None
    with pytest.raises(UserError, match="no vector of 'demo' for 'a  b'"):
        model.embed("a  b", "query")


def test_an_authored_geometry_is_that_of_its_scenario():
    scenario = read(catalogue_path()).scenario("hub-scale")
    assert scenario.geometry is not None
    model = opened("controllable:hub-scale", naming(catalogue_path()))
    query = scenario.queries[0].text
    text = "A tow rope snapped at the mouth of Otter Lock."
    one, other = model.embed(query, "query"), model.embed(text, "document")
    assert one is not None
    assert other is not None
    assert float(np.linalg.norm(other)) == pytest.approx(1)
    authored = Controllable(scenario.geometry)
    assert float(one @ other) == pytest.approx(cosine(authored.vector(query), authored.vector(text)), abs=1e-6)


@pytest.mark.parametrize("name", ["deterministic-256", "frozen:demo", "controllable:hub-scale"])
def test_what_stands_in_the_file_is_part_of_a_system_and_its_place_is_not(name: str, store: Path, tmp_path: Path):
    file = catalogue_path() if name.startswith("controllable") else store
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_bytes(file.read_bytes())
    found = embedding_settings(state(name), naming(file))
    assert found == embedding_settings(state(name), naming(elsewhere))
    assert found["embedding"] == name
    assert str(tmp_path) not in json.dumps(found)


def test_another_file_under_the_same_name_is_refused(store: Path):
    recorded = state("frozen:demo") | dict(embedding_settings(state("frozen:demo"), naming(store)))
    embedding_ready(recorded, naming(store))
    changed = json.loads(store.read_text("utf-8"))
    changed["entries"][0]["embedding"][0] += 0.5
    store.write_text(json.dumps(changed), "utf-8")
    with pytest.raises(UserError, match="name that file again, or replay anew"):
        embedding_ready(recorded, naming(store))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("frozen:demo", "EMBED_FILE names, which isn't set"),
        ("controllable:hub-scale", "EMBED_FILE names, which isn't set"),
    ],
)
def test_a_file_that_is_not_named_is_asked_for(name: str, message: str):
    with pytest.raises(UserError, match=message):
        embedding_settings(state(name), NOTHING)


@pytest.mark.parametrize(
    ("name", "file", "message"),
    [
        ("frozen:other", "store", "of 'demo', and 'other' is set"),
        ("frozen:demo", "catalogue", "schema_version is 3, and only 2"),
        ("controllable:hub-scal", "catalogue", "did you mean hub-scale"),
        ("controllable:combined-life", "catalogue", "unknown scenario with an authored geometry 'combined-life'"),
        ("controllable:hub-scale", "store", "schema_version is 2, and expected is 3"),
        ("frozen:demo", "none", "can't be read"),
    ],
)
def test_a_file_of_something_else_is_refused(name: str, file: str, message: str, store: Path, tmp_path: Path):
    path = {"store": store, "catalogue": catalogue_path(), "none": tmp_path / "none"}[file]
    with pytest.raises(UserError, match=message):
        embedding_settings(state(name), naming(path))


@pytest.mark.parametrize(
    "name", ["deterministic", "deterministic-0", "deterministic-x", "deterministic-256 ", "frozen:", "controllable: "]
)
def test_names_that_are_not_whole_are_unknown(name: str):
    with pytest.raises(UserError, match="unknown embedding"):
        embedding_model(state(name), NOTHING)


@pytest.mark.parametrize("key", ["dimensions", "revision"])
def test_what_an_endpoint_is_told_these_are_not(key: str):
    with pytest.raises(UserError, match=f"{key} is for a model behind an endpoint"):
        embedding_model(state("deterministic-256", **{key: 1}), NOTHING)
