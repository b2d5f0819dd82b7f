"""What goes wrong with model calls, by the bodies that servers really send."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from memtrials.llm.troubles import Trouble, asked_wait, classify, error_in

SENT = {"max_completion_tokens": 16384, "temperature": 0, "seed": 7, "response_format": {"type": "json_object"}}
OLD = {"max_tokens": 16384}


class Case(NamedTuple):
    """A reply, and what is behind it. kind: the class, with what goes with it."""

    status: int
    body: Any
    kind: str
    sent: Mapping[str, Any] = SENT


def openai(message: str, type_: str, code: str | None, param: str | None = None) -> dict[str, Any]:
    """An error as OpenAI writes it."""
    return {"error": {"message": message, "type": type_, "param": param, "code": code}}


def anthropic(type_: str, message: str) -> dict[str, Any]:
    """An error as Anthropic writes it."""
    return {"type": "error", "error": {"type": type_, "message": message}, "request_id": "req_1"}


def vllm(message: str, param: str | None = None) -> dict[str, Any]:
    """An error as vLLM wrote it for long: no `error` around it, the status as code."""
    return {"object": "error", "message": message, "type": "BadRequestError", "param": param, "code": 400}


INVALID = "invalid_request_error"

CASES: dict[str, Case] = {
    # the account, the model, the request as such
    "OpenAI: a wrong key": Case(401, openai("Incorrect API key provided: sk-…", INVALID, "invalid_api_key"), "fatal"),
    "OpenAI: no such model": Case(404, openai("The model `gpt-9` does not exist", INVALID, "model_not_found"), "fatal"),
    "OpenAI: no credit, with the status of a rate limit": Case(
        429, openai("You exceeded your current quota", "insufficient_quota", "insufficient_quota"), "fatal"
    ),
    "OpenAI: a hard limit of the account": Case(
        400, openai("Billing hard limit has been reached", INVALID, "billing_hard_limit_reached"), "fatal"
    ),
    "OpenAI: a limit that is too large by any name": Case(
        400,
        openai(
            "max_tokens is too large: 16384. This model supports at most 4096", INVALID, "invalid_value", "max_tokens"
        ),
        "fatal",
        OLD,
    ),
    "Azure: a wrong key": Case(
        401, {"error": {"code": "401", "message": "Access denied due to invalid subscription key"}}, "fatal"
    ),
    "Azure: no such deployment": Case(
        404, {"error": {"code": "DeploymentNotFound", "message": "The API deployment does not exist."}}, "fatal"
    ),
    "vLLM: no such model": Case(
        404,
        {"object": "error", "message": "The model `x` does not exist.", "type": "NotFoundError", "code": 404},
        "404",
    ),
    "Ollama: no such model": Case(404, {"error": "model 'x' not found, try pulling it first"}, "404"),
    "DeepSeek: no credit": Case(402, openai("Insufficient Balance", "unknown_error", INVALID), "fatal"),
    "DashScope: no credit": Case(
        400,
        {
            "error": {
                "code": "Arrearage",
                "message": "Access denied, please make sure your account is in good standing.",
            }
        },
        "fatal",
    ),
    "DashScope: a wrong key": Case(401, openai("Incorrect API key provided.", INVALID, "invalid_api_key"), "fatal"),
    "Anthropic: a wrong key": Case(401, anthropic("authentication_error", "invalid x-api-key"), "fatal"),
    "Anthropic: no credit": Case(400, anthropic(INVALID, "Your credit balance is too low"), "fatal"),
    "a page of another server": Case(404, "<html>Not found</html>", "404"),
    # what may pass
    "OpenAI: a rate limit": Case(
        429, openai("Rate limit reached for gpt-4o", "tokens", "rate_limit_exceeded"), "overload"
    ),
    "OpenAI: a server error": Case(500, openai("The server had an error", "server_error", None), "transient"),
    "OpenAI: overloaded": Case(503, openai("That model is currently overloaded", "server_error", None), "overload"),
    "Azure: a rate limit": Case(
        429,
        {"error": {"code": "429", "message": "Requests have exceeded the call rate limit. Retry after 6 seconds."}},
        "overload",
    ),
    "Anthropic: overloaded": Case(529, anthropic("overloaded_error", "Overloaded"), "overload"),
    "Anthropic: overloaded, with status 200": Case(200, anthropic("overloaded_error", "Overloaded"), "overload"),
    "Anthropic: a rate limit": Case(
        429, anthropic("rate_limit_error", "This request would exceed your limit"), "overload"
    ),
    "Anthropic: an error of theirs": Case(500, anthropic("api_error", "Internal server error"), "transient"),
    "DashScope: a rate limit": Case(
        429, openai("Requests rate limit exceeded", "limit_requests", "limit_requests"), "overload"
    ),
    "DashScope: a rate limit with status 400": Case(
        400, {"code": "Throttling.RateQuota", "message": "Requests rate limit exceeded", "request_id": "1"}, "overload"
    ),
    "Gemini: a rate limit, in a list": Case(
        429, [{"error": {"code": 429, "message": "Resource exhausted", "status": "RESOURCE_EXHAUSTED"}}], "overload"
    ),
    "OpenRouter: a provider's error with status 200": Case(
        200, {"error": {"code": 502, "message": "Provider error"}}, "transient"
    ),
    "OpenRouter: a rate limit with status 200": Case(
        200, {"error": {"code": 429, "message": "Rate limited"}}, "overload"
    ),
    "llama.cpp: loading": Case(
        503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, "overload"
    ),
    "a server error under a 400": Case(400, openai("try again", "server_error", "server_error"), "transient"),
    "a time limit": Case(408, "", "transient"),
    "too early": Case(425, "", "transient"),
    "a conflict": Case(409, "", "transient"),
    "a gateway's page": Case(502, "<html>Bad Gateway</html>", "transient"),
    # this item
    "OpenAI: over the window": Case(
        400,
        openai("This model's maximum context length is 128000 tokens.", INVALID, "context_length_exceeded", "messages"),
        "too long",
    ),
    "OpenAI: a prompt against the policy": Case(
        400, openai("Invalid prompt: your prompt was flagged", INVALID, "invalid_prompt"), "content"
    ),
    "Azure: the filter": Case(
        400,
        {
            "error": {
                "message": "The response was filtered: the prompt triggered Azure OpenAI's content management policy.",
                "type": None,
                "param": "prompt",
                "code": "content_filter",
                "status": 400,
                "innererror": {"code": "ResponsibleAIPolicyViolation"},
            }
        },
        "content",
    ),
    "vLLM: over the window": Case(
        400, vllm("This model's maximum context length is 4096 tokens. However, you requested 20480 tokens"), "too long"
    ),
    "vLLM: over the window, blamed on the limit": Case(
        400,
        vllm(
            "'max_tokens' or 'max_completion_tokens' is too large: 16384. This model's maximum context length is 8192 "
            "tokens and your request has 100 input tokens",
            "max_tokens",
        ),
        "too long",
        OLD,
    ),
    "llama.cpp: over the window": Case(
        400,
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 1407,
                "n_ctx": 256,
            }
        },
        "too long",
    ),
    "llama.cpp: over the window, as its own fault": Case(
        500, {"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}}, "too long"
    ),
    "DashScope: over the window": Case(
        400,
        openai(
            "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 129024]",
            INVALID,
            "invalid_parameter_error",
        ),
        "too long",
    ),
    "DashScope: the filter": Case(
        400,
        openai("Input data may contain inappropriate content.", "data_inspection_failed", "data_inspection_failed"),
        "content",
    ),
    "DashScope: the filter, in its own spelling": Case(
        400, {"code": "DataInspectionFailed", "message": "Input data may be unsuitable."}, "content"
    ),
    "Anthropic: over the window": Case(
        400, anthropic(INVALID, "prompt is too long: 208310 tokens > 200000 maximum"), "too long"
    ),
    "Anthropic: a body that is too large": Case(
        413, anthropic("request_too_large", "Request exceeds the maximum size"), "too long"
    ),
    "OpenRouter: moderation": Case(
        403, {"error": {"code": 403, "message": "Input was flagged", "metadata": {"reasons": ["violence"]}}}, "content"
    ),
    # a parameter
    "OpenAI: the limit's new name": Case(
        400,
        openai(
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' "
            "instead.",
            INVALID,
            "unsupported_parameter",
            "max_tokens",
        ),
        "without max_tokens",
        OLD,
    ),
    "OpenAI: no temperature": Case(
        400,
        openai(
            "Unsupported value: 'temperature' does not support 0 with this model.",
            INVALID,
            "unsupported_value",
            "temperature",
        ),
        "without temperature",
    ),
    "OpenAI: no JSON": Case(
        400,
        openai(
            "Invalid parameter: 'response_format' of type 'json_object' is not supported with this model.",
            INVALID,
            None,
            "response_format",
        ),
        "without response_format",
    ),
    "Azure: an old version": Case(
        400, openai("Unrecognized request argument supplied: seed", INVALID, None), "without seed"
    ),
    "Mistral: an unknown field": Case(
        422,
        {"detail": [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]},
        "without seed",
    ),
    "Anthropic: the limit's old name": Case(
        400,
        anthropic(INVALID, "max_completion_tokens: Extra inputs are not permitted"),
        "without max_completion_tokens",
    ),
    "one that isn't sent": Case(
        400, openai("Unsupported parameter: 'top_k'", INVALID, "unsupported_parameter", "top_k"), "fatal"
    ),
    "one that only the text mentions": Case(400, openai("temperature must be between 0 and 2", INVALID, None), "fatal"),
}


def kind(trouble: Trouble) -> str:
    """A trouble in a word or two."""
    if trouble.parameter:
        return f"without {trouble.parameter}"
    if trouble.no_path:
        return "404"
    return "too long" if trouble.too_long else "overload" if trouble.overload else trouble.class_


def of(case: Case, *, passed: bool = False) -> Trouble:
    """The trouble behind a case."""
    raw = case.body if isinstance(case.body, str) else json.dumps(case.body)
    return classify(case.status, error_in(raw), {}, case.sent, passed=passed)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_servers_really_say(case: Case) -> None:
    trouble = of(case)
    assert kind(trouble) == case.kind
    assert "\n" not in trouble.message
    classes = {"overload": "transient", "too long": "content", "404": "fatal"}
    without = "fatal" if case.kind.startswith("without") else case.kind  # unless the request can be changed
    assert trouble.class_ == classes.get(case.kind, without)


def test_a_request_that_cannot_be_served_is_this_items_trouble_once_others_have_passed() -> None:
    """A message nobody knows: with the first request it stops the stage, later it can't be what all requests share."""
    strange = Case(400, openai("Invalid 'messages[1].content': bad surrogate", INVALID, None), "")
    assert of(strange).class_ == "fatal"
    assert of(strange, passed=True).class_ == "content"
    for name in ("OpenAI: a wrong key", "OpenAI: no credit, with the status of a rate limit", "DeepSeek: no credit"):
        assert of(CASES[name], passed=True).class_ == "fatal", name


