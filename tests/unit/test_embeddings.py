"""Vectors without a model: authored, hashed and kept."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memtrials.embeddings.controllable import Concept, Controllable, Geometry, concept_vector, fnv1a, problems
from memtrials.embeddings.frozen import (
    Frozen,
    cosine,
    manifest_problems,
    match_problems,
    read_manifest,
    read_store,
    text_key,
)
from memtrials.embeddings.hashed import hashed_vector, token_hash
from memtrials.embeddings.surfaces import PREFIXES, normalised
from memtrials.errors import UserError

MAGNITUDE = 1 / 1024


def bits(vector: Any) -> list[str]:
    return [f"{x:08x}" for x in vector.view(np.uint32)]


def geometry(**changes: Any) -> Geometry:
    plain: dict[str, Any] = {
        "seed": 20260712,
        "vector_size": 8,
        "noise_magnitude": MAGNITUDE,
        "clusters": {
            "e0": (1, 0, 0, 0, 0, 0, 0, 0),
            "near": (0.8, 0.6, 0, 0, 0, 0, 0, 0),
            "mid": (0.6, 0, 0.8, 0, 0, 0, 0, 0),
            "far": (0.28, 0, 0, 0.96, 0, 0, 0, 0),
            "e4": (0, 0, 0, 0, 1, 0, 0, 0),
        },
        "concepts": {
            "query": Concept("e0", ("Which jar?",)),
            "near": Concept("near", ("The blue jar.",)),
            "mid": Concept("mid", ("A jar.",)),
            "far": Concept("far", ("A shelf.",)),
            "probe": Concept("e4", ("Rain.",)),
        },
    }
    return Geometry(**{**plain, **changes})


# --- controllable ---


def test_the_published_vector_of_alpha_one():
    assert fnv1a(b"alpha-one") == 0xE34ED89B7823A9CA
    small = Geometry(0x5EED, 4, MAGNITUDE, {"k": (1, 0, 0, 0)}, {"alpha-one": Concept("k", ("a",))})
    assert bits(concept_vector(small, "alpha-one")) == ["3f7fc000", "3a800000", "ba800000", "3a800000"]


def test_the_published_vectors_of_eight_dimensions():
    vectors = Controllable(geometry())
    assert bits(vectors.vector("Which jar?")) == (
        ["3f800000", "ba800000", "ba800000", "ba800000", "3a800000"] + ["00000000"] * 3
    )
    assert bits(vectors.vector("The blue jar.")) == (
        ["3f4c8ccd", "3f19599a", "00000000", "3a800000", "3a800000", "3a800000"] + ["00000000"] * 2
    )


@pytest.mark.parametrize("width", [8, 3072])
def test_cosines_are_as_authored_whatever_the_padding(width: int):
    vectors = Controllable(geometry(), width)
    query = vectors.vector("Which jar?")
    found = [cosine(query, vectors.vector(text)) for text in ("The blue jar.", "A jar.", "A shelf.", "Rain.")]
    assert found == pytest.approx([0.799529, 0.598123, 0.277900, 0.000976], abs=1e-6)
    assert len(query) == width


@pytest.mark.parametrize("prefix", PREFIXES)
def test_one_surface_prefix_is_taken_off(prefix: str):
    vectors = Controllable(geometry())
    assert bits(vectors.vector(f"{prefix}Rain.")) == bits(vectors.vector("Rain."))
    with pytest.raises(UserError, match="belongs to no concept"):
        vectors.vector(f"{prefix}{prefix}Rain.")


def test_a_text_that_is_listed_with_a_prefix_is_taken_as_it_is():
    listed = geometry().concepts | {"said": Concept("e0", ("Entity: Rain.",))}
    vectors = Controllable(geometry(concepts=listed))
    assert bits(vectors.vector("Entity: Rain.")) != bits(vectors.vector("Rain."))


def test_a_text_of_no_concept_is_quoted():
    with pytest.raises(UserError, match=r"'rain\.' belongs to no concept"):
        Controllable(geometry()).vector("rain.")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": -1}, "seed is -1"),
        ({"seed": 1 << 64}, "seed is 18446744073709551616"),
        ({"vector_size": 0}, "vector_size is 0"),
        ({"noise_magnitude": -0.1}, "noise_magnitude is -0.1"),
        ({"noise_magnitude": float("nan")}, "noise_magnitude is nan"),
        ({"clusters": {}}, "clusters is empty"),
        ({"concepts": {}}, "concepts is empty"),
        ({"clusters": geometry().clusters | {" ": (0.0,) * 8}}, "clusters has a blank id"),
        ({"clusters": geometry().clusters | {"e4": (0.0,)}}, "cluster 'e4' has 1 numbers"),
        ({"clusters": geometry().clusters | {"e4": (1e39,) * 8}}, "cluster 'e4' has a number that isn't finite"),
        ({"concepts": {"": Concept("e0", ("a",))}}, "concepts has a blank id"),
        ({"concepts": {"a": Concept("x", ("a",))}}, "concept 'a' is in cluster 'x'"),
        ({"concepts": {"a": Concept("e0", ())}}, "concept 'a' has no inputs"),
        ({"concepts": {"a": Concept("e0", ("",))}}, "concept 'a' has an empty input"),
        ({"concepts": {"a": Concept("e0", ("t", "t"))}}, "input 't' is listed more than once, under 'a'"),
        (
            {"concepts": {"a": Concept("e0", ("t",)), "b": Concept("e4", ("t",))}},
            "input 't' is listed more than once, under 'a', 'b'",
        ),
    ],
)
def test_what_a_geometry_is_refused_for(changes: dict[str, Any], message: str):
    wrong = geometry(**changes)
    assert any(message in found for found in problems(wrong))
    with pytest.raises(UserError):
        Controllable(wrong)


def test_noise_that_leaves_float32_is_an_error_and_no_vector():
    big = 3.4e38
    wide = geometry(noise_magnitude=big, clusters=dict.fromkeys(geometry().clusters, (big,) * 8))
    with pytest.raises(UserError, match="isn't finite"):
        Controllable(wide).vector("Which jar?")


def test_a_store_narrower_than_the_vectors_is_refused():
    with pytest.raises(UserError, match="8 components and the store holds 7"):
        Controllable(geometry(), 7)


def test_the_binding_names_the_geometry_and_the_width():
    small = Geometry(7, 2, 0.0, {"b": (0.8, 1), "a": (1, 0)}, {"c": Concept("b", ("é",))})
    text = '{"seed":7,"vector_size":2,"noise_magnitude":0.0,"clusters":{"a":[1.0,0.0],"b":[0.8,1.0]},'
    text += '"concepts":{"c":{"cluster":"b","inputs":["é"]}}}'
    assert small.digest() == hashlib.sha256(text.encode()).hexdigest()
    assert Controllable(small).binding()["dimension_policy"] == "fixture_declared"
    assert Controllable(small, 5).binding() == {
        "kind": "controllable",
        "fixture_sha256": small.digest(),
        "vector_size": 2,
        "dimension_policy": {"exact": {"vector_size": 5}},
    }


# --- hashed ---


def test_the_published_hashes():
    assert token_hash("Alice") == token_hash("aLICE") == 8410850597083717683
    assert token_hash("likes") == 3000596551902403567
    assert token_hash("tea") == 18094078683540929565


def test_words_fall_into_their_buckets():
    vector = hashed_vector("Alice likes tea, tea_tea.", 16)
    assert {n: float(x) for n, x in enumerate(vector) if x} == {3: 1.0, 15: 1.0, 13: 3.0}
    assert vector.dtype == np.float32


@pytest.mark.parametrize("text", ["", " \n", "?! _"])
def test_a_text_without_words_has_a_direction_too(text: str):
    assert list(hashed_vector(text, 3)) == [1, 0, 0]


# --- kept ---

TEXTS = {"q": "Where is the key?", "t": "The key is in the jar.", "n": "The bell is by the door."}
VECTORS = {"q": (1.0, 0.0), "t": (0.9, 0.1), "n": (0.5, 0.5)}


def store(**changes: Any) -> dict[str, Any]:
    entries = [{"text_sha256": text_key(TEXTS[i]), "text": TEXTS[i], "embedding": list(VECTORS[i])} for i in TEXTS]
    plain = {"schema_version": 2, "model": "demo", "vector_size": 2, "dimension_policy": "model_native", "source": "x"}
    return {**plain, "entries": sorted(entries, key=lambda entry: entry["text_sha256"]), **changes}


def manifest(**changes: Any) -> dict[str, Any]:
    ordering = {"description": "key", "anchor_id": "q", "descending_ids": ["t", "n"], "min_margin": 0.01}
    texts = [{"id": i, "text": text} for i, text in TEXTS.items()]
    return {"schema_version": 1, "texts": texts, "similarity_orderings": [{**ordering, **changes}]}


def written(folder: Path, content: Any) -> Path:
    path = folder / "file.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


def with_entry(n: int, **changes: Any) -> dict[str, Any]:
    whole = store()
    whole["entries"][n].update(changes)
    return whole


def test_keys_are_of_the_exact_text():
    assert text_key("tea") == "a9f74d1ec36ebdeb2da3f6e5868090cd2a2d20b3dcca7b62f60304b1d3d9ef42"
    assert text_key("café opens at 9") == "eca2abb70ea439f598baee1c78776c22af7ebc1414a8c7ef373a8ef708709aae"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "schema_version is None, and only 2"),
        (store(schema_version=1), "schema_version is 1, and only 2"),
        (store(model=" "), "model is blank"),
        (store(vector_size=0, entries=[]), "vector_size is 0"),
        (store(entries=[]), "entries is empty"),
        (store(note="x"), "unknown field `note`"),
        (with_entry(0, text=""), "entry 0: its text is empty"),
        (with_entry(0, text="Tea"), "and its text has"),
        (store(entries=store()["entries"][::-1]), "hashes have to increase"),
        (store(entries=[*store()["entries"], store()["entries"][-1]]), "hashes have to increase"),
        (with_entry(1, embedding=[1.0]), "entry 1: 1 numbers"),
        (with_entry(1, embedding=[1.0, 1e39]), "entry 1: a number that isn't finite"),
    ],
)
def test_what_a_store_is_refused_for(content: Any, message: str, tmp_path: Path):
    with pytest.raises(UserError, match=r"file\.json") as raised:
        read_store(written(tmp_path, content))
    assert message in str(raised.value)


def test_a_repeated_text_is_told_as_such(tmp_path: Path):
    with pytest.raises(UserError) as raised:
        read_store(written(tmp_path, store(entries=[*store()["entries"], store()["entries"][-1]])))
    assert any("has several entries" in detail for detail in raised.value.details)


def test_kept_vectors_are_found_by_the_exact_text(tmp_path: Path):
    path = written(tmp_path, store())
    kept = Frozen(read_store(path), path, "demo", 2)
    assert list(kept.vector("Entity: Where is the key?")) == [1, 0]
    assert "Where is the key?" in kept
    assert "Where is the key? " not in kept
    with pytest.raises(UserError, match=f"'Where  is the key\\?' .SHA-256 {text_key('Where  is the key?')}"):
        kept.vector("Where  is the key?")


@pytest.mark.parametrize(("model", "width", "message"), [("other", 2, "of 'demo'"), ("demo", 3, "2 components")])
def test_a_store_of_another_model_or_width_is_refused(model: str, width: int, message: str, tmp_path: Path):
    path = written(tmp_path, store())
    with pytest.raises(UserError, match=message):
        Frozen(read_store(path), path, model, width)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**manifest(), "schema_version": 2}, "schema_version is 2, and only 1"),
        ({**manifest(), "texts": []}, "texts is empty"),
        ({**manifest(), "texts": [*manifest()["texts"], {"id": " ", "text": "x"}]}, "its id is blank"),
        ({**manifest(), "texts": [*manifest()["texts"], {"id": "x", "text": ""}]}, "its text is empty"),
        ({**manifest(), "texts": [*manifest()["texts"], {"id": "q", "text": "x"}]}, "'q' stands for several texts"),
        (manifest(description=""), "its description is blank"),
        (manifest(anchor_id="x"), "anchor_id 'x' is no text's id"),
        (manifest(descending_ids=["t"]), "an ordering is of 2 or more"),
        (manifest(descending_ids=["t", "x"]), "descending_ids has 'x', which is no text's id"),
        (manifest(descending_ids=["t", "q"]), "descending_ids has the anchor 'q'"),
        (manifest(descending_ids=["t", "t"]), "descending_ids has 't' twice"),
        (manifest(min_margin=-1), "min_margin is -1.0"),
    ],
)
def test_what_a_manifest_is_refused_for(content: Any, message: str, tmp_path: Path):
    with pytest.raises(UserError) as raised:
        read_manifest(written(tmp_path, content))
    assert message in "\n".join((str(raised.value), *raised.value.details))


def test_one_text_may_have_two_ids(tmp_path: Path):
    twice = {**manifest(), "texts": [*manifest()["texts"], {"id": "q2", "text": TEXTS["q"]}]}
    assert manifest_problems(read_manifest(written(tmp_path, twice))) == []


def at(cosines: list[float]) -> dict[str, tuple[float, float]]:
    """Unit vectors of these cosines to that of `q`, for `t` and `n`."""
    return {TEXTS["q"]: (1.0, 0.0)} | {
        TEXTS[i]: (c, (1 - c * c) ** 0.5) for i, c in zip(("t", "n"), cosines, strict=True)
    }


def test_an_ordering_needs_more_than_its_margin(tmp_path: Path):
    wanted = read_manifest(written(tmp_path, manifest()))
    assert match_problems(wanted, at([0.8616, 0.7923])) == []
    (found,) = match_problems(wanted, at([0.8616, 0.8520]))
    assert "'t' has cosine 0.8616 to 'q' and 'n' 0.8520" in found


def test_equal_cosines_are_no_ordering_even_without_a_margin(tmp_path: Path):
    wanted = read_manifest(written(tmp_path, manifest(min_margin=0)))
    assert len(match_problems(wanted, at([0.5, 0.5]))) == 1


@pytest.mark.parametrize(("vector", "message"), [((0.0, 0.0), "length zero"), ((float("inf"), 0.0), "isn't finite")])
def test_a_vector_without_direction_has_no_ordering(vector: tuple[float, float], message: str, tmp_path: Path):
    wanted = read_manifest(written(tmp_path, manifest()))
    (found,) = match_problems(wanted, at([0.8, 0.1]) | {TEXTS["n"]: vector})
    assert message in found


def test_a_text_without_a_vector_is_named(tmp_path: Path):
    wanted = read_manifest(written(tmp_path, manifest()))
    assert match_problems(wanted, {}) == [f"no vector for {t!r} (SHA-256 {text_key(t)})" for t in TEXTS.values()]


def test_written_texts_lose_their_spacing():
    assert normalised("  a\t b\n\nc\u2003d ") == "a b c d"
