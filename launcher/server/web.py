"""uvicorn, set up for this server: its own protocol, no hands on signals and logs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from ssl import SSLContext
from typing import Final

import uvicorn

from launcher.server.app import Application
from launcher.server.connections import ConnectionLimits, GuardedProtocol, protocol_class

_MAX_HEAD: Final = 1 << 16
_KEEP_ALIVE: Final = 75
_LAST_ANSWERS: Final = 5  # seconds that finished answers get to leave
_GOODBYE: Final = 1.0  # seconds that a client gets to end its side of TLS


class WebServer(uvicorn.Server):
    """uvicorn without its own signal handlers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Takes no signal."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Lets answers leave, for a while; waits for no client that only has to leave."""
        ending = asyncio.ensure_future(super().shutdown(sockets))
        for handshake in list(self._guarded().HANDSHAKES):
            handshake.cancel()
        while not ending.done():
            await asyncio.wait({ending}, timeout=_GOODBYE)
            for connection in list(self.server_state.connections):
                if isinstance(connection, GuardedProtocol):
                    connection.leave()
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await ending

    def _guarded(self) -> type[GuardedProtocol]:
        found = self.config.http_protocol_class
        assert issubclass(found, GuardedProtocol)
        return found


def web_server(app: Application, *, tls: SSLContext | None, limits: ConnectionLimits | None = None) -> WebServer:
    """A server for sockets that are bound already; `limits` are the usual ones by default."""
    config = uvicorn.Config(
        app,
        loop="asyncio",
        http=protocol_class(limits or ConnectionLimits(), app.headers),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=_LAST_ANSWERS,
        h11_max_incomplete_event_size=_MAX_HEAD,
    )
    config.load()
    config.ssl = tls
    return WebServer(config)
