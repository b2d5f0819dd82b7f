"""The embedded memory: identities, writes, corrections, forgetting, restarts, and kills in the middle of each."""

import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memtrials.errors import UserError, WorkFailedError
from memtrials.systems.substrate.identity import batch_id, internal_id, operation_id
from memtrials.systems.substrate.memory import Plan, Substrate
from memtrials.systems.substrate.objects import Correction, Derived, Episode, Link, Observation, Ref, Target, Thread
from memtrials.systems.substrate.store import PARTS, WAYS, file_of, way
from support.substrate import RAW, SPACE, TIME, Words, corrected, dump, forgotten, meet, remember


@pytest.fixture
def memory(tmp_path: Path) -> Substrate:
    memory = Substrate(tmp_path / "states", Words())
    memory.open_namespace(SPACE)
    return memory


def plan_of(memory: Substrate, text: str = "Ada hid the key.", key: str = "continuity:demo:event-001:key") -> Plan:
    return memory.prepare_remember(SPACE, text, "key", "key:observation", TIME, TIME, RAW, key)


def state(memory: Substrate) -> list[str]:
    return dump(file_of(memory.folder, SPACE))


def derived(memory: Substrate, name: str) -> Any:
    stored = memory.store(SPACE).object(Ref("derived_memory", name))
    assert stored is not None
    return stored


# Identities


def test_ids_are_those_that_the_names_give():
    assert internal_id("ns-a", "episode", "mem-1") == "cec2efbb-0396-5ea8-a905-c178b10783f9"
    link = "link:5f7f2a7ea9a0389ebfd0c4e3f5ef800a3d67d041fa91dec496eeb0d59b56be98"
    assert operation_id("ns-a", "link", "lk-1") == link


def test_a_batch_is_named_by_what_it_writes_in_order():
    assert batch_id("ns-a", ["one", "two"]) == "cmem-eval:" + internal_id("ns-a", "remember_plan", "one\0two")
    assert batch_id("ns-a", ["one", "two"]) != batch_id("ns-a", ["two", "one"])
    assert batch_id("ns-a", []) == operation_id("ns-a", "remember_enrichment")


# Namespaces


def test_a_namespace_that_is_not_open_is_an_error_that_names_it(tmp_path: Path):
    memory = Substrate(tmp_path, Words())
    with pytest.raises(WorkFailedError, match="'elsewhere' is neither opened nor reattached"):
        memory.remember_episode("elsewhere", Episode(external_id="a", summary="A day.", started_at=TIME))


def test_opening_refuses_what_is_there(memory: Substrate):
    memory.detach(SPACE)
    with pytest.raises(UserError, match="already there"):
        memory.open_namespace(SPACE)


def test_reattaching_lists_every_missing_part(memory: Substrate):
    memory.detach(SPACE)
    connection = sqlite3.connect(file_of(memory.folder, SPACE))
    connection.executescript("DROP TABLE vectors; DROP TABLE statistics;")
    connection.close()
    with pytest.raises(UserError, match=r"missing: vectors, statistics\)"):
        memory.reattach_namespace(SPACE)
    with pytest.raises(
        UserError, match=r"missing: objects, links, edges, vectors, statistics, operations, namespace\)"
    ):
        memory.reattach_namespace("never opened")


@pytest.mark.parametrize("part", PARTS)
def test_a_namespace_without_one_of_its_parts_is_not_whole(memory: Substrate, part: str):
    remember(memory, "key", "The key is under the fern.")
    memory.detach(SPACE)
    connection = sqlite3.connect(file_of(memory.folder, SPACE))
    connection.execute(f"DROP TABLE {part}")
    connection.close()
    with pytest.raises(UserError, match=rf"missing: {part}\)"):
        memory.reattach_namespace(SPACE)
    with pytest.raises(UserError, match="already there"):
        memory.open_namespace(SPACE)


