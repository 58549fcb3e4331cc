"""The socket that the server answers on, bound before the model loads."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from launcher.errors import BusyError, UsageError
from launcher.options.parse import Options

_UNIX: Final = "unix:"
_BACKLOG: Final = 128
_PRIVATE: Final = 0o600
_GROUP: Final = 0o660


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where to listen: `path` for a unix socket, else the family and what `bind` takes."""

    path: Path | None = None
    family: socket.AddressFamily = socket.AF_INET
    name: tuple[object, ...] = ()
    host: str = ""
    port: int = 0

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return self.path is not None or ipaddress.ip_address(str(self.name[0]).partition("%")[0]).is_loopback

    def url(self, *, tls: bool) -> str:
        """What a person types, as far as that is known."""
        if self.path is not None:
            return f"{_UNIX}{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if tls else 'http'}://{host}:{self.port}"


def find_address(options: Options) -> Address:
    """What `--host` and `--port` mean.

    Raises:
        UsageError: the host is no address of any machine, or the path of a unix socket is not usable.
    """
    if options.host.startswith(_UNIX):
        path = Path(options.host.removeprefix(_UNIX))
        if not path.is_absolute() or len(os.fsencode(path)) > 107:  # sun_path
            raise UsageError(
                "host-invalid",
                f"--host {options.host}: expected unix: and an absolute path of at most 107 bytes",
                hint="for example unix:/run/mindnano/server.sock",
            )
        return Address(path=path)
    host = options.host.strip().removeprefix("[").removesuffix("]")
    try:
        found = socket.getaddrinfo(
            host or None, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except (OSError, UnicodeError) as error:
        raise UsageError(
            "host-invalid",
            f"--host {options.host} is no address: {error}",
            hint="use 127.0.0.1, an address of this machine, 0.0.0.0 for all of them, or unix:/path",
        ) from error
    family, _, _, _, name = next((entry for entry in found if entry[0] == socket.AF_INET), found[0])
    return Address(family=family, name=tuple(name), host=host or str(name[0]), port=options.port)


def require_permission(address: Address, options: Options, *, keys: bool) -> None:
    """A server that others can reach needs keys, or the word that none are wanted.

    Raises:
        UsageError: neither was given.
    """
    if address.is_loopback or keys or options.serving.allow_lan:
        return
    raise UsageError(
        "lan-open",
        f"--host {options.host} lets other machines use the server, and no API key protects it",
        hint="give --api-key-file FILE (or --api-key KEY), or --allow-lan if everyone may use it",
    )


@contextmanager
def listening(address: Address, *, group: bool) -> Iterator[socket.socket]:
    """The bound and listening socket; a unix socket's file goes with it.

    Args:
        address: where.
        group: whether the group of a unix socket's file may connect too.

    Raises:
        BusyError: something else listens there.
        UsageError: it cannot be bound.
    """
    if address.path is not None:
        with _unix_socket(address.path, _GROUP if group else _PRIVATE) as bound:
            yield bound
        return
    with socket.socket(address.family, socket.SOCK_STREAM) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. Without it a token waits until the client has acknowledged the one before: 40 ms.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.family == socket.AF_INET6 and address.host != "::":
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            bound.bind(address.name)
            bound.listen(_BACKLOG)
        except OSError as error:
            raise _not_bound(error, f"{address.host} port {address.port}", f"ss -ltnp 'sport = :{address.port}'") from (
                error
            )
        yield bound


@contextmanager
def _unix_socket(path: Path, mode: int) -> Iterator[socket.socket]:
    _remove_stale(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bound:
        before = os.umask(0o777 & ~mode)  # from the start on, not only after a chmod
        try:
            bound.bind(str(path))
            bound.listen(_BACKLOG)
        except OSError as error:
            raise _not_bound(error, str(path), f"ss -lxp src {path}") from error
        finally:
            os.umask(before)
        own = path.stat().st_ino
        try:
            yield bound
        finally:
            with suppress(OSError):  # it may be gone already, or be another server's by now
                if path.stat().st_ino == own:
                    path.unlink()


def _remove_stale(path: Path) -> None:
    """Removes a socket that nobody answers on; anything else that lies there stays."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UsageError("host-invalid", f"{path} exists and is no socket", hint="name another path")
    except OSError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.settimeout(1)
            probe.connect(str(path))
        except ConnectionRefusedError:
            with suppress(OSError):
                path.unlink()
            return
        except OSError as error:
            raise _not_bound(error, str(path), f"ss -lxp src {path}") from error
    raise BusyError(
        "address-busy", f"another server answers on {path}", hint=f"stop it, or name another path: ss -lxp src {path}"
    )


def _not_bound(error: OSError, place: str, look: str) -> BusyError | UsageError:
    if error.errno == errno.EADDRINUSE:
        return BusyError(
            "address-busy",
            f"{place} is in use by another program",
            hint=f"stop it, or choose another --port; `{look}` shows which one it is",
        )
    return UsageError(
        "address-unusable",
        f"cannot listen on {place}: {error.strerror}",
        hint="name an address of this machine, and a port from 1024 on unless this runs as root",
    )
