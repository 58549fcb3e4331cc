"""Connections that cannot hold the server up: slow, silent, greedy and half-closed ones end.

uvicorn's h11 protocol with clocks for a request's head and body and for writing, a bound on connections, and errors as
JSON. Reading goes on while an answer is on its way, so that a client's leaving is seen at once.
"""

from __future__ import annotations

import asyncio
import re
import sys
import uuid
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from launcher.errors import RequestError
from launcher.server.protocol.errors import error_body

PATIENT: Final = "mindnano.patient"
"""In the scope of a request whose body the application itself keeps to a clock, however long it is."""
_MAX_PIPELINED: Final = 1 << 16
_PHRASES: Final = {
    400: b"Bad Request",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
    501: b"Not Implemented",
}
_UNAVAILABLE: Final = b"HTTP/1.1 503 Service Unavailable\r\n%b\r\n"
# h11 quotes the bytes that it could not read, in Python's way and at any length.
_QUOTED: Final = re.compile(r"[:\s]*(bytearray\()?b['\"].*", re.DOTALL)

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Seconds and counts. `body` ends what reads no answer; the application refuses a late body earlier."""

    head_seconds: float = 20.0
    body_seconds: float = 65.0
    write_seconds: float = 60.0
    connections: int = 512  # those that have not finished TLS's handshake included
    skipped_bytes: int = 64 << 20  # of a body that has been refused


def protocol_class(limits: ConnectionLimits, headers: Headers) -> type[asyncio.Protocol]:
    """The protocol with these limits, as uvicorn takes it; `headers` are those of every answer."""

    class Bound(GuardedProtocol):
        LIMITS = limits
        HEADERS = headers
        HANDSHAKES: ClassVar[set[asyncio.Task[Any]]] = set()

    return Bound


class GuardedProtocol(H11Protocol):
    """One connection."""

    LIMITS: ClassVar[ConnectionLimits] = ConnectionLimits()
    HEADERS: ClassVar[Headers] = ()
    HANDSHAKES: ClassVar[set[asyncio.Task[Any]]] = set()
    """What asyncio runs for connections whose handshake is not complete; cancelling one ends its connection."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._phase = ""
        self._clock: asyncio.TimerHandle | None = None
        self._write_clock: asyncio.TimerHandle | None = None
        self._unwritten = 0
        self._received = 0
        self._accepting: asyncio.Task[Any] | None = None
        if config.ssl is not None:
            self._watch_handshake()

    def _watch_handshake(self) -> None:
        """asyncio makes the protocol when it accepts, and says nothing more of it until the handshake is complete."""
        self._accepting = accepting = asyncio.current_task()
        if accepting is None:
            return
        self.HANDSHAKES.add(accepting)
        accepting.add_done_callback(self.HANDSHAKES.discard)
        is_full = len(self.connections) + len(self.HANDSHAKES) > self.LIMITS.connections
        clock = self.loop.call_later(0 if is_full else self.LIMITS.head_seconds, accepting.cancel)
        accepting.add_done_callback(lambda _task: clock.cancel())

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._accepting is not None:
            self.HANDSHAKES.discard(self._accepting)
        # What the kernel does not take pauses writing, so that the clock below sees it. With 0, TLS pauses for ever.
        transport.set_write_buffer_limits(high=1, low=0)
        if len(self.connections) > self.LIMITS.connections:
            error = RequestError(
                "too_many_connections",
                "too many connections; try again later",
                status=503,
                kind="server_error",
                headers={"Retry-After": "5"},
            )
            headers, body = self._answer(error)
            lines = b"".join(b"%b: %b\r\n" % header for header in headers)
            transport.write(_UNAVAILABLE % lines + body)
            transport.close()
            return
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clocks()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def eof_received(self) -> None:
        """A client that sends no more is gone; what is still unwritten must not keep its request alive."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self.flow.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._received += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        self._follow()
        waits = self.cycle is not None and not self.cycle.response_complete
        if waits and self._phase == "answer":
            if self._received > _MAX_PIPELINED:
                self.transport.abort()
                return
            self.flow.resume_reading()
        elif self._phase == "skip" and self._received > self.LIMITS.skipped_bytes:
            self.transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._follow()

    def send_400_response(self, msg: str) -> None:
        """Answers bytes that are no request; h11's own exception knows the status."""
        problem = sys.exc_info()[1]
        status = problem.error_status_hint if isinstance(problem, h11.RemoteProtocolError) else 400
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        reason = _QUOTED.sub("", str(problem or msg))
        code, text = ("invalid_http", f"the request is no valid HTTP: {reason}")
        if status == 431:
            code, text = ("headers_too_large", "the request's head is larger than 64 KiB")
        self._refuse(status, code, text)

    def leave(self) -> None:
        """At the server's end: a client that has been told everything need not say goodbye, as TLS would have it."""
        if self.transport.is_closing() and not self.transport.get_write_buffer_size():
            self.transport.abort()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unwritten = self.transport.get_write_buffer_size()
        if self._write_clock is None:
            self._write_clock = self.loop.call_later(self.LIMITS.write_seconds, self._check_writing)

    def resume_writing(self) -> None:
        if self._write_clock is not None:
            self._write_clock.cancel()
            self._write_clock = None
        super().resume_writing()

    def _check_writing(self) -> None:
        """Ends the connection when nothing was taken since the last look."""
        self._write_clock = None
        left = self.transport.get_write_buffer_size()
        if left and left >= self._unwritten:
            self.transport.abort()
        elif left:
            self._unwritten = left
            self._write_clock = self.loop.call_later(self.LIMITS.write_seconds, self._check_writing)

    def _follow(self) -> None:
        """Sets the clock of the phase that the connection is in."""
        phase = self._present_phase()
        if phase == self._phase and phase != "idle":
            return
        if phase != self._phase:
            self._received = 0
        self._phase = phase
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None
        seconds = {
            "head": self.LIMITS.head_seconds,
            "body": self.LIMITS.body_seconds,
            "skip": self.LIMITS.body_seconds,
        }.get(phase)
        if seconds is not None:
            self._clock = self.loop.call_later(seconds, self._too_late)

    def _present_phase(self) -> str:
        if self.conn.their_state is h11.SEND_BODY:
            done = self.cycle is not None and self.cycle.response_complete
            return "skip" if done else "body"
        if self.conn.their_state is not h11.IDLE:
            return "answer"
        fresh = self.cycle is None
        return "head" if fresh or self.conn.trailing_data[0] else "idle"

    def _too_late(self) -> None:
        self._clock = None
        if self._phase == "head":
            self._refuse(408, "request_timeout", "the request's head did not arrive in time")
        elif self._phase == "body" and self.scope is not None and self.scope.get(PATIENT):
            self._clock = self.loop.call_later(self.LIMITS.body_seconds, self._too_late)
        else:
            self.transport.abort()

    def _refuse(self, status: int, code: str, message: str) -> None:
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.transport.abort()
            return
        headers, body = self._answer(RequestError(code, message, status=status))
        start = h11.Response(status_code=status, headers=headers, reason=_PHRASES.get(status, b"Error"))
        events = (start, h11.Data(data=body), h11.EndOfMessage())
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        self.transport.close()

    def _answer(self, error: RequestError) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Headers and body of an answer to what never became a request."""
        _, told, body = error_body(error)
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *((name.lower().encode(), value.encode("latin-1")) for name, value in told.items()),
            (b"x-request-id", new_request_id()),
            *self.HEADERS,
        ]
        return headers, body

    def _stop_clocks(self) -> None:
        for clock in (self._clock, self._write_clock):
            if clock is not None:
                clock.cancel()
        self._clock = self._write_clock = None


def new_request_id() -> bytes:
    """What an answer is called in `X-Request-Id` where no request has an id."""
    return b"req-" + uuid.uuid4().hex.encode()
