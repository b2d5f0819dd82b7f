"""Scripted lives through the stages, on a system that takes them and on one that is fed sessions."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Set
from pathlib import Path
from typing import Any

import msgspec
import pytest

from memtrials import systems
from memtrials.benchmarks.continuity.fixture import Query, embedded_texts
from memtrials.benchmarks.continuity.rules import read
from memtrials.benchmarks.life import Correct, Forget, Link, Remember, Restart
from memtrials.embeddings.frozen import store_of, text_key, write_store
from memtrials.embeddings.hashed import hashed_vector
from memtrials.settings import evaluation
from memtrials.systems.substrate.plugin import EmbeddedSubstrate
from support import notebook
from support.cli import call_cli, environment
from support.lives import AT_LAST, FIRST, JAR, KEY, THEN, WHERE, fixture, key, visitors
from support.substrate import dump
from support.trials import ended, files, records, stage

LIVES = ("canary-key", "canary-visitors")
ASKED = {
    "canary-key": [FIRST, THEN, AT_LAST],
    "canary-visitors": ["canary-ask-before", "canary-ask-once", "canary-ask-again"],
}
REPLAY = ("replay", "notebook.toml")


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger of both lives; `notebook.toml` in the working directory sets the system up."""
    monkeypatch.setitem(systems.BUILT_IN, "notebook", "support.notebook")
    monkeypatch.setattr(notebook, "HEARD", [])
    monkeypatch.setattr(notebook, "TROUBLE", [])
    monkeypatch.chdir(tmp_path)
    Path("notebook.toml").write_text(notebook.TOML, encoding="utf-8")
    return build(tmp_path / "trials.json", fixture(tmp_path / "fixture.json"))


def build(trials: Path, data: Path) -> Path:
    stage(trials, "build", "continuity", "--data", str(data), "--allow-modified")
    return trials


