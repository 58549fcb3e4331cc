"""The C and C++ libraries: what the program needs, and what Rockchip's runtime needs on top."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from launcher.checks.report import Finding, Group, fail, ok, skip, warn
from launcher.system import SystemView

GLIBC_FLOOR: Final = (2, 28)  # Debian 10, RHEL 8, Ubuntu 20.04; what the released program is built against
# librknnrt needs GLIBCXX_3.4.22, which came with GCC 6.1 as libstdc++.so.6.0.22.
_STDCXX_FLOOR: Final = 22
_FOLDERS: Final = (
    "/usr/lib/aarch64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
)
_STDCXX: Final = "libstdc++.so.6"
_STDCXX_FILE: Final = re.compile(r"libstdc\+\+\.so\.6\.0\.(\d{1,4})")
_GLIBC: Final = re.compile(r"glibc (\d{1,4})\.(\d{1,4})")


def libc_findings(system: SystemView, npu_wanted: bool, required: bool = False) -> tuple[Finding, ...]:
    """The C library, and where an NPU may be used the C++ library of its runtime.

    `required`: without the NPU the program must not start, so that a failure blocks it.
    """
    match = _GLIBC.match(system.host.libc)
    if match is None:
        return (_without_glibc(system, npu_wanted, required),)
    version = (int(match[1]), int(match[2]))
    facts = {"version": f"{version[0]}.{version[1]}", "floor": f"{GLIBC_FLOOR[0]}.{GLIBC_FLOOR[1]}"}
    found = [(warn if version < GLIBC_FLOOR else ok)(Group.LIBC, _glibc_slug(version), **facts)]
    if npu_wanted:
        found.append(_stdcxx(system))
    return tuple(found)


def _glibc_slug(version: tuple[int, int]) -> str:
    return "libc-glibc-old" if version < GLIBC_FLOOR else "libc-glibc"


def _without_glibc(system: SystemView, npu_wanted: bool, required: bool) -> Finding:
    loader = next(
        (
            f"{folder}/{name}"
            for folder in ("/lib", "/usr/lib")
            for name in system.names(folder)
            if name.startswith("ld-musl-")
        ),
        None,
    )
    if loader is None:
        return skip(Group.LIBC, "libc-unknown")
    if not npu_wanted and not required:
        return ok(Group.LIBC, "libc-musl", loader=loader)
    failure = fail(Group.LIBC, "libc-musl-npu", loader=loader, backend="none" if required else "cpu")
    return replace(failure, blocking=required)


def _stdcxx(system: SystemView) -> Finding:
    for folder in _FOLDERS:
        names = system.names(folder)
        versions = [int(match[1]) for name in names if (match := _STDCXX_FILE.fullmatch(name)) is not None]
        if _STDCXX not in names and not versions:
            continue
        path = f"{folder}/{_STDCXX}"
        if versions and max(versions) < _STDCXX_FLOOR:
            return warn(Group.LIBC, "libc-stdcxx-old", path=path, version=f"6.0.{max(versions)}")
        return ok(Group.LIBC, "libc-stdcxx", path=path)
    return warn(Group.LIBC, "libc-stdcxx-missing")
