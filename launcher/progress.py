"""Progress of long work on stderr: monotone, with rate and remaining time.

On a terminal one line rewrites itself. Anywhere else one plain line appears per 10 %, without escapes or carriage
returns.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self, TextIO

from launcher.messages import Catalogue, Language

_REDRAW_SECONDS = 0.1
_PLAIN_STEP = 10
_USUAL_COLUMNS = 80
_CLEAR_LINE = "\r\x1b[2K"


def format_bytes(count: float) -> str:
    """``1536`` -> ``1.5 KiB``: binary units, three significant digits."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def format_seconds(seconds: float) -> str:
    """``3725`` -> ``1 h 02 min``; below a minute whole seconds, below an hour minutes and seconds."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def rewrites_lines(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether a line on this stream may be redrawn in place: a terminal that is not ``TERM=dumb``."""
    if environ.get("TERM", "") == "dumb":
        return False
    try:
        return stream.isatty()
    except ValueError:  # closed stream
        return False


def _cut(text: str, columns: int) -> str:
    """As much of the text as fits; Chinese characters take two columns."""
    for index, character in enumerate(text):
        columns -= 2 if ord(character) >= 0x2E80 else 1
        if columns < 0:
            return text[:index]
    return text


class Progress:
    """One piece of long work. Use as a context manager and call `advance` or `update`.

    Args:
        label: what is being done, e.g. ``"Hashing model.l3r"``.
        total: how much there is to do; 0 means that there is nothing to do.
        unit: ``"B"`` counts bytes in binary units; any other word is printed as it is.
        stream: where to write; stderr by default.
        live: force (True) or forbid (False) the line that rewrites itself; by default the stream decides.
        clock: seconds, monotone; for tests.
        texts: the language of what is said around the label; English by default.
    """

    def __init__(
        self,
        label: str,
        total: int,
        *,
        unit: str = "B",
        stream: TextIO | None = None,
        live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
        texts: Catalogue | None = None,
    ) -> None:
        self._label = label
        self._total = max(0, total)
        self._unit = unit
        self._stream = sys.stderr if stream is None else stream
        self._live = rewrites_lines(self._stream, os.environ) if live is None else live
        self._clock = clock
        self._texts = Catalogue(Language.ENGLISH) if texts is None else texts
        self._done = 0
        self._start = clock()
        self._last_draw = float("-inf")
        self._last_percent = 0
        self._closed = False

    @property
    def done(self) -> int:
        """How much is done; never decreases and never exceeds the total."""
        return self._done

    def advance(self, amount: int) -> None:
        """Adds to what is done."""
        self.update(self._done + amount)

    def update(self, done: int) -> None:
        """Sets what is done; a smaller value than before is ignored."""
        self._done = max(self._done, min(done, self._total))
        if self._closed:
            return
        if self._live:
            self._draw_live()
        else:
            self._print_plain()

    def close(self, *, failed: bool = False) -> None:
        """Ends the report: a summary line when the work is complete, where it stopped when it is not."""
        if self._closed:
            return
        self._closed = True
        prefix = _CLEAR_LINE if self._live else ""
        elapsed = self._clock() - self._start
        if failed or self._done < self._total:
            stopped = self._texts("progress-stopped", label=self._label, percent=self._percent())
            self._write(f"{prefix}{stopped}\n")
        elif self._live or self._last_percent < 100:
            facts = {"label": self._label, "amount": self._amount(self._done), "time": format_seconds(elapsed)}
            self._write(f"{prefix}{self._texts('progress-done', **facts)}\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=kind is not None)

    def _percent(self) -> int:
        return 100 if self._total == 0 else self._done * 100 // self._total

    def _amount(self, count: float) -> str:
        return format_bytes(count) if self._unit == "B" else f"{count:,.0f} {self._unit}"

    def _status(self) -> str:
        elapsed = self._clock() - self._start
        details = self._texts("progress-of", done=self._amount(self._done), total=self._amount(self._total))
        if elapsed > 0 and self._done > 0:
            rate = self._done / elapsed
            if self._unit == "B" or rate >= 1:
                details += f", {self._amount(rate)}/s"
            if self._done < self._total:
                left = format_seconds((self._total - self._done) / rate)
                details += ", " + self._texts("progress-left", time=left)
        return self._texts("progress-line", label=self._label, percent=self._percent(), details=details)

    def _draw_live(self) -> None:
        now = self._clock()
        if now - self._last_draw < _REDRAW_SECONDS and self._done < self._total:
            return
        self._last_draw = now
        self._write(_CLEAR_LINE + _cut(self._status(), self._columns() - 1))

    def _print_plain(self) -> None:
        percent = self._percent()
        if percent // _PLAIN_STEP <= self._last_percent // _PLAIN_STEP:
            return
        self._last_percent = percent
        self._write(self._status() + "\n")

    def _columns(self) -> int:
        try:
            found = os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError):
            found = 0
        return max(20, found or _USUAL_COLUMNS)  # a serial console says 0

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
