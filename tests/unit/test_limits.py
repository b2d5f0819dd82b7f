"""The gate: how much goes at once, and how fast. Time is a clock of the test's own where it is measured."""

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from memtrials.llm.limits import FIRST, LONGEST_HOLD, MOST, ClosedError, Gate


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while everything waits, and then at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Run a coroutine on a clock of its own, which the gate reads, too."""
    clock = Clock()
    monkeypatch.setattr("memtrials.llm.limits.time.monotonic", clock.time)

    def until_complete(what: Coroutine[Any, Any, Any]) -> Any:
        with asyncio.Runner(loop_factory=lambda: clock) as runner:
            return runner.run(what)

    return until_complete


class Calls:
    """Calls through a gate, each of a second: when each began and the most at once."""

    def __init__(self, gate: Gate, seconds: float = 1.0) -> None:
        self.gate = gate
        self.seconds = seconds
        self.began: list[float] = []
        self.most = 0

    async def call(self, tokens: int = 0) -> None:
        async with self.gate.slot(tokens):
            self.began.append(asyncio.get_running_loop().time() - 1000)
            self.most = max(self.most, self.gate.in_flight)
            await asyncio.sleep(self.seconds)
            self.gate.succeeded()

    async def all(self, count: int, tokens: int = 0) -> None:
        await asyncio.gather(*(self.call(tokens) for _ in range(count)))


Run = Callable[[Coroutine[Any, Any, Any]], Any]


def test_the_first_call_goes_alone_and_then_as_many_as_are_allowed(run: Run) -> None:
    calls = Calls(Gate(4))
    run(calls.all(9))
    assert calls.began == [0, 1, 1, 1, 1, 2, 2, 2, 2]


def test_until_one_has_come_back_they_go_one_by_one(run: Run) -> None:
    gate = Gate(4)

    async def failing() -> float:
        async with gate.slot(0):
            began = asyncio.get_running_loop().time() - 1000
            await asyncio.sleep(1)
            return began

    async def all_of_them() -> list[float]:
        return await asyncio.gather(*(failing() for _ in range(3)))

    assert run(all_of_them()) == [0, 1, 2]


def test_auto_doubles_each_round_up_to_its_most(run: Run) -> None:
    calls = Calls(Gate(None))
    run(calls.all(1 + 9 + 18 + 36))
    assert [len(list(group)) for _, group in itertools.groupby(calls.began)] == [1, FIRST + 1, 2 * 9, 4 * 9]
    for _ in range(1000):
        calls.gate.succeeded()
    assert calls.gate.limit == MOST


def test_an_overload_halves_once_a_round_and_growth_is_slow_from_there(run: Run) -> None:
    gate = Gate(None)
    gate.limit = 64.0

    async def overloaded() -> None:
        for _ in range(10):
            gate.overloaded(sent_at=999.0)
        assert gate.limit == 32  # all of one round
        gate.overloaded(sent_at=1000.0)  # sent before the cut was known
        assert gate.limit == 32
        await asyncio.sleep(1)
        gate.overloaded(sent_at=1000.5)
        assert gate.limit == 16
        for _ in range(16):
            gate.succeeded()
        assert 16.9 < gate.limit < 17.1  # a full round adds one

    run(overloaded())


def test_it_never_shrinks_below_one_and_a_fixed_number_stays(run: Run) -> None:
    auto, fixed = Gate(None), Gate(4)

    async def overloaded() -> None:
        for second in range(20):
            for gate in (auto, fixed):
                gate.overloaded(sent_at=1000.0 + second)
            await asyncio.sleep(1)

    run(overloaded())
    assert (auto.limit, fixed.limit) == (1, 4)


def test_what_an_endpoint_asks_to_wait_holds_for_all_calls(run: Run) -> None:
    calls = Calls(Gate(2))

    async def held() -> None:
        await calls.call()
        calls.gate.overloaded(sent_at=1000.0, wait=20.0)
        await calls.all(3)
        calls.gate.overloaded(sent_at=1000.0, wait=LONGEST_HOLD + 1)  # a quota of the day holds nobody else
        await calls.call()

    run(held())
    assert calls.began == [0, 21, 21, 22, 23]


def test_requests_per_minute_are_spread_evenly(run: Run) -> None:
    calls = Calls(Gate(50, rpm=30))
    run(calls.all(5))
    assert calls.began == [0, 2, 4, 6, 8]


def test_a_hold_is_followed_by_no_burst(run: Run) -> None:
    calls = Calls(Gate(50, rpm=60))

    async def held() -> None:
        await calls.call()
        some = asyncio.create_task(calls.all(4))
        await asyncio.sleep(0.5)
        calls.gate.overloaded(sent_at=1000.0, wait=10.0)
        await some

    run(held())
    assert calls.began == [0, 1, 11.5, 12.5, 13.5]


def test_tokens_per_minute_count_the_prompts(run: Run) -> None:
    calls = Calls(Gate(50, rpm=60, tpm=6000))
    run(calls.all(4, tokens=500))
    assert calls.began == [0, 5, 10, 15]
    assert Gate(1, tpm=1).counts_tokens
    assert not Gate(1, rpm=1).counts_tokens


def test_what_waits_for_its_time_is_not_counted_as_sending(run: Run) -> None:
    gate = Gate(3, rpm=60)

    async def calls() -> list[tuple[int, int]]:
        async def call() -> tuple[int, int]:
            async with gate.slot(0):
                gate.succeeded()
                return gate.in_flight, gate.sending

        return await asyncio.gather(*(call() for _ in range(4)))

    assert {sending for _, sending in run(calls())} == {1}


def test_cancelled_waiters_lose_no_turn(run: Run) -> None:
    """Places are taken, given up and cancelled at random; at the end all are free and nobody is left waiting."""
    gate = Gate(3, rpm=100_000)

    async def muddle() -> int:
        draw = random.Random(7)
        calls = Calls(gate, seconds=0.01)
        tasks = [asyncio.create_task(calls.call()) for _ in range(300)]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(draw.choice((0, 0.001, 0.01)))
            draw.choice(tasks).cancel()
            assert gate.in_flight <= 3
        return len(calls.began)

    assert 0 < run(muddle()) <= 300
    assert (gate.in_flight, gate.sending) == (0, 0)


def test_a_turn_given_to_a_cancelled_waiter_goes_to_the_next(run: Run) -> None:
    gate = Gate(1)

    async def race() -> None:
        order: list[str] = []

        async def call(name: str) -> None:
            async with gate.slot(0):
                order.append(name)

        holder = gate.slot(0)
        await holder.__aenter__()
        first, second = asyncio.create_task(call("first")), asyncio.create_task(call("second"))
        await asyncio.sleep(0)
        await holder.__aexit__(None, None, None)  # gives the turn to the first
        first.cancel()  # before it could take it
        await asyncio.wait_for(second, 5)
        assert order == ["second"]

    run(race())


def test_a_pause_ends_when_it_is_closed(run: Run) -> None:
    gate = Gate(2)

    async def pausing() -> None:
        loop = asyncio.get_running_loop()
        await gate.pause(30)
        assert loop.time() == 1030
        waiting = asyncio.create_task(gate.pause(60))
        await asyncio.sleep(1)
        gate.close()
        for pause in (waiting, gate.pause(60), gate.pause(0)):
            with pytest.raises(ClosedError):
                await pause
        assert loop.time() == 1031

    run(pausing())


def test_closed_it_sends_nothing_more_and_nobody_goes_on_waiting(run: Run) -> None:
    gate = Gate(2, rpm=6)

    async def closing() -> list[Any]:
        calls = Calls(gate, seconds=3)
        tasks = [asyncio.create_task(calls.call()) for _ in range(6)]
        await asyncio.sleep(5)  # one is done, one waits for its time, the others for a place
        gate.close()
        began = asyncio.get_running_loop().time()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert asyncio.get_running_loop().time() - began < 1
        with pytest.raises(ClosedError):
            await calls.call()
        assert calls.began == [0]
        return results

    results = run(closing())
    assert [type(result) for result in results] == [type(None)] + [ClosedError] * 5
    assert gate.in_flight == 0
