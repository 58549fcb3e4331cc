"""A path for a shared library that exists in no folder, so that the dynamic linker can load it.

The linker takes paths only. The first of these that works is used:

1. memfd: anonymous memory, sealed against any change. Refused by some sandboxes and by `vm.memfd_noexec=2`.
2. an unnamed file (O_TMPFILE) in XDG_RUNTIME_DIR, /dev/shm or the cache folder.
3. a file in a private folder there, whose name is gone before anybody is told of the path.

In each case the path leads through /proc to an open descriptor, nothing is left behind when the process is killed, and
a trial mapping has shown that the place allows code to run from it.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from launcher.errors import EngineError

_MFD_EXEC: Final = 0x10  # Linux 6.3; says that code may run, which vm.memfd_noexec=1 would otherwise forbid
_SEALS: Final = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_READ_AND_RUN: Final = 0o500


class Method(Enum):
    """How a library was placed."""

    MEMFD = "memfd"
    UNNAMED = "unnamed file"
    FOLDER = "private folder"


class MemoryFile:
    """A library with a path that this process and those it starts can open until `close`.

    Attributes:
        path: for the dynamic linker.
        method: how it was placed.
        refused: what was tried before, with the reason, one line each.
    """

    def __init__(self, descriptor: int, method: Method, refused: tuple[str, ...]) -> None:
        """Takes over an open descriptor."""
        self._descriptor = descriptor
        self.path: Final = f"/proc/{Path('/proc/self').readlink()}/fd/{descriptor}"
        self.method: Final = method
        self.refused: Final = refused

    def close(self) -> None:
        """Gives the memory back once nothing is loaded from it; does nothing the second time."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def place(data: bytes, name: str, environ: Mapping[str, str]) -> MemoryFile:
    """Places a library.

    Args:
        data: its bytes.
        name: what memory maps show; no path.
        environ: names the folders of the second and third way.

    Raises:
        EngineError: no place can be written and run from; the message says why for each.
    """
    refused: list[str] = []
    for method, folder in _ways(environ):
        try:
            descriptor = _PLACERS[method](data, name, folder)
        except OSError as error:
            place_name = method.value if folder is None else f"{method.value} in {folder}"
            refused.append(f"{place_name}: {error.strerror or error}")
            continue
        return MemoryFile(descriptor, method, tuple(refused))
    raise EngineError(
        "library-unplaced",
        f"there is no place to load {name} from ({'; '.join(refused)})",
        hint="allow memfd_create, or let XDG_RUNTIME_DIR or XDG_CACHE_HOME name a folder that is not mounted noexec",
    )


def _ways(environ: Mapping[str, str]) -> Iterator[tuple[Method, Path | None]]:
    yield Method.MEMFD, None
    folders = _folders(environ)
    for method in (Method.UNNAMED, Method.FOLDER):
        for folder in folders:
            yield method, folder


def _folders(environ: Mapping[str, str]) -> list[Path]:
    home = environ.get("HOME", "")
    cache = environ.get("XDG_CACHE_HOME", "") or (f"{home}/.cache" if home else "")
    named = (environ.get("XDG_RUNTIME_DIR", ""), "/dev/shm", cache)
    return [Path(name) for name in dict.fromkeys(named) if name.startswith("/")]


def _by_memfd(data: bytes, name: str, _folder: Path | None) -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        descriptor = os.memfd_create(name, flags | _MFD_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        descriptor = os.memfd_create(name, flags)
    try:
        _write(descriptor, data)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        _try_mapping(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _by_unnamed_file(data: bytes, _name: str, folder: Path | None) -> int:
    assert folder is not None
    # O_EXCL: it can never be given a name.
    flags = os.O_TMPFILE | os.O_RDWR | os.O_EXCL | os.O_CLOEXEC
    with _Descriptor(os.open(folder, flags, _READ_AND_RUN)) as writable:
        _write(writable, data)
        return _reopened(f"/proc/self/fd/{writable}")


def _by_folder(data: bytes, name: str, folder: Path | None) -> int:
    assert folder is not None
    _require_trusted(folder)
    private = Path(tempfile.mkdtemp(prefix="mindnano-", dir=folder))  # mode 0700
    try:
        path = private / name
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with _Descriptor(os.open(path, flags, _READ_AND_RUN)) as writable:
            _write(writable, data)
        return _reopened(str(path))
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _require_trusted(folder: Path) -> None:
    """Refuses a folder in which others could exchange what we put there."""
    found = folder.stat()
    others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
    if found.st_uid not in {0, os.geteuid()} or others_write:
        raise PermissionError(errno.EPERM, "other users can change this folder")


def _reopened(path: str) -> int:
    """A descriptor for reading only: while one for writing is open, the file could still change."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _try_mapping(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _try_mapping(descriptor: int) -> None:
    """Maps the first page as the linker will. Raises OSError where that is forbidden, or where there is no /proc."""
    protection = mmap.PROT_READ | mmap.PROT_EXEC
    mmap.mmap(descriptor, 1, mmap.MAP_PRIVATE, protection).close()
    os.close(os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC))


def _write(descriptor: int, data: bytes) -> None:
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.write(descriptor, view[done:])


class _Descriptor:
    """Closes a descriptor at the end of a block."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> int:
        return self._number

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            os.close(self._number)


_PLACERS: Final = {
    Method.MEMFD: _by_memfd,
    Method.UNNAMED: _by_unnamed_file,
    Method.FOLDER: _by_folder,
}
