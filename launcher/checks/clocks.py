"""Clocks of the memory and the NPU, and temperatures. Commands that would change them are shown, never run."""

from __future__ import annotations

import re
from typing import Final

from launcher.checks.report import Finding, Group, ok, skip, warn
from launcher.system import SystemView

_DEVFREQ: Final = "/sys/class/devfreq"
_MEMORY: Final = "dmc"
_MEGA: Final = 1_000_000
_ZONE: Final = re.compile(r"thermal_zone[0-9]+")
# Below this share of the highest clock it is worth a warning.
_NEARLY: Final = 0.9
_MAX_TRIPS: Final = 16


def memory_clock_findings(system: SystemView, *, expected: bool) -> tuple[Finding, ...]:
    """The DDR clock, which decides how fast tokens come. `expected`: a board whose kernel should show it."""
    folder = f"{_DEVFREQ}/{_MEMORY}"
    current = system.number(f"{folder}/cur_freq")
    if current is None or current <= 0:
        return (skip(Group.BOARD, "board-ddr-fixed"),) if expected else ()
    most = max(_highest(system, folder), current)
    governor = system.line(f"{folder}/governor") or "?"
    facts = {"mhz": current // _MEGA, "max_mhz": most // _MEGA, "governor": governor, "folder": folder}
    if current < most * _NEARLY:
        return (warn(Group.BOARD, "board-ddr-slow", **facts, percent=100 * current // most),)
    return (ok(Group.BOARD, "board-ddr", **facts),)


def npu_clock_findings(system: SystemView, asked: int | None) -> tuple[Finding, ...]:
    """The NPU's clock. `asked`: what the driver answers, in Hz, for kernels without devfreq."""
    name = next((name for name in system.names(_DEVFREQ) if name.endswith("npu")), None)
    if name is None:
        if asked is None or asked <= 0:
            return (skip(Group.NPU, "npu-clock-unknown"),)
        return (warn(Group.NPU, "npu-clock-fixed", mhz=asked // _MEGA),)
    folder = f"{_DEVFREQ}/{name}"
    current = system.number(f"{folder}/cur_freq") or 0
    allowed = system.number(f"{folder}/max_freq") or 0
    most = max(_highest(system, folder), current)
    governor = system.line(f"{folder}/governor") or "?"
    facts = {"mhz": current // _MEGA, "max_mhz": most // _MEGA, "governor": governor, "folder": folder}
    # An idle NPU under an on-demand governor is slow and right to be; one that may not rise is not.
    held = governor in {"powersave", "userspace"} and current < most * _NEARLY
    if held or 0 < allowed < most * _NEARLY:
        return (warn(Group.NPU, "npu-clock-slow", **facts, allowed_mhz=allowed // _MEGA),)
    return (ok(Group.NPU, "npu-clock", **facts),)


def heat_findings(system: SystemView) -> tuple[Finding, ...]:
    """The zones that are above their passive trip point, where the kernel slows things down."""
    found = []
    for zone in system.names("/sys/class/thermal"):
        folder = f"/sys/class/thermal/{zone}"
        temperature = system.number(f"{folder}/temp")
        if not _ZONE.fullmatch(zone) or temperature is None:
            continue
        trips = [
            system.number(f"{folder}/trip_point_{number}_temp") or 0
            for number in range(_MAX_TRIPS)
            if system.line(f"{folder}/trip_point_{number}_type") == "passive"
        ]
        limit = min((trip for trip in trips if trip > 0), default=None)
        if limit is not None and temperature >= limit:
            kind = system.line(f"{folder}/type") or zone
            found.append(warn(Group.BOARD, "board-hot", zone=kind, degrees=temperature // 1000, limit=limit // 1000))
    return tuple(found)


def _highest(system: SystemView, folder: str) -> int:
    steps = [int(word) for word in (system.line(f"{folder}/available_frequencies") or "").split() if _is_number(word)]
    return max([*steps, system.number(f"{folder}/max_freq") or 0])


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) < 20
