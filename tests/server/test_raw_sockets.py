"""A client that leaves, dawdles or talks nonsense and so keeps the real server busy, silent or dead."""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

import pytest

from tests.support.http_bench import raw_request, read_all, read_until
from tests.support.server_process import ServerProcess, eventually, nothing_left

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
CONTEXT = 8192
LONG_PROMPT = 7900  # tokens: about thirty slices of the prompt
SLICE = 256
PATIENCE = 30.0
QUESTION = [{"role": "user", "content": "Count from 3 to 9"}]
ANSWER = "3 4 5 6 7 8 9"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("raw")
    with ServerProcess(folder, "--context", "8K", "--session-cache-mib", "0") as running:
        running.warm_up()
        with nothing_left(running):
            yield running


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("impatient")
    with ServerProcess(folder, "--context", "8K", program="tests.support.impatient_server") as running:
        running.warm_up()
        with nothing_left(running):
            yield running


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the engine has done since the server's start, and what it still has to do."""

    generated: int
    prefilled: int
    running: int
    waiting: int


def work_of(server: ServerProcess) -> Work:
    lines = server.ask("GET", "/metrics").body.decode().splitlines()
    values = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}
    return Work(
        generated=int(values['mindnano_engine_tokens_total{kind="generated"}']),
        prefilled=int(values['mindnano_engine_tokens_total{kind="prefilled"}']),
        running=int(values['mindnano_queue_requests{state="running"}']),
        waiting=int(values['mindnano_queue_requests{state="waiting"}']),
    )


def connect(server: ServerProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)


def chat(**fields: Any) -> bytes:
    return json.dumps({"messages": QUESTION, "temperature": 0, **fields}).encode()


def long_reply(**fields: Any) -> bytes:
    """Thousands of tokens of reply."""
    return chat(ignore_eos=True, **fields)


def long_prompt(**fields: Any) -> bytes:
    """Thousands of tokens of prompt that were never seen before."""
    first = [100 + next(_numbers), 7, 8]
    ids = [*first, *([40 + n % 50 for n in range(LONG_PROMPT - len(first))])]
    return json.dumps({"prompt": ids, "temperature": 0, "ignore_eos": True, **fields}).encode()


def ask(server: ServerProcess, **fields: Any) -> str:
    answer = server.ask("POST", CHAT, {"messages": QUESTION, "temperature": 0, **fields})
    assert answer.status == 200, answer.body
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def answers_well(server: ServerProcess) -> None:
    """The engine is free at once and says what it always says."""
    assert ask(server) == ANSWER
    assert server.ask("GET", "/health").status == 200


def leave(connection: socket.socket, how: str) -> None:
    if how == "half":
        connection.shutdown(socket.SHUT_WR)
        return
    if how == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_a_client_that_leaves_while_its_reply_is_written_stops_it(
    server: ServerProcess, stream: bool, how: str
) -> None:
    before = work_of(server)
    connection = connect(server)
    connection.sendall(raw_request(CHAT, long_reply(stream=stream)))
    eventually(lambda: work_of(server).generated > before.generated, "a token was written")
    leave(connection, how)
    server.wait_idle()
    after = work_of(server)
    assert after.generated - before.generated < CONTEXT * 3 // 4
    answers_well(server)
    settled = work_of(server)
    # Between the two looks nothing but that one answer was made.
    assert settled.generated - after.generated < 40
    connection.close()


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_a_client_that_leaves_while_its_prompt_is_read_stops_it(server: ServerProcess, stream: bool, how: str) -> None:
    before = work_of(server)
    connection = connect(server)
    connection.sendall(raw_request(TEXT, long_prompt(stream=stream)))
    eventually(lambda: work_of(server).prefilled >= before.prefilled + SLICE, "a slice of the prompt was read")
    leave(connection, how)
    server.wait_idle()
    after = work_of(server)
    assert after.generated == before.generated
    assert after.prefilled - before.prefilled < LONG_PROMPT
    answers_well(server)
    connection.close()


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_a_client_that_leaves_the_queue_takes_nobody_with_it(server: ServerProcess, stream: bool, how: str) -> None:
    before = work_of(server)
    tokens = 3000
    with server.stream({"messages": QUESTION, "temperature": 0, "ignore_eos": True, "max_tokens": tokens}) as first:
        first.until_text()
        connection = connect(server)
        connection.sendall(raw_request(TEXT, long_prompt(stream=stream)))
        eventually(lambda: work_of(server).waiting == 1, "it waits")
        leave(connection, how)
        eventually(lambda: work_of(server).waiting == 0, "it waits no more")
        *_, last = first.chunks()
        assert last["choices"][0]["finish_reason"] == "length"
    server.wait_idle()
    after = work_of(server)
    assert after.generated - before.generated == tokens
    assert after.prefilled - before.prefilled < 100
    answers_well(server)
    connection.close()


