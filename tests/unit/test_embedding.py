"""The cache that embeddings go through: nothing is embedded twice, and what a vector cost when it was made is kept."""

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memtrials.embeddings.base import Role
from memtrials.errors import UserError
from memtrials.systems import embedding
from memtrials.systems.base import Meter
from memtrials.systems.embedding import CachedEmbedder, WordLlama
from support.cli import call_cli
from support.releases import SAMPLE

COST = 0.25
"""What one embedding takes on the clock of these tests, in seconds."""


class Clock:
    """A clock that only moves when something is embedded."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Model:
    """A model that remembers what it was asked. Texts without letters have no tokens."""

    def __init__(self, clock: Clock, **identity: Any) -> None:
        self.clock = clock
        self.provider = identity.get("provider", "maker")
        self.model = identity.get("model", "small")
        self.revision = identity.get("revision", "1")
        self.dimensions = identity.get("dimensions", 2)
        self.asked: list[tuple[str, Role]] = []

    def load(self) -> None:
        """Ready as it is."""

    def embed(self, text: str, role: Role) -> np.ndarray | None:
        self.asked.append((text, role))
        self.clock.now += COST
        return np.array([len(text), 1], np.float32) if text.isalpha() else None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(embedding, "time", clock)
    return clock


def counters(meter: Meter) -> tuple[int, int, float]:
    """Misses, hits, and what the hits cost first."""
    return meter.cache_misses, meter.cache_hits, meter.first_cost_seconds


def vector_of(text: str) -> bytes:
    return np.array([len(text), 1], np.float32).tobytes()


# Counting


def test_each_text_is_embedded_once(tmp_path: Path, clock: Clock):
    model, meter = Model(clock), Meter()
    cached = CachedEmbedder(model, tmp_path, meter)
    assert cached.vectors(["one", "three", "one"], "document") == [
        vector_of("one"),
        vector_of("three"),
        vector_of("one"),
    ]
    assert model.asked == [("one", "document"), ("three", "document")]
    assert counters(meter) == (2, 1, COST)
    cached.vectors(["three", "five"], "document")
    assert model.asked[2:] == [("five", "document")]
    assert counters(meter) == (3, 2, 2 * COST)


def test_nothing_to_embed_costs_nothing(tmp_path: Path, clock: Clock):
    meter = Meter()
    assert CachedEmbedder(Model(clock), tmp_path, meter).vectors([], "document") == []
    assert counters(meter) == (0, 0, 0.0)


def test_another_object_finds_vectors_and_their_first_cost(tmp_path: Path, clock: Clock):
    first = CachedEmbedder(Model(clock), tmp_path, Meter())
    made = first.vectors(["one", "…"], "document")
    first.close()
    model, meter = Model(clock), Meter()
    assert CachedEmbedder(model, tmp_path, meter).vectors(["one", "…"], "document") == made
    assert model.asked == []
    assert counters(meter) == (0, 2, 2 * COST)


def test_many_texts_at_once(tmp_path: Path, clock: Clock):
    """More than SQLite takes as parameters of one query, and more than stay in memory when that is little."""
    texts = ["x" * n for n in range(1, 1203)]
    first = CachedEmbedder(Model(clock), tmp_path, Meter())
    first.vectors(texts, "document")
    first.close()
    model, meter = Model(clock), Meter()
    assert CachedEmbedder(model, tmp_path, meter).vectors(texts, "document") == [vector_of(t) for t in texts]
    assert (model.asked, meter.cache_hits) == ([], 1202)


def test_what_was_made_here_is_written_some_at_a_time(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch):
    """Until it is written it is found in memory, even where memory is too small to remember it."""
    monkeypatch.setattr(embedding, "WRITTEN_TOGETHER", 3)
    monkeypatch.setattr(embedding, "KEPT_IN_MEMORY", 1)
    model = Model(clock)
    cached = CachedEmbedder(model, tmp_path, Meter())

    def written() -> int:
        path = tmp_path / "embeddings.sqlite"
        return int(sqlite3.connect(path).execute("SELECT count(*) FROM vectors").fetchone()[0])

    for text, count in (("one", 0), ("three", 0), ("one", 0), ("fifteen", 3), ("seven", 3)):
        assert cached.vectors([text], "document") == [vector_of(text)]
        assert written() == count
    cached.close()
    assert written() == 4
    assert len(model.asked) == 4


def test_what_left_memory_is_read_again(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(embedding, "KEPT_IN_MEMORY", 1)
    model = Model(clock)
    cached = CachedEmbedder(model, tmp_path, Meter())
    for text in ("one", "three", "one", "three"):
        assert cached.vectors([text], "document") == [vector_of(text)]
    assert len(model.asked) == 2


def test_another_process_finds_them_too(tmp_path: Path, clock: Clock):
    texts = ["The bakery closes at noon.", ""]
    program = (
        "import sys; from pathlib import Path; from memtrials.systems.base import Meter\n"
        "from memtrials.systems.embedding import CachedEmbedder, WordLlama\n"
        "cached = CachedEmbedder(WordLlama(), Path(sys.argv[1]), Meter())\n"
        "cached.vectors(sys.argv[2:], 'document')\n"
        "cached.close()"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path), *texts], check=True)
    bundled = WordLlama()
    identity = {name: getattr(bundled, name) for name in ("provider", "model", "revision", "dimensions")}
    model = Model(clock, **identity)
    (vector, nothing) = CachedEmbedder(model, tmp_path, Meter()).vectors(texts, "document")
    assert model.asked == []
    assert vector is not None
    assert np.frombuffer(vector, np.float32).shape == (256,)
    assert nothing is None


# What a vector depends on


@pytest.mark.parametrize(
    "other",
    [{"provider": "other"}, {"model": "large"}, {"revision": "2"}, {"dimensions": 3}],
    ids=lambda other: next(iter(other)),
)
def test_another_model_has_its_own_vectors(tmp_path: Path, clock: Clock, other: dict[str, Any]):
    CachedEmbedder(Model(clock), tmp_path, Meter()).vectors(["one"], "document")
    model = Model(clock, **other)
    CachedEmbedder(model, tmp_path, Meter()).vectors(["one"], "document")
    assert len(model.asked) == 1


def test_documents_and_queries_have_their_own_vectors(tmp_path: Path, clock: Clock):
    model = Model(clock)
    cached = CachedEmbedder(model, tmp_path, Meter())
    cached.vectors(["one"], "document")
    cached.vectors(["one"], "query")
    assert model.asked == [("one", "document"), ("one", "query")]


@pytest.mark.parametrize("other", ["One", "one ", "one\0", "ōne"])
def test_every_character_of_a_text_counts(tmp_path: Path, clock: Clock, other: str):
    model = Model(clock)
    CachedEmbedder(model, tmp_path, Meter()).vectors(["one", other], "document")
    assert len(model.asked) == 2


# Texts without tokens


def test_a_text_without_tokens_has_no_vector_and_is_not_tried_again(tmp_path: Path, clock: Clock):
    model, meter = Model(clock), Meter()
    cached = CachedEmbedder(model, tmp_path, meter)
    assert cached.vectors(["…", "one", "…"], "document") == [None, vector_of("one"), None]
    assert cached.vectors(["…"], "document") == [None]
    assert counters(meter) == (2, 2, 2 * COST)


# The bundled model


@pytest.fixture(scope="module")
def bundled() -> WordLlama:
    return WordLlama()


@pytest.mark.parametrize("text", ["The bakery closes at noon.", "図書館", "x " * 20_000, "🎉"])
def test_the_bundled_model_gives_unit_vectors(bundled: WordLlama, text: str):
    vector = bundled.embed(text, "document")
    assert vector is not None
    assert (vector.dtype, vector.shape) == (np.float32, (256,))
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)
    assert vector.tobytes() == WordLlama().embed(text, "query").tobytes()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "text", ["The bakery closes at noon.", "図書館", "x " * 20_000, "🎉", " ", "a\0b", "Ünïcode—42"]
)
def test_the_bundled_models_vectors_are_the_librarys_to_the_bit(bundled: WordLlama, text: str):
    bundled.load()
    theirs = bundled._model.embed(text)[0]
    expected = theirs / np.float32(float(np.linalg.norm(theirs)))
    vector = bundled.embed(text, "document")
    assert vector is not None
    assert vector.tobytes() == expected.tobytes()


def test_the_bundled_model_finds_no_tokens_in_nothing(bundled: WordLlama):
    assert bundled.embed("", "document") is None


# A cache that can't be used


def a_file(place: Path) -> Path:
    place.write_text("here already")
    return place


def below_a_file(place: Path) -> Path:
    return a_file(place) / "cache"


def not_a_database(place: Path) -> Path:
    place.mkdir()
    (place / "embeddings.sqlite").write_bytes(b"something else entirely" * 100)
    return place


UNUSABLE = pytest.mark.parametrize("spoil", [a_file, below_a_file, not_a_database])


@UNUSABLE
def test_an_unusable_cache_is_an_error_of_one_line(tmp_path: Path, clock: Clock, spoil: Any):
    folder = spoil(tmp_path / "cache")
    with pytest.raises(UserError, match=r"embeddings\.sqlite: the cache can't be used .*MEMTRIALS_CACHE") as caught:
        CachedEmbedder(Model(clock), folder, Meter()).vectors(["one"], "document")
    assert "\n" not in str(caught.value)


def test_a_cache_that_breaks_while_it_is_open_is_an_error_of_one_line(tmp_path: Path, clock: Clock):
    texts = ["x" * n for n in range(1, 300)]
    first = CachedEmbedder(Model(clock), tmp_path, Meter())
    first.vectors(texts, "document")
    first.close()
    path = tmp_path / "embeddings.sqlite"
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    with pytest.raises(UserError, match=r"embeddings\.sqlite: the cache can't be used .*MEMTRIALS_CACHE"):
        CachedEmbedder(Model(clock), tmp_path, Meter()).vectors(texts, "document")


def test_what_cannot_be_written_at_the_end_is_said_and_stops_nothing(
    tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
):
    """Vectors that were made here cost little, and the states that hold them are whole."""
    cached = CachedEmbedder(Model(clock), tmp_path, Meter())
    assert cached.vectors(["one"], "document") == [vector_of("one")]
    with sqlite3.connect(tmp_path / "embeddings.sqlite") as other:
        other.execute("DROP TABLE vectors")
    cached.close()
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "the cache can't be used (no such table: vectors)" in told
    assert "made again next time" in told


@UNUSABLE
def test_an_unusable_cache_ends_a_replay(tmp_path: Path, spoil: Any):
    folder = spoil(tmp_path / "cache")
    trials = str(tmp_path / "trials.json")
    assert call_cli("build", "inmind", "--data", str(SAMPLE), "--trials", trials).code == 0
    ended = call_cli("replay", "vector", "--trials", trials, "--quiet", env={"MEMTRIALS_CACHE": str(folder)})
    assert ended.code == 2
    assert [line for line in ended.err.splitlines() if "MEMTRIALS_CACHE" in line] == ended.err.splitlines()[:1]
    assert ended.err.startswith("memtrials: ")
    assert list(tmp_path.glob("trials.stores/*/*")) == []
