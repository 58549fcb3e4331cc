"""Clocks locked to their maximum for a measurement, and given back however it ends.

A process of its own, the keeper, writes the values and holds what was there before. It ends when its input does, which
happens whatever becomes of the process that asked: a normal end, an error, a signal, also SIGKILL. Then it puts every
value back, the last one first. Where the keeper itself is killed, the process that asked does this.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from launcher.errors import DeviceError
from launcher.interrupts import held_back
from launcher.system import SystemView

CPU_POLICIES: Final = "/sys/devices/system/cpu/cpufreq"
DEVFREQ: Final = "/sys/class/devfreq"
_PERFORMANCE: Final = "performance"
_USERSPACE: Final = "userspace"
_SPEEDS: Final = {"scaling_": "scaling_setspeed", "": "userspace/set_freq"}
"""The clock that somebody has chosen under that governor, by the prefix of the other files' names."""
_HINT: Final = "Run it with sudo on the board itself, not in a container, or leave out --pin-clocks."


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A file of sysfs and the text that belongs there."""

    path: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwritten:
    """A value that could not be set or put back, and why."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """What is locked, and what could not be."""

    settings: tuple[Setting, ...]
    warnings: tuple[Unwritten, ...]


def is_pinnable_device(name: str) -> bool:
    """Whether a devfreq device is the NPU or the memory controller."""
    return "npu" in name.lower() or "dmc" in name.lower()


def plan(system: SystemView) -> tuple[Setting, ...]:
    """What locks CPU, NPU and DDR to their maximum, in the order of writing.

    The upper limit comes before the lower one, which must never exceed it; undone in reverse this holds as well.
    """
    found: list[Setting] = []
    for policy in system.names(CPU_POLICIES):
        folder = f"{CPU_POLICIES}/{policy}"
        most = system.number(f"{folder}/cpuinfo_max_freq")
        if policy.startswith("policy") and most is not None and most > 0:
            found += _settings(system, folder, most, "scaling_", "scaling_available_governors")
    for device in filter(is_pinnable_device, system.names(DEVFREQ)):
        folder = f"{DEVFREQ}/{device}"
        steps = (system.line(f"{folder}/available_frequencies") or "").split()
        numbers = [int(step) for step in steps if step.isascii() and step.isdigit()]
        most = max([*numbers, system.number(f"{folder}/max_freq") or 0])
        if most > 0:
            found += _settings(system, folder, most, "", "available_governors")
    return tuple(found)


def _settings(system: SystemView, folder: str, most: int, prefix: str, governors: str) -> list[Setting]:
    found = [Setting(path=f"{folder}/{prefix}max_freq", value=str(most))]
    if _PERFORMANCE in (system.line(f"{folder}/{governors}") or "").split():
        speed = f"{folder}/{_SPEEDS[prefix]}"
        if system.line(f"{folder}/{prefix}governor") == _USERSPACE and system.number(speed) is not None:
            # The kernel forgets it with the governor. Undone in reverse, it is written after that has come back.
            found.append(Setting(path=speed, value=str(most)))
        found.append(Setting(path=f"{folder}/{prefix}governor", value=_PERFORMANCE))
    found.append(Setting(path=f"{folder}/{prefix}min_freq", value=str(most)))
    return found


def write(system: SystemView, setting: Setting) -> str | None:
    """Writes a value and reads it again; the reason where it is not there afterwards, else None."""
    place = system.place(setting.path)
    if place is None:
        return "it is not there"
    try:
        handle = os.open(place, os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(handle, setting.value.encode() + b"\n")
        finally:
            os.close(handle)
    except OSError as error:
        return error.strerror or str(error)
    now = system.line(setting.path)
    return None if now == setting.value else f"it reads {now or 'nothing'} after {setting.value} was written"


@contextmanager
def pinned_clocks(root: Path = Path("/")) -> Iterator[tuple[Pinned, list[Unwritten]]]:
    """Within this context the clocks are locked as far as this process may.

    Yields:
        What is locked, and a list that gets, at the end, what could not be put back.

    Raises:
        DeviceError: this machine has no such clocks, or none may be changed; then nothing was changed.
    """
    settings = plan(SystemView(root=root))
    if not settings:
        raise DeviceError(
            "clocks-none",
            f"found no clocks under {CPU_POLICIES} and {DEVFREQ}, expected those of CPU, NPU or memory",
            hint=_HINT,
        )
    left: list[Unwritten] = []
    keeper = _Keeper(root)
    try:
        pinned = keeper.pin(settings)
        if not pinned.settings:
            raise DeviceError("clocks-refused", f"no clock may be changed: {pinned.warnings[0]}", hint=_HINT)
        yield pinned, left
    finally:
        with held_back():
            left += keeper.release()


class _Keeper:
    """The keeper's process, seen from the one that asked."""

    def __init__(self, root: Path) -> None:
        self._system = SystemView(root=root)
        self._before: list[Setting] = []
        # A session of its own: what ends a whole terminal must not end the keeper.
        with held_back():
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "release.bench.clock_keeper", str(root)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
            )

    def pin(self, settings: tuple[Setting, ...]) -> Pinned:
        """Asks for one value after the other."""
        done, warnings = [], []
        for setting in settings:
            before = self._system.line(setting.path)
            if before == setting.value:
                done.append(setting)
                continue
            if before is None:
                warnings.append(Unwritten(path=setting.path, reason="it cannot be read"))
                continue
            old = Setting(path=setting.path, value=before)
            self._before.append(old)
            reason = self._ask(setting, old)
            if reason is None:
                done.append(setting)
            else:
                warnings.append(Unwritten(path=setting.path, reason=reason))
        return Pinned(settings=tuple(done), warnings=tuple(warnings))

    def _ask(self, setting: Setting, old: Setting) -> str | None:
        try:
            self._input.write(json.dumps([setting.path, setting.value, old.value]) + "\n")
            self._input.flush()
        except BrokenPipeError:
            return "the keeper of the clocks has ended"
        answer = self._read()
        return "the keeper of the clocks has ended" if answer is None else answer[0]

    def release(self) -> list[Unwritten]:
        """Lets the keeper put everything back and waits for it; does it here where the keeper is gone."""
        with suppress(BrokenPipeError):
            self._input.close()
        final = None
        # An answer that an interrupted request did not wait for may lie before the final one.
        while (answer := self._read()) is not None:
            final = answer
        code = self._process.wait()
        self._output.close()
        if code == 0 and final is not None:
            return [Unwritten(path=path, reason=reason) for path, reason in final]
        return restore(self._system, self._before)

    def _read(self) -> Any:
        line = self._output.readline()
        try:
            return json.loads(line) if line.endswith("\n") else None
        except ValueError:
            return None

    @property
    def _input(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _output(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout


def restore(system: SystemView, before: list[Setting]) -> list[Unwritten]:
    """Puts values back, the last one first; what stays otherwise is returned."""
    left = []
    for setting in reversed(before):
        if system.line(setting.path) == setting.value:
            continue
        reason = write(system, setting)
        if reason is not None:
            left.append(Unwritten(path=setting.path, reason=reason))
    return left