def test_a_discarded_namespace_leaves_no_file(memory: Substrate):
    meet(memory, "ada")
    memory.discard(SPACE)
    assert list(memory.folder.iterdir()) == []


def test_names_of_namespaces_may_hold_anything(tmp_path: Path):
    memory = Substrate(tmp_path / "states", Words())
    for name in ("a/b", "..", "ä b", "a%2Fb"):
        memory.open_namespace(name)
    memory.close()
    assert len(list((tmp_path / "states").glob("*.sqlite"))) == 4
    assert memory.reattach_namespace("a/b") == 0


def test_a_journal_without_its_file_is_a_namespace_that_is_there(memory: Substrate):
    memory.discard(SPACE)
    path = file_of(memory.folder, SPACE)
    Path(f"{path}-journal").write_bytes(b"left behind")
    with pytest.raises(UserError, match=r"-journal: namespace .* is already there"):
        memory.open_namespace(SPACE)
    assert not path.exists()


# Staged writes


def test_preparing_and_validating_write_nothing(memory: Substrate):
    before = state(memory)
    plan = plan_of(memory)
    assert [c.action for c in plan.candidates] == ["object", "object", "vector", "vector", "statistics", "statistics"]
    assert all(verdict.accepted for verdict in memory.validate_plan(plan))
    assert state(memory) == before


def test_a_commit_says_what_it_wrote(memory: Substrate):
    done = memory.commit(plan_of(memory))
    ids = [internal_id(SPACE, "episode", "key"), internal_id(SPACE, "observation", "key:observation")]
    assert done.operation_id == "continuity:demo:event-001:key"
    assert done.outcome["persisted_object_ids"] == done.outcome["vector_indexed_object_ids"] == ids
    assert done.outcome["repair_needed"] == []


def test_the_same_key_again_writes_nothing(memory: Substrate):
    done = memory.commit(plan_of(memory))
    before = state(memory)
    assert memory.commit(plan_of(memory)) == done
    assert state(memory) == before


def test_a_key_that_stood_for_other_content_is_refused(memory: Substrate):
    memory.commit(plan_of(memory))
    with pytest.raises(WorkFailedError, match="other content"):
        memory.commit(plan_of(memory, text="Ada lost the key."))


def test_a_plan_without_vectors_is_not_indexed(memory: Substrate):
    plan = memory.prepare_remember(SPACE, "Ada hid the key.", "key", "o", TIME, TIME, RAW, "k", index=False)
    assert memory.commit(plan).outcome["vector_indexed_object_ids"] == []


@pytest.mark.parametrize(
    ("draft", "reason"),
    [
        (Observation(external_id="o", text="Seen.", episode="gone", observed_at=TIME), "no episode 'gone'"),
        (Derived(external_id="d", derived_type="claim", text="So."), "needs an episode or observation"),
        (Derived(external_id="d", derived_type="claim", text=" ", episodes=("key",)), "text"),
        (Derived(external_id="d", derived_type="claim", text="So.", episodes=("key", "key")), "twice"),
        (Derived(external_id="d", derived_type="hunch", text="So.", episodes=("key",)), "hunch"),  # type: ignore[arg-type]
        (Thread(external_id="t", title="House", salience=1.5), "salience"),
        (Thread(external_id="t", title="House", salience=float("nan")), "salience"),
        (Episode(external_id="key", summary="Other words.", started_at=TIME), "other content"),
    ],
)
def test_one_bad_object_keeps_the_whole_batch_out(memory: Substrate, draft: Any, reason: str):
    memory.commit(plan_of(memory))
    before = state(memory)
    with pytest.raises(WorkFailedError, match=reason):
        memory.ingest_enrichment(SPACE, [Thread(external_id="good", title="Garden"), draft])
    assert state(memory) == before


def test_a_batch_may_not_name_an_id_twice(memory: Substrate):
    thread = Thread(external_id="t", title="House")
    with pytest.raises(WorkFailedError, match="occurs twice"):
        memory.ingest_enrichment(SPACE, [thread, thread])


