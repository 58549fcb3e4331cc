"""Bodies of requests, decoded or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from launcher.errors import RequestError
from launcher.server.protocol.decode import (
    decode_chat,
    decode_completion,
    decode_control,
    decode_detokenize,
    decode_reasoning_control,
    decode_tokenize,
)
from launcher.server.protocol.requests import ChatRequest

DECODERS: tuple[Callable[[bytes], Any], ...] = (
    decode_chat,
    decode_completion,
    decode_control,
    decode_reasoning_control,
    decode_tokenize,
    decode_detokenize,
)
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def chat(**fields: Any) -> ChatRequest:
    return decode_chat(json.dumps({"model": "tiny", "messages": [USER]} | fields).encode())


def refused(body: bytes | dict[str, Any], decoder: Callable[[bytes], Any] = decode_chat) -> RequestError:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(RequestError) as caught:
        decoder(data)
    assert caught.value.status == 400
    assert caught.value.kind == "invalid_request_error"
    return caught.value
