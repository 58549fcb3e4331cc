"""What went wrong between this machine and a server, as errors that name the cause and the next step."""

from __future__ import annotations

import errno
import re
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

import requests
import urllib3.exceptions as lower

from launcher.errors import MindnanoError, NetworkError
from launcher.integrity.release_files import printable

_PROGRAM_IS_FROM: Final = datetime(2026, 11, 1, tzinfo=UTC)
"""No clock that is right shows an earlier time."""
_CERTIFICATE_NOT_YET_VALID: Final = 9  # X509_V_ERR_CERT_NOT_YET_VALID
_CERTIFICATE_HAS_EXPIRED: Final = 10  # X509_V_ERR_CERT_HAS_EXPIRED
_UNREACHABLE: Final = frozenset(
    {errno.ECONNREFUSED, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL}
)
_PASSING_STATUS: Final = frozenset({408, 425, 500, 502, 503, 504})
_MAX_TEXT: Final = 200
_CREDENTIALS: Final = re.compile(r"//[^/\s]*@")


class TryAgain(Exception):
    """A failure that may pass: what to report when it does not.

    Attributes:
        error: the error for people.
        wait: seconds that the server asked to wait, None where it did not say.
        unreached: whether no server was reached at all.
    """

    def __init__(self, error: MindnanoError, *, wait: float | None = None, unreached: bool = False) -> None:
        super().__init__(error.message)
        self.error = error
        self.wait = wait
        self.unreached = unreached


def connection_failure(error: Exception, host: str, proxy: str | None, now: datetime) -> TryAgain | MindnanoError:
    """Why there was no answer.

    Args:
        error: what `requests` or `urllib3` raised.
        host: the server's name.
        proxy: host of the proxy that was to be used, None for a direct connection.
        now: the time by the clock of this machine.
    """
    causes = list(_causes(error))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _certificate_failure(cause, host, now)
    if any(isinstance(cause, requests.exceptions.InvalidSchema | lower.ProxySchemeUnknown) for cause in causes):
        return NetworkError(
            "network-proxy",
            f"the proxy {proxy or ''} speaks a protocol that this program does not, expected http",
            hint="name an http proxy in https_proxy or all_proxy",
        )
    if any(isinstance(cause, requests.exceptions.ProxyError | lower.ProxyError) for cause in causes) or isinstance(
        error, requests.exceptions.InvalidProxyURL
    ):
        return NetworkError(
            "network-proxy",
            f"the proxy {proxy or ''} did not lead to {host}: {_words(causes)}",
            hint="check http_proxy, https_proxy, all_proxy and no_proxy",
        )
    if any(isinstance(cause, socket.gaierror | lower.NameResolutionError) for cause in causes):
        name = host if proxy is None else f"the proxy {proxy}"
        return TryAgain(
            NetworkError(
                "network-name",
                f"the name {name} has no address here",
                hint="check the network and its name server; HF_ENDPOINT names a mirror, --download takes a folder too",
            ),
            unreached=True,
        )
    numbers = {cause.errno for cause in causes if isinstance(cause, OSError)}
    if numbers & _UNREACHABLE:
        return TryAgain(
            NetworkError(
                "network-unreachable",
                f"{host} cannot be reached: {_words(causes)}",
                hint="check the network, a proxy (https_proxy) or a mirror (HF_ENDPOINT)",
            ),
            unreached=True,
        )
    if any(isinstance(cause, requests.exceptions.Timeout | lower.TimeoutError | TimeoutError) for cause in causes):
        return timed_out(host)
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        return TryAgain(
            NetworkError(
                "network-tls",
                f"no protected connection to {host}: {_words(causes)}",
                hint="something between here and there may change what is sent; try another network",
            ),
            unreached=True,
        )
    return cut(host, _words(causes))


def cut(host: str, detail: str) -> TryAgain:
    """The connection ended too early."""
    return TryAgain(
        NetworkError(
            "network-cut",
            f"the connection to {host} was cut: {shown_words(detail)}",
            hint="run the same command to continue",
        )
    )


def timed_out(host: str) -> TryAgain:
    """Nothing, or next to nothing, arrived for too long."""
    return TryAgain(NetworkError("network-timeout", f"{host} stopped sending", hint="run the same command to continue"))


