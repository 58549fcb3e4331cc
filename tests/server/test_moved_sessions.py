"""A conversation that is not the same on another server, or a state of something else that changes one."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from tests.support.server_process import Answer, ServerProcess, eventually, nothing_left

MODEL = "mindnano-demo"
FIRST = {"role": "user", "content": "Count from 3 to 9"}
NEXT = {"role": "user", "content": "Reverse: a b c"}
KEY, OTHER_KEY = "first-key", "second-key"


@dataclass(frozen=True, slots=True)
class Reply:
    text: str
    logprobs: Any
    cached: int
    source: str


def ask(server: ServerProcess, messages: list[Any], session: str | None = "talk") -> Reply:
    """As a client of OpenAI's does it."""
    further = {"enable_thinking": False} | ({} if session is None else {"session_id": session})
    with OpenAI(base_url=f"{server.url}/v1", api_key=server.key or "none", max_retries=0) as client:
        reply = client.chat.completions.create(
            model=MODEL, messages=messages, temperature=0, logprobs=True, top_logprobs=5, extra_body=further
        )
    choice = reply.choices[0]
    metrics = reply.model_extra["mindnano_metrics"] if reply.model_extra else {}
    details = reply.usage.prompt_tokens_details if reply.usage else None
    assert details is not None
    assert details.cached_tokens == metrics["cached_tokens"]
    return Reply(choice.message.content or "", choice.logprobs, metrics["cached_tokens"], metrics["cache_source"])


def after(messages: list[Any], reply: Reply) -> list[Any]:
    return [*messages, {"role": "assistant", "content": reply.text}, NEXT]


def call(
    server: ServerProcess, method: str, body: bytes | None = None, *, name: str = "talk", key: str | None = None
) -> Answer:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
    given = key or server.key
    headers = {} if given is None else {"Authorization": f"Bearer {given}"}
    try:
        connection.request(method, f"/v1/sessions/{name}/state", body, headers)
        answer = connection.getresponse()
        told = {header.lower(): value for header, value in answer.getheaders()}
        return Answer(status=answer.status, headers=told, body=answer.read())
    finally:
        connection.close()


def code(answer: Answer) -> str:
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return str(error["code"])


def tokens(server: ServerProcess, name: str = "talk") -> int:
    listed = server.ask("GET", "/v1/sessions").json()["data"]
    return int(next(session["tokens"] for session in listed if session["id"] == name))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("here"), "--session-cache-mib", "8") as server:
        yield server


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("there"), "--session-cache-mib", "8") as server:
        server.warm_up()
        call(server, "PUT", b"x")
        ask(server, [FIRST], "warm")
        call(server, "GET", name="warm")
        server.ask("DELETE", "/v1/sessions/warm")
        yield server


@pytest.fixture
def moving(here: ServerProcess) -> tuple[list[Any], bytes]:
    """The next request of a conversation, and its state before it."""
    here.ask("DELETE", "/v1/sessions/talk")
    reply = ask(here, [FIRST])
    answer = call(here, "GET")
    assert answer.status == 200
    return after([FIRST], reply), answer.body


def test_a_conversation_goes_on_where_it_was_on_another_server(
    tmp_path: Path, here: ServerProcess, there: ServerProcess, moving: tuple[list[Any], bytes]
) -> None:
    messages, state = moving
    there.ask("DELETE", "/v1/sessions/talk")
    kept = tokens(here)
    with ServerProcess(tmp_path, "--session-cache-mib", "0", "--prefix-checkpoints", "0") as empty:
        cold = ask(empty, messages)
    assert cold.source == "none"
    assert call(there, "PUT", state).status == 201
    assert tokens(there) == kept
    warm = ask(there, messages)
    assert (warm.cached, warm.source) == (kept, "ram")
    assert (warm.text, warm.logprobs) == (cold.text, cold.logprobs)
    again = call(there, "GET")
    assert call(here, "PUT", again.body).status == 200
    assert ask(here, after(messages, warm)).cached == tokens(there)


