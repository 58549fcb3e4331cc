"""Limits of this process that stop a large model: open files, address space, locked memory, core dumps."""

from __future__ import annotations

import re
from dataclasses import dataclass

from launcher.checks.report import Finding, Group, fail, ok, skip, warn
from launcher.progress import format_bytes
from launcher.system import SystemView

# Two per NPU context and one per buffer (librknnrt 1.5.2 crashes instead of failing when they run out), for three
# cores with their shapes and shared buffers, and what the program has open itself.
NEEDED_FILES = 512
_COLUMNS = re.compile(r"(Max [a-z ]+?)\s{2,}(\S+)\s+(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Soft and hard value; None means unlimited."""

    soft: int | None
    hard: int | None


def read_limits(system: SystemView) -> dict[str, Limit]:
    """The lines of /proc/self/limits by their name, e.g. ``open files``."""
    found = {}
    for line in (system.read("/proc/self/limits") or "").splitlines():
        match = _COLUMNS.match(line)
        if match is None:
            continue
        values = [_value(match[2]), _value(match[3])]
        if all(valid for _, valid in values):
            found[match[1].removeprefix("Max ")] = Limit(soft=values[0][0], hard=values[1][0])
    return found


def limits_findings(system: SystemView, needed_bytes: int | None) -> tuple[Finding, ...]:
    """A line per limit. `needed_bytes` is what the package needs, None where that is unknown."""
    limits = read_limits(system)
    if not limits:
        return (skip(Group.LIMITS, "limits-unknown"),)
    found = [_files(limits.get("open files"))]
    found += _address_space(limits.get("address space"), needed_bytes)
    locked = limits.get("locked memory")
    if locked is not None:
        found.append(ok(Group.LIMITS, "limits-memlock", soft=_size(locked.soft), hard=_size(locked.hard)))
    core = limits.get("core file size")
    if core is not None and core.soft != 0:
        # A dump of a process that maps the model can be as large as the model.
        found.append(warn(Group.LIMITS, "limits-core", soft=_size(core.soft)))
    return tuple(found)


def _files(limit: Limit | None) -> Finding:
    if limit is None:
        return skip(Group.LIMITS, "limits-unknown")
    facts = {"soft": _count(limit.soft), "hard": _count(limit.hard), "need": NEEDED_FILES}
    if _reaches(limit.soft, NEEDED_FILES):
        return ok(Group.LIMITS, "limits-files", **facts)
    if _reaches(limit.hard, NEEDED_FILES):
        return ok(Group.LIMITS, "limits-files-raised", **facts)
    return warn(Group.LIMITS, "limits-files-few", **facts)


def _address_space(limit: Limit | None, needed_bytes: int | None) -> list[Finding]:
    if limit is None or limit.soft is None:
        return []
    if needed_bytes is None:
        return [warn(Group.LIMITS, "limits-address-space", soft=_size(limit.soft))]
    facts = {"soft": _size(limit.soft), "need": _size(needed_bytes)}
    if limit.soft < needed_bytes:
        return [fail(Group.LIMITS, "limits-address-space-small", **facts)]
    return [ok(Group.LIMITS, "limits-address-space-enough", **facts)]


def _reaches(limit: int | None, need: int) -> bool:
    return limit is None or limit >= need


def _value(word: str) -> tuple[int | None, bool]:
    if word == "unlimited":
        return None, True
    return (int(word), True) if word.isascii() and word.isdigit() and len(word) <= 20 else (None, False)


def _count(value: int | None) -> str:
    return "unlimited" if value is None else str(value)


def _size(value: int | None) -> str:
    return "unlimited" if value is None else format_bytes(value)
