"""A stream that ends without `[DONE]`, is silent for too long, goes on after its client left, or mixes statuses up."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import fields

import pytest
import requests

from launcher.errors import EngineCrash, InternalError, MindnanoError, RequestError, ResourceError
from launcher.server.app import Services
from launcher.server.bodies import BodyLimits
from launcher.server.connections import ConnectionLimits
from launcher.server.events import Paused, Queued, Reading
from launcher.server.protocol.replies import ChatReply, CompletionReply
from tests.support.http_bench import HttpBench, Job, chat_body, eventually, raw_request, read_until

CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def bench() -> Iterator[HttpBench]:
    with HttpBench(ping_seconds=0.05) as running:
        yield running


def post(bench: HttpBench, body: bytes, path: str = CHAT, **headers: str) -> requests.Response:
    return requests.post(bench.url + path, data=body, headers={**JSON, **headers}, timeout=60)


def data_lines(text: str) -> list[str]:
    return [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]


def test_a_stream_comments_while_it_waits_and_ends_with_done_once(bench: HttpBench) -> None:
    def react(job: Job) -> None:
        job.sink(Queued(position=2))
        job.sink(Queued(position=1))
        job.sink(Reading(done=1, total=3))
        job.sink(Paused())
        job.say("he", "llo")
        job.finish()

    bench.scheduler.react = react
    answer = post(bench, chat_body(stream=True, session_id="s1", stream_options={"include_usage": True}))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-request-id"] == "chatcmpl-1"
    assert answer.headers["x-session-id"] == "s1"
    assert answer.headers["x-served-by"] == "here"
    lines = answer.text.splitlines()
    for comment in (": queue position 2", ": queue position 1", ": prefill 1/3", ": paused"):
        assert comment in lines
    data = data_lines(answer.text)
    assert data[-1] == "[DONE]"
    assert data.count("[DONE]") == 1
    chunks = [json.loads(line) for line in data[:-1]]
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-1"}
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"]) == "hello"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 2


def test_silence_is_broken_by_pings_before_and_between_events(bench: HttpBench) -> None:
    with bench.connect() as connection:
        connection.sendall(raw_request(CHAT, chat_body(stream=True)))
        read_until(connection, b": ping")
        read_until(connection, b": ping")
        job = bench.scheduler.job()
        job.say("a")
        read_until(connection, b'"content":"a"')
        read_until(connection, b": ping")
        job.finish()
        read_until(connection, b"data: [DONE]")


def test_a_server_breaks_the_silence_at_least_every_ten_seconds() -> None:
    """Where nobody says how often, as in the program; that it does is the test before."""
    (usual,) = [field.default for field in fields(Services) if field.name == "ping_seconds"]
    assert 0 < usual <= 10


def test_a_failure_in_the_middle_is_an_error_event_without_done(bench: HttpBench) -> None:
    def react(job: Job) -> None:
        job.say("a")
        job.fail(EngineCrash("engine-internal", "it broke at /secret/path"))

    bench.scheduler.react = react
    answer = post(bench, chat_body(stream=True))
    data = data_lines(answer.text)
    assert "[DONE]" not in answer.text
    assert json.loads(data[-1])["error"]["code"] == "engine_internal"
    assert "/secret" not in answer.text
    assert bench.scheduler.cancelled == []


def test_a_schema_that_cannot_be_followed_further_ends_the_stream_with_its_error(bench: HttpBench) -> None:
    def react(job: Job) -> None:
        job.say('{"a"')
        job.fail(RequestError("invalid_json_schema", "the schema cannot be followed here: too much work"))

    bench.scheduler.react = react
    data = data_lines(post(bench, chat_body(stream=True)).text)
    assert json.loads(data[0])["choices"]
    error = json.loads(data[-1])["error"]
    assert (error["code"], error["type"]) == ("invalid_json_schema", "invalid_request_error")
    whole = post(bench, chat_body())
    assert (whole.status_code, whole.json()["error"]["code"]) == (400, "invalid_json_schema")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "error",
    [InternalError("internal", "broken at /secret/path"), ResourceError("disk-full", "no room in /secret/path")],
)
def test_what_fails_in_the_server_is_answered_without_paths(
    bench: HttpBench, error: MindnanoError, stream: bool
) -> None:
    def fail() -> None:
        raise error

    bench.backend.planning = fail
    planned = post(bench, chat_body(stream=stream))
    bench.backend.planning = lambda: None
    bench.scheduler.react = lambda job: job.fail(error)
    made = post(bench, chat_body())
    for answer in (planned, made):
        assert answer.status_code == (500 if isinstance(error, InternalError) else 503)
        assert answer.json()["error"]["type"] == "server_error"
        assert "/secret" not in answer.text + str(answer.headers)


def test_a_refusal_comes_before_the_first_byte_with_its_status(bench: HttpBench) -> None:
    bench.scheduler.refusal = RequestError(
        "queue_full",
        "full",
        status=429,
        kind="rate_limit_error",
        headers={"Retry-After": "7", "X-Queue-Depth": "8"},
    )
    answer = post(bench, chat_body(stream=True))
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "7"
    assert answer.headers["x-queue-depth"] == "8"
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"] == {
        "message": "full",
        "type": "rate_limit_error",
        "param": None,
        "code": "queue_full",
    }


def test_a_whole_answer_is_one_document(bench: HttpBench) -> None:
    def react(job: Job) -> None:
        job.sink(Queued(position=1))
        job.say("hel", "lo")
        job.finish()

    bench.scheduler.react = react
    answer = post(bench, chat_body())
    assert answer.status_code == 200
    assert answer.headers["x-request-id"] == "chatcmpl-1"
    assert answer.json()["choices"][0]["message"]["content"] == "hello"
    text = post(bench, json.dumps({"prompt": "x"}).encode(), "/v1/completions")
    assert text.json()["object"] == "text_completion"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("where", ["body", "header"])
def test_a_request_can_be_cancelled_by_the_id_that_its_client_chose(bench: HttpBench, stream: bool, where: str) -> None:
    """A reply that is not streamed tells an id of the server only when it is complete."""
    body = chat_body(stream=stream, **({"request_id": "mine:1"} if where == "body" else {}))
    other = "other" if where == "body" else "mine:1"
    with bench.connect() as connection:
        connection.sendall(raw_request(CHAT, body, headers=f"X-Request-Id: {other}\r\n"))
        assert bench.scheduler.job().request.id == "mine:1"
        cancelled = post(bench, b'{"request_id": "mine:1"}', "/v1/cancel")
        assert cancelled.json() == {"request_id": "mine:1", "cancelled": True}
        assert b"x-request-id: mine:1" in read_until(connection, b'"cancelled"').lower()


@pytest.mark.parametrize(
    ("name", "told"),
    [("s 1/2", "s 1/2"), ("你好", "%E4%BD%A0%E5%A5%BD"), ("50%", "50%25"), (" s ", "%20s%20"), ("é", "%C3%A9")],
)
def test_any_name_of_a_session_fits_a_header(bench: HttpBench, name: str, told: str) -> None:
    bench.scheduler.react = lambda job: job.finish()
    answer = post(bench, chat_body(session_id=name))
    assert (answer.status_code, answer.headers["x-session-id"]) == (200, told)


def test_a_whole_answer_that_fails_has_the_status_of_its_error(bench: HttpBench) -> None:
    bench.scheduler.react = lambda job: job.fail(RequestError("deadline_exceeded", "too late", status=408))
    answer = post(bench, chat_body())
    assert (answer.status_code, answer.json()["error"]["code"]) == (408, "deadline_exceeded")
    assert answer.headers["x-request-id"] == "chatcmpl-1"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("phase", ["queue", "prefill", "decode"])
@pytest.mark.parametrize("leave", ["close", "reset", "half"])
def test_work_stops_when_the_client_leaves(bench: HttpBench, stream: bool, phase: str, leave: str) -> None:
    connection = bench.connect()
    connection.sendall(raw_request(CHAT, chat_body(stream=stream)))
    job = bench.scheduler.job()
    job.sink(Queued(position=1))
    if phase != "queue":
        job.sink(Reading(done=1, total=3))
    if phase == "decode":
        job.say("a")
    if stream:
        read_until(connection, {"queue": b"position", "prefill": b"prefill", "decode": b"content"}[phase])
    if leave == "half":
        connection.shutdown(socket.SHUT_WR)
    elif leave == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
    else:
        connection.close()
    eventually(lambda: bench.scheduler.cancelled == [(job.request.id, "")], "the request was cancelled")
    connection.close()
    eventually(lambda: bench.connections() == 0, "the connection was forgotten")


def test_a_pipelined_request_does_not_hide_that_the_client_left(bench: HttpBench) -> None:
    connection = bench.connect()
    connection.sendall(raw_request(CHAT, chat_body()) + raw_request("/health", method="GET"))
    job = bench.scheduler.job()
    connection.close()
    eventually(lambda: bench.scheduler.cancelled == [(job.request.id, "")], "the request was cancelled")


def test_cancel_pause_and_resume_go_by_id(bench: HttpBench) -> None:
    with bench.connect() as connection:
        connection.sendall(raw_request(CHAT, chat_body(stream=True)))
        name = bench.scheduler.job().request.id
        body = json.dumps({"request_id": name}).encode()
        assert post(bench, body, "/v1/pause").json() == {"request_id": name, "paused": True}
        assert post(bench, body, "/v1/resume").json() == {"request_id": name, "resumed": True}
        assert post(bench, body, "/v1/cancel").json() == {"request_id": name, "cancelled": True}
        told = read_all_of_stream(connection)
        assert b'"code":"cancelled"' in told
        assert b"[DONE]" not in told
    missing = post(bench, b'{"request_id": "other"}', "/v1/cancel")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "request_not_found")


def read_all_of_stream(connection: socket.socket) -> bytes:
    return read_until(connection, b"0\r\n\r\n")


def test_a_client_that_reads_no_more_is_dropped() -> None:
    limits = ConnectionLimits(write_seconds=0.3)
    with HttpBench(limits=limits) as bench, bench.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(raw_request(CHAT, chat_body(stream=True)))
        job = bench.scheduler.job()
        flood = threading.Thread(target=lambda: [job.say("x" * 4000) for _ in range(4000)])
        flood.start()
        eventually(lambda: bench.scheduler.cancelled == [(job.request.id, "")], "the request was cancelled")
        eventually(lambda: bench.connections() == 0, "the connection was dropped")
        flood.join()


def test_a_slow_reader_is_not_dropped_while_it_reads() -> None:
    """Its reading takes longer, all in all, than the server waits for a client that takes nothing."""
    limits = ConnectionLimits(write_seconds=2)
    with HttpBench(limits=limits) as bench, bench.connect() as connection:
        connection.sendall(raw_request(CHAT, chat_body(stream=True)))
        job = bench.scheduler.job()
        for _ in range(2000):
            job.say("x" * 4000)
        job.finish()
        data = b""
        for _ in range(80):
            data += connection.recv(65536)
            time.sleep(0.04)
        data += read_until(connection, b"[DONE]")
        assert data.count(b"x" * 4000) == 2000
        assert bench.scheduler.cancelled == []


def test_health_is_answered_while_bodies_are_being_planned(bench: HttpBench) -> None:
    go = threading.Event()
    bench.backend.planning = lambda: go.wait(60) and None
    threads = [threading.Thread(target=lambda: post(bench, chat_body())) for _ in range(4)]
    bench.scheduler.react = lambda job: job.finish()
    for thread in threads:
        thread.start()
    try:
        assert requests.get(bench.url + "/health", timeout=60).json() == {"status": "ok"}
    finally:
        go.set()
        for thread in threads:
            thread.join()


def test_many_events_wake_the_loop_rarely(bench: HttpBench) -> None:
    woken = []
    real = bench.loop.call_soon_threadsafe

    def counting(*arguments: object, **named: object) -> object:
        woken.append(1)
        return real(*arguments, **named)  # type: ignore[arg-type]

    bench.loop.call_soon_threadsafe = counting  # type: ignore[assignment, method-assign]
    hold = threading.Event()

    def react(job: Job) -> None:
        real(hold.wait, 10)  # the loop is busy meanwhile
        for _ in range(500):
            job.say("x")
        hold.set()
        job.finish()

    bench.scheduler.react = react
    assert post(bench, chat_body(stream=True)).text.count('"content":"x"') == 500
    assert len(woken) < 100


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_a_whole_reply_is_written_beside_the_event_loop(
    bench: HttpBench, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """One with many log-probabilities takes long to write, and nobody else would be answered meanwhile."""
    kind = ChatReply if path == CHAT else CompletionReply
    threads: list[threading.Thread] = []
    write = kind.document

    def document(reply: ChatReply | CompletionReply) -> bytes:
        threads.append(threading.current_thread())
        return write(reply)  # type: ignore[arg-type]

    monkeypatch.setattr(kind, "document", document)
    bench.scheduler.react = lambda job: job.finish()
    assert post(bench, chat_body() if path == CHAT else b'{"prompt": "x"}', path=path).status_code == 200
    assert len(threads) == 1
    assert threads[0] is not bench._thread


def test_bodies_are_bounded_together() -> None:
    limits = BodyLimits(bytes=2000, together=3000)
    with HttpBench(bodies=limits) as bench, bench.connect() as first:
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1900\r\n\r\n"
        )
        first.sendall(head.encode() + b" " * 1800)
        eventually(lambda: bench.connections() == 1, "the first is being read")
        answer = None

        def refused() -> bool:
            nonlocal answer
            answer = post(bench, b" " * 1990)
            return answer.status_code == 503

        eventually(refused, "the second was refused")
        assert answer is not None
        assert answer.json()["error"]["code"] == "overloaded"
        assert answer.headers["retry-after"] == "2"
        first.close()
        eventually(lambda: post(bench, b" " * 1990).status_code == 400, "the room came back")


def test_the_end_of_the_server_closes_streams() -> None:
    with HttpBench() as bench:
        connection = bench.connect()
        connection.sendall(raw_request(CHAT, chat_body(stream=True)))
        job = bench.scheduler.job()
        job.say("a")
        job.fail(RequestError("shutting_down", "the server stops", status=503))
        read_until(connection, b"shutting_down")
    connection.close()