@pytest.mark.parametrize(
    "raw", ["", "null", "[]", "{}", "[[]]", '"no"', '{"error": null}', '{"error": []}', 9_000 * "["]
)
def test_a_body_that_says_nothing_has_a_message_all_the_same(raw: str) -> None:
    for status in (400, 404, 500):
        assert classify(status, error_in(raw), {}, {}).message


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "1"}, 1.0),
        ({"retry-after": "Mon, 30 Nov 2026 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Mon, 30 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "Monday, 30-Nov-26 12:00:30 GMT"}, 30.0),
        ({"retry-after": "Mon Nov 30 12:00:30 2026"}, 30.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
    ],
)
def test_what_a_server_asks_to_wait(headers: dict[str, str], seconds: float | None) -> None:
    noon = 1_796_040_000.0  # Mon, 30 Nov 2026 12:00:00 GMT
    assert asked_wait(headers, now=noon) == seconds


@pytest.mark.parametrize(
    "message",
    [
        "response_format value as json_schema is enabled only for api versions 2024-08-01-preview and later",
        "Invalid parameter: 'response_format' must be one of 'json_object', 'text'.",
        "This response_format type is unavailable now",
        "The model does not support response format `json_schema`",
    ],
)
def test_whatever_is_said_against_the_response_format_is_a_rejection(message: str):
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    assert classify(400, error, {}, {"response_format": {"type": "json_schema"}}).parameter == "response_format"
    assert classify(400, error, {}, {"max_tokens": 10}).parameter is None
