"""A server that is deaf while it loads, loses running answers when it is stopped, or ends with the wrong code."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from launcher.server.openapi import openapi_document
from tests.support.demo import require_demo
from tests.support.http_bench import eventually, raw_request
from tests.support.server_child import ROOT, events, free_port, server_process

CHAT = "/v1/chat/completions"
LONG = {
    "messages": [{"role": "user", "content": "hi"}],
    "stream": True,
    "ignore_eos": True,
    "max_tokens": 3000,
}

# Loading waits for a file to appear.
SLOW_LOAD = """
import sys, time, os
from pathlib import Path
import launcher.model
real = launcher.model.load
class Waiting:
    def __init__(self, engine):
        self._engine = engine
    def preload(self, progress):
        while not Path(os.environ["GO"]).exists():
            progress(0, 1)
            time.sleep(0.01)
        self._engine.preload(progress)
launcher.model.load = lambda engine, *rest, **named: real(Waiting(engine), *rest, **named)
from launcher.cli import main
sys.exit(main(sys.argv[1:]))
"""

# What a worker does takes until the model is closed, or so long that it would have been closed by then.
SLOW_WORK = """
import sys, time, os
from pathlib import Path
from launcher.engine import Package
from launcher.server.protocol.replies import ChatReply
begun, closed = Path(os.environ["BEGUN"]), Path(os.environ["CLOSED"])
first_tokens, close, document = Package.first_tokens, Package.close, ChatReply.document
def linger():
    begun.touch()
    end = time.monotonic() + 1
    while not closed.exists() and time.monotonic() < end:
        time.sleep(0.01)
def slow_tokens(package, text, *given, **named):
    if text == "slow":
        linger()
    return first_tokens(package, text, *given, **named)
def slow_document(reply):
    linger()
    return document(reply)
def noted_close(package):
    close(package)
    closed.touch()
Package.first_tokens, Package.close, ChatReply.document = slow_tokens, noted_close, slow_document
from launcher.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def _demo() -> None:
    require_demo()


def wait_for(server: object, path: str) -> requests.Response:
    end = time.monotonic() + 60
    while True:
        try:
            return server.get(path)  # type: ignore[attr-defined,no-any-return]
        except requests.ConnectionError:
            assert time.monotonic() < end
            time.sleep(0.02)


