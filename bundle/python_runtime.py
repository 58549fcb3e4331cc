"""What the portable file takes of Python: one static library that holds all of it, and the standard library's programs.

python/bin/python3.13                   the interpreter; runs where its target is this machine's
python/include/python3.13/              headers
python/lib/python3.13/                  the standard library without the parts that never belong in the file
python/lib/libpython3.13.a              CPython, its own libraries, zlib, libffi and OpenSSL in one archive
python/lib/python3.13/config-*/         `config.c`, the table of built-in modules, and a link to the archive
builtins.txt                            names of the built-in modules, one a line, sorted
licences/                               licence texts of all that is in the archive
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from bundle import zig
from bundle.cpython import ABSENT_MODULES, VERSION
from bundle.errors import BundleError
from bundle.stages import Stage
from bundle.workspace import Workspace

LIBRARY = f"libpython{VERSION}.a"

# Tests, demonstrations, the interactive interpreter and its help, and programs that need a screen or would install
# something.
_LEFT_OUT = (
    "__pycache__",
    "_pyrepl",
    "ensurepip",
    "idlelib",
    "pydoc.py",
    "pydoc_data",
    "site-packages",
    "test",
    "tkinter",
    "turtle.py",
    "turtledemo",
)

# Modules that configure leaves out without a word where their library does not work.
_REQUIRED = (
    "_asyncio",
    "_ctypes",
    "_decimal",
    "_elementtree",
    "_hashlib",
    "_multiprocessing",
    "_posixshmem",
    "_socket",
    "_sha2",
    "_ssl",
    "binascii",
    "fcntl",
    "mmap",
    "pyexpat",
    "resource",
    "select",
    "syslog",
    "termios",
    "unicodedata",
    "zlib",
)


def stage(target: str, *, cpython: Stage, libraries: tuple[Stage, ...]) -> Stage:
    """The stage for a target, from the CPython stage and the C libraries of that target."""

    def run(workspace: Workspace) -> None:
        zig.install(workspace, target)
        installed = workspace.need(cpython.name)
        python = workspace.out / "python"
        shutil.copytree(installed / "install", python, symlinks=True, ignore=_left_out)
        config = _config_folder(python)
        builtins = builtin_modules((config / "config.c").read_text(encoding="utf-8"))
        missing = sorted(set(_REQUIRED) - set(builtins))
        extra = sorted(set(ABSENT_MODULES) & set(builtins))
        if missing or extra:
            raise BundleError(
                "python-modules", f"Python for {target} lacks {missing} and has {extra}; expected neither"
            )
        (workspace.out / "builtins.txt").write_text("".join(f"{name}\n" for name in builtins), encoding="utf-8")
        library = python / "lib" / LIBRARY
        _merge(workspace, sorted((installed / "archives").iterdir()), library)
        (config / LIBRARY).unlink(missing_ok=True)
        (config / LIBRARY).symlink_to(Path("..") / ".." / LIBRARY)
        for part in (cpython, *libraries):
            for text in sorted((workspace.need(part.label) / "licences").iterdir()):
                folder = workspace.out / "licences" / part.name
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copy(text, folder)

    return Stage(
        name="python-runtime",
        target=target,
        run=run,
        results=(
            f"python/bin/python{VERSION}",
            f"python/lib/{LIBRARY}",
            f"python/lib/python{VERSION}/os.py",
            f"python/include/python{VERSION}/Python.h",
            "builtins.txt",
            "licences/cpython/LICENSE",
        ),
        inputs=zig.inputs(target),
        modules=(__name__, "bundle.zig"),
        needs=(cpython, *libraries),
    )


def builtin_modules(config: str) -> tuple[str, ...]:
    """Names in the table of built-in modules of a generated `config.c`, sorted."""
    return tuple(sorted(set(re.findall(r'^\s*\{"(\w+)", *\w+\}', config, flags=re.MULTILINE))))


def _left_out(folder: str, names: list[str]) -> list[str]:
    if Path(folder).name != f"python{VERSION}" or Path(folder).parent.name != "lib":
        return [name for name in names if name == "__pycache__"]
    return [name for name in names if name in _LEFT_OUT]


def _config_folder(python: Path) -> Path:
    found = sorted((python / "lib" / f"python{VERSION}").glob(f"config-{VERSION}*"))
    if len(found) != 1:
        raise BundleError("python-layout", f"{len(found)} folders are called config-{VERSION}*; expected one")
    return found[0]


def _merge(workspace: Workspace, archives: list[Path], target: Path) -> None:
    """Joins static libraries to one; members with equal names stay apart."""
    if not archives:
        raise BundleError("python-layout", "CPython left no static library")
    script = workspace.work / "merge.mri"
    merged = workspace.work / target.name
    names = [f"create {merged.name}"]
    for number, archive in enumerate(archives):
        # Scripts of `ar` cannot quote, so names are made that need no quotes.
        link = workspace.work / f"part{number:02}.a"
        link.symlink_to(archive.resolve())
        names.append(f"addlib {link.name}")
    script.write_text("\n".join([*names, "save", "end", ""]), encoding="utf-8")
    workspace.command([zig.AR, "-M"], stdin=script, what="joining the static libraries")
    target.unlink(missing_ok=True)
    merged.rename(target)
