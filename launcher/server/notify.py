"""What systemd is told of a service's state, when it asked for it (`Type=notify`)."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

VARIABLE: Final = "NOTIFY_SOCKET"


def notify(environ: Mapping[str, str], state: str) -> None:
    """Sends e.g. ``READY=1`` as one datagram; does nothing where nobody listens. See sd_notify(3)."""
    place = environ.get(VARIABLE, "")
    if not place or place[0] not in "/@":
        return
    address = "\0" + place[1:] if place[0] == "@" else place
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.connect(address)
        sender.sendall(state.encode())
