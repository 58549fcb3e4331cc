"""A state on its way that holds the server up, or that leaves memory, places or connections behind; a slot that is
told to be free."""

from __future__ import annotations

import hashlib
import socket
import threading
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from launcher.server.connections import ConnectionLimits
from launcher.server.state_body import Pace
from tests.support.http_bench import HttpBench, eventually, raw_request, read_all, read_until
from tests.support.moving_sessions import Exchange

PATH = "/v1/sessions/a/state"
IDS = [1, 2, 3, 4, 5]
LARGE = 32 << 20  # more than sockets hold by themselves
BINARY = {"Content-Type": "application/octet-stream"}


@pytest.fixture
def bench() -> Iterator[HttpBench]:
    with HttpBench() as running:
        yield running


@pytest.fixture
def large() -> Iterator[HttpBench]:
    with HttpBench() as running:
        running.backend.exchange = Exchange(budget=2 * LARGE, padding=LARGE)
        yield running


def state(padding: int = 100) -> bytes:
    made = Exchange(budget=2 * LARGE, padding=padding)
    made.say(IDS)
    return made.file()


def head(length: int, *, more: str = "") -> bytes:
    return f"PUT {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{more}\r\n".encode()


def status_of(data: bytes) -> int:
    return int(data.split()[1])


def is_free(bench: HttpBench) -> bool:
    """Whether nothing of a transfer is left: its memory, its place, its connection."""
    services = bench._services
    return bench.backend.exchange.bytes == 0 and services.carried._count == 0 and bench.connections() == 0


def test_a_state_leaves_with_what_proves_it(bench: HttpBench) -> None:
    bench.backend.exchange.say(IDS)
    answer = requests.get(bench.url + PATH, timeout=10)
    assert answer.status_code == 200
    assert answer.content == bench.backend.exchange.file()
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["ETag"] == f'"{hashlib.sha256(answer.content[:-32]).hexdigest()}"'
    digest = b64encode(hashlib.sha256(answer.content).digest()).decode()
    assert answer.headers["Repr-Digest"] == f"sha-256=:{digest}:"
    again = requests.get(bench.url + PATH, headers={"If-None-Match": answer.headers["ETag"]}, timeout=10)
    assert (again.status_code, again.content) == (304, b"")
    other = requests.get(bench.url + PATH, headers={"If-None-Match": '"0", "1"'}, timeout=10)
    assert other.status_code == 200
    about = requests.head(bench.url + PATH, timeout=10)
    assert about.headers["Content-Length"] == str(len(answer.content))
    eventually(lambda: bench.backend.exchange.bytes == 0, "the copies are gone")


def test_a_state_comes_and_the_next_turn_finds_it(bench: HttpBench) -> None:
    data = state()
    first = requests.put(bench.url + PATH, data, timeout=10)
    assert (first.status_code, first.json()["tokens"], first.json()["place"]) == (201, 5, "ram")
    assert requests.put(bench.url + PATH, iter([data[:7], b"", data[7:300], data[300:]]), timeout=10).status_code == 200
    assert bench.backend.exchange.say([*IDS, 6]) == 5


@pytest.mark.parametrize("cut", [0, 1, 11, 12, 50, 280, 320, 400])
def test_a_body_that_ends_early_is_told(bench: HttpBench, cut: int) -> None:
    data = state()
    answer = requests.put(bench.url + PATH, iter([data[:cut], b""]) if cut else b"", timeout=10)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "session_state_damaged"
    assert f"{cut} bytes" in error["message"]
    assert bench.backend.exchange.bytes == 0


def test_a_body_that_goes_on_is_told(bench: HttpBench) -> None:
    data = state()
    for body in (data + b"x", iter([data, b"x"])):
        answer = requests.put(bench.url + PATH, body, timeout=10)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "session_state_damaged")
    assert bench.backend.exchange.bytes == 0


def test_a_length_that_does_not_fit_is_refused_before_there_is_memory_for_it(bench: HttpBench) -> None:
    data = state()
    with bench.connect() as connection:
        connection.sendall(head(len(data) + 5) + data[:300])
        assert b"session_state_damaged" in read_until(connection, b"}}")
    assert bench.backend.exchange.session.calls == []


