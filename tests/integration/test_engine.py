"""The engine against a server that does what servers do: what is sent, how often, when, and what it costs.

A scripted server on loopback stands for the model; the ledger is the bundled sample's: 8 tasks, 16 trials in bm25.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from memtrials.errors import WorkFailedError
from memtrials.llm import money
from memtrials.llm.engine import ATTEMPTS, CONTENT_ATTEMPTS, ChatModel, Endpoint, Reply, without_thoughts
from memtrials.llm.limits import FIRST, Gate
from memtrials.records import Call
from support.cli import call_cli, environment
from support.model_server import KEY, ModelServer, Script, always, drop, error, in_turn, late, ok, raw
from support.model_server import Reply as Sent
from support.trials import answer, ended, files, judge, records, stage

pytestmark = pytest.mark.usefixtures("quick")
ONE = ("--system", "bm25", "--task", "2/query")
ALL = ("--system", "bm25")
TARGET = ("--metric", "target-recall")
LONGEST = 16384
"""The longest reply a reader may give, in tokens."""


@pytest.fixture
def server() -> Iterator[ModelServer]:
    """A model that answers everything."""
    with ModelServer(always(ok("Use tamari."))) as running:
        yield running


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The rows of `prices.toml` and `models.toml`, as the test wants them."""
    rows: dict[str, Any] = {}

    def either(path: Path) -> dict[str, Any]:
        key = "input" if path.name == "prices.toml" else "context"
        return {name: row for name, row in rows.items() if key in row}

    monkeypatch.setattr(money, "_table", either)
    return rows


def call_of(trials: Path, kind: str = "answer") -> dict[str, Any]:
    """The call of the only record of a kind."""
    (record,) = records(trials, kind)
    call = record["body"]["call"]
    assert isinstance(call, dict)
    return call


def asked(
    script: Script, count: int = 1, **parameters: Any
) -> tuple[list[Reply | WorkFailedError], list[dict[str, Any]]]:
    """What `count` items get from a model with these parameters and eight places, and the bodies that were sent."""

    async def one(model: ChatModel) -> Reply | WorkFailedError:
        try:
            return await model.complete([{"role": "user", "content": "?"}], lambda reply: reply)
        except WorkFailedError as failure:
            return failure

    async def all_of_them(url: str) -> list[Reply | WorkFailedError]:
        model = ChatModel(Endpoint("m", KEY, url), parameters, "reader", gate=Gate(8))
        try:
            return await asyncio.gather(*(one(model) for _ in range(count)))
        finally:
            await model.close()

    with ModelServer(script) as server:
        return asyncio.run(all_of_them(server.url)), [request.body for request in server.requests]


# --- parameters -------------------------------------------------------------------------------------------------


def unsupported(parameter: str) -> Sent:
    """A parameter is rejected as OpenAI does it."""
    body = {"message": f"Unsupported parameter: '{parameter}' is not supported with this model.", "param": parameter}
    return raw(
        json.dumps({"error": {**body, "type": "invalid_request_error", "code": "unsupported_parameter"}}).encode(),
        status=400,
    )


def refusing(*parameters: str) -> Script:
    """A model that rejects these parameters, one at a time, and answers without them."""

    def script(number: int, body: dict[str, Any]) -> Sent:
        named = [parameter for parameter in parameters if parameter in body]
        return unsupported(named[0]) if named else ok("Use tamari.")

    return script


def test_a_rejected_name_is_changed_once_for_the_whole_run(fetched: Path) -> None:
    with ModelServer(refusing("max_completion_tokens")) as server:
        assert answer(server, fetched, *ALL, "--workers", "8")["done"] == 16
    assert ["max_tokens" in request.body for request in server.requests] == [False] + 16 * [True]
    for record in records(fetched, "answer"):
        assert json.loads(record["body"]["call"]["sent"]) == {"model": "model-a", "max_tokens": LONGEST}
    assert len({record["reader"] for record in records(fetched, "answer")}) == 1
    assert not records(fetched, "failure")


