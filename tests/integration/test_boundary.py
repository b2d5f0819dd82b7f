"""What systems and readers are told: sessions, one query at a time, a context. Never gold, ids, types or other queries.

Proof by canary: all stages up to answer run on a copy of the sample whose private fields are unique tokens, with every
system, the offline reader and a model. Spies stand at every boundary, and no token may be in anything that crossed.
Twin: a second copy differs in private fields alone, and everything that crossed is the same. The controls in-context
and naive-rag come through the gold door: a query's gold is handed to them, and to no other system.
"""

import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import memtrials.systems as all_systems
from memtrials.benchmarks.timeline import Session, Turn
from memtrials.stages import fetch as fetch_stage
from support.boundary import Crossed, spy_on, without_names
from support.canary import CanaryCopy, canary_copy
from support.model_server import ModelServer, always, ok
from support.trials import files, records, stage

SYSTEMS = [
    name for name in all_systems.names() if not (name.startswith("substrate-") or all_systems.load(name).plugin.at_once)
]
"""Systems on this machine, each as it is without variants; what a service is told stands in its requests, and its own
tests look at those."""

GOLD_DOOR = ("in-context", "naive-rag")
TELLING = (b"inmind", b"naive_query", b"lme_s_background", b"target", b"evidence", b"gold")
"""Words of our own that would tell a system or reader where it is."""


def run_all(copy: CanaryCopy, folder: Path) -> Crossed:
    """Build, replay, fetch with every system, answer offline and by a model; then one metric by a model judge."""
    folder.mkdir()
    crossed = Crossed(copy, folder / "trials.json", folder.with_name(f"{folder.name}-cache"))
    env = {"MEMTRIALS_CACHE": str(crossed.cache)}
    with pytest.MonkeyPatch.context() as patch, ModelServer(always(ok("Noted."))) as server:
        spy_on(crossed, patch)
        env |= server.environment()
        stage(crossed.trials, "build", "inmind", "--data", str(copy.folder), "--allow-modified")
        stage(crossed.trials, "replay", *SYSTEMS, env=env)
        stage(crossed.trials, "fetch", env=env)
        stage(crossed.trials, "answer", env=env)
        stage(crossed.trials, "answer", "--reader", "model-a", "--force", "--workers", "1", env=env)
        crossed.requests = server.requests[:]
        del server.requests[:]
        server.script = always(ok('{"score": 0}'))
        stage(crossed.trials, "judge", "--judge", "model-j", "--metric", "application", env=env)
        crossed.to_judge = server.requests[:]
    return crossed


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Crossed:
    """The run on the canary copy."""
    folder = tmp_path_factory.mktemp("canary")
    return run_all(canary_copy(folder / "data", "here"), folder / "run")


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Crossed:
    """The run on its twin."""
    folder = tmp_path_factory.mktemp("twin")
    return run_all(canary_copy(folder / "data", "there"), folder / "run")


# --- the proof is a proof ---------------------------------------------------------------------------------------


def test_the_run_met_every_system_and_reader(here: Crossed) -> None:
    systems = set(SYSTEMS)
    assert {c.system for c in here.calls} == systems
    assert systems >= {"bm25", "vector", "hybrid", "none", "full-context", "always-visible", *GOLD_DOOR}
    trials = len(systems) * 8 * 2
    assert len(here.records("retrieval")) == len(here.asked) == len(here.requests) == trials
    assert Counter(c.method for c in here.calls if "query" in c.method) == {
        "query": trials - 2 * 16,
        "query_with_gold": 2 * 16,
    }
    assert here.embedded


def test_the_canaries_would_be_seen(here: Crossed) -> None:
    """The judge may see explanations, and of every task sees exactly its own."""
    seen = Counter(place for request in here.to_judge for place in here.copy.leaks(request.raw))
    assert seen == {f"explanation of task {n}": len(SYSTEMS) for n in (2, 5, 9, 14, 21, 22, 30, 41)}
    ledger = here.trials.read_bytes()
    assert len(here.copy.leaks(ledger)) > 8 * 3
    assert here.copy.queries_in(ledger) == set(here.copy.queries.values())


