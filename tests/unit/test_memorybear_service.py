"""What replies of a MemoryBear service mean, and where it is."""

from typing import Any

import pytest

from memtrials.errors import UserError
from memtrials.llm.money import BudgetError
from memtrials.settings import Settings
from memtrials.systems.memorybear.service import connection, trouble_in

KEY = "sk-service-0123456789abcdef0123456789abcdef"


def body(code: int, error: str = "") -> dict[str, Any]:
    return {"code": code, "msg": "", "data": {}, "error": error, "time": 0}


def settings(**variables: str) -> Settings:
    return Settings((("environment", variables),))


INVALID = {"success": False, "error_code": "VALIDATION_FAILED", "message": "bad", "errors": []}
QUOTA = {"success": False, "error_code": "QUOTA_EXCEEDED", "message": "full", "errors": []}

TABLE: list[tuple[str, int, Any, str]] = [
    ("key missing", 400, body(3007), "fatal"),
    ("key unknown", 401, body(3009), "fatal"),
    ("scope missing", 403, body(3012), "fatal"),
    ("second's limit", 429, body(3014), "transient"),
    ("quota of end users", 402, QUOTA, "fatal"),
    ("no UUID", 400, body(1003), "fatal"),
    ("end user unknown", 200, body(4001), "fatal"),
    ("another workspace's", 403, body(6010), "fatal"),
    ("memory config unknown", 400, body(9503), "fatal"),
    ("field missing", 422, INVALID, "fatal"),
    ("errors that are no list", 422, {**INVALID, "errors": 5}, "fatal"),
    ("retrieval failed", 500, body(10001), "transient"),
    ("bad role", 200, body(10001, "unsupported role: system"), "content"),
    ("empty content", 200, body(10001, "message content is empty"), "content"),
    ("no config", 200, body(10001, "memory config not found"), "fatal"),
    ("extraction failed", 200, body(10001, "extraction failed"), "transient"),
    ("unavailable", 503, body(10003), "transient"),
    ("a framework's error", 502, {"code": 502}, "transient"),
    ("no such path", 404, {"code": 404}, "fatal"),
    ("wrong method", 405, {"code": 405}, "fatal"),
    ("request timeout", 408, {"code": 408}, "transient"),
    ("no JSON", 200, None, "transient"),
    ("no code", 200, {"data": {}}, "transient"),
    ("code is false", 200, {"code": False}, "transient"),
    ("gateway's page", 502, None, "transient"),
]


@pytest.mark.parametrize(("status", "reply", "class_"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_failure_is_sorted_by_its_code_and_status(status: int, reply: Any, class_: str):
    trouble = trouble_in(status, reply, {}, passed=False)
    assert trouble is not None
    assert trouble.class_ == class_


def test_code_0_is_success_and_only_below_400():
    assert trouble_in(200, body(0), {}, passed=False) is None
    assert trouble_in(500, body(0), {}, passed=False) is not None


def test_a_request_that_is_not_valid_is_its_items_trouble_once_others_have_passed():
    trouble = trouble_in(422, INVALID, {}, passed=True)
    assert trouble is not None
    assert trouble.class_ == "content"


@pytest.mark.parametrize(("reset", "wait"), [("1000.2", 1.0), ("1004", 4.0), ("990", 1.0), ("x", 1.0)])
def test_the_seconds_limit_is_waited_for_at_least_a_second(reset: str, wait: float):
    trouble = trouble_in(429, body(3014), {"X-RateLimit-Reset": reset}, passed=True, now=1000.0)
    assert trouble is not None
    assert (trouble.wait, trouble.overload) == (pytest.approx(wait), True)


@pytest.mark.parametrize("code", [3015, 3016])
def test_a_limit_of_the_day_stops_everything_and_says_until_when(code: int):
    with pytest.raises(BudgetError, match=rf"code {code}.*run again after 2026-12-01 00:00:00 UTC"):
        trouble_in(429, body(code, "daily limit"), {"X-RateLimit-Reset": "1796083200"}, passed=True)


# Where it is


def headers(**variables: str) -> dict[str, str]:
    found = connection(settings(MEMORY_SERVICE_URL="http://h:8000/", MEMORY_API_KEY=KEY, **variables))
    assert found.place.base_url == "http://h:8000"
    return dict(found.place.headers)


def test_the_key_goes_into_the_header_that_is_named():
    assert headers() == {"Authorization": f"Bearer {KEY}"}
    assert headers(MEMORY_API_KEY_HEADER="X-API-Key") == {"X-API-Key": KEY}
    assert headers(MEMORY_API_KEY_HEADER="") == headers()
    assert headers(MEM_AUTH_HEADER="X-Key", MEM_AUTH_PREFIX="Token") == {"X-Key": f"Token {KEY}"}


def test_a_key_that_says_bearer_itself_is_not_given_another():
    found = connection(settings(MEMORY_SERVICE_URL="http://h", MEMORY_API_KEY=f"Bearer {KEY}"))
    assert dict(found.place.headers) == {"Authorization": f"Bearer {KEY}"}


def test_the_whole_read_url_names_the_service_too():
    found = connection(settings(MEM_SERVICE_URL="https://h:8443/v1/memory/read/internal", MEM_API_KEY=KEY))
    assert found.place.base_url == "https://h:8443"


def test_the_key_is_not_in_what_can_be_printed():
    assert KEY not in repr(connection(settings(MEMORY_SERVICE_URL="http://h", MEMORY_API_KEY=KEY)))


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({}, "MEMORY_SERVICE_URL"),
        ({"MEMORY_SERVICE_URL": "localhost:8000"}, "MEMORY_SERVICE_URL"),
        ({"MEMORY_SERVICE_URL": "http://h"}, "MEMORY_API_KEY"),
        ({"MEMORY_SERVICE_URL": "http://h", "MEMORY_API_KEY": KEY, "SERVICE_TIMEOUT": "soon"}, "SERVICE_TIMEOUT"),
        ({"MEMORY_SERVICE_URL": "http://h", "MEMORY_API_KEY": KEY, "MEMORY_WRITE_PATH": "v1"}, "MEMORY_WRITE_PATH"),
    ],
)
def test_what_is_missing_or_cannot_be_is_named(variables: dict[str, str], named: str):
    with pytest.raises(UserError, match=named):
        connection(settings(**variables))
