"""Seconds, bytes and memory of long work, stage by stage."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A finished part of the work: its name, seconds of wall clock, and the bytes that it went through."""

    name: str
    seconds: float
    bytes: int

    @property
    def rate(self) -> float:
        """10^9 bytes per second."""
        return self.bytes / self.seconds / 1e9 if self.seconds > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"name": self.name, "seconds": self.seconds, "bytes": self.bytes, "gigabytes_per_second": self.rate}


class Stages:
    """Measures stages as they run."""

    def __init__(self) -> None:
        self._stages: list[Stage] = []

    @contextmanager
    def measure(self, name: str, amount: int) -> Iterator[None]:
        """The block is one stage, which goes through `amount` bytes; it counts only if it ends without an error."""
        start = time.monotonic()
        yield
        self._stages.append(Stage(name=name, seconds=time.monotonic() - start, bytes=amount))

    def finish(self) -> tuple[Stage, ...]:
        """The stages in order of time."""
        return tuple(self._stages)


def peak_memory() -> int:
    """Largest resident memory that this process has had so far, bytes."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def stage_table(stages: tuple[Stage, ...], peak: int) -> list[str]:
    """Lines of a table, with the sum and the memory below."""
    lines = [f"{'stage':<24}{'seconds':>10}{'GB':>10}{'GB/s':>10}"]
    for stage in stages:
        lines.append(f"{stage.name:<24}{stage.seconds:>10.1f}{stage.bytes / 1e9:>10.2f}{stage.rate:>10.2f}")
    lines.append(f"{'all':<24}{sum(stage.seconds for stage in stages):>10.1f}")
    lines.append(f"peak memory {peak / 2**30:.2f} GiB")
    return lines
