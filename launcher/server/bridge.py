"""From the generation thread to the event loop: events in order, and the loop woken once for many of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Final

from launcher.server.events import Event

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_FOREVER: Final = 3600.0
_GATHER_SECONDS: Final = 0.004


class Bridge:
    """The events of one request. `sink` is for any thread, everything else for the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: deque[Event] = deque()
        self._woken = asyncio.Event()
        self._is_waking = False
        self._watcher: asyncio.Task[None] | None = None
        self._is_gone = False

    def sink(self, event: Event) -> None:
        """Hands an event over; returns at once."""
        self._events.append(event)
        if not self._is_waking:
            self._is_waking = True
            with suppress(RuntimeError):  # the loop has ended, and nobody waits any more
                self._loop.call_soon_threadsafe(self._woken.set)

    def watch(self, receive: Receive) -> None:
        """From now on the client's leaving wakes the waiter too. The request's body must have been read."""

        async def wait() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            self._is_gone = True
            self._woken.set()

        self._watcher = asyncio.ensure_future(wait())

    def has_left(self) -> bool:
        """Whether the client is gone."""
        return self._is_gone

    async def take(self, seconds: float = _FOREVER) -> list[Event]:
        """The events that have come; waits for the first one, for the client's leaving, or for so many seconds."""
        if not self._events and not self._is_gone:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
        self._woken.clear()
        # Before the queue is emptied: what comes from here on wakes the loop again.
        self._is_waking = False
        taken = []
        while self._events:
            taken.append(self._events.popleft())
        return taken

    async def gather(self) -> None:
        """Lets a moment pass, so that a fast model's tokens share the cost of a wake-up; not after the client left."""
        if self._watcher is not None:
            await asyncio.wait({self._watcher}, timeout=_GATHER_SECONDS)

    async def close(self) -> None:
        """Ends the watching."""
        if self._watcher is not None:
            self._watcher.cancel()
            with suppress(asyncio.CancelledError):
                await self._watcher
