"""What calls cost and what models take, from the tables that users edit; and the cap that a stage doesn't cross."""

from __future__ import annotations

import asyncio
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from memtrials.errors import UserError
from memtrials.records import Call
from memtrials.settings import evaluation

_DATED = re.compile(r"-20\d\d(-?)(0[1-9]|1[0-2])\1(0[1-9]|[12]\d|3[01])\Z")
"""The date at the end of a snapshot's name: `-2024-07-18` or `-20240718`."""


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens. batch: the share of it that a call in a batch costs."""

    input: float
    cached_input: float
    output: float
    batch: float = 1.0

    def of(self, prompt: int, completion: int, cached: int = 0) -> float:
        """Dollars for so many tokens; cached ones are part of the prompt's, and none where they can't be."""
        if not 0 <= cached <= prompt:
            cached = 0
        return ((prompt - cached) * self.input + cached * self.cached_input + completion * self.output) / 1e6


def price(model: str, returned: str | None = None) -> Price | None:
    """The price of a model; None when the table doesn't hold it.

    model: as asked; returned: as the endpoint named it. Raises UserError for a table that can't be read.
    """
    path = evaluation() / "prices.toml"
    table = _table(path)
    name = _named(table, model, returned)
    if name is None:
        return None
    row = table[name]
    try:
        batch = row.get("batch", table.get("batch", 1.0))
        return Price(*map(_amount, (row["input"], row.get("cached_input", row["input"]), row["output"], batch)))
    except (KeyError, TypeError, ValueError, OverflowError):
        told = "input and output must be numbers, 0 or more, and so must cached_input and batch, if given"
        raise UserError(f"{path}, [{name}]: {told}") from None


def _amount(value: Any) -> float:
    """A number from a table of prices. Raises TypeError, ValueError or OverflowError for what is none."""
    amount = float(value)
    if not 0 <= amount < math.inf:
        raise ValueError(value)
    return amount


def window(model: str) -> int | None:
    """The context window of a model in tokens; None when the table doesn't hold it. Raises UserError."""
    path = evaluation() / "models.toml"
    table = _table(path)
    name = _named(table, model)
    if name is None:
        return None
    size = table[name].get("context")
    if isinstance(size, bool) or not isinstance(size, int):
        raise UserError(f"{path}, [{name}]: context must be a whole number of tokens")
    return size


def takes_dimensions(model: str) -> bool:
    """Whether an embedding model can be asked for a number of dimensions; True unless the table says otherwise. Raises
    UserError."""
    path = evaluation() / "models.toml"
    table = _table(path)
    name = _named(table, model)
    takes = True if name is None else table[name].get("dimensions", True)
    if not isinstance(takes, bool):
        raise UserError(f"{path}, [{name}]: dimensions must be true or false")
    return takes


def _named(table: Mapping[str, Any], model: str, returned: str | None = None) -> str | None:
    """The row of a model: the name that was asked for, else the one that came back, else these without the date of a
    snapshot. Nothing else is guessed: names that begin alike are other models at other prices."""
    names = [name for name in (model, returned) if name]
    names += [undated for name in names if (undated := _DATED.sub("", name)) != name]
    return next((name for name in names if isinstance(table.get(name), dict)), None)


@cache
def _table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path}: can't be read ({error})") from None


def cost(call: Call, model: str) -> float | None:
    """Dollars of a call with everything it took, unusable replies included; None when price or usage is unknown, which
    counts below 0 make it."""
    known = price(model, call.model_returned)
    if known is None or call.prompt_tokens is None or call.completion_tokens is None:
        return None
    if min(call.prompt_tokens, call.completion_tokens, call.wasted_prompt_tokens, call.wasted_completion_tokens) < 0:
        return None
    spent = known.of(call.prompt_tokens, call.completion_tokens, call.cached_tokens or 0)
    spent += known.of(call.wasted_prompt_tokens, call.wasted_completion_tokens)
    return spent * known.batch if call.batch else spent


def embedding_cost(usage: Mapping[str, int], model: str) -> float | None:
    """Dollars of what was sent to be embedded, by a record's `usage`; None when price or tokens are unknown."""
    if not usage.get("embedding_requests"):
        return 0.0
    known, tokens = price(model), usage.get("embedding_tokens")
    return None if known is None or tokens is None else known.of(tokens, 0)


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
        while (ticket := self.admit(dearest)) is None:
            self._settled.clear()
            await self._settled.wait()
        return ticket

    def admit(self, dearest: float) -> object | None:
        """A reservation for a request of at most that many dollars; None while that depends on those in flight. Raises
        BudgetError when it never may go."""
        if self.max_requests is not None and self.requests >= self.max_requests:
            raise BudgetError(f"--max-requests {self.max_requests}")
        if self.max_cost is not None and self.spent + sum(self._reserved.values()) + dearest > self.max_cost:
            if self._reserved:
                return None
            left = max(0.0, self.max_cost - self.spent)
            raise BudgetError(f"--max-cost {self.max_cost:g} (${left:.4f} left, one more may cost ${dearest:.4f})")
        ticket = object()
        self._reserved[ticket] = dearest
        self.requests += 1
        return ticket

    def settle(self, ticket: object, spent: float) -> None:
        """The request of a reservation is over and cost that much."""
        del self._reserved[ticket]
        self.spent += spent
        self._settled.set()
