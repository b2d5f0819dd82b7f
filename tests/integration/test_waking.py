"""Ctrl-C while a stage waits, for a server or for its own pace: what waits is woken, what arrived is kept.

Each stage runs in a process of its own and is interrupted once; the bundled sample has 16 trials in bm25.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.cli import environment
from support.embedding_server import EmbeddingServer, embedded
from support.model_server import ModelServer, Reply, error, ok
from support.trials import records, stage

BM25 = ("--system", "bm25")
ALL = 16
SOON = 5.0
"""Seconds in which an interrupted stage ends, however long it was told to wait."""

VECTOR = '[state]\nsystem = "embedded"\nretriever = "vector"\nembedding = "openai:model-e"\n'


def interrupted(command: list[str], env: dict[str, str], once: Callable[[], bool]) -> tuple[dict[str, Any], float]:
    """What a command says that is interrupted as soon as `once` holds, and how many seconds that took it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "memtrials", *command, "--json"],
        env=environment(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not once() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.3)  # the reply arrives, the wait begins
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    out, said = process.communicate(timeout=90)
    took = time.monotonic() - began
    assert process.returncode == 130, said
    assert "interrupted: finishing what is in flight" in said
    outcome = json.loads(out)
    assert outcome["done"] + outcome["failed"] + outcome["left"] == outcome["pending"]
    return outcome, took


def after_two(then: Reply) -> Callable[[int, dict[str, Any]], Reply]:
    """Two answers, then whatever comes."""
    return lambda number, body: ok("Use tamari.") if number <= 2 else then


WAIT = {"Retry-After": "60"}


@pytest.mark.parametrize("status", [429, 500])
def test_who_waits_for_a_server_is_woken(fetched: Path, status: int) -> None:
    """After a 429 all calls wait, after a 500 the one that met it."""
    with ModelServer(after_two(error(status, headers=WAIT))) as server:
        command = ["answer", "--reader", "model-a", *BM25, "--trials", str(fetched), "--workers", "4"]
        outcome, took = interrupted(command, server.environment(), lambda: len(server.requests) >= 3)
        assert took < SOON
        assert (outcome["done"], outcome["failed"], outcome["left"]) == (2, 0, ALL - 2)
        assert (len(records(fetched, "answer")), records(fetched, "failure")) == (2, [])
        server.script = lambda number, body: ok("Use tamari.")
        again = stage(fetched, "answer", "--reader", "model-a", *BM25, env=server.environment())
        assert (again["pending"], again["done"]) == (ALL - 2, ALL - 2)


def test_what_is_in_flight_is_finished_while_others_are_woken(fetched: Path) -> None:
    """The third request is answered late, the others are told to wait."""

    def script(number: int, body: dict[str, Any]) -> Reply:
        if number <= 3:
            time.sleep(1.5 * (number == 3))
            return ok("Use tamari.")
        return error(500, headers=WAIT)

    with ModelServer(script) as server:
        command = ["answer", "--reader", "model-a", *BM25, "--trials", str(fetched), "--workers", "2"]
        outcome, took = interrupted(command, server.environment(), lambda: len(server.requests) >= 4)
    assert took < SOON
    assert (outcome["done"], outcome["failed"], outcome["left"]) == (3, 0, ALL - 3)


def test_a_reply_of_no_use_that_was_paid_for_is_kept(fetched: Path) -> None:
    """An empty reply, then a wait: what it took is recorded with a failure that the next run tries again."""

    def script(number: int, body: dict[str, Any]) -> Reply:
        return ok("") if number == 1 else error(429, headers=WAIT)

    with ModelServer(script) as server:
        command = ["answer", "--reader", "model-a", *BM25, "--trials", str(fetched), "--workers", "1"]
        outcome, took = interrupted(command, server.environment(), lambda: len(server.requests) >= 2)
    assert took < SOON
    assert (outcome["done"], outcome["failed"], outcome["left"]) == (0, 1, ALL - 1)
    (failure,) = records(fetched, "failure")
    assert (failure["class"], failure["body"]["attempts"]) == ("transient", 2)
    assert failure["body"]["call"]["prompt_tokens"] == 100


def test_under_a_cap_on_requests_tries_are_kept(fetched: Path) -> None:
    """They count against it in the next run, too."""
    with ModelServer(after_two(error(429, headers=WAIT))) as server:
        capped = ["answer", "--reader", "model-a", *BM25, "--trials", str(fetched), "--workers", "1"]
        outcome, took = interrupted(
            [*capped, "--max-requests", "9"], server.environment(), lambda: len(server.requests) >= 3
        )
        assert took < SOON
        assert (outcome["done"], outcome["failed"]) == (2, 1)
        server.script = lambda number, body: ok("Use tamari.")
        again = stage(fetched, *capped[:-4], "--max-requests", "9", code=1, env=server.environment())
    assert again["done"] == 9 - 3


def test_who_waits_for_his_pace_is_woken(fetched: Path) -> None:
    with ModelServer(lambda number, body: ok("Use tamari.")) as server:
        command = ["answer", "--reader", "model-a", *BM25, "--trials", str(fetched), "--rpm", "1"]
        outcome, took = interrupted(command, server.environment(), lambda: len(server.requests) >= 1)
    assert took < SOON
    assert (outcome["done"], outcome["left"]) == (1, ALL - 1)


def test_who_waits_to_embed_is_woken(built: Path, tmp_path: Path) -> None:
    """The state that was being made is discarded; what was embedded for it is in the cache."""
    toml = tmp_path / "mine.toml"
    toml.write_text(VECTOR, "utf-8")

    def script(number: int, body: dict[str, Any]) -> Reply:
        return embedded(body) if number <= 3 else error(429, headers=WAIT)

    with EmbeddingServer(script) as server:
        env = {**server.environment(), "MEMTRIALS_CACHE": str(tmp_path / "cache")}
        command = ["replay", str(toml), "--trials", str(built)]
        outcome, took = interrupted(command, env, lambda: len(server.requests) >= 4)
        assert took < SOON
        assert outcome["done"] + outcome["left"] + outcome["failed"] == 8
        assert list(built.with_suffix(".stores").glob("*/*.part")) == []
        before = set(server.texts[: sum(map(len, server.batches[:3]))])
        server.script = lambda number, body: embedded(body)
        sent = len(server.texts)
        assert stage(built, "replay", str(toml), env=env)["failed"] == 0
        assert not before & set(server.texts[sent:])
