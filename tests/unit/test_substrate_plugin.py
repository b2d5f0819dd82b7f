"""The substrate as a system: what becomes of a timeline and of a scripted life, and which settings it takes."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest

from memtrials import systems
from memtrials.benchmarks.life import (
    Correct,
    Forget,
    Known,
    Life,
    LifeEvent,
    Link,
    Remember,
    SurfaceTexts,
    ThreadMembership,
)
from memtrials.benchmarks.ranking import sessions_of
from memtrials.benchmarks.timeline import Session, Turn
from memtrials.embeddings.base import Offline
from memtrials.embeddings.hashed import hashed_vector
from memtrials.errors import UserError, WorkFailedError
from memtrials.exchange.harness import History, retrieved_item
from memtrials.metrics.retrieval import hit, places
from memtrials.settings import Settings
from memtrials.stages.common import Options, Plan
from memtrials.stages.fetch import FetchRequest, configs_of
from memtrials.systems.base import Surroundings
from memtrials.systems.substrate.identity import internal_id
from memtrials.systems.substrate.objects import Derived, Episode, Observation, Ref, Target, Thread
from memtrials.systems.substrate.objects import Link as Edge
from memtrials.systems.substrate.plugin import TIMELINE, EmbeddedSubstrate
from memtrials.systems.substrate.retrieval import BUDGETS
from memtrials.systems.substrate.store import Store
from support.substrate import dump

SPACE, SCRIPT = "ns-a", "demo"
SOURCES = ["episode", "observation"]
WORDS = Offline("tests", "words", "1", 64, lambda text: hashed_vector(text, 64))


def opened(folder: Path, embedding: str = "deterministic-64") -> EmbeddedSubstrate:
    """The system as a run opens it; by default with an embedding that needs no model."""
    state = {"system": "substrate", "version": "1", "embedding": embedding}
    kind = systems.plugin("substrate")
    system = kind.open({**state, **kind.resolve(state, Settings())}, Surroundings(folder / "states", folder / "cache"))
    assert isinstance(system, EmbeddedSubstrate)
    return system


@pytest.fixture
def system(tmp_path: Path) -> Iterator[EmbeddedSubstrate]:
    system = opened(tmp_path)
    yield system
    system.close()


@pytest.fixture
def told(tmp_path: Path) -> Iterator[EmbeddedSubstrate]:
    """A system whose vectors come with each life."""
    system = opened(tmp_path, "declared")
    yield system
    system.close()


def settings(**others: Any) -> dict[str, Any]:
    return systems.fetch_settings(systems.plugin("substrate"), others)


BASELINE = settings(mode="vector_only", object_types=SOURCES)


# Timelines


TALK = Session(
    (
        Turn("user", "I keep two cats.", "2023/05/30 (Fri) 23:45", "Ines"),
        Turn("assistant", " \n", None, "Teodor"),
        Turn("assistant", "  Then cover\nthe beds. ", None, "Teodor"),
    ),
    "2023/05/30 (Tue) 23:40",
)
LATER = Session((Turn("user", "The cats dig up my beans."),), None)


def fed(system: EmbeddedSubstrate, namespace: str, *timeline: Session) -> Store:
    system.create(namespace, "user")
    for session in timeline:
        system.add(namespace, session)
    system.freeze(namespace)
    return Store.read(system.files.path(namespace))


def draft(store: Store, kind: Any, name: str) -> Any:
    stored = store.object(Ref(kind, name))
    assert stored is not None
    return stored.draft


def test_a_session_is_an_episode_and_its_turns_are_observations_word_for_word(system: EmbeddedSubstrate):
    store = fed(system, "state", TALK, Session(()), LATER)
    assert draft(store, "episode", "0") == Episode(
        external_id="0",
        summary="Session 0 with Ines, Teodor.",
        started_at="2023-05-30T23:40:00Z",
        ended_at="2023-05-30T23:40:00Z",
    )
    assert draft(store, "observation", "0.0") == Observation(
        external_id="0.0", text="I keep two cats.", episode="0", observed_at="2023-05-30T23:45:00Z"
    )
    assert draft(store, "observation", "0.2") == Observation(
        external_id="0.2", text="  Then cover\nthe beds. ", episode="0", observed_at="2023-05-30T23:40:00Z"
    )
    assert draft(store, "episode", "2") == Episode(external_id="2", summary="Session 2 with user.", started_at=None)
    assert {(s.kind, s.external_id) for s in store.texts(("episode", "observation"))} == {
        ("episode", "0"),
        ("observation", "0.0"),
        ("observation", "0.2"),
        ("episode", "2"),
        ("observation", "2.0"),
    }


def test_equal_timelines_are_equal_files_whatever_they_are_called(system: EmbeddedSubstrate):
    one, other = (fed(system, name, TALK, LATER) for name in ("one", "other"))
    assert dump(one.path) == dump(other.path)
    assert one.namespace == TIMELINE


@pytest.mark.parametrize("session", [Session((Turn("user", "Hi."),), "yesterday"), Session((Turn("user", "", "1"),))])
def test_a_time_that_cannot_be_read_is_found_before_anything_is_written(session: Session, system: EmbeddedSubstrate):
    written = session.time or session.turns[0].time
    with pytest.raises(UserError, match=f"^'{written}' is no time in a known form, and the substrate"):
        systems.plugin("substrate").fits(session)


def test_a_time_that_cannot_be_read_is_refused_by_the_system_too(system: EmbeddedSubstrate):
    system.create("state", "user")
    with pytest.raises(WorkFailedError, match="session 0: 'yesterday' is no time"):
        system.add("state", Session((Turn("user", "Hi."),), "yesterday"))


def test_what_a_session_has_embedded_is_known_beforehand(system: EmbeddedSubstrate, monkeypatch: pytest.MonkeyPatch):
    assert system.embeddings
    sent: list[list[str]] = []
    vectors = system.embeddings.vectors

    def spied(texts: Any, role: Any) -> Any:
        sent.append(list(texts))
        return vectors(texts, role)

    monkeypatch.setattr(system.embeddings, "vectors", spied)
    timeline = (TALK, Session(()), LATER)
    fed(system, "state", *timeline)
    embeds = systems.plugin("substrate").embeds
    assert sent == [texts for number, session in enumerate(timeline) for texts in embeds({}, session, number)]
    assert sent[0] == ["Episode summary: Session 0 with Ines, Teodor."]


def test_turns_without_words_are_those_that_it_does_not_take():
    assert systems.plugin("substrate").fits(TALK) == 1


@pytest.mark.parametrize("mode", ["hybrid", "vector_only", "bm25_only"])
def test_items_say_what_they_are(mode: str, system: EmbeddedSubstrate):
    fed(system, "state", TALK, Session(()), LATER)
    kinds = SOURCES if mode != "hybrid" else [*SOURCES, "derived_memory"]
    found = system.query("state", "two cats", "2023/06/01", settings(mode=mode, object_types=kinds))
    by_name = {item.memory.external_id: item for item in found.items or () if item.memory}
    assert set(by_name) == {"0", "0.0", "0.2", "2", "2.0"}
    assert {name: item.turns for name, item in by_name.items()} == {
        "0": (),
        "2": (),
        **{turn: (turn,) for turn in ("0.0", "0.2", "2.0")},
    }
    said, session = by_name["0.0"].memory, by_name["0"].memory
    assert said
    assert session
    assert (said.kind, said.episode_external_id) == ("observation", "0")
    assert (session.kind, session.episode_external_id) == ("episode", None)
    lexical = mode == "bm25_only"
    assert said.internal_id == ("bm25:observation:0.0" if lexical else internal_id(TIMELINE, "observation", "0.0"))
    assert [by_name[name].time for name in ("0.0", "0", "2.0")] == [
        "2023-05-30T23:45:00Z",
        "2023-05-30T23:40:00Z",
        None,
    ]
    head = "" if lexical else f"[observation:0.0 rank={by_name['0.0'].rank}] "
    assert f"{head}I keep two cats." in (found.pieces or ())
    assert found.context == "\n".join(found.pieces or ())
    assert [item.rank for item in found.items or ()] == [1, 2, 3, 4, 5]
    outcomes = msgspec.json.decode(found.raw or "[]")
    assert len(outcomes) == {"hybrid": 1, "vector_only": 2, "bm25_only": 0}[mode]
    assert {o["rationale"]["telemetry"]["query_time"] for o in outcomes} <= {"2023/06/01"}


def test_sessions_are_ranked_by_episodes_and_turns_by_observations(system: EmbeddedSubstrate):
    fed(system, "state", TALK, Session(()), LATER)
    items = system.query("state", "beans", None, settings()).items
    assert items is not None
    kinds = [item.memory.kind for item in items if item.memory]
    assert kinds == ["episode", "episode", "observation", "observation", "observation"]
    assert {tuple(ids) for ids in sessions_of(places(items, "session") or [])} == {("0",), ("2",)}
    ranked = places(items) or []
    assert ranked[0] == ("2.0",)
    assert sorted(ranked) == [("0.0",), ("0.2",), ("2.0",)]
    assert ranked == [item.turns for item in items if item.turns]
    assert hit(items[:2], ["0.0"]) == 0.0  # an episode repeats no turn


def test_rows_call_memories_as_the_data_does(system: EmbeddedSubstrate):
    fed(system, "state", TALK)
    history = History(["D1"], {"0.0": "D1:1", "0.2": "D1:3"}, {}, None)
    items = system.query("state", "cats", None, BASELINE).items
    rows = [retrieved_item(item, history) for item in items or ()]
    assert {(row["kind"], row["external_id"], row["episode_external_id"]) for row in rows} == {
        ("episode", "D1", None),
        ("observation", "D1:1", "D1"),
        ("observation", "D1:3", "D1"),
    }
    assert {tuple(row["rationale"]) for row in rows} == {("vector_only",)}
    assert {row["internal_id"] for row in rows} == {item.memory.internal_id for item in items or () if item.memory}


# Lives


ADA = Known("ada", "person", "Ada")
HARBOUR = Known("harbour", "location", "The harbour")
START = datetime(2025, 1, 3, 9, tzinfo=UTC)


def life(**others: Any) -> Life:
    return Life(**{"name": SCRIPT, "namespace": SPACE, "entities": (ADA, HARBOUR), "vectors": WORDS, **others})


def remember(number: int = 1, external_id: str = "mem-1", **others: Any) -> Remember:
    given: dict[str, Any] = {
        "text": "Ada put the brass key under the fern.",
        "entity_external_ids": ("ada", "harbour"),
        "thread": ThreadMembership("house", 0.9),
        "salience": 0.8,
        "timestamp": START + timedelta(days=number),
    }
    return Remember(event_id=f"event-{number:03}", external_id=external_id, **{**given, **others})


SURFACES = SurfaceTexts(
    "They planned the crossing.", "Noor said the ford is shallow.", "The character prefers the ford."
)


def crossing(number: int = 2) -> Remember:
    return remember(
        number,
        "route",
        text=SURFACES.episode,
        surface_texts=SURFACES,
        entity_external_ids=(),
        thread=ThreadMembership("house", 0.5),
    )


def correct(target: str, number: int = 3) -> Correct:
    return Correct(
        event_id=f"event-{number:03}",
        timestamp=START + timedelta(days=number),
        target_external_id=target,
        replacement_external_id=f"new-{number}",
        replacement_text="The brass key is in the jar.",
    )


def forget(*targets: str, dependents: bool = False) -> Forget:
    return Forget(
        event_id="event-004",
        timestamp=START + timedelta(days=4),
        target_external_ids=targets,
        suppress_derived_from_target=dependents,
        apply_to_derived_from_target=dependents,
    )


def link(source: str, target: str, relation: str = "about") -> Link:
    return Link(
        event_id="event-005",
        timestamp=START + timedelta(days=5),
        external_id="lk-1",
        from_external_id=source,
        relation=relation,
        to_external_id=target,
    )


def begun(system: EmbeddedSubstrate, *events: LifeEvent) -> Store:
    """A life with these events behind it, under the state's name `state`."""
    system.begin_life("state", "user", life())
    for event in events:
        system.live("state", event)
    return store_of(system)


