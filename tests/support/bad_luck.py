"""Surroundings that make rare things common: a lock that lets others come first, and a disk that fails."""

from __future__ import annotations

import errno
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from launcher.server.session_entries import Key
from launcher.server.session_files import SessionFiles
from launcher.server.session_format import Header


class Restless:
    """A lock after whose release others often come first: what was looked at under it may be otherwise by then."""

    def __init__(self, rng: random.Random) -> None:
        self._lock = threading.RLock()
        self._rng = rng

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()
        if self._rng.random() < 0.05:
            time.sleep(self._rng.random() * 0.003)


class BadDisk(SessionFiles):
    """A disk that now and then takes nothing, gives nothing back, or takes its time."""

    rng = random.Random(0)

    def _fail(self, share: float) -> None:
        if self.rng.random() < share:
            raise OSError(errno.EIO, "Input/output error")

    def _make_room(self, key: Key, size: int) -> None:
        self._fail(0.05)
        super()._make_room(key, size)

    def _commit(self, *given: Any) -> bool:
        self._fail(0.1)
        return super()._commit(*given)

    def _read(self, key: Key, use: Callable[[Any, Header], Any]) -> Any:
        def used(file: Any, header: Header) -> Any:
            self._fail(0.05)
            found = use(file, header)
            time.sleep(self.rng.random() * 0.002)
            return found

        return super()._read(key, used)
