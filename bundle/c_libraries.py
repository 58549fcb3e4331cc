"""The C libraries that Python needs, static, for one target: zlib, libffi, OpenSSL.

Each stage leaves `include/` and `lib/lib*.a`, and the licence text of what it built.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from bundle import zig
from bundle.sources import Source
from bundle.stages import Stage
from bundle.workspace import NEUTRAL, Workspace

_MODULES = (__name__, "bundle.zig")
# Hidden, so that no library that is loaded at run time can mistake these functions for its own; in sections, so that
# what nobody calls is not linked.
_CFLAGS = "-O2 -fPIC -fvisibility=hidden -ffunction-sections -fdata-sections"

# Left out: what would load a library or read a configuration by itself, protocols and formats that nothing here speaks,
# and ciphers that no server of today needs. What remains is TLS 1.2 and 1.3 and the functions of `hashlib`.
_OPENSSL_WITHOUT = (
    *("shared", "module", "dso", "engine", "legacy", "autoload-config", "afalgeng", "async"),
    *("apps", "docs", "tests"),
    *("ssl3", "tls1", "tls1_1", "dtls", "quic", "comp", "srp", "psk"),
    *("cmp", "cms", "ts", "ct", "ocsp", "http", "gost"),
    *("aria", "bf", "camellia", "cast", "idea", "md4", "mdc2", "rc2", "rc4", "seed", "sm2", "sm3", "sm4", "whirlpool"),
)
_OPENSSL_TARGETS = {"x86_64": "linux-x86_64", "aarch64": "linux-aarch64"}
_TOOLS = {"CC": zig.CC, "CXX": zig.CXX, "AR": zig.AR, "RANLIB": zig.RANLIB}


def zlib(target: str, sources: Mapping[str, Source]) -> Stage:
    """zlib for a target."""
    source = sources["zlib"]

    def run(workspace: Workspace) -> None:
        zig.install(workspace, target)
        folder = workspace.unpack(source)
        environment = {**_TOOLS, "CFLAGS": _CFLAGS, "CHOST": f"{target}-linux-gnu"}
        words = ["./configure", "--static", f"--prefix={NEUTRAL}/zlib"]
        workspace.command(words, folder=folder, environment=environment, what="configure")
        workspace.command(["make", f"-j{workspace.jobs}", "libz.a"], folder=folder)
        _take(workspace, folder / "libz.a", "lib")
        for header in ("zlib.h", "zconf.h"):
            _take(workspace, folder / header, "include")
        _take(workspace, folder / "LICENSE", "licences")

    return Stage(
        name="zlib",
        target=target,
        run=run,
        results=("include/zlib.h", "include/zconf.h", "lib/libz.a", "licences/LICENSE"),
        inputs=zig.inputs(target),
        modules=_MODULES,
        sources=(source,),
    )


def libffi(target: str, sources: Mapping[str, Source]) -> Stage:
    """libffi for a target."""
    source = sources["libffi"]

    def run(workspace: Workspace) -> None:
        zig.install(workspace, target)
        folder = workspace.unpack(source)
        build = workspace.work / "build"
        build.mkdir()
        words = [
            f"../{folder.name}/configure",
            f"--host={target}-linux-gnu",
            f"--build={zig.host_target()}-pc-linux-gnu",
            f"--prefix={NEUTRAL}/libffi",
            "--disable-shared",
            "--enable-static",
            "--with-pic",
            "--disable-docs",
            "--disable-exec-static-tramp",
            "--disable-multi-os-directory",
        ]
        workspace.command(words, folder=build, environment={**_TOOLS, "CFLAGS": _CFLAGS}, what="configure")
        workspace.command(["make", f"-j{workspace.jobs}"], folder=build)
        _take(workspace, build / ".libs" / "libffi.a", "lib")
        for header in ("ffi.h", "ffitarget.h"):
            _take(workspace, build / "include" / header, "include")
        _take(workspace, folder / "LICENSE", "licences")

    return Stage(
        name="libffi",
        target=target,
        run=run,
        results=("include/ffi.h", "include/ffitarget.h", "lib/libffi.a", "licences/LICENSE"),
        inputs=zig.inputs(target),
        modules=_MODULES,
        sources=(source,),
    )


def openssl(target: str, sources: Mapping[str, Source]) -> Stage:
    """OpenSSL for a target: libssl and libcrypto with the processor's own instructions."""
    source = sources["openssl"]

    def run(workspace: Workspace) -> None:
        zig.install(workspace, target)
        workspace.tool("perl")
        folder = workspace.unpack(source)
        words = [
            "perl",
            "./Configure",
            _OPENSSL_TARGETS[target],
            *(f"no-{feature}" for feature in _OPENSSL_WITHOUT),
            f"--prefix={NEUTRAL}/openssl",
            # The system's own certificates, where the default paths are used at all.
            "--openssldir=/etc/ssl",
            "--libdir=lib",
            *_CFLAGS.split(),
        ]
        workspace.command(words, folder=folder, environment=_TOOLS, what="configure")
        workspace.command(["make", f"-j{workspace.jobs}", "build_generated"], folder=folder)
        workspace.command(["make", f"-j{workspace.jobs}", "libcrypto.a", "libssl.a"], folder=folder)
        for library in ("libcrypto.a", "libssl.a"):
            _take(workspace, folder / library, "lib")
        shutil.copytree(folder / "include" / "openssl", workspace.out / "include" / "openssl")
        _take(workspace, folder / "LICENSE.txt", "licences")

    return Stage(
        name="openssl",
        target=target,
        run=run,
        results=("include/openssl/ssl.h", "lib/libcrypto.a", "lib/libssl.a", "licences/LICENSE.txt"),
        inputs=zig.inputs(target),
        modules=_MODULES,
        sources=(source,),
    )


def _take(workspace: Workspace, file: Path, place: str) -> None:
    folder = workspace.out / place
    folder.mkdir(exist_ok=True)
    shutil.copy(file, folder)