def test_everything_a_request_can_do_without_is_left_out_once() -> None:
    given = {"max_tokens": 9, "temperature": 0, "top_p": 1, "seed": 7, "response_format": {"type": "json_object"}}
    replies, bodies = asked(refusing(*given), count=20, **given)
    assert all(isinstance(reply, Reply) for reply in replies)
    assert len(bodies) == len(given) + 20
    assert all(body.keys() == {"model", "messages", "max_completion_tokens"} for body in bodies[len(given) :])


def test_what_is_rejected_while_others_are_in_flight_is_tried_again_by_all() -> None:
    def script(number: int, body: dict[str, Any]) -> Sent:
        return late(0.05, unsupported("seed")) if number > 1 and "seed" in body else ok("Use tamari.")

    replies, bodies = asked(script, count=17, seed=7)
    assert all(isinstance(reply, Reply) for reply in replies)
    assert sum("seed" in body for body in bodies) == 1 + 8
    assert len(bodies) == 17 + 8


def test_a_limit_by_no_name_is_fatal_after_both() -> None:
    replies, bodies = asked(refusing("max_tokens", "max_completion_tokens"), max_tokens=9)
    (failure,) = replies
    assert isinstance(failure, WorkFailedError)
    assert (failure.class_, failure.attempts, len(bodies)) == ("fatal", 2, 2)


# --- what is said -----------------------------------------------------------------------------------------------

THOUGHTS = {
    "<think>The user is coeliac.</think>Use tamari.": "Use tamari.",
    '\n<think>\nA {"score": 1}?\n</think>\n\n<think>B</think>Use tamari.\n': "Use tamari.\n",
    "<thinking>The user is coeliac.</thinking>\nUse tamari.": "Use tamari.",
    "The template has opened it.\n</think>\n\nUse tamari.": "Use tamari.",
    "<think>cut off": "",
    "Use <think>tags</think>.": "Use <think>tags</think>.",
    " Use tamari. ": " Use tamari. ",
}


@pytest.mark.parametrize(("said", "text"), THOUGHTS.items())
def test_thoughts_are_no_part_of_a_reply(said: str, text: str) -> None:
    assert without_thoughts(said) == text


def test_thoughts_reach_neither_the_answer_nor_the_verdict_and_are_counted(fetched: Path) -> None:
    thought = '<think>Is it {"score": 0}?</think>'
    usage = {"prompt_tokens": 9, "completion_tokens": 70, "completion_tokens_details": {"reasoning_tokens": 64}}
    with ModelServer(always(ok(f"{thought}Use tamari.", usage=usage))) as server:
        answer(server, fetched, *ONE)
        server.script = always(ok(f'{thought}{{"score": 1, "reason": "r"}}', usage=usage))
        judge(server, fetched, *ONE, *TARGET)
    (said,), (verdict,) = records(fetched, "answer"), records(fetched, "verdict")
    assert said["body"]["text"] == "Use tamari."
    assert verdict["body"]["score"] == 1.0
    for record in (said, verdict):
        assert (record["body"]["call"]["completion_tokens"], record["body"]["call"]["reasoning_tokens"]) == (70, 64)
        assert thought in json.loads(record["body"]["raw"])["choices"][0]["message"]["content"]


def message(**fields: Any) -> Sent:
    """A completion with any message."""
    choice = {"index": 0, "message": {"role": "assistant", **fields}, "finish_reason": "stop"}
    return raw(json.dumps({"model": "m", "choices": [choice]}).encode())


CONTENTS: dict[str, tuple[Any, str]] = {
    "parts": ([{"type": "text", "text": "Use "}, {"type": "text", "text": "tamari."}], "Use tamari."),
    "a part of reasoning": (
        [{"type": "thinking", "text": "Hm."}, {"type": "text", "text": "Use tamari."}],
        "Use tamari.",
    ),
    "parts that are texts": (["Use ", "tamari."], "Use tamari."),
    "a part without text": ([{"type": "image_url"}, {"text": "Use tamari."}], "Use tamari."),
}


@pytest.mark.parametrize(("content", "text"), CONTENTS.values(), ids=CONTENTS)
def test_content_in_parts_is_joined(content: Any, text: str) -> None:
    ((reply,), _) = asked(always(message(content=content, reasoning_content="The user is coeliac.")))
    assert isinstance(reply, Reply)
    assert reply.text == text


