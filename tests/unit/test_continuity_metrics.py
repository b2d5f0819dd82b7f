"""The values of a continuity query, each by hand, and what rows say together."""

from datetime import UTC, datetime
from typing import Any

import pytest

from memtrials.benchmarks.continuity.fixture import Entity, Expected, Query, Scenario
from memtrials.benchmarks.continuity.labels import asked as asked_of
from memtrials.benchmarks.continuity.labels import gap_days
from memtrials.benchmarks.life import Correct, Link, Remember
from memtrials.metrics.continuity import (
    CATEGORIES,
    Asked,
    category_shares,
    change,
    context_pollution,
    event_pollution,
    gap_bucket,
    names,
    probe,
    ranked_ids,
    recall_fraction,
    safe_admission_rate,
    values,
)
from memtrials.metrics.rows import BASE_KEYS, Returned, Traced


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def item(name: str | None, episode: str | None = None, kind: str = "episode", internal: str = "") -> Returned:
    return Returned(kind, internal or f"{name}/{episode}", name, episode)


def asked(*relevant: str, bad: tuple[str, ...] = (), **more: Any) -> Asked:
    return Asked(**{"pattern": "selective_entity", **more}, relevant=frozenset(relevant), irrelevant=frozenset(bad))


def remember(name: str, when: str, *entities: str) -> Remember:
    return Remember(
        event_id=name,
        timestamp=at(when),
        external_id=name,
        text=name,
        entity_external_ids=entities,
        thread=None,
        salience=0.5,
    )


def query(when: str, *relevant: str) -> Query:
    return Query(event_id="q", timestamp=at(when), query_id="q", text="?", expected=Expected(relevant, ()))


def scenario(*events: Any, hub: bool = False, pattern: Any = "selective_entity") -> Scenario:
    return Scenario("s", "n", pattern, (Entity("ada", "person", "Ada", hub),), None, events)


# --- gaps ---


@pytest.mark.parametrize(
    ("made", "when", "days", "bucket"),
    [
        ("2025-01-05T10:00", "2025-12-20T10:00", 349.0, "long"),
        ("2025-01-01T00:00", "2025-01-30T12:00", 29.5, "short"),
        ("2025-01-01T00:00", "2025-01-31T00:00", 30.0, "medium"),
        ("2025-01-01T00:00", "2025-06-30T00:00", 180.0, "long"),
        ("2025-01-01T00:00", "2025-01-01T00:00", 0.0, "short"),
    ],
)
def test_a_gap_is_what_passed_since_something_was_made(made: str, when: str, days: float, bucket: str):
    question = query(when, "a")
    assert gap_days(scenario(remember("a", made), question), question) == days
    assert gap_bucket(days) == bucket


CORRECTED = Correct(
    event_id="c",
    timestamp=at("2025-01-11T00:00"),
    target_external_id="a",
    replacement_external_id="b",
    replacement_text="b",
)


def test_of_several_relevant_ones_the_oldest_counts():
    question = query("2025-09-03T00:00", "old", "new")
    life = scenario(remember("old", "2025-01-01T00:00"), remember("new", "2025-08-03T00:00"), question)
    assert gap_days(life, question) == 245


def test_corrections_and_links_are_made_too_but_what_an_event_implies_has_no_date():
    link = Link(
        event_id="l",
        timestamp=at("2025-01-21T00:00"),
        external_id="tie",
        from_external_id="a",
        relation="about",
        to_external_id="b",
    )
    for relevant, days in (("b", 20.0), ("tie", 10.0), ("a:observation", None), ("a:derived", None), ("ada", None)):
        question = query("2025-01-31T00:00", relevant)
        assert gap_days(scenario(remember("a", "2025-01-01T00:00"), CORRECTED, link, question), question) == days


