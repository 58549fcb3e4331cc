"""How SIGINT, SIGTERM and SIGHUP end the program, and when they have to wait.

Python runs a signal's handler before the next instruction of the main thread, and what it raises appears there. Two
places cannot take that. Where the instruction is the first of a function that C called, no `try` is met: ctypes prints
the exception, and the engine goes on. Where a module is being imported, half of it would stay, and a compiled program
aborts when a module that it counts on does not come.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from launcher.errors import EXIT_SIGHUP, EXIT_SIGTERM

Handler = Callable[[int, FrameType | None], object]
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN_S: Final = 0.005


def end_in_good_order() -> None:
    """From now on SIGINT raises KeyboardInterrupt, and SIGTERM and SIGHUP raise SystemExit with their exit codes.

    A signal that is ignored stays ignored, as `nohup` and background jobs ask for. Main thread only.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, frame: FrameType | None) -> None:
    if _is_importing(frame):
        _send_later(number)
    elif number == signal.SIGINT:
        raise KeyboardInterrupt
    else:
        raise SystemExit(EXIT_SIGTERM if number == signal.SIGTERM else EXIT_SIGHUP)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is on its way: the import system is at work, or the first run through a module's text."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__":
            return True
        frame = frame.f_back
    return False


def _send_later(number: int) -> None:
    """Sends the signal once more when nothing is being imported, to whatever handler it has by then.

    The timer repeats: Python notes an alarm that comes just before a system call and looks at its note only after the
    call, which may take for ever. The next alarm interrupts the call.
    """

    is_sent = False

    def send(_alarm: int, frame: FrameType | None) -> None:
        nonlocal is_sent
        if not is_sent and not _is_importing(frame):
            is_sent = True  # an alarm that came meanwhile sends no second one
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.kill(os.getpid(), number)

    signal.signal(signal.SIGALRM, send)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S, _AGAIN_S)


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
