"""Clocks on a fake sysfs, and a process that locks them and is hit by a signal at a chosen line.

    python -m tests.support.pinning ROOT SIGNAL LINE

LINE counts the lines of `release/bench/clocks.py` that run; past the last one no signal comes. Prints how many ran.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from launcher.interrupts import end_in_good_order
from release.bench import clocks

POLICIES = "sys/devices/system/cpu/cpufreq"
DEVFREQ = "sys/class/devfreq"
NPU = "fdab0000.npu"


def make_clocks(root: Path) -> Path:
    """Two frequency policies, an NPU, a memory controller and a GPU, as an RK3588's kernel shows them."""
    for name, most in (("policy0", 1_800_000), ("policy4", 2_400_000)):
        _fill(
            root / POLICIES / name,
            cpuinfo_max_freq=most,
            scaling_max_freq=most - 600_000,
            scaling_min_freq=408_000,
            scaling_governor="ondemand",
            scaling_available_governors="conservative ondemand userspace powersave performance schedutil",
            scaling_cur_freq=408_000,
        )
    for name, steps in ((NPU, (300, 600, 1000)), ("dmc", (528, 2112)), ("fb000000.gpu", (200, 1000))):
        _fill(
            root / "sys/devices/platform" / name,
            available_frequencies=" ".join(str(step * 1_000_000) for step in steps),
            available_governors="rknpu_ondemand userspace powersave" if name == NPU else "userspace performance",
            governor="rknpu_ondemand" if name == NPU else "userspace",
            min_freq=steps[0] * 1_000_000,
            max_freq=steps[-1] * 1_000_000,
            cur_freq=steps[0] * 1_000_000,
        )
        (root / DEVFREQ).mkdir(parents=True, exist_ok=True)
        (root / DEVFREQ / name).symlink_to(f"../../devices/platform/{name}")
    return root


def _fill(folder: Path, **values: object) -> None:
    folder.mkdir(parents=True)
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n")


def read_clocks(root: Path) -> dict[str, str]:
    """The text of every file below, by its path."""
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def main() -> None:
    """Locks, prints `locked`, and lets go."""
    root, number, wanted = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    end_in_good_order()
    count = 0

    def lines(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename != clocks.__file__:
            return None
        if event == "line":
            count += 1
            if count == wanted:
                os.kill(os.getpid(), number)
        return lines

    sys.settrace(lines)
    with clocks.pinned_clocks(root):
        print("locked", flush=True)
    sys.settrace(None)
    print(count)


if __name__ == "__main__":
    main()