def test_reasoning_alone_is_an_empty_reply() -> None:
    ((failure,), bodies) = asked(always(message(content=None, reasoning_content="Use tamari.")))
    assert isinstance(failure, WorkFailedError)
    assert (failure.class_, failure.attempts, len(bodies)) == ("content", CONTENT_ATTEMPTS, CONTENT_ATTEMPTS)


@pytest.mark.parametrize("key", ["none", "EMPTY", "not-needed"])
def test_a_word_that_stands_for_a_key_is_not_masked_in_what_a_model_says(fetched: Path, key: str) -> None:
    with ModelServer(always(ok(f"There is {key}."))) as server:
        answer(server, fetched, *ONE, LLM_API_KEY=key)
    assert records(fetched, "answer")[0]["body"]["text"] == f"There is {key}."


# --- what passes ------------------------------------------------------------------------------------------------

OVERLOADED = {
    "Anthropic's": b'{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}',
    "a router's": b'{"error": {"code": 429, "message": "Rate limited"}}',
    "a choice that broke off": b'{"choices": [{"message": {"content": "Use"}, "finish_reason": "error"}]}',
    "beside empty choices": b'{"choices": [], "error": {"message": "try again"}}',
}


@pytest.mark.parametrize("body", OVERLOADED.values(), ids=OVERLOADED)
def test_an_overload_with_status_200_is_tried_again(body: bytes) -> None:
    ((reply,), bodies) = asked(in_turn(raw(body), raw(body), ok("Use tamari.")))
    assert isinstance(reply, Reply)
    assert (reply.text, reply.call.attempts, len(bodies)) == ("Use tamari.", 3, 3)


@pytest.mark.parametrize("form", ["milliseconds", "seconds", "date"])
def test_the_wait_a_server_asks_for_is_kept_by_all(fetched: Path, form: str) -> None:
    until: list[float] = []

    def script(number: int, body: dict[str, Any]) -> Sent:
        if number != 2:
            return ok("Use tamari.")
        until.append(
            time.time() + 0.4
            if form == "milliseconds"
            else time.time() + 1
            if form == "seconds"
            else int(time.time()) + 2
        )
        header = {
            "milliseconds": {"retry-after-ms": "400"},
            "seconds": {"Retry-After": "1"},
            "date": {"Retry-After": formatdate(until[0], usegmt=True)},
        }
        return error(429, "rate_limit_exceeded", headers=header[form])

    began = time.time()
    with ModelServer(script) as server:
        epoch = time.time() - time.monotonic() + server._began
        assert answer(server, fetched, *ALL, "--workers", "1")["done"] == 16
    assert time.time() - began < 8
    assert all(epoch + request.at >= until[0] - 0.01 for request in server.requests[2:])
    assert len(server.requests) == 17


def test_a_wait_that_is_too_long_fails_the_item_at_once_and_holds_nobody(fetched: Path) -> None:
    day = error(429, "rate_limit_exceeded", headers={"Retry-After": "86400"})
    with ModelServer(in_turn(ok("Use tamari."), day, ok("Use tamari."))) as server:
        outcome = answer(server, fetched, *ALL, "--workers", "1", code=1)
    assert (outcome["done"], outcome["failed"], len(server.requests)) == (15, 1, 16)
    (failure,) = records(fetched, "failure")
    assert (failure["class"], failure["body"]["attempts"]) == ("transient", 1)


def test_auto_finds_what_the_endpoint_takes(fetched: Path) -> None:
    """It takes 20 at once and says 429 to more: automatic growth gets beyond its start and loses nothing."""
    lock, now, most, refused = threading.Lock(), 0, 0, 0

    def script(number: int, body: dict[str, Any]) -> Sent:
        nonlocal now, most, refused
        with lock:
            if now >= 20:
                refused += 1
                return error(429, "rate_limit_exceeded")
            now += 1
            most = max(most, now)
        time.sleep(0.02)
        with lock:
            now -= 1
        return ok("Use tamari.")

    with ModelServer(script) as server:
        outcome = answer(server, fetched, *ALL, "--repeat", "20", "--workers", "auto")
    assert (outcome["done"], outcome["failed"]) == (320, 0)
    assert FIRST < most <= 20
    assert len(server.requests) == 320 + refused
    assert refused < 100


