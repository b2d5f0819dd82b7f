"""The published continuity fixtures, store and manifests keep to every rule, and are what their description says.

The data is not part of this project. It is looked for in the folder that MEMTRIALS_REAL_DATA names, else in
`shared/data` beside the repository; without it every test here is skipped. Only numbers and names are kept here.
"""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from memtrials.benchmarks.continuity.fixture import PATTERNS, embedded_texts
from memtrials.benchmarks.continuity.rules import read
from memtrials.benchmarks.life import Correct, Forget, Link, Remember, Restart
from memtrials.embeddings.controllable import Controllable
from memtrials.embeddings.frozen import Frozen, canonical, cosine, match_problems, read_manifest, read_store
from support.cli import call_cli
from support.trials import ended, records, stage

DATA = Path(os.environ.get("MEMTRIALS_REAL_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
FOLDER = DATA / "continuity"
FIXTURES = ("continuity_v3.json", "continuity_benchmarks_v1.json")

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="no continuity data there; set MEMTRIALS_REAL_DATA to the folder that holds continuity/"
)


def test_the_catalogue_has_one_scenario_of_each_of_15_patterns():
    fixture = read(FOLDER / "continuity_v3.json")
    scenarios = fixture.scenarios
    assert fixture.seed == 20260712
    assert tuple(scenario.pattern for scenario in scenarios) == PATTERNS[:15]
    assert [s.fixture_id for s in scenarios] == [pattern.replace("_", "-") for pattern in PATTERNS[:15]]
    assert {s.namespace for s in scenarios} == {f"continuity-{s.fixture_id}-{fixture.seed:016x}" for s in scenarios}
    assert sum(len(scenario.queries) for scenario in scenarios) == 23
    assert [s.fixture_id for s in scenarios if s.geometry is None] == ["graded-similarity", "combined-life"]
    kinds = Counter(type(event) for scenario in scenarios for event in scenario.events)
    assert kinds[Restart] == 1
    life = Counter(type(event) for event in fixture.scenario("combined-life").events)
    assert (life.total(), life[Remember], life[Correct], life[Link], life[Forget]) == (62, 54, 2, 3, 0)


def test_every_text_of_the_catalogue_has_a_vector():
    for scenario in read(FOLDER / "continuity_v3.json").scenarios:
        if scenario.geometry is not None:
            vectors = Controllable(scenario.geometry, width=3072)
            assert {len(vectors.vector(text)) for text in embedded_texts(scenario)} == {3072}


def test_the_bands_of_hub_scale_are_as_authored():
    scenario = read(FOLDER / "continuity_v3.json").scenario("hub-scale")
    assert scenario.geometry is not None
    vectors = Controllable(scenario.geometry)
    (query,) = scenario.queries
    asked = vectors.vector(query.text)
    remembered = [event for event in scenario.events if isinstance(event, Remember)]
    bands = Counter(round(cosine(asked, vectors.vector(event.text)), 1) for event in remembered)
    assert bands == {1.0: 4, 0.8: 10, 0.6: 17, 0.3: 17, 0.0: 1}


def test_the_adapted_fixture_has_the_two_patterns_that_the_catalogue_lacks():
    scenarios = read(FOLDER / "continuity_benchmarks_v1.json").scenarios
    assert len(scenarios) == 18
    assert set(PATTERNS[15:]) <= {scenario.pattern for scenario in scenarios}
    assert all(scenario.geometry is None for scenario in scenarios)


def test_the_small_store_is_what_its_manifest_expects():
    store = read_store(FOLDER / "task21_smoke_store.json")
    manifest = read_manifest(FOLDER / "task21_smoke_manifest.json")
    assert match_problems(manifest, {entry.text: entry.embedding for entry in store.entries}) == []
    kept = Frozen(store, FOLDER / "task21_smoke_store.json", "task21-smoke-model", 3)
    assert list(kept.vector("Entity: Where is the cobalt notebook?")) == [1, 0, 0]
    assert canonical(store) == (FOLDER / "task21_smoke_store.json").read_bytes()


def test_validate_takes_the_small_store_for_its_own_manifest_alone():
    store = FOLDER / "task21_smoke_store.json"
    own, other = FOLDER / "task21_smoke_manifest.json", FOLDER / "task22_real_manifest.json"
    fine = call_cli("embeddings", "validate", "--manifest", str(own), "--store", str(store))
    assert (fine.code, fine.err) == (0, "")
    assert "4 vectors of task21-smoke-model with 3 dimensions, 4 texts" in fine.out
    wrong = call_cli("embeddings", "validate", "--manifest", str(other), "--store", str(store))
    assert wrong.code == 2
    texts = {text.text for text in read_manifest(other).texts}
    assert wrong.err.count("no vector for") == len(texts)


def test_the_large_manifest_lists_what_the_frozen_scenarios_have_embedded():
    fixture = read(FOLDER / "continuity_v3.json")
    manifest = read_manifest(FOLDER / "task22_real_manifest.json")
    frozen = [scenario for scenario in fixture.scenarios if scenario.geometry is None]
    assert {text.text for text in manifest.texts} == {t for scenario in frozen for t in embedded_texts(scenario)}
    assert len(manifest.similarity_orderings) == 4


def test_both_fixtures_are_known_and_become_tasks(tmp_path: Path):
    trials = tmp_path / "trials.json"
    built = [stage(trials, "build", "continuity", "--data", str(FOLDER / name)) for name in FIXTURES]
    assert [(b["benchmark"], b["tasks"], b["constants"]["query"]) for b in built] == [
        ("continuity@v3", 15, 23),
        ("continuity@benchmarks-v1", 18, 18),
    ]
    abstaining = [r["task"] for r in records(trials, "task") if r["body"]["gold"][0]["abstention"]]
    assert len(abstaining) == 3
    assert all("abs" in task for task in abstaining)


def test_the_structural_scenarios_live_on_the_substrate(tmp_path: Path):
    trials = tmp_path / "trials.json"
    stage(trials, "build", "continuity", "--data", str(FOLDER / "continuity_v3.json"))
    structural = [s for s in read(FOLDER / "continuity_v3.json").scenarios if s.geometry is not None]
    chosen = [argument for s in structural for argument in ("--task", s.fixture_id)]
    assert stage(trials, "replay", "substrate-declared", *chosen)["done"] == 13
    retrievals = records(trials, "retrieval")
    assert [r["query"] for r in retrievals] == [q.query_id for s in structural for q in s.queries]
    restarts = [r for ingest in records(trials, "ingest") for r in ingest["body"].get("restarts", ())]
    assert len(restarts) == 1
    assert restarts[0]["items_before"] == restarts[0]["items_after"]


def test_frozen_scenarios_live_on_a_store_of_the_bundled_model(tmp_path: Path):
    """The published orderings hold for that model, too; a year's life of 62 events takes under two seconds."""
    store = tmp_path / "store.json"
    manifest = FOLDER / "task22_real_manifest.json"
    made = call_cli(
        "embeddings", "generate", "--manifest", str(manifest), "--model", "wordllama-256", "--out", str(store)
    )
    assert ended(made).out.count("holds: ") == 4
    trials = tmp_path / "trials.json"
    stage(trials, "build", "continuity", "--data", str(FOLDER / "continuity_v3.json"))
    assert stage(trials, "replay", "substrate-declared", env={"EMBED_FILE": str(store)})["done"] == 15
    assert len(records(trials, "retrieval")) == 23
    (life,) = (r["body"] for r in records(trials, "ingest") if r["task"] == "combined-life")
    assert {one["step"] for one in life["operations"]} == {-1, *range(62 - 3)}
    assert life["effort"]["seconds"] < 2
    ended(call_cli("export", "rows", "--trials", str(trials), "--out", str(tmp_path), "--run-id", "run"))
    report = json.loads((tmp_path / "run" / "report.json").read_text("utf-8"))
    assert report["aggregate"]["registry_coverage"]["missing_required_metrics"] == []
    assert report["aggregate"]["metrics"]["supersession_replacement_recall"]["mean"] == 1.0


def test_the_adapted_lives_are_told_to_the_substrate_with_vectors_of_its_own(tmp_path: Path):
    trials, system = tmp_path / "trials.json", tmp_path / "mine.toml"
    system.write_text('[state]\nsystem = "substrate"\nembedding = "deterministic-256"\n', encoding="utf-8")
    stage(trials, "build", "continuity", "--data", str(FOLDER / "continuity_benchmarks_v1.json"))
    assert stage(trials, "replay", str(system))["done"] == 18
    assert all(r["body"]["items"] for r in records(trials, "retrieval"))


@pytest.mark.parametrize("name", FIXTURES)
def test_frozen_scenarios_without_their_store_fail_before_anything_is_made(tmp_path: Path, name: str):
    trials = tmp_path / "trials.json"
    stage(trials, "build", "continuity", "--data", str(FOLDER / name))
    finished = ended(call_cli("replay", "substrate-declared", "--trials", str(trials)), 2)
    assert "memtrials embeddings generate" in finished.err
    assert {r["kind"] for r in records(trials)} == {"task"}
    assert not trials.with_suffix(".stores").exists()
