"""The bytes of POST /v1/responses to a request, and to the chat that asks for the same.

Whatever the bytes are: the result is a request or a `RequestError` that names the field as this API calls it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from launcher.errors import RequestError
from launcher.server.protocol.decode import Words, decode_body, refusal_of
from launcher.server.protocol.errors import ContextLengthExceeded
from launcher.server.protocol.responses_requests import (
    CallInput,
    CallOutputInput,
    InputItem,
    MessageInput,
    ReasoningInput,
    ResponsesRequest,
)

INPUT_ITEMS: Final[Mapping[str, type[InputItem]]] = {
    "message": MessageInput,
    "reasoning": ReasoningInput,
    "function_call": CallInput,
    "function_call_output": CallOutputInput,
}
"""`type` of an item -> how it is read; an item without one is a message."""

_STATELESS: Final = "this server stores no answers; send the whole history as input, and name it by session_id"
_WORDS: Final = Words(
    refused={
        "background": "answers are made while the client waits; use stream",
        "context_management": "this server does not shorten a conversation; leave the oldest items out of input",
        "conversation": _STATELESS,
        "moderation": "this server does not moderate",
        "previous_response_id": _STATELESS,
        "prompt": "this server stores no prompts; send the text as instructions and input",
        "max_completion_tokens": "here it is max_output_tokens",
        "max_tokens": "here it is max_output_tokens",
        "messages": "here it is input",
        "n": "a response has one answer; send the request again for another one",
        "reasoning_effort": "here it is reasoning.effort",
        "response_format": "here it is text.format",
    },
    choices={
        "role": "user, assistant, system or developer",
        "tool_choice": 'none, auto, required, or {"type": "function", "name": ...}',
        "thinking_option": "on or off",
    },
    kinds=(
        (
            re.compile(r"(content|output)\[\d+\]\.type$"),
            '"input_text" or "output_text", in a reasoning item "reasoning_text": this model reads text only, so send '
            "what an image or a file says as text",
        ),
        (re.compile(r"summary\[\d+\]\.type$"), '"summary_text"'),
        (
            re.compile(r"^tools\[\d+\]\.type$"),
            '"function": this server has no tools of its own, so define a function and send back what it gives',
        ),
        (re.compile(r"^tool_choice\.type$"), '"function" with its name'),
        (re.compile(r"^text\.format\.type$"), "text, json_object or json_schema"),
        (re.compile(r"^thinking\.type$"), "enabled or disabled"),
        (
            re.compile(r"^input\[\d+\]\.type$"),
            "message, reasoning, function_call or function_call_output: nothing is stored here and no other tool runs, "
            "so send the item itself, and the results of tools as text",
        ),
    ),
)
# What planning calls a field of a chat -> what it is here.
_NAMES: Final = (
    (re.compile(r"^messages$"), "input"),
    (re.compile(r"^response_format(\.json_schema)?"), "text.format"),
    (re.compile(r"^(tools\[\d+\]|tool_choice)\.function\b"), r"\1"),
    (re.compile(r"^max_(completion_)?tokens$"), "max_output_tokens"),
)


def decode_responses(body: bytes) -> tuple[ResponsesRequest, tuple[InputItem, ...]]:
    """The body of a response and the items of its input; a text is one message of the user.

    Raises:
        RequestError: it is no JSON, or not a request that can be served.
    """
    asked = decode_body(_DECODER, body, _WORDS)
    if isinstance(asked.input, str):
        return asked, (MessageInput(role="user", content=asked.input),)
    return asked, tuple(_item(found, index, body) for index, found in enumerate(asked.input))


_DECODER: Final = msgspec.json.Decoder(ResponsesRequest)


def _item(found: dict[str, Any], index: int, body: bytes) -> InputItem:
    named = found.get("type", "message")
    kind = INPUT_ITEMS.get(named) if isinstance(named, str) else None
    where = f"$.input[{index}]"
    if kind is None:
        raise refusal_of(f"Invalid value - at `{where}.type`", body, ResponsesRequest, _WORDS)
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        said, mark, path = str(error).rpartition(" - at `$")
        said = f"{said} - at `{where}{path}" if mark else f"{path} - at `{where}`"
        raise refusal_of(said, body, ResponsesRequest, _WORDS) from error


def renamed(error: RequestError) -> RequestError:
    """The refusal of the chat that a response asks for, with the names of this API."""
    old = error.param or ""
    new = old
    for pattern, name in _NAMES:
        new = pattern.sub(name, new)
    if new == old:
        return error
    if isinstance(error, ContextLengthExceeded):
        return ContextLengthExceeded(error.prompt, error.context, param=new)
    return RequestError(
        error.slug,
        error.message.replace(old, new),
        status=error.status,
        kind=error.kind,
        param=new,
        headers=error.headers,
        hint=error.hint,
    )
