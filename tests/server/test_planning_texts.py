"""Tokens and texts that are told to a client and are not those that a request for the same would run with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launcher.errors import RequestError
from launcher.server.planning import detokenized, plan_chat, prompt_text, text_of, tokens_of
from launcher.server.protocol.decode import decode_chat, decode_detokenize, decode_tokenize
from launcher.server.served import ServedModel
from launcher.server.thinking import thinking_of
from tests.support.served_model import SPECIAL, TOKEN_COUNT, served_model

USER = {"role": "user", "content": "hi"}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def prompt(model: ServedModel, **fields: Any) -> tuple[int, ...]:
    """What a chat runs with."""
    body = json.dumps({"messages": [USER]} | fields).encode()
    return plan_chat(model, decode_chat(body), owner="o", header_session=None, id="chatcmpl-1").prompt


def test_tokens_and_texts() -> None:
    model = served_model()

    def ids(**fields: Any) -> list[int]:
        return tokens_of(model, decode_tokenize(json.dumps(fields).encode())).tolist()

    assert ids(content="a<think>") == [97, 256 + SPECIAL.index("<think>")]
    assert ids(content="a<think>", parse_special=False) == list(b"a<think>")
    assert ids(content="") == []
    assert ids(messages=[USER]) == list(prompt(model))
    assert ids(messages=[USER], chat_template_kwargs={"enable_thinking": False})[-1] == 256 + SPECIAL.index("</think>")
    assert detokenized(model, decode_detokenize(b'{"tokens":[228,189,160,255,97]}')) == "你\ufffda"
    with pytest.raises(RequestError, match=r"tokens\[1\]"):
        detokenized(model, decode_detokenize(json.dumps({"tokens": [1, TOKEN_COUNT]}).encode()))


def test_the_prompt_is_told_as_text() -> None:
    model = served_model()
    request = decode_chat(json.dumps({"messages": [USER], "tools": [ADD]}).encode())
    assert prompt_text(model, request) == text_of(model, prompt(model, tools=[ADD]))
    assert thinking_of(request, True)