def store_of(system: EmbeddedSubstrate) -> Store:
    return system._building["state"].store


def part(system: EmbeddedSubstrate) -> list[str]:
    return dump(system.files.part("state"))


def names(done: Any) -> list[str]:
    return [one.operation for one in done]


def test_who_is_known_is_one_batch(told: EmbeddedSubstrate):
    (done,) = told.begin_life("state", "user", life())
    assert done.operation == "remember"
    ids = [internal_id(SPACE, "entity", name) for name in ("ada", "harbour")]
    assert done.outcome is not None
    assert done.outcome["persisted_object_ids"] == ids
    assert done.id == "cmem-eval:" + internal_id(SPACE, "remember_plan", "\0".join(ids))
    harbour = draft(store_of(told), "entity", "harbour")
    assert (harbour.entity_type, harbour.name, harbour.canonical_key) == ("place", "The harbour", "harbour")
    assert harbour.aliases == ()


def test_a_life_among_nobody_counts_its_empty_batch(told: EmbeddedSubstrate):
    (done,) = told.begin_life("state", "user", life(entities=()))
    assert done.operation == "remember"
    assert (done.id or "").startswith("remember_enrichment:")


def test_what_is_remembered_goes_through_the_stages(told: EmbeddedSubstrate):
    told.begin_life("state", "user", life())
    done = told.live("state", remember())
    assert names(done) == ["prepare", "validate_plan", "commit", "remember", *["link"] * 5]
    assert {one.id for one in done[:3]} == {"continuity:demo:event-001:mem-1"}
    assert [one.outcome is None for one in done] == [True, True, False, False, *[True] * 5]
    store = store_of(told)
    raw, time = "continuity://demo/event-001?at=2025-01-04T09:00:00Z", "2025-01-04T09:00:00Z"
    text = "Ada put the brass key under the fern."
    assert store.id(Ref("episode", "mem-1")) == "cec2efbb-0396-5ea8-a905-c178b10783f9"
    assert draft(store, "episode", "mem-1") == Episode(
        external_id="mem-1", summary=text, started_at=time, salience=0.8, raw_refs=(raw,)
    )
    assert draft(store, "observation", "mem-1:observation") == Observation(
        external_id="mem-1:observation", text=text, episode="mem-1", observed_at=time, salience=0.8, raw_refs=(raw,)
    )
    assert draft(store, "memory_thread", "house") == Thread(
        external_id="house", title=text, last_touched_at=time, salience=0.8, canonical_key="house"
    )
    assert draft(store, "derived_memory", "mem-1:derived") == Derived(
        external_id="mem-1:derived",
        derived_type="reflection",
        text=text,
        episodes=("mem-1",),
        observations=("mem-1:observation",),
        entities=("ada", "harbour"),
        threads=("house",),
        confidence=0.9,
        salience=0.8,
    )


