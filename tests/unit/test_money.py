"""Prices, windows and the purse, by hand-computed values."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from memtrials.errors import UserError
from memtrials.llm import money
from memtrials.llm.money import (
    BudgetError,
    Price,
    Purse,
    cost,
    embedding_cost,
    longest_reply,
    price,
    takes_dimensions,
    tokens_of,
    window,
)
from memtrials.records import Call

PRICES: dict[str, Any] = {"m": {"input": 2.0, "cached_input": 0.5, "output": 8.0}, "plain": {"input": 1, "output": 4}}


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Both tables, as the test wants them."""
    rows = dict(PRICES)
    monkeypatch.setattr(money, "_table", lambda path: rows)
    return rows


def test_a_call_costs_prompt_cached_prompt_and_completion(tables: dict[str, Any]) -> None:
    call = Call(prompt_tokens=1_000_000, cached_tokens=400_000, completion_tokens=500_000, reasoning_tokens=300_000)
    assert cost(call, "m") == pytest.approx(0.6 * 2.0 + 0.4 * 0.5 + 0.5 * 8.0)  # 5.40; reasoning is in the completion
    assert cost(call, "plain") == pytest.approx(1.0 + 2.0)  # no price of its own for cached tokens
    assert cost(call, "unknown") is None


def test_replies_of_no_use_are_paid_for(tables: dict[str, Any]) -> None:
    call = Call(prompt_tokens=1000, completion_tokens=100, wasted_prompt_tokens=2000, wasted_completion_tokens=50)
    assert cost(call, "m") == pytest.approx((3000 * 2.0 + 150 * 8.0) / 1e6)  # 0.0072
    assert tokens_of(call) == 3150


def test_without_usage_the_cost_is_unknown_and_not_zero(tables: dict[str, Any]) -> None:
    assert cost(Call(), "m") is None
    assert cost(Call(prompt_tokens=5), "m") is None
    assert tokens_of(Call()) is None


@pytest.mark.parametrize("cached", [101, 5000, -1])
def test_cached_tokens_that_are_more_than_the_prompts_count_as_not_cached(tables: dict[str, Any], cached: int) -> None:
    call = Call(prompt_tokens=100, cached_tokens=cached, completion_tokens=20)
    assert cost(call, "m") == pytest.approx((100 * 2.0 + 20 * 8.0) / 1e6)  # 0.00036
    assert cost(Call(prompt_tokens=100, cached_tokens=100, completion_tokens=0), "m") == pytest.approx(100 * 0.5 / 1e6)


@pytest.mark.parametrize(
    "counts",
    [
        {"prompt_tokens": -1, "completion_tokens": 5},
        {"prompt_tokens": 5, "completion_tokens": -1},
        {"prompt_tokens": 5, "completion_tokens": 5, "wasted_prompt_tokens": -100},
        {"prompt_tokens": 5, "completion_tokens": 5, "wasted_completion_tokens": -100},
    ],
)
def test_no_cost_is_known_of_counts_below_zero(tables: dict[str, Any], counts: dict[str, int]) -> None:
    assert cost(Call(**counts), "m") is None


def test_what_a_call_in_a_batch_costs_stands_in_the_table(tables: dict[str, Any]) -> None:
    call = Call(prompt_tokens=1_000_000, completion_tokens=500_000, batch=True)
    assert cost(call, "m") == pytest.approx(6.0)  # no share is named, so the full price
    tables["batch"] = 0.5
    assert cost(call, "m") == pytest.approx(3.0)
    tables["m"] = {**tables["m"], "batch": 0.25}
    assert (cost(call, "m"), cost(call, "plain")) == (pytest.approx(1.5), pytest.approx(1.5))
    assert cost(Call(prompt_tokens=1_000_000, completion_tokens=500_000), "m") == pytest.approx(6.0)


DATED = {"m-2024-07-18": 2.0, "m-20240718": 2.0, "plain-2024-07-18": 1.0, "org/m-2024-07-18": None}
UNDATED = ("m-mini", "m-2024", "m-2024-07", "m-2024-13-18", "m-2024-0718", "m-12345678", "m-2024-07-18-x", "mm", "")


@pytest.mark.parametrize(("name", "dollars"), [*DATED.items(), *dict.fromkeys(UNDATED).items()])
def test_a_snapshot_has_its_models_price_and_nothing_else_is_guessed(
    tables: dict[str, Any], name: str, dollars: float | None
) -> None:
    found = price(name)
    assert (found.input if found else None) == dollars
    tables["m"] = {**tables["m"], "context": 1000}
    tables["plain"] = {**tables["plain"], "context": 1000}
    assert window(name) == (1000 if dollars else None)


def test_the_name_that_was_asked_for_comes_first_then_the_one_that_came_back(tables: dict[str, Any]) -> None:
    tables["m-2024-07-18"] = {"input": 3.0, "output": 9.0}
    million = {"prompt_tokens": 1_000_000, "completion_tokens": 0}
    assert cost(Call(model_returned="m-2024-07-18", **million), "m") == pytest.approx(2.0)
    assert cost(Call(model_returned="m-2024-07-18", **million), "my-deployment") == pytest.approx(3.0)
    assert cost(Call(model_returned="m-2024-08-06", **million), "my-deployment") == pytest.approx(2.0)
    assert cost(Call(model_returned="plain", **million), "m-2024-08-06") == pytest.approx(1.0)  # undated last
    assert cost(Call(model_returned="other", **million), "my-deployment") is None


