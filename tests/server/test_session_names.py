"""Names of conversations that are refused though they need not be, or come back as other names than were told."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import quote

import pytest

from launcher.errors import RequestError
from launcher.server.protocol.decode import decode_chat
from launcher.server.protocol.limits import MAX_NAME_CHARACTERS
from launcher.server.session_names import name_in_header, session_name
from tests.support.server_process import ServerProcess

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "17+25=?"}]


def name(header: str | None = None, **fields: Any) -> str | None:
    return session_name(decode_chat(json.dumps({"messages": MESSAGES, **fields}).encode()), header)


def test_an_empty_name_is_none_and_the_next_one_counts() -> None:
    empty: dict[str, Any] = {"session_id": "", "metadata": {"session_id": ""}, "prompt_cache_key": "", "user": ""}
    assert name("", **empty) is None
    assert name("", **empty | {"user": "u"}) == "u"
    assert name("小明 1", **empty) == "小明 1"
    assert name("", **empty | {"metadata": {"session_id": "m"}}) == "m"


def test_a_wrong_name_is_refused_where_another_one_counts_too() -> None:
    with pytest.raises(RequestError, match="X-Session-Id"):
        name("\x01", session_id="a")


@pytest.mark.parametrize("hint", ["x" * (MAX_NAME_CHARACTERS + 1), "a\nb", '{"device_id": "\x7f"}', "小\u2028明"])
@pytest.mark.parametrize("field", ["user", "prompt_cache_key"])
def test_a_hint_that_is_no_name_is_taken_for_its_digest(field: str, hint: str) -> None:
    """It is the same conversation the next time, and never a reason to refuse a request."""
    assert name(**{field: hint}) == f"sha256-{hashlib.sha256(hint.encode()).hexdigest()}"
    assert name(**{field: hint, "session_id": "mine"}) == "mine"


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ("talk", "talk"),
        ("100%", "100%"),
        ("100%25", "100%"),
        ("%2541", "%41"),
        ("%E5%B0%8F%e6%98%8e", "小明"),
        ("a%20b+c", "a b+c"),
        ("%FF", "%FF"),
        ("5%zz%41", "5%zz%41"),
        ("%00", "%00"),
        ("小%25".encode().decode("latin-1"), "小%"),
        ("é".encode().decode("latin-1"), "é"),
        ("\xe9", "é"),
        ("\x84", "\x84"),
    ],
)
def test_a_name_in_a_header_may_be_percent_encoded(sent: str, meant: str) -> None:
    """What is no percent-encoding of a name in UTF-8 is the name itself; no two names become one."""
    assert name_in_header(sent) == meant


@pytest.mark.parametrize("called", ["talk", "100%", "100%25", "a%41", " 小明 ", "é/ü?&#", "😀" * MAX_NAME_CHARACTERS])
def test_the_name_that_the_server_tells_is_understood_when_it_comes_back(live: ServerProcess, called: str) -> None:
    asked = {"messages": MESSAGES, "max_tokens": 2}
    first = live.ask("POST", CHAT, {**asked, "session_id": called})
    told = first.headers["x-session-id"]
    again = live.ask("POST", CHAT, asked, headers={"X-Session-Id": told})
    assert [answer.json()["session_id"] for answer in (first, again)] == [called, called]
    assert again.headers["x-session-id"] == told
    assert live.ask("DELETE", f"/v1/sessions/{quote(called, safe='')}").status == 200
