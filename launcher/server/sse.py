"""Server-sent events: comments while a request waits, data while it runs, `[DONE]` after success only.

Where events are typed, the type names the event as well, and the last type says how it ended: no `[DONE]` follows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

import msgspec
from starlette.responses import Response

from launcher.server.bridge import Bridge, Receive
from launcher.server.events import Event, Failed, Finished, Paused, Queued, Reading
from launcher.server.ports import StreamWriter

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
PING_SECONDS: Final = 5.0  # half of what proxies and clients were promised
DONE: Final = b"data: [DONE]\n\n"
HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class _Typed(msgspec.Struct):
    type: str


_TYPED: Final = msgspec.json.Decoder(_Typed)


def frame(event: Event, writer: StreamWriter, *, typed: bool = False) -> bytes:
    """The bytes of one event on the wire."""
    texts = writer.write(event)
    if typed:
        named = (b"event: %b\ndata: %b\n\n" % (_TYPED.decode(text).type.encode(), text) for text in texts)
        return _comment(event) + b"".join(named)
    data = b"".join(b"data: " + text + b"\n\n" for text in texts)
    return _comment(event) + (data + DONE if isinstance(event, Finished) else data)


def _comment(event: Event) -> bytes:
    if isinstance(event, Queued):
        return b": queue position %d\n\n" % event.position
    if isinstance(event, Reading):
        return b": prefill %d/%d\n\n" % (event.done, event.total)
    return b": paused\n\n" if isinstance(event, Paused) else b""


class EventStream(Response):
    """A response that writes a request's events until it ends or the client leaves."""

    def __init__(
        self,
        bridge: Bridge,
        writer: StreamWriter,
        *,
        typed: bool = False,
        headers: Mapping[str, str],
        cancel: Callable[[], object],
        observe: Callable[[Event], None],
        close: Callable[[bool], None],
        ping_seconds: float = PING_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares the response.

        Args:
            bridge: where the events come from.
            writer: makes JSON of them.
            typed: whether the type of each JSON names its event.
            headers: further headers.
            cancel: stops the work; called once when the client leaves or the stream fails.
            observe: told of every event before it is written.
            close: told once at the end whether the client had left.
            ping_seconds: longest silence.
            clock: for the silence.
        """
        super().__init__()
        self._bridge = bridge
        self._writer = writer
        self._typed = typed
        self._extra = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        self._cancel = cancel
        self._observe = observe
        self._close = close
        self._ping_seconds = ping_seconds
        self._clock = clock

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Runs the response."""
        finished = False
        try:
            self._bridge.watch(receive)
            await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS, *self._extra]})
            finished = await self._write(send)
        finally:
            gone = self._bridge.has_left()
            if not finished:
                self._cancel()
            await self._bridge.close()
            self._close(gone)

    async def _write(self, send: Send) -> bool:
        """Whether the request came to its own end, in success or not."""
        silent_since = self._clock()
        await send({"type": "http.response.body", "body": b": accepted\n\n", "more_body": True})
        while not self._bridge.has_left():
            events = await self._bridge.take(max(0.0, silent_since + self._ping_seconds - self._clock()))
            if self._bridge.has_left():
                break
            parts = []
            for event in events:
                self._observe(event)
                parts.append(frame(event, self._writer, typed=self._typed))
            ended = bool(events) and isinstance(events[-1], Finished | Failed)
            if not events and self._clock() - silent_since >= self._ping_seconds:
                parts.append(b": ping\n\n")
            data = b"".join(parts)
            if data or ended:
                silent_since = self._clock()
                await send({"type": "http.response.body", "body": data, "more_body": not ended})
            if ended:
                return True
            if data:
                await self._bridge.gather()
        # What came after the client left still counts.
        for event in await self._bridge.take(0):
            self._observe(event)
        return False


async def collect(bridge: Bridge, receive: Receive, observe: Callable[[Event], None]) -> Event | None:
    """Waits for the end of a request that is answered as a whole.

    Returns:
        The last event, or None where the client left first.
    """
    bridge.watch(receive)
    try:
        while not bridge.has_left():
            for event in await bridge.take():
                observe(event)
                if isinstance(event, Finished | Failed):
                    return event
            await bridge.gather()
        return None
    finally:
        await asyncio.shield(bridge.close())
