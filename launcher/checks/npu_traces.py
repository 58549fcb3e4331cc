"""Traces of the NPU outside its driver: other processes that hold it, and what the kernel's log says about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from launcher.checks.report import Finding, Group, ok, skip, warn
from launcher.system import SystemView

_LOG: Final = "/dev/kmsg"
_LOG_BYTES: Final = 4 << 20
_WORDS: Final = ("rknpu", "rocket", ".npu")
# Lines that look bad and are printed on boards where all is well.
_HARMLESS: Final = ("can't request region for resource", "failed to find power_model node")
_TROUBLE: Final = ("fail", "error", "timeout", "timed out", "soft reset", "fault", "unknown symbol", "disagrees")
_MAX_SHOWN: Final = 8


def holder_findings(system: SystemView, nodes: tuple[str, ...]) -> tuple[Finding, ...]:
    """Other processes that have a node open. Without root only those of this user can be seen."""
    if not nodes:
        return ()
    own = _own_number(system)
    holders = []
    for name in system.names("/proc"):
        if not name.isascii() or not name.isdigit() or name == own:
            continue
        links = (system.link(f"/proc/{name}/fd/{fd}") for fd in system.names(f"/proc/{name}/fd"))
        if any(link in nodes for link in links):
            holders.append(f"{name} ({system.line(f'/proc/{name}/comm') or '?'})")
    if not holders:
        return ()
    found = warn(Group.NPU, "npu-held", holders=", ".join(holders[:_MAX_SHOWN]), count=len(holders))
    return (replace(found, private=frozenset({"holders"})),)


def log_findings(system: SystemView, *, wanted: bool) -> tuple[Finding, ...]:
    """The kernel's last word about the NPU where it tells of trouble; any last word where it is `wanted`."""
    data = system.read_bytes(_LOG, _LOG_BYTES)
    if data is None:
        return (skip(Group.NPU, "npu-log-unread"),) if wanted else ()
    last = next((line for line in reversed(kernel_lines(data)) if _concerns(line)), None)
    if last is None:
        return ()
    if any(word in last.lower() for word in _TROUBLE):
        return (warn(Group.NPU, "npu-log-trouble", line=last),)
    return (ok(Group.NPU, "npu-log", line=last),) if wanted else ()


def kernel_lines(data: bytes) -> list[str]:
    """Texts of the records of /dev/kmsg: ``priority,number,time,flags;text``, then lines that begin with a space."""
    found = []
    for record in data.decode(errors="replace").split("\n"):
        _, semicolon, text = record.partition(";")
        if semicolon and not record.startswith(" "):
            found.append("".join(letter if letter.isprintable() else "�" for letter in text))
    return found


def _concerns(line: str) -> bool:
    lower = line.lower()
    return any(word in lower for word in _WORDS) and not any(word in lower for word in _HARMLESS)


def _own_number(system: SystemView) -> str:
    for line in (system.read("/proc/self/status") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "Pid":
            return value.strip()
    return ""
