"""HTTP for downloads: redirects that we decide about, a token that stays at home, answers that end in time.

`requests` speaks the protocol. It follows no redirect, reads no netrc, keeps no cookie and undoes no encoding here:
its sessions, which would, are not used.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

import certifi
import requests
import urllib3.exceptions
from requests.adapters import HTTPAdapter

from launcher import __version__
from launcher.download.http_errors import TryAgain, connection_failure, cut, shown_words, status_failure, timed_out
from launcher.download.redirects import RedirectPolicy, proxy_for
from launcher.download.sources import HubSource, is_loopback, same_origin, shown_url
from launcher.errors import MindnanoError, NetworkError, UsageError
from launcher.payload.carried import CERTIFICATES, carried_bytes

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_BUNDLES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
_PACE_WINDOW_SECONDS: Final = 60.0
_PACE_BYTES: Final = 16 << 10


def _addresses(host: str) -> Iterable[str]:
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        return []


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a transfer needs from outside, so that tests can replace it.

    Attributes:
        connect_seconds: how long a connection may take.
        read_seconds: how long the line may be silent.
        tries: how often in a row a transfer may fail without getting further.
        max_wait: longest pause in seconds that a server may ask for.
        sleep: waits for seconds.
        clock: seconds, monotone.
        now: the time by the clock of this machine, with a zone.
        addresses: IP addresses of a host name; none where it has none.
    """

    connect_seconds: float = 15.0
    read_seconds: float = 60.0
    tries: int = 6
    max_wait: float = 300.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = _now
    addresses: Callable[[str], Iterable[str]] = _addresses


class Retries:
    """Waits longer and longer between tries, and gives up when too many in a row led nowhere."""

    def __init__(self, surroundings: Surroundings, notice: Callable[[MindnanoError, float], None]) -> None:
        self._surroundings = surroundings
        self._notice = notice
        self._failures = 0

    def wait(self, failure: TryAgain) -> None:
        """Pauses before the next try.

        Raises:
            MindnanoError: there is none; it says why the last one failed.
        """
        self._failures += 1
        pause = min(30.0, 2.0 ** (self._failures - 1)) if failure.wait is None else failure.wait
        if self._failures >= self._surroundings.tries or pause > self._surroundings.max_wait:
            raise failure.error from failure
        self._notice(failure.error, pause)
        self._surroundings.sleep(pause)

    def succeed(self) -> None:
        """The transfer got further."""
        self._failures = 0


class Reply:
    """An answer whose body is read piece by piece; a context manager."""

    def __init__(self, response: requests.Response, url: str, surroundings: Surroundings) -> None:
        self.url = url
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._surroundings = surroundings
        self._host = urlsplit(url).hostname or ""
        self._window_start = surroundings.clock()
        self._window_bytes = 0

    @property
    def length(self) -> int | None:
        """Bytes of the body by its Content-Length, None where that is missing or no number."""
        text = self.headers.get("Content-Length", "").strip()
        return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None

    def read(self, limit: int) -> bytes:
        """The next bytes of the body, at most `limit`; empty at its end.

        Raises:
            TryAgain: the connection was cut, is silent, or is so slow that it might as well be.
        """
        try:
            data = self._response.raw.read1(limit, decode_content=False) or b""
        except (urllib3.exceptions.TimeoutError, TimeoutError) as error:
            raise timed_out(self._host) from error
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise cut(self._host, str(error)) from error
        self._keep_pace(len(data))
        return bytes(data)

    def close(self) -> None:
        """Ends the connection."""
        self._response.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _keep_pace(self, count: int) -> None:
        self._window_bytes += count
        passed = self._surroundings.clock() - self._window_start
        if passed < _PACE_WINDOW_SECONDS:
            return
        if count and self._window_bytes < _PACE_BYTES:
            raise timed_out(self._host)
        self._window_start += passed
        self._window_bytes = 0


