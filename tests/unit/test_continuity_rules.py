"""A continuity fixture: its form, and every rule with the place and the reason that its message names."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memtrials.benchmarks.continuity.fixture import PATTERNS, authored_texts, decode, embedded_texts
from memtrials.benchmarks.continuity.rules import problems, read
from memtrials.errors import UserError

Json = dict[str, Any]


def life() -> Json:
    """A scenario with every kind of event, its texts authored."""
    day = "2025-01-{:02}T09:00:00Z".format
    texts = [
        "Ada",
        "Kiln",
        "Ada hid the key.",
        "Ada was told of a ford.",
        "The ford is east.",
        "Ada likes fords.",
        "The key is in the jar.",
        "Where is the key?",
    ]
    return {
        "fixture_id": "demo",
        "namespace": "continuity-demo",
        "pattern": "correction_chains",
        "entities": [
            {"external_id": "ada", "entity_type": "person", "label": "Ada", "is_hub": True},
            {"external_id": "kiln", "entity_type": "location", "label": "Kiln", "is_hub": False},
        ],
        "embedding": {
            "provider": "controllable_similarity",
            "seed": 7,
            "vector_size": 2,
            "noise_magnitude": 0.001,
            "clusters": {"k": [1, 0]},
            "concepts": {"c": {"cluster": "k", "inputs": texts}},
        },
        "events": [
            {
                "kind": "remember",
                "event_id": "e1",
                "timestamp": day(1),
                "external_id": "hid",
                "text": texts[2],
                "entity_external_ids": ["ada"],
                "thread": {"thread_external_id": "house", "confidence": 0.9},
                "salience": 0.8,
            },
            {
                "kind": "remember",
                "event_id": "e2",
                "timestamp": day(2),
                "external_id": "ford",
                "text": texts[3],
                "surface_texts": {"episode": texts[3], "observation": texts[4], "derived": texts[5]},
                "entity_external_ids": [],
                "thread": {"thread_external_id": "house", "confidence": 0},
                "salience": 1,
            },
            {
                "kind": "link",
                "event_id": "e3",
                "timestamp": day(2),
                "external_id": "tie",
                "from_external_id": "ada",
                "relation": "about",
                "to_external_id": "hid:derived",
            },
            {
                "kind": "correct",
                "event_id": "e4",
                "timestamp": day(3),
                "target_external_id": "hid",
                "replacement_external_id": "jar",
                "replacement_text": texts[6],
            },
            {
                "kind": "forget",
                "event_id": "e5",
                "timestamp": day(4),
                "target_external_ids": ["hid", "hid:observation"],
                "suppress_derived_from_target": False,
                "apply_to_derived_from_target": False,
            },
            {
                "kind": "restart",
                "event_id": "e6",
                "timestamp": day(5),
                "reopen_graph": True,
                "reopen_stats": True,
            },
            {
                "kind": "query",
                "event_id": "e7",
                "timestamp": day(6),
                "query_id": "q",
                "text": texts[7],
                "expected": {"relevant_external_ids": ["jar"], "irrelevant_external_ids": ["hid", "tie"]},
            },
        ],
    }


def file(*scenarios: Json, **changes: Any) -> Json:
    return {"schema_version": 3, "seed": 7, "scenarios": list(scenarios), **changes}


def found_in(content: Json) -> list[str]:
    return problems(decode(json.dumps(content).encode()))


def refused(content: Any) -> list[str]:
    with pytest.raises(UserError) as raised:
        decode(content if isinstance(content, bytes) else json.dumps(content).encode())
    return [str(raised.value), *raised.value.details]


def changed(place: str, value: Any) -> Json:
    """The life with a value at a place such as `events.0.salience`; `None` as text removes it."""
    scenario = life()
    at: Any = scenario
    *way, last = place.split(".")
    for step in way:
        at = at[int(step)] if isinstance(at, list) else at[step]
    at[int(last) if isinstance(at, list) else last] = value
    return scenario


def test_a_life_that_keeps_every_rule_has_no_problems():
    assert found_in(file(life())) == []
    assert found_in(file({**life(), "embedding": {"provider": "frozen"}})) == []


@pytest.mark.parametrize("pattern", PATTERNS)
def test_there_are_17_patterns_and_only_one_expects_nothing(pattern: str):
    assert len(PATTERNS) == 17
    found = found_in(file({**life(), "pattern": pattern}))
    assert [("abstention" in problem) for problem in found] == ([True] if pattern == "abstention" else [])


A_QUERY = {
    "kind": "query",
    "event_id": "e8",
    "timestamp": "2025-01-07T09:00:00Z",
    "query_id": "q",
    "text": "Where is the key?",
    "expected": {"relevant_external_ids": ["jar"], "irrelevant_external_ids": []},
}
EVENT, DEMO = "scenario 'demo', event ", "scenario 'demo', "

BROKEN: list[tuple[str, Any, str]] = [
    # place, value, message; in the order of the rules
    ("events", life()["events"][:-2], f"{DEMO}events: no query; a scenario has to end in a scripted query"),
    (
        "events",
        [life()["events"][0], A_QUERY, {**life()["events"][2], "timestamp": "2025-01-08T09:00:00Z"}],
        "is the last",
    ),
    ("fixture_id", " ", "fixture_id ' ' is blank"),
    ("namespace", "", "namespace '' is blank"),
    ("events.3.event_id", "", f"{EVENT}'', event_id: '' is blank"),
    ("events.3.event_id", "e1", f"{EVENT}'e1', event_id: 'e1' names an earlier event"),
    ("events.6.query_id", "\t", f"{EVENT}'e7', query_id: '\\t' is blank"),
    ("events", [*life()["events"], A_QUERY], f"{EVENT}'e8', query_id: 'q' names an earlier query"),
    ("events.1.timestamp", "2024-12-31T23:59:59Z", f"{EVENT}'e2', timestamp: earlier"),
    ("events.1.timestamp", "2025-01-01T10:00:00+02:00", "events have to be chronological"),
    ("entities.1.external_id", " ", f"{DEMO}entities.external_id: ' ' is blank"),
    ("entities.1.external_id", "ada", f"{DEMO}entities.external_id: 'ada' names several entities"),
    ("entities.1.label", " ", f"{DEMO}entities.label: that of entity 'kiln' is blank"),
    ("events.0.entity_external_ids", ["bob"], f"{EVENT}'e1', entity_external_ids: entity 'bob' isn't declared"),
    ("events.1.entity_external_ids", ["hid"], f"{EVENT}'e2', entity_external_ids: entity 'hid' isn't declared"),
    ("events.0.entity_external_ids", ["ada", "ada"], f"{EVENT}'e1', entity_external_ids: 'ada' is listed more than on"),
    ("events.0.salience", 1.001, f"{EVENT}'e1', salience: 1.001; it has to be a finite number from 0 to 1"),
    ("events.0.salience", -0.001, f"{EVENT}'e1', salience: -0.001"),
    ("events.0.thread.confidence", 2, f"{EVENT}'e1', thread.confidence: 2.0"),
    ("events.1.surface_texts.episode", "Ada", f"{EVENT}'e2', surface_texts.episode: differs from text"),
    ("events.1.surface_texts.observation", "", f"{EVENT}'e2', surface_texts.observation: an empty text"),
    ("events.1.surface_texts.observation", "\u2003", f"{EVENT}'e2', surface_texts.observation: a blank text"),
    ("events.1.surface_texts.derived", "The ford is east.", "observation and derived are equal"),
    ("events.1.surface_texts.derived", "Ada was told of a ford.", "episode and derived are equal"),
    ("events.1.external_id", "hid", f"{EVENT}'e2', external_id: 'hid' duplicates existing external id"),
    ("events.1.external_id", "ada", "external_id: 'ada' duplicates existing external id of kind entity"),
    ("events.1.external_id", "house", "external_id: 'house' duplicates existing external id of kind memory_thread"),
    ("events.2.external_id", "hid:derived", f"{EVENT}'e3', external_id: 'hid:derived' duplicates existing"),
    ("events.3.replacement_external_id", "tie", f"{EVENT}'e4', replacement_external_id: 'tie' duplicates existing"),
    ("events.3.replacement_external_id", "", f"{EVENT}'e4', replacement_external_id: '' is blank"),
    ("events.1.thread.thread_external_id", "ada", "thread.thread_external_id: 'ada' collides with an admitted entity"),
    ("events.1.thread.thread_external_id", "ford", "'ford' collides with an admitted episode"),
    ("events.1.thread.thread_external_id", "", "thread.thread_external_id: '' is blank"),
    ("events.3.target_external_id", "jar", f"{EVENT}'e4', target_external_id: 'jar' is referred to before it is admi"),
    ("events.3.target_external_id", "ada", "'ada' is of kind entity; accepted: episode, observation, derived_memory"),
    ("events.3.target_external_id", "house", "'house' is of kind memory_thread; accepted: episode, observation, der"),
    ("events.4.target_external_ids", ["x"], f"{EVENT}'e5', target_external_ids: 'x' is referred to before"),
    ("events.4.target_external_ids", ["tie"], "'tie' is of kind memory_link; accepted: episode, observation, derived_"),
    (
        "events.4.target_external_ids",
        ["ada"],
        "kind entity; accepted: episode, observation, derived_memory, memory_thr",
    ),
    ("events.4.target_external_ids", [], f"{EVENT}'e5', target_external_ids: empty"),
    ("events.4.target_external_ids", ["hid", "hid"], "target_external_ids: 'hid' is listed more than once"),
    ("events.2.from_external_id", "jar", f"{EVENT}'e3', from_external_id: 'jar' is referred to before it is admitted"),
    ("events.2.to_external_id", "tie", f"{EVENT}'e3', to_external_id: 'tie' is referred to before it is admitted"),
    ("events.2.relation", "likes", f"{EVENT}'e3', relation: 'likes' is no relation; known: has_observation"),
    ("events.5.reopen_graph", False, f"{EVENT}'e6', reopen_graph: false"),
    ("events.5.reopen_stats", False, f"{EVENT}'e6', reopen_stats: false"),
    ("events", [*life()["events"][:5], A_QUERY, {**life()["events"][5], "timestamp": "2025-02-01T00:00:00Z"}], "probe"),
    ("events.6.expected.relevant_external_ids", [], f"{EVENT}'e7', expected.relevant_external_ids: empty"),
    ("pattern", "abstention", "expected.relevant_external_ids: has 'jar'; an abstention query has no answer"),
    (
        "events.6.expected.relevant_external_ids",
        ["jar", "jar"],
        "relevant_external_ids: 'jar' is listed more than once",
    ),
    ("events.6.expected.irrelevant_external_ids", ["tie", "tie"], "irrelevant_external_ids: 'tie' is listed more than"),
    ("events.6.expected.irrelevant_external_ids", ["jar"], "expected: 'jar' is both relevant and irrelevant"),
    ("events.6.expected.irrelevant_external_ids", ["x"], "irrelevant_external_ids: 'x' is referred to before"),
    ("entities.0.label", "Bo", f"{DEMO}label of entity 'ada': 'Bo' is assigned to no concept"),
    ("events.0.text", "x", f"{EVENT}'e1', text: 'x' is assigned to no concept"),
    ("events.0.text", "", f"{EVENT}'e1', text: an empty text"),
    ("events.0.text", " ", f"{EVENT}'e1', text: a blank text"),
    ("events.1.surface_texts.derived", "x", f"{EVENT}'e2', surface_texts.derived: 'x' is assigned to no concept"),
    ("events.3.replacement_text", "x", f"{EVENT}'e4', replacement_text: 'x' is assigned to no concept"),
    ("events.3.replacement_text", "", f"{EVENT}'e4', replacement_text: an empty text"),
    ("events.3.replacement_text", "\t", f"{EVENT}'e4', replacement_text: a blank text"),
    ("events.6.text", "where is the key?", f"{EVENT}'e7', text: 'where is the key?' is assigned to no concept"),
    ("events.6.text", "", f"{EVENT}'e7', text: an empty text"),
    ("events.6.text", "\n", f"{EVENT}'e7', text: a blank text"),
    ("embedding.concepts.d", {"cluster": "k", "inputs": ["Ada"]}, "label of entity 'ada': 'Ada' is listed 2 times"),
    ("embedding.concepts.d", {"cluster": "k", "inputs": ["Ada"]}, f"{DEMO}embedding: input 'Ada' is listed more than"),
    ("embedding.concepts.d", {"cluster": "x", "inputs": ["a"]}, f"{DEMO}embedding: concept 'd' is in cluster 'x'"),
    ("embedding.vector_size", 3, f"{DEMO}embedding: cluster 'k' has 2 numbers, and vector_size is 3"),
]


@pytest.mark.parametrize(("place", "value", "message"), BROKEN, ids=[f"{p}-{m[-24:]}" for p, _, m in BROKEN])
def test_a_broken_rule_is_told_with_its_place(place: str, value: Any, message: str):
    found = found_in(file(changed(place, value)))
    assert any(message in problem for problem in found), found


def test_a_fixture_without_scenarios_is_refused():
    (found,) = found_in(file())
    assert "scenarios is empty" in found
    assert "every cumulative outcome is emitted" in found


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("fixture_id", "fixture_id 'demo' names several scenarios"),
        ("namespace", "namespace 'continuity-demo' names several scenarios"),
        ("query", "scenario 'other', event 'e7', query_id: 'q' names an earlier query of the file too"),
    ],
)
def test_names_are_unique_in_the_file(field: str, message: str):
    other = copy.deepcopy(life()) | {"fixture_id": "other", "namespace": "continuity-other"}
    other["events"][-1]["query_id"] = "other-q"
    assert found_in(file(life(), other)) == []
    if field == "query":
        other["events"][-1]["query_id"] = "q"
    else:
        other[field] = life()[field]
    assert found_in(file(life(), other)) == [message]


def test_event_ids_and_external_ids_are_only_unique_in_a_scenario_and_threads_are_joined():
    other = copy.deepcopy(life()) | {"fixture_id": "other", "namespace": "continuity-other"}
    other["events"][-1]["query_id"] = "other-q"
    assert found_in(file(life(), other)) == []


def test_an_id_that_an_event_implies_can_be_labeled_and_the_thread_forgotten():
    scenario = changed("events.4.target_external_ids", ["house", "ford:derived"])
    scenario["events"][-1]["expected"]["irrelevant_external_ids"] = ["house", "hid:observation", "ada", "tie"]
    assert found_in(file(scenario)) == []


def test_all_problems_are_told_at_once():
    scenario = changed("events.0.salience", 3)
    scenario["events"][3]["target_external_id"] = "nobody"
    assert len(found_in(file(scenario))) == 2


# --- form ---


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not valid JSON"),
        (b"\xff", "not valid JSON"),
        ([], "schema_version is None, and expected is 3"),
        (file(life(), schema_version=2, memory_id="x"), "schema_version is 2, and expected is 3"),
        (file(life(), schema_version=True), "schema_version is True, and expected is 3"),
        (file(life(), seed=-1), "seed is -1"),
        (file(life(), seed=1 << 64), "seed is 18446744073709551616"),
        (file(life(), note=1), "unknown field `note`"),
        (file({**life(), "collection_name": "x"}), "scenario 'demo': Object contains unknown field `collection_name`"),
        (file({**life(), "pattern": "novel"}), "scenario 'demo': Invalid enum value 'novel'"),
        (file(changed("entities.0.entity_type", "place")), "scenario 'demo', entity 'ada': Invalid enum value 'place'"),
        (file(changed("entities.0.memory_id", "x")), "scenario 'demo', entity 'ada': Object contains unknown field"),
        (file(changed("events.0.kind", "dream")), "scenario 'demo', event 'e1': Invalid value 'dream'"),
        (file(changed("events.0.timestamp", "yesterday")), "scenario 'demo', event 'e1': Invalid RFC3339"),
        (file(changed("events.0.timestamp", "2025-01-01T09:00:00")), "event 'e1': Expected `datetime` with a timezone"),
        (
            file(changed("events.3.replacement_memory_id", "x")),
            "event 'e4': Object contains unknown field `replacement_",
        ),
        (file(changed("events.6.expected.gold", [])), "event 'e7': Object contains unknown field `gold`"),
        (file(changed("events.0.thread.title", "x")), "event 'e1': Object contains unknown field `title`"),
        (file(changed("events.0.surface_texts", None)), "event 'e1': Expected `object`, got `null`"),
        (file(changed("events.0.event_id", 5)), "scenario 'demo', event number 0: Expected `str`"),
    ],
)
def test_another_form_is_refused_with_its_place(content: Any, message: str):
    assert any(message in line for line in refused(content))


@pytest.mark.parametrize("field", ["thread", "entity_external_ids", "salience", "text"])
def test_a_missing_field_is_named(field: str):
    scenario = life()
    del scenario["events"][0][field]
    assert refused(file(scenario)) == [f"scenario 'demo', event 'e1': Object missing required field `{field}`"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda block: [], "not an object"),
        (lambda block: {}, "provider is missing; expected is 'controllable_similarity' or 'frozen'"),
        (lambda block: without(block, "provider"), "provider is missing; the fields are those of 'controllable_"),
        (lambda block: {"store": "x"}, "unknown field 'store', and provider is missing; expected is 'controllable_"),
        (lambda block: {"provider": 3}, "provider is 3 and not a string"),
        (lambda block: {"provider": "hash"}, "unknown provider 'hash'; expected is 'controllable_similarity' or 'fr"),
        (lambda block: {"provider": "frozen", "seed": 1}, "unknown field 'seed'; 'frozen' has no such field"),
        (lambda block: {**block, "scale": 1}, "unknown field 'scale'; 'controllable_similarity' has no such field"),
        (lambda block: {**block, "clusters": 1}, "malformed: Expected `object`, got `int` - at `$.clusters`"),
        (lambda block: without(block, "seed"), "malformed: Object missing required field `seed`"),
    ],
)
def test_each_fault_of_an_embedding_block_has_its_message(change: Callable[[Json], Any], message: str):
    (line,) = refused(file({**life(), "embedding": change(life()["embedding"])}))
    assert line.startswith(f"scenario 'demo', embedding: {message}")


def without(block: Json, field: str) -> Json:
    return {name: value for name, value in block.items() if name != field}


# --- texts ---


def test_authored_texts_are_as_written_and_embedded_ones_as_a_memory_asks_for_them():
    scenario = life()
    scenario["embedding"] = {"provider": "frozen"}
    scenario["events"][0]["text"] = " Ada\thid  the key.\n"
    scenario["events"][6]["text"] = "Where  is it?"
    (decoded,) = decode(json.dumps(file(scenario)).encode()).scenarios
    assert [(event, field) for event, field, _ in authored_texts(decoded)] == [
        (None, "label of entity 'ada'"),
        (None, "label of entity 'kiln'"),
        ("e1", "text"),
        ("e2", "text"),
        ("e2", "surface_texts.episode"),
        ("e2", "surface_texts.observation"),
        ("e2", "surface_texts.derived"),
        ("e4", "replacement_text"),
        ("e7", "text"),
    ]
    assert embedded_texts(decoded) == [
        "Ada",
        "Kiln",
        "Ada hid the key.",
        "Ada was told of a ford.",
        "The ford is east.",
        "Ada likes fords.",
        "The key is in the jar.",
        "Where  is it?",
    ]


# --- files ---


def test_a_file_is_read_or_refused_by_name(tmp_path: Path):
    path = tmp_path / "fixture.json"
    with pytest.raises(UserError, match="can't be read"):
        read(path)
    path.write_text(json.dumps(file(life())), "utf-8")
    assert read(path).scenario("demo").pattern == "correction_chains"
    path.write_text(json.dumps(file(changed("events.0.salience", 9))), "utf-8")
    with pytest.raises(UserError, match=r"fixture\.json: scenario 'demo', event 'e1', salience: 9"):
        read(path)
    path.write_text("[]", "utf-8")
    with pytest.raises(UserError, match=r"fixture\.json: schema_version is None"):
        read(path)