def test_what_is_embedded_has_its_prefix_and_single_blanks(memory: Substrate):
    words = memory.embeddings
    assert isinstance(words, Words)
    remember(memory, "key", "  Ada \t hid\n\nthe key. ", thread="house")
    assert words.embedded == [
        "Episode summary: Ada hid the key.",
        "Observation excerpt: Ada hid the key.",
        "Thread summary: Ada hid the key.",
        "Reflection: Ada hid the key.",
    ]


def test_an_embedding_that_fails_writes_nothing(memory: Substrate):
    remember(memory, "key", "The key is under the fern.")
    before = state(memory)

    class Broken:
        def vectors(self, texts: Any, role: str) -> list[bytes | None]:
            raise WorkFailedError("service", "transient", "no answer")

    memory.embeddings = Broken()
    for act in (commit, correct):
        with pytest.raises(WorkFailedError, match="no answer"):
            act(memory)
    assert state(memory) == before


def test_vectors_of_another_width_are_refused_and_nothing_is_written(memory: Substrate):
    remember(memory, "key", "The key is under the fern.")
    before = state(memory)

    class Narrow:
        def vectors(self, texts: Any, role: str) -> list[bytes | None]:
            return [bytes(12) for _ in texts]

    memory.embeddings = Narrow()
    with pytest.raises(WorkFailedError, match=r"256 dimensions and that of .* 3"):
        commit(memory)
    assert state(memory) == before


# Links


def test_a_link_needs_both_ends_and_keeps_its_id(memory: Substrate):
    meet(memory, "ada")
    memory.commit(plan_of(memory))
    link = Link(external_id="lk-1", source=Ref("entity", "ada"), relation="about", target=Ref("episode", "key"))
    done = memory.link(SPACE, link)
    assert done.operation_id == operation_id(SPACE, "link", "lk-1")
    before = state(memory)
    assert memory.link(SPACE, link) == done
    assert state(memory) == before
    lost = Link(external_id="lk-2", source=Ref("entity", "ada"), relation="about", target=Ref("episode", "lk-1"))
    with pytest.raises(WorkFailedError, match="no episode 'lk-1'"):
        memory.link(SPACE, lost)


# Corrections


def test_a_corrected_source_supersedes_what_was_derived_from_it_and_stays_itself(memory: Substrate):
    meet(memory, "ada")
    remember(memory, "key", "Ada put the key under the fern.", ["ada"], thread="house")
    done = memory.correct(SPACE, corrected("key", "key-moved", "The key is in the blue jar."))
    old, new = derived(memory, "key:derived"), derived(memory, "key-moved")
    assert (old.retention, old.is_current) == ("suppressed", False)
    assert new.live
    assert (new.draft.episodes, new.draft.observations) == (("key",), ("key:observation",))
    assert (new.draft.entities, new.draft.threads) == (("ada",), ("house",))
    store = memory.store(SPACE)
    assert store.superseded_by(old.id) == new.id
    assert [store.has_vector(memory_id) for memory_id in (old.id, new.id)] == [False, True]
    episode = store.object(Ref("episode", "key"))
    assert episode is not None
    assert episode.live
    assert store.has_vector(episode.id)
    assert done.outcome["graph_mutated_object_ids"] == [new.id, old.id]


def test_a_corrected_observation_reaches_the_memory_through_it(memory: Substrate):
    remember(memory, "key", "Ada put the key under the fern.")
    target = Target("observation", "key:observation", source_refs=("key",))
    memory.correct(SPACE, Correction((target,), Derived(external_id="new", derived_type="correction", text="No.")))
    assert not derived(memory, "key:derived").live


