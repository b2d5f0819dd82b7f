"""The vectors of scenarios are settled before anything is replayed."""

from pathlib import Path

import pytest

from memtrials.benchmarks.continuity.binding import bind
from memtrials.benchmarks.continuity.fixture import Scenario, embedded_texts
from memtrials.benchmarks.continuity.rules import read
from memtrials.benchmarks.continuity.scripts import catalogue_path
from memtrials.embeddings.frozen import Entry, Frozen, Store, store_problems, text_key
from memtrials.errors import UserError

PLACE = Path("store.json")


@pytest.fixture(scope="module")
def scenarios() -> tuple[Scenario, ...]:
    return read(catalogue_path()).scenarios


def store_of(texts: list[str], width: int = 16) -> Frozen:
    entries = sorted((text_key(text), text) for text in texts)
    vectors = tuple(Entry(key, text, (1.0,) * width) for key, text in entries)
    store = Store(2, "demo", width, "provider_default", "test", vectors)
    assert store_problems(store) == []
    return Frozen(store, PLACE)


def frozen_texts(scenarios: tuple[Scenario, ...]) -> list[str]:
    return list(dict.fromkeys(t for s in scenarios if s.geometry is None for t in embedded_texts(s)))


def test_every_scenario_has_vectors_for_all_its_texts(scenarios: tuple[Scenario, ...]):
    bound = bind(scenarios, store_of([*frozen_texts(scenarios), "something else"]))
    assert list(bound) == [scenario.fixture_id for scenario in scenarios]
    for scenario in scenarios:
        vectors = bound[scenario.fixture_id]
        width = 16 if scenario.geometry is None else scenario.geometry.vector_size
        assert {len(vectors.vector(text)) for text in embedded_texts(scenario)} == {width}


def test_every_missing_text_of_all_scenarios_is_told(scenarios: tuple[Scenario, ...]):
    gone = ["Ines Calder", "Where did Runa leave the red valve manual after oiling the beam engine?"]
    kept = [text for text in frozen_texts(scenarios) if text not in gone]
    with pytest.raises(UserError) as raised:
        bind(scenarios, store_of(kept))
    told = [str(raised.value), *raised.value.details]
    assert len(told) == 2
    for text in gone:
        assert any(repr(text) in line and text_key(text) in line and "'demo'" in line for line in told)


def test_only_a_geometry_does_without_a_store(scenarios: tuple[Scenario, ...]):
    authored = [scenario for scenario in scenarios if scenario.geometry is not None]
    assert len(bind(authored, None)) == 15
    with pytest.raises(UserError, match="scenario 'graded-similarity' takes its vectors from a store, and none is set"):
        bind(scenarios, None)