def test_a_slow_reader_gets_everything_and_holds_nobody_up(server: ServerProcess) -> None:
    tokens = 3000
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PATIENCE)
    connection.connect(("127.0.0.1", server.port))
    with connection:
        connection.sendall(
            raw_request(CHAT, long_reply(stream=True, max_tokens=tokens), headers="Connection: close\r\n")
        )
        data = b""
        for _ in range(200):
            data += connection.recv(1)
            time.sleep(0.005)
        assert server.ask("GET", "/health").status == 200
        answers_well(server)  # behind the slow one's reply in the queue, not behind its reading
        data += read_all(connection)
    assert data.count(b"data: [DONE]") == 1
    assert data.count(b'"finish_reason":"length"') == 1
    assert b'"generated_tokens":%d' % tokens in data


def test_a_client_that_reads_nothing_is_dropped(impatient: ServerProcess) -> None:
    gone = impatient.metric("mindnano_clients_gone_total")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PATIENCE)
    connection.connect(("127.0.0.1", impatient.port))
    with connection:
        # Twenty candidates for each token make more than the kernel takes for a reader that takes nothing.
        body = long_reply(stream=True, logprobs=True, top_logprobs=20)
        connection.sendall(raw_request(CHAT, body))
        eventually(lambda: impatient.metric("mindnano_clients_gone_total") > gone, "it was given up", PATIENCE)
        impatient.wait_idle()
        answers_well(impatient)