def replayed(trials: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    return stage(trials, *REPLAY, *arguments, code=code)


def brought(trials: Path, query: str) -> list[dict[str, Any]]:
    """What the one retrieval of a query brought: each item's memory."""
    (found,) = (r for r in records(trials, "retrieval") if r["query"] == query)
    return [item["memory"] for item in found["body"]["items"]]


def names(trials: Path, query: str) -> list[str | None]:
    return [memory["external_id"] for memory in brought(trials, query)]


VOLATILE = {"id", "parents", "at", "namespace", "user", "effort", "seconds"}
"""What no two runs have alike. `operation_id` of the notebook is one of the random names it goes by."""


def settled(value: Any, volatile: Set[str] = VOLATILE) -> Any:
    """Without ids, times and random names."""
    if isinstance(value, dict):
        return {name: settled(inner, volatile) for name, inner in value.items() if name not in volatile}
    return [settled(inner, volatile) for inner in value] if isinstance(value, list) else value


# --- in order -----------------------------------------------------------------------------------------------------


def test_a_task_keeps_a_query_with_its_place_and_what_scoring_needs(built: Path):
    tasks = {r["task"]: r["body"] for r in records(built, "task")}
    life = tasks["canary-key"]
    assert [(q["id"], q["after"], q["date"]) for q in life["queries"]] == [
        (FIRST, 0, "2025-01-02T09:00:00Z"),
        (THEN, 3, "2025-01-06T09:00:00Z"),
        (AT_LAST, 5, "2025-01-09T09:00:00Z"),
    ]
    assert life["needs"] == ["correct", "forget", "link", "restart"]
    assert (len(life["session_digests"]), life["turns"]) == (6, 2)
    first, then, last = life["gold"]
    assert (first["evidence"], then["evidence"]) == (["0.0"], ["3.0"])
    assert json.loads(then["details"]["expected"]) == {
        "relevant": ["canary-jar"],
        "irrelevant": ["canary-hid", "canary-tie"],
    }
    assert json.loads(then["details"]["known"]) == {
        "pattern": "entrenched_correction",
        "gap_days": 1.0,
        "hub_events": ["canary-hid"],
        "replacements": ["canary-jar"],
    }
    assert json.loads(last["details"]["restarts"]) == [[5, "canary-event-8", "2025-01-08T09:00:00Z"]]
    assert last["details"]["history"] == (
        "2025-01-07T09:00:00Z|forget|canary-hid,canary-hid:observation\n2025-01-08T09:00:00Z|restart"
    )
    assert [q["after"] for q in tasks["canary-visitors"]["queries"]] == [-1, 0, 1]
    assert "needs" not in tasks["canary-visitors"]


def test_queries_see_what_came_before_them_and_nothing_else(built: Path):
    outcome = replayed(built)
    assert (outcome["done"], outcome["appended"]) == (2, 2 + 2 + 6)
    assert names(built, "canary-ask-before") == []
    assert Counter(names(built, "canary-ask-once")) == {"canary-miller": 1, "canary-miller:derived": 1}
    assert set(names(built, "canary-ask-again")) == {
        "canary-miller", "canary-miller:derived", "canary-smith", "canary-smith:derived"
    }  # fmt: skip
    assert names(built, FIRST) == ["canary-hid", "canary-hid:derived"]
    assert names(built, THEN)[0] == "canary-jar"
    assert brought(built, THEN)[0]["episode_external_id"] == "canary-hid"
    assert not {"canary-hid", "canary-hid:derived"} & set(names(built, AT_LAST))


def test_a_life_is_one_piece_of_the_ledger_with_its_ingest_last(built: Path):
    replayed(built)
    made = [r for r in records(built) if r["kind"] not in ("task", "config")]
    for life, some in zip(LIVES, (made[:4], made[4:]), strict=True):
        *retrievals, ingest = some
        assert [r["query"] for r in retrievals] == ASKED[life]
        assert (ingest["kind"], ingest["task"], "query" in ingest) == ("ingest", life, False)
        assert {tuple(r["parents"]) for r in retrievals} == {(ingest["id"],)}
        assert {(r["system"], r["fetch"]) for r in some} == {(ingest["system"], ingest["fetch"])}
        assert {r["repeat"] for r in some} == {1}
    assert {r["key"] for r in records(built, "config")} == {made[0]["system"], made[0]["fetch"]}


def test_operations_are_kept_as_they_were_reported(built: Path):
    replayed(built)
    ingest = next(r["body"] for r in records(built, "ingest") if r["task"] == "canary-key")
    done = [(o["step"], o["operation"], json.loads(o.get("reported", "null"))) for o in ingest["operations"]]
    assert done == [
        (-1, "remember", {"known": 1}),
        (0, "remember_episode", None),
        (0, "remember", {"pages": 2}),
        (1, "remember_episode", None),
        (1, "remember", {"pages": 2}),
        (2, "link", {"relation": "about"}),
        (3, "correct", None),
        (4, "forget", None),
        (5, "restart", None),
    ]
    timed = [o["step"] for o in ingest["operations"] if o.get("seconds") is not None]
    assert timed == [-1, 0, 1, 2, 3, 4, 5], "the time of an event stands at its first operation"
    telling = sum(o["seconds"] for o in ingest["operations"] if o.get("seconds") is not None)
    assert telling <= ingest["effort"]["seconds"]


def test_a_restart_is_probed_by_the_next_query_which_leaves_no_record_of_its_own(built: Path):
    replayed(built)
    ingest = next(r["body"] for r in records(built, "ingest") if r["task"] == "canary-key")
    (restart,) = ingest["restarts"]
    assert (restart["step"], restart["query"], restart["restored"]) == (5, AT_LAST, 1 + 4 + 1)
    before, after = (
        [item["memory"]["external_id"] for item in restart[side]] for side in ("items_before", "items_after")
    )
    assert before == after == names(built, AT_LAST)
    asked = [call for call in notebook.HEARD if call[0] == "query" and call[3] == "2025-01-09T09:00:00Z"]
    assert len(asked) == 3
    assert {call[2] for call in asked} == {WHERE}
    assert len(records(built, "retrieval")) == 6


def test_only_texts_cross_the_interface(built: Path):
    replayed(built)
    crossed = repr(notebook.HEARD)
    assert "canary" not in crossed
    assert not [word for word in ("entrenched_correction", "abstention", "is_hub") if word in crossed]
    assert all(text in crossed for text in (KEY, JAR, WHERE, "Ada"))
    assert not [name for name in files(built.parent / "trials.stores") if "canary" in name]
    stored = b"".join(files(built.parent / "trials.stores").values())
    assert KEY.encode() in stored
    assert b"canary" not in stored


def test_lives_have_names_that_no_other_life_has(built: Path):
    replayed(built, "--repeat", "2")
    begun = [call for call in notebook.HEARD if call[0] == "begin_life"]
    told = [name for _, namespace, user, life in begun for name in (namespace, user, life.name, life.namespace)]
    assert len(set(told)) == len(told) == 16
    keys = [life.entities[0].external_id for _, _, _, life in begun if life.entities]
    assert len(set(keys)) == len(keys) == 2


# --- what is pending ----------------------------------------------------------------------------------------------


def test_a_second_run_has_nothing_to_do(built: Path):
    replayed(built)
    before = built.read_bytes()
    assert replayed(built)["pending"] == 0
    assert built.read_bytes() == before


def test_another_k_plays_the_script_again_and_has_to_be_asked_for(built: Path):
    replayed(built, "--task", "canary-key")
    refused = replayed(built, "--k", "1", code=2)
    assert (refused["pending"], refused["skipped"]) == (0, 2)
    assert "2 left alone, 1 of them without any result" in refused["notes"][0]
    assert "--force" in refused["notes"][0]
    replayed(built)
    assert replayed(built, "--k", "1", "--force")["done"] == 2
    ingests = records(built, "ingest")
    assert len({(r["task"], r["fetch"]) for r in ingests}) == len({r["key"] for r in ingests}) == 4
    sizes = Counter(len(r["body"]["items"]) for r in records(built, "retrieval") if r["fetch"].startswith("k1-"))
    assert sizes == {1: 5, 0: 1}
    assert replayed(built, "--k", "1")["pending"] == 0, "forced once, it needs no yes any more"


def test_repeat_tops_up_to_as_many_lives(built: Path):
    replayed(built)
    assert replayed(built, "--repeat", "3")["done"] == 4
    lives = Counter((r["task"], r["repeat"]) for r in records(built, "ingest"))
    assert lives == {(life, n): 1 for life in LIVES for n in (1, 2, 3)}
    assert Counter(r["repeat"] for r in records(built, "retrieval")) == {1: 18}, "each state is asked once"


def test_a_budget_cuts_what_each_query_brought(built: Path):
    replayed(built, "--budget", "12")
    retrieval = next(r["body"] for r in records(built, "retrieval") if r["query"] == FIRST)
    assert (retrieval["fit"]["asked"], retrieval["fit"]["used"] <= 12, len(retrieval["items"])) == (12, True, 2)


@pytest.mark.parametrize("kind", ["ingest", "retrieval"])
def test_a_void_life_is_replayed_whole(built: Path, kind: str):
    replayed(built)
    named = next(r["id"] for r in records(built, kind) if r["task"] == "canary-key")
    gone = stage(built, "void", named, "--reason", "wrong pen")
    assert gone["kinds"] == {"ingest": 1, "retrieval": 3}
    again = replayed(built)
    assert (again["done"], again["appended"]) == (1, 4)
    assert len(records(built, "ingest")) == 3


def test_a_failure_says_where_and_nothing_else_of_that_life_counts(built: Path):
    notebook.TROUBLE.append(JAR)
    outcome = replayed(built, code=1)
    assert (outcome["done"], outcome["failed"]) == (1, 1)
    (failure,) = records(built, "failure")
    assert failure["body"]["message"] == "canary-key, event canary-event-5, correct: the pen is dry"
    assert (failure["stage"], failure["class"], failure["task"]) == ("replay", "content", "canary-key")
    assert failure["fetch"] == records(built, "ingest")[0]["fetch"]
    assert {r["task"] for r in records(built) if r["kind"] in ("ingest", "retrieval")} == {"canary-visitors"}
    assert len(list((built.parent / "trials.stores").rglob("*.sqlite"))) == 1, "what failed is discarded"
    notebook.TROUBLE.clear()
    assert replayed(built)["done"] == 1


def test_other_data_under_the_same_name_is_found_out(built: Path):
    changed = key()
    changed["entities"][0]["label"] = "Eve"
    other = fixture(built.parent / "other.json", changed, visitors())
    finished = ended(call_cli(*REPLAY, "--data", str(other), "--trials", str(built)), 2)
    assert "not the file this ledger was built from" in finished.err
    assert not notebook.HEARD


# --- other stages -------------------------------------------------------------------------------------------------


def test_the_stages_after_replay_have_nothing_to_do_and_say_so(built: Path):
    replayed(built)
    said = {name: stage(built, name) for name in ("fetch", "answer", "judge")}
    assert {name: outcome["pending"] for name, outcome in said.items()} == {"fetch": 0, "answer": 0, "judge": 0}
    assert "2 lives were asked in their places" in said["fetch"]["notes"][0]
    assert [said[name]["notes"][-1].partition(" ")[2] for name in ("answer", "judge")] == [
        "asks for no answers",
        "asks for no verdicts",
    ]


def test_a_life_has_no_state_for_each_query(built: Path):
    finished = ended(call_cli(*REPLAY, "--state-per-query", "--trials", str(built)), 2)
    assert "--state-per-query" in finished.err
    assert "continuity@modified" in finished.err
    assert {r["kind"] for r in records(built)} == {"task"}
    assert notebook.HEARD == []


def test_status_counts_lives_by_how_they_were_asked(built: Path):
    replayed(built)
    replayed(built, "--k", "1", "--force", "--task", "canary-key")
    ten, one = json.loads(ended(call_cli("status", "--trials", str(built), "--json")).out)["rows"]
    assert (ten["tasks"], ten["ingested"], ten["fetched"]) == (2, 2, 6)
    assert (one["tasks"], one["ingested"], one["fetched"]) == (2, 1, 3)
    assert ten["next"].startswith("memtrials metrics")
    assert one["next"].startswith("memtrials replay notebook.toml --k 1 --benchmark continuity@modified-")


def test_status_goes_on_as_a_half_done_life_was_asked(built: Path):
    replayed(built, "--budget", "20", "--date-in-query", "--task", "canary-key")
    (row,) = json.loads(ended(call_cli("status", "--trials", str(built), "--json")).out)["rows"]
    replay, name, *rest = row["next"].split()[1:]
    outcome = stage(built, replay, name, *rest)
    assert (outcome["done"], outcome["skipped"]) == (1, 0)
    assert len({r["fetch"] for r in records(built, "ingest")}) == 1


def test_run_goes_from_the_fixture_to_the_table(built: Path):
    trials = built.parent / "run.json"
    data = ("--data", str(built.parent / "fixture.json"), "--allow-modified")
    finished = ended(call_cli("run", "continuity", "notebook.toml", *data, "--repeat", "2", "--trials", str(trials)))
    assert len(records(trials, "ingest")) == 4
    assert "notebook" in finished.out


# --- systems that are fed sessions --------------------------------------------------------------------------------


def test_what_forks_is_asked_by_means_of_copies(built: Path):
    outcome = stage(built, "replay", "bm25")
    assert outcome["done"] == 1
    assert "1 life is left out, because it can't correct or forget or link or restart" in outcome["notes"][0]
    assert names(built, "canary-ask-before") == []
    assert names(built, "canary-ask-once") == ["canary-miller"]
    assert set(names(built, "canary-ask-again")) == {"canary-miller", "canary-smith"}
    assert {memory["kind"] for memory in brought(built, "canary-ask-again")} == {"episode"}
    (ingest,) = records(built, "ingest")
    states = [path.name for path in (built.parent / "trials.stores").rglob("*") if path.is_file()]
    assert states == [f"{ingest['body']['namespace']}.sqlite"], "copies are discarded"
    (row,) = json.loads(ended(call_cli("status", "--trials", str(built), "--json")).out)["rows"]
    assert row["next"].startswith("memtrials metrics"), "what can't be replayed isn't owed"


def test_what_neither_forks_nor_takes_events_is_left_out_with_the_reason(built: Path):
    outcome = stage(built, "replay", "none")
    assert (outcome["pending"], len(outcome["notes"])) == (0, 2)
    assert "it neither takes events nor forks" in outcome["notes"][1]
    assert {r["kind"] for r in records(built)} == {"task"}


# --- kills --------------------------------------------------------------------------------------------------------


def test_a_killed_life_leaves_nothing_that_counts_and_begins_anew(built: Path):
    undisturbed = build(built.parent / "undisturbed.json", built.parent / "fixture.json")
    replayed(undisturbed)
    before = built.read_bytes()
    killed = subprocess.run(
        [sys.executable, "-m", "support.notebook", *REPLAY, "--trials", str(built), "--quiet"],
        env=environment({notebook.DIES_AT: JAR, "PYTHONPATH": str(Path(__file__).parents[1])}),
        check=False,
    )
    assert killed.returncode == -9
    kept = [r["kind"] for r in records(built)]
    assert set(kept) == {"task", "config"}
    assert built.read_bytes().startswith(before[:-3])
    (half,) = (built.parent / "trials.stores").rglob("*.part")
    outcome = replayed(built)
    assert any("begins anew in a clean namespace" in note for note in outcome["notes"])
    assert not half.exists()
    assert half.stem not in {r["body"]["namespace"] for r in records(built, "ingest")}
    volatile = VOLATILE | {"operation_id"}
    assert settled(records(built), volatile) == settled(records(undisturbed), volatile)
    assert not any("begins anew" in note for note in replayed(built)["notes"])


# --- the substrate ------------------------------------------------------------------------------------------------

DECLARED = "substrate-declared"


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our catalogue, replayed on the substrate with the vectors that its scripts declare."""
    trials = tmp_path_factory.mktemp("catalogue") / "trials.json"
    stage(trials, "build", "continuity")
    stage(trials, "replay", DECLARED)
    return trials


def test_the_whole_catalogue_is_replayed_on_the_substrate(catalogue: Path):
    tasks = records(catalogue, "task")
    assert {r["benchmark"] for r in tasks} == {"continuity@catalogue"}
    assert {r["type"] for r in tasks} == {r["type"] for r in records(catalogue, "ingest")}
    assert len(tasks) == 17
    assert not records(catalogue, "failure")
    asked = [(r["task"], q["id"]) for r in tasks for q in r["body"]["queries"]]
    assert [(r["task"], r["query"]) for r in records(catalogue, "retrieval")] == asked
    assert all(r["body"]["raw"] for r in records(catalogue, "retrieval")), "every query has its trace"


def test_two_runs_differ_in_ids_and_times_alone(catalogue: Path, tmp_path: Path):
    again = tmp_path / "trials.json"
    stage(again, "build", "continuity")
    stage(again, "replay", DECLARED)
    assert settled(records(again)) == settled(records(catalogue))


def test_what_was_corrected_stays_corrected_and_what_was_forgotten_stays_away(catalogue: Path):
    task = next(r["body"] for r in records(catalogue, "task") if r["type"] == "correction_chains")
    expected = json.loads(task["gold"][0]["details"]["expected"])
    found = names(catalogue, task["queries"][0]["id"])
    assert set(expected["relevant"]) <= set(found)
    assert not set(expected["irrelevant"]) & set(found)


def test_the_substrate_goes_by_the_names_of_the_script(catalogue: Path):
    ingest = next(r["body"] for r in records(catalogue, "ingest") if r["type"] == "cross_store_stress")
    task = next(r["body"] for r in records(catalogue, "task") if r["type"] == "cross_store_stress")
    (restart,) = ingest["restarts"]
    assert restart["items_before"] == restart["items_after"]
    assert restart["restored"] > 0
    link = next(o for o in ingest["operations"] if o["step"] == 1)
    assert link["operation"] == "link"
    assert task["source"]["options"]["namespace"] not in ingest["namespace"], "the state's own name is random"


def test_every_event_of_the_catalogue_is_carried_out_by_the_operations_it_stands_for(catalogue: Path):
    for scenario in read(evaluation() / "continuity" / "catalogue.json").scenarios:
        told = Counter(type(event) for event in scenario.events)
        said = [event for event in scenario.events if isinstance(event, Remember)]
        direct = sum(event.surface_texts is not msgspec.UNSET for event in said)
        staged = len(said) - direct
        ties = sum(2 * len(event.entity_external_ids) + (event.thread is not None) for event in said)
        (ingest,) = (r["body"] for r in records(catalogue, "ingest") if r["task"] == scenario.fixture_id)
        retrieved = [r for r in records(catalogue, "retrieval") if r["task"] == scenario.fixture_id]
        assert Counter(one["operation"] for one in ingest["operations"]) == +Counter(
            {
                **dict.fromkeys(("prepare", "validate_plan", "commit"), staged),
                **dict.fromkeys(("remember_episode", "remember_observation"), direct),
                "remember": len(said) + 1,
                "link": told[Link] + ties,
                "correct": told[Correct],
                "forget": told[Forget],
                "restart": told[Restart],
            }
        )
        assert len(retrieved) == told[Query]
        for restart in ingest.get("restarts", ()):
            threads = {event.thread.thread_external_id for event in said if event.thread}
            objects = len(scenario.entities) + 3 * len(said) + len(threads) + told[Correct]
            assert restart["restored"] == objects + told[Link] + ties


def test_what_a_query_expects_makes_no_difference_to_the_substrate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Told by the script's own names it is told nothing else: of twins that differ in labels, pattern, hubs and the
    names of queries it hears the same, keeps the same and brings back the same."""
    system = tmp_path / "mine.toml"
    system.write_text('[state]\nsystem = "substrate"\nembedding = "deterministic-64"\n', encoding="utf-8")
    twin = key()
    twin["pattern"] = "thread_drift"
    twin["entities"][0]["is_hub"] = False
    for n, event in enumerate(event for event in twin["events"] if event["kind"] == "query"):
        event["query_id"] = f"private-{n}"
        event["expected"] = {"relevant_external_ids": ["canary-ada"], "irrelevant_external_ids": ["canary-hid:derived"]}
    heard: list[list[Any]] = []
    for method in ("begin_life", "live", "restart", "query"):
        monkeypatch.setattr(EmbeddedSubstrate, method, _listening(getattr(EmbeddedSubstrate, method), heard))
    kept, brought_back = [], []
    for name, life in (("here", key()), ("there", twin)):
        heard.append([])
        trials = build(tmp_path / f"{name}.json", fixture(tmp_path / f"{name}-fixture.json", life))
        assert stage(trials, "replay", str(system))["done"] == 1
        kept += [dump(path) for path in trials.with_suffix(".stores").rglob("*.sqlite")]
        brought_back.append([(r["body"]["items"], r["body"]["raw"]) for r in records(trials, "retrieval")])
    assert heard[0] == heard[1]
    assert Counter(call[0] for call in heard[0]) == {"begin_life": 1, "live": 5, "restart": 1, "query": 3 + 2}
    assert not [word for word in (*ASKED["canary-key"], "private-", "thread_drift", "is_hub") if word in repr(heard)]
    assert len(kept) == 2
    assert kept[0] == kept[1]
    assert brought_back[0] == brought_back[1]
    assert [len(items) for items, _ in brought_back[0]] != [0, 0, 0]


def _listening(method: Any, heard: list[list[Any]]) -> Any:
    """The method, whose arguments are kept but for the random names of state and user."""

    def listening(self: EmbeddedSubstrate, namespace: str, *args: Any) -> Any:
        heard[-1].append((method.__name__, *(args[1:] if method.__name__ == "begin_life" else args)))
        return method(self, namespace, *args)

    return listening


def test_lives_without_their_vectors_fail_before_anything_is_created(built: Path):
    finished = ended(call_cli("replay", DECLARED, "--trials", str(built)), 2)
    assert "memtrials embeddings generate" in finished.err
    assert "EMBED_FILE" in finished.err
    assert {r["kind"] for r in records(built)} == {"task"}
    assert not (built.parent / "trials.stores").exists()


def test_lives_take_their_vectors_from_the_store_that_is_named(built: Path):
    texts = {text for s in read(built.parent / "fixture.json").scenarios for text in embedded_texts(s)}
    store = built.parent / "store.json"
    for kept, code in ((texts - {JAR, WHERE}, 2), (texts, 0)):
        vectors = {text: [float(x) for x in hashed_vector(text, 16)] for text in kept}
        entries = [
            {"text_sha256": text_key(text), "text": text, "embedding": vectors[text]}
            for text in sorted(vectors, key=text_key)
        ]
        header = {"schema_version": 2, "model": "hashed", "vector_size": 16, "dimension_policy": "", "source": "test"}
        store.write_text(json.dumps({**header, "entries": entries}), encoding="utf-8")
        env = {"EMBED_FILE": str(store)}
        finished = ended(call_cli("replay", DECLARED, "--trials", str(built), env=env), code)
        missing = [text for text in (JAR, WHERE) if text in finished.err]
        assert missing == [JAR, WHERE][: code and 2]
        assert len(records(built, "ingest")) == (0 if code else 2)
    assert "canary-jar" in names(built, THEN)
    assert "canary-hid" not in names(built, AT_LAST)


def test_each_store_makes_a_system_of_its_own(built: Path):
    """Vectors of two models are never in one row."""
    texts = {text for s in read(built.parent / "fixture.json").scenarios for text in embedded_texts(s)}
    for model in ("one", "other"):
        vectors = {text: hashed_vector(text if model == "one" else text[::-1] or "-", 16) for text in texts}
        store = built.parent / f"{model}.json"
        write_store(store_of(model, "", "test", vectors), store)
        ended(call_cli("replay", DECLARED, "--trials", str(built), env={"EMBED_FILE": str(store)}))
    ingests = records(built, "ingest")
    assert len(ingests) == 4
    assert (
        len({(r["system"], r["body"]["declared"]["model"]) for r in ingests})
        == len({r["system"] for r in ingests})
        == 2
    )


def test_an_ingest_does_not_tell_which_systems_stood_beside_it_on_the_command_line(built: Path):
    texts = {text for s in read(built.parent / "fixture.json").scenarios for text in embedded_texts(s)}
    store = built.parent / "store.json"
    write_store(store_of("hashed", "", "test", {text: hashed_vector(text, 16) for text in texts}), store)
    env = {"EMBED_FILE": str(store)}
    ended(call_cli("replay", "substrate", DECLARED, "--trials", str(built), env=env))
    declared = {r["system"].rpartition("-")[0]: r["body"].get("declared", {}) for r in records(built, "ingest")}
    assert declared["substrate"] == {}
    assert declared[DECLARED]["model"] == "hashed"


def test_the_catalogue_is_known_by_its_bytes(tmp_path: Path):
    own = evaluation() / "continuity" / "catalogue.json"
    other = tmp_path / "catalogue.json"
    other.write_bytes(own.read_bytes().replace(b"20260712", b"20260713", 1))
    finished = ended(call_cli("build", "continuity", "--data", str(other), "--trials", str(tmp_path / "t.json")), 2)
    assert "--allow-modified" in finished.err
    outcome = stage(tmp_path / "t.json", "build", "continuity", "--data", str(own.parent))
    assert (outcome["benchmark"], outcome["tasks"]) == ("continuity@catalogue", 17)