def test_a_corrected_memory_is_the_only_one_touched(memory: Substrate):
    remember(memory, "key", "Ada put the key under the fern.")
    memory.ingest_enrichment(
        SPACE, [Derived(external_id="other", derived_type="claim", text="Ada likes ferns.", episodes=("key",))]
    )
    target = Target("derived_memory", "key:derived")
    memory.correct(SPACE, Correction((target,), Derived(external_id="new", derived_type="correction", text="No.")))
    assert not derived(memory, "key:derived").live
    assert derived(memory, "other").live


def test_a_chain_of_corrections_leaves_one_current_memory(memory: Substrate):
    remember(memory, "key", "The key is under the fern.")
    memory.correct(SPACE, corrected("key", "v2", "The key is in the jar."))
    memory.correct(SPACE, corrected("key", "v3", "The key is on the hook."))
    assert [derived(memory, name).live for name in ("key:derived", "v2", "v3")] == [False, False, True]
    store = memory.store(SPACE)
    assert store.superseded_by(derived(memory, "v2").id) == derived(memory, "v3").id


def test_an_identical_retry_repairs_vectors_and_statistics_and_writes_nothing_else(memory: Substrate):
    remember(memory, "key", "The key is under the fern.")
    correction = corrected("key", "v2", "The key is in the jar.")
    done = memory.correct(SPACE, correction)
    before = state(memory)
    assert memory.correct(SPACE, correction) == done
    assert state(memory) == before
    store = memory.store(SPACE)
    new, old = derived(memory, "v2").id, derived(memory, "key:derived").id
    with store.transaction():
        store.unindex(new)
        store.index([(old, "derived_memory", bytes(256 * 4))])
    assert memory.correct(SPACE, correction) == done
    assert [store.has_vector(memory_id) for memory_id in (new, old)] == [True, False]
    path = file_of(memory.folder, SPACE)
    memory.detach(SPACE)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE statistics SET linked = 7")
    connection.commit()
    connection.close()
    memory.reattach_namespace(SPACE)
    assert memory.correct(SPACE, correction) == done
    assert memory.store(SPACE).linked("", "derived_memory") == 1


@pytest.mark.parametrize(
    ("targets", "replacement", "reason"),
    [
        ([Target("episode", "key")], "new", "without a reference"),
        ([Target("episode", "key", raw_refs=(" ",))], "new", "without a reference"),
        ([Target("episode", "key", raw_refs=("continuity://other",))], "new", "isn't one of key"),
        ([Target("episode", "gone", raw_refs=RAW)], "new", "no episode 'gone'"),
        ([Target("episode", "key", raw_refs=RAW), Target("episode", "gone", raw_refs=RAW)], "new", "no episode 'gone'"),
        ([Target("derived_memory", "key:derived")] * 2, "new", "named twice"),
        ([Target("derived_memory", "key:derived")], "key:derived", "there already"),
    ],
)
def test_a_refused_correction_changes_nothing(memory: Substrate, targets: list[Target], replacement: str, reason: str):
    remember(memory, "key", "The key is under the fern.")
    before = state(memory)
    new = Derived(external_id=replacement, derived_type="correction", text="It isn't.")
    with pytest.raises(WorkFailedError, match=reason):
        memory.correct(SPACE, Correction(tuple(targets), new))
    assert state(memory) == before


def test_a_replacement_id_with_other_content_is_refused(memory: Substrate):
    remember(memory, "key", "The key is under the fern.")
    memory.correct(SPACE, corrected("key", "v2", "The key is in the jar."))
    with pytest.raises(WorkFailedError, match="v2 is there already"):
        memory.correct(SPACE, corrected("key", "v2", "The key is on the hook."))


# Forgetting


@pytest.mark.parametrize("dependents", [False, True])
def test_what_was_derived_is_forgotten_only_on_demand(memory: Substrate, dependents: bool):
    remember(memory, "key", "The key is under the fern.")
    memory.forget(SPACE, forgotten(Ref("episode", "key"), dependents=dependents))
    store = memory.store(SPACE)
    episode, observation = (store.object(ref) for ref in (Ref("episode", "key"), Ref("observation", "key:observation")))
    assert episode is not None
    assert observation is not None
    assert episode.retention == "suppressed"
    assert not store.has_vector(episode.id)
    assert observation.live
    assert derived(memory, "key:derived").live is not dependents