def test_embeddings_cost_what_was_sent(tables: dict[str, Any]) -> None:
    assert embedding_cost({"embedding_requests": 2, "embedding_tokens": 500_000}, "m") == pytest.approx(1.0)
    assert embedding_cost({"embedding_requests": 2}, "m") is None  # the endpoint didn't say
    assert embedding_cost({"embedding_requests": 2, "embedding_tokens": 5}, "unknown") is None
    assert embedding_cost({"embedding_requests": 0, "charged_embedding_tokens": 9}, "unknown") == 0


def test_the_longest_reply_is_what_the_parameters_say() -> None:
    assert longest_reply({"max_completion_tokens": 10}) == longest_reply({"max_tokens": 10}) == 10
    assert longest_reply({"temperature": 0}) == 0


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"input": 1},
        {"input": "much", "output": 1},
        {"input": None, "output": 1},
        {"input": 1, "output": 1, "batch": "half"},
        {"input": -1, "output": 1},
        {"input": 10**400, "output": 1},
        {"input": 1, "output": float("nan")},
        {"input": 1, "output": 1, "cached_input": float("inf")},
    ],
)
def test_a_malformed_price_is_named(tables: dict[str, Any], row: dict[str, Any]) -> None:
    tables["m"] = row
    with pytest.raises(UserError, match=r"prices\.toml, \[m\]: input and output must be numbers"):
        price("m")


@pytest.mark.parametrize("row", [{}, {"context": "8k"}, {"context": True}, {"context": 1.5}])
def test_a_malformed_window_is_named(tables: dict[str, Any], row: dict[str, Any]) -> None:
    tables["m"] = row
    with pytest.raises(UserError, match=r"models\.toml, \[m\]: context must be a whole number"):
        window("m")


def test_a_table_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "prices.toml").write_text("[gpt-5\n", "utf-8")
    with pytest.raises(UserError, match=r"prices\.toml: can't be read"):
        money._table(tmp_path / "prices.toml")


def test_the_tables_that_come_with_it_can_be_read() -> None:
    assert price("gpt-4o-mini") == Price(input=0.15, cached_input=0.075, output=0.60, batch=0.5)
    assert price("text-embedding-3-small") == Price(input=0.02, cached_input=0.02, output=0, batch=0.5)
    assert window("gpt-4o-mini") == 128_000
    assert (price("model-a"), window("model-a")) == (None, None)


def test_a_purse_without_caps_lets_everything_go() -> None:
    async def spend() -> None:
        purse = Purse()
        for _ in range(3):
            purse.settle(await purse.reserve(1e9), 5.0)
        assert (purse.spent, purse.requests) == (15.0, 3)

    asyncio.run(spend())


def test_requests_count_from_what_was_sent_before() -> None:
    async def spend() -> None:
        purse = Purse(max_requests=5, requests=3)
        for _ in range(2):
            await purse.reserve(0.0)
        with pytest.raises(BudgetError, match="--max-requests 5"):
            await purse.reserve(0.0)

    asyncio.run(spend())


def test_a_request_waits_for_what_those_in_flight_really_cost() -> None:
    async def spend() -> None:
        purse = Purse(max_cost=1.0, spent=0.5)
        first = await purse.reserve(0.4)
        second = asyncio.create_task(purse.reserve(0.4))
        await asyncio.sleep(0)
        assert not second.done()  # 0.5 + 0.4 + 0.4 may be too much
        purse.settle(first, 0.1)
        purse.settle(await second, 0.1)  # 0.6 + 0.4 can't be
        with pytest.raises(BudgetError, match=r"--max-cost 1 \(\$0\.3000 left, one more may cost \$0\.4000\)"):
            await purse.reserve(0.4)

    asyncio.run(spend())


def test_a_cap_is_never_crossed_whoever_spends_at_once() -> None:
    """100 tasks with calls of unlike cost, some cancelled in flight."""

    async def spend() -> tuple[float, int]:
        purse, draw = Purse(max_cost=3.0), random.Random(5)
        most = 0.0

        async def calls() -> None:
            nonlocal most
            while True:
                dearest = draw.uniform(0.01, 0.2)
                try:
                    ticket = await purse.reserve(dearest)
                except BudgetError:
                    return
                spent = 0.0
                try:
                    await asyncio.sleep(draw.choice((0, 0.0005)))
                    spent = dearest * draw.random()
                finally:
                    purse.settle(ticket, spent)
                    most = max(most, purse.spent + sum(purse._reserved.values()))

        tasks = [asyncio.create_task(calls()) for _ in range(100)]
        await asyncio.sleep(0.002)
        for task in tasks[::7]:
            task.cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
        assert most <= 3.0
        return purse.spent, len(purse._reserved)

    spent, reserved = asyncio.run(spend())
    assert 2.8 < spent <= 3.0  # what is left is less than the dearest call
    assert reserved == 0


def test_which_models_take_a_number_of_dimensions_stands_in_the_table(tables: dict[str, Any]) -> None:
    tables |= {"old": {"dimensions": False}, "new": {"context": 8}}
    assert [takes_dimensions(name) for name in ("old", "old-2024-01-25", "new", "unknown")] == [
        False,
        False,
        True,
        True,
    ]
    tables["old"] = {"dimensions": 256}
    with pytest.raises(UserError, match=r"\[old\]: dimensions must be true or false"):
        takes_dimensions("old")


def test_ada_has_one_width() -> None:
    assert not takes_dimensions("text-embedding-ada-002")
    assert takes_dimensions("text-embedding-3-small")
