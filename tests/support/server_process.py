"""The server as a process of its own, with the built-in model: started, watched for what it leaves, and ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.demo import ROOT, require_demo

_START_SECONDS = 60.0
_END_SECONDS = 60.0
_EVENTUALLY_SECONDS = 60.0
TERMINATED = 143


def eventually(holds: Callable[[], bool], what: str, seconds: float = _EVENTUALLY_SECONDS) -> None:
    """Waits until something holds; the bound is only there so that a test ends."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds:g} seconds: {what}"
        time.sleep(0.01)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class ServerProcess:
    """`mindnano-infer --demo --no-console` on a free port. As a context: ready at its start, ended by SIGTERM."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        key: str | None = None,
        program: str = "launcher",
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Args:
        folder: takes the log of stderr and everything that the process may write; made where it is not there.
        options: further words of the command line.
        key: the API key that this object's own requests send.
        program: the module that is run.
        environ: further variables.
        """
        require_demo()
        folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.key = key
        self._log = folder / f"stderr-{self.port}"
        words = ["--demo", "--no-console", "--lang", "en", "--port", str(self.port), *options]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MINDNANO_", "XDG_"))}
        with self._log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", program, *words],
                cwd=ROOT,
                env={**kept, "HOME": str(folder), "PYTHONUNBUFFERED": "1", **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
            )

    @property
    def url(self) -> str:
        """The address without a slash at its end."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.kill()
            return
        assert self.end() == TERMINATED, self.stderr()
        assert "Traceback" not in self.stderr(), self.stderr()

    def wait_ready(self) -> None:
        """Waits for /readyz."""

        def ready() -> bool:
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.stderr()}"
            with suppress(OSError):
                return self.ask("GET", "/readyz").status == 200
            return False

        eventually(ready, "ready", _START_SECONDS)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal, waits, and returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """Ends it without its doing."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def stderr(self) -> str:
        """What it has said so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def ask(
        self, method: str, path: str, document: object = None, *, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request on a connection of its own; bytes go as they are."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            plain = document is None or isinstance(document, bytes)
            body = document if plain else json.dumps(document).encode()
            connection.request(method, path, body, self._headers(headers))
            answer = connection.getresponse()
            told = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(status=answer.status, headers=told, body=answer.read())
        finally:
            connection.close()

    def _headers(self, further: Mapping[str, str] | None) -> dict[str, str]:
        given = {"Content-Type": "application/json", **(further or {})}
        return given if self.key is None else {"Authorization": f"Bearer {self.key}", **given}

    @contextmanager
    def stream(self, document: Mapping[str, object], *, path: str = "/v1/chat/completions") -> Iterator[RawStream]:
        """A streamed request; the connection is closed at the context's end, wherever the stream is then."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", path, json.dumps({**document, "stream": True}).encode(), self._headers(None))
            answer = connection.getresponse()
            yield RawStream(answer.getheader("X-Request-Id", ""), answer.status, iter(answer.readline, b""))
            answer.close()
        finally:
            connection.close()

    def props(self) -> Any:
        """The answer of /props."""
        return self.ask("GET", "/props").json()

    def is_idle(self) -> bool:
        """Whether no request runs, waits or is paused."""
        queue = self.props()["queue"]
        return not any(queue[name] for name in ("running", "waiting", "paused"))

    def wait_idle(self) -> None:
        """Waits until no request is left."""
        eventually(self.is_idle, "idle")

    def metric(self, name: str) -> float:
        """The sum of the samples of this name in /metrics."""
        lines = self.ask("GET", "/metrics").body.decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.partition(" ")[0].partition("{")[0] == name)

    def descriptors(self) -> list[str]:
        """What is open."""
        found = []
        for entry in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with suppress(OSError):
                found.append(str(entry.readlink()))
        return sorted(found)

    def threads(self) -> int:
        """How many threads there are."""
        return sum(1 for _ in Path(f"/proc/{self.process.pid}/task").iterdir())

    def warm_up(self) -> None:
        """Makes it start every thread that it keeps, so that what comes later can be counted."""
        long = {"content": "a long text " * 20_000}
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: self.ask("POST", "/tokenize", long), range(16)))
        messages = [{"role": "user", "content": "Hello"}]
        chat = {"messages": messages, "max_tokens": 2, "response_format": {"type": "json_object"}}
        self.ask("POST", "/v1/chat/completions", chat)
        self.ask("GET", "/metrics")
        self.wait_idle()


class RawStream:
    """The lines of a stream as they come."""

    def __init__(self, id: str, status: int, lines: Iterator[bytes]) -> None:
        self.id = id
        self.status = status
        self._lines = lines

    def __iter__(self) -> Iterator[str]:
        """The lines that are not empty."""
        for line in self._lines:
            text = line.decode().strip()
            if text:
                yield text

    def chunks(self) -> Iterator[Any]:
        """The JSON of `data:` lines, up to `[DONE]`."""
        for line in self:
            if line == "data: [DONE]":
                return
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))

    def until_text(self) -> Any:
        """The first chunk that has a text; from then on the reply is being written."""
        for chunk in self.chunks():
            for choice in chunk.get("choices", ()):
                if choice.get("text") or any(
                    value for name, value in choice.get("delta", {}).items() if name != "role"
                ):
                    return chunk
        raise AssertionError("the stream ended without a text")


@contextmanager
def nothing_left(server: ServerProcess) -> Iterator[None]:
    """Fails where threads or descriptors are left of what was done within."""
    server.wait_idle()
    # One socket listens, two wake the event loop; the others are connections.
    eventually(lambda: sum(name.startswith("socket:") for name in server.descriptors()) <= 3, "all connections closed")
    threads, count = server.threads(), len(server.descriptors())
    yield
    server.wait_idle()
    eventually(lambda: len(server.descriptors()) <= count, f"{count} descriptors as before, not {server.descriptors()}")
    eventually(lambda: server.threads() <= threads, f"{threads} threads as before, not {server.threads()}")
