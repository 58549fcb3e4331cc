"""Holds signals back while the engine calls Python functions.

Python runs a signal's handler before the next instruction of the main thread. Where that instruction is the first of a
function that C called, what the handler raises meets no `try`: ctypes prints it, and the engine goes on.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

Handler = Callable[[int, FrameType | None], object]
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def held_back() -> Iterator[Callable[[], bool]]:
    """Within this context SIGINT, SIGTERM and SIGHUP wait; their handlers run at its end.

    Yields:
        A function that says whether one came, so that the work can stop. Outside the main thread, which alone runs
        handlers, it always says no.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    came: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    handlers = {int(number): handler for number in _SIGNALS if callable(handler := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, remember)
    try:
        yield lambda: bool(came)
    finally:
        _give_back(list(handlers.items()))
        if came:
            handlers[came[0]](came[0], None)


def _give_back(handlers: list[tuple[int, Handler]]) -> None:
    """Restores all of them, even when another signal comes after the first and its handler raises."""
    if handlers:
        try:
            signal.signal(*handlers[0])
        finally:
            _give_back(handlers[1:])
