"""What went wrong with a model call, and what to do about it: decided here alone, by error code before status.

fatal: every request will meet it (key, model, credit, a parameter that can't be left out), so the stage stops.
transient: it may pass, so it is tried again. content: it is about this item, so it never stops the stage. What a reply
*says* is never read as a refusal; only what the provider signals is.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from memtrials.errors import FailureClass

LONGEST_WAIT = 60.0
"""Seconds between two tries at most, unless the server asks for more."""
TRANSIENT_STATUS = frozenset((408, 409, 425, 429))
OVERLOAD_STATUS = frozenset((429, 503, 529))
OVERLOAD_CODES = frozenset(
    (
        "engineoverloaded",
        "modeloverloaded",
        "overloaded",
        "overloadederror",
        "ratelimiterror",
        "ratelimitexceeded",
        "resourceexhausted",
        "serveroverloaded",
        "throttling",
        "toomanyrequests",
    )
)
TRANSIENT_CODES = frozenset(("apierror", "internalerror", "internalservererror", "servererror", "timeout"))
TOO_LONG_CODES = frozenset(
    ("contextlengthexceeded", "exceedcontextsizeerror", "requesttoolarge", "stringabovemaxlength")
)
ITEM_CODES = frozenset(
    (
        "contentfilter",
        "contentpolicyviolation",
        "datainspectionfailed",
        "invalidprompt",
        "responsibleaipolicyviolation",
    )
)
FATAL_CODES = frozenset(
    (
        "accountdeactivated",
        "arrearage",
        "authenticationerror",
        "billinghardlimitreached",
        "billingnotactive",
        "deploymentnotfound",
        "insufficientbalance",
        "insufficientquota",
        "invalidapikey",
        "modelnotfound",
        "permissionerror",
    )
)
"""Codes as providers write them (`code`, `type` or `status`), in lower case and letters alone."""
ITEM_STATUS = frozenset((400, 413, 422))
"""A request that can't be served: for what all share, or for what is in this one."""
ADAPTABLE = ("max_completion_tokens", "max_tokens", "response_format", "temperature", "top_p", "seed")
"""Parameters that a request can do without, or that have another name elsewhere."""
_TOO_LONG = re.compile(
    r"context (length|size|window)|maximum context|too many tokens|(prompt|input) is too long|range of input length"
    r"|exceeds? the (maximum|available) (context|number of tokens)|input token count",
    re.IGNORECASE,
)
_POLICY = re.compile(r"content management policy|flagged|moderation|inappropriate content", re.IGNORECASE)
_REJECTED = re.compile(
    r"unsupported|not support|not permitted|not allowed|unrecognized|unknown|unexpected|deprecated", re.IGNORECASE
)


@dataclass(frozen=True)
class Trouble:
    """One thing that went wrong.

    wait: seconds the server asks to wait. overload: whether to send less at once. parameter: one that was rejected and
    that the request can do without. too_long: the prompt is over the model's window. no_path: nothing answers at this
    URL, and no model is named. adapted: the request has been changed and may pass now.
    """

    class_: FailureClass
    message: str
    wait: float | None = None
    overload: bool = False
    parameter: str | None = None
    too_long: bool = False
    no_path: bool = False
    adapted: bool = False


