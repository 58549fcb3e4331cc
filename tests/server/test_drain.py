"""A stop that loses what was accepted, a port that is left half open, or an option that the real server ignores."""

from __future__ import annotations

import datetime
import json
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.certificates import DAY, Authority
from tests.support.http_bench import raw_request, read_all, read_until
from tests.support.server_process import TERMINATED, Answer, ServerProcess, eventually

CHAT = "/v1/chat/completions"
QUESTION = {"messages": [{"role": "user", "content": "Count from 3 to 9"}], "temperature": 0}
ANSWER = "3 4 5 6 7 8 9"
LONG = {**QUESTION, "ignore_eos": True, "max_tokens": 3000}


class Asking(threading.Thread):
    """Asks in the background; `answer` is there after `join`."""

    def __init__(self, server: ServerProcess, document: dict[str, Any]) -> None:
        super().__init__()
        self._server = server
        self._document = document
        self.answer: Answer | None = None
        self.start()

    def run(self) -> None:
        self.answer = self._server.ask("POST", CHAT, self._document)


def has(server: ServerProcess, *, running: int, waiting: int) -> Callable[[], bool]:
    def holds() -> bool:
        queue = server.props()["queue"]
        return (queue["running"], queue["waiting"]) == (running, waiting)

    return holds


def data_of(answer: Answer) -> list[str]:
    lines = answer.body.decode().splitlines()
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


def test_what_runs_and_waits_is_finished_and_the_rest_refused(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--drain-timeout", "600") as server:
        running = Asking(server, {**LONG, "stream": True})
        eventually(has(server, running=1, waiting=0), "one runs")
        waiting = [Asking(server, {**QUESTION, "stream": stream}) for stream in (True, False)]
        eventually(has(server, running=1, waiting=2), "two wait")
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: server.ask("GET", "/readyz").status == 503, "not ready")
        for method, path, document in (("POST", CHAT, QUESTION), ("GET", "/readyz", None)):
            refused = server.ask(method, path, document)
            assert (refused.status, refused.json()["error"]["code"]) == (503, "shutting_down")
            assert int(refused.headers["retry-after"]) > 0
        assert server.ask("GET", "/health").status == 200
        for asking in (running, *waiting):
            asking.join(60)
        assert server.process.wait(60) == TERMINATED
    assert running.answer is not None
    assert data_of(running.answer)[-1] == "[DONE]"
    streamed, whole = (asking.answer for asking in waiting)
    assert streamed is not None
    assert whole is not None
    assert data_of(streamed)[-1] == "[DONE]"
    assert whole.json()["choices"][0]["message"]["content"] == ANSWER


def test_what_takes_too_long_is_told_so_wherever_it_is(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--drain-timeout", "0.2", "--context", "8K") as server:
        forever = {**QUESTION, "ignore_eos": True}
        running = Asking(server, {**forever, "stream": True})
        eventually(has(server, running=1, waiting=0), "one runs")
        waiting = [Asking(server, {**forever, "stream": stream}) for stream in (True, False)]
        eventually(has(server, running=1, waiting=2), "two wait")
        assert server.end() == TERMINATED
        for asking in (running, *waiting):
            asking.join(60)
    streamed, whole = (asking.answer for asking in waiting)
    for answer in (running.answer, streamed):
        assert answer is not None
        assert answer.status == 200
        assert json.loads(data_of(answer)[-1])["error"]["code"] == "shutting_down"
    assert whole is not None
    assert (whole.status, whole.json()["error"]["code"]) == (503, "shutting_down")
    assert int(whole.headers["retry-after"]) > 0


def test_a_paused_request_does_not_keep_the_server_from_stopping(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path, "--drain-timeout", "60") as server,
        server.stream(LONG) as stream,
    ):
        stream.until_text()
        assert server.ask("POST", "/v1/pause", {"request_id": stream.id}).status == 200
        eventually(lambda: server.props()["queue"]["paused"] == 1, "it is paused")
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        *_, last = [line for line in stream if line.startswith("data: ")]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"
        assert server.process.wait(60) == TERMINATED
        assert time.monotonic() - start < 50  # it did not wait for the drain's end


def test_keys_from_a_file_and_from_the_command_line_have_sessions_of_their_own(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("first-key\nsecond-key\n")
    keys.chmod(0o600)
    words = ("--api-key-file", str(keys), "--api-key", "third-key")
    with ServerProcess(tmp_path, *words) as server:
        assert server.ask("POST", CHAT, QUESTION).status == 401
        assert server.ask("GET", "/health").status == 200
        assert server.ask("GET", "/metrics").status == 401
        for key in ("first-key", "second-key", "third-key"):
            bearer = {"Authorization": f"Bearer {key}"}
            answer = server.ask("POST", CHAT, {**QUESTION, "session_id": "mine"}, headers=bearer)
            assert answer.json()["choices"][0]["message"]["content"] == ANSWER
            assert len(server.ask("GET", "/v1/sessions", headers=bearer).json()["data"]) == 1
        assert "first-key" not in server.stderr()
        server.key = "first-key"


def test_https_streams(tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    authority = Authority(tmp_path, now)
    authority.server(now - DAY, now + DAY)
    words = ("--tls-cert", str(tmp_path / "server.pem"), "--tls-key", str(tmp_path / "server.key"))
    server = ServerProcess(tmp_path, *words)
    try:
        eventually(lambda: "ready, model" in server.stderr(), "ready", 60)
        assert f"https://127.0.0.1:{server.port}" in server.stderr()
        context = ssl.create_default_context(cafile=str(authority.bundle))
        with (
            socket.create_connection(("127.0.0.1", server.port), timeout=60) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            body = json.dumps({**QUESTION, "stream": True}).encode()
            connection.sendall(raw_request(CHAT, body, headers="Connection: close\r\n"))
            assert b"data: [DONE]" in read_all(connection)
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as plain:
            plain.sendall(raw_request("/health", method="GET"))
            assert b"200 OK" not in read_all(plain)
        assert server.end() == TERMINATED
    finally:
        server.kill()


def test_a_unix_socket_serves_and_goes(tmp_path: Path) -> None:
    place = tmp_path / "socket"
    server = ServerProcess(tmp_path, "--host", f"unix:{place}")
    try:
        eventually(lambda: "ready, model" in server.stderr(), "ready", 60)
        assert place.stat().st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(str(place))
            connection.sendall(raw_request(CHAT, json.dumps({**QUESTION, "stream": True}).encode()))
            read_until(connection, b"data: [DONE]")
        assert server.end() == TERMINATED
    finally:
        server.kill()
    assert not place.exists()


def test_other_hosts_and_origins_are_kept_out_unless_named(tmp_path: Path) -> None:
    page = "https://pages.example"
    with ServerProcess(tmp_path, "--cors-origin", page, "--allow-host", "board.example") as server:
        for host, status in (("evil.example", 403), ("board.example", 200), (f"127.0.0.1:{server.port}", 200)):
            assert server.ask("GET", "/v1/models", headers={"Host": host}).status == status
        allowed = server.ask("POST", CHAT, QUESTION, headers={"Origin": page})
        assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (200, page)
        refused = server.ask("POST", CHAT, QUESTION, headers={"Origin": "https://other.example"})
        assert refused.status == 403
        assert "access-control-allow-origin" not in refused.headers
