"""The one reader of /proc, /sys and /dev. Tests give it a folder that looks like a machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_UNLIMITED = 1 << 60  # cgroup v1 writes a huge number where there is no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes. `available` is what can be taken now: MemAvailable or what the cgroup leaves, whichever is less."""

    total: int
    available: int
    cgroup_limit: int | None


class SystemView:
    """A machine as its virtual file systems describe it. Nothing is written and no device is opened."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def read(self, path: str) -> str | None:
        """Text of a file, given by its absolute path, or None where it cannot be read."""
        try:
            return (self._root / path.lstrip("/")).read_bytes().decode(errors="replace")
        except OSError:
            return None

    def names(self, path: str) -> tuple[str, ...]:
        """Sorted names in a folder; none where it cannot be read."""
        try:
            return tuple(sorted(entry.name for entry in (self._root / path.lstrip("/")).iterdir()))
        except OSError:
            return ()

    def board(self) -> str | None:
        """The board's name from the device tree, or the machine's from DMI."""
        for path in ("/proc/device-tree/model", "/sys/class/dmi/id/product_name"):
            text = (self.read(path) or "").strip("\0 \n")
            if text:
                return text
        return None

    def compatible(self) -> tuple[str, ...]:
        """The device tree's compatible strings, such as ``rockchip,rk3588``."""
        text = self.read("/proc/device-tree/compatible") or ""
        return tuple(part for part in text.split("\0") if part)

    def cpu_features(self) -> frozenset[str]:
        """Instruction set flags of the first processor that lists any."""
        for line in (self.read("/proc/cpuinfo") or "").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in {"flags", "Features"}:
                return frozenset(value.split())
        return frozenset()

    def npu(self) -> str | None:
        """Where a Rockchip NPU shows itself, or None."""
        for name in self.names("/sys/class/devfreq"):
            if name.endswith(".npu"):
                return f"/sys/class/devfreq/{name}"
        for folder in ("/sys/bus/platform/drivers/RKNPU", "/sys/module/rknpu"):
            if self.names(folder):
                return folder
        return None

    def memory(self) -> Memory | None:
        """Memory of the machine within this process's cgroup limits; None where /proc/meminfo says nothing."""
        facts = {}
        for line in (self.read("/proc/meminfo") or "").splitlines():
            name, _, value = line.partition(":")
            words = value.split()
            if words and words[0].isdigit():
                facts[name] = int(words[0]) * 1024
        if "MemTotal" not in facts:
            return None
        available = facts.get("MemAvailable", facts.get("MemFree", 0))
        limits = self._cgroup_limits()
        for limit, used in limits:
            available = min(available, max(0, limit - used))
        return Memory(
            total=facts["MemTotal"],
            available=available,
            cgroup_limit=min((limit for limit, _ in limits), default=None),
        )

    def _cgroup_limits(self) -> list[tuple[int, int]]:
        """(limit, used without reclaimable page cache) of every group from this process's own up to the root."""
        found = []
        for line in (self.read("/proc/self/cgroup") or "").splitlines():
            hierarchy, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if hierarchy == "0" and not controllers:
                found += self._limits_above("/sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                found += self._limits_above(
                    "/sys/fs/cgroup/memory",
                    path,
                    "memory.limit_in_bytes",
                    "memory.usage_in_bytes",
                    "total_inactive_file",
                )
        return found

    def _limits_above(self, mount: str, path: str, limit: str, usage: str, cache: str) -> list[tuple[int, int]]:
        group = PurePosixPath("/") / path.lstrip("/")
        found = []
        # In a container the path may be that of the host; the groups that do not exist here are passed over.
        for place in (group, *group.parents):
            folder = f"{mount}{'' if str(place) == '/' else place}"
            most = _number(self.read(f"{folder}/{limit}"))
            used = _number(self.read(f"{folder}/{usage}"))
            if most is None or used is None or most >= _UNLIMITED:
                continue
            reclaimable = 0
            for line in (self.read(f"{folder}/memory.stat") or "").splitlines():
                words = line.split()
                if len(words) == 2 and words[0] == cache:
                    reclaimable = _number(words[1]) or 0
            found.append((most, max(0, used - reclaimable)))
        return found


def _number(text: str | None) -> int | None:
    stripped = (text or "").strip()
    return int(stripped) if stripped.isdigit() else None
