"""The two ports of `SystemView`: device nodes, and what only the running kernel can say."""

from __future__ import annotations

import errno
import os
import platform
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A device node as stat(2) shows it; links are followed."""

    mode: int
    owner: int
    group: int
    major: int
    minor: int

    @property
    def is_device(self) -> bool:
        """Whether it is a character device."""
        return stat.S_ISCHR(self.mode)


class Devices(Protocol):
    """Device nodes. Paths are absolute, as on the machine."""

    def stat(self, path: str) -> Node | None:
        """The node, or None where there is none."""

    def open(self, path: str) -> int:
        """Opens the node for reading and writing; returns a handle.

        Raises:
            OSError: errno says why.
        """

    def ioctl(self, handle: int, request: int, argument: bytearray) -> None:
        """One ioctl whose argument is a buffer, changed in place.

        Raises:
            OSError: errno says why.
        """

    def close(self, handle: int) -> None:
        """Closes a handle; never fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Bytes of the file system that holds a path. `free` is what an ordinary user may take.

    `writable`: whether this user may write in the folder, or in the one in which it would be made.
    """

    total: int
    free: int
    writable: bool = True


class Host(Protocol):
    """What only the running kernel can say."""

    @property
    def machine(self) -> str:
        """The instruction set as ``uname -m`` prints it, e.g. ``aarch64``."""

    @property
    def libc(self) -> str:
        """Name and version of the C library of this process, e.g. ``glibc 2.36``; empty where it does not say."""

    def space(self, path: str) -> Space | None:
        """Space where the path lies, or would lie: the nearest folder above it that exists."""

    def listen(self, address: str, port: int) -> None:
        """Takes a TCP port for a moment and gives it back.

        Raises:
            OSError: errno says why it cannot be had.
        """


class RealDevices:
    """The machine's own device nodes."""

    def stat(self, path: str) -> Node | None:
        try:
            found = os.stat(path)
        except OSError:
            return None
        return Node(
            mode=found.st_mode,
            owner=found.st_uid,
            group=found.st_gid,
            major=os.major(found.st_rdev),
            minor=os.minor(found.st_rdev),
        )

    def open(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)

    def ioctl(self, handle: int, request: int, argument: bytearray) -> None:
        import fcntl

        fcntl.ioctl(handle, request, argument, True)

    def close(self, handle: int) -> None:
        with suppress(OSError):
            os.close(handle)


class RealHost:
    """The kernel that runs this process."""

    @property
    def machine(self) -> str:
        return platform.machine()

    @property
    def libc(self) -> str:
        try:
            return os.confstr("CS_GNU_LIBC_VERSION") or ""
        except (ValueError, OSError):
            return ""

    def space(self, path: str) -> Space | None:
        place = os.path.abspath(path)
        while True:
            try:
                found = os.statvfs(place)
            except OSError:
                above = os.path.dirname(place)
                if above == place:
                    return None
                place = above
                continue
            return Space(
                total=found.f_frsize * found.f_blocks,
                free=found.f_frsize * found.f_bavail,
                writable=os.access(place, os.W_OK | os.X_OK),
            )

    def listen(self, address: str, port: int) -> None:
        import socket

        family, kind, protocol, _, where = socket.getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as taken:
            # As a server would: a port in TIME_WAIT is free.
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(where)
            taken.listen(1)


def errno_name(error: OSError) -> str:
    """``EACCES`` for errno 13; the number where it has no name."""
    return errno.errorcode.get(error.errno or 0, str(error.errno))
