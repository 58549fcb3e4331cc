"""The parts of the portable program linked with the static Python of both targets, as the product links them.

What is compiled later runs from source here. Building Python takes minutes, so it is only used where it is already in
the cache: `python -m bundle --until python_runtime --target aarch64`.
"""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bundle import pipeline, zig
from bundle.elf_policy import check
from bundle.emulator import CPU, EmulatorMissing, emulator
from bundle.payload import Packed, pack
from bundle.program_parts import program_parts
from bundle.stages import plan
from bundle.store import Store
from bundle.sysroot import SysrootMissing, sysroot
from engine.build import build_objects, plan_build
from tests.bundle.support import PROGRAMS, ROOT, stand_in_library
from tests.support.availability import unavailable
from tests.support.packages import write_package

PRELUDE = f"import ctypes, json, os, sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom pathlib import Path\n"
LOOK = """
from launcher.payload.built_in import start
from launcher.engine import Package
from launcher.engine_library import Library
from launcher.payload.carried import carried, demo_package, rknn_runtime
from launcher.payload.commands import verify
path, window = demo_package()
with Package(Path(path), window=window) as package:
    package.verify()
    tensors = len(package.tensors())
runtime = rknn_runtime({})
print(json.dumps({
    "builtin": "_l3" in sys.builtin_module_names,
    "elf": start().elf_bytes,
    "engine": str(Library().path),
    "environment": sorted(name for name in os.environ if name.startswith("PYTHON")),
    "sound": all(part.sound for part in verify(carried())),
    "sum": ctypes.CDLL(runtime).stand_in_sum(40, 2),
    "tensors": tensors,
    "threads": len(os.listdir("/proc/self/task")),
}))
"""


@pytest.fixture(scope="module", params=["x86_64", "aarch64"])
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def program(target: str, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """A tree with the program in bin/ and the standard library in lib/, where the interpreter looks for it."""
    step = plan([pipeline.stages(target)["python_runtime"]])[-1]
    runtime = Store.of_user().find(step)
    if runtime is None:
        unavailable(f"not built: python -m bundle --until python_runtime --target {target}")
    python = runtime / "python"
    folder = tmp_path_factory.mktemp(target)
    (folder / "bin").mkdir()
    (folder / "lib").symlink_to(python / "lib")
    include = python / "include" / "python3.13"
    parts = program_parts(target, include, out=folder)
    main = build_objects([PROGRAMS / "python_main.c"], target, extra_flags=("-isystem", str(include)))
    libraries = [str(python / "lib" / "libpython3.13.a"), "-lm", "-ldl", "-lutil", "-lpthread"]
    toolchain = plan_build(target).toolchain
    elf = folder / "python.elf"
    words = [*map(str, main), *parts.link_words(), *libraries, "-o", str(elf)]
    toolchain.run([*toolchain.ld, *words], "link the interpreter")
    model = write_package(folder / "model.l3r")
    members = {"models/demo.l3r": model, "lib/librknnrt.so": stand_in_library(folder, target)}
    return pack(elf, folder / "bin" / "python", members)


def run(target: str, program: Packed, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [str(program.path)]
    if platform.machine() != target:
        try:
            command = [str(emulator()), "-cpu", CPU, "-L", str(sysroot("bookworm")), *command]
        except (EmulatorMissing, SysrootMissing) as error:
            unavailable(f"no {target} system: {error}")
    return subprocess.run([*command, *arguments], env=environ, capture_output=True, text=True)


def test_everything_inside_is_found(target: str, program: Packed) -> None:
    done = run(target, program, "-c", PRELUDE + LOOK, PYTHONHASHSEED="bad", PYTHONMALLOC="debug", MINDNANO_ENGINE="/x")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found.pop("tensors") > 10
    assert found.pop("threads") == 1 or platform.machine() != target  # the emulator has one of its own
    assert found == {
        "builtin": True,
        "elf": program.elf_bytes,
        "engine": "/proc/self/exe",
        "environment": [],
        "sound": True,
        "sum": 42,
    }


def test_linked_program_passes_the_policy(target: str, program: Packed) -> None:
    forbidden = [str(ROOT).encode(), str(Store.of_user().root).encode(), str(zig.zig_program().parent).encode()]
    report = check(program.path, "program", target, forbidden=forbidden)
    assert report.passed, report.text()


def test_damaged_program_ends_before_the_interpreter_starts(target: str, program: Packed, tmp_path: Path) -> None:
    data = bytearray(program.path.read_bytes())
    data[-1000] ^= 1
    damaged = Packed(path=tmp_path / "python", size=0, sha256="", elf_bytes=0, members=())
    damaged.path.write_bytes(data)
    damaged.path.chmod(0o755)
    done = run(target, damaged, "-c", "print('alive')")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("error (program-damaged): ")