def test_it_answers_while_it_loads_and_says_when_it_is_ready(tmp_path: Path) -> None:
    go, log = tmp_path / "go", tmp_path / "log.jsonl"
    place = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(place))
        systemd.settimeout(60)
        environ = {"GO": str(go), "NOTIFY_SOCKET": str(place)}
        words = ("--log", str(log))
        with server_process(tmp_path, *words, environ=environ, program=SLOW_LOAD, ready=False) as server:
            assert wait_for(server, "/health").status_code == 200
            for path in ("/readyz", "/v1/models", "/props"):
                answer = server.get(path)
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_loading")
                assert int(answer.headers["retry-after"]) > 0
            for path, operations in openapi_document("1")["paths"].items():
                if "post" in operations:
                    answer = server.post(path, LONG)
                    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_loading"), path
                    assert int(answer.headers["retry-after"]) > 0
            assert server.get("/metrics").status_code == 200
            go.touch()
            assert systemd.recv(100) == b"READY=1"
            assert server.get("/readyz").status_code == 200
            assert "ready, model mindnano-demo" in server.messages()
            server.signal(signal.SIGTERM)
            assert server.wait() == 143
            assert systemd.recv(100) == b"STOPPING=1"
    assert [event["event"] for event in events(log)][-3:] == ["loaded", "ready", "stopped"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_while_it_loads_ends_it(tmp_path: Path, number: int, code: int) -> None:
    environ = {"GO": str(tmp_path / "never")}
    with server_process(tmp_path, environ=environ, program=SLOW_LOAD, ready=False) as server:
        wait_for(server, "/health")
        server.signal(number)
        assert server.wait() == code
    assert "Traceback" not in server.messages()


def test_a_signal_lets_the_running_answer_finish_and_refuses_new_ones(tmp_path: Path) -> None:
    with server_process(tmp_path, "--drain-timeout", "600") as server:
        lines: list[str] = []
        begun = threading.Event()

        def stream() -> None:
            with server.post(CHAT, LONG, stream=True) as answer:
                for line in answer.iter_lines(decode_unicode=True):
                    lines.append(line)
                    begun.set()

        reader = threading.Thread(target=stream)
        reader.start()
        assert begun.wait(60)
        server.signal(signal.SIGTERM)
        end = time.monotonic() + 60
        while server.get("/readyz").status_code == 200:
            assert time.monotonic() < end
        answer = server.get("/readyz")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
        refused = server.post(CHAT, LONG)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert server.get("/health").status_code == 200
        reader.join(600)
        assert server.wait() == 143
    data = [line for line in lines if line.startswith("data: ")]
    assert data[-1] == "data: [DONE]"
    assert json.loads(data[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("path", ["/tokenize", CHAT])
def test_the_model_is_there_until_the_last_answer_is_written(tmp_path: Path, path: str) -> None:
    """Which takes a worker, that would meet a package whose memory is gone."""
    asked = {
        "/tokenize": {"content": "slow"},
        CHAT: {"messages": [{"role": "user", "content": "hi"}], "enable_thinking": False, "logprobs": True},
    }
    begun, log = tmp_path / "begun", tmp_path / "log.jsonl"
    environ = {"BEGUN": str(begun), "CLOSED": str(tmp_path / "closed")}
    with server_process(tmp_path, "--log", str(log), environ=environ, program=SLOW_WORK) as server:
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(server.post, path, asked[path])
            eventually(begun.exists, "a worker has begun")
            server.signal(signal.SIGTERM)
            answer = asking.result()
        assert answer.status_code == 200, answer.text
        assert server.wait() == 143
    assert events(log)[-1]["event"] == "stopped"


def test_what_does_not_finish_in_time_ends_with_an_error_event(tmp_path: Path) -> None:
    with server_process(tmp_path, "--drain-timeout", "0") as server:
        with server.post(CHAT, LONG, stream=True) as answer:
            lines = answer.iter_lines(decode_unicode=True)
            next(lines)
            server.signal(signal.SIGINT)
            rest = list(lines)
        assert server.wait() == 130
    data = [line for line in rest if line.startswith("data: ")]
    assert json.loads(data[-1].removeprefix("data: "))["error"]["code"] == "shutting_down"


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    place = tmp_path / "socket"
    with server_process(tmp_path, "--host", f"unix:{place}", "--drain-timeout", "1000", ready=False) as server:
        end = time.monotonic() + 60
        while "ready, model" not in server.messages():
            assert time.monotonic() < end
            assert server.process.poll() is None, server.messages()
            time.sleep(0.02)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(place))
            connection.sendall(raw_request(CHAT, json.dumps(LONG).encode()))
            connection.recv(10000)
            server.signal(signal.SIGTERM)
            while "stopping" not in server.messages():
                assert server.process.poll() is None, server.messages()
                time.sleep(0.01)
            server.signal(signal.SIGINT)
            assert server.wait() == 130
    assert not place.exists()


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launcher", "--no-console", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_what_cannot_be_served_ends_with_its_code(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.l3r"
    damaged.write_bytes(b"L3R\0" + b"x" * 5000)
    port = str(free_port())
    done = run("--port", port, "--model", str(damaged))
    assert (done.returncode, "package-damaged" in done.stderr) == (4, True), done.stderr
    missing = run("--port", port, "--model-dir", str(tmp_path / "empty"))
    assert (missing.returncode, "model-missing" in missing.stderr) == (4, True), missing.stderr
    lan = run("--port", port, "--demo", "--host", "0.0.0.0")
    assert (lan.returncode, "--allow-lan" in lan.stderr, "--api-key" in lan.stderr) == (2, True, True)
    keys = run("--port", port, "--demo", "--api-key-file", str(tmp_path / "none"))
    assert (keys.returncode, "api-key-file" in keys.stderr) == (2, True)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        busy = run("--demo", "--port", str(other.getsockname()[1]))
    assert (busy.returncode, "ss -ltnp" in busy.stderr) == (7, True), busy.stderr
    large = run("--port", port, "--demo", "--context", "256K")
    assert (large.returncode, "context-too-large" in large.stderr) == (2, True), large.stderr


def test_nothing_of_what_is_said_is_logged_unless_asked_for(tmp_path: Path) -> None:
    question = {"messages": [{"role": "user", "content": "zebra-marker"}], "max_tokens": 3, "session_id": "secret-name"}
    parameters = {
        "type": "object",
        "properties": {"a": {"enum": [1]}},
        "required": ["a"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "add", "parameters": parameters}}
    only = {"tool_choice": "required", "parallel_tool_calls": False}
    log = tmp_path / "log.jsonl"
    with server_process(tmp_path, "--log", str(log), "--api-key", "the-key") as server:
        key = {"Authorization": "Bearer the-key"}
        assert server.post(CHAT, question, headers=key).status_code == 200
        assert server.post(CHAT, question).status_code == 401
        assert server.post(CHAT, {"messages": []}, headers=key).status_code == 400
        server.signal(signal.SIGTERM)
        server.wait()
    text = log.read_text() + server.messages()
    for secret in ("zebra", "secret-name", "the-key"):
        assert secret not in text
    by_name = {event["event"]: event for event in events(log)}
    assert by_name["request"]["status"] == 200
    assert by_name["request"]["choices"][0]["generated_tokens"] == 3
    assert by_name["request"]["finish"] == ["length"]
    assert by_name["request"]["session"]
    assert by_name["refused"]["status"] == 400
    with server_process(tmp_path, "--log", str(log), "--log-prompts") as server:
        server.post(CHAT, question)
        server.post(CHAT, {**question, "max_tokens": 400, "tools": [tool], **only})
        server.signal(signal.SIGTERM)
        server.wait()
    spoken, called = [event for event in events(log) if event["event"] == "request"][-2:]
    assert "zebra-marker" in spoken["prompt"]
    (reply,) = spoken["replies"]
    assert reply["reasoning"]
    assert (reply["content"], reply["tool_calls"]) == ("", [])
    (reply,) = called["replies"]
    assert [(call["name"], json.loads(call["arguments"])) for call in reply["tool_calls"]] == [("add", {"a": 1})]


def test_a_client_that_leaves_a_real_server_leaves_no_work(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with server_process(tmp_path, "--log", str(log)) as server:
        with server.post(CHAT, LONG, stream=True) as answer:
            next(answer.iter_lines())
        end = time.monotonic() + 60
        while server.get("/props").json()["queue"]["running"]:
            assert time.monotonic() < end
        server.signal(signal.SIGTERM)
        server.wait()
    (request,) = [event for event in events(log) if event["event"] == "request"]
    assert request["client_gone"] is True
    assert sum(choice["generated_tokens"] for choice in request["choices"]) < 3000
