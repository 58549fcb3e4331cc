"""A client that holds the server up by being slow, huge, silent or many; errors that are no OpenAI error objects."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from launcher.server.bodies import BodyLimits
from launcher.server.connections import ConnectionLimits
from tests.support.http_bench import HttpBench, chat_body, eventually, raw_request, read_all, read_until

CHAT = "/v1/chat/completions"
KEYS = {"message", "type", "param", "code"}


@pytest.fixture
def bench() -> Iterator[HttpBench]:
    with HttpBench() as running:
        yield running


def error_of(data: bytes) -> tuple[int, str]:
    """Status and code of a raw answer that holds an error object."""
    head, _, body = data.partition(b"\r\n\r\n")
    error = json.loads(body)["error"]
    assert set(error) == KEYS
    return int(head.split()[1]), error["code"]


def test_a_head_that_does_not_end_is_given_up() -> None:
    with HttpBench(limits=ConnectionLimits(head_seconds=0.2)) as bench:
        with bench.connect() as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: loc")
            assert error_of(read_all(connection)) == (408, "request_timeout")
        with bench.connect() as silent:
            assert error_of(read_all(silent)) == (408, "request_timeout")
        eventually(lambda: bench.connections() == 0, "both were closed")


def test_the_clock_of_the_head_runs_from_its_first_byte_on_a_used_connection() -> None:
    with HttpBench(limits=ConnectionLimits(head_seconds=1.0)) as bench, bench.connect() as connection:
        connection.sendall(raw_request("/health", method="GET"))
        read_until(connection, b'{"status":"ok"}')
        connection.sendall(b"GET /health HT")
        assert error_of(read_all(connection)) == (408, "request_timeout")


def test_a_body_with_two_lengths_is_refused_and_nothing_behind_it_is_read(bench: HttpBench) -> None:
    """A proxy in front may see one request where this server sees two: the second one would be nobody's."""
    head = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    hidden = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with bench.connect() as connection:
        connection.sendall(f"{head}2\r\n{{}}\r\n0\r\n\r\n{hidden}".encode())
        data = read_all(connection)
    assert error_of(data) == (400, "invalid_http")
    assert data.count(b"HTTP/1.1 ") == 1


def test_bytes_that_trickle_do_not_restart_the_clock() -> None:
    with HttpBench(limits=ConnectionLimits(head_seconds=0.4)) as bench, bench.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        connection.settimeout(0.05)
        data = b""
        for _ in range(200):
            try:
                connection.sendall(b"A: b\r\n")
                data += connection.recv(4096)
                if data:
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        assert data == b"" or data.startswith(b"HTTP/1.1 408 ")  # empty where the reset overtook it
        eventually(lambda: bench.connections() == 0, "it was closed")


def test_a_body_that_does_not_end_is_given_up() -> None:
    with HttpBench(bodies=BodyLimits(seconds=0.2)) as bench, bench.connect() as connection:
        connection.sendall(raw_request(CHAT, chat_body())[:-3])
        assert error_of(read_all(connection)) == (408, "request_timeout")


def test_a_refused_body_that_does_not_end_is_not_waited_for() -> None:
    with HttpBench(limits=ConnectionLimits(body_seconds=0.3)) as bench, bench.connect() as connection:
        connection.sendall(raw_request("/nowhere", b"x" * 100)[:-3])
        read_until(connection, b"not_found")
        assert read_all(connection) == b""


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_refused_and_the_connection_lives(bench: HttpBench, chunked: bool) -> None:
    size = (8 << 20) + 1
    with bench.connect() as connection:
        if chunked:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x.localhost\r\nTransfer-Encoding: chunked\r\n"
            head = head.replace("x.localhost", "localhost") + "Content-Type: application/json\r\n\r\n"
            connection.sendall(head.encode() + b"%x\r\n" % size + b" " * size + b"\r\n0\r\n\r\n")
        else:
            connection.sendall(raw_request(CHAT, b" " * size))
        assert error_of(read_until(connection, b"}}")) == (413, "request_too_large")
        connection.sendall(raw_request("/health", method="GET"))
        read_until(connection, b'{"status":"ok"}')


