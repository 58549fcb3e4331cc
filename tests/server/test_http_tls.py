"""TLS clients that take all the connections, or that keep the server from ending, without ever asking anything."""

from __future__ import annotations

import datetime
import socket
import ssl
import time
from pathlib import Path

import pytest

from launcher.options.parse import ServerOptions
from launcher.server.connections import ConnectionLimits
from launcher.server.tls import server_context
from tests.support.certificates import DAY, Authority
from tests.support.http_bench import HttpBench, eventually, raw_request, read_all, read_until

HEALTH = raw_request("/health", method="GET")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, datetime.datetime.now(datetime.UTC))


@pytest.fixture
def context(tmp_path: Path, authority: Authority) -> ssl.SSLContext:
    now = datetime.datetime.now(datetime.UTC)
    authority.server(now - DAY, now + DAY)
    found = server_context(ServerOptions(tls_cert=tmp_path / "server.pem", tls_key=tmp_path / "server.key"))
    assert found is not None
    return found


@pytest.fixture
def client(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.bundle))


def secured(bench: HttpBench, client: ssl.SSLContext) -> ssl.SSLSocket:
    return client.wrap_socket(bench.connect(), server_hostname="127.0.0.1")


def ask(connection: ssl.SSLSocket) -> None:
    connection.sendall(HEALTH)
    assert b" 200 OK" in read_until(connection, b"}")


def test_a_handshake_that_never_ends_is_ended(context: ssl.SSLContext, client: ssl.SSLContext) -> None:
    limits = ConnectionLimits(head_seconds=1.0)
    with HttpBench(tls=context, limits=limits) as bench, bench.connect() as silent:
        assert read_all(silent) == b""  # a timeout of this socket fails the test
        with secured(bench, client) as other:
            ask(other)
            time.sleep(1.5)  # its own handshake is complete: the clock of handshakes must not end it
            ask(other)


def test_handshakes_count_as_connections(context: ssl.SSLContext, client: ssl.SSLContext) -> None:
    limits = ConnectionLimits(connections=3)
    with HttpBench(tls=context, limits=limits) as bench, secured(bench, client) as good:
        ask(good)
        silent = [bench.connect() for _ in range(2)]
        with bench.connect() as one_more:
            assert read_all(one_more) == b""
        ask(good)
        for connection in silent:
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):  # still open
                connection.recv(1)
            connection.close()

        def has_room() -> bool:
            try:
                with secured(bench, client) as another:
                    ask(another)
            except (ssl.SSLError, OSError):
                return False
            return True

        eventually(has_room, "a handshake that was given up makes room")


@pytest.mark.parametrize("shakes_hands", [True, False])
def test_an_idle_client_does_not_delay_the_end(
    context: ssl.SSLContext, client: ssl.SSLContext, shakes_hands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never answers the server's goodbye; that the server waits for it shows where the wait is without end."""
    monkeypatch.setattr("launcher.server.web._LAST_ANSWERS", None)
    with HttpBench(tls=context) as bench:
        idle: socket.socket = secured(bench, client) if shakes_hands else bench.connect()
        if shakes_hands:
            assert isinstance(idle, ssl.SSLSocket)
            ask(idle)
        start = time.monotonic()
    assert time.monotonic() - start < 20  # asyncio would wait for 30
    idle.close()


def test_an_answer_that_is_still_on_its_way_arrives(context: ssl.SSLContext, client: ssl.SSLContext) -> None:
    with HttpBench(tls=context) as bench:
        bench.scheduler.react = lambda job: None
        asking = secured(bench, client)
        body = b'{"messages": [{"role": "user", "content": "hi"}], "stream": true}'
        asking.sendall(raw_request("/v1/chat/completions", body))
        job = bench.scheduler.job()
        bench._web.should_exit = True
        time.sleep(1.5)  # longer than a goodbye may take
        job.say("late")
        job.finish()
        assert b"[DONE]" in read_all(asking)
        asking.close()