def test_what_is_known_of_a_query_is_what_was_there_at_its_time():
    events = (remember("a", "2025-01-01T00:00", "ada"), remember("x", "2025-01-02T00:00"), CORRECTED)
    early, late = query("2025-01-05T00:00", "a"), query("2025-01-15T00:00", "b")
    life = scenario(*events, early, late, hub=True)
    assert asked_of(life, early).replacements == frozenset()
    assert asked_of(life, late).replacements == {"b"}
    assert asked_of(life, late).hub_events == {"a"}
    assert asked_of(scenario(*events, late), late).hub_events is None


# --- recall ---


def test_an_id_that_comes_again_costs_a_rank():
    wanted = asked("good", "good2")
    items = [
        item("x"),
        item("good:observation", "good"),
        item("good"),
        item("y"),
        item("z"),
        item("good2:derived", "good2"),
    ]
    assert ranked_ids(wanted, items) == ["x", "good", "good", "y", "z", "good2"]
    assert recall_fraction(wanted, items, 5) == 0.5
    assert recall_fraction(wanted, items, 10) == 1.0


def test_an_item_counts_as_what_is_relevant_else_as_itself():
    wanted = asked("e")
    items = [item("o", "e"), item("o", "f"), item(None, "f"), item(None, None, "entity", "7")]
    assert ranked_ids(wanted, items) == ["e", "o", "f", "internal:entity.7"]


def test_recall_stands_under_its_gap_alone_and_under_time_for_temporal_patterns():
    found = values(asked("a", gap_days=40.0), [item("a")], None)
    recalls = {name: value for name, value in found.items() if "recall" in name and value is not None}
    assert recalls == {
        "continuity_recall_fraction_gap_medium@5": 1.0,
        "continuity_recall_fraction_gap_medium@10": 1.0,
    }
    found = values(asked("a", pattern="temporal_patterns"), [item("b")] * 5 + [item("a")], None)
    recalls = {name: value for name, value in found.items() if "recall" in name and value is not None}
    assert recalls == {"temporal_recall_fraction@5": 0.0, "temporal_recall_fraction@10": 1.0}


def test_replacements_are_looked_for_anywhere():
    items = [item("x")] * 20 + [item("v2", "v1", "derived_memory")]
    wanted = asked("v2", "v4", pattern="correction_chains", replacements=frozenset({"v2", "v4"}))
    assert values(wanted, items, None)["supersession_replacement_recall"] == 0.5
    assert values(asked("v2", pattern="correction_chains"), items, None)["supersession_replacement_recall"] is None
    other = asked("v2", replacements=frozenset({"v2"}))
    assert values(other, items, None)["supersession_replacement_recall"] is None


# --- pollution ---


def test_what_is_unlabeled_pollutes_nothing():
    wanted = asked("good", bad=("bad",))
    items = [
        item("good"),
        item("good:observation", "good"),
        item("bad"),
        item("bad:observation", "bad"),
        item("bad:derived", "bad"),
        item("other"),
    ]
    assert context_pollution(wanted, items) == 0.6
    assert event_pollution(wanted, items) == 0.5


def test_relevance_wins_over_where_a_thing_is_from():
    wanted = asked("v3", bad=("v1", "v2"))
    items = [item("v3", "v1", "derived_memory"), item("v1:observation", "v1"), item("v2", "v1", "derived_memory")]
    assert context_pollution(wanted, items) == pytest.approx(0.666667, abs=1e-6)
    assert event_pollution(wanted, items) == 0.0


def test_pollution_is_null_where_nothing_is_labeled():
    wanted = asked("a", bad=("b",))
    assert context_pollution(wanted, [item("c"), item(None)]) is None
    assert event_pollution(wanted, [item("c"), item(None)]) is None


def test_only_pollution_is_measured_of_an_abstention():
    wanted = asked(bad=("b",), pattern="abstention", hub_events=frozenset({"b"}))
    trace = Traced({"b/None": {"semantic", "entity"}})
    found = {name: value for name, value in values(wanted, [item("b")], trace).items() if value is not None}
    shares = {f"sampled_pollution_rationale_share_{category}": 0.0 for category in CATEGORIES}
    assert found == shares | {
        "sampled_context_pollution_rate": 1.0,
        "sampled_event_pollution_rate": 1.0,
        "sampled_pollution_rationale_share_semantic": 0.5,
        "sampled_pollution_rationale_share_entity": 0.5,
    }