def test_what_was_given_twice_is_the_same_to_the_last_byte(
    here: ServerProcess, moving: tuple[list[Any], bytes]
) -> None:
    assert call(here, "GET").body == moving[1]
    ask(here, [{"role": "user", "content": "Say: moon"}], "other")  # it is in memory now
    assert call(here, "GET").body == moving[1]


def test_damage_changes_nothing(there: ServerProcess, moving: tuple[list[Any], bytes]) -> None:
    messages, state = moving
    assert call(there, "PUT", state).status in (200, 201)
    before = there.props()["sessions"]["bytes"]
    draw = random.Random(4)
    places = [0, 9, 20, 200, len(state) - 1, *(draw.randrange(len(state)) for _ in range(25))]
    for place in places:
        data = bytearray(state)
        data[place] ^= 1 << draw.randrange(8)
        answer = call(there, "PUT", bytes(data))
        assert 400 <= answer.status < 500
        assert code(answer) in {"session_state_damaged", "session_state_foreign", "session_state_owner"}
    for cut in (0, 8, 100, 300, len(state) // 2, len(state) - 1):
        assert (call(there, "PUT", state[:cut]).status, there.props()["sessions"]["bytes"]) == (400, before)
    assert call(there, "PUT", state + b"\0").status == 400
    assert ask(there, messages).source == "ram"
    assert there.ask("GET", "/v1/sessions").json()["data"][0]["id"] == "talk"


@pytest.mark.parametrize(
    ("words", "expected", "found"),
    [
        (("--kv-cache", "fp8"), "session_state_foreign", "fp8"),
        (("--context", "16"), "session_state_foreign", "16"),
        (("--session-cache-mib", "0"), "session_cache_off", "--session-cache-mib"),
    ],
)
def test_another_kind_of_server_refuses_it(
    tmp_path: Path, moving: tuple[list[Any], bytes], words: tuple[str, ...], expected: str, found: str
) -> None:
    with ServerProcess(tmp_path, *words) as other:
        answer = call(other, "PUT", moving[1])
        assert code(answer) == expected
        assert found in answer.json()["error"]["message"]
        assert other.ask("GET", "/v1/sessions").json()["data"] == []


def test_another_model_refuses_it(there: ServerProcess, moving: tuple[list[Any], bytes]) -> None:
    data = moving[1]
    place = data.index(b'"identity":"') + len(b'"identity":"')
    answer = call(there, "PUT", data[:place] + b"0" * 64 + data[place + 64 :])
    assert (answer.status, code(answer)) == (400, "session_state_foreign")
    assert "0" * 64 in answer.json()["error"]["message"]


def test_a_reply_on_its_way_keeps_its_session(here: ServerProcess, moving: tuple[list[Any], bytes]) -> None:
    asked = {"messages": [FIRST], "session_id": "talk", "max_tokens": 2000, "ignore_eos": True}
    with here.stream(asked) as stream:
        stream.until_text()
        for answer in (call(here, "GET"), call(here, "PUT", moving[1])):
            assert (answer.status, code(answer)) == (409, "session_in_use")
        # Another one is not in its way, and it is not in theirs.
        assert call(here, "PUT", moving[1], name="other").status in (200, 201)
        assert call(here, "GET", name="other").status == 200
        (slot,) = here.ask("GET", "/slots").json()
        assert slot["is_processing"] is True
        assert slot["next_token"][0]["n_decoded"] > 0
        assert [(it["id"], it["session_id"], it["state"]) for it in slot["requests"]] == [
            (stream.id, "talk", "writing")
        ]
        assert slot["id_task"] == slot["requests"][0]["id_task"]
        assert here.ask("GET", "/slots?fail_on_no_slot=1").status == 503
    here.wait_idle()
    assert here.ask("GET", "/slots?fail_on_no_slot=1").status == 200
    here.ask("DELETE", "/v1/sessions/other")
    assert call(here, "PUT", moving[1]).status == 200


def test_clients_that_vanish_leave_nothing(there: ServerProcess, moving: tuple[list[Any], bytes]) -> None:
    state = moving[1]
    assert call(there, "PUT", state).status in (200, 201)
    before = there.props()["sessions"]["bytes"]
    with nothing_left(there):
        for sent in (0, 20, 400, len(state) // 2, len(state) - 1) * 2:
            connection = HTTPConnection("127.0.0.1", there.port, timeout=60)
            connection.putrequest("PUT", "/v1/sessions/vanished/state")
            connection.putheader("Content-Length", str(len(state)))
            connection.endheaders()
            connection.send(state[:sent])
            connection.close()
            connection = HTTPConnection("127.0.0.1", there.port, timeout=60)
            connection.request("GET", "/v1/sessions/talk/state")
            connection.close()
        eventually(lambda: there.props()["sessions"]["bytes"] == before, "all memory is given back")
    assert [session["id"] for session in there.ask("GET", "/v1/sessions").json()["data"]] == ["talk"]


def test_many_move_while_others_ask(there: ServerProcess, moving: tuple[list[Any], bytes]) -> None:
    messages, state = moving
    expected = ask(there, messages, None).text
    found: list[int] = []
    texts: list[str] = []

    def move(number: int) -> None:
        for turn in range(6):
            name = f"s{(number + turn) % 2}"
            found.append(call(there, "PUT", state, name=name).status)
            found.append(call(there, "GET", name=name).status)

    def talk(number: int) -> None:
        texts.extend(ask(there, messages, f"s{number}").text for _ in range(3))

    threads = [threading.Thread(target=work, args=(number,)) for work in (move, talk) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) <= {200, 201, 404, 409, 429}
    assert texts == [expected] * 6
    for name in ("s0", "s1"):
        there.ask("DELETE", f"/v1/sessions/{name}")


def test_keys_tell_callers_apart_and_a_state_moves_between_them(
    tmp_path: Path, moving: tuple[list[Any], bytes]
) -> None:
    messages, state = moving
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n{OTHER_KEY}\n", encoding="utf-8")
    keys.chmod(0o600)
    folder = tmp_path / "sessions"
    words = ("--api-key-file", str(keys), "--session-dir", str(folder))
    with ServerProcess(tmp_path, *words, key=KEY) as server:
        assert call(server, "GET", key="wrong").status == 401
        assert call(server, "PUT", state, key="wrong").status == 401
        assert call(server, "PUT", state).status == 201
        kept = tokens(server)
        assert (call(server, "GET", key=OTHER_KEY).status, code(call(server, "GET", key=OTHER_KEY))) == (
            404,
            "session_not_found",
        )
        # Nobody else's request goes on from what this caller sent.
        server.key = OTHER_KEY
        assert ask(server, messages, None).source == "none"
        server.key = KEY
        eventually(lambda: any(folder.glob("*.session")), "it is saved")
        # Of others there are counts alone.
        asked = {"messages": [FIRST], "session_id": "hidden", "max_tokens": 2000, "ignore_eos": True}
        with server.stream(asked) as stream:
            stream.until_text()
            mine = server.ask("GET", "/slots")
            server.key = OTHER_KEY
            theirs = server.ask("GET", "/slots")
            server.key = KEY
        assert b"hidden" in mine.body
        (slot,) = theirs.json()
        assert slot["is_processing"] is True
        assert (slot["id_task"], slot["requests"], slot["sessions"]) == (-1, [], [])
        assert slot["next_token"][0]["n_decoded"] == 0
        for secret in (b"hidden", b"talk", stream.id.encode()):
            assert secret not in theirs.body
        server.wait_idle()
    with ServerProcess(tmp_path, *words, key=KEY) as server:
        # From the disk, and under the key alone that it was put with.
        moved = call(server, "GET")
        assert moved.status == 200
        assert moved.body[:-32].split(b"}", 1)[0].replace(b',"private":true', b"") == state[:-32].split(b"}", 1)[0]
        assert call(server, "GET", key=OTHER_KEY).status == 404
        assert call(server, "PUT", moved.body, key=OTHER_KEY).status == 201
        (saved,) = (path for path in folder.glob("*.session") if b'"talk"' in path.read_bytes()[:1000])
        refused = call(server, "PUT", saved.read_bytes(), key=OTHER_KEY)
        assert (refused.status, code(refused)) == (403, "session_state_owner")
        assert call(server, "PUT", saved.read_bytes()).status == 200
        assert ask(server, messages).cached == kept
