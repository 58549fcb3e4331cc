"""Work of other threads that only the generation thread may do, because it concerns the engine or its sessions."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from launcher.errors import Cancelled
from launcher.server.job import shutting_down

T = TypeVar("T")


class Chores:
    """What is to be done between two steps of whatever runs. It should be short: somebody's reply waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._closed = False

    def __bool__(self) -> bool:
        """Whether there is something to do."""
        return bool(self._waiting)

    def add(self, work: Callable[[], T]) -> Future[T]:
        """Takes work in, from any thread; a future that is cancelled before its turn is passed over.

        Raises:
            RequestError: 503, the generation thread has ended.
        """
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise shutting_down(1)
            self._waiting.append((work, future))
        return future

    def run(self) -> None:
        """Does everything, in the order in which it came. Raises nothing: errors go to the futures.

        What raises Cancelled gives way to something more urgent, and is the next one when this is called again.
        """
        while self._waiting:
            work, future = self._waiting.popleft()
            if not future.running() and not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except Cancelled:
                self._waiting.appendleft((work, future))
                return
            except BaseException as error:  # nothing may end the thread that everybody waits for
                future.set_exception(error)

    def close(self) -> None:
        """Does what is there; from now on there is nothing more."""
        with self._lock:
            self._closed = True
        self.run()
