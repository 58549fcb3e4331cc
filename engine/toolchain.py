"""Compilers and targets: zig cc for everything, the system's gcc where AddressSanitizer is asked for.

zig ships the C libraries of its targets, so every build is a cross build and needs nothing of the system. It has no
run-time library for AddressSanitizer; gcc has.
"""

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import BuildError
from engine.fetch import cache_root

SANITIZERS = ("address", "undefined")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A processor family. `cpu` is what every file may assume, `simd_cpu` what files named `*_<simd>.c` may."""

    name: str
    simd: str
    cpu: str
    simd_cpu: str
    gcc_cpu: str
    gcc_simd_cpu: str

    @property
    def shared_triple(self) -> str:
        """glibc 2.28 is the oldest one that the results run on."""
        return f"{self.name}-linux-gnu.2.28"

    @property
    def static_triple(self) -> str:
        """musl, because glibc is not made for static programs."""
        return f"{self.name}-linux-musl"


TARGETS = {
    "x86_64": Target(
        name="x86_64",
        simd="avx2",
        cpu="-mcpu=x86_64",
        simd_cpu="-mcpu=x86_64_v3",
        gcc_cpu="-march=x86-64",
        gcc_simd_cpu="-march=x86-64-v3",
    ),
    "aarch64": Target(
        name="aarch64",
        simd="neon",
        cpu="-mcpu=generic",
        simd_cpu="-mcpu=generic+v8_2a+dotprod+fullfp16",
        gcc_cpu="-march=armv8-a",
        gcc_simd_cpu="-march=armv8.2-a+dotprod+fp16",
    ),
}
_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """Command prefixes of one compiler for one target, and an identity that changes with its version."""

    identity: str
    cc: tuple[str, ...]
    cc_simd: tuple[str, ...]
    cxx: tuple[str, ...]
    ld: tuple[str, ...]
    archiver: tuple[str, ...]
    sanitizer_flags: tuple[str, ...]

    def run(self, command: Sequence[str], what: str) -> None:
        """Runs a command of this compiler. Raises BuildError with its output where it fails."""
        zig_cache = str(cache_root() / "zig")
        environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": zig_cache, "ZIG_LOCAL_CACHE_DIR": zig_cache}
        result = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
        if result.returncode != 0:
            raise BuildError(f"cannot {what}:\n{(result.stderr or result.stdout).rstrip()}")


def resolve_target(name: str) -> Target:
    """The target of that name; `native` is this machine's. Raises BuildError for machines that have no target."""
    if name == "native":
        machine = platform.machine().lower()
        if machine not in _MACHINES:
            raise BuildError(f"this machine is {machine}; the engine is built for x86_64 and aarch64")
        name = _MACHINES[machine]
    if name not in TARGETS:
        raise BuildError(f"no target is called {name}; there are native, {', '.join(TARGETS)}")
    return TARGETS[name]


def toolchain_for(target: Target, *, sanitize: Sequence[str] = (), static: bool = False) -> Toolchain:
    """The compiler for a target. Raises BuildError where it is not installed or cannot do what is asked."""
    for name in sanitize:
        if name not in SANITIZERS:
            raise BuildError(f"no sanitizer is called {name}; there are {', '.join(SANITIZERS)}")
    if "address" in sanitize:
        return _gcc(target, sanitize, static)
    return _zig(target, sanitize, static)


def find_zig() -> tuple[Path, str]:
    """The zig compiler of this Python environment and its version. Raises BuildError where it is not installed."""
    spec = importlib.util.find_spec("ziglang")
    if spec is None or not spec.submodule_search_locations:
        raise BuildError(
            "the zig compiler is not installed in this Python environment",
            hint="Install it with: python -m pip install ziglang",
        )
    return Path(spec.submodule_search_locations[0]) / "zig", importlib.metadata.version("ziglang")


def _zig(target: Target, sanitize: Sequence[str], static: bool) -> Toolchain:
    program, version = find_zig()
    zig = str(program)
    triple = target.static_triple if static else target.shared_triple
    # zig checks for undefined behaviour unless it is told not to.
    checks = ("-fsanitize=undefined", "-fno-sanitize-recover=all") if sanitize else ("-fno-sanitize=undefined",)
    return Toolchain(
        identity=f"zig {version}",
        cc=(zig, "cc", "-target", triple, target.cpu),
        cc_simd=(zig, "cc", "-target", triple, target.simd_cpu),
        cxx=(zig, "c++", "-target", triple, target.cpu),
        # -O3 also decides how zig builds its run-time library.
        ld=(zig, "cc", "-target", triple, target.cpu, "-O3", *checks),
        archiver=(zig, "ar"),
        sanitizer_flags=checks,
    )


def _gcc(target: Target, sanitize: Sequence[str], static: bool) -> Toolchain:
    gcc, gxx = shutil.which("gcc"), shutil.which("g++")
    if static or target != resolve_target("native"):
        raise BuildError("AddressSanitizer works for this machine's own processor only, and not in static programs")
    if gcc is None or gxx is None:
        raise BuildError("AddressSanitizer needs gcc and g++", hint="Install them, or leave out --sanitize address.")
    version = subprocess.run([gcc, "-dumpfullversion"], capture_output=True, text=True).stdout.strip()
    checks = (f"-fsanitize={','.join(sanitize)}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
    return Toolchain(
        identity=f"gcc {version} {gcc}",
        cc=(gcc, target.gcc_cpu),
        cc_simd=(gcc, target.gcc_simd_cpu),
        cxx=(gxx, target.gcc_cpu),
        ld=(gcc, *checks),
        archiver=("gcc-ar",),
        sanitizer_flags=checks,
    )