def test_what_hangs_together_is_linked_under_names_of_the_event(told: EmbeddedSubstrate):
    store = begun(told, remember())
    named, episode = "continuity:demo:event-001", Ref("episode", "mem-1")
    links = {
        name: msgspec.json.decode(store.link_content(f"{named}:{name}") or b"null", type=Edge)
        for name in (
            "entity-mentions-0000",
            "entity-involves-0000",
            "entity-mentions-0001",
            "entity-involves-0001",
            "derived-thread",
        )
    }
    for n, entity in enumerate(("ada", "harbour")):
        mentions, involves = links[f"entity-mentions-{n:04d}"], links[f"entity-involves-{n:04d}"]
        assert (mentions.source, mentions.relation, mentions.target) == (episode, "mentions", Ref("entity", entity))
        assert (involves.source, involves.relation, involves.target) == (Ref("entity", entity), "involves", episode)
        assert mentions.confidence == involves.confidence == 1.0
    thread = links["derived-thread"]
    assert (thread.source, thread.target) == (Ref("derived_memory", "mem-1:derived"), Ref("memory_thread", "house"))
    assert (thread.relation, thread.confidence) == ("part_of_thread", 0.9)


def test_surfaces_of_their_own_are_written_directly(told: EmbeddedSubstrate):
    begun(told, remember())
    done = told.live("state", crossing())
    assert names(done) == ["remember_episode", "remember_observation", "remember", "link"]
    assert all((one.id or "").startswith("cmem-eval:") for one in done[:3])
    store = store_of(told)
    episode, observation = draft(store, "episode", "route"), draft(store, "observation", "route:observation")
    assert (episode.summary, episode.raw_refs) == (SURFACES.episode, ())
    assert (observation.text, observation.raw_refs) == (SURFACES.observation, ())
    derived = draft(store, "derived_memory", "route:derived")
    assert (derived.text, derived.confidence, derived.entities) == (SURFACES.derived, 0.5, ())
    assert draft(store, "memory_thread", "house").title == remember().text  # made once


