"""Takes out of a text what says who and where: names of users and hosts, addresses, serial numbers, home folders."""

from __future__ import annotations

import ipaddress
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from launcher.system import SystemView

_MAC = re.compile(r"(?<![0-9A-Fa-f:.-])(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}(?![0-9A-Fa-f:-])")
_IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d)")
_IPV6 = re.compile(
    r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,8}(?:(?:\d{1,3}\.){3}\d{1,3})?(?:%\w+)?(?![\w:])"
)
_UUID = re.compile(r"\b[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}\b")
_HOME = re.compile(r"/(?:home|Users|var/home)/[^/\s'\":;,()]+|/root(?=/|\b)")
_TREES = ("/proc/device-tree", "/sys/firmware/devicetree/base")
_SERIALS = (
    "/etc/machine-id",
    "/proc/sys/kernel/random/boot_id",
    "/sys/class/dmi/id/product_serial",
    "/sys/class/dmi/id/product_uuid",
    "/sys/class/dmi/id/board_serial",
    "/sys/class/dmi/id/chassis_serial",
)
# Names that everybody has say nothing about anybody, and stand in half of all texts.
_COMMON_USERS = frozenset({"root", "nobody"})
_COMMON_HOSTS = frozenset({"localhost", "(none)"})
_SHORTEST_SERIAL = 6
_SHORTEST_NAME = 3
_PEOPLE = range(1000, 65534)  # below are the system's own accounts, 65534 is nobody
_MAX_DIGITS = 10
_USER = "<user>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrubber:
    """Replaces what it knows and what looks like it.

    `words` are (secret, what stands instead), the longest first. Users' names count as they are written, everything
    else in upper and lower case: the board of a user called ``pi`` is still a Raspberry Pi.
    """

    words: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, environ: Mapping[str, str], system: SystemView) -> Scrubber:
        """Learns the names and numbers of this user and machine."""
        found: dict[str, str] = {}
        found |= dict.fromkeys(_serials(system), "<serial>")
        found |= dict.fromkeys(_hosts(environ, system), "<host>")
        found |= dict.fromkeys(_users(environ, system), _USER)
        home = environ.get("HOME", "")
        if len(home) > 1:
            found[home.rstrip("/")] = "<home>"
        return cls(words=tuple(sorted(found.items(), key=lambda item: -len(item[0]))))

    def __call__(self, text: str) -> str:
        """The text without them."""
        for secret, instead in self.words:
            # As a whole word: a user called "pi" must not cut a hole into "pipe".
            flags = 0 if instead == _USER else re.IGNORECASE
            text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(secret)}(?![A-Za-z0-9])", instead, text, flags=flags)
        text = _HOME.sub("<home>", text)
        text = _UUID.sub("<serial>", text)
        text = _MAC.sub("<address>", text)
        text = _IPV4.sub(lambda found: _address(found[0]), text)
        return _IPV6.sub(lambda found: _address(found[0]), text)


def _address(text: str) -> str:
    """What stands for something that looks like an address: itself where it is none, such as a time or a version."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return text
    return "<address>"


def _users(environ: Mapping[str, str], system: SystemView) -> Iterable[str]:
    named = {environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER", "USERNAME")}
    named.add(posixpath.basename(environ.get("HOME", "").rstrip("/")))
    identity = next(
        (line.split()[1:] for line in (system.read("/proc/self/status") or "").splitlines() if line.startswith("Uid:")),
        [],
    )
    for line in (system.read("/etc/passwd") or "").splitlines():
        fields = line.split(":")
        if len(fields) > 5 and (fields[0] in named or fields[2] in identity or _is_person(fields[2])):
            full_name = fields[4].split(",")[0]
            named |= {fields[0], full_name, *(part for part in full_name.split() if len(part) >= _SHORTEST_NAME)}
    return named - _COMMON_USERS - {""}


def _is_person(number: str) -> bool:
    """Whether a user number is one that people get."""
    return number.isascii() and number.isdigit() and len(number) < _MAX_DIGITS and int(number) in _PEOPLE


def _hosts(environ: Mapping[str, str], system: SystemView) -> Iterable[str]:
    named = {environ.get("HOSTNAME", ""), environ.get("HOST", "")}
    named |= {system.line(path) or "" for path in ("/proc/sys/kernel/hostname", "/etc/hostname")}
    named.add(system.line("/proc/sys/kernel/domainname") or "")
    named |= {name.partition(".")[0] for name in named}
    return named - _COMMON_HOSTS - {""}


def _serials(system: SystemView) -> Iterable[str]:
    places = [*_SERIALS, *(f"{tree}/serial-number" for tree in _TREES)]
    places += [f"/sys/class/net/{name}/address" for name in system.names("/sys/class/net") if name != "lo"]
    for disk in system.names("/sys/block"):
        places += [f"/sys/block/{disk}/device/{name}" for name in ("serial", "cid", "wwid")]
    found = {system.line(path) or "" for path in places}
    for line in (system.read("/proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "Serial":
            found.add(value.strip())
    return {serial for serial in found if len(serial) >= _SHORTEST_SERIAL and set(serial) - set("0:-")}
