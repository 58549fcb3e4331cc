"""Answers that are not streams: JSON documents, and errors as OpenAI error objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from launcher.errors import MindnanoError, RequestError
from launcher.server.protocol.replies import error_body

_ROUTING: Final = {
    404: ("not_found", "there is no such path on this server"),
    405: ("method_not_allowed", "this path does not take that method"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error as an answer. `detail` is for the log where the client is not told everything, else None."""

    status: int
    code: str
    answer: Response
    detail: str | None


def json_answer(document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON document."""
    data = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    return Response(data, status, headers=dict(headers or {}), media_type="application/json")


def refusal(error: Exception) -> Refusal:
    """The error object with its status and headers."""
    if isinstance(error, HTTPException):
        code, message = _ROUTING.get(error.status_code, ("http_error", error.detail))
        error = RequestError(code, message, status=error.status_code, headers=error.headers)
    status, headers, body = error_body(error)
    code = error.slug if isinstance(error, MindnanoError) else "internal"
    detail = None
    if not isinstance(error, RequestError) and status >= 500:
        detail = error.message if isinstance(error, MindnanoError) else repr(error)
    return Refusal(
        status=status,
        code=code,
        answer=Response(body, status, headers=dict(headers), media_type="application/json"),
        detail=detail,
    )
