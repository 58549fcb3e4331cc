"""msgspec's compiled part for one target, as two objects that make it a built-in module of the program.

msgspec_core.o      its one C file
msgspec_module.o    what enters it into the interpreter's table
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from bundle import python_packages, zig
from bundle.cpython import VERSION
from bundle.stages import Stage
from bundle.workspace import Workspace

OBJECTS: Final = ("msgspec_core.o", "msgspec_module.o")
ENTRY: Final = Path(__file__).with_name("native") / "msgspec_module.c"

_FLAGS: Final = (
    "-std=gnu11",
    "-O2",
    "-DNDEBUG",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffunction-sections",
    "-fdata-sections",
    # As CPython compiles itself: integers that overflow wrap around.
    "-fwrapv",
    "-fno-strict-aliasing",
    "-DPyInit__core=PyInit_msgspec__core",
)
_OWN_FLAGS: Final = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror")


def stage(target: str, *, packages: Stage, python: Stage) -> Stage:
    """The stage for a target, from the packages and the target's Python."""

    def run(workspace: Workspace) -> None:
        zig.install(workspace, target)
        include = workspace.need(python.label) / "python" / "include" / f"python{VERSION}"
        core = workspace.need(packages.name) / python_packages.SOURCES / "msgspec" / "_core.c"
        entry = workspace.work / ENTRY.name
        entry.write_bytes(ENTRY.read_bytes())
        for name, source, warnings in zip(OBJECTS, (core, entry), ((), _OWN_FLAGS), strict=True):
            words: list[str | Path] = [zig.CC, *_FLAGS, *warnings, "-isystem", include]
            words += ["-c", source, "-o", workspace.out / name]
            workspace.command(words, what=f"compiling {source.name}")

    return Stage(
        name="msgspec",
        target=target,
        run=run,
        results=OBJECTS,
        inputs={**zig.inputs(target), ENTRY.name: hashlib.sha256(ENTRY.read_bytes()).hexdigest()},
        modules=(__name__, "bundle.zig"),
        needs=(packages, python),
    )
