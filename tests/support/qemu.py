"""Runs static aarch64 programs on any machine: directly where it is one, else under emulation."""

from __future__ import annotations

import platform
from pathlib import Path

from bundle.emulator import CPU, EmulatorMissing, emulator
from tests.support.availability import unavailable


def aarch64_command(program: Path, *, cpu: str = CPU) -> list[str]:
    """The command that runs a static aarch64 program as on a Cortex-A76; skips or fails the test where nothing can."""
    if platform.machine() == "aarch64":
        return [str(program)]
    try:
        return [str(emulator()), "-cpu", cpu, str(program)]
    except EmulatorMissing as error:
        unavailable(f"no emulator for aarch64: {error}")
