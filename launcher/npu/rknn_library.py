"""What a copy of librknnrt.so is, from its bytes: version, digest, machine, the functions that we call.

It is never loaded here. Loading it without a device changes /dev, and some versions crash while they look around;
`launcher.npu.child` is the only place that does. Facts: RKNN API reference 2.3.2, problem reports named at each.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from launcher.npu.elf_symbols import NotALibrary, read_elf
from launcher.system import SystemView

NAME: Final = "librknnrt.so"
SYMBOLS: Final = (
    "rknn_matmul_create",
    "rknn_matmul_set_io_mem",
    "rknn_matmul_set_core_mask",
    "rknn_matmul_run",
    "rknn_matmul_destroy",
    "rknn_create_mem",
    "rknn_create_mem_from_fd",
    "rknn_destroy_mem",
)
# 2.x programs flush caches themselves; 1.5.2 has no such function and does it inside run.
SYMBOLS_SINCE_2: Final = ("rknn_mem_sync", "rknn_matmul_set_quant_params", "rknn_B_normal_layout_to_native_layout")
_MAX_BYTES: Final = 64 << 20
_VERSION: Final = re.compile(
    rb"librknnrt version: (?P<version>\d{1,3}\.\d{1,3}\.\d{1,3})[A-Za-z0-9.]{0,16}(?: \((?P<build>[^()\0]{1,80})\))?"
)
_SYSTEM_FOLDERS: Final = (
    "/usr/lib",
    "/usr/lib64",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/local/lib",
    "/lib",
    "/lib64",
)
# The file that Rockchip publishes, by its Git object name in rknn-toolkit2 and rknn-llm.
_PUBLISHED: Final = {"e53a2b6ec332f2863df5c70cd9f6ebec9dbef397": "2.3.2"}


class Judgement(Enum):
    """What is known about a version."""

    GOOD = "good"
    OLD = "old"
    BROKEN = "broken"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class RknnLibrary:
    """One file.

    Attributes:
        path: where it is.
        size: bytes.
        sha256: 64 lower-case hexadecimal digits.
        published: it is, byte for byte, the file that Rockchip publishes as that version.
        version: three numbers with dots, or an empty string where the file does not say.
        build: commit and date that stand behind the version, or an empty string.
        machine: as ``uname -m`` names it, or an empty string where it is no ELF library.
        missing: functions of ours that it does not define.
        trouble: why it is no library, or an empty string.
    """

    path: str
    size: int
    sha256: str
    published: bool
    version: str
    build: str
    machine: str
    missing: tuple[str, ...]
    trouble: str


def read_library(system: SystemView, path: str) -> RknnLibrary | None:
    """Reads one file; None where it is missing, unreadable or larger than any library."""
    data = system.read_bytes(path, _MAX_BYTES + 1)
    if not data or len(data) > _MAX_BYTES:
        return None
    version, build = version_in(data)
    machine, trouble = "", ""
    missing: tuple[str, ...] = ()
    try:
        elf = read_elf(data)
    except NotALibrary as error:
        trouble = str(error)
    else:
        wanted = SYMBOLS + (SYMBOLS_SINCE_2 if numbers(version) >= (2, 0, 0) else ())
        machine, missing = elf.machine, tuple(name for name in wanted if name not in elf.symbols)
    git = hashlib.sha1(b"blob %d\0" % len(data), usedforsecurity=False)
    git.update(data)
    return RknnLibrary(
        path=path,
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        published=git.hexdigest() in _PUBLISHED,
        version=version,
        build=build,
        machine=machine,
        missing=missing,
        trouble=trouble,
    )


def version_in(data: bytes) -> tuple[str, str]:
    """Version and build from the text ``librknnrt version: X (hash@date)``; empty strings where there is none."""
    found = _VERSION.search(data)
    if found is None:
        return "", ""
    return found["version"].decode(), (found["build"] or b"").decode("ascii", "replace")


def numbers(version: str) -> tuple[int, ...]:
    """``"2.3.2"`` -> ``(2, 3, 2)``; no version is older than all."""
    return tuple(int(part) for part in version.split(".")) if version else ()


def judge(version: str) -> Judgement:
    """What problem reports say about a version."""
    number = numbers(version)
    if not number:
        return Judgement.UNKNOWN
    if number < (1, 5, 2) or number == (2, 2, 0):
        # Before 1.5.2 matrix products crash; 2.2.0 returns zeros for every one (rknn-toolkit2#154).
        return Judgement.BROKEN
    if number < (2, 0, 0):
        # No memory domains, no scales, no INT4 (1.5.2), K up to 4096.
        return Judgement.OLD
    return Judgement.GOOD if number in {(2, 3, 0), (2, 3, 2)} else Judgement.UNKNOWN


def system_copies(system: SystemView, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(path, version) of every copy that the system's loader could find; each file once."""
    named = [folder for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/")]
    seen = set()
    for folder in (*named, *_SYSTEM_FOLDERS):
        path = f"{folder.rstrip('/')}/{NAME}"
        try:
            real = system.resolve(path)
        except OSError:
            continue
        if real in seen:
            continue
        data = system.read_bytes(path, _MAX_BYTES)
        if data:
            seen.add(real)
            yield path, version_in(data)[0]
