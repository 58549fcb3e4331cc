"""Builds tests/support/rknn_stand_in.c as a librknnrt.so, for this machine or another."""

from __future__ import annotations

from pathlib import Path

from engine.toolchain import resolve_target, toolchain_for

SOURCE = Path(__file__).with_suffix(".c")
_WARNINGS = ("-std=c11", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror")


def build_stand_in(
    folder: Path, *, target: str = "native", version: str = "2.3.2", without: tuple[str, ...] = ()
) -> Path:
    """Returns folder/librknnrt.so.

    Args:
        folder: where it goes; made if it is missing.
        target: processor, as engine.toolchain names it.
        version: what it says it is; before 2 it has the older interface.
        without: functions that it must not define.
    """
    folder.mkdir(parents=True, exist_ok=True)
    toolchain = toolchain_for(resolve_target(target))
    library = folder / "librknnrt.so"
    toolchain.run(
        [
            *toolchain.cc,
            *_WARNINGS,
            *toolchain.sanitizer_flags,
            "-O1",
            "-g0",
            "-shared",
            "-Wl,--strip-debug",  # the start files of zig's C library remember the folder that they were compiled in
            "-fPIC",
            "-fvisibility=hidden",
            "-D_GNU_SOURCE",
            f'-DSTAND_IN_VERSION="{version}"',
            f"-DSTAND_IN_GENERATION={2 if version >= '2' else 1}",
            *(f"-D{name}=renamed_{name}" for name in without),
            str(SOURCE),
            "-o",
            str(library),
        ],
        "build the stand-in",
    )
    return library