def test_a_body_of_the_largest_size_is_read(bench: HttpBench) -> None:
    bench.scheduler.react = lambda job: job.finish()
    body = chat_body()
    body += b" " * ((8 << 20) - len(body))
    answer = requests.post(bench.url + CHAT, data=body, headers={"Content-Type": "application/json"}, timeout=60)
    assert answer.status_code == 200


def test_expect_continue_is_not_answered_with_go_on_when_the_size_is_refused(bench: HttpBench) -> None:
    with bench.connect() as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(head.encode() + b"Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n")
        assert read_until(connection, b"}}").startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("size", [66000, 200000, 1000000])
def test_a_head_that_is_too_large_is_refused(bench: HttpBench, size: int) -> None:
    with bench.connect() as connection:
        connection.sendall(raw_request("/health", method="GET", headers=f"A: {'x' * size}\r\nConnection: close\r\n"))
        assert error_of(read_all(connection)) == (431, "headers_too_large")


def test_bytes_that_are_no_http_are_refused(bench: HttpBench) -> None:
    for junk in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 10 + b"\r\n\r\n", b"GET\r\n\r\n"):
        with bench.connect() as connection:
            connection.sendall(junk)
            data = read_all(connection)
            assert error_of(data) == (400, "invalid_http")
            assert b"no valid HTTP: illegal request line" in data
            assert b"bytearray" not in data


def told_headers(data: bytes) -> dict[str, str]:
    lines = data.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    return {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


def test_what_is_no_request_is_answered_with_the_headers_of_every_answer(bench: HttpBench) -> None:
    usual = requests.get(bench.url + "/health", timeout=60).headers
    with HttpBench(limits=ConnectionLimits(connections=0)) as full, full.connect() as connection:
        answers = [read_all(connection)]
    with bench.connect() as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        answers.append(read_all(connection))
    for headers in map(told_headers, answers):
        assert {name.lower() for name in usual} - {"content-length", "content-type"} <= set(headers)
        assert headers["x-served-by"] == usual["X-Served-By"]
        assert headers["x-request-id"].startswith("req-")
        assert headers["x-request-id"] != usual["X-Request-Id"]


def test_a_broken_chunk_ends_the_request(bench: HttpBench) -> None:
    with bench.connect() as connection:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
        assert error_of(read_all(connection)) == (400, "invalid_http")
        assert bench.scheduler.jobs == {}


def test_a_coding_that_is_not_served_is_refused_by_its_name(bench: HttpBench) -> None:
    with bench.connect() as connection:
        connection.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n")
        data = read_all(connection)
    assert data.startswith(b"HTTP/1.1 501 Not Implemented\r\n")
    assert error_of(data)[0] == 501


def test_only_so_many_requests_wait_to_be_planned() -> None:
    """One more is told so at once; controls and replies do not count, and the places come free."""
    with HttpBench(backlog=3) as bench:
        go = threading.Event()
        begun = threading.Semaphore(0)

        def planning() -> None:
            begun.release()
            assert go.wait(60)

        bench.backend.planning = planning
        bench.scheduler.react = lambda job: job.finish()
        with ThreadPoolExecutor(8) as clients:

            def ask(path: str = CHAT) -> requests.Response:
                kind = {"Content-Type": "application/json"}
                return requests.post(bench.url + path, data=chat_body(), headers=kind, timeout=60)

            answers = [clients.submit(ask) for _ in range(8)]
            eventually(lambda: sum(answer.done() for answer in answers) == 5, "five were refused")
            assert begun.acquire(timeout=60)
            refused = [*(answer.result() for answer in answers if answer.done()), ask("/tokenize")]
            go.set()
            served = [answer.result() for answer in answers if answer.result() not in refused]
        assert [answer.status_code for answer in served] == [200] * 3
        for answer in refused:
            assert answer.status_code == 429
            assert answer.json()["error"]["code"] == "overloaded"
            assert int(answer.headers["retry-after"]) >= 1
        assert ask().status_code == 200


def test_more_connections_than_allowed_are_refused() -> None:
    with HttpBench(limits=ConnectionLimits(connections=3)) as bench:
        held = [bench.connect() for _ in range(3)]
        eventually(lambda: bench.connections() == 3, "three are connected")
        with bench.connect() as fourth:
            assert error_of(read_all(fourth)) == (503, "too_many_connections")
        for connection in held:
            connection.close()
        eventually(lambda: bench.connections() == 0, "they left")
        assert requests.get(bench.url + "/health", timeout=60).status_code == 200


def test_a_flood_of_pipelined_requests_ends_the_connection(bench: HttpBench) -> None:
    with bench.connect() as connection:
        connection.sendall(raw_request(CHAT, chat_body()))
        job = bench.scheduler.job()
        flood = raw_request("/health", method="GET") * 1_000_000
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            connection.sendall(flood)
        eventually(lambda: bench.scheduler.cancelled == [(job.request.id, "")], "the request was cancelled")


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("Application/JSON;charset=UTF8", 200),
        ("application/problem+json", 200),
        (None, 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("application/json; charset=utf-16", 415),
    ],
)
def test_content_types(bench: HttpBench, kind: str | None, status: int) -> None:
    bench.scheduler.react = lambda job: job.finish()
    headers = {} if kind is None else {"Content-Type": kind}
    answer = requests.post(bench.url + CHAT, data=chat_body(), headers=headers, timeout=60)
    assert answer.status_code == status
    if status == 415:
        assert answer.json()["error"]["code"] == "unsupported_media_type"


