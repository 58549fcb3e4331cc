"""The server as a child process that is measured: started on a free port, asked one completion at a time, ended."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Final, Self

from launcher.errors import (
    BusyError,
    DeviceError,
    EngineCrash,
    EngineError,
    InternalError,
    MindnanoError,
    PackageError,
    ResourceError,
    TrustError,
    UsageError,
)
from launcher.integrity.release_files import printable
from launcher.interrupts import held_back

_HOST: Final = "127.0.0.1"
_SILENCE_SECONDS: Final = 120.0  # the server sends a comment every 10 seconds
_READY_SECONDS: Final = 600.0  # a package on a slow card is read once before the server is ready
_POLL_PATIENCE: Final = 10.0
_END_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05
_LAST_LINES: Final = 4
_CLASSES: Final[Mapping[int, type[MindnanoError]]] = {
    each.exit_code: each
    for each in (UsageError, DeviceError, PackageError, ResourceError, BusyError, TrustError, EngineError, EngineCrash)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What one request gave; seconds and tokens per second.

    Attributes:
        first_seconds: from acceptance to the first token, as the server says.
        client_first_seconds: from sending to the first text that arrived; a token that is only a part of a
            character has no text yet.
        client_seconds: from sending to the end of the stream.
    """

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    first_seconds: float
    prefill_rate: float
    decode_rate: float
    client_first_seconds: float
    client_seconds: float


class BenchServer:
    """A server with one package. As a context: ready at its start, ended at its end."""

    def __init__(self, program: Path | None, package: Path, options: Sequence[str]) -> None:
        """Args:
        program: the portable program; None runs the launcher of this installation.
        package: what it serves.
        options: further words of its command line.
        """
        self._started: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        own = [sys.executable, "-P", "-m", "launcher"] if program is None else [str(program.absolute())]
        words = ["--no-console", "--lang", "en", "--color", "never", "--host", _HOST, "--port", str(self.port)]
        self.program: tuple[str, ...] = tuple(own)
        self.options: tuple[str, ...] = ("--model", str(package.absolute()), *words, *options)

    def __enter__(self) -> Self:
        self._folder = TemporaryDirectory(prefix="mindnano-bench-")
        self._log = Path(self._folder.name) / "log"
        try:
            # A signal that comes meanwhile is raised at the end of this block, when there is something to end.
            with held_back(), self._log.open("wb") as log:
                self._started = subprocess.Popen(
                    [*self.program, *self.options],
                    env=child_environment(Path(self._folder.name)),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            self._wait_ready()
        except OSError as error:
            self._end()
            message = f"cannot start {self.program[0]}: {error.strerror}"
            raise UsageError("bench-program", message, hint="Give an executable mindnano-infer.") from error
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @property
    def _process(self) -> subprocess.Popen[bytes]:
        assert self._started is not None
        return self._started

    @property
    def process_id(self) -> int:
        """Of the process that was started."""
        return self._process.pid

    def _wait_ready(self) -> None:
        end = time.monotonic() + _READY_SECONDS
        while True:
            with suppress(OSError, HTTPException):
                if self._ask("GET", "/readyz", patience=_POLL_PATIENCE)[0] == 200:
                    return
            if time.monotonic() > end:
                raise _unexpected(f"it was not ready after {_READY_SECONDS:.0f} s{self._last_words()}")
            if self._process.poll() is not None:
                raise self._ended("before it was ready")
            time.sleep(_POLL_SECONDS)

    def _end(self) -> None:
        with held_back():
            if self._started is not None:
                _end(self._started)
            self._folder.cleanup()

    def facts(self) -> Mapping[str, Any]:
        """The answer of /props."""
        status, document = self._ask("GET", "/props")
        if status != 200 or not isinstance(document, dict):
            raise _unexpected(f"/props answered {status}")
        return document

    def forget(self, session: str) -> None:
        """Deletes a conversation, in the engine and in memory."""
        status, _ = self._ask("DELETE", f"/v1/sessions/{session}")
        if status not in (200, 404):
            raise _unexpected(f"deleting the conversation answered {status}")

    def complete(self, ids: Sequence[int], tokens: int, *, session: str) -> Completion:
        """One completion of token ids, greedy, as long as asked for.

        Raises:
            EngineCrash, or what the server's exit code stands for: it ended.
            InternalError: it answered otherwise than it should.
        """
        body = {
            "prompt": list(ids),
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "session_id": session,
        }
        text = json.dumps(body)
        connection = HTTPConnection(_HOST, self.port, timeout=_SILENCE_SECONDS)
        try:
            start = time.perf_counter()
            connection.request("POST", "/v1/completions", text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                raise _unexpected(
                    f"{len(ids)} tokens: status {answer.status}, {answer.read(500).decode(errors='replace')}"
                )
            lines: list[tuple[float, bytes]] = []
            while line := answer.readline():
                if line.startswith(b"data: "):
                    lines.append((time.perf_counter() - start, line[6:].strip()))
        except (OSError, HTTPException) as error:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
                raise self._ended(f"while it read or wrote {len(ids)} + {tokens} tokens") from error
            raise _unexpected(f"{len(ids)} tokens: {error or type(error).__name__}") from error
        finally:
            connection.close()
        try:
            return _completion(lines)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            if self._process.poll() is not None:
                raise self._ended(f"while it wrote {tokens} tokens") from error
            raise _unexpected(
                f"{len(ids)} tokens: the stream ended with {lines[-1][1][:300]!r}" if lines else "no stream"
            ) from error

    def _ask(self, method: str, path: str, *, patience: float = _SILENCE_SECONDS) -> tuple[int, Any]:
        connection = HTTPConnection(_HOST, self.port, timeout=patience)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        try:
            return answer.status, json.loads(data)
        except ValueError:
            return answer.status, None

    def _ended(self, when: str) -> MindnanoError:
        """The error for a server that is gone: of its own class, with its last words."""
        code = self._process.wait()
        what = f"ended with {code}" if code >= 0 else f"was killed by signal {-code}"
        kind = _CLASSES.get(code, EngineCrash)
        return kind("bench-server-ended", f"the server {what} {when}", hint=self._last_words().removeprefix("; "))

    def _last_words(self) -> str:
        said = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        last = " | ".join(printable(line.strip()) for line in said[-_LAST_LINES:])
        return f"; its last lines: {last}" if last else ""


def child_environment(home: Path) -> dict[str, str]:
    """This environment without the launcher's variables and configuration, so that only the given options count."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MINDNANO_")}
    return {
        **kept,
        "XDG_CONFIG_HOME": str(home),
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "PYTHONUNBUFFERED": "1",
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _unexpected(what: str) -> MindnanoError:
    return InternalError("bench-answer", f"the server answered otherwise than expected: {what}")


def _completion(lines: Sequence[tuple[float, bytes]]) -> Completion:
    if lines[-1][1] != b"[DONE]":
        raise ValueError("the stream was cut")
    first = 0.0
    metrics: Mapping[str, Any] = {}
    usage: Mapping[str, Any] = {}
    for seconds, text in lines[:-1]:
        chunk = json.loads(text)
        metrics = chunk.get("mindnano_metrics") or metrics
        usage = chunk.get("usage") or usage
        if not first and any(choice["text"] for choice in chunk["choices"]):
            first = seconds
    return Completion(
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        generated_tokens=usage["completion_tokens"],
        first_seconds=metrics["ttft_seconds"],
        prefill_rate=metrics["prefill_tokens_per_second"],
        decode_rate=metrics["decode_tokens_per_second"],
        client_first_seconds=first,
        client_seconds=lines[-1][0],
    )
