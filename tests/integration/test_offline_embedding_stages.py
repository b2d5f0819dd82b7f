"""Systems whose embeddings no model makes, through replay and fetch."""

import json
from pathlib import Path
from typing import Any

import pytest

from memtrials.benchmarks import inmind
from memtrials.benchmarks.base import LoadOptions
from memtrials.benchmarks.continuity.scripts import catalogue_path
from memtrials.embeddings.frozen import Frozen, cosine, read_store
from memtrials.embeddings.surfaces import normalised
from support.cli import call_cli
from support.trials import ended, files, records, stage

TASKS, QUERIES = 8, 16


def system(folder: Path, embedding: str) -> str:
    path = folder / "mine.toml"
    path.write_text(f'[state]\nsystem = "embedded"\nretriever = "vector"\nembedding = "{embedding}"\n', "utf-8")
    return str(path)


def contexts(trials: Path) -> dict[tuple[str, str], Any]:
    return {(r["task"], r["query"]): r["body"]["context"] for r in records(trials, "retrieval")}


def test_hashed_words_serve_a_benchmark(built: Path, tmp_path: Path):
    mine = system(tmp_path, "deterministic-64")
    env = {"MEMTRIALS_CACHE": str(tmp_path / "cache")}
    assert stage(built, "replay", mine, env=env)["done"] == TASKS
    assert stage(built, "fetch", mine, env=env)["done"] == QUERIES
    found = contexts(built)
    assert len(found) == QUERIES
    assert all(found.values())


def test_a_store_that_was_made_serves_a_benchmark_by_its_cosines(built: Path, sample: Path, tmp_path: Path):
    loaded = inmind.load(sample, LoadOptions())
    task, _, body = loaded.tasks[0]
    said = [turn.content for s in inmind.sessions(sample, loaded.name, task, body) for turn in s.turns]
    texts = dict.fromkeys([*map(normalised, said), *(query.text for query in body.queries)])
    manifest, store = tmp_path / "manifest.json", tmp_path / "store.json"
    listed = [{"id": str(n), "text": text} for n, text in enumerate(texts)]
    manifest.write_text(json.dumps({"schema_version": 1, "texts": listed}), "utf-8")
    made = ("--manifest", str(manifest), "--model", "wordllama-256", "--out", str(store))
    ended(call_cli("embeddings", "generate", *made))
    env = {"MEMTRIALS_CACHE": str(tmp_path / "cache"), "EMBED_FILE": str(store)}
    mine = system(tmp_path, "frozen:wordllama-256")
    assert stage(built, "replay", mine, "--task", task, env=env)["done"] == 1
    assert stage(built, "fetch", mine, "--task", task, env=env)["done"] == len(body.queries)
    kept = Frozen(read_store(store), store)
    found = records(built, "retrieval")
    assert len(found) == len(body.queries) == 2
    for query, trial in zip(body.queries, found, strict=True):
        asked = kept.vector(query.text)
        cosines = {text: cosine(asked, kept.vector(normalised(text))) for text in said}
        best = sorted(said, key=lambda text: -cosines[text])[:10]
        assert trial["body"]["question"] == query.text
        assert [item["text"] for item in trial["body"]["items"]] == best
        assert [item["score"] for item in trial["body"]["items"]] == pytest.approx([cosines[t] for t in best], abs=1e-5)


@pytest.mark.parametrize(
    ("embedding", "file", "message"),
    [
        ("frozen:demo", None, "EMBED_FILE names, which isn't set"),
        ("controllable:hub-scal", str(catalogue_path()), "did you mean hub-scale"),
    ],
)
def test_a_file_that_is_missing_or_wrong_ends_replay_before_anything_is_written(
    embedding: str, file: str | None, message: str, built: Path, tmp_path: Path
):
    mine = system(tmp_path, embedding)
    before = files(built.parent)
    env = {"MEMTRIALS_CACHE": str(tmp_path / "cache")} | ({"EMBED_FILE": file} if file else {})
    finished = ended(call_cli("replay", mine, "--trials", str(built), "--quiet", env=env), 2)
    assert message in finished.err
    assert files(built.parent) == before


def test_a_text_without_a_vector_ends_replay_and_becomes_no_state(built: Path, tmp_path: Path):
    mine = system(tmp_path, "controllable:hub-scale")
    env = {"MEMTRIALS_CACHE": str(tmp_path / "cache"), "EMBED_FILE": str(catalogue_path())}
    finished = ended(call_cli("replay", mine, "--trials", str(built), "--quiet", env=env), 2)
    assert "belongs to no concept" in finished.err
    assert records(built, "ingest") == []
