"""The portable program serves less than the checkout: a library that is not inside, or one that does not load there.

For aarch64 it runs under emulation.
"""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from bundle import link, python_api, python_packages
from bundle.elf_policy import check
from launcher.payload.carried import LLGUIDANCE
from launcher.payload.extension import library_in
from launcher.payload.file import Payload
from tests.bundle.portable import TARGETS, command, program, result

SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "count": {"enum": [1, 2]}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}
QUESTION = {
    "model": "mindnano-demo",
    "messages": [{"role": "user", "content": "17+25=?"}],
    "max_tokens": 40,
    "temperature": 0,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A running server."""

    process: subprocess.Popen[str]
    port: int

    def ask(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        """Status and content of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        try:
            if body is None:
                connection.request("GET", path)
            else:
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


@contextmanager
def serving(target: str, home: Path) -> Iterator[Served]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [*command(program(target), target), "--demo", "--no-console", "--port", str(port), "--think", "off"]
    environ = {"HOME": str(home), "MINDNANO_THREADS": "1"}
    with (home / "log").open("w+", encoding="utf-8") as log:
        process = subprocess.Popen(words, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True)
        try:
            served = Served(process=process, port=port)
            while not _is_ready(served):
                assert process.poll() is None, (home / "log").read_text(encoding="utf-8")
                time.sleep(0.05)
            yield served
        finally:
            process.kill()
            process.wait()


def _is_ready(served: Served) -> bool:
    try:
        return served.ask("/readyz")[0] == 200
    except OSError:
        return False


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def served(target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(target, tmp_path_factory.mktemp("home")) as made:
        yield made


def test_it_is_well_and_shows_its_page(served: Served) -> None:
    assert served.ask("/health")[0] == 200
    page = files("launcher.server").joinpath("page", "index.html").read_bytes()
    assert served.ask("/") == (200, page)


def test_it_counts_what_it_does(served: Served) -> None:
    status, text = served.ask("/metrics")
    assert status == 200
    assert b"# TYPE " in text


def test_it_answers(served: Served) -> None:
    status, data = served.ask("/v1/chat/completions", QUESTION)
    assert status == 200, data
    assert json.loads(data)["choices"][0]["message"]["content"].strip()


def test_it_streams(served: Served) -> None:
    status, data = served.ask("/v1/chat/completions", {**QUESTION, "stream": True})
    assert status == 200, data
    assert data.rstrip().endswith(b"data: [DONE]")


def test_a_field_of_another_type_is_told(served: Served) -> None:
    status, data = served.ask("/v1/chat/completions", {**QUESTION, "max_tokens": "many"})
    assert status == 400
    assert "max_tokens" in json.loads(data)["error"]["message"]


def test_an_answer_follows_its_schema(served: Served) -> None:
    status, data = served.ask("/v1/chat/completions", {**QUESTION, "response_format": FORMAT})
    assert status == 200, data
    answer = json.loads(json.loads(data)["choices"][0]["message"]["content"])
    assert answer["colour"] in ("red", "green")
    assert answer["count"] in (1, 2)
    assert "/memfd:llguidance" in Path(f"/proc/{served.process.pid}/maps").read_text(encoding="utf-8")


def test_it_ends_with_the_signals_code(target: str, tmp_path: Path) -> None:
    with serving(target, tmp_path) as made:
        made.process.send_signal(signal.SIGTERM)
        assert made.process.wait() == 143


def test_the_carried_library_is_the_published_one(target: str, tmp_path: Path) -> None:
    with Payload(str(program(target))) as payload:
        wheel = payload.read(LLGUIDANCE)
    published = result(target, "llguidance")
    assert [path.read_bytes() for path in (published / python_packages.FILES).iterdir()] == [wheel]
    library = tmp_path / "library.so"
    library.write_bytes(library_in(wheel))
    report = check(library, "llguidance", target)
    assert report.passed, report.text()
    python_api.require(result(target, "link") / link.PROGRAM, library)
