"""The tiny program with the start-up check inside, packed as the product is."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

from bundle.payload import Packed, Source, pack
from engine.build import build_executable, plan_build

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "bundle" / "native"
PROGRAMS = Path(__file__).with_name("programs")
NATIVE_TARGET = "aarch64" if platform.machine() == "aarch64" else "x86_64"

MEMBERS: Mapping[str, Source] = {
    "notices/zlib/LICENSE": b"a licence\n",
    "lib/library.so": bytes(range(256)) * 1000,
    "models/demo.l3r": b"\x5a" * 200_001,
    "empty": b"",
}


def tiny_elf(folder: Path, target: str = "native", *, static: bool = False) -> Path:
    """Builds tests/bundle/programs/tiny.c with bundle/native/start.c and the engine."""
    return build_executable(
        [NATIVE / "start.c", PROGRAMS / "tiny.c"],
        "tiny.elf",
        target,
        static=static,
        extra_flags=("-I", str(NATIVE)),
        out=folder,
    )


def tiny_packed(folder: Path, target: str = "native", *, static: bool = False) -> Packed:
    """The tiny program with MEMBERS, packed."""
    return pack(tiny_elf(folder, target, static=static), folder / "tiny", MEMBERS)


def stand_in_library(folder: Path, target: str = "native") -> Path:
    """A shared library in place of librknnrt.so."""
    toolchain = plan_build(target).toolchain
    library = folder / "librknnrt.so"
    words = [
        "-shared",
        "-fPIC",
        "-g0",
        "-s",
        "-Wl,-soname,librknnrt.so",
        str(PROGRAMS / "library.c"),
        "-o",
        str(library),
    ]
    toolchain.run([*toolchain.ld, *words], "link the stand-in")
    return library
