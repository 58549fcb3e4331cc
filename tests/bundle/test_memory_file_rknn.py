"""The real librknnrt.so that does not load from memory, on aarch64 under emulation with Debian's own libraries."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from bundle.emulator import CPU, EmulatorMissing, emulator
from bundle.sysroot import SysrootMissing, sysroot
from tests.bundle.support import ROOT, stand_in_library
from tests.support.availability import unavailable
from tests.support.rknn_wheel import VERSION, real_librknnrt

LOAD = Path(__file__).with_name("load_library.py")
# An interpreter of that system, with what it and the library need.
PACKAGES = (
    "libc6",
    "libgcc-s1",
    "libstdc++6",
    "zlib1g",
    "libexpat1",
    "libffi8",
    "python3.11-minimal",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
)


@pytest.fixture(scope="module")
def interpreter() -> Sequence[str]:
    try:
        root = sysroot("bookworm", PACKAGES)
        return [
            str(emulator()),
            "-cpu",
            CPU,
            "-L",
            str(root),
            str(root / "usr" / "bin" / "python3.11"),
            "-I",
            "-S",
            "-B",
        ]
    except (SysrootMissing, EmulatorMissing) as error:
        unavailable(f"no aarch64 system: {error}")


def load(interpreter: Sequence[str], library: Path, kind: str) -> tuple[dict[str, object], str]:
    command = [*interpreter, str(LOAD), str(ROOT), str(library), kind]
    done = subprocess.run(command, env={}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # The library speaks too, on both streams.
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert isinstance(found, dict)
    return found, done.stdout + done.stderr


def test_stand_in_loads_from_memory_on_aarch64(interpreter: Sequence[str], tmp_path: Path) -> None:
    found, _ = load(interpreter, stand_in_library(tmp_path, "aarch64"), "stand_in")
    assert (found["method"], found["sum"], found["writable"]) == ("MEMFD", 42, False)


def test_real_library_loads_and_finds_no_device(interpreter: Sequence[str]) -> None:
    found, said = load(interpreter, real_librknnrt(), "rknn")
    assert (found["method"], found["same"], found["writable"]) == ("MEMFD", True, False)
    assert found["version"] == VERSION
    assert found["create"] == -1
    assert "failed to open" in said