# --- what stops -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", ["auto", "1", "16"])
def test_a_wrong_key_costs_one_request(fetched: Path, workers: str) -> None:
    with ModelServer(always(late(0.05, error(401, "invalid_api_key", f"Incorrect API key provided: {KEY}")))) as server:
        arguments = ("answer", "--reader", "model-a", *ALL, "--workers", workers, "--trials", str(fetched))
        finished = ended(call_cli(*arguments, env=server.environment()), 2)
        assert len(server.requests) == 1
        (line,) = [line for line in finished.err.splitlines() if line.startswith("memtrials: ")]
        told = "HTTP 401: Incorrect API key provided: ***; check the model, its base URL and its key"
        assert line == f"memtrials: model model-a at {server.url}: {told}"
        outcome = judge(server, fetched, *ALL, *TARGET, "--workers", workers, code=2)
        assert (outcome["pending"], outcome["failed"], outcome["left"]) == (8, 1, 7)
        assert len(server.requests) == 2


def test_a_key_that_is_revoked_stops_the_stage_without_another_request(fetched: Path) -> None:
    def script(number: int, body: dict[str, Any]) -> Sent:
        return ok("Use tamari.") if number <= 4 else late(0.1, error(401, "invalid_api_key"))

    with ModelServer(script) as server:
        outcome = answer(server, fetched, *ALL, "--workers", "3", code=2)
    assert outcome["done"] == 4
    assert len(server.requests) <= 4 + 3  # what was in flight
    assert outcome["done"] + outcome["failed"] == len(server.requests)


def test_a_400_nobody_knows_is_the_items_once_others_have_passed(fetched: Path) -> None:
    with ModelServer(
        lambda number, body: error(400, None, "bad surrogate") if number in (2, 3, 4) else ok("Yes.")
    ) as server:
        outcome = answer(server, fetched, *ALL, "--workers", "1", code=1)
    assert (outcome["done"], outcome["failed"]) == (15, 1)
    (failure,) = records(fetched, "failure")
    assert (failure["class"], failure["body"]["cause"]) == ("content", "reader")


def test_an_interrupt_sends_nothing_that_was_not_in_flight(fetched: Path) -> None:
    """With automatic workers much waits for its turn; none of it is sent after Ctrl-C, and what was sent is kept."""
    with ModelServer(always(late(0.2, ok("Use tamari.")))) as server:
        stopped = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "memtrials",
                "answer",
                "--reader",
                "model-a",
                *ALL,
                "--repeat",
                "5",
                "--trials",
                str(fetched),
            ],
            env=environment(server.environment()),
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        deadline = time.monotonic() + 60
        while len(server.requests) < 12 and time.monotonic() < deadline:
            time.sleep(0.005)
        os.killpg(stopped.pid, signal.SIGINT)
        _, said = stopped.communicate(timeout=60)
    assert stopped.returncode == 130, said
    assert len(records(fetched, "answer")) == len(server.requests) < 40
    assert not records(fetched, "failure")


# --- caps -------------------------------------------------------------------------------------------------------


def test_requests_are_capped_over_all_runs(fetched: Path, server: ModelServer) -> None:
    outcome = answer(server, fetched, *ALL, "--max-requests", "5", code=1)
    assert (outcome["pending"], outcome["done"], outcome["failed"], outcome["left"]) == (16, 5, 0, 11)
    assert outcome["notes"] == ["stopped at --max-requests 5: 5 of 16 done, 11 left"]
    assert outcome["error"] is None
    assert len(server.requests) == 5
    again = answer(server, fetched, *ALL, "--max-requests", "5", code=1)
    assert (again["done"], again["left"], len(server.requests)) == (0, 11, 5)
    assert answer(server, fetched, *ALL, "--max-requests", "7", code=1)["done"] == 2
    assert answer(server, fetched, *ALL)["done"] == 9
    assert answer(server, fetched, *ALL, "--max-requests", "16")["pending"] == 0


