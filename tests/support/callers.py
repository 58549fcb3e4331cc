"""Callers in threads of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable


def run_all(*works: Callable[[], None]) -> None:
    """Each in a thread of its own, all at the same time; what one raises is raised here."""
    raised: list[BaseException] = []
    together = threading.Barrier(len(works))

    def guarded(work: Callable[[], None]) -> None:
        try:
            together.wait(60)
            work()
        except BaseException as error:  # told by the test's own thread
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not any(thread.is_alive() for thread in threads), "a caller hangs"
    if raised:
        raise raised[0]
