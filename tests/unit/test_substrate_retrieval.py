"""What the embedded memory brings back, in which order, and what it says of everything it left out."""

import sqlite3
import struct
from pathlib import Path
from typing import Any

import pytest

from memtrials.embeddings.controllable import Concept, Controllable, Geometry
from memtrials.errors import UserError
from memtrials.systems.substrate.identity import internal_id
from memtrials.systems.substrate.memory import Substrate
from memtrials.systems.substrate.objects import KINDS, Derived, Episode, Link, Observation, Ref, Thread
from memtrials.systems.substrate.retrieval import (
    BUDGETS,
    FANOUT,
    Policy,
    Reached,
    Retrieval,
    context_text,
    selectivity,
)
from memtrials.systems.substrate.store import Stored, file_of
from support.substrate import SPACE, TIME, Words, corrected, forgotten, meet, remember

SOURCES = ("episode", "observation")


@pytest.fixture
def memory(tmp_path: Path) -> Substrate:
    memory = Substrate(tmp_path / "states", Words())
    memory.open_namespace(SPACE)
    return memory


def ask(memory: Substrate, text: str, **settings: Any) -> Retrieval:
    return memory.retrieve(SPACE, text, TIME, Policy(**{"trace": True, **settings}))


def trace(found: Retrieval) -> dict[str, Any]:
    (outcome,) = found.outcomes
    told = outcome["trace"]
    assert isinstance(told, dict)
    return told


def names(found: Retrieval) -> list[str]:
    return [item.external_id for item in found.items]


def of(memory: Substrate, kind: Any, name: str) -> str:
    return memory.store(SPACE).id(Ref(kind, name))


def categories(found: Retrieval, name: str) -> list[str]:
    (assigned,) = [a for a in trace(found)["section_assignments"] if a["object"]["external_id"] == name]
    told = assigned["rationale_categories"]
    assert isinstance(told, list)
    return told


def reached(hit: float | None, root: float, proximity: int, salience: float) -> Reached:
    draft = Episode(external_id="e", summary="x", started_at=TIME)
    return Reached(Stored("i", "episode", "e", draft, salience, "active", True, None, 1), hit, root, proximity)


# Formulas


def test_a_score_weighs_vector_graph_and_salience():
    assert reached(0.9, 0.9, 0, 0.4).score == pytest.approx(0.875)
    assert reached(None, 0.9, 1, 0.95).score == pytest.approx(0.65875)


@pytest.mark.parametrize(
    ("linked", "total", "value"), [(1, 100, 0.849810), (50, 100, 0.148056), (4, 48, 0.586456), (3, 3, 0.0), (0, 0, 0.0)]
)
def test_selectivity_is_what_a_rare_entity_tells(linked: int, total: int, value: float):
    assert selectivity(linked, total) == pytest.approx(value, abs=5e-7)


# Order and sections


def test_sections_follow_each_other_and_entities_are_not_shown(memory: Substrate):
    meet(memory, "ada")
    remember(memory, "key", "Ada put the key under the fern.", ["ada"], thread="house")
    memory.ingest_enrichment(
        SPACE,
        [Derived(external_id="likes", derived_type="user_preference", text="Ada likes ferns.", episodes=("key",))],
    )
    found = ask(memory, "ada key fern")
    assert [(item.kind, item.external_id, item.rank) for item in found.items] == [
        ("memory_thread", "house", 1),
        ("episode", "key", 2),
        ("observation", "key:observation", 3),
        ("derived_memory", "key:derived", 4),
        ("derived_memory", "likes", 5),
    ]
    assert [item.episode_external_id for item in found.items] == [None, None, "key", "key", "key"]
    assert [o["external_id"] for o in found.outcomes[0]["pack"]["preferences"]] == ["likes"]
    assert {(o["object"]["external_id"], o["reason"]) for o in trace(found)["omissions"]} == {("ada", "not_shown")}
    assert context_text(found, "hybrid").splitlines()[:2] == [
        "[memory_thread:house rank=1] ",
        "[episode:key rank=2] Ada put the key under the fern.",
    ]


