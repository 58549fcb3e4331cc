"""Which redirects are followed, and which proxy leads to a URL.

A redirect is followed at most five times; never from https to http; never from elsewhere into this machine or its
private network; at a mirror never back to the public Hub.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final
from urllib.parse import SplitResult, urljoin, urlsplit

from requests.utils import should_bypass_proxies

from launcher.download.http_errors import shown_words
from launcher.download.sources import PUBLIC_ENDPOINT, HubSource, has_plain_host, is_loopback, same_origin, shown_url
from launcher.errors import NetworkError

MAX_REDIRECTS: Final = 5
_ELSEWHERE: Final = "use another source"
_PUBLIC_HOSTS: Final = frozenset({"huggingface.co", "www.huggingface.co", "hf.co"})
_HUB_PATH: Final = re.compile(r"/(?:api/.+|[^/]+/[^/]+/resolve/.+)")
_INTERNAL: Final = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "::/127",
        "fc00::/7",
        "fe80::/10",
    )
)  # not 198.18.0.0/15, in which many local proxies answer for every public name


class RedirectPolicy:
    """Decides where a chain of redirects may go next."""

    def __init__(
        self,
        environ: Mapping[str, str],
        addresses: Callable[[str], Iterable[str]],
        *,
        hub: HubSource | None,
        plain_http: bool,
    ) -> None:
        """Args:
        environ: for the proxies.
        addresses: IP addresses of a host name; none where it has none.
        hub: the repository that is asked, None for other servers.
        plain_http: whether http to other machines is allowed.
        """
        self._environ = environ
        self._addresses = addresses
        self._hub = hub
        self._plain_http = plain_http

    def next(self, visited: list[str], location: str) -> str:
        """The URL to ask next.

        Args:
            visited: the URLs asked so far; the last one answered with the redirect.
            location: the Location header of its answer.

        Raises:
            NetworkError: it is not followed.
        """
        current = visited[-1]
        if not location:
            raise _refused(current, "a redirect without a target")
        if len(visited) > MAX_REDIRECTS:
            raise _refused(current, f"more than {MAX_REDIRECTS} redirects")
        try:
            target = self._kept_at_mirror(urlsplit(urljoin(current, location))._replace(fragment="").geturl())
            parts = urlsplit(target)
            _ = parts.port  # raises where it is none
        except ValueError as error:
            raise _refused(current, f"a redirect to no URL: {error}") from error
        self._require_protection(current, parts)
        if target in visited:
            raise _refused(current, f"a redirect in a circle, to {shown_url(target)}")
        if self._leads_inside(visited[0], target):
            raise _refused(
                current, f"a redirect to {shown_url(target)} in a private network", "name that address yourself"
            )
        return target

    def _require_protection(self, current: str, parts: SplitResult) -> None:
        shown = shown_url(parts.geturl())
        if parts.scheme not in {"http", "https"} or not parts.hostname or not has_plain_host(parts):
            raise _refused(current, f"a redirect to {shown}")
        if parts.scheme == "http" and urlsplit(current).scheme == "https":
            raise _refused(current, f"a redirect from https to {shown}")
        if parts.scheme == "http" and not self._plain_http and not is_loopback(parts.hostname):
            raise _refused(current, f"a redirect to {shown}, which is not protected", "use a source with https")

    def _kept_at_mirror(self, target: str) -> str:
        """The same path at the mirror where a mirror sends on to the public Hub, so that its bytes come from there."""
        if self._hub is None or same_origin(self._hub.endpoint, PUBLIC_ENDPOINT):
            return target
        parts = urlsplit(target)
        if (parts.hostname or "").lower() not in _PUBLIC_HOSTS:
            return target
        if _HUB_PATH.fullmatch(parts.path) is None:
            what = f"a redirect back to {shown_url(target)}"
            raise _refused(self._hub.endpoint, what, "use another mirror, or unset HF_ENDPOINT")
        return self._hub.endpoint + parts.path + (f"?{parts.query}" if parts.query else "")

    def _leads_inside(self, first: str, target: str) -> bool:
        if same_origin(first, target):
            return False
        return not self._is_internal(first) and self._is_internal(target)

    def _is_internal(self, url: str) -> bool:
        host = urlsplit(url).hostname or ""
        if is_loopback(host):
            return True
        try:
            found = [str(ipaddress.ip_address(host))]
        except ValueError:
            # Behind a proxy the proxy looks names up, and asking here could hang or mislead.
            found = [] if proxy_for(url, self._environ) else list(self._addresses(host))
        return any(_is_internal_address(text) for text in found)


def proxy_for(url: str, environ: Mapping[str, str]) -> str | None:
    """The proxy that the usual variables name for a URL; None for a direct connection, as always to this machine."""
    parts = urlsplit(url)
    if is_loopback(parts.hostname or ""):
        return None
    excluded = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    if excluded and should_bypass_proxies(url, no_proxy=excluded):
        return None
    for name in (f"{parts.scheme}_proxy", "all_proxy"):
        value = environ.get(name) or environ.get(name.upper())
        if value:
            return value
    return None


def _is_internal_address(text: str) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address.version == network.version and address in network for network in _INTERNAL)


def _refused(url: str, what: str, hint: str = _ELSEWHERE) -> NetworkError:
    return NetworkError(
        "network-redirect", f"{shown_url(url)} answers with {shown_words(what)}, which is not followed", hint=hint
    )