def test_what_is_too_large_is_refused_with_both_numbers_before_it_is_read(bench: HttpBench) -> None:
    limit = bench.backend.exchange.rules.limit
    with bench.connect() as connection:
        connection.sendall(head(limit + 1, more="Expect: 100-continue\r\n"))
        data = read_until(connection, b"}}")
    assert status_of(data) == 413
    assert str(limit).encode() in data
    assert str(limit + 1).encode() in data


def test_what_turns_out_too_large_is_refused_while_it_is_read(bench: HttpBench) -> None:
    data = state(padding=2 << 20)
    parts = iter([data[:1000], data[1000:]])
    answer = requests.put(bench.url + PATH, parts, timeout=10)
    assert answer.status_code == 413
    assert str(bench.backend.exchange.budget) in answer.json()["error"]["message"]
    assert bench.backend.exchange.bytes == 0


def test_the_usual_limit_of_bodies_is_not_that_of_states(large: HttpBench) -> None:
    answer = requests.put(large.url + PATH, state(LARGE), timeout=60)
    assert answer.status_code == 201
    assert large.backend.exchange.bytes > LARGE


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({"Content-Type": "application/json"}, "application/json"),
        ({"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"}, "gzip"),
    ],
)
def test_another_kind_of_body_is_refused(bench: HttpBench, headers: dict[str, str], found: str) -> None:
    answer = requests.put(bench.url + PATH, state(), headers=headers, timeout=10)
    assert answer.status_code == 415
    assert found in answer.json()["error"]["message"]


def test_a_name_that_no_request_could_use_is_refused(bench: HttpBench) -> None:
    for name in ("x" * 257, "a%01b"):
        answer = requests.put(f"{bench.url}/v1/sessions/{name}/state", state(), timeout=10)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_value")


def test_without_a_session_cache_both_ways_say_so(bench: HttpBench) -> None:
    bench.backend.exchange = Exchange(budget=0)
    for answer in (requests.get(bench.url + PATH, timeout=10), requests.put(bench.url + PATH, state(), timeout=10)):
        assert (answer.status_code, answer.json()["error"]["code"]) == (501, "session_cache_off")


def test_a_body_that_comes_too_slowly_is_given_up() -> None:
    with HttpBench(pace=Pace(seconds=0.3, rate=1 << 30)) as bench:
        for sent in (0, len(state()) - 100):  # before there is memory for it, and after
            with bench.connect() as connection:
                connection.sendall(head(len(state())) + state()[:sent])
                data = read_all(connection)
                assert status_of(data) == 408
                assert f"{sent} bytes".encode() in data
            eventually(lambda: is_free(bench), "nothing is left")


def test_a_body_that_moves_may_take_longer_than_others() -> None:
    """Neither the clock of connections nor that of other bodies ends it."""
    with (
        HttpBench(limits=ConnectionLimits(body_seconds=0.2), pace=Pace(seconds=0.5, rate=100)) as bench,
        bench.connect() as connection,
    ):
        data = state()
        connection.sendall(head(len(data)))
        for place in range(0, len(data), 100):
            threading.Event().wait(0.15)
            connection.sendall(data[place : place + 100])
        assert status_of(read_until(connection, b"}")) == 201


