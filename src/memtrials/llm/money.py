"""What calls cost and what models take, from the tables that users edit; and the cap that a stage doesn't cross."""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from memtrials.errors import UserError
from memtrials.records import Call
from memtrials.settings import evaluation

BATCH_SHARE = 0.5
"""What a call in a batch costs of its price."""


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens."""

    input: float
    cached_input: float
    output: float

    def of(self, prompt: int, completion: int, cached: int = 0) -> float:
        """Dollars for so many tokens; cached ones are part of the prompt's."""
        return ((prompt - cached) * self.input + cached * self.cached_input + completion * self.output) / 1e6


def price(model: str) -> Price | None:
    """The price of a model; None when the table doesn't hold it. Raises UserError for a table that can't be read."""
    row = _table(evaluation() / "prices.toml").get(model)
    if row is None:
        return None
    try:
        return Price(float(row["input"]), float(row.get("cached_input", row["input"])), float(row["output"]))
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{evaluation() / 'prices.toml'}, [{model}]: input and output must be numbers") from None


def window(model: str) -> int | None:
    """The context window of a model in tokens; None when the table doesn't hold it. Raises UserError."""
    row = _table(evaluation() / "models.toml").get(model)
    if row is None:
        return None
    if isinstance(row.get("context"), bool) or not isinstance(row.get("context"), int):
        raise UserError(f"{evaluation() / 'models.toml'}, [{model}]: context must be a whole number of tokens")
    size: int = row["context"]
    return size


@cache
def _table(path: Path) -> dict[str, dict[str, Any]]:
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path}: can't be read ({error})") from None


def cost(call: Call, model: str) -> float | None:
    """Dollars of a call with everything it took, unusable replies included; None when price or usage is unknown."""
    known = price(model)
    if known is None or call.prompt_tokens is None or call.completion_tokens is None:
        return None
    spent = known.of(call.prompt_tokens, call.completion_tokens, call.cached_tokens or 0)
    spent += known.of(call.wasted_prompt_tokens, call.wasted_completion_tokens)
    return spent * BATCH_SHARE if call.batch else spent


def tokens_of(call: Call) -> int | None:
    """Tokens of a call in and out, unusable replies included; None when no usage was reported."""
    if call.prompt_tokens is None:
        return None
    last = call.prompt_tokens + (call.completion_tokens or 0)
    return last + call.wasted_prompt_tokens + call.wasted_completion_tokens


def longest_reply(parameters: Mapping[str, Any]) -> int:
    """The most tokens a reply may have under these parameters; 0 where they don't say."""
    return int(parameters.get("max_completion_tokens") or parameters.get("max_tokens") or 0)


class BudgetError(Exception):
    """Nothing more may be spent; work that is left stays pending."""


class Purse:
    """What one stage may still send and spend, counting what this ledger already spent under the same configuration.

    A request is let go only when everything in flight at its dearest, and itself at its dearest, stays within the cap;
    while others are in flight it waits for what they really cost. So the cap is never crossed, as far as the endpoint
    takes prompts for as long as they are in o200k_base.
    """

    def __init__(
        self, max_cost: float | None = None, max_requests: int | None = None, spent: float = 0.0, requests: int = 0
    ) -> None:
        self.max_cost = max_cost
        self.max_requests = max_requests
        self.spent = spent
        self.requests = requests
        self._reserved: dict[object, float] = {}
        self._settled = asyncio.Event()

    async def reserve(self, dearest: float) -> object:
        """Wait until a request of at most that many dollars may go. Raises BudgetError when it never may."""
        while True:
            if self.max_requests is not None and self.requests >= self.max_requests:
                raise BudgetError(f"--max-requests {self.max_requests}")
            if self.max_cost is None or self.spent + sum(self._reserved.values()) + dearest <= self.max_cost:
                break
            if not self._reserved:
                left = max(0.0, self.max_cost - self.spent)
                raise BudgetError(f"--max-cost {self.max_cost:g} (${left:.4f} left, one more may cost ${dearest:.4f})")
            self._settled.clear()
            await self._settled.wait()
        ticket = object()
        self._reserved[ticket] = dearest
        self.requests += 1
        return ticket

    def settle(self, ticket: object, spent: float) -> None:
        """The request of a reservation is over and cost that much."""
        del self._reserved[ticket]
        self.spent += spent
        self._settled.set()