def test_tries_that_failed_count_too(fetched: Path) -> None:
    with ModelServer(always(error(503))) as server:
        outcome = answer(server, fetched, *ONE, "--max-requests", str(ATTEMPTS - 2), code=1)
        assert (outcome["failed"], len(server.requests)) == (1, ATTEMPTS - 2)
        (failure,) = records(fetched, "failure")
        assert (failure["class"], failure["body"]["attempts"]) == ("transient", ATTEMPTS - 2)
        assert f"--max-requests {ATTEMPTS - 2} after HTTP 503" in failure["body"]["message"]
        again = answer(server, fetched, *ONE, "--max-requests", str(ATTEMPTS - 2), code=1)
        assert (again["failed"], again["left"], len(server.requests)) == (0, 1, ATTEMPTS - 2)


def test_void_answers_were_paid_for_and_another_reader_was_not(fetched: Path, server: ModelServer) -> None:
    answer(server, fetched, *ALL, "--max-requests", "4", code=1)
    stage(fetched, "void", "--kind", "answer", *ALL, "--reason", "a test")
    assert answer(server, fetched, *ALL, "--max-requests", "4", code=1)["done"] == 0
    other = ("answer", "--reader", "model-b", "--force", *ALL, "--max-requests", "4")
    assert stage(fetched, *other, code=1, env=server.environment())["done"] == 4


def test_money_is_capped_over_all_runs(fetched: Path, server: ModelServer, table: dict[str, Any]) -> None:
    """The longest reply costs $1, a real one (20 tokens) 0.12 cents: under $1.005 the fifth is the last that may go."""
    table["model-a"] = {"input": 0.0, "output": 1e6 / LONGEST}
    outcome = answer(server, fetched, *ALL, "--max-cost", "1.005", code=1)
    assert (outcome["done"], outcome["left"], len(server.requests)) == (5, 11, 5)
    (note,) = outcome["notes"]
    assert note == "stopped at --max-cost 1.005 ($0.9989 left, one more may cost $1.0000): 5 of 16 done, 11 left"
    assert answer(server, fetched, *ALL, "--max-cost", "1.005", code=1)["done"] == 0
    assert answer(server, fetched, *ALL, "--max-cost", "1.007", code=1)["done"] == 1
    assert answer(server, fetched, *ALL, "--max-cost", "9")["done"] == 10
    (row,) = [r for r in stage(fetched, "status")["rows"] if r["reader"] and r["system"].startswith("bm25")]
    assert (row["spent"], row["usd"]) == (16 * 120, round(16 * 20 / LONGEST, 6))


def test_replies_of_no_use_are_paid_once(fetched: Path, table: dict[str, Any]) -> None:
    """Three replies of $0.00122 each, two of them empty: a cap that holds three and one at its dearest lets a fourth
    go, which it wouldn't if the waste were counted again with each."""
    table["model-a"] = {"input": 0.0, "output": 1e6 / LONGEST}
    with ModelServer(in_turn(ok(""), ok(""), ok("Use tamari."))) as server:
        assert answer(server, fetched, *ALL, "--workers", "1", "--max-cost", "1.0037", code=1)["done"] == 2
        call = records(fetched, "answer")[0]["body"]["call"]
        assert (call["attempts"], call["wasted_prompt_tokens"], call["wasted_completion_tokens"]) == (3, 200, 40)
        assert answer(server, fetched, *ALL, "--max-cost", "1.0037", code=1)["done"] == 0


def test_a_cap_needs_a_price(fetched: Path, server: ModelServer) -> None:
    before = files(fetched.parent)
    outcome = ended(
        call_cli(
            "answer", "--reader", "model-a", "--max-cost", "1", "--trials", str(fetched), env=server.environment()
        ),
        2,
    )
    assert outcome.err.startswith("memtrials: --max-cost: model-a has no price")
    assert records(fetched) == json.loads(before[fetched.name])
    assert not server.requests


def test_a_reply_without_usage_is_taken_at_its_dearest(fetched: Path, table: dict[str, Any]) -> None:
    table["model-a"] = {"input": 0.0, "output": 1e6 / LONGEST}
    with ModelServer(always(ok("Use tamari.", usage=None))) as server:
        assert answer(server, fetched, *ALL, "--max-cost", "2.5", code=1)["done"] == 2
        arguments = ("answer", "--reader", "model-a", *ALL, "--max-cost", "9", "--trials", str(fetched))
        assert "reported no usage" in ended(call_cli(*arguments, env=server.environment()), 2).err
        assert len(server.requests) == 2


