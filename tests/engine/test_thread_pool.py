"""Helper threads come to every loop that is worth sharing, however late they are called."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from engine.build import ENGINE, build_executable

DRIVER = Path(__file__).with_name("pool_driver.c")


def test_a_call_for_a_loop_that_is_done_does_not_leave_a_helper_asleep(tmp_path: Path) -> None:
    # The driver includes this source, which compiled results are not looked up by.
    digest = hashlib.sha256((ENGINE / "src" / "base" / "threads.c").read_bytes()).hexdigest()
    driver = build_executable([DRIVER], "pool_driver", out=tmp_path, extra_flags=[f"-DTHREADS_SOURCE=0x{digest[:8]}"])
    result = subprocess.run([driver], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout == "came\n"