def test_a_budget_keeps_the_best_and_names_the_rest(memory: Substrate):
    for n in range(4):
        remember(memory, f"m{n}", " ".join(["Ferns grow"] + ["slowly"] * n))
    found = ask(memory, "ferns grow", sections={**BUDGETS, "relevant_episodes": 2, "salient_observations": 0})
    assert [item.external_id for item in found.items if item.kind == "episode"] == ["m0", "m1"]
    assert not [item for item in found.items if item.kind == "observation"]
    full = {o["object"]["external_id"] for o in trace(found)["omissions"] if o["reason"] == "section_full"}
    assert {"m2", "m3", "m0:observation"} <= full


@pytest.mark.parametrize("order", [("a", "b", "c"), ("c", "a", "b")])
def test_equal_scores_are_in_order_of_ids_however_they_came_in(tmp_path: Path, order: tuple[str, ...]):
    memory = Substrate(tmp_path, Words())
    memory.open_namespace(SPACE)
    for name in order:
        memory.remember_episode(SPACE, Episode(external_id=name, summary="The same words.", started_at=TIME))
    ids = sorted(internal_id(SPACE, "episode", name) for name in order)
    assert [item.internal_id for item in ask(memory, "same words").items] == ids
    found = ask(memory, "same words", max_graph_roots=2, max_vector_candidates=2)
    assert [item.internal_id for item in found.items] == ids[:2]


def test_candidates_are_the_nearest_of_all(memory: Substrate):
    texts = [" ".join(f"w{(n * k) % 17}" for k in range(1, 6)) for n in range(100)]
    drafts = [Episode(external_id=f"e{n}", summary=text, started_at=TIME) for n, text in enumerate(texts)]
    memory.ingest_enrichment(SPACE, drafts)
    words = Words()
    query, *vectors = [
        struct.unpack("256f", v or b"")
        for v in words.vectors(["w1 w5 w8", *(f"Episode summary: {text}" for text in texts)], "query")
    ]

    def cosine(vector: tuple[float, ...]) -> float:
        return (
            sum(a * b for a, b in zip(query, vector, strict=True))
            / (sum(a * a for a in query) * sum(b * b for b in vector)) ** 0.5
        )

    told = trace(ask(memory, "w1 w5 w8", max_vector_candidates=30))["vector_candidates"]
    assert [c["score"] for c in told] == pytest.approx(sorted(map(cosine, vectors), reverse=True)[:30], abs=1e-6)
    assert [c["rank"] for c in told] == list(range(1, 31))


def test_asking_changes_nothing_and_a_restart_changes_no_answer(memory: Substrate):
    meet(memory, "ada")
    remember(memory, "key", "Ada put the key under the fern.", ["ada"], thread="house")
    before = memory.store(SPACE).count(), ask(memory, "Where is the key?")
    assert (memory.store(SPACE).count(), ask(memory, "Where is the key?")) == before
    memory.detach(SPACE)
    again = Substrate(memory.folder, Words())
    again.reattach_namespace(SPACE)
    assert ask(again, "Where is the key?") == before[1]


def test_a_query_without_words_finds_nothing_and_says_that_it_did_not_look(memory: Substrate):
    remember(memory, "key", "Ada put the key under the fern.")
    found = ask(memory, "?")
    assert found.items == ()
    assert found.outcomes[0]["rationale"]["telemetry"]["vector_recall_completeness"] == {"kind": "not_requested"}


def test_without_a_trace_the_outcome_has_none(memory: Substrate):
    remember(memory, "key", "Ada put the key under the fern.")
    found = ask(memory, "key", trace=False)
    assert found.outcomes[0]["trace"] is None
    assert found.outcomes[0]["rationale"]["graph_verified_count"] == 3


class Authored:
    """Vectors of an authored geometry, padded to eight dimensions."""

    def __init__(self, geometry: Geometry) -> None:
        self.provider = Controllable(geometry, 8)

    def vectors(self, texts: Any, role: str) -> list[bytes | None]:
        return [self.provider.vector(text).tobytes() for text in texts]


