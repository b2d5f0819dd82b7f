"""Substrates with one fault each, on our catalogue: the metrics show each fault, and tell it from every other."""

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from memtrials import systems
from memtrials.benchmarks.continuity.scoring import explained
from support.faulty import FAULTS, SOUND
from support.lives import trials_of
from support.trials import records, stage

LONG = ("combined-life", "hub-scale")
"""Two thirds of all the time, for nothing that the other scenarios don't show."""
UNCHANGED = "substrate-declared"
Values = dict[tuple[str, str, str], float | str]
"""By scenario, query and metric: a number, or why there is none."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Values]:
    """What the metrics say of every system, and of the substrate as it comes, on all scenarios but the long ones."""
    folder = tmp_path_factory.mktemp("faulty")
    trials = folder / "trials.json"
    stage(trials, "build", "continuity")
    chosen = [f for r in records(trials, "task") if r["task"] not in LONG for f in ("--task", r["task"])]
    with pytest.MonkeyPatch.context() as patched:
        for name in (SOUND, *FAULTS):
            patched.setitem(systems.BUILT_IN, name, "support.faulty")
            toml = f'[state]\nsystem = "{name}"\nembedding = "declared"\n[fetch]\ntrace = true\n'
            (folder / f"{name}.toml").write_text(toml, encoding="utf-8")
        faulty = [str(folder / f"{name}.toml") for name in (SOUND, *FAULTS)]
        assert stage(trials, "replay", UNCHANGED, *faulty, *chosen)["done"] == 15 * (2 + len(FAULTS))
    return {name: values(trials, name) for name in (UNCHANGED, SOUND, *FAULTS)}


def values(trials: Path, system: str) -> Values:
    return {
        (trial.task.query(trial.query).unit, trial.query, metric): value
        for trial in trials_of(trials, f"{system}-")
        for metric, value in explained(trial).items()
    }


def changes(found: dict[str, Values], name: str) -> Values:
    """What a system has other values of than the sound one, and which."""
    sound = found[SOUND]
    assert set(found[name]) == set(sound)
    return {place: value for place, value in found[name].items() if sound[place] != value}


def test_without_a_fault_nothing_differs(found: dict[str, Values]):
    assert len(found[SOUND]) == 21 * 57
    assert changes(found, UNCHANGED) == {}


DRAIN, DEPTH = ("correction-chains", "ask-drain"), ("entrenched-correction", "ask-depth-late")
WINCH = ("cross-store-stress", "ask-winch")
TOLD: dict[str, dict[tuple[str, str, str], tuple[Any, Any]]] = {
    "serves-superseded": {
        (*DRAIN, "sampled_context_pollution_rate"): (0, 2 / 3),
        (*DRAIN, "superseded_current_leakage_rate"): (0, 2 / 3),
        (*DRAIN, "correction_lifecycle_safe_admission_rate"): (1, pytest.approx(1 / 3)),
        (*DEPTH, "superseded_current_leakage_rate"): (0, 1 / 7),
    },
    "only-adds": {
        (*DRAIN, "sampled_context_pollution_rate"): (0, 2 / 3),
        (*DRAIN, "num_derived_memories"): (1, 3),
        (*DEPTH, "num_derived_memories"): (2, 3),
        (*DEPTH, "superseded_current_leakage_rate"): (0, 0),
    },
    "forgets-to-forget": {
        (*DRAIN, "sampled_context_pollution_rate"): (0, 2 / 3),
        (*DRAIN, "num_relevant_episodes"): (0, 1),
        (*DRAIN, "num_relevant_observations"): (0, 1),
    },
    "loses-links": {
        (*WINCH, "restart_recall_change"): (0, -0.5),
        (*WINCH, "restart_graph_relation_change"): (0, -5),
        (*WINCH, "continuity_recall_fraction_gap_short@10"): (1, 0.5),
        (*WINCH, "provenance_coverage"): (1, 1),
    },
    "loses-names": {
        (*WINCH, "restart_recall_change"): (0, -1),
        (*WINCH, "restart_stable_share"): (1, 0),
        (*WINCH, "continuity_recall_fraction_gap_short@5"): (1, 0),
        (*WINCH, "provenance_coverage"): (1, 0),
    },
    "ignores-threads": {
        ("thread-drift", "ask-survey", "num_active_threads"): (1, 0),
        ("graded-similarity", "ask-manual", "num_active_threads"): (2, 0),
        ("graded-similarity", "ask-manual", "sampled_event_pollution_rate"): (2 / 3, 3 / 4),
    },
    "ignores-fanout": {
        ("recurring-hub-entity", "ask-latest-round", "num_retrieved_items"): (12, 18),
        ("recurring-hub-entity", "ask-latest-round", "hub_expansion_relevant_hit_rate"): (
            "no entity led to a label",
            1,
        ),
    },
}
"""What shows each fault: the sound value and the faulty one."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_shows_where_it_should(found: dict[str, Values], fault: str):
    told = TOLD[fault]
    assert {place: (found[SOUND][place], found[fault][place]) for place in told} == told


def test_scenarios_that_a_fault_has_no_part_in_say_nothing_of_it(found: dict[str, Values]):
    touched = {fault: {scenario for scenario, _, _ in changes(found, fault)} for fault in FAULTS}
    del touched["ignores-fanout"]  # there are entities everywhere
    assert touched == {
        "serves-superseded": {"correction-chains", "entrenched-correction"},
        "only-adds": {"correction-chains", "entrenched-correction"},
        "forgets-to-forget": {"correction-chains"},
        "loses-links": {"cross-store-stress"},
        "loses-names": {"cross-store-stress"},
        "ignores-threads": {"thread-drift", "graded-similarity"},
    }


@pytest.mark.parametrize("pair", list(combinations(FAULTS, 2)), ids=" ".join)
def test_no_fault_passes_for_another(found: dict[str, Values], pair: tuple[str, str]):
    """By what shows it each is known: there the other has other values."""
    for fault, other in (pair, reversed(pair)):
        shown = TOLD[fault]
        assert {place: found[other][place] for place in shown} != {place: found[fault][place] for place in shown}
