"""Answers that are not streams: JSON documents, and errors as OpenAI error objects."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.exceptions import HTTPException
from starlette.responses import Response

from launcher.errors import Cancelled, MindnanoError, RequestError

_CODES = {404: "not_found", 405: "method_not_allowed"}


def json_answer(document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON document."""
    data = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    return Response(data, status, headers=dict(headers or {}), media_type="application/json")


def as_request_error(error: Exception) -> RequestError:
    """What the client is told. An error of this program itself says no more than that."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, HTTPException):
        return RequestError(
            _CODES.get(error.status_code, "http_error"),
            error.detail if error.status_code not in _CODES else _DETAILS[error.status_code],
            status=error.status_code,
            headers=error.headers,
        )
    if isinstance(error, Cancelled):
        return RequestError("cancelled", "the request was cancelled", status=409, kind="cancelled")
    if isinstance(error, MindnanoError):
        return RequestError(error.slug.replace("-", "_"), error.message, status=500, kind="server_error")
    return RequestError("internal_error", "the server failed; its log says more", status=500, kind="server_error")


_DETAILS = {404: "there is no such path on this server", 405: "this path does not take that method"}


def error_answer(error: RequestError) -> Response:
    """The error object with its status and headers."""
    document = {
        "error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.slug},
    }
    return json_answer(document, error.status, error.headers)