def test_a_cap_holds_whatever_is_said_to_be_cached(fetched: Path, table: dict[str, Any]) -> None:
    """A reply costs $0.02, all of its prompt at the full price, though 5000 of its 100 tokens would give $0.98 back."""
    table["model-a"] = {"input": 200.0, "cached_input": 0.0, "output": 0.0}
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 5000}}
    with ModelServer(always(ok("Use tamari.", usage=usage))) as server:
        done = answer(server, fetched, *ALL, "--max-cost", "0.3", code=1)["done"]
        assert done
    (row,) = [r for r in stage(fetched, "status")["rows"] if r["reader"] and r["system"].startswith("bm25")]
    assert row["usd"] == pytest.approx(0.02 * done)
    assert row["usd"] <= 0.3


def test_counts_beyond_all_measure_are_kept_as_far_as_a_ledger_can(fetched: Path) -> None:
    usage = {"prompt_tokens": 2**63 - 1, "completion_tokens": 2**63 - 1}
    with ModelServer(always(ok("", finish_reason="error", usage=usage))) as server:
        assert answer(server, fetched, *ONE, code=1)["failed"] == 1
    assert call_of(fetched, "failure")["prompt_tokens"] == 2**63 - 1


def test_usage_of_a_reply_that_came_in_a_batch_is_read_alike() -> None:
    usage = {"prompt_tokens": 100, "completion_tokens": -1, "prompt_tokens_details": {"cached_tokens": 101}}
    model = ChatModel(Endpoint("m", "none"), {}, "reader")
    call = model.take(200, ok("Yes.", usage=usage).body.decode(), Call(batch=True), lambda reply: reply.call)
    assert (call.prompt_tokens, call.cached_tokens, call.completion_tokens) == (100, None, None)


def test_a_dry_run_says_what_it_would_cost(fetched: Path, server: ModelServer, table: dict[str, Any]) -> None:
    dry = answer(server, fetched, *ALL, "--dry-run")
    assert "cost_usd_min" not in dry
    table["model-a"] = {"input": 2.0, "output": 8.0}
    dry = answer(server, fetched, *ALL, "--dry-run")
    assert dry["cost_usd_min"] == pytest.approx(dry["prompt_tokens"] * 2 / 1e6, abs=1e-6)
    assert dry["cost_usd_max"] == pytest.approx(dry["cost_usd_min"] + 16 * LONGEST * 8 / 1e6, abs=1e-6)
    arguments = ("answer", "--reader", "model-a", *ALL, "--dry-run", "--trials", str(fetched))
    said = ended(call_cli(*arguments, env=server.environment())).err
    assert f", ${dry['cost_usd_min']:.4f} to ${dry['cost_usd_max']:.4f}" in said
    assert not server.requests


# --- windows ----------------------------------------------------------------------------------------------------


def test_a_prompt_over_the_window_is_not_sent_and_not_cut(
    fetched: Path, server: ModelServer, table: dict[str, Any]
) -> None:
    table["model-a"] = {"context": LONGEST + 100}
    outcome = answer(server, fetched, *ONE, code=1)
    assert (outcome["failed"], len(server.requests)) == (1, 0)
    (failure,) = records(fetched, "failure")
    assert (failure["class"], failure["body"]["cause"], failure["body"]["attempts"]) == ("content", "reader", 0)
    assert "over window: " in failure["body"]["message"]
    table["model-a"] = {"context": LONGEST + 100_000}
    assert answer(server, fetched, *ONE)["done"] == 1


def test_a_window_that_only_the_endpoint_knows_is_named_alike(fetched: Path) -> None:
    with ModelServer(always(error(400, "context_length_exceeded", "at most 8192 tokens"))) as server:
        answer(server, fetched, *ONE, code=1)
    (failure,) = records(fetched, "failure")
    assert "over window: " in failure["body"]["message"]