@pytest.mark.parametrize(("suppress", "apply"), [(True, False), (False, True)])
def test_one_flag_alone_touches_no_dependents(memory: Substrate, suppress: bool, apply: bool):
    remember(memory, "key", "The key is under the fern.")
    alone = type(forgotten(Ref("episode", "key")))((Ref("episode", "key"),), suppress, apply)
    memory.forget(SPACE, alone)
    assert derived(memory, "key:derived").live


def test_a_cascade_over_a_current_replacement_is_warned_of(memory: Substrate):
    remember(memory, "key", "The key is under the fern.")
    memory.correct(SPACE, corrected("key", "v2", "The key is in the jar."))
    done = memory.forget(SPACE, forgotten(Ref("episode", "key"), dependents=True))
    assert done.outcome["diagnostics"]["warnings"] == [
        {"code": "cascade-suppresses-current-replacement", "external_ids": ["v2"]}
    ]
    assert not derived(memory, "v2").live


def test_a_forgotten_thread_is_archived(memory: Substrate):
    remember(memory, "key", "The key is under the fern.", thread="house")
    memory.forget(SPACE, forgotten(Ref("memory_thread", "house")))
    thread = memory.store(SPACE).object(Ref("memory_thread", "house"))
    assert thread is not None
    assert (thread.status, thread.retention) == ("archived", "active")
    assert not memory.store(SPACE).has_vector(thread.id)


def test_forgetting_twice_is_one_operation_and_a_bad_target_stops_it(memory: Substrate):
    meet(memory, "ada")
    remember(memory, "key", "The key is under the fern.")
    before = state(memory)
    for bad, reason in ((Ref("episode", "gone"), "no episode"), (Ref("entity", "ada"), "is an entity")):
        with pytest.raises(WorkFailedError, match=reason):
            memory.forget(SPACE, forgotten(Ref("episode", "key"), bad))
    assert state(memory) == before
    done = memory.forget(SPACE, forgotten(Ref("episode", "key")))
    after = state(memory)
    assert memory.forget(SPACE, forgotten(Ref("episode", "key"))) == done
    assert state(memory) == after


# Restarts and statistics


def life(memory: Substrate) -> None:
    meet(memory, "ada", "noor")
    remember(memory, "key", "Ada put the key under the fern.", ["ada"], thread="house")
    remember(memory, "ford", "Noor said the east ford is shallow.", ["noor", "ada"])
    mentions = Link(external_id="l1", source=Ref("episode", "key"), relation="mentions", target=Ref("entity", "ada"))
    involves = Link(external_id="l2", source=Ref("entity", "ada"), relation="involves", target=Ref("episode", "key"))
    part = Link(
        external_id="l3",
        source=Ref("derived_memory", "key:derived"),
        relation="part_of_thread",
        target=Ref("memory_thread", "house"),
    )
    for link in (mentions, involves, part):
        memory.link(SPACE, link)
    memory.correct(SPACE, corrected("key", "key-moved", "The key is in the blue jar."))
    memory.forget(SPACE, forgotten(Ref("episode", "ford")))


def test_everything_outlives_a_restart(memory: Substrate):
    life(memory)
    before = state(memory)
    memory.detach(SPACE)
    again = Substrate(memory.folder, Words())
    assert again.reattach_namespace(SPACE) == 13  # 2 entities, 2 × 3 memories, thread, replacement, 3 links
    assert state(again) == before
    life_again = corrected("key", "key-moved", "The key is in the blue jar.")
    again.correct(SPACE, life_again)
    assert state(again) == before


