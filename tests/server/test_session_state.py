"""A state that is damaged, of another model or of another caller, and that is taken in all the same."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import RequestError
from launcher.server.session_format import MAGIC, PREFIX, Header
from launcher.server.session_state import Inspected, StateRules, check_header, check_prefix, check_state
from tests.support.moving_sessions import CONTEXT, ORIGIN, Exchange, inspected, rules

IDS = [1, 2, 3, 4, 5]
Fields = dict[str, Any]


def made() -> bytes:
    here = Exchange(padding=20)
    here.say(IDS, owner="one")
    return here.file(owner="one")


STATE = made()


def taken(data: bytes, owner: str = "", ours: StateRules | None = None) -> tuple[Header, array[int]]:
    """As the server does it; raises `RequestError`."""
    ours = ours or rules()
    ours.check_length(len(data))
    length = check_prefix(data[: PREFIX.size])
    header = check_header(data[PREFIX.size : PREFIX.size + length])
    ours.check_header(header, owner)
    start = PREFIX.size + length + 4 * header.tokens
    memory = bytearray(data[start:-32])
    if len(memory) != header.export_bytes:
        raise RequestError("session_state_damaged", "length")
    return header, check_state(data[:start], header, memory, data[-32:], ours)


def refused(data: bytes, owner: str = "", ours: StateRules | None = None) -> RequestError:
    with pytest.raises(RequestError) as caught:
        taken(data, owner, ours)
    return caught.value


def rewritten(change: Callable[[Fields], None]) -> bytes:
    """The state with another header and the right checksum."""
    length = PREFIX.unpack_from(STATE)[1]
    fields = json.loads(STATE[PREFIX.size : PREFIX.size + length])
    change(fields)
    text = json.dumps(fields).encode()
    body = PREFIX.pack(MAGIC, len(text)) + text + STATE[PREFIX.size + length : -32]
    return body + hashlib.sha256(body).digest()


def test_a_state_goes_through_and_names_no_owner() -> None:
    header, ids = taken(STATE, owner="somebody else")
    assert ids == array("i", IDS)
    assert (header.key.owner, header.key.name, header.tokens) == ("", "a", 5)
    assert b"one" not in STATE


@pytest.mark.parametrize("bit", [0x01, 0x80])
def test_no_byte_can_change(bit: int) -> None:
    for place in range(len(STATE)):
        data = bytearray(STATE)
        data[place] ^= bit
        error = refused(bytes(data))
        assert error.status in (400, 403, 413)
        assert error.slug.startswith(("session_state_", "request_too_large"))


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200), cut=st.integers(0, len(STATE) - 1), where=st.integers(0, len(STATE)))
def test_nothing_can_be_cut_off_put_in_or_made_up(data: bytes, cut: int, where: int) -> None:
    for changed in (STATE[:cut], data, STATE[:where] + b"\0" + data + STATE[where:]):
        assert refused(changed).status in (400, 403, 413)


@pytest.mark.parametrize(
    ("field", "value", "code", "words"),
    [
        ("identity", "0" * 64, "session_state_foreign", ["model", "0" * 64, ORIGIN.identity.hex()]),
        ("template", "0" * 64, "session_state_foreign", ["template", ORIGIN.template_sha256.hex()]),
        ("kv", "fp8", "session_state_foreign", ["cache", "fp8", "bf16"]),
        ("engine", "ling3 9.9", "session_state_foreign", ["engine", "ling3 9.9", "ling3 0.1.0"]),
        ("tokens", CONTEXT + 1, "session_state_foreign", [str(CONTEXT + 1), str(CONTEXT)]),
        ("bytes", 1 << 30, "request_too_large", [str(1 << 30), str(1 << 20)]),
        ("owner", "two", "session_state_owner", ["two"]),
        ("tokens", 0, "session_state_damaged", ["tokens", "0", "from 1"]),
        ("tokens", "5", "session_state_damaged", ["tokens", "'5'"]),
        ("checkpoints", [[0, 6]], "session_state_damaged", ["checkpoint"]),
        ("checkpoints", [[0, 3]], "session_state_damaged", ["checkpoint", "{0: 3}"]),
        ("private", 1, "session_state_damaged", ["private", "1"]),
        ("more", 1, "session_state_damaged", ["more"]),
    ],
)
def test_a_header_that_does_not_fit_is_told(field: str, value: object, code: str, words: list[str]) -> None:
    error = refused(rewritten(lambda fields: fields.update({field: value})))
    assert error.slug == code
    for word in words:
        assert word in error.message


def test_ones_own_files_of_the_folder_can_come_too() -> None:
    data = rewritten(lambda fields: fields.update(owner="one"))
    assert refused(data, owner="two").status == 403
    taken(data, owner="one")


def test_first_bytes_of_something_else_are_told() -> None:
    error = refused(b"PK\x03\x04" + STATE[4:])
    assert error.slug == "session_state_damaged"
    assert "50 4b 03 04" in error.message
    assert MAGIC.hex(" ") in error.message


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"identity": b"x" * 32}, "session_state_foreign"),
        ({"kv": "bf16+mtp"}, "session_state_foreign"),
        ({"ids": array("i", [1, 2, 3, 4, 6])}, "session_state_damaged"),
        ({"ids": array("i", IDS[:-1])}, "session_state_damaged"),
        ({"checkpoints": {1: 2}}, "session_state_damaged"),
    ],
)
def test_the_engines_part_must_be_of_the_same_session(change: Fields, code: str) -> None:
    """A checksum proves that nothing was damaged, not that header and export belong together."""
    facts: Fields = {"identity": ORIGIN.identity, "kv": ORIGIN.kv, "ids": array("i", IDS), "checkpoints": {}, **change}
    assert refused(STATE, ours=rules(inspect=lambda _memory: Inspected(**facts))).slug == code


def test_what_the_engine_cannot_read_is_damaged() -> None:
    data = bytearray(STATE)
    start = len(data) - 32 - (8 + 4 * 5 + 20)
    data[start : start + 4] = (99).to_bytes(4, "little")
    data[-32:] = hashlib.sha256(data[:-32]).digest()
    assert refused(bytes(data)).slug == "session_state_damaged"
    assert inspected(bytearray(STATE[start:-32])).ids == array("i", IDS)


def test_a_length_that_no_session_has_is_told_with_both() -> None:
    ours = rules(budget=1000)
    ours.check_length(ours.limit)
    with pytest.raises(RequestError) as caught:
        ours.check_length(ours.limit + 1)
    assert caught.value.status == 413
    assert str(ours.limit) in caught.value.message
    assert str(ours.limit + 1) in caught.value.message


def test_without_a_session_cache_that_is_said() -> None:
    with pytest.raises(RequestError) as caught:
        rules(budget=0).require_cache()
    assert (caught.value.slug, caught.value.status) == ("session_cache_off", 501)
