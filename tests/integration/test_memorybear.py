"""The stages on a MemoryBear service: one on loopback, with the faults that such services are known for."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memtrials import benchmarks, systems
from memtrials.benchmarks.timeline import Session, Turn
from memtrials.index import LedgerIndex
from memtrials.ledger import Ledger
from memtrials.settings import Settings, evaluation
from memtrials.systems.base import Surroundings
from memtrials.systems.memorybear import MemoryBear, messages_of
from support.canary import CanaryCopy, canary_copy, locomo_copy, longmemeval_copy
from support.cli import call_cli, environment
from support.learning_system import HELD
from support.memorybear_service import (
    CREATE,
    DROPPED,
    HEARD_AND_DROPPED,
    KEY,
    READ_INTERNAL,
    READ_SYNC,
    STATUS,
    WRITE,
    WRITE_SYNC,
    Asked,
    MemoryBearService,
    Reply,
    envelope,
    failing,
    invalid,
    limited,
)
from support.model_server import ModelServer, raw
from support.trials import ended, records, stage

BENCHMARKS = {name: evaluation() / "samples" / name for name in ("inmind", "longmemeval", "locomo")}
"""Benchmarks that run here from end to end, and their bundled samples."""

SESSIONS = 12
"""Of each task of the InMind sample."""

RESET = {"X-RateLimit-Reset": "1796083200"}
"""Midnight after 30 November 2026."""


@pytest.fixture
def service() -> Iterator[MemoryBearService]:
    with MemoryBearService() as server:
        yield server


def replay(trials: Path, service: MemoryBearService, *more: str, code: int = 0, **variables: str) -> dict[str, Any]:
    """Feed the first task."""
    arguments = ("replay", "memorybear", *([] if "--limit" in more else ["--limit", "1"]), *more)
    return stage(trials, *arguments, code=code, env=service.environment(**variables))


def fetch(trials: Path, service: MemoryBearService, *more: str, code: int = 0, **variables: str) -> dict[str, Any]:
    return stage(trials, "fetch", *more, code=code, env=service.environment(**variables))


def body(trials: Path, kind: str) -> dict[str, Any]:
    """The body of the last record of a kind."""
    found = records(trials, kind)[-1]["body"]
    assert isinstance(found, dict)
    return found


def timeline(trials: Path) -> list[list[dict[str, str]]]:
    """What is written of the first task, session by session."""
    index = LedgerIndex(Ledger.open(trials))
    name, task = next(iter(index.tasks))
    sessions = benchmarks.find(name).sessions(BENCHMARKS["inmind"], name, task, index.task(name, task))
    return [messages_of(session, None) for session in sessions]


def steps(trials: Path) -> list[tuple[int, str]]:
    return [(record["body"]["session"], record["body"]["state"]) for record in records(trials, "step")]


# From end to end


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_all_stages_run_and_a_second_time_nothing_is_left(benchmark: str, tmp_path: Path, service: MemoryBearService):
    trials, env = tmp_path / "trials.json", service.environment()
    stage(trials, "build", benchmark, "--data", str(BENCHMARKS[benchmark]))
    for name, *more in (["replay", "memorybear"], ["fetch"], ["answer"], ["judge"]):
        stage(trials, name, *more, env=env)
    asked = len(service.asked)
    queries = sum(len(task["body"]["queries"]) for task in records(trials, "task"))
    assert len(records(trials, "retrieval")) == len(records(trials, "answer")) == queries
    for name, *more in (["replay", "memorybear"], ["fetch"], ["answer"], ["judge"]):
        assert stage(trials, name, *more, env=env)["appended"] == 0
    assert len(service.asked) == asked
    assert ended(call_cli("metrics", "--trials", str(trials))).out


def test_three_trials_of_each_question(built: Path, service: MemoryBearService):
    replay(built, service, "--limit", "2")
    assert fetch(built, service, "--limit", "2", "--repeat", "3")["done"] == 12
    counts = Counter((r["task"], r["query"]) for r in records(built, "retrieval"))
    assert set(counts.values()) == {3}
    assert fetch(built, service, "--limit", "2", "--repeat", "3")["appended"] == 0


def test_every_session_goes_out_once_in_order_with_its_own_time(built: Path, service: MemoryBearService):
    replay(built, service)
    assert [asked.headers["x-language-type"] for asked in service.to(WRITE_SYNC)] == ["en"] * SESSIONS
    assert [write["messages"] for write in service.writes] == timeline(built)
    assert service.writes[0]["messages"][0]["dialog_at"] == "2024-03-02T10:15:00Z"
    assert steps(built) == [(n, state) for n in range(SESSIONS) for state in ("sent", "acknowledged")]
    ingest = body(built, "ingest")
    assert ingest["stores"] == [{"id": next(iter(service.stored))}]
    assert ingest["effort"]["seconds"] > 0


def test_no_name_that_the_service_sees_tells_the_task(built: Path, service: MemoryBearService):
    replay(built, service, "--limit", "3")
    names = [asked.body["other_id"] for asked in service.to(CREATE)]
    assert len(set(names)) == 3
    assert all(len(name) == 16 and set(name) <= set("0123456789abcdef") for name in names)
    assert [set(asked.body) for asked in service.to(CREATE)] == [{"other_id"}] * 3


def test_a_retrieval_holds_the_whole_reply_and_the_time_of_the_attempt_that_succeeded(
    built: Path, service: MemoryBearService
):
    replay(built, service)
    service.fault(READ_SYNC, failing(503, 10003), replace(failing(500, 10001), after=0.3))
    fetch(built, service, "--task", records(built, "ingest")[0]["task"] + "/query")
    found = body(built, "retrieval")
    (read,) = json.loads(found["raw"])
    items = read["response"]["data"]["intermediate_outputs"]
    assert read["response"]["code"] == 0
    assert [item["text"] for item in found["items"]] == [item["content"] for item in items]
    assert found["context"] == "\n\n".join(item["content"] for item in items)
    assert found["items"][0]["score"] == 1.0
    effort = found["effort"]
    assert effort["attempts"] == 3
    assert effort["seconds"] < 0.3 < effort["waited_seconds"]


# Speakers


def system_at(service: MemoryBearService, cache: Path, **variables: str) -> MemoryBear:
    settings = Settings((("environment", service.environment(**variables)),))
    return MemoryBear("", Surroundings(cache, cache, settings))


TALK = Session(
    (
        Turn("user", "I adopted a dog named Bo.", None, "Caroline"),
        Turn("assistant", "My cat would hide.", None, "Melanie"),
    ),
    "1:56 pm on 8 May, 2023",
)


def asked_of_both(system: MemoryBear, user: str = "f00d", **more: str) -> Any:
    stores = system.begin("n", user, ("Caroline", "Melanie"))
    for store in stores:
        assert system.send("n", store, TALK) is None
    system.freeze("n")
    plugin = systems.plugin("memorybear")
    settings = systems.fetch_settings(plugin, {}, Settings((("environment", more),)))
    found = system.query("n", "Who adopted a dog?", None, settings)
    system.close()
    return found


def test_each_speaker_has_a_store_and_both_are_asked(service: MemoryBearService, tmp_path: Path):
    service.descriptions["Bo"] = "[2023-05-08T13:56:00Z] the user adopted Bo"
    found = asked_of_both(system_at(service, tmp_path))
    assert list(service.users) == ["f00d-0", "f00d-1"]
    roles = [[(m["role"], m["content"].split(":")[0]) for m in write["messages"]] for write in service.writes]
    assert roles == [
        [("user", "Caroline"), ("assistant", "Melanie")],
        [("assistant", "Caroline"), ("user", "Melanie")],
    ]
    one, other = found.context.split("================= MEMORY STORE: Melanie =================")
    assert one.startswith("================= MEMORY STORE: Caroline =================\n(")
    assert "- [2023-05-08T13:56:00Z] Caroline adopted Bo" in one
    assert "- [2023-05-08T13:56:00Z] Melanie adopted Bo" in other
    assert [read["label"] for read in json.loads(found.raw)] == ["Caroline", "Melanie"]
    assert found.answer is None


def test_reranking_keeps_pinned_items_and_asks_once_for_the_same(service: MemoryBearService, tmp_path: Path):
    ranking = {"output": {"results": [{"index": 0, "relevance_score": 0.1}, {"index": 1, "relevance_score": 0.9}]}}
    with ModelServer(lambda number, sent: raw(json.dumps(ranking).encode())) as model:
        model.paths = ("/rerank",)
        more = {"RERANK_ENABLED": "1", "RERANK_TOP_N": "1", "RERANK_API_KEY": "sk-rerank-0123456789"}
        more["RERANK_URL"] = f"{model.url.removesuffix('/v1')}/rerank"
        first = asked_of_both(system_at(service, tmp_path, **more), **more)
        sent = [request.body for request in model.requests]
        again = asked_of_both(system_at(service, tmp_path, **more), "beef", **more)
        assert len(model.requests) == len(sent)
    assert len(sent) in (1, 2)  # both stores hold the same, and the second to ask may find it in the cache
    assert sent[0]["model"] == "gte-rerank-v2"
    assert sent[0]["parameters"] == {"return_documents": False, "top_n": 1}
    assert sent[0]["input"]["documents"] == ["Caroline: I adopted a dog named Bo.", "Melanie: My cat would hide."]
    kept = [[item["score"] for item in read["reranked"]] for read in json.loads(first.raw)]
    assert [len(scores) for scores in kept] == [2, 2]
    assert all(scores[0] == 1 for scores in kept)
    assert "adopted a dog" not in first.context
    assert again.context == first.context
    assert (first.effort.cache_hits, again.effort.cache_hits) == (2 - len(sent), 2)
    assert again.effort.charged_seconds > again.effort.seconds


# What it answers by itself


def test_with_a_summarising_switch_its_own_answer_is_kept_apart_from_the_items(built: Path, service: MemoryBearService):
    replay(built, service)
    fetch(built, service, "--limit", "1", MEMORY_SEARCH_SWITCH="0")
    found = body(built, "retrieval")
    assert found["answer"].startswith("In short: ")
    assert "In short: " not in found["context"]


def test_with_the_quick_switch_it_has_no_answer_of_its_own(built: Path, service: MemoryBearService):
    replay(built, service)
    fetch(built, service, "--limit", "1")
    assert "answer" not in body(built, "retrieval")
    assert stage(built, "answer", "--reader", "system", code=1)["failed"] == 2
    failure = records(built, "failure")[-1]
    assert (failure["class"], failure["body"]["cause"]) == ("content", "system")
    assert records(built, "answer") == []


def test_the_reader_system_records_what_the_system_said(built: Path, service: MemoryBearService):
    replay(built, service)
    fetch(built, service, "--limit", "1", MEMORY_SEARCH_SWITCH="0")
    stage(built, "replay", "bm25", "--limit", "1")
    stage(built, "fetch", "bm25", "--limit", "1")
    told = stage(built, "answer", "--reader", "system")
    assert told["done"] == 2
    assert any("bm25" in note and "2 left alone" in note for note in told["notes"])
    said = {r["query"]: r["body"]["answer"] for r in records(built, "retrieval") if "answer" in r["body"]}
    assert {r["query"]: r["body"]["text"] for r in records(built, "answer")} == said
    assert {r["reader"].rpartition("-")[0] for r in records(built, "answer")} == {"system"}
    assert stage(built, "answer", "--reader", "system")["appended"] == 0


# Killed and gone on with


def killed_at(trials: Path, service: MemoryBearService, path: str, number: int, *, done: bool, **more: str) -> None:
    """Replay in a process of its own, killed at its so-manieth request to a path, before or after that is done."""
    children: list[subprocess.Popen[bytes]] = []

    def kill(asked: Asked) -> Reply:
        os.kill(children[0].pid, signal.SIGKILL)
        children[0].wait()
        return HEARD_AND_DROPPED if done else DROPPED

    service.fault(path, *[lambda asked: None] * (number - 1), kill)
    command = [sys.executable, "-m", "memtrials", "replay", "memorybear", "--limit", "1", "--trials", str(trials)]
    children.append(subprocess.Popen(command, env=environment(service.environment(**more)), start_new_session=True))
    assert children[0].wait() == -signal.SIGKILL


def assert_whole(trials: Path, service: MemoryBearService) -> None:
    """The state that counts holds every session once, in order; no store holds one twice."""
    for calls in service.calls.values():
        said = [json.dumps(messages) for messages in calls]
        assert len(said) == len(set(said))
    (ingest,) = records(trials, "ingest")
    assert service.calls[ingest["body"]["stores"][0]["id"]] == timeline(trials)


@pytest.mark.parametrize("done", [True, False], ids=["heard", "not heard"])
def test_what_was_sent_and_never_arrived_is_not_sent_to_the_same_store_again(
    done: bool, built: Path, service: MemoryBearService
):
    killed_at(built, service, WRITE_SYNC, 5, done=done)
    assert steps(built)[-1] == (4, "sent")
    outcome = call_cli("replay", "memorybear", "--limit", "1", "--trials", str(built), env=service.environment())
    assert outcome.code == 0
    assert "session 4 was sent, and nobody knows whether it arrived" in outcome.err
    assert "4 writes that had arrived are made again" in outcome.err
    assert len(service.calls) == 2
    assert_whole(built, service)


def test_a_queued_write_is_asked_for_and_gone_on_from(built: Path, service: MemoryBearService):
    queued = {"MEMORY_WRITE_PATH": WRITE}
    service.pending_polls = 1
    killed_at(built, service, STATUS, 5, done=True, **queued)
    assert steps(built)[-1] == (2, "sent")
    replay(built, service, **queued)
    assert len(service.calls) == 1
    assert len(service.writes) == SESSIONS
    assert_whole(built, service)
    assert "effort" not in body(built, "ingest")  # no run saw the third session arrive


def test_what_was_refused_is_sent_again_to_the_same_store(built: Path, service: MemoryBearService):
    service.fault(WRITE_SYNC, *[lambda asked: None] * 4, *[failing(503, 10003)] * 2)
    failed = replay(built, service, "--max-retries", "2", code=1)
    assert failed["failed"] == 1
    assert steps(built)[-1] == (4, "refused")
    replay(built, service)
    assert len(service.calls) == 1
    assert len(service.writes) == SESSIONS + 2
    assert_whole(built, service)


def test_a_write_that_may_have_been_heard_is_not_repeated(built: Path, service: MemoryBearService):
    service.fault(WRITE_SYNC, HEARD_AND_DROPPED)
    assert replay(built, service, code=1)["failed"] == 1
    assert len(service.writes) == 1
    replay(built, service)
    assert len(service.calls) == 2
    assert_whole(built, service)


def test_a_state_that_was_voided_is_begun_anew(built: Path, service: MemoryBearService):
    replay(built, service)
    stage(built, "void", "--kind", "ingest", "--reason", "wiped")
    replay(built, service)
    assert [len(calls) for calls in service.calls.values()] == [SESSIONS, SESSIONS]


def test_a_state_that_the_service_forgot_is_begun_anew(built: Path, service: MemoryBearService):
    service.fault(WRITE_SYNC, *[lambda asked: None] * 4, *[failing(503, 10003)] * 1)
    replay(built, service, "--max-retries", "1", code=1)
    service.users.clear()
    again = call_cli("replay", "memorybear", "--limit", "1", "--trials", str(built), env=service.environment())
    assert again.code == 0
    assert "doesn't know the state any more" in again.err
    assert_whole(built, service)


def test_an_interrupted_fetch_goes_on_with_what_is_missing(built: Path, service: MemoryBearService):
    replay(built, service, "--limit", "3")
    service.fault(READ_SYNC, *[lambda asked: None] * 2, failing(429, 3015, "limit", RESET))
    stopped = fetch(built, service, "--limit", "3", code=1)
    assert (stopped["done"], stopped["failed"], stopped["left"]) == (2, 0, 4)
    assert "run again after 2026-12-01 00:00:00 UTC" in stopped["notes"][-1]
    assert len(service.reads) == 3
    assert fetch(built, service, "--limit", "3")["done"] == 4
    assert len(service.reads) == 7


# What goes wrong


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (failing(401, 3009, "key expired"), "key expired"),
        (invalid(402, "QUOTA_EXCEEDED", "no end users left"), "no end users left"),
        (invalid(422, "VALIDATION_FAILED", "messages missing"), "messages missing"),
        (failing(200, 10001, "memory config not found"), "memory config not found"),
    ],
    ids=["401", "402", "422", "200"],
)
def test_what_every_session_would_meet_ends_replay_after_one_request(
    reply: Reply, told: str, built: Path, service: MemoryBearService
):
    service.fault(WRITE_SYNC, reply)
    assert told in replay(built, service, "--limit", "2", code=2)["error"]
    assert len(service.writes) == 1


def test_an_unknown_end_user_ends_fetch_and_names_no_key(built: Path, service: MemoryBearService):
    replay(built, service)
    service.users.clear()
    stopped = fetch(built, service, "--limit", "1", code=2)
    assert "the end user is unknown to the service" in stopped["error"]
    assert len(service.reads) == 1


@pytest.mark.parametrize(
    "reply",
    [
        failing(500, 10001),
        failing(503, 10003),
        Reply(200, b"<html>"),
        Reply(200, {"data": {"answer": "", "intermediate_outputs": []}}),
        Reply(200, envelope(0)),
        Reply(200, envelope(0, {"answer": None, "intermediate_outputs": []})),
        Reply(200, envelope(0, {"answer": "cut"})),
        DROPPED,
    ],
    ids=["500", "503", "no JSON", "no code", "no data", "no answer", "no items", "dropped"],
)
def test_a_read_that_may_pass_is_tried_again_and_never_an_empty_memory(
    reply: Reply, built: Path, service: MemoryBearService
):
    replay(built, service)
    service.fault(READ_SYNC, reply, reply)
    failed = fetch(built, service, "--limit", "1", "--max-retries", "2", code=1)
    assert (failed["done"], failed["failed"]) == (1, 1)
    assert records(built, "failure")[-1]["class"] == "transient"
    assert fetch(built, service, "--limit", "1")["done"] == 1
    assert all(len(r["body"]["items"]) > 1 for r in records(built, "retrieval"))


@pytest.mark.parametrize("score", [float("nan"), float("inf"), 10**400], ids=["NaN", "Infinity", "10^400"])
def test_a_score_that_is_no_number_is_none(score: Any, built: Path, service: MemoryBearService):
    """The item is there all the same, and the stage goes on."""
    replay(built, service)
    items = [{"source": "s", "id": "1", "content": "a", "score": score}]
    service.fault(READ_SYNC, Reply(200, envelope(0, data={"answer": "x", "intermediate_outputs": items}), undone=False))
    fetch(built, service, "--limit", "1")
    (item,) = records(built, "retrieval")[0]["body"]["items"]
    assert (item["text"], item["score"]) == ("a", 0.0)


def test_both_stores_of_a_question_may_fail(tmp_path: Path, service: MemoryBearService):
    """One failure for the question, and no word of the other beside it."""
    trials = tmp_path / "trials.json"
    stage(trials, "build", "locomo", "--data", str(BENCHMARKS["locomo"]))
    replay(trials, service)
    for later in (0.02, 0.3):
        service.fault(READ_SYNC, failing(500, 10001), replace(failing(500, 10001), after=later))
        env = service.environment()
        asked = ("fetch", "--limit", "1", "--max-retries", "1", "--trials", str(trials))
        finished = ended(call_cli(*asked, env=env), 1)
        assert "exception" not in finished.err
        assert "Traceback" not in finished.err


def test_an_interrupt_wakes_what_waits_for_a_service(built: Path, service: MemoryBearService):
    """Here for a limit that is lifted after most of a minute, and for the pauses between tries."""
    replay(built, service)
    for fault in (limited(3014, 50), *[failing(500, 10001)] * 2):
        service.fault(READ_SYNC, *[fault] * 50)
        command = [sys.executable, "-m", "memtrials", "fetch", "--workers", "8", "--trials", str(built)]
        env = environment(service.environment(SERVICE_MAX_RETRIES="40"))
        before = len(service.reads)
        child = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True)
        while len(service.reads) == before:
            assert child.poll() is None
            time.sleep(0.02)
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        _, told = child.communicate(timeout=10)
        assert child.returncode == 130
        assert "Traceback" not in told


def test_a_slow_reply_is_no_reply(built: Path, service: MemoryBearService):
    replay(built, service)
    service.fault(READ_SYNC, replace(failing(500, 10001), after=1.5))
    fetch(built, service, "--limit", "1", "--timeout", "1", "--max-retries", "2")
    assert sum(r["body"]["effort"].get("attempts", 1) for r in records(built, "retrieval")) == 3


def test_after_the_seconds_limit_nothing_goes_out_for_a_second(built: Path, service: MemoryBearService):
    replay(built, service)
    service.fault(READ_SYNC, limited(3014, 0))
    fetch(built, service, "--limit", "1")
    assert max(r["body"]["effort"].get("waited_seconds", 0) for r in records(built, "retrieval")) >= 1.0


def test_a_day_without_requests_left_is_not_asked_more_of(built: Path, service: MemoryBearService):
    service.headers = {"X-RateLimit-Remaining-Day": "0"}
    stopped = replay(built, service, code=1)
    assert (stopped["left"], len(service.asked)) == (1, 1)


def test_a_write_that_stays_queued_fails_at_its_deadline(built: Path, service: MemoryBearService):
    service.pending_polls = 1000
    failed = replay(built, service, code=1, MEMORY_WRITE_PATH=WRITE, MEMORY_WRITE_DEADLINE="1")
    assert failed["failed"] == 1
    assert "isn't finished after 1 s" in records(built, "failure")[0]["body"]["message"]


def test_a_queued_write_without_a_result_has_failed(built: Path, service: MemoryBearService):
    service.fault(STATUS, Reply(200, envelope(0, {"result": None, "task_id": "t"})))
    assert replay(built, service, code=1, MEMORY_WRITE_PATH=WRITE)["failed"] == 1
    assert "ended without a result" in records(built, "failure")[0]["body"]["message"]


def test_the_later_generation_is_asked_for_messages_that_wait(tmp_path: Path, built: Path):
    with MemoryBearService("B") as service:
        service.pending_polls = 1
        replay(built, service, MEMORY_WRITE_PATH=WRITE)
        assert [len(calls) for calls in service.calls.values()] == [SESSIONS]
        assert {asked.body["search_switch"] for asked in service.to(READ_SYNC)} == {"3"}
        fetch(built, service, "--limit", "1", "--k", "4", MEMORY_READ_PATH=READ_INTERNAL)
        assert [asked.body["limit"] for asked in service.to(READ_INTERNAL)] == [4, 4]
        assert all(len(r["body"]["items"]) == 5 for r in records(built, "retrieval"))


def test_the_wrong_generations_path_is_named(built: Path):
    with MemoryBearService("B") as service:
        assert WRITE_SYNC in replay(built, service, code=2)["error"]


def test_a_limit_that_is_not_heeded_ends_fetch(built: Path, service: MemoryBearService):
    replay(built, service)
    assert "heeds no limit" in fetch(built, service, "--limit", "1", "--k", "4", code=2)["error"]
    assert records(built, "retrieval") == []


def test_the_key_is_nowhere_but_in_requests(built: Path, service: MemoryBearService):
    replay(built, service)
    service.fault(READ_SYNC, failing(401, 3009, f"no such key: {KEY}"))
    done = call_cli("fetch", "--limit", "1", "--trials", str(built), env=service.environment())
    assert done.code == 2
    assert "no such key: ***" in done.err
    assert KEY not in done.out + done.err + built.read_text("utf-8")
    for path in built.parent.rglob("*.json"):
        assert KEY not in path.read_text("utf-8")


def test_without_a_service_nothing_is_written(built: Path):
    before = built.read_bytes()
    done = call_cli("replay", "memorybear", "--trials", str(built))
    assert (done.code, "MEMORY_SERVICE_URL" in done.err) == (2, True)
    assert built.read_bytes() == before


# Manifests


def test_a_manifest_that_replay_wrote_is_taken_in_and_asked_elsewhere(
    built: Path, tmp_path: Path, service: MemoryBearService
):
    replay(built, service, "--limit", "2")
    (manifest,) = built.with_suffix(".manifests").glob("*memorybear*.json")
    other = tmp_path / "other" / "trials.json"
    other.parent.mkdir()
    stage(other, "build", "inmind", "--data", str(BENCHMARKS["inmind"]))
    taken = stage(other, "replay", "memorybear", "--manifest", str(manifest))
    assert (taken["done"], len(service.writes)) == (2, 2 * SESSIONS)
    assert "6 states aren't in" in taken["notes"][-1]
    assert {r["body"].get("ids_leaked", False) for r in records(other, "ingest")} == {False}
    assert stage(other, "replay", "memorybear", "--manifest", str(manifest))["appended"] == 0
    fetch(other, service)
    fetch(built, service)
    here, there = (
        [(r["task"], r["query"], r["body"]["context"]) for r in records(trials, "retrieval")]
        for trials in (built, other)
    )
    assert here == there


def test_a_folder_of_manifests_with_overlaps_resolves_as_specified(
    built: Path, tmp_path: Path, service: MemoryBearService
):
    tasks = [task["task"] for task in records(built, "task")]
    first, second, third = (f"00000000-0000-4000-8000-00000000000{n}" for n in "123")

    def case(task: str, user: str, status: str = "ok") -> dict[str, str]:
        return {"case_id": task, "end_user_id": user, "status": status}

    folder = tmp_path / "manifests"
    folder.mkdir()
    for name, at, cases in (
        ("z.json", "2026-06-01T00:00:00Z", [case(tasks[0], first), case(tasks[1], first)]),
        ("a.json", "2026-06-02T00:00:00Z", [case(tasks[0], second), case(tasks[1], second, "failed")]),
        ("b.json", "2026-06-02T12:00:00+10:00", [case("elsewhere", third)]),
    ):
        (folder / name).write_text(json.dumps({"timestamp": at, "cases": cases}), "utf-8")
    taken = stage(built, "replay", "memorybear", "--manifest", str(folder))
    assert taken["done"] == 2
    stores = {r["task"]: [s["id"] for s in r["body"]["stores"]] for r in records(built, "ingest")}
    assert stores == {tasks[0]: [second], tasks[1]: [first]}
    assert all(r["body"]["ids_leaked"] for r in records(built, "ingest"))
    told = " | ".join(taken["notes"])
    assert f"{tasks[0]}: a.json supersedes z.json" in told
    assert f"{tasks[1]}: the later a.json failed, so z.json still holds" in told
    assert "1 cases aren't among the benchmark's tasks and are left out: elsewhere" in told
    assert service.asked == []


def test_a_system_that_is_fed_here_takes_no_manifest(built: Path, tmp_path: Path):
    done = call_cli("replay", "bm25", "--manifest", str(tmp_path), "--trials", str(built))
    assert (done.code, "takes no --manifest" in done.err) == (2, True)


# Before the first run


def test_doctor_asks_one_question_end_to_end(service: MemoryBearService):
    done = ended(call_cli("doctor", "memorybear", env=service.environment()))
    assert "The greenhouse key hangs behind the blue watering can." in done.out
    assert "1 asked for, 4 came" in done.out
    assert "heeds no limit" in done.out
    assert KEY not in done.out
    assert len(service.writes) == 2


def test_doctor_tells_how_far_it_came(service: MemoryBearService):
    service.fault(WRITE_SYNC, failing(200, 10001, "memory config not found"))
    done = call_cli("doctor", "memorybear", env=service.environment())
    assert done.code == 2
    assert "end user" in done.out
    assert "memory config not found" in done.out


def test_doctor_needs_a_system_with_a_service():
    done = call_cli("doctor", "bm25")
    assert (done.code, "needs no service" in done.err) == (2, True)


# What it is told


def told(benchmark: str, copy: CanaryCopy, folder: Path) -> tuple[list[Asked], list[str]]:
    """All requests of a run on a copy of the sample, and the contexts that came of it."""
    folder.mkdir()
    trials = folder / "trials.json"
    data = copy.folder if benchmark == "inmind" else next(copy.folder.glob("*.json"))
    stage(trials, "build", benchmark, "--data", str(data), "--allow-modified")
    with MemoryBearService() as service:
        stage(trials, "replay", "memorybear", env=service.environment())
        fetch(trials, service)
        return service.asked, [r["body"]["context"] for r in records(trials, "retrieval")]


COPIES = {"inmind": canary_copy, "longmemeval": longmemeval_copy, "locomo": locomo_copy}
STORES = {"inmind": 1, "longmemeval": 1, "locomo": 2}
"""Of each task: on LoCoMo one for each speaker."""


@pytest.mark.parametrize("benchmark", COPIES)
def test_nothing_private_is_told_and_twins_are_told_the_same(benchmark: str, tmp_path: Path):
    copies = [COPIES[benchmark](tmp_path / seed, seed) for seed in ("here", "there")]
    (here, contexts), (there, others) = (told(benchmark, c, tmp_path / f"run{n}") for n, c in enumerate(copies))
    assert sum(asked.path == READ_SYNC for asked in here) == STORES[benchmark] * len(contexts) > 0
    for asked in here:
        assert not copies[0].leaks(asked)
        asked_for = copies[0].queries_in(asked)
        assert asked_for == ({asked.body["message"]} if asked.path == READ_SYNC else set())

    def plain(asked: Asked) -> tuple[str, dict[str, Any]]:
        return asked.path, {k: v for k, v in asked.body.items() if k not in ("other_id", "end_user_id")}

    assert list(map(plain, here)) == list(map(plain, there))
    assert contexts == others


# Systems that learn when they are asked


@pytest.fixture
def learning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(systems.BUILT_IN, "learning", "support.learning_system")
    HELD.clear()
    toml = tmp_path / "learning.toml"
    toml.write_text('[state]\nsystem = "learning"\n', "utf-8")
    return str(toml)


def test_queries_that_share_a_state_are_marked_and_stand_in_another_cell(built: Path, learning: str):
    stage(built, "replay", learning, "--limit", "1")
    stage(built, "fetch", "--limit", "1")
    shared = records(built, "retrieval")
    assert [r["body"]["protocol"] for r in shared] == ["state shared"] * 2
    assert shared[1]["body"]["context"].count("asked: ") == 2
    stage(built, "replay", learning, "--limit", "1", "--state-per-query")
    stage(built, "fetch", "--limit", "1", "--force")
    alone = records(built, "retrieval")[2:]
    assert [r["body"]["context"].count("asked: ") for r in alone] == [1, 1]
    assert [r["query"] for r in alone] == ["naive_query", "query"]
    assert not any("protocol" in r["body"] for r in alone)
    assert {r["fetch"] for r in shared}.isdisjoint(r["fetch"] for r in alone)
    assert [r.get("query") for r in records(built, "ingest")] == [None, "naive_query", "query"]
    tables = ended(call_cli("metrics", "--trials", str(built))).out
    assert len([line for line in tables.splitlines() if "protocol = state shared" in line]) >= 1


def test_a_system_without_stores_has_steps_too(built: Path, learning: str):
    stage(built, "replay", learning, "--limit", "1")
    assert steps(built) == [(n, state) for n in range(SESSIONS) for state in ("sent", "acknowledged")]
    assert "store" not in body(built, "step")