def status_failure(
    response: requests.Response, shown: str, page: str | None, now: datetime
) -> TryAgain | MindnanoError:
    """What an answer without content means.

    Args:
        response: the answer; its headers are read, not its body.
        shown: the URL as people may see it.
        page: where the licence is accepted, None where there is no such page.
        now: the time by the clock of this machine.
    """
    status = response.status_code
    code = response.headers.get("X-Error-Code", "")
    said = shown_words(response.headers.get("X-Error-Message", ""))
    detail = f"{shown}: HTTP {status}" + (f" ({said})" if said else "")
    if code == "GatedRepo" or (status == 403 and page is not None):
        return NetworkError(
            "http-licence",
            f"{detail}; the repository is open only to those who accepted its licence",
            hint=f"accept it at {page or shown}, then set HF_TOKEN to a token of that account",
        )
    if status == 401:
        return NetworkError(
            "http-credentials",
            f"{detail}; it does not exist or needs a token",
            hint="check the name; for a private repository set HF_TOKEN",
        )
    if status == 403:
        return NetworkError("http-forbidden", f"{detail}; the server refuses", hint="check the URL and your rights")
    if status in {404, 410}:
        what = {"RepoNotFound": "the repository", "RevisionNotFound": "the revision", "EntryNotFound": "the file"}
        return NetworkError(
            "http-missing",
            f"{detail}; {what.get(code, 'this')} does not exist",
            hint="check repository, revision and file name",
        )
    if status == 407:
        return NetworkError("network-proxy", f"{detail}; the proxy asks for a password", hint="put it into https_proxy")
    if status == 429:
        return TryAgain(
            NetworkError("http-busy", f"{detail}; too many requests", hint="wait, or set HF_TOKEN; then run it again"),
            wait=retry_after(response.headers.get("Retry-After"), now),
        )
    error = NetworkError("http-status", f"{detail}; expected the file", hint="try again later or from another source")
    if status in _PASSING_STATUS:
        return TryAgain(error, wait=retry_after(response.headers.get("Retry-After"), now))
    return error


def retry_after(text: str | None, now: datetime) -> float | None:
    """Seconds to wait by a Retry-After header, in either of its forms; None where it says nothing usable."""
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - now).total_seconds())


def _certificate_failure(error: ssl.SSLCertVerificationError, host: str, now: datetime) -> NetworkError:
    shown = f"{now:%Y-%m-%d %H:%M} UTC"
    if error.verify_code in {_CERTIFICATE_NOT_YET_VALID, _CERTIFICATE_HAS_EXPIRED}:
        state = "is not valid yet" if error.verify_code == _CERTIFICATE_NOT_YET_VALID else "has expired"
        if now < _PROGRAM_IS_FROM:
            verdict = "which is wrong: this program is younger"
        else:
            verdict = "if that is wrong, the certificate may be fine"
        return NetworkError(
            "network-clock",
            f"the certificate of {host} {state}. The clock of this board says {shown}, {verdict}",
            hint="set the clock: sudo timedatectl set-ntp true, or sudo date -u -s 'YYYY-MM-DD HH:MM'",
        )
    return NetworkError(
        "network-tls",
        f"{host} could not prove who it is: {error.verify_message}",
        hint="check the address; for a company's own authority: --cacert FILE, or SSL_CERT_FILE",
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and everything that it wraps."""
    todo: list[BaseException] = [error]
    seen: set[int] = set()
    while todo:
        current = todo.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        inner = [current.__cause__, current.__context__, getattr(current, "reason", None), *current.args]
        todo += [item for item in inner if isinstance(item, BaseException)]


def _words(causes: list[BaseException]) -> str:
    """The system's own words, from the innermost error that has some."""
    for cause in reversed(causes):
        if isinstance(cause, OSError) and cause.strerror:
            return shown_words(cause.strerror)
    for cause in reversed(causes):
        if not isinstance(cause, requests.exceptions.RequestException) and str(cause):
            return shown_words(str(cause))
    return type(causes[0]).__name__


def shown_words(text: str) -> str:
    """Words of a library or a server, on one line, without the user and password of a URL in them, shortened."""
    return printable(_CREDENTIALS.sub("//", text))[:_MAX_TEXT]
