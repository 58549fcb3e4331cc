"""Memory of the machine within the limits of this process's control groups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from launcher.system import SystemView

_UNLIMITED = 1 << 60  # cgroup v1 writes a huge number where there is no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes. `available` is what can be taken now: MemAvailable or what the cgroup leaves, whichever is less.

    `cgroup_limit` is the lowest limit up the chain of groups, `cgroup` the folder that sets it.
    """

    total: int
    available: int
    cgroup_limit: int | None
    cgroup: str | None = None


def read_meminfo(system: SystemView) -> dict[str, int]:
    """The lines of /proc/meminfo in bytes, by name; counters without a unit are left out."""
    facts = {}
    for line in (system.read("/proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if len(words) == 2 and _is_number(words[0]) and words[1] == "kB":
            facts[name] = int(words[0]) * 1024
    return facts


def read_memory(system: SystemView) -> Memory | None:
    """Memory of the machine within this process's cgroup limits; None where /proc/meminfo says nothing."""
    facts = read_meminfo(system)
    if "MemTotal" not in facts:
        return None
    available = facts.get("MemAvailable", facts.get("MemFree", 0))
    limits = _cgroup_limits(system)
    for limit, used, _ in limits:
        available = min(available, max(0, limit - used))
    lowest = min(limits, default=None)
    return Memory(
        total=facts["MemTotal"],
        available=available,
        cgroup_limit=None if lowest is None else lowest[0],
        cgroup=None if lowest is None else lowest[2],
    )


def _cgroup_limits(system: SystemView) -> list[tuple[int, int, str]]:
    """(limit, used without reclaimable page cache, folder) of every group from this process's own up to the root."""
    found = []
    for line in (system.read("/proc/self/cgroup") or "").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            found += _limits_above(system, "/sys/fs/cgroup", path, "memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            found += _limits_above(
                system,
                "/sys/fs/cgroup/memory",
                path,
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_",
            )
    return found


def _limits_above(
    system: SystemView, mount: str, path: str, limit: str, usage: str, prefix: str
) -> list[tuple[int, int, str]]:
    group = PurePosixPath("/") / path.lstrip("/")
    # Weights that were used several times are active file cache, and can be taken back like any other.
    cache = {f"{prefix}inactive_file", f"{prefix}active_file"}
    found = []
    # In a container the path may be that of the host; the groups that do not exist here are passed over.
    for place in (group, *group.parents):
        folder = f"{mount}{'' if str(place) == '/' else place}"
        most = system.number(f"{folder}/{limit}")
        used = system.number(f"{folder}/{usage}")
        if most is None or used is None or most >= _UNLIMITED:
            continue
        reclaimable = 0
        for line in (system.read(f"{folder}/memory.stat") or "").splitlines():
            words = line.split()
            if len(words) == 2 and words[0] in cache and _is_number(words[1]):
                reclaimable += int(words[1])
        found.append((most, max(0, used - reclaimable), folder))
    return found


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 20
