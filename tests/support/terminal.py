"""A program on a pseudo-terminal: what it shows, and keys for it."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

# Makes the pseudo-terminal the controlling one, so that Ctrl-C becomes SIGINT, then becomes the program.
_TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)
_PATIENCE_SECONDS = 60.0


class TerminalProcess:
    """Runs a command on a terminal of 100 columns; a context manager that leaves nothing behind."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: str) -> None:
        self._master, slave = pty.openpty()
        self.shown = ""
        self._seen = 0
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *command],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**env, "COLUMNS": "100", "LINES": "30"},
            cwd=cwd,
            start_new_session=True,
        )
        os.close(slave)

    def expect(self, text: str) -> str:
        """Waits until the text appears after the last one that was expected; returns what came up to it."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while (found := self.shown.find(text, self._seen)) < 0:
            if time.monotonic() > end or not self._read(0.2):
                raise AssertionError(f"{text!r} did not appear; shown: {self.shown[self._seen :]!r}")
        start, self._seen = self._seen, found + len(text)
        return self.shown[start:found]

    def send(self, keys: str) -> None:
        """Types."""
        os.write(self._master, keys.encode())

    def expect_sleep(self) -> None:
        """Waits until the program waits: Python sees a signal that comes just before a system call only after it."""
        end = time.monotonic() + _PATIENCE_SECONDS
        status = Path(f"/proc/{self.process.pid}/stat")
        while status.read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "S":
            if time.monotonic() > end or self.process.poll() is not None:
                raise AssertionError(f"the program does not wait; shown: {self.shown[self._seen :]!r}")
            time.sleep(0.001)

    def interrupt(self, number: signal.Signals) -> None:
        """Sends a signal."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Waits for the end and returns the exit code."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while self._read(0.2):
            if time.monotonic() > end:
                raise AssertionError(f"the program did not end; shown: {self.shown[self._seen :]!r}")
            if self.process.poll() is not None and not select.select([self._master], [], [], 0)[0]:
                break
        return self.process.wait(_PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    def _read(self, seconds: float) -> bool:
        """Takes what is there; False when the program has closed the terminal."""
        if not select.select([self._master], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self.shown += data.decode(errors="replace")
        if b"\x1b[6n" in data:  # a real terminal answers where its cursor is
            os.write(self._master, b"\x1b[1;1R")
        return bool(data)
