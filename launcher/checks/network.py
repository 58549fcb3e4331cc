"""The port that a server would take: free or not, and who could reach it."""

from __future__ import annotations

import errno
import ipaddress

from launcher.checks.report import Finding, Group, Status
from launcher.host import errno_name
from launcher.system import SystemView

_SLUGS = {
    errno.EADDRINUSE: "network-port-taken",
    errno.EACCES: "network-port-privileged",
    errno.EADDRNOTAVAIL: "network-address-foreign",
}


def network_findings(system: SystemView, host: str, port: int) -> tuple[Finding, ...]:
    """Whether the port is free, and whether the address is this machine's own or the network's; nothing for `unix:`."""
    if host.startswith("unix:"):  # neither a port nor an address
        return ()
    facts = {"address": show_address(host, port), "port": port}
    trouble = _trouble(system, host, port)
    if trouble is None:
        found = [_line(Status.OK, "network-port-free", **facts)]
    else:
        slug, name = trouble
        found = [_line(Status.WARN, slug, **facts, error=name)]
    # An address that is not this machine's own is one that nobody reaches this machine by.
    has_address = trouble is None or trouble[0] not in {"network-port-unusable", "network-address-foreign"}
    if has_address and not is_loopback(host):
        found.append(_line(Status.WARN, "network-lan", **facts))
    return tuple(found)


def _line(status: Status, slug: str, **facts: object) -> Finding:
    return Finding(
        group=Group.NETWORK, status=status, slug=slug, facts=facts, private=frozenset({"address"}), blocking=False
    )


def _trouble(system: SystemView, host: str, port: int) -> tuple[str, str] | None:
    """Slug and name of what keeps the port from being taken; None where it is free."""
    try:
        system.host.listen(host.strip("[]"), port)
    except OSError as error:  # a name that does not resolve is one too
        return _SLUGS.get(error.errno or 0, "network-port-unusable"), errno_name(error)
    except (UnicodeError, OverflowError):  # a host name that cannot be one
        return "network-port-unusable", "EINVAL"
    return None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address. Other names than localhost may lead anywhere."""
    if host.lower() in {"localhost", "localhost."}:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def show_address(host: str, port: int) -> str:
    """``127.0.0.1:9092``; IPv6 addresses in brackets."""
    plain = host.strip("[]")
    return f"[{plain}]:{port}" if ":" in plain else f"{plain}:{port}"