def test_every_private_field_has_a_canary_of_its_own(here: Crossed, sample: Path) -> None:
    private = here.copy.private
    of_tasks = ["task_id", "domain", "entity_1", "entity_2", "relation", "explanation"]
    of_tasks += [f"provenance.{n}" for n in ("source_dataset", "source_task_id", "original_task_id")]
    assert {f"{field} of task {n}" for field in of_tasks for n in (2, 5, 9, 14, 21, 22, 30, 41)} <= set(
        private.values()
    )
    assert sum(place.startswith("session id ") for place in private.values()) == 12
    assert not here.copy.leaks(b"".join(files(sample).values()))  # nothing of the sample itself is a token
    assert len(here.copy.queries) == 16


# --- nothing private crosses ------------------------------------------------------------------------------------


def test_no_call_of_a_system_holds_anything_private(here: Crossed) -> None:
    for call in here.calls:
        assert not here.copy.leaks(call.args), call
        told = repr(call.args).encode()
        assert not [word for word in TELLING[:3] if word in told and call.method != "open"], call


def test_only_the_controls_behind_the_gold_door_are_handed_gold(here: Crossed) -> None:
    assert {c.system for c in here.calls if c.gold is not None} == set(GOLD_DOOR)
    by_text = {text: task for task in here.copy.tasks for text in task.queries.values()}
    for call in here.calls:
        if call.gold is not None:
            assert call.gold.details["user_message"] == by_text[call.args[1]].user_message  # its own query's


def test_a_query_is_told_in_its_own_call_and_in_no_other(here: Crossed) -> None:
    asked: Counter[tuple[str, str]] = Counter()
    for call in here.calls:
        queries = here.copy.queries_in(call)
        if call.method.startswith("query"):
            assert queries == {call.args[1]}
            asked[call.system, call.args[1]] += 1
        else:
            assert not queries, call
    assert set(asked) == {(s, q) for s in SYSTEMS for q in here.copy.queries.values()}
    assert set(asked.values()) == {1}


def test_no_text_to_embed_holds_anything_private(here: Crossed) -> None:
    for role, text in here.embedded:
        assert not here.copy.leaks(text)
        assert here.copy.queries_in(text) == ({text} if role == "query" else set())


def test_no_file_of_a_store_or_cache_holds_anything_private(here: Crossed) -> None:
    stored = files(here.trials.with_suffix(".stores"))
    assert len([path for path in stored if path.endswith(".sqlite")]) == 8 * 8  # `none` keeps nothing
    cached = files(here.cache)
    assert "embeddings.sqlite" in cached
    for path, content in {**stored, **cached}.items():
        assert not here.copy.leaks(path.encode() + content), path
        assert not here.copy.queries_in(path.encode() + content), path
        assert not [word for word in TELLING[:3] if word in path.encode() + content], path


def test_file_names_hold_nothing_private(here: Crossed) -> None:
    for path in files(here.trials.parent):
        assert not here.copy.leaks(path)


def test_namespaces_and_users_are_opaque_and_new_for_every_state(here: Crossed) -> None:
    bodies = [ingest["body"] for ingest in here.records("ingest")]
    names = [name for body in bodies for name in (body["namespace"], body["user"])]
    assert len(set(names)) == len(names) == 2 * 8 * len(SYSTEMS)
    assert all(re.fullmatch("[0-9a-f]{16}", name) for name in names)
    stems = {path.stem for path in here.trials.with_suffix(".stores").glob("*/*")}
    assert stems <= {body["namespace"] for body in bodies}


def test_what_systems_are_shown_is_neutral(here: Crossed) -> None:
    """A session is its turns and time, a turn its role, text, time and speaker: the target looks like every other."""
    assert Session.__struct_fields__ == ("turns", "time")
    assert Turn.__struct_fields__ == ("role", "content", "time", "speaker")
    sessions = [call.args[1] for call in here.calls if call.method == "add"]
    assert all(type(session) is Session for session in sessions)
    assert {(turn.role, turn.speaker, turn.time is None) for s in sessions for turn in s.turns} == {
        ("user", None, False),
        ("assistant", None, False),
    }
    for retrieval in here.records("retrieval"):
        for item in retrieval["body"].get("items") or ():
            assert all(re.fullmatch(r"\d{1,2}\.\d{1,2}", turn) for turn in item["turn_ids"])


