"""The server as its own process, with the built-in model."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(slots=True)
class ServerProcess:
    """A server that runs. `stderr` is the file that takes its messages."""

    process: subprocess.Popen[bytes]
    url: str
    stderr: Path

    def messages(self) -> str:
        return self.stderr.read_text(encoding="utf-8")

    def post(self, path: str, document: Mapping[str, Any], **named: Any) -> requests.Response:
        named.setdefault("timeout", PATIENCE)
        return requests.post(self.url + path, json=document, **named)

    def get(self, path: str, **named: Any) -> requests.Response:
        named.setdefault("timeout", PATIENCE)
        return requests.get(self.url + path, **named)

    def wait_ready(self) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            assert self.process.poll() is None, self.messages()
            try:
                if self.get("/readyz").status_code == 200:
                    return
            except requests.ConnectionError:
                pass
            assert time.monotonic() < end, self.messages()
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit code, once it ended."""
        return self.process.wait(PATIENCE)


@contextmanager
def server_process(
    folder: Path, *words: str, environ: Mapping[str, str] | None = None, program: str | None = None, ready: bool = True
) -> Iterator[ServerProcess]:
    """A server on a free port; it is killed at the end when it still runs.

    Args:
        folder: takes its stderr.
        words: further options.
        environ: further variables.
        program: Python text that runs it with `sys.argv`; the launcher by default.
        ready: whether to wait until it serves.
    """
    port = free_port()
    start = ["-m", "launcher"] if program is None else ["-c", program]
    command = [sys.executable, *start, "--demo", "--no-console", "--port", str(port), "--threads", "1", *words]
    place = folder / "stderr"
    variables = {**os.environ, "MINDNANO_LANG": "en", **(environ or {})}
    with place.open("wb") as stderr:
        process = subprocess.Popen(command, cwd=ROOT, stderr=stderr, stdout=stderr, env=variables)
    server = ServerProcess(process=process, url=f"http://127.0.0.1:{port}", stderr=place)
    try:
        if ready:
            server.wait_ready()
        yield server
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()


def events(path: Path) -> list[dict[str, Any]]:
    """The lines of a log."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