# --- base URLs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "paths"),
    [
        ("/v1", ["/v1"]),
        ("/v1/", ["/v1"]),
        ("/v1//", ["/v1"]),
        ("/v1/chat/completions", ["/v1"]),
        ("", ["", "/v1"]),
        ("/", ["", "/v1"]),
    ],
)
def test_base_urls_in_all_their_forms(fetched: Path, server: ModelServer, written: str, paths: list[str]) -> None:
    server.paths = ("/v1/chat/completions",)
    url = server.url.removesuffix("/v1") + written
    assert answer(server, fetched, *ALL, LLM_BASE_URL=url)["done"] == 16
    expected = [f"{path}/chat/completions" for path in paths]
    assert [request.path for request in server.requests] == expected + 15 * ["/v1/chat/completions"]
    assert {a["body"]["call"]["base_url"] for a in records(fetched, "answer")} == {server.url}


def test_a_server_that_answers_without_v1_is_asked_there(fetched: Path, server: ModelServer) -> None:
    server.paths = ("/chat/completions",)
    assert answer(server, fetched, *ALL, LLM_BASE_URL=server.url.removesuffix("/v1"))["done"] == 16
    assert {request.path for request in server.requests} == {"/chat/completions"}


def test_a_url_that_leads_nowhere_costs_at_most_two_requests(fetched: Path, server: ModelServer) -> None:
    server.paths = ()
    answer(server, fetched, *ALL, code=2, LLM_BASE_URL=server.url.removesuffix("/v1"))
    assert len(server.requests) == 2


# --- what is recorded -------------------------------------------------------------------------------------------


def test_a_call_says_how_it_went(fetched: Path) -> None:
    reply = late(0.1, ok("Use tamari."))
    with ModelServer(
        in_turn(drop(), Sent(reply.status, reply.body, {**reply.headers, "x-request-id": "req_7"}, 0.1))
    ) as server:
        answer(server, fetched, *ONE)
    call = call_of(fetched)
    assert (call["attempts"], call["request_id"], call.get("workers", 1)) == (2, "req_7", 1)
    assert 0.1 <= call["seconds"] < 1
    assert 0 <= call["queued_seconds"] < 0.1


def test_time_in_the_queue_is_not_time_of_service(fetched: Path) -> None:
    with ModelServer(always(late(0.1, ok("Use tamari.")))) as server:
        answer(server, fetched, *ALL, "--task", "2", "--task", "5", "--workers", "1", "--rpm", "600")
        answer(server, fetched, *ALL, "--task", "9", "--workers", "auto")
    calls = [record["body"]["call"] for record in records(fetched, "answer")]
    assert len(calls) == 6
    assert all(call["seconds"] < 0.2 for call in calls)
    assert max(call["queued_seconds"] for call in calls[4:]) >= 0.09  # behind the first, which goes alone


def test_what_failed_items_cost_is_kept_with_the_last_reply(fetched: Path) -> None:
    with ModelServer(in_turn(ok(""), ok("  "), error(500))) as server:
        answer(server, fetched, *ONE, code=1)
    (failure,) = records(fetched, "failure")
    assert (failure["class"], failure["body"]["attempts"]) == ("transient", ATTEMPTS + 2)
    call = failure["body"]["call"]
    assert (call["prompt_tokens"], call["completion_tokens"]) == (100, 20)
    assert (call["wasted_prompt_tokens"], call["wasted_completion_tokens"]) == (100, 20)


def test_an_unreadable_verdict_is_asked_for_again_and_its_raw_reply_kept(fetched: Path) -> None:
    with ModelServer(in_turn(ok("I'd say 1."), ok('{"score": 1}'))) as server:
        judge(server, fetched, *ONE, *TARGET)
        assert (call_of(fetched, "verdict")["attempts"], call_of(fetched, "verdict")["wasted_prompt_tokens"]) == (
            2,
            100,
        )
        server.script = always(ok("I'd say 1."))
        judge(server, fetched, *ALL, *TARGET, "--task", "5", code=1)
    (failure,) = records(fetched, "failure")
    assert json.loads(failure["body"]["raw"])["choices"][0]["message"]["content"] == "I'd say 1."
    assert (failure["body"]["attempts"], failure["body"]["call"]["wasted_completion_tokens"]) == (CONTENT_ATTEMPTS, 40)