def test_a_head_that_comes_letter_by_letter_is_given_up(impatient: ServerProcess) -> None:
    with connect(impatient) as connection:
        answer = trickle(connection, b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: " + b"a" * 1000)
    assert b" 408 " in answer.partition(b"\r\n")[0]
    answers_well(impatient)


@pytest.mark.parametrize("path", [CHAT, "/tokenize", "/v1/cancel", "/health"])
def test_a_body_that_comes_letter_by_letter_is_given_up(impatient: ServerProcess, path: str) -> None:
    with connect(impatient) as connection:
        connection.sendall(
            raw_request(path, headers="Content-Type: application/json\r\n").replace(b"th: 0", b"th: 999")
        )
        answer = trickle(connection, b"{" + b" " * 998)
    first = answer.partition(b"\r\n")[0]
    assert (b" 405 " if path == "/health" else b" 408 ") in first, answer
    answers_well(impatient)


def test_a_chunked_body_without_an_end_is_given_up(impatient: ServerProcess) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with connect(impatient) as connection:
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        answer = trickle(connection, b"1\r\n \r\n" * 1000)
    assert b" 408 " in answer.partition(b"\r\n")[0]
    answers_well(impatient)


def trickle(connection: socket.socket, data: bytes) -> bytes:
    """Sends a byte now and then until the server ends the connection; returns what it said."""
    connection.settimeout(0.02)
    heard = b""
    for place in range(len(data)):
        try:
            connection.sendall(data[place : place + 1])
            more = connection.recv(65536)
        except TimeoutError:
            continue
        except ConnectionError:
            break
        if not more:
            break
        heard += more
    else:
        raise AssertionError(f"the server took it all and said {heard!r}")
    return heard


def test_pipelined_requests_are_answered_in_order(server: ServerProcess) -> None:
    requests = [raw_request(CHAT, chat()), raw_request("/health", method="GET"), raw_request(CHAT, chat(stream=True))]
    last = raw_request("/v1/models", method="GET", headers="Connection: close\r\n")
    with connect(server) as connection:
        connection.sendall(b"".join([*requests, last]))
        heard = read_all(connection)
    marks = [
        heard.index(mark) for mark in (b'"chat.completion"', b'"status":"ok"', b"data: [DONE]", b'"object":"list"')
    ]
    assert marks == sorted(marks)
    assert heard.count(b"HTTP/1.1 200 OK") == 4


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 1000 + b"\r\n\r\n",
        bytes(range(256)) * 8,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xaa" * 200 + b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTQ/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
    ],
)
def test_bytes_that_are_no_request_are_refused(server: ServerProcess, data: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(data)
        first = read_all(connection).partition(b"\r\n")[0]
    assert first.split(b" ")[1] in {b"400", b"501", b"505"}, first
    assert server.ask("GET", "/health").status == 200


def test_a_head_that_is_too_large_is_refused(server: ServerProcess) -> None:
    with connect(server) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Large: " + b"a" * 65000)
        connection.sendall(b"a" * 2000)
        answer = read_all(connection)
    assert b" 431 " in answer.partition(b"\r\n")[0], answer[:200]
    assert b'"headers_too_large"' in answer


def test_more_body_than_announced_is_not_part_of_it(server: ServerProcess) -> None:
    request = raw_request(CHAT, chat()).replace(b"Content-Length", b"X-Was") + b"surplus\r\n\r\n"
    request = request.replace(b"\r\n\r\n", b"\r\nContent-Length: %d\r\n\r\n" % len(chat()), 1)
    with connect(server) as connection:
        connection.sendall(request)
        heard = read_all(connection)
    assert heard.startswith(b"HTTP/1.1 200 ")
    assert ANSWER.encode() in heard
    assert b"HTTP/1.1 400 " in heard  # what follows is no request
    answers_well(server)


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[{"role":"user","content":"\xff\xfe"}]}',
        b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
        b"\xef\xbb\xbf{}",
        b'{"messages":',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"",
        b"null",
        b'{"messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"messages":[{"role":"user","content":"a"}],"temperature":NaN}',
        b'{"messages":[{"role":"user","content":"a"}],"max_tokens":1e400}',
    ],
)
def test_a_body_that_is_no_json_is_a_400(server: ServerProcess, body: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(raw_request(CHAT, body, headers="Connection: close\r\n"))
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert server.ask("GET", "/health").status == 200


def test_a_client_that_expects_100_continue_is_told_to_go_on(server: ServerProcess) -> None:
    head, _, body = raw_request(CHAT, chat(), headers="Expect: 100-continue\r\nConnection: close\r\n").partition(
        b"\r\n\r\n"
    )
    with connect(server) as connection:
        connection.sendall(head + b"\r\n\r\n")
        assert read_until(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert ANSWER.encode() in answer


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_http_1_0_gets_an_answer_without_chunks(server: ServerProcess, stream: bool) -> None:
    request = raw_request(CHAT, chat(stream=stream)).replace(b"HTTP/1.1", b"HTTP/1.0")
    with connect(server) as connection:
        connection.sendall(request)
        head, _, body = read_all(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"chunked" not in head.lower()
    if stream:
        assert body.endswith(b"data: [DONE]\n\n")
        assert body.startswith(b":")
    else:
        assert json.loads(body)["choices"][0]["message"]["content"] == ANSWER


@pytest.mark.parametrize(
    ("target", "status"),
    [("http://localhost/health", b"200"), ("http://localhost/none", b"404"), ("http://evil.example/health", b"403")],
)
def test_a_whole_address_as_target_means_its_path(server: ServerProcess, target: str, status: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(raw_request(target, method="GET", headers="Connection: close\r\n"))
        answer = read_all(connection)
    assert answer.split(b" ", 2)[1] == status, answer


def test_health_is_answered_while_the_engine_works(server: ServerProcess) -> None:
    with server.stream({"messages": QUESTION, "temperature": 0, "ignore_eos": True}) as stream:
        stream.until_text()
        connection = HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
        for _ in range(50):
            connection.request("GET", "/health")
            assert connection.getresponse().read() == b'{"status":"ok"}'
        connection.close()
        # A loop that waits for the engine answers when the reply is complete.
        assert work_of(server).running == 1
    server.wait_idle()
