"""Our continuity catalogue: made of scripts, byte for byte, and what scripts are refused for."""

import json
import re
from itertools import combinations
from pathlib import Path

import pytest

from memtrials.benchmarks.continuity.__main__ import main
from memtrials.benchmarks.continuity.fixture import PATTERNS, embedded_texts
from memtrials.benchmarks.continuity.rules import read
from memtrials.benchmarks.continuity.scripts import (
    SEED,
    catalogue,
    catalogue_path,
    manifest,
    manifest_path,
    scripts_path,
)
from memtrials.benchmarks.life import Correct, Link, Remember, Restart
from memtrials.embeddings.controllable import Controllable
from memtrials.embeddings.frozen import cosine, match_problems, read_manifest
from memtrials.errors import UserError
from memtrials.systems.embedding import WordLlama


def test_the_scripts_make_the_catalogue_byte_for_byte():
    made = catalogue(scripts_path())
    assert made == catalogue(scripts_path(), SEED) == catalogue_path().read_bytes()
    assert made.endswith(b"}\n")
    assert b"\r" not in made


def test_the_catalogue_keeps_every_rule_and_has_every_pattern():
    fixture = read(catalogue_path())
    assert fixture.seed == SEED == 20260712
    assert sorted(scenario.pattern for scenario in fixture.scenarios) == sorted(PATTERNS)
    assert fixture.scenarios[0].namespace == "continuity-long-gap-recall-0000000001352768"
    assert [s.fixture_id for s in fixture.scenarios if s.geometry is None] == ["graded-similarity", "combined-life"]
    assert sum(isinstance(event, Restart) for scenario in fixture.scenarios for event in scenario.events) == 1


def test_another_seed_changes_namespaces_and_seeds_alone():
    one, other = (json.loads(catalogue(scripts_path(), seed)) for seed in (SEED, (1 << 64) - 1))
    assert other["scenarios"][0]["namespace"] == "continuity-long-gap-recall-ffffffffffffffff"
    for root in (one, other):
        del root["seed"]
        for scenario in root["scenarios"]:
            del scenario["namespace"]
            scenario["embedding"].pop("seed", None)
    assert one == other


def test_a_merged_life_is_numbered_by_kind_and_comes_in_the_order_of_time():
    events = read(catalogue_path()).scenario("combined-life").events
    numbers = {kind: [e.event_id for e in events if isinstance(e, kind)] for kind in (Remember, Correct, Link)}
    assert len(events) == 62
    assert numbers[Remember] == [f"event-{n:03}" for n in range(1, 55)]
    assert numbers[Correct] == ["event-901", "event-902"]
    assert numbers[Link] == ["event-903", "event-904", "event-905"]
    assert [event.event_id for event in events[-3:]] == ["event-951", "event-952", "event-953"]


def test_a_label_has_the_vector_of_the_first_event_about_its_entity():
    scenario = read(catalogue_path()).scenario("selective-entity")
    assert scenario.geometry is not None
    inputs = {name: concept.inputs for name, concept in scenario.geometry.concepts.items()}
    assert inputs["boat-count"][1:] == ("Sill Canal Trust", "Runa Feld")
    assert inputs["inscription"][-1] == "Otter Lock"
    unused = read(catalogue_path()).scenario("long-gap-recall").geometry
    assert unused is not None
    assert unused.concepts["entity_background"].inputs == ("Sill Canal Trust", "Otter Lock")


def test_clusters_are_orthogonal_unless_they_are_authored():
    for scenario in read(catalogue_path()).scenarios:
        if scenario.geometry is None:
            continue
        clusters = scenario.geometry.clusters
        if scenario.pattern == "hub_scale":
            gauge = clusters["gauge"]
            found = {name: round(cosine(gauge, vector), 6) for name, vector in clusters.items()}
            assert found == {
                "at-the-lock": 0.8,
                "gauge": 1,
                "side-pond": 0,
                "trust-office": 0.28,
                "trust-works": 0.6,
            }
        else:
            assert all(cosine(one, other) == 0 for one, other in combinations(clusters.values(), 2))
        assert {len(Controllable(scenario.geometry).vector(text)) for text in embedded_texts(scenario)} == {8}


def test_texts_are_written_so_that_no_memory_can_change_them():
    for scenario in read(catalogue_path()).scenarios:
        for text in embedded_texts(scenario):
            assert text == text.strip()
            assert not re.search(r"\s\s", text)
        said = [event.text for event in scenario.events if isinstance(event, Remember)]
        assert len(set(said)) == len(said)
        assert not {entity.label for entity in scenario.entities}.intersection(said)


