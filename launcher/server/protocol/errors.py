"""Errors as HTTP answers: a status, headers, and an OpenAI error object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import UNSET

from launcher.errors import Cancelled, ContextFull, MindnanoError, RequestError, ResourceError, UsageError
from launcher.server.protocol.shapes import ErrorReply, ErrorShape

STATUS_CANCELLED: Final = 409
"""The client or another one took the request back."""

# OpenAI's clients repeat requests that end with 408, 409, 429 or 500 and above, unless this says that they should not.
# What was refused for lack of a place, or of an id, a session or a model that will be free or there soon, may succeed
# the next time; what was taken back, ran out of time, failed or is not there at all would only cost the same again.
_NO_RETRY: Final[Mapping[str, str]] = {"X-Should-Retry": "false"}
_IN_VAIN: Final = frozenset({500, 501, 504})

_JSON: Final = msgspec.json.Encoder()


class ContextLengthExceeded(RequestError):
    """The prompt alone fills the context; both in tokens."""

    def __init__(self, prompt: int, context: int, *, param: str) -> None:
        super().__init__(
            "context_length_exceeded",
            f"the prompt has {prompt} tokens, and the context of {context} tokens has to hold the reply as well; "
            "shorten the prompt, or start the server with a larger --context",
            param=param,
        )
        self.prompt = prompt
        self.context = context


def error_body(error: Exception) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers and JSON of the answer that this error makes.

    What a client cannot change is told without its message, which may name files; the log has that.
    """
    status, headers, shape = _describe(error)
    if status in _IN_VAIN or isinstance(error, Cancelled):
        headers = {**headers, **_NO_RETRY}
    return status, headers, _JSON.encode(ErrorReply(error=shape))


def _describe(error: Exception) -> tuple[int, Mapping[str, str], ErrorShape]:
    if isinstance(error, RequestError):
        message = f"{error.message}; {error.hint}" if error.hint else error.message
        counts = (error.prompt, error.context) if isinstance(error, ContextLengthExceeded) else (UNSET, UNSET)
        shape = ErrorShape(
            message=message,
            type=error.kind,
            param=error.param,
            code=error.slug,
            n_prompt_tokens=counts[0],
            n_ctx=counts[1],
        )
        return error.status, error.headers, shape
    if isinstance(error, Cancelled):
        return STATUS_CANCELLED, {}, _shape("the request was cancelled", "cancelled", "cancelled")
    if isinstance(error, ContextFull):
        return 400, {}, _shape(error.message, "invalid_request_error", "context_length_exceeded")
    if isinstance(error, UsageError):
        return 400, {}, _shape(error.message, "invalid_request_error", error.slug.replace("-", "_"))
    name = error.slug.replace("-", "_") if isinstance(error, MindnanoError) else "internal"
    if isinstance(error, ResourceError):
        message = f"the server lacks what it needs for this request ({name}); its log says more"
        return 503, {"Retry-After": "10"}, _shape(message, "server_error", name)
    return 500, {}, _shape(f"the server failed ({name}); its log says more", "server_error", name)


def _shape(message: str, kind: str, code: str) -> ErrorShape:
    return ErrorShape(message=message, type=kind, param=None, code=code)