@pytest.mark.parametrize(
    ("target", "superseded"),
    [
        ("mem-1", ["mem-1:derived"]),
        ("mem-1:observation", ["mem-1:derived"]),
        ("mem-1:derived", ["mem-1:derived"]),
        ("route", ["route:derived"]),
        ("route:observation", ["route:derived"]),
    ],
)
def test_a_correction_replaces_what_was_concluded_from_its_target(
    target: str, superseded: list[str], told: EmbeddedSubstrate
):
    store = begun(told, remember(), crossing())
    (done,) = told.live("state", correct(target))
    assert done.operation == "correct"
    assert (done.id or "").startswith("correct:")
    assert done.outcome is not None
    assert done.outcome["trace"]["superseded"] == [store.id(Ref("derived_memory", name)) for name in superseded]
    source = target.partition(":")[0]
    new = draft(store, "derived_memory", "new-3")
    assert (new.derived_type, new.salience, new.confidence, new.stability) == ("reflection", 1.0, 1.0, "medium")
    assert new.episodes == (source,)
    assert new.threads == ("house",)  # inherited


def test_a_correction_names_where_its_target_was_taken_from(told: EmbeddedSubstrate, monkeypatch: pytest.MonkeyPatch):
    begun(told, remember(), crossing())
    memory = told._building["state"].memory
    asked: list[Target] = []
    original = memory.correct

    def spied(namespace: str, correction: Any) -> Any:
        asked.extend(correction.targets)
        return original(namespace, correction)

    monkeypatch.setattr(memory, "correct", spied)
    for number, target in enumerate(("mem-1:observation", "route", "new-3"), 3):
        told.live("state", correct(target, number))
    raw = "continuity://demo/event-001?at=2025-01-04T09:00:00Z"
    assert asked == [
        Target("observation", "mem-1:observation", (raw,), ("mem-1",)),
        Target("episode", "route", (), ("route",)),
        Target("derived_memory", "new-3"),
    ]


