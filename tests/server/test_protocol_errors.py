"""Errors with a wrong status or shape, and answers that tell a client about files or code of the server."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from launcher.errors import (
    Cancelled,
    ContextFull,
    EngineCrash,
    InternalError,
    MindnanoError,
    PackageError,
    RequestError,
    ResourceError,
    UsageError,
)
from launcher.server.protocol.errors import ContextLengthExceeded, error_body


def told(error: Exception) -> tuple[int, dict[str, Any]]:
    status, _headers, data = error_body(error)
    document = json.loads(data)
    assert list(document) == ["error"]
    shown: dict[str, Any] = document["error"]
    assert {"message", "type", "param", "code"} <= set(shown)
    return status, shown


def test_a_request_error_is_told_as_it_is() -> None:
    error = RequestError(
        "queue_full",
        "8 requests wait",
        status=429,
        kind="rate_limit_error",
        param=None,
        headers={"Retry-After": "3"},
        hint="try again",
    )
    status, headers, data = error_body(error)
    assert (status, headers) == (429, {"Retry-After": "3"})
    shown = {"message": "8 requests wait; try again", "type": "rate_limit_error", "param": None, "code": "queue_full"}
    assert json.loads(data) == {"error": shown}


def test_a_context_that_is_too_short_has_both_counts() -> None:
    status, shown = told(ContextLengthExceeded(5000, 4096, param="messages"))
    assert (status, shown["code"], shown["n_prompt_tokens"], shown["n_ctx"]) == (
        400,
        "context_length_exceeded",
        5000,
        4096,
    )


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (UsageError("text-encoding", "no Unicode"), 400, "text_encoding"),
        (ContextFull("context-full", "full"), 400, "context_length_exceeded"),
        (Cancelled("cancelled", "stopped"), 409, "cancelled"),
        (ResourceError("memory", "no room in /var/x"), 503, "memory"),
        (PackageError("template-failed", "/home/me/model.l3r is bad"), 500, "template_failed"),
        (EngineCrash("engine-crash", "at /usr/src/x.c:3"), 500, "engine_crash"),
        (InternalError("internal", "/home/me"), 500, "internal"),
        (ValueError("/home/me"), 500, "internal"),
    ],
)
def test_other_errors_have_a_status_and_tell_no_paths(error: Exception, status: int, code: str) -> None:
    found, shown = told(error)
    assert (found, shown["code"]) == (status, code)
    assert "/" not in shown["message"]
    assert shown["type"] == ("server_error" if status >= 500 else shown["type"])


@pytest.mark.parametrize(
    ("error", "is_in_vain"),
    [
        (Cancelled("cancelled", "stopped"), True),
        (RequestError("deadline_exceeded", "late", status=504), True),
        (RequestError("grammar_unavailable", "no library", status=501), True),
        (InternalError("internal", "a bug"), True),
        (ValueError("a bug"), True),
        (RequestError("request_id_in_use", "not complete yet", status=409), False),
        (RequestError("queue_full", "8 requests wait", status=429), False),
        (RequestError("model_loading", "loads", status=503), False),
        (ResourceError("memory", "no room"), False),
        (RequestError("request_timeout", "the body came late", status=408), False),
        (RequestError("invalid_value", "wrong"), False),
    ],
    ids=str,
)
def test_clients_repeat_only_what_may_succeed_then(error: Exception, is_in_vain: bool) -> None:
    """Without the header they repeat every 409 and everything from 500 on, and the work with it."""
    assert (error_body(error)[1].get("X-Should-Retry") == "false") is is_in_vain


def test_every_error_class_has_an_answer() -> None:
    classes = [MindnanoError]
    for kind in classes:
        classes += kind.__subclasses__()
    for kind in classes:
        # Other parts of the project have errors too, which no server raises.
        if kind.__module__.startswith("launcher.") and not issubclass(kind, ContextLengthExceeded):
            assert 400 <= told(kind("some-name", "message"))[0] < 600


def test_the_official_client_reads_code_and_param() -> None:
    _status, shown = told(RequestError("model_not_found", "no such model", status=404, param="model"))
    error = openai.APIError("x", request=None, body=shown)  # type: ignore[arg-type]
    assert (error.code, error.param, error.type) == ("model_not_found", "model", "invalid_request_error")
