"""What a measurement needs to know of the machine: what it is, how warm and how fast it runs, what a process takes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Final, Self

from launcher.checks.board import read_board
from launcher.progress import Progress
from launcher.system import SystemView
from release.bench.clocks import CPU_POLICIES, DEVFREQ, is_pinnable_device
from release.bench.server import child_environment

_STEP: Final = 1 << 22
_RESET_PEAK: Final = b"5"  # proc(5), /proc/PID/clear_refs
_VERSION_SECONDS: Final = 60
_THERMAL: Final = "/sys/class/thermal"


def describe_machine(system: SystemView) -> dict[str, Any]:
    """Board, processor, kernel, memory and clocks, as far as the machine tells."""
    board = read_board(system, None)
    return {
        "board": board.model,
        "soc": board.soc,
        "container": board.container,
        "device_tree": list(board.compatible),
        "cpu": _cpu_names(system),
        "cpu_count": os.cpu_count(),
        "kernel": " ".join(
            (system.line("/proc/sys/kernel/osrelease") or "?", system.line("/proc/sys/kernel/version") or "")
        ),
        "machine": system.host.machine,
        "memory": {name: _meminfo(system, name) for name in ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")},
        "cpu_policies": {
            policy: {
                "cpus": system.line(f"{CPU_POLICIES}/{policy}/related_cpus"),
                "governor": system.line(f"{CPU_POLICIES}/{policy}/scaling_governor"),
                "min_khz": system.number(f"{CPU_POLICIES}/{policy}/scaling_min_freq"),
                "max_khz": system.number(f"{CPU_POLICIES}/{policy}/scaling_max_freq"),
                "highest_khz": system.number(f"{CPU_POLICIES}/{policy}/cpuinfo_max_freq"),
            }
            for policy in system.names(CPU_POLICIES)
        },
        "devices": {
            device: {
                "governor": system.line(f"{DEVFREQ}/{device}/governor"),
                "min_hz": system.number(f"{DEVFREQ}/{device}/min_freq"),
                "max_hz": system.number(f"{DEVFREQ}/{device}/max_freq"),
            }
            for device in filter(is_pinnable_device, system.names(DEVFREQ))
        },
    }


def load(system: SystemView) -> str | None:
    """The line of /proc/loadavg."""
    return system.line("/proc/loadavg")


def program_version(command: Sequence[str]) -> Mapping[str, Any] | None:
    """What `--version --json` of the program says; None where it does not say."""
    with (
        TemporaryDirectory(prefix="mindnano-bench-") as folder,
        suppress(OSError, ValueError, subprocess.SubprocessError),
    ):
        done = subprocess.run(
            [*command, "--version", "--json"],
            env=child_environment(Path(folder)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_VERSION_SECONDS,
            check=True,
        )
        document = json.loads(done.stdout)
        return document if isinstance(document, dict) else None
    return None


def file_digest(path: Path) -> str:
    """SHA-256 of a file, with progress."""
    digest = hashlib.sha256()
    with path.open("rb") as file, Progress(f"Hashing {path.name}", path.stat().st_size) as progress:
        while data := file.read(_STEP):
            digest.update(data)
            progress.advance(len(data))
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """Resident bytes of a process: the most so far, and what of the present is files or its own."""

    peak: int
    anonymous: int
    files: int


def reset_peak(process_id: int) -> bool:
    """Makes the present size the peak; whether that was permitted."""
    try:
        Path(f"/proc/{process_id}/clear_refs").write_bytes(_RESET_PEAK)
    except OSError:
        return False
    return True


def resident(process_id: int) -> Resident | None:
    """From /proc/PID/status; None where the process is gone."""
    found = {}
    with suppress(OSError):
        for line in Path(f"/proc/{process_id}/status").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if value.endswith(" kB"):
                found[name] = int(value.split()[0]) * 1024
    if "VmHWM" not in found:
        return None
    return Resident(peak=found["VmHWM"], anonymous=found.get("RssAnon", 0), files=found.get("RssFile", 0))


class Sampler:
    """A thread that reads temperatures and clocks once a second; as a context it runs from start to end."""

    def __init__(self, system: SystemView, *, interval: float = 1.0) -> None:
        self._system = system
        self._interval = interval
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, float]] = {}
        self._thread = threading.Thread(target=self._run, name="bench-sampler", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def take(self) -> dict[str, tuple[float, float]]:
        """Least and most of each quantity since the last call, and a reading of now. Names end in their unit."""
        self._read()
        with self._lock:
            seen, self._seen = self._seen, {}
        return dict(sorted(seen.items()))

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self._read()

    def _read(self) -> None:
        now = read_sensors(self._system)
        with self._lock:
            for name, value in now.items():
                least, most = self._seen.get(name, (value, value))
                self._seen[name] = (min(least, value), max(most, value))


def read_sensors(system: SystemView) -> dict[str, float]:
    """Temperatures in degrees, clocks in MHz, the load of one minute."""
    found: dict[str, float] = {}
    for zone in system.names(_THERMAL):
        degrees = system.number(f"{_THERMAL}/{zone}/temp") if zone.startswith("thermal_zone") else None
        if degrees is not None:
            found[f"{system.line(f'{_THERMAL}/{zone}/type') or zone}_celsius"] = degrees / 1000
    for policy in system.names(CPU_POLICIES):
        clock = system.number(f"{CPU_POLICIES}/{policy}/scaling_cur_freq")
        if clock is not None:
            found[f"{policy}_mhz"] = clock / 1000
    for device in filter(is_pinnable_device, system.names(DEVFREQ)):
        clock = system.number(f"{DEVFREQ}/{device}/cur_freq")
        if clock is not None:
            found[f"{device}_mhz"] = clock / 1_000_000
    words = (load(system) or "").split()
    with suppress(ValueError, IndexError):
        found["load_1min"] = float(words[0])
    return found


def now() -> str:
    """UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _cpu_names(system: SystemView) -> list[str]:
    """Each kind of core once: its name, or on arm64 implementer and part."""
    kinds: dict[str, None] = {}
    implementer = ""
    for line in (system.read("/proc/cpuinfo") or "").splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        if name == "model name":
            kinds[value] = None
        elif name == "CPU implementer":
            implementer = value
        elif name == "CPU part":
            kinds[f"implementer {implementer} part {value}"] = None
    return list(kinds)


def _meminfo(system: SystemView, name: str) -> int | None:
    for line in (system.read("/proc/meminfo") or "").splitlines():
        key, _, value = line.partition(":")
        words = value.split()
        if key == name and words and words[0].isdigit():
            return int(words[0]) * 1024
    return None
