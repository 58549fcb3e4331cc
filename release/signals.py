"""What signals do to a command: temporary folders go and clocks come back before the program ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from launcher.interrupts import end_in_good_order

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_in_good_order() -> Iterator[None]:
    """Within this context SIGINT raises KeyboardInterrupt, SIGTERM and SIGHUP SystemExit with their exit codes."""
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers can be set in the main thread alone
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    end_in_good_order()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
