"""The strict reading of a judge's reply: a score of 0 or 1, or unreadable. There is no third way to a number."""

from __future__ import annotations

import json
from typing import Any

PARSER_VERSION = 1


class UnreadableError(ValueError):
    """The reply holds no verdict; the work failed, it isn't a 0."""


def parse_score(reply: str) -> tuple[float, str]:
    """The score (0.0 or 1.0) and reason of a `{"score": …, "reason": …}` reply.

    Readable: the object alone, in a code fence, or with text around it; a score written as 1, 1.0 or "1". Raises
    UnreadableError for everything else: no object, several that disagree, a missing score, 0.5, true.
    """
    found = [value for value in _objects(reply) if "score" in value]
    if not found:
        raise UnreadableError("the reply holds no JSON object with a score")
    scores = {_binary(value["score"]) for value in found}
    if len(scores) > 1:
        raise UnreadableError("the reply holds scores that disagree")
    reason = found[-1].get("reason", "")
    return scores.pop(), reason if isinstance(reason, str) else json.dumps(reason, ensure_ascii=False)


def _binary(score: object) -> float:
    value = score.strip() if isinstance(score, str) else score
    if isinstance(value, bool) or value is None:
        raise UnreadableError(f"the score is {json.dumps(score)}, neither 0 nor 1")
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise UnreadableError(f"the score is {json.dumps(score)}, neither 0 nor 1") from None
    if number not in (0.0, 1.0):
        raise UnreadableError(f"the score is {json.dumps(score)}, neither 0 nor 1")
    return number


def _objects(text: str) -> list[dict[str, Any]]:
    """Every outermost JSON object in the text, in order."""
    decoder = json.JSONDecoder()
    found, at = [], 0
    while (start := text.find("{", at)) >= 0:
        try:
            value, at = decoder.raw_decode(text, start)
        except ValueError:
            at = start + 1
            continue
        if isinstance(value, dict):
            found.append(value)
    return found