def test_authored_cosines_arrive_through_every_surface(tmp_path: Path):
    concepts = {
        "query": ("probe", ("Where is it?",)),
        "near": ("near", ("Ada hid the key.", "Ada")),
        "far": ("far", ("Noor left.",)),
    }
    geometry = Geometry(
        seed=1,
        vector_size=4,
        noise_magnitude=0.0,
        clusters={"probe": (1, 0, 0, 0), "near": (0.8, 0.6, 0, 0), "far": (0.28, 0, 0.96, 0)},
        concepts={name: Concept(cluster, inputs) for name, (cluster, inputs) in concepts.items()},
    )
    memory = Substrate(tmp_path, Authored(geometry))
    memory.open_namespace(SPACE)
    meet(memory, "ada")
    remember(memory, "key", "  Ada\thid  the\n key. ", ["ada"], thread="house")
    remember(memory, "gone", "Noor left.")
    told = [(c["surface"], c["score"]) for c in trace(ask(memory, "Where is it?"))["vector_candidates"]]
    assert [kind for kind, _ in told] == [*KINDS, "episode", "observation", "derived_memory"]
    assert [score for _, score in told] == pytest.approx([0.8] * 5 + [0.28] * 3, abs=1e-6)


# What may be shown


@pytest.mark.parametrize("mode", ["hybrid", "vector_only"])
def test_what_was_corrected_or_forgotten_is_gone(memory: Substrate, mode: Any):
    remember(memory, "key", "The key is under the fern.")
    remember(memory, "cat", "The cat is under the fern.")
    memory.correct(SPACE, corrected("key", "key-moved", "The key is in the jar."))
    memory.forget(SPACE, forgotten(Ref("episode", "cat"), Ref("observation", "cat:observation"), dependents=True))
    kinds = {"object_types": SOURCES} if mode == "vector_only" else {}
    shown = names(ask(memory, "What is under the fern?", mode=mode, **kinds))
    assert set(shown) == {"key", "key:observation"} | ({"key-moved"} if mode == "hybrid" else set())


def test_admission_asks_the_graph_and_not_the_vectors(memory: Substrate):
    remember(memory, "key", "The key is under the fern.")
    memory.correct(SPACE, corrected("key", "key-moved", "The key is in the jar."))
    memory.forget(SPACE, forgotten(Ref("observation", "key:observation")))
    store = memory.store(SPACE)
    old, seen = of(memory, "derived_memory", "key:derived"), of(memory, "observation", "key:observation")
    (vector,) = Words().vectors(["the key is under the fern"], "document")
    assert vector is not None
    with store.transaction():
        store.index([(old, "derived_memory", vector), (seen, "observation", vector), ("stray", "episode", vector)])
    found = ask(memory, "The key is under the fern")
    assert {"key:derived", "key:observation"}.isdisjoint(names(found))
    told = {o["candidate"]["internal_id"]: o["reason"] for o in trace(found)["stale_candidate_omissions"]}
    assert told == {old: "superseded", seen: "suppressed", "stray": "missing_object"}
    (decision,) = [d for d in trace(found)["lifecycle_filter_decisions"] if d["object"]["internal_id"] == old]
    assert (decision["action"], decision["retention_state"], decision["is_current"]) == ("omit", "suppressed", False)
    assert decision["superseded_by"] == of(memory, "derived_memory", "key-moved")


def test_a_link_that_supersedes_hides_its_target(memory: Substrate):
    remember(memory, "old", "The ford is deep.")
    remember(memory, "new", "The ford is shallow.")
    ends = Ref("derived_memory", "new:derived"), Ref("derived_memory", "old:derived")
    memory.link(SPACE, Link(external_id="l", source=ends[0], relation="supersedes", target=ends[1]))
    found = ask(memory, "ford")
    assert "old:derived" not in names(found)
    assert "lifecycle" in categories(found, "new:derived")


def test_only_active_threads_are_shown(memory: Substrate):
    for status in ("active", "dormant", "resolved", "archived"):
        memory.ingest_enrichment(SPACE, [Thread(external_id=status, title="Boat repair", status=status)])
    found = ask(memory, "boat repair")
    assert names(found) == ["active"]
    reasons = {o["object"]["external_id"]: o["reason"] for o in trace(found)["omissions"]}
    assert reasons == {"dormant": "thread_not_active", "resolved": "thread_not_active"}


# The graph