def test_other_bodies_keep_their_clock() -> None:
    with HttpBench(limits=ConnectionLimits(body_seconds=0.2)) as bench, bench.connect() as connection:
        connection.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{")
        assert read_all(connection) == b""


def test_a_client_that_vanishes_while_it_sends_leaves_nothing(bench: HttpBench) -> None:
    data = state()
    for sent in (0, 5, len(data) - 100, len(data) - 1):
        with bench.connect() as connection:
            connection.sendall(head(len(data)) + data[:sent])
            eventually(lambda: bench._services.carried._count == 1, "it has come so far")
            if sent > 300:
                eventually(lambda: bench.backend.exchange.bytes > 0, "there is memory for it")
        eventually(lambda: is_free(bench), f"nothing is left after {sent} bytes")
    assert bench.backend.exchange.store.listing("") == ()


def receiving(bench: HttpBench) -> socket.socket:
    """A client that has begun to take a state and takes no more."""
    connection = bench.connect()
    connection.sendall(raw_request(PATH, method="GET"))
    read_until(connection, b"\r\n\r\n")
    return connection


def test_a_client_that_vanishes_while_it_takes_leaves_nothing(large: HttpBench) -> None:
    large.backend.exchange.say(IDS)
    for _ in range(3):
        with receiving(large):
            assert large.backend.exchange.bytes > LARGE
        eventually(lambda: is_free(large), "nothing is left")
    assert len(requests.get(large.url + PATH, timeout=60).content) > LARGE


def test_a_client_that_takes_nothing_is_given_up() -> None:
    with HttpBench(pace=Pace(seconds=0.3), limits=ConnectionLimits(write_seconds=0.3)) as bench:
        bench.backend.exchange = Exchange(budget=2 * LARGE, padding=LARGE)
        bench.backend.exchange.say(IDS)
        with receiving(bench):
            eventually(lambda: is_free(bench), "nothing is left")


def test_a_client_that_takes_it_too_slowly_is_given_up() -> None:
    with HttpBench(pace=Pace(seconds=0.3, rate=1 << 40)) as bench:
        bench.backend.exchange = Exchange(budget=2 * LARGE, padding=LARGE)
        bench.backend.exchange.say(IDS)
        with receiving(bench) as connection:
            eventually(lambda: bench.backend.exchange.bytes == 0, "its memory is free")
            assert len(read_all(connection)) < LARGE


def test_others_are_answered_while_a_state_is_on_its_way(large: HttpBench) -> None:
    large.backend.exchange.say(IDS)
    with receiving(large), large.connect() as sender:
        sender.sendall(head(10_000) + state()[:20])
        assert requests.get(large.url + "/health", timeout=10).status_code == 200
        eventually(lambda: large._services.carried._count == 2, "both have a place")
        for answer in (
            requests.get(large.url + PATH, timeout=10),
            requests.put(large.url + PATH, state(), headers=BINARY, timeout=10),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "overloaded")
            assert int(answer.headers["Retry-After"]) > 0
    eventually(lambda: large._services.carried._count == 0, "the places are free")


def test_many_at_the_same_time_lose_no_byte_of_the_account(bench: HttpBench) -> None:
    data = state()
    broken = data[:-1] + bytes([data[-1] ^ 1])

    def one(number: int) -> int:
        body = broken if number % 3 else data
        return requests.put(f"{bench.url}/v1/sessions/s{number % 4}/state", body, timeout=10).status_code

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(one, range(60)))
    assert found <= {200, 201, 400, 429}
    kept = bench.backend.exchange.store.listing("")
    assert bench.backend.exchange.bytes == sum(info.bytes for info in kept)


def test_a_name_that_ends_like_a_state_is_still_a_session(bench: HttpBench) -> None:
    bench.backend.kept = {"": ["b/state", "b"]}
    wrong = requests.delete(f"{bench.url}/v1/sessions/b/state", timeout=10)
    assert (wrong.status_code, wrong.headers["Allow"]) == (405, "GET, HEAD, PUT")
    assert requests.delete(f"{bench.url}/v1/sessions/b%2Fstate", timeout=10).status_code == 200
    assert bench.backend.kept == {"": ["b"]}
    wrong = requests.get(f"{bench.url}/v1/sessions/b%2Fstate", timeout=10)
    assert (wrong.status_code, wrong.headers["Allow"]) == (405, "DELETE")


def test_pages_of_others_can_put_nothing(bench: HttpBench) -> None:
    answer = requests.put(bench.url + PATH, state(), headers={"Origin": "http://evil.example"}, timeout=10)
    assert answer.status_code == 403
    assert bench.backend.exchange.bytes == 0


def test_a_slot_that_is_taken_is_told_by_status_only_where_asked(bench: HttpBench) -> None:
    url = f"{bench.url}/slots"
    assert requests.get(url, params={"fail_on_no_slot": "1"}, timeout=10).status_code == 200
    bench.backend.is_processing = True
    assert requests.get(url, timeout=10).json()[0]["is_processing"] is True
    assert requests.get(url, params={"fail_on_no_slot": ""}, timeout=10).status_code == 200
    taken = requests.get(url, params={"fail_on_no_slot": "1"}, timeout=10)
    assert (taken.status_code, taken.json()["error"]["code"]) == (503, "no_slot_available")
    assert "Retry-After" in taken.headers


def test_before_the_model_is_there_nothing_moves() -> None:
    with HttpBench(loaded=False) as bench:
        for answer in (
            requests.get(bench.url + PATH, timeout=10),
            requests.put(bench.url + PATH, state(), timeout=10),
            requests.get(bench.url + "/slots", timeout=10),
        ):
            assert answer.status_code == 503
