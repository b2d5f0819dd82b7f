"""A model that knows every right reply, and a storm of faults on the way to it: a script for a `ModelServer`.

    storm = Storm(READER_FAULTS, seed=1, right=answer_to, rejects=("max_completion_tokens",))
    with ModelServer(storm) as server:
        …
    storm.given["2/query"]  # everything that was sent about that item, in order

What happens to a request follows from the seed, its item and how often the item was asked before. So a run can be
repeated, in whatever order requests arrive. Texts of no use hold a wrong reply: whoever reads them is found out.
"""

import json
import random
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any

from support.model_server import Reply, drop, error, late, ok, raw, reset, slow

SHARE = 0.3
"""Of all requests about items with no fault of their own, those that meet one."""
OWN = 0.04
"""Of all items, those with a fault of their own, which every request about them meets."""
SPELL, UNLUCKY = 7, 0.02
"""The first requests about an unlucky item, more than a run makes, all meet faults of one class: those that lose the
reply or those that make it unusable."""
WAIT = 0.005
"""Seconds: what a server that has too much asks for, and what a slow one takes longer."""
MARK = re.compile(r"\[(\d+/\w+)\]")

Fault = Callable[[str, str], Reply]
"""Makes a reply of the right text and a wrong one."""


def completion(text: str, finish_reason: str = "stop", **message: Any) -> Reply:
    """A chat completion whose message has further fields."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish_reason}
    return raw(json.dumps({"model": "scripted", "choices": [choice]}).encode())


def busy(**headers: str) -> Reply:
    """Too many requests; a header says how long to wait."""
    return error(429, "rate_limit_exceeded", headers={name.replace("_", "-"): value for name, value in headers.items()})


def page(status: int) -> Reply:
    """What a proxy says for the server behind it."""
    return raw(b"<html>\n<body>Please wait</body></html>", "text/html", status)


def half(reply: Reply) -> Reply:
    """A body that ends too early and claims to be whole."""
    return raw(reply.body[: len(reply.body) // 2])


DELIVERED: Mapping[str, Fault] = {
    "latency": lambda right, wrong: late(4 * WAIT, ok(right)),
    "a slow body": lambda right, wrong: slow(4 * WAIT, ok(right)),
    "thoughts": lambda right, wrong: ok(f"<think>\n{wrong}\n</think>\n\n{right}"),
    "thoughts begun in the template": lambda right, wrong: ok(f"{wrong}</think>{right}"),
    "reasoning beside the content": lambda right, wrong: completion(right, reasoning_content=wrong),
    "content in parts": lambda right, wrong: completion(
        "", content=[{"type": "reasoning", "text": wrong}, *({"type": "text", "text": t} for t in _parted(right))]
    ),
}
"""The right text comes all the same."""
LOST: Mapping[str, Fault] = {
    "429": lambda right, wrong: busy(),
    "429, wait in seconds": lambda right, wrong: busy(retry_after=str(WAIT)),
    "429, wait in milliseconds": lambda right, wrong: busy(retry_after_ms=str(1000 * WAIT)),
    "429, wait until a date": lambda right, wrong: busy(retry_after=formatdate(time.time(), usegmt=True)),
    "500": lambda right, wrong: error(500),
    "502": lambda right, wrong: error(502),
    "503": lambda right, wrong: error(503),
    "a dropped connection": lambda right, wrong: drop(),
    "a reset midway": lambda right, wrong: reset(ok(right)),
    "truncated JSON": lambda right, wrong: half(ok(right)),
    "empty choices": lambda right, wrong: raw(b'{"choices": []}'),
    "a page with status 200": lambda right, wrong: page(200),
    "a page with status 502": lambda right, wrong: page(502),
    "an overload with status 200": lambda right, wrong: raw(
        b'{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}'
    ),
    "a reply that broke off": lambda right, wrong: ok(wrong, "error"),
}
"""No reply; the next try may get one."""
UNUSABLE: Mapping[str, Fault] = {
    "null content": lambda right, wrong: ok(None),
    "white space": lambda right, wrong: ok(" \n\t "),
    "thoughts alone": lambda right, wrong: ok(f"<think>{wrong}", "length"),
    "a length stop without text": lambda right, wrong: ok("", "length"),
    "a refusal": lambda right, wrong: ok(wrong, refusal="I can't help with that."),
    "a filter": lambda right, wrong: ok(wrong, "content_filter"),
}
"""A reply of no use; the next may be of some."""
OF_ITEM: Mapping[str, Fault] = {
    "too long by its code": lambda right, wrong: error(400, "context_length_exceeded", "at most 8192 tokens"),
    "too long by its message": lambda right, wrong: error(400, None, "This model's maximum context length is 8192."),
    "content policy": lambda right, wrong: error(400, "content_policy_violation", "rejected by the safety system"),
    "invalid prompt": lambda right, wrong: error(400, "invalid_prompt", "the prompt can't be taken"),
    "refused for ever": lambda right, wrong: ok(None, refusal="I can't help with that."),
    "filtered for ever": lambda right, wrong: ok(wrong, "content_filter"),
    "empty for ever": lambda right, wrong: ok(None),
}
"""What every request about that item meets."""
REJECTED = "a rejected parameter"


def _parted(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


@dataclass(frozen=True)
class Faults:
    """What can happen to a reader's or a judge's replies, beside LOST and OF_ITEM, which happen to both."""

    delivered: Mapping[str, Fault]
    unusable: Mapping[str, Fault]

    @property
    def passing(self) -> Mapping[str, Fault]:
        """All that may be different with the next request."""
        return {**self.delivered, **self.unusable, **LOST}


READER_FAULTS = Faults(
    {**DELIVERED, "a length stop after some text": lambda right, wrong: ok(right, "length")},
    UNUSABLE,
)
JUDGE_FAULTS = Faults(
    {
        **DELIVERED,
        "a fenced verdict": lambda right, wrong: ok(f"```json\n{right}\n```"),
        "a noisy verdict": lambda right, wrong: ok(f"Let me see.\n{right}\nThat is {{all}}."),
        "a quoted score": lambda right, wrong: ok(re.sub(r"([01])", r'"\1"', right, count=1)),
    },
    {
        **UNUSABLE,
        "a length stop after a verdict": lambda right, wrong: ok(wrong, "length"),
        "prose": lambda right, wrong: ok("Yes, I'd give it a 1."),
        "two verdicts": lambda right, wrong: ok(f"{right}\nOr rather\n{wrong}"),
        "a half": lambda right, wrong: ok('{"score": 0.5, "reason": "r"}'),
        "a score that is true": lambda right, wrong: ok('{"score": true, "reason": "r"}'),
        "half a verdict": lambda right, wrong: ok(wrong[:-1]),
    },
)


@dataclass(frozen=True)
class Given:
    """What one request got. fault: None for a plain right reply. at: seconds, on the clock of `time.monotonic`."""

    fault: str | None
    reply: Reply
    at: float


class Storm:
    """A script. right: the right and a wrong text for an item, which its prompt names as `[task/query]`; rejects:
    parameters that no request may hold."""

    def __init__(
        self, faults: Faults, *, seed: int, right: Callable[[str], tuple[str, str]], rejects: Sequence[str] = ()
    ) -> None:
        self.faults = faults
        self.seed = seed
        self.right = right
        self.rejects = rejects
        self.given: dict[str, list[Given]] = defaultdict(list)
        self._drawing = threading.Lock()

    def __call__(self, number: int, body: dict[str, Any]) -> Reply:
        found = MARK.search(body["messages"][1]["content"])
        assert found is not None
        item = found[1]
        with self._drawing:
            fault, reply = self._drawn(item, body)
            self.given[item].append(Given(fault, reply, time.monotonic()))
        return reply

    def fault_of(self, item: str) -> str | None:
        """The fault that every request about this item meets, if it has one."""
        chance = random.Random(f"{self.seed} {item}")
        return chance.choice([*OF_ITEM]) if chance.random() < OWN else None

    def _spell_of(self, item: str) -> Mapping[str, Fault] | None:
        """The faults that the first requests about this item meet, if it is an unlucky one."""
        chance = random.Random(f"{self.seed} unlucky {item}")
        return chance.choice([LOST, self.faults.unusable]) if chance.random() < UNLUCKY else None

    def _drawn(self, item: str, body: dict[str, Any]) -> tuple[str | None, Reply]:
        for parameter in self.rejects:
            if parameter in body:
                message = f"Unsupported parameter: '{parameter}' is not supported with this model."
                return REJECTED, error(400, "unsupported_parameter", message)
        right, wrong = self.right(item)
        own = self.fault_of(item)
        if own is not None:
            return own, OF_ITEM[own](right, wrong)
        before = sum(given.fault != REJECTED for given in self.given[item])
        chance = random.Random(f"{self.seed} {item} {before}")
        faults = self._spell_of(item) if before < SPELL else None
        if faults is None and chance.random() >= SHARE:
            return None, ok(right)
        faults = faults or self.faults.passing
        fault = chance.choice([*faults])
        return fault, faults[fault](right, wrong)