class Transport:
    """Answers to GET requests, with the redirect policy of this program. A context manager.

    The Hub's token goes to the Hub's endpoint alone, and never over an unprotected line.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        surroundings: Surroundings,
        *,
        hub: HubSource | None = None,
        plain_http: bool = False,
        authorities: Path | None = None,
    ) -> None:
        """`authorities` is a file of certificates that replaces all others, those of the environment too."""
        self._environ = environ
        self._authorities = authorities
        self.surroundings = surroundings
        self._hub = hub
        self._policy = RedirectPolicy(environ, surroundings.addresses, hub=hub, plain_http=plain_http)
        self._reached = False
        self._adapters: dict[str, HTTPAdapter] = {}

    def open(self, url: str, headers: Mapping[str, str] | None = None) -> Reply:
        """The answer to a GET request: status 200, 206 or 416, without a content encoding.

        Raises:
            TryAgain: a failure that may pass.
            NetworkError: one that will not.
            UsageError: the certificates that the environment names cannot be read.
        """
        current = url
        visited = [url]
        while True:
            response = self._send(current, headers or {})
            if response.status_code not in _REDIRECTS:
                return self._accepted(response, current)
            location = response.headers.get("Location", "")
            response.close()
            current = self._policy.next(visited, location)
            visited.append(current)

    def small(self, url: str, limit: int, retries: Retries) -> bytes | None:
        """The whole of a small file, or None where the server does not have it.

        Raises:
            NetworkError: it cannot be had, or is larger than `limit` bytes.
        """
        while True:
            try:
                data = self._small(url, limit)
                retries.succeed()
                return data
            except TryAgain as passing:
                failure = passing
            except NetworkError as error:
                if error.slug == "http-missing":
                    return None
                raise
            retries.wait(failure)

    def close(self) -> None:
        """Ends all connections."""
        for adapter in self._adapters.values():
            adapter.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _small(self, url: str, limit: int) -> bytes:
        with self.open(url) as reply:
            data = b""
            while piece := reply.read(min(1 << 16, limit + 1 - len(data))):
                data += piece
                if len(data) > limit:
                    raise NetworkError(
                        "http-too-large",
                        f"{shown_url(url)} is larger than the {limit} bytes that such a file may have",
                        hint="check the source",
                    )
            if reply.length is not None and len(data) < reply.length:
                raise cut(urlsplit(url).hostname or "", f"{len(data)} of {reply.length} bytes came")
            return data

    def _send(self, url: str, headers: Mapping[str, str]) -> requests.Response:
        sent = {**headers, "User-Agent": f"mindnano-infer/{__version__}", "Accept-Encoding": "identity"}
        hub = self._hub
        protected = urlsplit(url).scheme == "https" or is_loopback(urlsplit(url).hostname or "")
        if hub is not None and hub.token is not None and protected and same_origin(url, hub.endpoint):
            sent["Authorization"] = f"Bearer {hub.token}"
        proxy = proxy_for(url, self._environ)
        proxy_host = None if proxy is None else _proxy_host(proxy)
        host = urlsplit(url).hostname or ""
        try:
            # The adapter alone: a session would look into redirects and cookies by itself.
            response = self._adapter(urlsplit(url).scheme).send(
                requests.Request("GET", url, headers=sent).prepare(),
                stream=True,
                timeout=(self.surroundings.connect_seconds, self.surroundings.read_seconds),
                proxies={} if proxy is None else {urlsplit(url).scheme: proxy},
            )
        except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            failure = connection_failure(error, host, proxy_host, self.surroundings.now())
            # A name or a server that never answered is more likely wrong than away for a moment.
            if isinstance(failure, TryAgain) and failure.unreached and not self._reached:
                raise failure.error from error
            raise failure from error
        self._reached = True
        return response

    def _adapter(self, scheme: str) -> HTTPAdapter:
        if scheme not in self._adapters:
            protected = scheme == "https"
            self._adapters[scheme] = (
                _TlsAdapter(_tls_context(self._environ, self._authorities)) if protected else HTTPAdapter()
            )
        return self._adapters[scheme]

    def _accepted(self, response: requests.Response, url: str) -> Reply:
        if response.status_code not in {200, 206, 416}:
            response.close()
            page = self._hub.page if self._hub is not None and same_origin(url, self._hub.endpoint) else None
            raise status_failure(response, shown_url(url), page, self.surroundings.now())
        encoding = shown_words(response.headers.get("Content-Encoding", "identity").strip().lower())
        if encoding not in {"", "identity"} and response.status_code != 416:
            response.close()
            raise NetworkError(
                "http-encoding",
                f"{shown_url(url)} comes encoded as {encoding!r}, expected the plain bytes that were asked for",
                hint="use another source; a proxy may do this",
            )
        return Reply(response, url, self.surroundings)


class _TlsAdapter(HTTPAdapter):
    """Trusts what a context trusts, through a proxy too; `requests` alone knows only files."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        super().__init__(max_retries=0)

    def init_poolmanager(self, *args: Any, **settings: Any) -> None:
        super().init_poolmanager(*args, **settings, ssl_context=self._context)

    def proxy_manager_for(self, proxy: str, **settings: Any) -> Any:
        return super().proxy_manager_for(proxy, **settings, ssl_context=self._context)

    def cert_verify(self, conn: Any, url: str, verify: Any, cert: Any) -> None:
        conn.cert_reqs = "CERT_REQUIRED"


def _proxy_host(proxy: str) -> str:
    """The host of a proxy.

    Raises:
        NetworkError: it has none, or its port is none. What it is stays unsaid: it may hold a password.
    """
    try:
        parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or "\\" in proxy:
        raise NetworkError(
            "network-proxy",
            "the proxy of the environment is no URL with a host, expected http://HOST:PORT",
            hint="check https_proxy, http_proxy and all_proxy; write special characters of a password as %XX",
        )
    return host


def _tls_context(environ: Mapping[str, str], authorities: Path | None) -> ssl.SSLContext:
    """The given authorities, or those that a variable names; else those of the system and those of certifi.

    Vendor images are often old and lack new authorities; certifi lacks those that an administrator added.
    """
    named = {"--cacert": str(authorities)} if authorities else {name: environ.get(name, "") for name in _BUNDLES}
    for name, path in named.items():
        if path:
            try:
                return ssl.create_default_context(cafile=path)
            except (OSError, ssl.SSLError) as error:
                raise UsageError(
                    "ca-bundle",
                    f"{name} names {path}, which holds no certificates: {error}",
                    hint=f"give a file of certificates in PEM form, or leave {name} out",
                ) from error
    context = ssl.create_default_context()
    with suppress(OSError, ssl.SSLError):  # the system's own stay
        context.load_verify_locations(cadata=_shipped_authorities())
    return context


def _shipped_authorities() -> str:
    carried = carried_bytes(CERTIFICATES)
    return certifi.contents() if carried is None else carried.decode("ascii")
