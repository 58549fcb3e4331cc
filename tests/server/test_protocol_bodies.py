"""Bodies that hold up or end the server instead of being refused: nested, cut, huge, or no JSON at all."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from launcher.errors import RequestError
from launcher.server.protocol import decode, limits, long_prompts, nesting
from launcher.server.protocol.decode import (
    decode_chat,
    decode_completion,
    decode_detokenize,
    decode_tokenize,
)
from launcher.server.protocol.nesting import nesting_of
from launcher.server.protocol.requests import ChatRequest
from tests.support.request_bodies import DECODERS, USER, chat, refused


def test_deep_nesting_is_refused_before_it_is_decoded() -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        for depth in (limits.MAX_DEPTH + 1, 100_000):
            body = b'{"x":' + opening * depth + b"1" + closing * depth + b"}"
            assert refused(body).slug == "invalid_json"
    inner = b"[" * (limits.MAX_DEPTH - 1) + b"]" * (limits.MAX_DEPTH - 1)
    decode_chat(b'{"messages":[{"role":"user","content":"x"}],"x":' + inner + b"}")


def test_millions_of_lists_are_refused_before_they_are_made() -> None:
    """No other thread runs while they are made: the event loop stood still for three seconds."""

    def body(count: int) -> bytes:
        return b'{"messages":[{"role":"user","content":"x"}],"metadata":{"x":[' + b"[]," * count + b"1]}}"

    for decoder in (decode_chat, decode_tokenize):
        with pytest.raises(RequestError) as caught:
            decoder(body(limits.MAX_CONTAINERS))
        assert (caught.value.slug, caught.value.status) == ("request_too_large", 413)
    decode_chat(body(limits.MAX_CONTAINERS - 10))


def test_brackets_in_texts_are_no_lists() -> None:
    text = "[{" * limits.MAX_CONTAINERS
    assert chat(messages=[{"role": "user", "content": text}]).messages[0].content == text


def test_only_so_many_ids_become_text_at_once() -> None:
    ids = [1] * limits.MAX_DETOKENIZED
    assert len(decode_detokenize(json.dumps({"tokens": ids}).encode()).tokens) == len(ids)
    assert refused({"tokens": [*ids, 1]}, decode_detokenize).param == "tokens"


def test_brackets_in_texts_are_no_nesting() -> None:
    text = '[{"' * 200 + "\\"
    assert chat(messages=[{"role": "user", "content": text}] * 40).messages[0].content == text


def test_a_text_that_never_ends_is_not_searched_over_and_over() -> None:
    """A search that begins anew at each quote takes minutes here, and then this test never ends."""
    start = time.process_time()
    assert nesting_of(b"[" * 65 + b'"' + b'\\"' * 2_000_000).depth == 65
    assert time.process_time() - start < 60


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["user", "text"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
field_names = st.sampled_from(
    sorted([*ChatRequest.__struct_fields__, "prompt", "request_id", "content", "tokens", "x"])
)


def outcome(decoder: Callable[[bytes], Any], body: bytes) -> RequestError | None:
    try:
        decoder(body)
    except RequestError as error:
        return error
    return None


@given(st.binary(max_size=60))
@example(b"[" * 70)
def test_no_bytes_raise_anything_but_a_request_error(body: bytes) -> None:
    for decoder in DECODERS:
        error = outcome(decoder, body)
        assert error is None or error.status == 400


@given(st.dictionaries(field_names, json_values, max_size=4), st.booleans())
@example({"n": 17}, True)
def test_no_json_raises_anything_but_a_request_error(fields: dict[str, Any], cut: bool) -> None:
    body = json.dumps({"messages": [USER]} | fields).encode()
    for decoder in DECODERS:
        error = outcome(decoder, body[:-1] if cut else body)
        assert error is None or error.status == 400
        assert error is None or error.message.encode()


@given(json_values)
def test_depth_is_that_of_the_value(value: object) -> None:
    def depth(of: object) -> int:
        if isinstance(of, dict | list):
            return 1 + max(map(depth, of.values() if isinstance(of, dict) else of), default=0)
        return 0

    padding = '[["' * decode.MAX_DEPTH
    assert nesting_of(json.dumps([padding, value]).encode()).depth == 1 + depth(value)


@given(json_values, st.integers(1, 9))
def test_pieces_of_a_body_have_together_what_it_has(value: object, piece: int) -> None:
    """A quotation mark or a backslash at a piece's end changes what the next one is."""
    text = json.dumps([value, {'a\\"[': '\\"]\\\\'}], ensure_ascii=False, separators=(",", ":")).encode()
    whole = nesting_of(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nesting, "_PIECE", piece)
        assert nesting_of(text) == whole


@pytest.mark.parametrize(
    "prompt",
    [
        *("[1,2,3]", "[ 1 , 2,\n3 ]", "[1]", "[]", '"a,b,c"', '["a,b"]', "[[1,2],[3,4]]", "[[1,2]]", "[1,[2],3]"),
        *('["]",1]', "[1,-2]", "[1,2.5]", "[1,,2]", "[1,2,]", "[1,2", "[2147483648,1]", "{}", "[1,null]", "[1 2,3]"),
    ],
)
def test_a_prompt_that_is_read_piece_by_piece_is_the_same(prompt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces are cut at any comma, also at one that is in a text or in another list."""
    body = f'{{"user":"[1,2,3]","prompt":{prompt},"n":2,"seed":5}}'.encode()

    def read() -> object:
        try:
            return decode_completion(body)
        except RequestError as error:
            return error.slug, error.message, error.param

    whole = read()
    monkeypatch.setattr(long_prompts, "_MANY", 0)
    for piece in (0, 1, 2, 100):
        monkeypatch.setattr(long_prompts, "_PIECE", piece)
        assert read() == whole
        assert type(read()) is type(whole)


def test_what_is_wrong_beside_a_long_prompt_is_told() -> None:
    prompt = [1] * (1 << 19)
    assert decode_completion(json.dumps({"prompt": prompt}).encode()).prompt == prompt
    error = refused({"prompt": prompt, "temperature": 3}, decode_completion)
    assert (error.param, "2" in error.message) == ("temperature", True)
    assert refused({"prompt": [*prompt, "x", -1]}, decode_completion).param == f"prompt[{len(prompt) + 1}]"
