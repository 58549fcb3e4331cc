"""Small files that the program keeps for itself in the user's cache; losing one never costs more than time."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 1 << 20
_LOCK_SECONDS: Final = 1.0
_LOCK_STEP: Final = 0.01
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


def cache_folder(environ: Mapping[str, str]) -> Path | None:
    """``$XDG_CACHE_HOME/mindnano``, else ``~/.cache/mindnano``; None where the environment names neither.

    A relative XDG_CACHE_HOME is ignored, as its specification demands.
    """
    named = environ.get("XDG_CACHE_HOME", "")
    if named.startswith("/"):
        return Path(named) / "mindnano"
    home = environ.get("HOME", "")
    return Path(home) / ".cache" / "mindnano" if home.startswith("/") else None


class StateFile:
    """One such file. No method raises for what is wrong with the file, its folder or the disk.

    Args:
        path: the file; its folder is made when something is first written. None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def read(self) -> bytes | None:
        """Its bytes; None where it is missing, too large or unreadable, or where another user could have written it."""
        if self.path is None:
            return None
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (OSError, ValueError):
            return None
        try:
            return _ours(handle)
        except OSError:
            return None
        finally:
            os.close(handle)

    def update(self, change: Callable[[bytes | None], bytes]) -> bool:
        """Replaces the content by what `change` makes of it, while no other process does the same.

        Writers take turns by a lock beside the file; one that does not get its turn within a second gives up. The new
        content appears at once by a rename, so a reader sees the old or the new one, and so does whoever comes after
        a crash.

        Returns:
            Whether it was written.
        """
        if self.path is None:
            return False
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except (OSError, ValueError):
            return False
        try:
            return _take(lock) and self._replace(self.path, change(self.read()))
        except OSError:
            return False
        finally:
            os.close(lock)

    def _replace(self, path: Path, data: bytes) -> bool:
        if len(data) > MAX_BYTES:
            return False
        partial = path.with_suffix(".partial")
        with suppress(FileNotFoundError):
            partial.unlink()  # of a writer that was killed
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(handle)
        partial.replace(path)
        return True


def _ours(handle: int) -> bytes | None:
    """The bytes of an open file that only this user could have written, None where it is another."""
    status = os.fstat(handle)
    ours = status.st_uid == os.geteuid() and not status.st_mode & _WRITABLE_BY_OTHERS
    if not ours or not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
        return None
    with os.fdopen(handle, "rb", closefd=False) as file:
        data = file.read(MAX_BYTES + 1)
    return data if len(data) <= MAX_BYTES else None


def _take(lock: int) -> bool:
    """Waits for its turn, for a second at most."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOCK_STEP)
        else:
            return True
