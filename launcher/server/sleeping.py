"""`--sleep-idle-seconds`: memory goes back to the system while nobody asks for anything, and returns with a request."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from launcher.errors import Cancelled

Note = Callable[[str, Mapping[str, object]], None]
"""Takes an event for the log and what there is to say of it; from any thread."""


class MemoryPort(Protocol):
    """What can be given back."""

    def resident(self) -> int | None:
        """Bytes of this process, or None where the system does not say."""

    def give_back(self) -> None:
        """Frees it."""

    def take_again(self, is_stopped: Callable[[], bool]) -> None:
        """Makes everything as it was before; on failure everything stays given back.

        Raises:
            Cancelled: `is_stopped()`.
            RequestError: 503, there is too little memory now.
        """


class SleeperPort(Protocol):
    """What the scheduler asks of a sleeper. Only the generation thread calls it."""

    def rest(self, since: float, wanted: Callable[[], bool]) -> float | None: ...

    def wake(self, is_stopped: Callable[[], bool]) -> None: ...


class Sleepless:
    """A server that keeps its memory."""

    is_sleeping: Final = False
    count: Final = 0

    def rest(self, since: float, wanted: Callable[[], bool]) -> None:
        """Nothing is ever due."""

    def wake(self, is_stopped: Callable[[], bool]) -> None:
        """It is awake."""


class Sleeper:
    """Gives memory back after a while without requests, and takes it again for the next one.

    `is_sleeping` and `count`, how often it fell asleep, may be read by any thread.
    """

    def __init__(
        self,
        *,
        seconds: float,
        memory: MemoryPort,
        put_away: Callable[[Callable[[], bool]], None],
        note: Note,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        seconds: how long nobody must have asked.
        memory: what is given back.
        put_away: brings what the engine's session holds into safety; raises Cancelled when what it is given says so.
        note: for the log.
        clock: seconds; the scheduler's.
        """
        self._seconds = seconds
        self._memory = memory
        self._put_away = put_away
        self._note = note
        self._clock = clock
        self._since = 0.0
        self.is_sleeping = False
        self.count = 0

    def rest(self, since: float, wanted: Callable[[], bool]) -> float | None:
        """Falls asleep where it is time to.

        Args:
            since: when the last request ended, or the server began.
            wanted: whether there is something else to do; asked while conversations are saved.

        Returns:
            Seconds until it is time, or to try again; None while it sleeps.
        """
        if self.is_sleeping:
            return None
        start = self._clock()
        wait = since + self._seconds - start
        if wait > 0:
            return wait
        before = self._memory.resident()
        try:
            self._put_away(wanted)
        except Cancelled:
            return 0.0
        if wanted():
            return 0.0
        self.is_sleeping = True
        self.count += 1
        self._memory.give_back()
        self._since = self._clock()
        self._tell("sleeping", before, self._memory.resident(), idle_seconds=start - since, seconds=self._since - start)
        return None

    def wake(self, is_stopped: Callable[[], bool]) -> None:
        """Makes everything as it was, where it sleeps.

        Raises:
            Cancelled: `is_stopped()`; it sleeps on.
            RequestError: 503, there is too little memory; it sleeps on.
        """
        if not self.is_sleeping:
            return
        start = self._clock()
        before = self._memory.resident()
        self._memory.take_again(is_stopped)
        self.is_sleeping = False
        taken = self._clock() - start
        self._tell("woken", self._memory.resident(), before, slept_seconds=start - self._since, seconds=taken)

    def _tell(self, event: str, more: int | None, less: int | None, **seconds: float) -> None:
        """`bytes` is what the resident memory became smaller or larger by."""
        moved = None if more is None or less is None else more - less
        resident = less if event == "sleeping" else more
        facts = {name: round(value, 6) for name, value in seconds.items()}
        self._note(event, {**facts, "bytes": moved, "resident_bytes": resident})