def test_the_graph_leads_to_what_no_vector_is_near(memory: Substrate):
    meet(memory, "noor")
    remember(memory, "ford", "Noor crossed in spring.", ["noor"], salience=0.9)
    memory.ingest_enrichment(SPACE, [Episode(external_id="x", summary="zzz", started_at=TIME)])
    memory.ingest_enrichment(
        SPACE,
        [Derived(external_id="far", derived_type="claim", text="Obsidian seven.", episodes=("x",), entities=("noor",))],
    )
    for n in range(3):
        remember(memory, f"other{n}", "Rain.")
    found = ask(memory, "noor crossed", max_vector_candidates=1, max_graph_roots=1, object_types=("entity",))
    assert {"far", "ford:derived"} <= set(names(found))
    far = next(item for item in found.items if item.external_id == "far")
    assert far.score is None
    assert categories(found, "far") == ["entity", "graph_bound", "salience"]
    relations = [(r["from"], r["relation"], r["to"]) for r in trace(found)["graph_relations"]]
    assert (of(memory, "derived_memory", "far"), "about", of(memory, "entity", "noor")) in relations


def test_a_thread_leads_to_its_memories(memory: Substrate):
    remember(memory, "one", "Oars were bought.", thread="boat")
    remember(memory, "two", "Quiet evening.", thread="boat")
    for n in range(3):
        remember(memory, f"other{n}", "Rain.")
    found = ask(memory, "oars bought", object_types=("memory_thread",))
    assert categories(found, "two:derived") == ["graph_bound", "salience", "thread"]


def hub(memory: Substrate, about: int, others: int) -> None:
    """An entity that so many memories are about, among others."""
    meet(memory, "ada")
    memory.ingest_enrichment(SPACE, [Episode(external_id="day", summary="zzz", started_at=TIME)])
    for n in range(about + others):
        memory.ingest_enrichment(
            SPACE,
            [
                Derived(
                    external_id=f"d{n}",
                    derived_type="claim",
                    text=f"qq{n}",
                    episodes=("day",),
                    entities=("ada",) if n < about else (),
                    salience=n / 100,
                )
            ],
        )


def test_fan_out_grows_with_what_the_entity_tells(memory: Substrate):
    hub(memory, about=30, others=10)
    found = ask(memory, "ada", object_types=("entity",), max_graph_roots=1)
    (candidate,) = trace(found)["vector_candidates"]
    telling = selectivity(30, 40)
    cap = int(20 * telling * (1 + candidate["score"]))
    decisions = [d for d in trace(found)["selectivity_decisions"] if d["path"] == "about_entity.derived_memory"]
    assert (decisions[0]["linked"], decisions[0]["total"], decisions[0]["cap"]) == (30, 40, cap)
    assert decisions[0]["selectivity"] == pytest.approx(telling)
    assert not decisions[0]["fallback"]
    used = next(u for u in trace(found)["fanout_utilization"] if u["path"] == "about_entity.derived_memory")
    assert (used["configured_min"], used["configured_max"], used["taken"]) == (0, 20, cap)
    through = [i.external_id for i in found.items if i.kind == "derived_memory"]
    assert through == [f"d{n}" for n in range(29, 29 - min(cap, 12), -1)]  # the most salient
    assert 0 < cap < 20


def test_an_entity_that_everything_carries_is_not_followed_unless_a_minimum_says_so(memory: Substrate):
    hub(memory, about=6, others=0)
    assert names(ask(memory, "ada", object_types=("entity",))) == []
    fanout = {**FANOUT, "about_entity.derived_memory": (2, 20)}
    found = ask(memory, "ada", object_types=("entity",), fanout=fanout)
    assert trace(found)["selectivity_decisions"][0]["cap"] == 2


def test_lost_statistics_are_told_and_one_memory_is_followed(memory: Substrate):
    hub(memory, about=6, others=6)
    memory.detach(SPACE)
    connection = sqlite3.connect(file_of(memory.folder, SPACE))
    connection.execute("DELETE FROM statistics")
    connection.commit()
    connection.close()
    memory.reattach_namespace(SPACE)
    decision = trace(ask(memory, "ada", object_types=("entity",)))["selectivity_decisions"][0]
    assert (decision["fallback"], decision["cap"], decision["selectivity"]) == (True, 1, None)


# Vectors alone


