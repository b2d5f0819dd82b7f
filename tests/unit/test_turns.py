"""Calls that block, in threads: how many at one time, and what ends them all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from memtrials.errors import UserError, WorkFailedError
from memtrials.llm.limits import ClosedError
from memtrials.llm.money import BudgetError
from memtrials.stages.turns import Turns


def taken(turns: Turns, *calls: Callable[[], str]) -> list[str | BaseException]:
    """What came of calls that were all waiting at once."""

    async def every() -> list[str | BaseException]:
        return await asyncio.gather(*(turns.take(call) for call in calls), return_exceptions=True)

    return asyncio.run(every())


def test_as_many_run_at_one_time_as_are_asked_for():
    """However few processors there are: a service is waited for."""
    together = threading.Barrier(40, timeout=30)

    def call() -> str:
        together.wait()
        return "met"

    assert taken(Turns(40), *[call] * 40) == ["met"] * 40


def test_one_after_the_other_in_the_order_of_asking():
    running = threading.Lock()
    seen: list[int] = []

    def call(number: int) -> str:
        assert running.acquire(blocking=False)
        seen.append(number)
        running.release()
        return str(number)

    assert taken(Turns(), *(lambda n=n: call(n) for n in range(50))) == [str(n) for n in range(50)]  # type: ignore[misc]
    assert seen == list(range(50))


@pytest.mark.parametrize(
    "error",
    [
        UserError("no key"),
        BudgetError("$1.00"),
        WorkFailedError("reader", "fatal", "a wrong key"),
        RuntimeError("nobody thought of this"),
    ],
    ids=["an error of the user's", "a cap", "a fatal failure", "anything else"],
)
def test_what_waits_does_not_begin_after_what_ends_the_stage(error: Exception):
    begun: list[str] = []

    def fails() -> str:
        raise error

    def works() -> str:
        begun.append("begun")
        return "done"

    first, *rest = taken(Turns(), fails, works, works)
    assert first is error
    assert [type(other) for other in rest] == [ClosedError, ClosedError]
    assert begun == []


def test_a_failure_of_one_piece_of_work_leaves_the_others():
    failure = WorkFailedError("service", "transient", "try later")

    def fails() -> str:
        raise failure

    assert taken(Turns(), fails, lambda: "done") == [failure, "done"]


def test_the_end_waits_for_what_is_on_its_way_and_calls_off_the_rest():
    begun, go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    def slow() -> str:
        begun.set()
        go_on.wait(10)
        seen.append("arrived")
        return "arrived"

    def works() -> str:
        seen.append("begun")
        return "done"

    async def ended() -> list[str | BaseException]:
        turns = Turns()
        waiting = asyncio.gather(turns.take(slow), turns.take(works), return_exceptions=True)
        await asyncio.to_thread(begun.wait)
        asyncio.get_running_loop().call_later(0.05, go_on.set)
        await turns.end()
        assert seen == ["arrived"]
        return await waiting

    first, other = asyncio.run(ended())
    assert first == "arrived"
    assert isinstance(other, asyncio.CancelledError)