def test_every_state_holds_its_own_timeline_and_no_other_tasks_target(here: Crossed) -> None:
    fed: dict[str, list[Session]] = defaultdict(list)
    for call in here.calls:
        if call.method == "fork":
            fed[call.args[1]] = fed[call.args[0]][:]
        elif call.method == "add":
            fed[call.args[0]].append(call.args[1])
    message = {task.id: task.user_message for task in here.copy.tasks}
    for ingest in here.records("ingest"):
        sessions = fed[ingest["body"]["namespace"]]
        assert len(sessions) == 12
        shown = {turn.content for session in sessions for turn in session.turns}
        assert {m for m in message.values() if m in shown} == {message[ingest["task"]]}
        assert sessions[4].turns[-2].content == message[ingest["task"]]


# --- readers are blind ------------------------------------------------------------------------------------------


def test_a_reader_is_told_one_question_and_its_own_context(here: Crossed) -> None:
    contexts = Counter((r["body"]["question"], r["body"]["context"]) for r in here.records("retrieval"))
    assert Counter((a.question, a.context) for a in here.asked) == contexts
    for asked in here.asked:
        assert asked.date is None
        assert not here.copy.leaks(asked)
        assert here.copy.queries_in(asked) == {asked.question}
        assert not here.copy.queries_in(asked.context)


def test_no_request_to_a_reader_holds_anything_private(here: Crossed) -> None:
    for request in here.requests:
        everything = request.path.encode() + repr(sorted(request.headers.items())).encode() + request.raw
        assert not here.copy.leaks(everything)
        assert here.copy.queries_in(everything) == {request.user}
        assert not here.copy.queries_in(request.system)
        assert not [word for word in TELLING if word in everything.lower()]
    namespaces = [name for r in here.records("ingest") for name in (r["body"]["namespace"], r["body"]["user"])]
    assert not [name for name in namespaces if any(name.encode() in r.raw for r in here.requests)]


# --- twins ------------------------------------------------------------------------------------------------------


def test_twins_give_the_same_calls_contexts_and_prompts(here: Crossed, there: Crossed) -> None:
    assert not set(here.copy.private) & set(there.copy.private)
    assert here.copy.queries == there.copy.queries
    assert without_names(here.calls) == without_names(there.calls)
    assert here.embedded == there.embedded
    assert here.asked == there.asked
    assert [(r.path, r.raw) for r in here.requests] == [(r.path, r.raw) for r in there.requests]

    def results(run: Crossed) -> Iterator[tuple[Any, ...]]:
        for retrieval in run.records("retrieval"):
            body = retrieval["body"]
            yield retrieval["system"], retrieval["query"], body["question"], body["context"], body.get("items")

    assert list(results(here)) == list(results(there))
    assert [a["body"]["text"] for a in here.records("answer")] == [a["body"]["text"] for a in there.records("answer")]


# --- queries don't mutate ---------------------------------------------------------------------------------------


def test_both_orders_of_the_queries_give_the_same_retrievals(here: Crossed, tmp_path: Path) -> None:
    """The same states are asked again, from the last query to the first."""
    env = {"MEMTRIALS_CACHE": str(tmp_path / "cache")}
    trials = Path(shutil.copytree(here.trials.parent, tmp_path / "again")) / here.trials.name
    states = files(trials.with_suffix(".stores"))
    forwards = fetch_stage.pending

    def backwards(*arguments: Any) -> Any:
        plan = forwards(*arguments)
        plan.work.reverse()
        return plan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetch_stage, "pending", backwards)
        stage(trials, "fetch", "--repeat", "2", env=env)
    found: dict[tuple[str, ...], list[Any]] = defaultdict(list)
    for r in records(trials, "retrieval"):
        found[r["system"], r["task"], r["query"]].append((r["repeat"], r["body"]["context"], r["body"].get("items")))
    order = [(r["system"], r["task"], r["query"]) for r in records(trials, "retrieval")]
    assert order[len(order) // 2 :] == order[: len(order) // 2][::-1]
    for (one, *first), (two, *second) in found.values():
        assert (one, two) == (1, 2)
        assert first == second
    assert files(trials.with_suffix(".stores")) == states
