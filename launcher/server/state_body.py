"""The body of a state on its way in or out: bounded in time by how fast it moves, not by its size."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from launcher.errors import RequestError
from launcher.server.bridge import Bridge, Receive
from launcher.server.session_state import StateFile, damaged_state
from launcher.server.sse import Send


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How slow a transfer may be: so many seconds beyond what its bytes take at `rate` bytes a second."""

    seconds: float = 60.0
    rate: float = 256 << 10


class Progress:
    """One transfer against its pace: used as an `asyncio.timeout`, whose end moves with the bytes."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._started = asyncio.get_running_loop().time()
        self._timeout = asyncio.timeout_at(self._started + pace.seconds)
        self.moved = 0

    async def __aenter__(self) -> Progress:
        await self._timeout.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._timeout.__aexit__(*error)

    def move(self, count: int) -> None:
        """So many bytes more have gone through."""
        self.moved += count
        self._timeout.reschedule(self._started + self._pace.seconds + self.moved / self._pace.rate)


class StateReader:
    """Takes a body apart without holding more of it than what the server hands over at once."""

    def __init__(self, parts: AsyncIterator[bytes], moved: Callable[[int], None]) -> None:
        """Args:
        parts: the body.
        moved: told of the bytes that have come.
        """
        self._parts = parts
        self._moved = moved
        self._rest = memoryview(b"")
        self.taken = 0

    async def exactly(self, count: int) -> bytes:
        """The next bytes; `count` must be bounded by the caller.

        Raises:
            RequestError: 400, the body ends before.
        """
        data = bytearray(count)
        with memoryview(data) as view:
            await self.fill(view)
        return bytes(data)

    async def fill(self, view: memoryview) -> None:
        """Fills the view with the next bytes.

        Raises:
            RequestError: 400, the body ends before.
        """
        done = 0
        while done < len(view):
            if not self._rest and not await self._more():
                raise damaged_state(f"it ends after {self.taken} bytes, expected {len(view) - done} more at least")
            piece = self._rest[: len(view) - done]
            view[done : done + len(piece)] = piece
            self._rest = self._rest[len(piece) :]
            self.taken += len(piece)
            done += len(piece)

    async def end(self) -> None:
        """Makes sure that there is no more.

        Raises:
            RequestError: 400, there is.
        """
        if self._rest or await self._more():
            raise damaged_state(f"it goes on after {self.taken} bytes, expected its end")

    async def _more(self) -> bool:
        async for part in self._parts:
            if part:
                self._moved(len(part))
                self._rest = memoryview(part)
                return True
        return False


@contextmanager
def in_time(progress: Progress) -> Iterator[None]:
    """What runs out of time in here is a body that came too slowly.

    Raises:
        RequestError: 408.
    """
    try:
        yield
    except TimeoutError as error:
        raise RequestError(
            "request_timeout",
            f"the state came too slowly: {progress.moved} bytes had arrived",
            status=408,
            headers={"Connection": "close"},
        ) from error


class StateResponse(Response):
    """Sends a state until its end, until the client leaves, or until it takes it too slowly."""

    def __init__(self, file: StateFile, *, headers: dict[str, str], pace: Pace, close: Callable[[], None]) -> None:
        """Args:
        file: what to send.
        headers: all of them but the length.
        pace: how slow the client may be.
        close: called once at the end, whatever it is.
        """
        super().__init__(headers={**headers, "Content-Length": str(file.length)})
        self._file = file
        self._pace = pace
        self._close = close

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Runs the response."""
        bridge = Bridge(asyncio.get_running_loop())
        try:
            bridge.watch(receive)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with Progress(self._pace) as progress:
                await self._write(bridge, send, progress)
        except TimeoutError:
            pass  # the connection ends within the body, which tells the client that it is not complete
        finally:
            self._close()
            await bridge.close()

    async def _write(self, bridge: Bridge, send: Send, progress: Progress) -> None:
        for piece in self._file.pieces():
            if bridge.has_left():
                return
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            progress.move(len(piece))
            await asyncio.sleep(0)  # a client that takes everything at once must not keep others waiting
        await send({"type": "http.response.body", "body": b"", "more_body": False})
