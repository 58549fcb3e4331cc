"""`--log FILE`: what happened, one JSON object per line. Counts and times only, never a word of a conversation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Self, TextIO

from launcher.errors import UsageError

LOG_VERSION = 1


class EventLog:
    """Appends events to a file, or to nothing. A disk that fills up later ends the log and not the conversation."""

    def __init__(
        self,
        path: Path | None,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        lost: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """Opens the file.

        Args:
            path: the file; None logs nothing.
            clock: the time; for tests.
            lost: told why, when the log ends before the program does.

        Raises:
            UsageError: it cannot be written.
        """
        self._path = path
        self._clock = clock
        self._lost = lost
        self._file: TextIO | None = None
        if path is None:
            return
        try:
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise UsageError(
                "log-unwritable",
                f"cannot write the log {path}: {error.strerror}",
                hint="name a file in a folder that exists and may be written to",
            ) from error

    def write(self, event: str, facts: Mapping[str, object]) -> None:
        """One line: the event, the time and the facts."""
        if self._file is None:
            return
        head = {"event": event, "version": LOG_VERSION, "time": self._clock().isoformat(timespec="milliseconds")}
        try:
            self._file.write(json.dumps({**head, **facts}, ensure_ascii=False) + "\n")
            self._file.flush()
        except OSError as error:
            self.close()
            self._lost(error.strerror or str(error))

    def close(self) -> None:
        """Closes the file; later events go nowhere."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError:  # what is still buffered cannot be written either
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
