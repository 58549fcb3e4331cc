"""zig as the one compiler of the portable file: small scripts that `configure` and `make` take for cc, c++, ar, ranlib.

The scripts carry target, processor and the mapping of this machine's paths to neutral ones, so none of it shows in what
programs record of their own build: they see a compiler called `mindnano-cc`.

zig keeps two caches. What it derives from itself alone (start files, stubs of the C library, its run-time library) lies
in a cache that all stages share, since making it takes 6 to 9 seconds for each target. What it makes of the stage's own
files lies in the workspace and ends with it: nothing stale can be linked, and results of `cc -c`, which `make` keeps
anyway, do not pile up.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bundle.errors import BundleError
from bundle.workspace import NEUTRAL, Workspace
from engine.errors import BuildError
from engine.fetch import cache_root
from engine.toolchain import TARGETS, Target, find_zig, resolve_target

VERSION = "0.17.1"
CC = "mindnano-cc"
CXX = "mindnano-c++"
AR = "mindnano-ar"
RANLIB = "mindnano-ranlib"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """What every file of the portable build assumes of the processor: zig's target and processor words."""

    target: Target
    flags: tuple[str, ...]


def cpu_of(name: str) -> Cpu:
    """The processor of a target. aarch64 means RK3588, all of whose cores have dot products and half precision."""
    target = TARGETS[name]
    cpu = target.simd_cpu if name == "aarch64" else target.cpu
    return Cpu(target=target, flags=("-target", target.shared_triple, cpu))


def host_target() -> str:
    """The target that runs on this machine.

    Raises:
        BundleError: there is none.
    """
    try:
        return resolve_target("native").name
    except BuildError as error:
        raise BundleError("host-unsupported", error.message, hint="Build on an x86-64 or arm64 machine.") from error


def inputs(target: str) -> Mapping[str, str]:
    """What decides the results of this compiler, for the key of a stage."""
    return {"zig": VERSION, "target": " ".join(cpu_of(target).flags)}


def zig_program() -> Path:
    """The pinned zig.

    Raises:
        BundleError: it is not installed, or is another version.
    """
    hint = f"Install it with: python -m pip install ziglang=={VERSION}"
    try:
        program, version = find_zig()
    except BuildError as error:
        raise BundleError("zig-missing", error.message, hint=hint) from error
    if version != VERSION:
        raise BundleError("zig-version", f"zig {version} is installed; the build is pinned to {VERSION}", hint=hint)
    return program


def install(workspace: Workspace, target: str) -> None:
    """Puts the compiler scripts for a target on the PATH of the workspace's commands."""
    program = zig_program()
    words = {
        CC: ("cc", *_compile_flags(workspace, program, target)),
        CXX: ("c++", *_compile_flags(workspace, program, target)),
        AR: ("ar",),
        RANLIB: ("ranlib",),
    }
    caches = {
        "ZIG_GLOBAL_CACHE_DIR": cache_root().absolute() / "bundle" / f"zig-{VERSION}",
        "ZIG_LOCAL_CACHE_DIR": workspace.work / "zig-cache",
    }
    exports = "".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in caches.items())
    for name, arguments in words.items():
        script = workspace.work / "bin" / name
        script.write_text(f'#!/bin/sh\n{exports}exec {shlex.join([str(program), *arguments])} "$@"\n', encoding="utf-8")
        script.chmod(0o755)


def _compile_flags(workspace: Workspace, program: Path, target: str) -> tuple[str, ...]:
    neutral = {
        program.parent: f"{NEUTRAL}/zig",
        workspace.work: f"{NEUTRAL}/work",
        workspace.out: f"{NEUTRAL}/out",
    }
    maps = [f"-ffile-prefix-map={real}={name}" for real, name in neutral.items()]
    # zig checks for undefined behaviour unless it is told not to.
    return (*cpu_of(target).flags, "-g0", "-fno-sanitize=undefined", *maps)
