"""Work handed to a batch service: submitted once whatever is killed, and taken in as what live calls would have made.

The service is on loopback; the ledger is the bundled sample's: 16 trials in each of three systems.
"""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memtrials.index import LedgerIndex
from memtrials.ledger import Ledger
from memtrials.llm import batch as service
from memtrials.llm.money import cost
from memtrials.records import AnswerBody, Call
from memtrials.stages import handover
from support.batch_server import BatchServer
from support.cli import call_cli, environment, run_cli
from support.model_server import KEY, Reply, always, error, ok
from support.trials import answer, ended, files, judge, records, stage

pytestmark = pytest.mark.usefixtures("quick", "key_stays_secret")
ALL = 3 * 16
BM25 = ("--system", "bm25")


@pytest.fixture
def server() -> Iterator[BatchServer]:
    """A service whose model answers everything. Nothing may ever be submitted twice while it is in flight."""
    with BatchServer(always(ok("Use tamari."))) as running:
        yield running


def batch(server: BatchServer, trials: Path, *arguments: str, code: int = 0) -> Any:
    """`memtrials batch …`."""
    finished = ended(call_cli("batch", *arguments, "--trials", str(trials), "--json", env=server.environment()), code)
    return json.loads(finished.out)


def refused(server: BatchServer, trials: Path, *arguments: str) -> str:
    """What `memtrials batch …` says that ends with an error."""
    return ended(call_cli("batch", *arguments, "--trials", str(trials), env=server.environment()), 2).err


def counts(outcome: dict[str, Any]) -> tuple[int, int, int, int, int]:
    """pending, done, failed, left and skipped; the first is the sum of the next three."""
    pending, done, failed, left, skipped = (outcome[n] for n in ("pending", "done", "failed", "left", "skipped"))
    assert pending == done + failed + left
    return pending, done, failed, left, skipped


def most_often(server: BatchServer) -> int:
    """How often the request that was submitted most often was."""
    return max(server.submitted.values())


def index_of(trials: Path) -> LedgerIndex:
    return LedgerIndex(Ledger.open(trials))


def chains(trials: Path) -> list[str]:
    """What the batch records say, in order: `open`, `open batch_1`, `closed completed`."""
    bodies = [r["body"] for r in records(trials, "batch")]
    return [
        " ".join([b["state"], b["provider"].get("status") or b["provider"].get("batch") or ""]).strip() for b in bodies
    ]


# --- handing over and taking in ---------------------------------------------------------------------------------


def test_work_is_handed_over_and_a_later_run_takes_it_in(fetched: Path, server: BatchServer):
    outcome = answer(server, fetched, "--batch", *BM25)
    assert counts(outcome) == (16, 0, 0, 16, 0)
    assert outcome["sent"] == 16
    assert chains(fetched) == ["open", "open batch_1"]
    assert counts(answer(server, fetched, "--batch", *BM25)) == (0, 0, 0, 0, 16)
    server.finish()
    assert counts(answer(server, fetched, *BM25)) == (16, 16, 0, 0, 0)
    assert chains(fetched) == ["open", "open batch_1", "closed completed"]
    assert counts(answer(server, fetched, *BM25)) == (0, 0, 0, 0, 0)
    assert (len(server.submitted), most_often(server), server.requests) == (16, 1, [])
    first, second, last = records(fetched, "batch")
    assert (second["parents"], last["parents"]) == ([first["id"]], [second["id"]])
    assert server.batches["batch_1"]["metadata"] == {"memtrials": first["id"]}
    assert first["body"]["work"] == [[key, 1] for key in dict.fromkeys(r["key"] for r in records(fetched, "answer"))]


def test_a_request_is_the_call_it_stands_for(fetched: Path, server: BatchServer):
    answer(server, fetched, "--batch", *BM25)
    answer(server, fetched, "--repeat", "2", "--limit", "2", *BM25)  # those in flight are left alone
    sent = {line["custom_id"]: line for line in server.requests_of("batch_1")}
    assert {(line["method"], line["url"]) for line in sent.values()} == {("POST", "/v1/chat/completions")}
    live = [json.dumps(request.body, sort_keys=True) for request in server.requests]
    assert len(live) == 4
    assert set(live) <= {json.dumps(line["body"], sort_keys=True) for line in sent.values()}
    assert set(sent) == {f"{key}:{repeat}" for key, repeat in records(fetched, "batch")[0]["body"]["work"]}


UNLIKE = {"attempts", "seconds", "queued_seconds", "workers", "request_id", "batch"}
"""What of a call is measured, or says how it came."""