# --- the frozen scenarios ---


def test_the_manifest_lists_what_a_store_has_to_hold():
    assert manifest(scripts_path()) == manifest_path().read_bytes()
    fixture, wanted = read(catalogue_path()), read_manifest(manifest_path())
    frozen = [scenario for scenario in fixture.scenarios if scenario.geometry is None]
    assert {text.text for text in wanted.texts} == {text for s in frozen for text in embedded_texts(s)}
    assert {text.id for text in wanted.texts} > {
        "graded-similarity/entity/pump-house",
        "combined-life/remember/life-opened",
        "combined-life/correct/life-open-day-v3",
        "combined-life/query/ask-life-fault",
    }


def test_the_bundled_model_sees_every_ordering():
    model = WordLlama()
    wanted = read_manifest(manifest_path())
    assert len(wanted.similarity_orderings) == 4
    vectors = {text.text: model.embed(text.text, "document") for text in wanted.texts}
    assert match_problems(wanted, {text: list(v) for text, v in vectors.items() if v is not None}) == []


def test_an_ordering_of_what_has_no_text_is_refused(tmp_path: Path):
    path = tmp_path / "scripts.toml"
    ordering = 'orderings = [{ description = "d", query = "q", descending = ["a", "b"], margin = 0.01 }]\n'
    path.write_text(HEAD + "frozen = true\n" + ordering + ASK, "utf-8")
    with pytest.raises(UserError, match="abstention: an ordering names 'a', which has no text"):
        manifest(path)


# --- making it ---


def test_a_candidate_is_written_beside_and_never_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "candidate"
    assert main([str(folder)]) == 0
    assert (folder / "catalogue.json").read_bytes() == catalogue_path().read_bytes()
    assert (folder / "manifest.json").read_bytes() == manifest_path().read_bytes()
    assert main([str(folder), "5"]) == 2
    assert "File exists" in capsys.readouterr().err
    assert (folder / "catalogue.json").read_bytes() == catalogue_path().read_bytes()
    other = tmp_path / "other"
    assert main([str(other), "5"]) == 0
    assert read(other / "catalogue.json").seed == 5


@pytest.mark.parametrize("arguments", [[], ["a", "b", "c"], ["a", "-1"], ["a", str(1 << 64)], ["a", "x"]])
def test_wrong_arguments_write_nothing(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("memtrials: ")
    assert not list(tmp_path.iterdir())


HEAD = '[[scenario]]\npattern = "abstention"\nentities = []\n'
ASK = '[[scenario.events]]\nat = 2025-01-01T00:00:00Z\nquery = "q"\ntext = "Who?"\n'


def nine() -> str:
    asks = [ASK.replace("Who?", f"Who {n}?") + f'concept = "c{n}"\n' for n in range(9)]
    return HEAD + "".join(asks)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("[[", r"scripts\.toml: "),
        (HEAD + "mood = 1\nevents = []\n", "unknown field `mood`"),
        (HEAD + ASK, r"abstention: 'Who\?' has 1 texts and 0 concepts"),
        (HEAD + ASK + 'concept = ["a", "b", "c"]\n', "1 texts and 3 concepts"),
        (HEAD + ASK + 'concept = "entity_background"\n', "entity_background is where labels go"),
        (HEAD + f'cluster_of = {{ a = "entity_background" }}\n{ASK}concept = "a"\n', "entity_background is where"),
        (HEAD + ASK + 'concept = "a"\nrestart = true\n', "is restart and query; name one kind"),
        (HEAD + ASK.replace('query = "q"\n', "") + 'concept = "a"\n', "is nothing; name one kind"),
        (HEAD + f'clusters = {{ b = [1.0] }}\n{ASK}concept = "a"\n', "no vector for 'a'"),
        (nine(), "9 clusters, and only 8"),
        (HEAD + "merged = true\n" + ASK.replace('query = "q"\ntext = "Who?"', "restart = true"), "has no number"),
    ],
)
def test_what_a_script_is_refused_for(script: str, message: str, tmp_path: Path):
    path = tmp_path / "scripts.toml"
    path.write_text(script, "utf-8")
    with pytest.raises(UserError, match=message):
        catalogue(path)


def test_a_script_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(UserError, match="can't be read"):
        catalogue(tmp_path / "none.toml")
