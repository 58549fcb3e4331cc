"""The one reader of /proc, /sys, /dev and /etc. Tests give it a folder that looks like a machine.

What a folder cannot show (what a device answers, how much space is left, whether a port is free) goes through two
ports, `Devices` and `Host`, which tests replace. Nothing is written, and nothing here needs root.
"""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass, field
from pathlib import Path

from launcher.host import Devices, Host, RealDevices, RealHost

_MAX_LINKS = 40  # as the kernel has it
_MAX_DIGITS = 20  # of 64 bits
_MAX_BYTES = 1 << 20  # no file that is read here is meant to be larger


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemView:
    """A machine. Paths are absolute, as on that machine; symbolic links are followed within `root`."""

    root: Path = Path("/")
    devices: Devices = field(default_factory=RealDevices)
    host: Host = field(default_factory=RealHost)

    def read(self, path: str) -> str | None:
        """Text of a file, or None where it cannot be read. Bytes that are no UTF-8 become U+FFFD."""
        data = self.read_bytes(path)
        return None if data is None else data.decode(errors="replace")

    def read_bytes(self, path: str, limit: int = _MAX_BYTES) -> bytes | None:
        """At most `limit` bytes of a file, or None where it cannot be read. Never waits for a writer."""
        try:
            with open(self._place(path), "rb", opener=_open_without_waiting) as file:
                return file.read(limit)
        except OSError:
            return None

    def line(self, path: str) -> str | None:
        """The first line of a file without white space and NULs, or None where there is none."""
        text = (self.read(path) or "").strip("\0 \t\r\n")
        return text.splitlines()[0].strip("\0 \t") if text else None

    def number(self, path: str) -> int | None:
        """A whole number of at most 20 digits from a file that holds nothing else, or None."""
        text = self.line(path) or ""
        digits = text.removeprefix("-")
        return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS else None

    def names(self, path: str) -> tuple[str, ...]:
        """Sorted names in a folder; none where it cannot be read."""
        try:
            return tuple(sorted(os.listdir(self._place(path))))
        except OSError:
            return ()

    def exists(self, path: str) -> bool:
        """Whether the path leads to anything; a dangling link does not."""
        try:
            return os.path.exists(self._place(path))
        except OSError:
            return False

    def link(self, path: str) -> str | None:
        """Where a symbolic link points to, as it is written in the link; None where it is no link."""
        try:
            _refuse_nul(path)
            return os.readlink(self._place(posixpath.dirname(path)) / posixpath.basename(path))
        except OSError:
            return None

    def resolve(self, path: str) -> str:
        """The path with every symbolic link followed, as on that machine.

        Raises:
            OSError: too many links, or a NUL, which no path has.
        """
        _refuse_nul(path)
        done = "/"
        todo = [part for part in path.split("/") if part]
        links = 0
        while todo:
            part = todo.pop(0)
            if part in {".", ""}:
                continue
            if part == "..":
                done = posixpath.dirname(done)
                continue
            step = posixpath.join(done, part)
            try:
                target = os.readlink(self.root / step.lstrip("/"))
            except OSError:
                done = step
                continue
            links += 1
            if links > _MAX_LINKS:
                raise OSError(f"too many symbolic links in {path}")
            if target.startswith("/"):
                done = "/"
            todo = [piece for piece in target.split("/") if piece] + todo
        return done

    def place(self, path: str) -> Path | None:
        """The file behind a path of that machine, for readers that need more than text; None where it is missing."""
        try:
            place = self._place(path)
        except OSError:
            return None
        return place if place.exists() else None

    def _place(self, path: str) -> Path:
        # The real root needs no help; elsewhere an absolute link must not lead out of the tree.
        if self.root == Path("/"):
            _refuse_nul(path)
            return Path(path)
        return self.root / self.resolve(path).lstrip("/")


def _refuse_nul(path: str) -> None:
    if "\0" in path:
        raise OSError(f"NUL in {path!r}")


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