def called(trials: Path, kind: str) -> dict[tuple[str, int], Any]:
    """What models made of a kind, without what differs from run to run, by name of work."""
    found = {}
    for record in records(trials, kind):
        body = record.pop("body")
        if call := body.pop("call", None):
            body["raw"] = json.loads(body["raw"])
            said = {name: value for name, value in call.items() if name not in UNLIKE}
            header = {name: value for name, value in record.items() if name not in ("id", "at")}
            found[record["key"], record["repeat"]] = (header, body, said)
    return found


@pytest.mark.parametrize("kind", ["answer", "verdict"])
def test_a_result_becomes_the_record_of_a_live_call(answered: Path, server: BatchServer, tmp_path: Path, kind: str):
    live = tmp_path / "live" / "trials.json"
    live.parent.mkdir()
    live.write_bytes(answered.read_bytes())
    if kind == "answer":
        server.script = lambda number, body: ok("<think>Hm.</think>Use tamari.", "length")
        run, arguments, count = answer, ("--force", *BM25), 16
    else:
        server.script = always(ok('It is {"score": 1, "reason": "tamari"}'))
        run, arguments, count = judge, ("--metric", "application", "--metric", "direct-recall", *BM25), 16
    assert run(server, live, *arguments)["done"] == count
    run(server, answered, *arguments, "--batch")
    server.finish()
    assert run(server, answered, *arguments)["done"] == count
    assert called(answered, kind) == called(live, kind)
    calls = [r["body"]["call"] for r in records(answered, kind) if "call" in r["body"]]
    assert all(call["batch"] and call["request_id"].startswith("req_") for call in calls)
    assert len(calls) == count


def test_a_call_in_a_batch_costs_half() -> None:
    """1,000 and 100 tokens of gpt-4o-mini cost 0.00015 and 0.00006 dollars."""
    live = Call(prompt_tokens=1000, completion_tokens=100)
    assert cost(live, "gpt-4o-mini") == pytest.approx(0.00021)
    assert cost(Call(prompt_tokens=1000, completion_tokens=100, batch=True), "gpt-4o-mini") == pytest.approx(0.000105)


def test_parts_of_a_split_are_batches_of_their_own(fetched: Path, server: BatchServer, monkeypatch: pytest.MonkeyPatch):
    """96 requests in files of at most 10: each system's 32 go out in four. Three fail, one batch expires unanswered."""
    monkeypatch.setattr(service, "MAX_REQUESTS", 10)
    failing = iter([error(500), error(400, "content_filter"), ok("")])
    server.script = lambda number, body: next(failing, ok("Use tamari."))
    outcome = answer(server, fetched, "--repeat", "2", "--batch")
    assert counts(outcome) == (96, 0, 0, 96, 0)
    assert [len(server.requests_of(name)) for name in server.batches] == [10, 10, 10, 2] * 3
    server.finish("batch_5", "expired", lambda number: False)
    server.finish()
    first = answer(server, fetched, "--repeat", "2", "--batch", code=1)
    assert counts(first) == (96, 83, 3, 10, 0)
    assert (first["sent"], len(server.batches)) == (10, 13)
    assert sorted((f["class"], f["body"]["cause"]) for f in records(fetched, "failure")) == [
        ("content", "reader"),
        ("content", "reader"),
        ("transient", "service"),
    ]
    server.finish()
    second = answer(server, fetched, "--repeat", "2")
    assert counts(second) == (13, 13, 0, 0, 0)  # ten from the batch, then three live
    assert len(server.requests) == 3
    done = Counter((r["key"], r["repeat"]) for r in records(fetched, "answer"))
    assert (len(done), max(done.values())) == (96, 1)
    assert Counter(server.submitted.values()) == {1: 86, 2: 10}  # twice only what expired
    assert not index_of(fetched).in_flight
    assert stage(fetched, "status")["totals"]["twins"] == 0