def test_forgetting_and_linking_find_the_kinds_of_their_targets(told: EmbeddedSubstrate):
    store = begun(told, remember(), crossing())
    (linked,) = told.live("state", link("ada", "route:derived"))
    assert linked.id == "link:5f7f2a7ea9a0389ebfd0c4e3f5ef800a3d67d041fa91dec496eeb0d59b56be98"
    assert linked.outcome is not None
    assert linked.outcome["link"]["confidence"] == 1.0
    (forgot,) = told.live("state", forget("mem-1", "house", dependents=True))
    assert forgot.outcome is not None
    assert forgot.outcome["trace"]["suppressed"] == [
        store.id(Ref("episode", "mem-1")),
        store.id(Ref("memory_thread", "house")),
        store.id(Ref("derived_memory", "mem-1:derived")),
    ]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (remember(9, "mem-1"), "already there with other content|other content"),
        (remember(9, "other", entity_external_ids=("ada", "nobody")), "no entity 'nobody'"),
        (correct("house"), "memory_thread, which can't be corrected"),
        (correct("nothing"), "nothing of the name 'nothing'"),
        (forget("mem-1", "ada"), "is an entity"),
        (link("ada", "nobody"), "nothing of the name 'nobody'"),
        (link("ada", "mem-1", "owns"), "owns|relation"),
    ],
)
def test_a_refused_operation_says_why(event: LifeEvent, reason: str, told: EmbeddedSubstrate):
    begun(told, remember())
    before = part(told)
    with pytest.raises(WorkFailedError, match=reason):
        told.live("state", event)
    if not isinstance(event, Remember):
        assert part(told) == before


def test_times_keep_the_zone_of_their_script(told: EmbeddedSubstrate):
    elsewhere = datetime(2025, 1, 3, 9, tzinfo=timezone(timedelta(hours=2)))
    store = begun(told, remember(timestamp=elsewhere))
    assert draft(store, "episode", "mem-1").started_at == "2025-01-03T09:00:00+02:00"


def test_a_restart_loses_nothing(told: EmbeddedSubstrate):
    begun(told, remember(), crossing(), correct("route"))
    before = part(told), told.query("state", "brass key", None, settings())
    old = told._building["state"].memory
    restored, done = told.restart("state")
    assert (names(done), restored) == (["restart"], 16)  # 2 entities, thread, 2 × 3 memories, replacement, 6 links
    assert told._building["state"].memory is not old
    assert (part(told), told.query("state", "brass key", None, settings())) == before
    told.live("state", correct("mem-1", 4))
    assert draft(store_of(told), "derived_memory", "new-4").episodes == ("mem-1",)


