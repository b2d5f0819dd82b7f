"""The strict reading of a judge's reply: a score of 0 or 1, or unreadable. There is no third way to a number."""

from __future__ import annotations

import json
import re
from typing import Any

PARSER_VERSION = 1
_WRITTEN = re.compile(r"[01](?:\.0+)?")
_BEGUN = re.compile(r'\{\s*"score"\s*:\s*"?([01])(?:\.0+)?"?\s*[,}]')


class UnreadableError(ValueError):
    """The reply holds no verdict; the work failed, it isn't a 0."""


def parse_score(reply: str) -> tuple[float, str]:
    """The score (0.0 or 1.0) and reason of a `{"score": …, "reason": …}` reply.

    Readable: the object alone, in a code fence, or with text around it; a score written as 1, 1.0 or "1". Raises
    UnreadableError for everything else: no object, several that disagree, a missing score, 0.5, true. An object that
    can't be decoded gives no score, but its score has a say in whether there are several: in
    `{"score": 0, "reason": "it says "{"score": 1}""}` the judge's own isn't the one that decodes.
    """
    objects, broken = _objects(reply)
    found = [value for value in objects if "score" in value]
    if not found:
        raise UnreadableError("the reply holds no JSON object with a score")
    scores = {_binary(value["score"]) for value in found}
    if len(scores | broken) > 1:
        raise UnreadableError("the reply holds scores that disagree")
    reason = found[-1].get("reason", "")
    return scores.pop(), reason if isinstance(reason, str) else json.dumps(reason, ensure_ascii=False)


def holds_verdict(answer: str) -> bool:
    """Whether a text that is to be judged holds a verdict in the judge's own form."""
    try:
        parse_score(answer)
    except UnreadableError:
        return False
    return True


def _binary(score: object) -> float:
    value = float(score) if isinstance(score, str) and _WRITTEN.fullmatch(score.strip()) else score
    if isinstance(value, bool) or value not in (0, 1):
        raise UnreadableError(f"the score is {json.dumps(score)[:60]}, neither 0 nor 1")
    return 1.0 if value else 0.0


def _objects(text: str) -> tuple[list[dict[str, Any]], set[float]]:
    """Every outermost JSON object in the text, in order, and the scores that objects which can't be decoded begin with.

    Line breaks inside strings are let pass, as models write them. Raises UnreadableError.
    """
    decoder = json.JSONDecoder(object_pairs_hook=_each_once, strict=False)
    found: list[dict[str, Any]] = []
    broken: set[float] = set()
    at = 0
    while (start := text.find("{", at)) >= 0:
        try:
            value, at = decoder.raw_decode(text, start)
            found.append(value)
        except RecursionError:
            raise UnreadableError("the reply is nested too deeply") from None
        except ValueError:
            at = start + 1
            if begun := _BEGUN.match(text, start):
                broken.add(float(begun[1]))
    return found, broken


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of these. Raises ValueError for a key that occurs twice: which value is meant can't be known."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key occurs twice")
    return value