def test_files_are_split_by_bytes_too(fetched: Path, server: BatchServer, monkeypatch: pytest.MonkeyPatch):
    answer(server, fetched, "--batch", *BM25)
    size = len(server.files["file-1"].content)
    batch(server, fetched, "cancel", "--all")
    monkeypatch.setattr(service, "MAX_BYTES", size * 2 // 5)
    answer(server, fetched, "--batch", *BM25)
    parts = [f.content for f in server.files.values() if f.purpose == "batch"][1:]
    assert len(parts) == 3
    assert max(map(len, parts)) <= size * 2 // 5
    assert sum(part.count(b"\n") for part in parts) == 14  # two were answered before they were cancelled


def test_a_finished_batch_is_taken_in_without_the_stages_flags(answered: Path, server: BatchServer):
    answer(server, answered, "--batch", "--force")
    judge(server, answered, "--batch", "--metric", "naive", "--reader", "offline")
    server.script = lambda number, body: ok('{"score": 1, "reason": "x"}' if body["model"] == "model-j" else "Oslo")
    server.finish()
    answers, verdicts = batch(server, answered, "collect")
    assert (answers["stage"], *counts(answers)) == ("answer", 48, 48, 0, 0, 0)
    assert (verdicts["stage"], *counts(verdicts)) == ("judge", 24, 24, 0, 0, 0)
    assert batch(server, answered, "collect") == []


def test_one_batch_can_be_named_by_either_name(fetched: Path, server: BatchServer):
    answer(server, fetched, "--batch")
    ours = records(fetched, "batch")[0]["id"]
    server.finish()
    assert batch(server, fetched, "collect", ours, "batch_2")[0]["done"] == 32
    finished = call_cli("batch", "collect", "batch_9", "--trials", str(fetched), env=server.environment())
    assert "unknown batch in flight 'batch_9'" in ended(finished, 2).err


# --- what else can become of a batch ----------------------------------------------------------------------------


def test_results_that_are_missing_twice_or_unreadable(fetched: Path, server: BatchServer):
    answer(server, fetched, "--batch", *BM25)
    server.finish("batch_1", "completed", lambda number: number > 1)
    results = server.files[server.batches["batch_1"]["output_file_id"]]
    first, _, *rest = results.content.splitlines(keepends=True)
    alien = first.replace(b'"custom_id": "', b'"custom_id": "f')
    results.content = b"".join([first, first, b"{half\n", b"[]\n", b"null\n", alien, *rest[:-1]])
    outcome = batch(server, fetched, "collect")[0]
    assert counts(outcome) == (13, 13, 0, 0, 0)  # the first was never answered, the second line and the last are gone
    assert "1 batch taken in, 3 of their requests unanswered and pending again" in outcome["notes"]
    assert answer(server, fetched, *BM25, "--dry-run")["pending"] == 3


def test_texts_with_odd_line_separators_stay_whole(fetched: Path, server: BatchServer):
    server.script = always(ok("one\u2028two\x85three"))
    answer(server, fetched, "--batch", *BM25, "--limit", "1")
    server.finish()
    assert answer(server, fetched, *BM25, "--limit", "1")["done"] == 2
    assert {r["body"]["text"] for r in records(fetched, "answer")} == {"one\u2028two\x85three"}


def test_results_that_are_gone_leave_the_work_pending(fetched: Path, server: BatchServer):
    answer(server, fetched, "--batch", *BM25)
    server.finish()
    del server.files[server.batches["batch_1"]["output_file_id"]]
    assert batch(server, fetched, "collect")[0]["done"] == 0
    assert answer(server, fetched, *BM25)["done"] == 16


@pytest.mark.parametrize("name", [5, None, ["a"]], ids=repr)
def test_a_result_without_a_usable_name_is_left_out(fetched: Path, server: BatchServer, name: Any):
    answer(server, fetched, "--batch", *BM25)
    server.finish()
    results = server.files[server.batches["batch_1"]["output_file_id"]]
    first, *rest = results.content.splitlines(keepends=True)
    results.content = b"".join([json.dumps({**json.loads(first), "custom_id": name}).encode() + b"\n", *rest])
    assert batch(server, fetched, "collect")[0]["done"] == 15


def test_results_that_are_a_page_are_left_for_another_time(fetched: Path, server: BatchServer):
    """They were paid for."""
    answer(server, fetched, "--batch", *BM25)
    server.finish()
    results = server.files[server.batches["batch_1"]["output_file_id"]]
    content, results.content = results.content, b"<html><body>log in</body></html>"
    assert "what came is no file of results" in refused(server, fetched, "collect")
    results.content = content
    assert batch(server, fetched, "collect")[0]["done"] == 16


def test_a_reply_that_is_no_batch_is_an_error_of_one_line(fetched: Path, server: BatchServer):
    answer(server, fetched, "--batch", *BM25)
    kept = server.batches["batch_1"]
    for odd in ([], 5, {"request_counts": 5}):
        server.batches["batch_1"] = odd  # type: ignore[assignment]
        told = refused(server, fetched, "collect")
        assert told.endswith("asking for batch batch_1: what came is no reply of a batch service\n")
        assert "no reply of a batch service" in batch(server, fetched, "status")[0]["state"]
    server.batches["batch_1"] = kept
    server.finish()
    assert batch(server, fetched, "collect")[0]["done"] == 16


def test_a_batch_that_the_provider_has_forgotten_can_be_given_up(fetched: Path, server: BatchServer):
    answer(server, fetched, "--batch", *BM25)
    server.batches.clear()
    told = refused(server, fetched, "collect")
    assert "batch batch_1 isn't known at http://127.0.0.1" in told
    assert "memtrials batch cancel" in told
    assert batch(server, fetched, "status")[0]["state"] == "unknown to the provider; cancel gives it up"
    assert counts(batch(server, fetched, "cancel", "batch_1")[0])[:3] == (0, 0, 0)
    assert chains(fetched)[-1] == "closed unknown to the provider"
    assert answer(server, fetched, *BM25)["done"] == 16


def test_an_expired_batch_keeps_what_was_answered(fetched: Path, server: BatchServer):
    answer(server, fetched, "--batch", *BM25)
    server.finish("batch_1", "expired", lambda number: number <= 5)
    assert counts(answer(server, fetched, *BM25)) == (16, 16, 0, 0, 0)
    assert len(server.requests) == 11


def test_a_batch_that_the_provider_cannot_take_is_an_error_once(fetched: Path, server: BatchServer):
    answer(server, fetched, "--batch", *BM25)
    server.fail("batch_1", "enqueued token limit reached for model-a")
    outcome = answer(server, fetched, "--batch", *BM25, code=2)
    assert outcome["error"] == (
        "batch batch_1 was refused by the provider: enqueued token limit reached for model-a; its work is pending again"
    )
    assert (counts(outcome), len(server.batches)) == ((16, 0, 0, 16, 0), 1)
    assert counts(answer(server, fetched, "--batch", *BM25)) == (16, 0, 0, 16, 0)


def test_failed_content_gives_up_after_three_runs(fetched: Path, server: BatchServer):
    server.script = always(ok(""))
    for _ in range(3):
        answer(server, fetched, "--batch", *BM25, "--task", "2/query")
        server.finish()
        assert counts(batch(server, fetched, "collect", code=1)[0]) == (1, 0, 1, 0, 0)
    assert counts(answer(server, fetched, "--batch", *BM25, "--task", "2/query")) == (0, 0, 0, 0, 1)


def test_what_failed_is_left_to_the_next_run(fetched: Path, server: BatchServer):
    """One run appends one failure for a piece of work at most."""
    server.script = always(ok(""))
    answer(server, fetched, "--batch", *BM25, "--task", "2/query")
    server.finish()
    assert counts(answer(server, fetched, *BM25, "--task", "2/query", code=1)) == (1, 0, 1, 0, 0)
    assert (len(records(fetched, "failure")), len(server.requests)) == (1, 0)


def test_a_judge_that_stops_at_its_limit_or_is_unreadable_has_failed(answered: Path, server: BatchServer):
    replies = iter([ok('{"score": 1, "reason": "x"}', "length"), ok("yes"), ok('{"score": 0, "reason": "x"}')])
    server.script = lambda number, body: next(replies)
    one = ("--metric", "naive", *BM25, "--limit", "3")
    judge(server, answered, *one, "--batch")
    server.finish()
    assert counts(judge(server, answered, *one, code=1)) == (3, 1, 2, 0, 0)
    failures = records(answered, "failure")
    assert [(f["class"], f["body"]["cause"]) for f in failures] == [("content", "service")] * 2
    assert all(f["body"]["call"]["completion_tokens"] == 20 for f in failures)


def test_a_fatal_error_in_a_line_ends_the_run(fetched: Path, server: BatchServer):
    server.script = always(error(401, "invalid_api_key", "wrong key"))
    answer(server, fetched, "--batch", *BM25)
    server.finish()
    outcome = answer(server, fetched, *BM25, code=2)
    assert (counts(outcome), server.requests) == ((16, 0, 16, 0, 0), [])
    assert "HTTP 401: wrong key" in outcome["error"]


# --- beside live runs -------------------------------------------------------------------------------------------


def test_a_live_run_leaves_work_in_an_open_batch_alone(fetched: Path, server: BatchServer):
    answer(server, fetched, "--batch", *BM25)
    outcome = answer(server, fetched)
    assert counts(outcome) == (32, 32, 0, 0, 16)
    assert "16 in flight in a batch" in outcome["notes"]
    server.finish()
    assert counts(answer(server, fetched, "--repeat", "2")) == (64, 64, 0, 0, 0)  # 16 from the batch
    assert len(server.requests) == 32 + 48


def test_a_reader_whose_first_answers_are_in_flight_has_begun(fetched: Path, server: BatchServer):
    answer(server, fetched, "--batch", *BM25)
    outcome = stage(fetched, "answer", *BM25, code=2)
    assert "reader model-a-" in outcome["notes"][0]
    assert (outcome["pending"], outcome["skipped"]) == (0, 16)


def test_status_shows_what_is_in_flight_and_where(fetched: Path, server: BatchServer):
    answer(server, fetched, "--batch", *BM25)
    answer(server, fetched, "--system", "none")
    rows = {row["system"].split("-")[0]: row for row in stage(fetched, "status")["rows"]}
    assert {name: (row["in flight"], row["answered"]) for name, row in rows.items()} == {
        "bm25": (16, 0),
        "none": (0, 16),
        "in": (0, 0),
    }
    assert rows["bm25"]["reader"].startswith("model-a-")
    (shown,) = batch(server, fetched, "status")
    assert {name: shown[name] for name in ("batch", "stage", "requests", "state", "answered")} == {
        "batch": "batch_1",
        "stage": "answer",
        "requests": 16,
        "state": "in_progress",
        "answered": 0,
    }
    told = call_cli("batch", "status", "--trials", str(fetched)).out
    assert f"{shown['id']}  answer inmind@sample bm25-" in told
    assert "unknown (no key for reader model-a" in told


def test_status_shows_a_judges_work_in_flight(answered: Path, server: BatchServer):
    judge(server, answered, "--batch", "--metric", "naive", *BM25)
    rows = [r for r in stage(answered, "status")["rows"] if (r["judge"] or "").startswith("model-j")]
    assert [row["in flight"] for row in rows] == [8]


def test_a_dry_run_asks_nobody(fetched: Path, server: BatchServer):
    answer(server, fetched, "--batch", *BM25)
    server.finish()
    before, asked = files(fetched.parent), list(server.asked)
    assert answer(server, fetched, "--batch", "--dry-run")["skipped"] == 16
    assert (files(fetched.parent), server.asked) == (before, asked)


def test_a_panel_is_handed_over_judge_by_judge(answered: Path, server: BatchServer):
    server.script = always(ok('{"score": 1, "reason": "x"}'))
    two = ("judge", "--judge", "model-j", "--judge", "model-k", "--metric", "naive", *BM25)
    assert stage(answered, *two, "--batch", env=server.environment())["sent"] == 16
    assert [{r["body"]["model"] for r in server.requests_of(name)} for name in server.batches] == [
        {"model-j"},
        {"model-k"},
    ]
    server.finish()
    assert stage(answered, *two, env=server.environment())["done"] == 16


def test_a_panels_own_endpoint_is_remembered(answered: Path, server: BatchServer, tmp_path: Path):
    panel = tmp_path / "panel.toml"
    panel.write_text('[[judge]]\nmodel = "model-j"\nendpoint = "VLLM"\n', "utf-8")
    server.script = always(ok('{"score": 1, "reason": "x"}'))
    env = server.environment("VLLM")
    stage(answered, "judge", "--panel", str(panel), "--metric", "naive", *BM25, "--batch", env=env)
    server.finish()
    told = call_cli("batch", "collect", "--trials", str(answered), "--json", env=env)
    assert json.loads(ended(told).out)[0]["done"] == 8


def test_a_result_whose_trial_was_voided_meanwhile_is_kept_and_does_not_count(fetched: Path, server: BatchServer):
    answer(server, fetched, "--batch", *BM25)
    stage(fetched, "void", "--kind", "retrieval", *BM25, "--reason", "a wiped service")
    server.finish()
    assert answer(server, fetched, *BM25)["skipped"] == 0
    assert batch(server, fetched, "collect")[0]["done"] == 16
    assert (len(records(fetched, "answer")), index_of(fetched).of("answer")) == (16, [])


# --- cancelling -------------------------------------------------------------------------------------------------


def test_cancelling_keeps_what_was_answered(fetched: Path, server: BatchServer):
    answer(server, fetched, "--batch", *BM25)
    assert counts(batch(server, fetched, "cancel", "batch_1")[0]) == (2, 2, 0, 0, 0)
    assert chains(fetched)[-1] == "closed cancelled"
    assert not records(fetched, "failure")
    assert counts(answer(server, fetched, *BM25)) == (14, 14, 0, 0, 0)


def test_cancelling_may_take_a_while(fetched: Path, server: BatchServer):
    server.cancels_at_once = False
    answer(server, fetched, "--batch", *BM25)
    assert counts(batch(server, fetched, "cancel", "--all")[0]) == (0, 0, 0, 0, 16)
    assert batch(server, fetched, "status")[0]["state"] == "cancelling"
    server.finish("batch_1", "cancelled", lambda number: number <= 3)
    assert counts(batch(server, fetched, "collect")[0]) == (3, 3, 0, 0, 0)


def test_what_to_cancel_must_be_said(fetched: Path, server: BatchServer):
    answer(server, fetched, "--batch", *BM25)
    for arguments in ((), ("batch_1", "--all")):
        finished = call_cli("batch", "cancel", *arguments, "--trials", str(fetched), env=server.environment())
        assert "name the batches to cancel" in ended(finished, 2).err
    assert server.batches["batch_1"]["status"] == "in_progress"


# --- kills ------------------------------------------------------------------------------------------------------


def started(server: BatchServer, trials: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    """`answer --reader model-a --batch` of bm25 in a process of its own."""
    command = [sys.executable, "-m", "memtrials", "answer", "--reader", "model-a", "--batch", *BM25, *arguments]
    return subprocess.Popen([*command, "--trials", str(trials), "--quiet"], env=environment(server.environment()))


def kill(child: "subprocess.Popen[bytes]") -> None:
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL


def completed(server: BatchServer, trials: Path) -> None:
    """Whatever is in flight ends well, a run takes it in, and everything was done and submitted once."""
    server.finish()
    answer(server, trials, *BM25)
    done = Counter((r["key"], r["repeat"]) for r in records(trials, "answer"))
    assert (len(done), max(done.values()), most_often(server), server.requests) == (16, 1, 1, [])
    assert not index_of(trials).in_flight


def test_killed_before_the_upload_nothing_was_submitted(fetched: Path, server: BatchServer):
    with server.held("upload") as gate:
        child = started(server, fetched)
        assert gate.arrived.wait(60)
        assert chains(fetched) == ["open"]
        kill(child)
        server.gates.clear()
        again = answer(server, fetched, "--batch", *BM25)
    assert counts(again) == (16, 0, 0, 16, 0)
    assert "1 batch taken in, 16 of their requests unanswered and pending again" in again["notes"]
    assert chains(fetched) == ["open", "closed never submitted", "open", "open batch_1"]
    completed(server, fetched)


def test_killed_while_its_batch_is_being_started_it_will_not_start(fetched: Path, server: BatchServer):
    """The service gets to the dead process's request only after another run has found no batch."""
    with server.held("create") as gate:
        child = started(server, fetched)
        assert gate.arrived.wait(60)
        kill(child)
        server.gates.clear()
        assert batch(server, fetched, "collect")[0]["done"] == 0
        assert server.files == {}
        answer(server, fetched, "--batch", *BM25)
    assert len(server.batches) == 1
    completed(server, fetched)
    assert len(server.batches) == 1


@pytest.mark.parametrize("keeps_metadata", [True, False])
def test_killed_before_it_heard_of_its_batch_it_is_found(fetched: Path, server: BatchServer, keeps_metadata: bool):
    server.keeps_metadata = keeps_metadata
    with server.held("created") as gate:
        child = started(server, fetched)
        assert gate.arrived.wait(60)
        assert batch(server, fetched, "status")[0]["state"] == "its submission was cut off; collect finds out"
        kill(child)
    assert counts(answer(server, fetched, "--batch", *BM25)) == (0, 0, 0, 0, 16)
    assert chains(fetched) == ["open", "open batch_1"]
    completed(server, fetched)


def test_among_many_batches_its_own_is_found(fetched: Path, server: BatchServer):
    with server.held("created") as gate:
        child = started(server, fetched)
        assert gate.arrived.wait(60)
        kill(child)
    mine = server.batches.pop("batch_1")
    others = {
        f"other_{n}": {**mine, "id": f"other_{n}", "metadata": None, "input_file_id": "file-0"} for n in range(250)
    }
    server.batches = {"batch_1": mine, **others}
    assert batch(server, fetched, "collect")[0]["skipped"] == 16
    assert server.asked.count("GET /batches") == 3  # pages of a hundred


def test_a_batch_is_not_looked_at_while_it_is_being_sent(fetched: Path, server: BatchServer):
    with server.held("upload") as gate:
        child = started(server, fetched)
        assert gate.arrived.wait(60)
        for command in (("batch", "collect"), ("batch", "cancel", "--all"), ("answer", "--reader", "model-a", *BM25)):
            finished = call_cli(*command, "--trials", str(fetched), env=server.environment())
            assert "is being worked on in" in ended(finished, 2).err
    assert child.wait() == 0
    completed(server, fetched)


COLLECT_AND_DIE = """
import os, signal, sys
from memtrials.cli import main
from memtrials.ledger import Ledger
from memtrials.stages import handover

handover.GROUP = 3
appends, append = 0, Ledger.append

def append_and_die(self, *records):
    global appends
    append(self, *records)
    appends += 1
    if appends == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)

Ledger.append = append_and_die
main(sys.argv[2:])
"""


def test_a_collector_killed_in_the_middle_goes_on(fetched: Path, server: BatchServer):
    """Killed after 3 results, then after 3 more, and once more after the last of the 16 and before the batch is closed:
    of 5 kinds of result one fails, and no failure is recorded twice."""
    answer(server, fetched, "--batch", *BM25)
    count = iter(range(100))
    server.script = lambda number, body: ok("" if next(count) % 5 == 0 else "Use tamari.")
    server.finish()
    made = []
    for appends in (1, 1, 4):
        command = [sys.executable, "-c", COLLECT_AND_DIE, str(appends), "batch", "collect", "--trials", str(fetched)]
        killed = subprocess.run(command, env=environment(server.environment()), capture_output=True, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        made.append(len(records(fetched, "answer")) + len(records(fetched, "failure")))
    assert made == [3, 6, 16]
    assert len(index_of(fetched).in_flight) == 16
    assert counts(batch(server, fetched, "collect")[0]) == (0, 0, 0, 0, 0)
    assert (len(records(fetched, "answer")), len(records(fetched, "failure"))) == (12, 4)
    closing = records(fetched, "batch")[-1]["body"]["provider"]
    assert (closing["answered"], closing["failed"], closing["unanswered"]) == ("12", "4", "0")
    assert len({(r["key"], r["repeat"]) for r in records(fetched) if r["kind"] in ("answer", "failure")}) == 16


def test_two_collectors_at_once_make_no_twins(fetched: Path, server: BatchServer):
    answer(server, fetched, "--batch", "--repeat", "3")
    server.finish()
    command = [sys.executable, "-m", "memtrials", "batch", "collect", "--trials", str(fetched)]
    children = [subprocess.Popen(command, env=environment(server.environment())) for _ in range(3)]
    assert {child.wait() for child in children} <= {0, 2}  # a batch is held by one, the others are told so
    batch(server, fetched, "collect")
    assert len(records(fetched, "answer")) == 3 * ALL
    assert stage(fetched, "status")["totals"]["twins"] == 0


def test_in_a_process_of_its_own(fetched: Path, server: BatchServer):
    """Nothing that stays in memory is needed."""
    env = server.environment()
    done = run_cli("answer", "--reader", "model-a", "--batch", "--trials", str(fetched), env=env)
    assert "answer: 0 done, 48 handed over" in ended(done).err
    assert "48 handed over in 3 batches" in done.err
    server.finish()
    done = run_cli("batch", "collect", "--trials", str(fetched), env=env)
    assert "answer: 48 done" in ended(done).err


# --- what the user must fix -------------------------------------------------------------------------------------


def test_a_refused_upload_hands_nothing_over(fetched: Path, server: BatchServer):
    for refused in ("POST /files", "POST /batches"):
        server.refuses = {refused: error(401, "invalid_api_key", f"wrong key {KEY}")}
        outcome = answer(server, fetched, "--batch", *BM25, code=2)
        assert "HTTP 401: wrong key ***" in outcome["error"]
        assert (counts(outcome), outcome["sent"]) == ((16, 0, 0, 16, 0), 0)
        assert not index_of(fetched).in_flight
    server.refuses = {}
    answer(server, fetched, "--batch", *BM25)
    completed(server, fetched)


def test_after_a_server_error_nobody_knows_and_the_next_run_asks(fetched: Path, server: BatchServer):
    server.refuses = {"POST /batches": error(500, None, "oh")}
    outcome = answer(server, fetched, "--batch", *BM25, code=2)
    assert "whether it was started isn't known" in outcome["error"]
    assert server.asked.count("POST /batches") == 1
    assert len(index_of(fetched).in_flight) == 16
    server.refuses = {}
    assert answer(server, fetched, "--batch", *BM25)["sent"] == 16
    completed(server, fetched)


def test_what_was_handed_over_before_an_error_stays_so(
    fetched: Path, server: BatchServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(service, "MAX_REQUESTS", 8)
    submit = service.BatchService.submit

    def once(self: service.BatchService, *arguments: Any) -> service.Job:
        server.refuses = {"POST /files": error(403, None, "quota")} if server.batches else {}
        return submit(self, *arguments)

    monkeypatch.setattr(service.BatchService, "submit", once)
    outcome = answer(server, fetched, "--batch", *BM25, code=2)
    assert (counts(outcome), outcome["sent"]) == ((16, 0, 0, 16, 0), 8)
    monkeypatch.undo()
    server.refuses = {}
    assert answer(server, fetched, "--batch", *BM25)["sent"] == 8
    completed(server, fetched)


def test_another_base_url_is_not_asked_about_a_batch(fetched: Path, server: BatchServer):
    answer(server, fetched, "--batch", *BM25)
    with BatchServer(always(ok("no"))) as other:
        told = call_cli("batch", "collect", "--trials", str(fetched), env=other.environment())
        assert f"was sent to {server.url}, and READER_BASE_URL leads to {other.url}" in ended(told, 2).err
        assert other.asked == []
    assert len(index_of(fetched).in_flight) == 16


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("answer", "--batch"), "--batch needs a model: name one with --reader"),
        (("judge", "--batch"), "--batch needs a model: name one with --judge"),
        (("judge", "--judge", "m", "--batch", "--import-replies", "x"), "--batch sends requests; it doesn't go with"),
        (("answer", "--reader", "m", "--batch", "--force"), "no key for reader m"),
    ],
)
def test_a_batch_needs_a_model_with_a_key(answered: Path, arguments: tuple[str, ...], complaint: str):
    before = files(answered.parent)
    arguments = (*arguments, "--repeat", "2")
    assert complaint in ended(call_cli(*arguments, "--trials", str(answered)), 2).err
    assert files(answered.parent) == before


# --- limits -----------------------------------------------------------------------------------------------------


def test_a_cap_counts_what_is_in_flight(fetched: Path, server: BatchServer):
    first = answer(server, fetched, "--batch", "--max-requests", "20", *BM25)
    assert first["sent"] == 16
    second = answer(server, fetched, "--batch", "--max-requests", "20", code=1)
    assert (counts(second), second["sent"]) == ((32, 0, 0, 32, 16), 4)
    assert "stopped at --max-requests 20" in second["notes"]


def test_a_cap_on_cost_counts_half_prices(fetched: Path, server: BatchServer):
    """gpt-4o-mini's longest reply is 16,384 tokens and costs $0.0098, half of that in a batch: ten cost up to $0.05."""
    capped = ("answer", "--reader", "gpt-4o-mini", "--max-cost", "0.05", "--batch")
    outcome = stage(fetched, *capped, code=1, env=server.environment())
    opened = [r["body"] for r in records(fetched, "batch") if r["body"]["state"] == "open"]
    dearest = sum(body["dearest"] for body in opened) / 2  # each batch has two records
    assert outcome["sent"] in (9, 10)
    assert 0.045 < dearest <= 0.05
    assert stage(fetched, *capped, code=1, env=server.environment())["sent"] == 0
    server.finish()
    assert stage(fetched, *capped[:-1], env=server.environment())["done"] == ALL  # they really cost $0.00002 each


def test_a_cap_meets_a_batch_that_was_sent_without_one(fetched: Path, server: BatchServer):
    env = server.environment()
    stage(fetched, "answer", "--reader", "gpt-4o-mini", "--batch", *BM25, env=env)
    told = call_cli("answer", "--reader", "gpt-4o-mini", "--max-cost", "1", "--trials", str(fetched), env=env)
    assert "a batch in flight was sent without a cap" in ended(told, 2).err


def test_a_prompt_over_the_window_is_a_failure_and_not_sent(
    fetched: Path, server: BatchServer, monkeypatch: pytest.MonkeyPatch
):
    """A reply may take 16,384 tokens, which leaves 1,000 for the prompt."""
    monkeypatch.setattr("memtrials.llm.engine.window", lambda model: 17_384)
    outcome = answer(server, fetched, "--batch", code=1)
    assert outcome["failed"] > 0
    assert outcome["sent"] > 0
    assert outcome["sent"] + outcome["failed"] == ALL == len(server.submitted) + len(records(fetched, "failure"))
    assert all("over window" in failure["body"]["message"] for failure in records(fetched, "failure"))


def test_what_an_endpoint_made_us_adapt_is_adapted_in_a_batch(fetched: Path, server: BatchServer):
    """One live call finds out that the endpoint has another name for a limit; the batch then uses it."""
    ours, theirs = "max_completion_tokens", "max_tokens"

    def script(number: int, body: dict[str, Any]) -> Reply:
        if ours in body:
            return error(400, "unsupported_parameter", f"Unsupported parameter: '{ours}'")
        return ok("Use tamari.")

    server.script = script
    asked = answer(server, fetched, *BM25, "--limit", "1")["done"]
    assert {ours in request.body for request in server.requests} == {True, False}
    answer(server, fetched, "--batch", *BM25)
    assert {(ours in r["body"], r["body"].get(theirs)) for r in server.requests_of("batch_1")} == {(False, 16384)}
    server.finish()
    assert answer(server, fetched, *BM25)["done"] == 16 - asked
    assert len({r["reader"] for r in records(fetched, "answer")}) == 1


def test_results_are_appended_in_groups(fetched: Path, server: BatchServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(handover, "GROUP", 5)
    sizes: list[int] = []
    append = Ledger.append
    answer(server, fetched, "--batch", *BM25)
    server.finish()
    monkeypatch.setattr(Ledger, "append", lambda self, *made: (sizes.append(len(made)), append(self, *made))[1])
    batch(server, fetched, "collect")
    assert sizes == [5, 5, 5, 1, 1]  # the last one closes the batch
    index = index_of(fetched)
    assert {index.ledger.body(h, AnswerBody).text for h in index.of("answer")} == {"Use tamari."}