# --- traces ---

FOUR = [item(name) for name in "abcd"]
TRACE = Traced(
    {"a/None": {"semantic", "salience"}, "b/None": {"semantic"}, "c/None": {"entity", "salience", "graph_bound"}}
)


def test_categories_share_all_their_assignments():
    expected = dict.fromkeys(CATEGORIES, 0.0)
    assert category_shares(FOUR, TRACE) == pytest.approx(
        expected | {"semantic": 1 / 3, "salience": 1 / 3, "entity": 1 / 6, "graph_bound": 1 / 6}
    )
    assert values(asked("a"), FOUR, TRACE)["typed_rationale_coverage"] == 0.75


def test_no_items_are_covered_and_have_no_shares():
    found = values(asked("a"), [], Traced())
    assert found["typed_rationale_coverage"] == 1.0
    assert found["rationale_category_share_semantic"] is None


def test_safe_admission_counts_each_barred_object_once():
    items = [item(f"m{n}") for n in range(8)]
    assert safe_admission_rate(items, {"m1/None", "m5/None", "gone"}) == 0.75
    assert safe_admission_rate([item("m1"), item("m1")], {"m1/None"}) == 0.5
    assert safe_admission_rate([], {"m1"}) == 1.0


def test_of_items_that_entities_brought_the_share_that_is_relevant():
    wanted = asked("a", bad=("c",), hub_events=frozenset({"a", "b", "c"}))
    trace = Traced({"a/None": {"entity"}, "c/None": {"entity"}, "b/None": {"entity"}, "d/None": {"semantic"}})
    found = values(wanted, FOUR, trace)
    assert found["hub_expansion_relevant_hit_rate"] == 0.5
    assert found["hub_context_share"] == 0.75


def test_hubs_have_no_share_of_nothing_and_none_without_hubs():
    assert values(asked("a", hub_events=frozenset({"a"})), [], None)["hub_context_share"] is None
    assert values(asked("a"), FOUR, TRACE)["hub_context_share"] is None


def test_what_needs_a_trace_is_null_without_one():
    wanted = asked("a", bad=("b",), pattern="correction_chains", hub_events=frozenset({"a"}))
    without, with_one = values(wanted, FOUR, None), values(wanted, FOUR, TRACE)
    assert {name for name in with_one if with_one[name] is not None and without[name] is None} == {
        "correction_lifecycle_safe_admission_rate",
        "typed_rationale_coverage",
        *(f"rationale_category_share_{category}" for category in CATEGORIES),
        *(f"sampled_pollution_rationale_share_{category}" for category in CATEGORIES),
    }


# --- restarts ---


def test_a_restart_is_what_came_after_less_what_came_before():
    before = probe([item("a"), item("a:derived", "a")], frozenset({"a", "b"}))
    after = probe([item("a"), item("b"), item(None, None, "entity", "7")], frozenset({"a", "b"}))
    assert before == (("a", "a:derived"), 1, 2, 0.5)
    assert after == (("a", "b", "entity:7"), 2, 2, 1.0)
    assert change(before, after) == (1, 1, 0.5, False)
    assert change(after, after) == (0, 0, 0.0, True)


def test_a_restart_with_nothing_expected_has_no_recall():
    empty = probe([item("a")], frozenset())
    assert empty.recall is None
    assert change(empty, empty).recall is None


def test_a_row_has_all_54_required_names_whatever_is_asked():
    required = (*BASE_KEYS, *names())
    assert len(set(required)) == len(required) == 54
    assert len(names((1, 3, 5))) == 24 + 4 * 3
    for pattern in ("abstention", "hub_scale"):
        assert tuple(values(asked("a", pattern=pattern), [], None)) == names()
