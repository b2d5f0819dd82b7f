"""Judges in processes of their own: killed in the middle of their work, side by side, in each other's way.

The ledger is the bundled sample's; a judge owes 8 verdicts a repeat on bm25's trials.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memtrials.llm.engine import CONTENT_ATTEMPTS
from support.cli import call_cli, environment
from support.model_server import ModelServer, Reply, Script, always, ok
from support.trials import all_at_once, ended, judge, records, stage

pytestmark = pytest.mark.usefixtures("quick", "key_stays_secret")
RECALL = ("--metric", "target-recall", "--system", "bm25")
LONG, ALL_OF_LONG = (*RECALL, "--repeat", "30"), 8 * 30
SHORT, ALL_OF_SHORT = (*RECALL, "--repeat", "5"), 8 * 5
RIGHT = ok('{"score": 1, "reason": "r"}')
PATIENCE = 60.0


@contextlib.contextmanager
def judging(server: ModelServer, trials: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`judge --judge model-j` in a session of its own; it is killed in the end."""
    command = [sys.executable, "-m", "memtrials", "judge", "--judge", "model-j", *arguments, "--trials", str(trials)]
    child = subprocess.Popen(
        command, env=environment(server.environment()), stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield child
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL


def verdicts(trials: Path) -> Counter[tuple[str, int, str]]:
    """How often each verdict is there: its key, ordinal and judge."""
    return Counter((v["key"], v["repeat"], v["judge"].rpartition("-")[0]) for v in records(trials, "verdict"))


# --- killed -----------------------------------------------------------------------------------------------------


def test_a_killed_judge_keeps_what_was_said_and_the_next_run_asks_for_the_rest(fetched: Path) -> None:
    """It is killed after 133 replies. In the next run the item of call 190 gets null content, as often as it is
    asked."""
    workers, counting, replies, enough = 8, threading.Lock(), 0, threading.Event()

    def script(number: int, body: dict[str, Any]) -> Reply:
        nonlocal replies
        with counting:
            replies += 1
        if replies == 133:
            enough.set()
        return ok(None) if 190 <= number < 190 + CONTENT_ATTEMPTS else RIGHT

    with ModelServer(script) as server:
        with judging(server, fetched, *LONG, "--workers", str(workers)):
            assert enough.wait(PATIENCE)
        ended(call_cli("status", "--trials", str(fetched)))
        durable, sent = len(records(fetched, "verdict")), len(server.requests)
        assert 133 - workers <= durable <= sent < 190

        outcome = judge(server, fetched, *LONG, "--workers", "1", code=1)
        assert (outcome["pending"], outcome["done"], outcome["failed"]) == (
            ALL_OF_LONG - durable,
            ALL_OF_LONG - durable - 1,
            1,
        )
        assert len(server.requests) - sent == ALL_OF_LONG - durable - 1 + CONTENT_ATTEMPTS
        (failure,) = records(fetched, "failure")
        assert (failure["class"], failure["body"]["attempts"]) == ("content", CONTENT_ATTEMPTS)
        sent = len(server.requests)
        assert judge(server, fetched, *LONG)["done"] == len(server.requests) - sent == 1
    found = verdicts(fetched)
    assert (len(found), max(found.values())) == (ALL_OF_LONG, 1)
    assert {v["body"]["score"] for v in records(fetched, "verdict")} == {1.0}


# --- at once ----------------------------------------------------------------------------------------------------


def together() -> Script:
    """The first call of two processes is answered when both have come; a process's first call goes alone."""
    both = threading.Barrier(2)

    def script(number: int, body: dict[str, Any]) -> Reply:
        if number <= 2:
            both.wait(PATIENCE)
        return RIGHT

    return script


def test_two_judges_at_once(fetched: Path) -> None:
    with ModelServer(together()) as server:
        commands = [("judge", "--judge", name, *SHORT) for name in ("model-j", "model-k")]
        all_at_once(fetched, *commands, env=server.environment())
        assert {r.body["model"] for r in server.requests[:2]} == {"model-j", "model-k"}
        assert Counter(r.body["model"] for r in server.requests) == {"model-j": ALL_OF_SHORT, "model-k": ALL_OF_SHORT}
    found = verdicts(fetched)
    assert Counter(name for _, _, name in found) == {"model-j": ALL_OF_SHORT, "model-k": ALL_OF_SHORT}
    assert max(found.values()) == 1


def test_one_judge_on_two_shards_at_once(fetched: Path) -> None:
    with ModelServer(together()) as server:
        commands = [("judge", "--judge", "model-j", *SHORT, "--shard", shard) for shard in ("1/2", "2/2")]
        all_at_once(fetched, *commands, env=server.environment())
        assert len(server.requests) == ALL_OF_SHORT
        assert judge(server, fetched, *SHORT)["pending"] == 0
    found = verdicts(fetched)
    assert (len(found), max(found.values())) == (ALL_OF_SHORT, 1)
    assert len({v["judge"] for v in records(fetched, "verdict")}) == 1
    assert stage(fetched, "status")["totals"]["twins"] == 0


def test_who_meets_another_on_its_work_is_refused_and_takes_over_when_that_one_is_killed(fetched: Path) -> None:
    begun, ended_by_kill = threading.Event(), threading.Event()

    def script(number: int, body: dict[str, Any]) -> Reply:
        begun.set()
        ended_by_kill.wait(PATIENCE)
        return RIGHT

    with ModelServer(script) as server:
        with judging(server, fetched, *SHORT, "--shard", "1/2") as first:
            assert begun.wait(PATIENCE)
            for shard in ((), ("--shard", "1/2"), ("--shard", "3/4"), ("--shard", "2/3")):
                arguments = ("judge", "--judge", "model-j", *SHORT, *shard, "--trials", str(fetched))
                refused = ended(call_cli(*arguments, env=server.environment()), 2)
                assert refused.err.count("\n") == 1
                assert f"is being worked on in {fetched} by process {first.pid}" in refused.err
            assert len(server.requests) == 1
        ended_by_kill.set()
        server.script = always(RIGHT)
        assert judge(server, fetched, *SHORT)["done"] == ALL_OF_SHORT
        assert len(server.requests) == 1 + ALL_OF_SHORT
    assert max(verdicts(fetched).values()) == 1