def test_a_life_is_asked_on_the_way_and_says_why(told: EmbeddedSubstrate):
    begun(told, remember(), crossing())
    asked = settings(sections={**BUDGETS, "salient_observations": 0})
    found = told.query("state", "brass key", "2025-02-01T09:00:00Z", asked)
    by_name = {item.memory.external_id: item for item in found.items or () if item.memory}
    assert {"mem-1", "route", "house", "mem-1:derived"} <= set(by_name)
    assert not [name for name in by_name if name and name.endswith(":observation")]
    assert {item.turns for item in found.items or ()} == {None}
    derived = by_name["mem-1:derived"]
    assert derived.memory
    assert derived.memory.episode_external_id == "mem-1"
    (outcome,) = msgspec.json.decode(found.raw or "")
    assert outcome["trace"]["section_assignments"]
    told.live("state", forget("mem-1", "mem-1:observation", dependents=True))
    left = told.query("state", "brass key", None, settings())
    assert not [item for item in left.items or () if item.memory and "mem-1" in (item.memory.external_id or "")]


def test_a_life_of_other_vectors_is_asked_when_frozen(system: EmbeddedSubstrate):
    begun(system, remember())
    live = system.query("state", "brass key", None, settings())
    system.freeze("state")
    assert system.query("state", "brass key", None, settings()) == live
    assert {item.turns for item in live.items or ()} == {None}


def test_declared_vectors_are_gone_when_the_life_is_over(told: EmbeddedSubstrate):
    begun(told, remember())
    told.freeze("state")
    with pytest.raises(WorkFailedError, match="hybrid needs a vector of what is asked"):
        told.query("state", "brass key", None, settings())


def test_texts_count_as_embedded_once(told: EmbeddedSubstrate):
    begun(told, remember())
    before = told.meter.cache_misses
    assert before == 6  # 2 entities, episode, observation, thread, derived
    for _ in range(2):
        told.query("state", "brass key", None, settings())
    assert (told.meter.cache_misses, told.meter.cache_hits) == (before + 1, 1)


def test_equal_lives_are_equal_files(told: EmbeddedSubstrate):
    events = [remember(), crossing(), correct("route"), link("ada", "new-3"), forget("mem-1")]
    files = []
    for _ in range(2):
        begun(told, *events)
        told.freeze("state")
        files.append(dump(told.files.path("state")))
        told.discard("state")
    assert files[0] == files[1]


# Settings


def suits(state: Mapping[str, Any], fetch: Mapping[str, Any], life: bool | None = None) -> None:
    systems.plugin("substrate").suits({"embedding": "wordllama-256", **state}, settings(**fetch), life)


LEXICAL = {"mode": "bm25_only", "object_types": SOURCES}


