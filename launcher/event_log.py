"""`--log FILE`: what happened, one JSON object per line. Counts and times only, unless `--log-prompts` asks for more.

A log that has reached its size becomes FILE.1, in place of an earlier one. When somebody else moves the file away, as
logrotate does, the next line goes into a new one.
"""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Self

from launcher.errors import UsageError

LOG_VERSION = 1
_USUAL = 0o666  # less what the umask takes
_PRIVATE = 0o600


class EventLog:
    """Appends events to a file, or to nothing. A disk that fills up later ends the log and not the conversation.

    Any thread may write.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        max_bytes: int = 0,
        private: bool = False,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        lost: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """Opens the file.

        Args:
            path: the file; None logs nothing.
            max_bytes: size that a line must not lead beyond; 0 for none. A single line may be longer.
            private: whether a file that is made is for its owner alone, because it takes what people said.
            clock: the time; for tests.
            lost: told why, when the log ends before the program does.

        Raises:
            UsageError: it cannot be written.
        """
        self._path = path
        self._max_bytes = max_bytes
        self._mode = _PRIVATE if private else _USUAL
        self._clock = clock
        self._lost = lost
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        if path is None:
            return
        try:
            self._file = self._opened(path)
        except OSError as error:
            raise UsageError(
                "log-unwritable",
                f"cannot write the log {path}: {error.strerror}",
                hint="name a file in a folder that exists and may be written to",
            ) from error

    def write(self, event: str, facts: Mapping[str, object]) -> None:
        """One line: the event, the time and the facts."""
        head = {"event": event, "version": LOG_VERSION, "time": self._clock().isoformat(timespec="milliseconds")}
        text = json.dumps({**head, **facts}, ensure_ascii=False) + "\n"
        line = text.encode(errors="backslashreplace")
        with self._lock:
            if self._path is None or self._file is None:
                return
            try:
                self._follow(self._path, self._file, len(line))
                _write_all(self._file, line)
            except OSError as error:
                self._close()
                reason = error.strerror or str(error)
            else:
                return
        self._lost(reason)

    def close(self) -> None:
        """Closes the file; later events go nowhere."""
        with self._lock:
            self._close()

    def _follow(self, path: Path, file: BinaryIO, length: int) -> None:
        """Begins a new file where the present one is full, or no longer has its name."""
        own = os.fstat(file.fileno())
        try:
            named = path.stat()
            is_ours = (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)
        except FileNotFoundError:
            is_ours = False
        if is_ours:
            has_room = not self._max_bytes or not own.st_size or own.st_size + length <= self._max_bytes
            if has_room or not stat.S_ISREG(own.st_mode):
                return
            path.replace(path.with_name(path.name + ".1"))
        fresh = self._opened(path)
        self._file = fresh
        file.close()

    def _opened(self, path: Path) -> BinaryIO:
        """For appending, without a buffer: a line is one write, so lines of several processes do not mix."""
        return open(path, "ab", buffering=0, opener=lambda name, flags: os.open(name, flags, self._mode))

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:  # nothing is buffered, so nothing is lost
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _write_all(file: BinaryIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]