def test_compressed_bodies_are_refused(bench: HttpBench) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = requests.post(bench.url + CHAT, data=b"\x1f\x8b", headers=headers, timeout=60)
    assert answer.status_code == 415


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/v1/", 404, "not_found"),
        ("GET", "/health/", 404, "not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("PATCH", "/health", 405, "method_not_allowed"),
        ("BREW", "/health", 405, "method_not_allowed"),
        ("GET", "/v1/models/other", 404, "model_not_found"),
        ("DELETE", "/v1/sessions/other", 404, "session_not_found"),
        ("GET", "http://elsewhere/health", 403, "host_not_allowed"),
    ],
)
def test_what_is_not_there_is_an_error_object(bench: HttpBench, method: str, path: str, status: int, code: str) -> None:
    with bench.connect() as connection:
        connection.sendall(raw_request(path, method=method, headers="Connection: close\r\n"))
        assert error_of(read_all(connection)) == (status, code)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"messages": 1}', b'{"messages": []}', b"\xff\xfe", b"[" * 100000],
)
def test_bad_json_is_a_400_and_the_server_lives(bench: HttpBench, body: bytes) -> None:
    answer = requests.post(bench.url + CHAT, data=body, headers={"Content-Type": "application/json"}, timeout=60)
    assert answer.status_code == 400
    assert set(answer.json()["error"]) >= KEYS
    assert requests.get(bench.url + "/health", timeout=60).status_code == 200


def test_a_bug_is_a_500_that_tells_nothing(bench: HttpBench, capfd: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        raise ZeroDivisionError("secret")

    bench.backend.planning = broken
    answer = requests.post(bench.url + CHAT, data=chat_body(), headers={"Content-Type": "application/json"}, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
    assert "secret" not in answer.text
    assert "secret" in capfd.readouterr().err


def test_head_has_the_headers_of_get_and_no_body(bench: HttpBench) -> None:
    answer = requests.head(bench.url + "/v1/models", timeout=60)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == "application/json"


def test_options_tells_the_methods(bench: HttpBench) -> None:
    answer = requests.options(bench.url + CHAT, timeout=60)
    assert (answer.status_code, answer.headers["allow"]) == (204, "OPTIONS, POST")
    assert requests.options(bench.url + "/nowhere", timeout=60).status_code == 404


def test_http_1_0_is_answered(bench: HttpBench) -> None:
    with socket.create_connection(("127.0.0.1", bench.port), timeout=60) as connection:
        connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert read_all(connection).endswith(b'{"status":"ok"}')
