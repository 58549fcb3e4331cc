"""What a process holds of a file that it has mapped."""

from __future__ import annotations

import re
from pathlib import Path

_HEAD = re.compile(r"[0-9a-f]+-[0-9a-f]+ ")


def mapped_bytes(pid: int, file: Path, field: str = "Rss") -> int:
    """The sum of a field (Rss, Pss, Locked ...) over this process's mappings of the file, in bytes."""
    inside, total = False, 0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if _HEAD.match(line):
            inside = line.endswith(str(file.resolve()))
        elif inside and line.startswith(f"{field}:"):
            total += int(line.split()[1]) << 10
    return total


def resident_bytes(pid: int, field: str = "VmRSS") -> int:
    """A field of /proc/PID/status in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"no {field} for {pid}")