def error_in(raw: str) -> Mapping[str, Any]:
    """The error object in a body, in any of the forms that servers have: alone, under `error` or `detail`, listed."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        body = None
    if isinstance(body, list) and body:
        body = body[0]
    for name in ("error", "detail"):
        if isinstance(body, dict) and body.get(name):
            body = body[name]
    if isinstance(body, list) and body and isinstance(body[0], dict):  # FastAPI: what is wrong with which field
        first = body[0]
        place = first.get("loc")
        named = str(place[-1]) if isinstance(place, list) and place else None
        return {"message": f"{named}: {first.get('msg')}", "param": named, "code": first.get("type")}
    if isinstance(body, dict) and (body.get("message") or body.get("code") or body.get("type")):
        return body
    return {"message": body if isinstance(body, str) else raw[:200]}


def classify(
    status: int, error: Mapping[str, Any], headers: Mapping[str, str], sent: Mapping[str, Any], *, passed: bool = False
) -> Trouble:
    """The trouble behind an error reply.

    status: of the reply; 200 where an error came in its place. error: see `error_in`. sent: the parameters of the
    request, of which one may be what was rejected. passed: whether such a request has passed already; then one that
    can't be served, nobody knows why, is this item's trouble.
    """
    codes = {re.sub("[^a-z]", "", str(error.get(name) or "").lower()) for name in ("code", "type", "status")}
    message = " ".join(str(error.get("message") or error.get("code") or error.get("type") or "no message").split())
    message = message[:500]
    if status == 200:
        status = _status_in(error)
    wait = asked_wait(headers)
    unserved = status in ITEM_STATUS or status >= 500
    if codes & FATAL_CODES:
        return Trouble("fatal", message)
    if codes & TOO_LONG_CODES or status == 413 or (unserved and _TOO_LONG.search(message)):
        return Trouble("content", message, too_long=True)
    if codes & ITEM_CODES:
        return Trouble("content", message)
    if status in OVERLOAD_STATUS or codes & OVERLOAD_CODES or any(code.startswith("throttling") for code in codes):
        return Trouble("transient", message, wait=wait, overload=True)
    if status in TRANSIENT_STATUS or status >= 500 or codes & TRANSIENT_CODES:
        return Trouble("transient", message, wait=wait)
    if status in ITEM_STATUS and (parameter := _rejected(error, codes, message, sent)):
        return Trouble("fatal", message, parameter=parameter)
    moderated = status == 403 and isinstance(error.get("metadata"), Mapping) and "reasons" in error["metadata"]
    if moderated or (status in ITEM_STATUS and (passed or _POLICY.search(message))):
        return Trouble("content", message)
    return Trouble("fatal", message, no_path=status == 404)


def _status_in(error: Mapping[str, Any]) -> int:
    """The status that an error names itself; 500 where it names none."""
    for name in ("code", "status"):
        value = error.get(name)
        if str(value).isdigit() and 400 <= int(str(value)) < 600:
            return int(str(value))
    return 500


def _rejected(error: Mapping[str, Any], codes: set[str], message: str, sent: Mapping[str, Any]) -> str | None:
    """The parameter that an error says isn't taken and that the request holds.

    A response format is asked for by us alone, so whatever an endpoint says against it is a rejection.
    """
    if "response_format" in sent and re.search(r"response[_ ]format|json_schema", f"{error.get('param')} {message}"):
        return "response_format"
    if not (_REJECTED.search(message) or any(_REJECTED.search(code) or "extraforbidden" in code for code in codes)):
        return None
    named = re.split(r"[.\[]", str(error.get("param") or ""))[0]
    if named in ADAPTABLE and named in sent:
        return named
    found = [p for p in ADAPTABLE if p in sent and re.search(rf"\b{p}\b", message)]
    return min(found, key=message.index) if found else None


def asked_wait(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Seconds that a reply's headers ask to wait: `retry-after-ms`, or `retry-after` in seconds or as an HTTP date.

    now: seconds since the epoch. None where they ask for nothing that can be read.
    """
    milliseconds, text = headers.get("retry-after-ms"), headers.get("retry-after")
    if (value := _number(milliseconds)) is not None:
        return value / 1000
    if text is None or (value := _number(text)) is not None:
        return value
    try:
        from email.utils import parsedate_to_datetime

        at = parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, at - (time.time() if now is None else now))


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None


def pauses(first: float) -> Generator[float, Any, None]:
    """Seconds to wait before each next try: what the server asks for, else exponential with full jitter.

    backoff sends the error of each try and drops what is yielded before the first.
    """
    longest, error = first, (yield 0.0)
    while True:
        wait = error.trouble.wait
        error = yield random.uniform(0, longest) if wait is None else wait
        longest = min(LONGEST_WAIT, longest * 2)
