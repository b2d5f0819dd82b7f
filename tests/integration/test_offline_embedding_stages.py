"""Systems whose embeddings no model makes, through replay and fetch."""

from pathlib import Path
from typing import Any

import pytest

from memtrials.benchmarks.continuity.scripts import catalogue_path
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
