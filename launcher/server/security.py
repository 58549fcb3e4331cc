"""Who may ask: API keys, the Host header, and web pages of other origins."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import socket
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from launcher.errors import RequestError, UsageError
from launcher.options.parse import ServerOptions

_OWNER_DIGITS: Final = 16
_MAX_KEY_FILE: Final = 1 << 20
_PORTS: Final = {"http": "80", "https": "443"}
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_MAX_HEADER_NAMES: Final = 64
_CHANGING: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
CORS_METHODS: Final = "GET, HEAD, POST, PUT, DELETE, OPTIONS"
EXPOSED: Final = (
    "ETag, Repr-Digest, X-Request-Id, X-Session-Id, X-Served-By, X-Queue-Depth, X-Should-Retry, Retry-After"
)


class Keyring:
    """The API keys. Only their digests are kept."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(sorted({hashlib.sha256(key.encode()).digest() for key in keys}))

    def __bool__(self) -> bool:
        return bool(self._digests)

    def owner(self, key: str) -> str | None:
        """Who the key stands for: a short digest of it; None where it is no key. Takes equally long for every key."""
        digest = hashlib.sha256(key.encode(errors="surrogateescape")).digest()
        known = False
        for other in self._digests:
            known |= hmac.compare_digest(digest, other)
        return digest.hex()[:_OWNER_DIGITS] if known else None

    def require(self, headers: Mapping[str, str]) -> str:
        """The owner that these headers (lower-case names) prove; "" where there are no keys.

        Raises:
            RequestError: 401, no key or a wrong one.
        """
        if not self:
            return ""
        given = _given_key(headers)
        # Headers come decoded as Latin-1, whatever their bytes are; keys are UTF-8.
        owner = None if given is None else self.owner(given.encode("latin-1").decode(errors="surrogateescape"))
        if owner is not None:
            return owner
        problem = "no API key was given" if given is None else "the API key is not one of this server's"
        raise RequestError(
            "invalid_api_key",
            f"{problem}; expected the header 'Authorization: Bearer KEY'",
            status=401,
            kind="authentication_error",
            headers={"WWW-Authenticate": 'Bearer realm="mindnano-infer"'},
        )


def _given_key(headers: Mapping[str, str]) -> str | None:
    scheme, _, value = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return headers.get("x-api-key", "").strip() or None


def read_keys(options: ServerOptions) -> tuple[tuple[str, ...], bool]:
    """The keys of the options and of the key file, and whether that file can be read by every user of this machine.

    Raises:
        UsageError: the file cannot be read, or holds no key.
    """
    path = options.api_key_file
    if path is None:
        return options.api_keys, False
    try:
        with path.open("rb") as file:
            public = bool(stat.S_IMODE(path.stat().st_mode) & stat.S_IROTH)
            text = file.read(_MAX_KEY_FILE).decode()
    except OSError as error:
        raise UsageError(
            "api-key-file", f"cannot read the API keys in {path}: {error.strerror}", hint="name a file that exists"
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError("api-key-file", f"{path} is not UTF-8", hint="write one API key a line") from error
    lines = (line.strip() for line in text.splitlines())
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise UsageError("api-key-file", f"{path} holds no API key", hint="write one API key a line")
    return (*options.api_keys, *keys), public


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What is checked before a request reaches its route.

    Attributes:
        keys: the API keys.
        hosts: names in Host headers that are answered to beside addresses, lower case; None checks nothing.
        origins: web origins that may use the server; ``*`` is every one.
    """

    keys: Keyring
    hosts: frozenset[str] | None
    origins: frozenset[str] = field(default_factory=frozenset)

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Refuses names that are not this server's: a page can point a name of its own at this machine.

        Raises:
            RequestError: 403.
        """
        host = headers.get("host")
        if self.hosts is None or host is None:
            return
        name = _host_name(host)
        if _is_address(name) or name in self.hosts:
            return
        raise RequestError(
            "host_not_allowed",
            f"the Host header names {name!r}, which is not this server; --allow-host {name or 'NAME'} permits it",
            status=403,
            kind="permission_error",
        )

    def check_origin(self, method: str, headers: Mapping[str, str]) -> None:
        """Refuses what a web page of another origin wants done.

        Raises:
            RequestError: 403.
        """
        origin = headers.get("origin")
        if origin is None or method not in _CHANGING or self.allows(origin) or _is_own(origin, headers.get("host")):
            return
        raise _origin_refused(origin)

    def allows(self, origin: str) -> bool:
        """Whether `--cors-origin` permits this origin."""
        return "*" in self.origins or origin.lower() in self.origins

    def cors_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """What a browser must see on every answer; nothing without `--cors-origin`. Never with credentials."""
        if not self.origins:
            return {}
        origin = headers.get("origin")
        if "*" in self.origins:
            return {"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": EXPOSED}
        if origin is None or not self.allows(origin):
            return {"Vary": "Origin"}
        return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": EXPOSED, "Vary": "Origin"}

    def preflight(self, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers that answer a browser's question before its request.

        Raises:
            RequestError: 403, the origin is not allowed.
        """
        origin = headers.get("origin", "")
        if not self.allows(origin):
            raise _origin_refused(origin)
        asked = [name.strip() for name in headers.get("access-control-request-headers", "").split(",")]
        names = [name for name in asked[:_MAX_HEADER_NAMES] if _HEADER_NAME.fullmatch(name)]
        answer = {
            "Access-Control-Allow-Methods": CORS_METHODS,
            "Access-Control-Allow-Headers": ", ".join(names) or "Authorization, Content-Type",
            "Access-Control-Max-Age": "600",
        }
        if headers.get("access-control-request-private-network", "").lower() == "true":
            answer["Access-Control-Allow-Private-Network"] = "true"
        return answer


def _origin_refused(origin: str) -> RequestError:
    return RequestError(
        "origin_not_allowed",
        f"pages of {origin!r} may not use this server; --cors-origin permits an origin",
        status=403,
        kind="permission_error",
    )


def own_names(options: ServerOptions) -> frozenset[str]:
    """The names in Host headers that mean this machine, and the allowed ones."""
    machine = socket.gethostname().lower().rstrip(".")
    short = machine.partition(".")[0]
    names = {"localhost", machine, short, f"{short}.local", *(_host_name(name) for name in options.allow_hosts)}
    return frozenset(name for name in names if name)


def _host_name(host: str) -> str:
    """``"[::1]:80"`` -> ``"::1"``, ``"Board.Local.:9092"`` -> ``"board.local"``."""
    text = host.strip().lower()
    if text.startswith("["):
        inside, _, rest = text[1:].partition("]")
        return inside if not rest or rest.startswith(":") else text
    name, _, port = text.rpartition(":")
    if name and (port.isdigit() or not port) and ":" not in name:
        text = name
    return text.removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_own(origin: str, host: str | None) -> bool:
    """Whether the page came from the address that it now asks."""
    scheme, separator, place = origin.lower().partition("://")
    if not separator or host is None:
        return False
    port = _PORTS.get(scheme, "")
    return place.removesuffix(f":{port}") == host.strip().lower().removesuffix(f":{port}")