@pytest.mark.parametrize(
    ("state", "fetch", "life", "reason"),
    [
        ({"embedding": "none"}, {}, None, 'embedding = "none" makes no vectors, which hybrid needs'),
        ({"embedding": "declared"}, LEXICAL, None, "isn't asked about scripted lives"),
        ({"embedding": "declared"}, {}, False, "a timeline has none; name another embedding"),
        ({}, LEXICAL, True, "bm25_only knows neither corrections nor links"),
        ({"embedding": "none"}, LEXICAL, True, "bm25_only knows neither corrections nor links"),
        ({}, {"mode": "vector_only"}, None, "remove"),
        ({}, {"object_types": ["episodes"]}, None, "Invalid enum value 'episodes'"),
        ({}, {"object_types": [["episode"]]}, None, "Expected `str`"),
        ({}, {"max_graph_roots": 49}, None, "max_graph_roots is 49"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(state: Any, fetch: Any, life: bool | None, reason: str):
    with pytest.raises(UserError, match=reason):
        suits(state, fetch, life)


def test_settings_that_agree_are_taken():
    suits({"embedding": "declared"}, {}, True)
    suits({"embedding": "declared"}, {"mode": "vector_only", "object_types": SOURCES}, True)
    suits({"embedding": "none"}, LEXICAL, False)
    suits({}, LEXICAL, False)


def test_the_system_itself_refuses_what_cannot_be(told: EmbeddedSubstrate, system: EmbeddedSubstrate):
    with pytest.raises(UserError, match="a timeline has none"):
        told.create("state", "user")
    with pytest.raises(UserError, match="demo declares no vectors"):
        told.begin_life("state", "user", life(vectors=None))
    begun(system, remember())
    with pytest.raises(WorkFailedError, match="bm25_only knows neither"):
        system.query("state", "brass key", None, settings(**LEXICAL))


STATE = '[state]\nsystem = "substrate"\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f'{STATE}retriever = "bm25"\n', r"table \[state\]: .*retriever"),
        (f"{STATE}[fetch]\nk = 10\n", r"table \[fetch\]: .*'k'"),
        (f'{STATE}[fetch]\nmode = "bm25"\n', r"table \[fetch\]: .*bm25_only"),
        (f"{STATE}[fetch.sections]\nepisodes = 3\n", r"table \[fetch.sections\]: .*episodes"),
        (f"{STATE}[fetch.sections]\nrelevant_episodes = 3\n", r"table \[fetch.sections\]: it has no active_threads, "),
        (f"{STATE}[fetch.sections]\nrelevant_episodes = true\n", r"relevant_episodes is True; its type must be int"),
        (f"{STATE}[fetch]\nsections = 3\n", "sections is 3; its type must be dict"),
        (f"{STATE}[fetch.fanout]\nabout = 3\n", r"table \[fetch.fanout\]: .*about"),
        (f"{STATE}[fetch.fanout.about_entity]\nepisode.min = 3\n", r"table \[fetch.fanout.about_entity\]: .*episode"),
        (
            f"{STATE}[fetch.fanout.about_entity.derived_memory]\nmin = 3\n",
            r"table \[fetch.fanout.about_entity.derived_memory\]: it has no max",
        ),
        (f"{STATE}[fetch]\nalpha = 0.0\n", "x.toml: alpha is 0.0"),
        (f'{STATE}[fetch]\nmode = "vector_only"\n', "x.toml: vector_only finds episodes and observations only"),
        (f'{STATE}embedding = "none"\n', "x.toml: .*makes no vectors"),
        (f'{STATE}embedding = "declared"\ndimensions = 3\n', "dimensions is for a model behind an endpoint"),
    ],
)
def test_a_wrong_file_ends_in_one_line(text: str, reason: str, tmp_path: Path):
    path = tmp_path / "x.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=reason) as raised:
        systems.load(str(path))
    assert "\n" not in str(raised.value)


def test_fan_out_is_a_table_for_each_way(tmp_path: Path):
    path = tmp_path / "x.toml"
    path.write_text(
        f"{STATE}[fetch.fanout]\nabout_entity.derived_memory = {{min = 2, max = 5}}\n"
        "participant_entity.episode = {min = 0, max = 5}\npart_of_thread.derived_memory = {min = 0, max = 15}\n"
    )
    spec = systems.load(str(path))
    assert spec.fetch["fanout"]["about_entity"] == {"derived_memory": {"min": 2, "max": 5}}
    assert systems.fetch_name(spec.fetch) == "hybrid"


def test_the_documented_settings_are_the_defaults(tmp_path: Path):
    text = (Path(__file__).parents[2] / "docs" / "systems.md").read_text("utf-8")
    written = re.search(r"## The substrate.*?```toml\n(.*?)```", text, re.DOTALL)
    assert written
    path = tmp_path / "x.toml"
    path.write_text(written[1])
    assert systems.load(str(path)).fetch == systems.plugin("substrate").fetch


@pytest.mark.parametrize(("system", "heeds"), [("substrate", True), ("bm25", True), ("full-context", False)])
def test_the_date_stands_in_the_query_of_what_reads_one(system: str, heeds: bool):
    spec = systems.load(system)
    options = Options(Path("trials.json"), Settings())
    (config,) = configs_of(Plan(), spec.plugin, spec.fetch, FetchRequest(date_in_query=True), options, None)
    assert config.settings.get("date_in_query", False) is heeds


def test_the_configurations_that_are_kept():
    kept = [name for name in systems.names() if name.startswith("substrate")]
    assert kept == ["substrate", "substrate-bm25", "substrate-declared", "substrate-vector"]
    specs = {name: systems.load(name) for name in kept}
    assert {name: spec.fetch["mode"] for name, spec in specs.items()} == {
        "substrate": "hybrid",
        "substrate-bm25": "bm25_only",
        "substrate-declared": "hybrid",
        "substrate-vector": "vector_only",
    }
    compared = [specs[name].fetch["sections"] for name in ("substrate", "substrate-bm25", "substrate-vector")]
    for sections in compared:  # equal, and no less than the largest k of a measure
        assert (sections["relevant_episodes"], sections["salient_observations"]) == (10, 50)
    assert specs["substrate-declared"].fetch["sections"] == BUDGETS
