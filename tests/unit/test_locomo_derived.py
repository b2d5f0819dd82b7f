"""What LoCoMo's annotation concluded: every shape that summaries and statements come in, and what is counted."""

from pathlib import Path
from typing import Any

import pytest

from memtrials.benchmarks import locomo
from memtrials.benchmarks.base import LoadOptions
from memtrials.benchmarks.locomo_derived import Concluded, concluded
from memtrials.errors import UserError
from support.locomo import FOLDER, changed

TURNS = {"D1:1": "0.0", "D1:2": "0.1", "D1:1, D1:2": "0.2", "D2:1": "1.0"}


def of(observation: Any = None, summary: Any = None, sessions: tuple[int, ...] = (1,)) -> Concluded:
    """What a sample with this annotation concluded."""
    return concluded({"observation": observation, "session_summary": summary}, sessions, TURNS)


def statements(value: Any) -> list[tuple[str, tuple[str, ...]]]:
    """Statements and turns of one session's observations."""
    return [(memory.text, memory.observations) for memory in of({"session_1_observation": value}).graph.derived]


@pytest.mark.parametrize(
    ("value", "read"),
    [
        ({"Ines": [["She sings.", "D1:1"]]}, [("She sings.", ("D1:1",))]),
        ({"Ines": [["She sings.", ["D1:2", "D1:1"]]]}, [("She sings.", ("D1:2", "D1:1"))]),
        ({"Ines": ["She sings."], "Tobias": [["He rides.", []]]}, [("She sings.", ()), ("He rides.", ())]),
        (["She sings.", ["He rides.", "D1:1"]], [("She sings.", ()), ("He rides.", ("D1:1",))]),
        ("She sings.", [("She sings.", ())]),
        ({"Ines": [["She sings.", " D1:1 ,, D1:2,"]]}, [("She sings.", ("D1:1", "D1:2"))]),
        ({"Ines": [["She sings.", "D1:1, D1:2"]]}, [("She sings.", ("D1:1, D1:2",))]),  # whole, where that is a turn
        ({"Ines": [["She sings.", ["D1:1", "D1:1"]]]}, [("She sings.", ("D1:1",))]),
        ({"Ines": [["She sings.", "D9:9, D2:1"]]}, [("She sings.", ("D2:1",))]),
    ],
)
def test_statements_come_in_several_shapes(value: Any, read: list[tuple[str, tuple[str, ...]]]):
    assert statements(value) == read


@pytest.mark.parametrize(
    ("value", "dropped", "kept"),
    [
        ({"Ines": [["She sings."], ["a", "D1:1", "b"], [1, "D1:1"], ["x", 7], ["x", [7]], None, 3, " "]}, 8, 0),
        ({"Ines": "She sings.", "Tobias": ["He rides."]}, 1, 1),
        ({"Ines": [["  ", "D1:1"], "She sings."]}, 1, 1),
        (7, 1, 0),
        (None, 0, 0),
        ({}, 0, 0),
    ],
)
def test_entries_of_another_shape_are_counted(value: Any, dropped: int, kept: int):
    found = of({"session_1_observation": value})
    assert (found.dropped, found.observations, len(found.graph.derived)) == (dropped, kept, kept)


def test_references_are_counted_with_those_that_lead_nowhere():
    found = of({"session_1_observation": {"Ines": [["a", "D1:1, D9:9"], ["b", ["D1:2", "D"]], "c"]}})
    assert (found.references, found.unresolved) == (4, 2)


@pytest.mark.parametrize("name", ["session_2", "session_2_summary", "2"])
def test_a_summary_is_found_under_each_of_its_names(name: str):
    found = of(summary={name: "They met.", "session_9_summary": "Not here."}, sessions=(1, 2))
    (memory,) = found.graph.derived
    assert (memory.external_id, memory.text) == ("session_2:derived:session_summary", "They met.")
    assert (memory.derived_type, memory.episodes, memory.observations) == ("reflection", ("session_2",), ())
    assert (memory.salience, memory.confidence, memory.is_current) == (0.6, 1.0, True)


@pytest.mark.parametrize("value", [None, 7, ["They met."], "", " "])
def test_a_summary_that_is_no_text_is_none(value: Any):
    assert of(summary={"session_1_summary": value}) == Concluded(of().graph, 0, 0, 0, 0, 0)


def test_statements_follow_their_sessions_summary_and_are_numbered():
    found = of({"session_1_observation": ["a", "b"], "2": ["c"]}, {"1": "They met."}, (1, 2))
    assert [memory.external_id for memory in found.graph.derived] == [
        "session_1:derived:session_summary",
        "session_1:derived:generated_observation:1",
        "session_1:derived:generated_observation:2",
        "session_2:derived:generated_observation:1",
    ]
    assert {memory.derived_type for memory in found.graph.derived[1:]} == {"claim"}


def test_the_variant_has_the_same_tasks_and_says_what_there_is():
    plain, derived = locomo.load(FOLDER, LoadOptions()), locomo.load(FOLDER, LoadOptions("derived"))
    assert (plain.name, derived.name) == ("locomo@sample", "locomo@sample-derived")
    ((_, _, mine),), ((_, _, other),) = plain.tasks, derived.tasks
    assert (mine.needs, other.needs) == ((), ("enrich",))
    assert (mine.sessions, mine.queries, mine.gold) == (other.sessions, other.queries, other.gold)
    more = derived.release.constants.items() - plain.release.constants.items()
    assert dict(more) == {
        "session_summaries": 5,
        "generated_observations": 10,
        "evidence_references": 15,
        "unresolved_evidence_references": 0,
        "dropped_observation_entries": 0,
    }


def test_another_file_has_the_name_of_its_bytes_and_one_without_annotation_is_refused(tmp_path: Path):
    options = LoadOptions("derived", allow_modified=True)
    path = changed(tmp_path / "mine.json", lambda sample: sample.pop("observation"))
    found = locomo.load(path, options)
    assert found.name == f"locomo@modified-{found.release.files[0].sha256[:8]}-derived"
    bare = changed(tmp_path / "bare.json", lambda s: s.update(observation={}, session_summary=[]))
    with pytest.raises(UserError, match="has neither summaries of sessions nor generated observations"):
        locomo.load(bare, options)