def test_vector_only_searches_each_kind_by_itself(memory: Substrate):
    for n in range(5):
        remember(memory, f"m{n}", " ".join(["Ferns grow"] + ["slowly"] * n))
    sections = {**BUDGETS, "relevant_episodes": 2, "salient_observations": 3}
    found = ask(memory, "ferns grow", mode="vector_only", object_types=SOURCES, sections=sections)
    assert sorted(names(found)) == ["m0", "m0:observation", "m1", "m1:observation", "m2:observation"]
    scores = [item.score or 0.0 for item in found.items]
    assert scores == sorted(scores, reverse=True)
    assert [item.episode_external_id for item in found.items if item.kind == "episode"] == [None, None]
    assert {item.rationale for item in found.items} == {("vector_only",)}
    telemetry = [outcome["rationale"]["telemetry"] for outcome in found.outcomes]
    assert [t["configured_object_types"] for t in telemetry] == [["episode"], ["observation"]]
    assert [t["vector_recall_completeness"] for t in telemetry] == [{"kind": "exhaustive", "scanned": 5}] * 2


def test_equal_cosines_are_merged_by_kind_and_then_by_id(memory: Substrate):
    for name in ("b", "a", "c"):
        remember(memory, name, "Ferns grow.")
    found = ask(memory, "ferns grow", mode="vector_only", object_types=SOURCES)
    assert len({item.score for item in found.items}) == 1
    assert [item.kind for item in found.items] == ["episode"] * 3 + ["observation"] * 3
    ids = [item.internal_id for item in found.items]
    assert ids == sorted(ids[:3]) + sorted(ids[3:])
    assert [item.rank for item in found.items] == [1, 2, 3, 4, 5, 6]


# BM25


@pytest.fixture
def tea(memory: Substrate) -> Substrate:
    said = {"s1:turn:1": "I like green tea, green tea only.", "s1:turn:2": "Coffee is fine"}
    memory.ingest_enrichment(
        SPACE,
        [
            Episode(external_id="s1", summary="Conversation about tea", started_at=TIME),
            *(Observation(external_id=name, text=text, episode="s1", observed_at=TIME) for name, text in said.items()),
        ],
    )
    return memory


def test_bm25_ranks_both_kinds_together_and_fills_the_quotas(tea: Substrate):
    found = ask(tea, "green tea", mode="bm25_only", object_types=SOURCES)
    assert [(item.external_id, round(item.score or 0.0, 6)) for item in found.items] == [
        ("s1:turn:1", 1.700566),
        ("s1", 0.537684),
        ("s1:turn:2", 0.0),
    ]
    assert found.outcomes == ()
    assert found.items[0].internal_id == "bm25:observation:s1:turn:1"
    assert context_text(found, "bm25_only").splitlines()[0] == "I like green tea, green tea only."
    assert context_text(found, "vector_only").splitlines()[0].startswith("[observation:s1:turn:1 rank=1] I like")


def test_equal_bm25_scores_are_in_the_order_of_document_ids(memory: Substrate):
    for name in ("b", "a"):
        remember(memory, name, "Ferns grow.")
    found = ask(memory, "ferns", mode="bm25_only", object_types=SOURCES)
    assert len({item.score for item in found.items}) == 1
    assert names(found) == ["a", "b", "a:observation", "b:observation"]


def test_bm25_without_tokens_finds_nothing(tea: Substrate):
    assert ask(tea, "?!", mode="bm25_only", object_types=SOURCES).items == ()


# Policies


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"mode": "vector_only"}, "remove entity|remove derived_memory"),
        ({"mode": "bm25_only", "object_types": ("episode", "derived_memory")}, "remove derived_memory"),
        (
            {"mode": "vector_only", "object_types": ("episode",), "sections": {**BUDGETS, "relevant_episodes": 0}},
            "relevant_episodes is 0",
        ),
        ({"object_types": ()}, "name one or more"),
        ({"sections": {"relevant_episodes": 1}}, "sections must give"),
        ({"max_graph_roots": 49}, "roots are candidates"),
        ({"max_graph_roots": 0}, "roots are candidates"),
        ({"fanout": {**FANOUT, "about_entity.derived_memory": (3, 2)}}, "min <= max"),
        ({"alpha": 0.0}, "alpha is 0"),
        ({"gamma": float("inf")}, "gamma is inf"),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(memory: Substrate, settings: Any, reason: str):
    with pytest.raises(UserError, match=reason):
        ask(memory, "key", **settings)
