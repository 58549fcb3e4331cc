"""CPython for one target: configured, compiled and installed, with every extension module inside the interpreter.

The interpreter of this machine's own target is built first and then serves as build Python of the other one: a cross
build runs Python programs of the same version.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from bundle import zig
from bundle.errors import BundleError
from bundle.sources import Source
from bundle.stages import Stage
from bundle.workspace import NEUTRAL, Workspace

VERSION = "3.13"
PREFIX = f"{NEUTRAL}/python"

# Modules whose libraries are not linked in, and modules for tests of CPython itself.
ABSENT_MODULES = (
    "_bz2",
    "_ctypes_test",
    "_curses",
    "_curses_panel",
    "_dbm",
    "_gdbm",
    "_lzma",
    "_sqlite3",
    "_tkinter",
    "_uuid",
    "readline",
    "xxlimited",
    "xxlimited_35",
)

_OPTIONS = (
    f"--prefix={PREFIX}",
    "--disable-shared",
    "--without-ensurepip",
    "--disable-test-modules",
    "--without-doc-strings",
    "--without-readline",
    "--enable-ipv6",
    "--with-openssl-rpath=no",
)

# What configure finds out by running programs. A cross build cannot run them, and a native one would find the state of
# the build machine: its network, its /dev, whether the build runs at the lowest priority. So both get the answers that
# Linux with glibc gives. Without the one about alignment, a cross build would have another hash function.
_ANSWERS = (
    "ac_cv_aligned_required=no",
    "ac_cv_broken_mbstowcs=no",
    "ac_cv_broken_nice=no",
    "ac_cv_broken_poll=no",
    "ac_cv_broken_sem_getvalue=no",
    "ac_cv_buggy_getaddrinfo=no",
    "ac_cv_computed_gotos=yes",
    "ac_cv_file__dev_ptc=no",
    "ac_cv_file__dev_ptmx=yes",
    "ac_cv_have_chflags=no",
    "ac_cv_have_lchflags=no",
    "ac_cv_posix_semaphores_enabled=yes",
    "ac_cv_pthread_is_default=yes",
    "ac_cv_pthread_system_supported=yes",
    "ac_cv_rshift_extends_sign=yes",
    # It is unsigned on aarch64; a cross build takes the answer that is safe for both, and so does a native one.
    "ac_cv_wchar_t_signed=yes",
    "ac_cv_working_tzset=yes",
    "ac_cv_x87_double_rounding=no",
)

# `getbuildinfo.c` would hold the time of the build.
_DATE = '#define DATE "Jan  1 2026"\n#define TIME "00:00:00"\n'


def stage(
    target: str, source: Source, *, zlib: Stage, libffi: Stage, openssl: Stage, build_python: Stage | None
) -> Stage:
    """The stage for a target. `build_python` is this stage for the build machine, or None where it is that itself.

    Results: `install/` with the tree of `make install`, `archives/` with the static libraries that the interpreter is
    linked from, in link order by their names, and `licences/`.
    """

    def run(workspace: Workspace) -> None:
        zig.install(workspace, target)
        folder = workspace.unpack(source)
        info = folder / "Modules" / "getbuildinfo.c"
        info.write_text(_DATE + info.read_text(encoding="utf-8"), encoding="utf-8")
        build = workspace.work / "build"
        build.mkdir()
        words = [f"../{folder.name}/configure", *_OPTIONS, *_ANSWERS, *_platform_words(target)]
        words += [f"py_cv_module_{name}=n/a" for name in ABSENT_MODULES]
        words.append(f"--with-openssl=../needs/{openssl.label}")
        if build_python is not None:
            words.append(f"--with-build-python=../needs/{build_python.label}/install/bin/python{VERSION}")
        environment = _environment(zlib, libffi)
        workspace.command(words, folder=build, environment=environment, what="configure")
        workspace.command(["make", f"-j{workspace.jobs}"], folder=build)
        # Nobody reads the bytecode; `--help` is the one option with which its compiler does nothing.
        install = ["make", "altinstall", f"DESTDIR={workspace.work / 'installed'}", "COMPILEALL_OPTS=--help"]
        workspace.command(install, folder=build, what="make install")
        (workspace.work / "installed" / PREFIX.lstrip("/")).rename(workspace.out / "install")
        for bytecode in list((workspace.out / "install").rglob("__pycache__")):
            shutil.rmtree(bytecode)
        _neutralise(workspace.out / "install", workspace.work)
        _collect_archives(workspace, build)
        licences = workspace.out / "licences"
        licences.mkdir()
        shutil.copy(folder / "LICENSE", licences)

    needs = (zlib, libffi, openssl) if build_python is None else (zlib, libffi, openssl, build_python)
    return Stage(
        name="cpython",
        target=target,
        run=run,
        results=(f"install/bin/python{VERSION}", f"install/lib/python{VERSION}/os.py", "archives", "licences/LICENSE"),
        inputs={**zig.inputs(target), "host": zig.host_target()},
        modules=(__name__, "bundle.zig"),
        sources=(source,),
        needs=needs,
    )


def _platform_words(target: str) -> list[str]:
    # Both are always given, so that no guess about the build machine gets into the result.
    return [f"--host={target}-linux-gnu", f"--build={zig.host_target()}-linux-gnu"]


def _environment(zlib: Stage, libffi: Stage) -> Mapping[str, str]:
    ffi, zip_ = (f"../needs/{stage.label}" for stage in (libffi, zlib))
    return {
        "CC": zig.CC,
        "CXX": zig.CXX,
        "AR": zig.AR,
        "RANLIB": zig.RANLIB,
        # The default has debug information, which would make the static library several times larger.
        "OPT": "-DNDEBUG -O2 -Wall",
        "CFLAGS": "-fno-semantic-interposition",
        "LDFLAGS": "-s",
        "MODULE_BUILDTYPE": "static",
        # No library of this machine may be found.
        "PKG_CONFIG": "/bin/false",
        "LIBFFI_CFLAGS": f"-I{ffi}/include",
        "LIBFFI_LIBS": f"{ffi}/lib/libffi.a",
        "ZLIB_CFLAGS": f"-I{zip_}/include",
        "ZLIB_LIBS": f"{zip_}/lib/libz.a",
    }


def _neutralise(tree: Path, work: Path) -> None:
    """Replaces the folder of the build, which texts about the build mention, by a fixed one."""
    real, neutral = str(work).encode(), f"{NEUTRAL}/work".encode()
    for path in tree.rglob("*"):
        if path.is_symlink() or not path.is_file():
            continue
        content = path.read_bytes()
        if real in content and b"\0" not in content:
            path.write_bytes(content.replace(real, neutral))


def _collect_archives(workspace: Workspace, build: Path) -> None:
    """Copies the archives that the Makefile links the interpreter from, libpython first.

    Raises:
        BundleError: it names a library that is neither an archive of the build or of a stage nor part of glibc.
    """
    makefile = (build / "Makefile").read_text(encoding="utf-8")
    words = [f"libpython{VERSION}.a", *_variable(makefile, "MODLIBS").split(), *_variable(makefile, "LIBS").split()]
    paths: dict[str, Path] = {}
    folders: list[Path] = []
    for word in words:
        if word.startswith("-L"):
            folders.append(build / word.removeprefix("-L"))
        elif word.endswith(".a"):
            paths.setdefault(Path(word).name, build / word)
        elif word.startswith("-l") and word not in ("-ldl", "-lm", "-lpthread", "-lutil", "-lrt"):
            name = f"lib{word.removeprefix('-l')}.a"
            found = next((folder / name for folder in folders if (folder / name).is_file()), None)
            if found is None:
                raise BundleError("library-unknown", f"CPython is linked with {word}, which no stage provides")
            paths.setdefault(name, found)
    target = workspace.out / "archives"
    target.mkdir()
    for number, path in enumerate(paths.values()):
        shutil.copy(path, target / f"{number:02}-{path.name}")


def _variable(makefile: str, name: str) -> str:
    """The value of a variable of a Makefile, other variables in it put in."""
    found = re.search(rf"^{name}=(.*)$", makefile, flags=re.MULTILINE)
    text = "" if found is None else found.group(1).strip()
    return re.sub(r"\$\((\w+)\)", lambda inner: _variable(makefile, inner.group(1)), text)