def test_statistics_count_what_the_graph_holds(memory: Substrate):
    life(memory)
    store = memory.store(SPACE)
    counted: dict[tuple[str, str], int] = {}
    for kind, names in (("entity", ("ada", "noor")), ("memory_thread", ("house",))):
        for name in names:
            hub = internal_id(SPACE, kind, name)
            reached = {
                (e.other, w.name)
                for e in store.neighbours(hub)
                if (w := way(e.relation, kind, e.kind)) and (other := store.get(e.other)) and other.live
            }
            for via in WAYS:
                counted[name, via.name] = sum(found == via.name for _, found in reached)
                assert (store.linked(hub, via.name) or 0) == counted[name, via.name]
    assert counted["ada", "about_entity.derived_memory"] == 2
    assert counted["ada", "participant_entity.episode"] == 1
    assert counted["house", "part_of_thread.derived_memory"] == 1
    with store.transaction():
        assert not store.recount()
    assert store.linked("", "derived_memory") == 2
    assert store.linked("", "episode") == 1


# Kills


def killed_after(statements: int, folder: Path, act: Callable[[Substrate], object]) -> bool:
    """Act in a process of its own, which is killed when its next statement begins; whether it got that far."""
    child = os.fork()
    if child == 0:
        left = statements
        connect = sqlite3.connect

        def counting(*args: Any, **kwargs: Any) -> sqlite3.Connection:
            connection = connect(*args, **kwargs)

            def count(_: str) -> None:
                nonlocal left
                left -= armed
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            connection.set_trace_callback(count)
            return connection

        armed = False
        try:
            sqlite3.connect = counting  # type: ignore[assignment]
            memory = Substrate(folder, Words())
            memory.reattach_namespace(SPACE)
            armed = True
            act(memory)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def commit(memory: Substrate) -> object:
    return memory.commit(memory.prepare_remember(SPACE, "Noor left.", "n", "n:o", TIME, TIME, RAW, "continuity:n"))


def prepare_only(memory: Substrate) -> object:
    plan = memory.prepare_remember(SPACE, "Noor left.", "n", "n:o", TIME, TIME, RAW, "continuity:n")
    memory.validate_plan(plan)
    os.kill(os.getpid(), signal.SIGKILL)
    return None


def correct(memory: Substrate) -> object:
    return memory.correct(SPACE, corrected("key", "v2", "The key is in the jar."))


def forget(memory: Substrate) -> object:
    return memory.forget(SPACE, forgotten(Ref("episode", "key"), Ref("memory_thread", "house"), dependents=True))


def prepared_life(folder: Path) -> tuple[Path, list[str]]:
    memory = Substrate(folder, Words())
    memory.open_namespace(SPACE)
    meet(memory, "ada")
    remember(memory, "key", "Ada put the key under the fern.", ["ada"], thread="house")
    before = state(memory)
    memory.close()
    return file_of(folder, SPACE), before


def test_a_kill_between_prepare_and_commit_leaves_nothing(tmp_path: Path):
    path, before = prepared_life(tmp_path)
    assert killed_after(10**6, tmp_path, prepare_only)
    assert dump(path) == before


@pytest.mark.parametrize("act", [commit, correct, forget])
def test_a_kill_in_the_middle_leaves_the_state_before_or_after(tmp_path: Path, act: Callable[[Substrate], object]):
    path, before = prepared_life(tmp_path / "undisturbed")
    memory = Substrate(tmp_path / "undisturbed", Words())
    memory.reattach_namespace(SPACE)
    act(memory)
    after = state(memory)
    memory.close()
    assert after != before
    folder = tmp_path / "killed"
    path, _ = prepared_life(folder)
    whole, statements = path.read_bytes(), 0
    while True:
        for file in folder.iterdir():
            file.unlink()
        path.write_bytes(whole)
        if not killed_after(statements, folder, act):
            break
        assert dump(path) in (before, after)
        again = Substrate(folder, Words())
        again.reattach_namespace(SPACE)
        act(again)
        again.close()
        assert dump(path) == after
        statements += 1
    assert statements > 10
    assert dump(path) == after
