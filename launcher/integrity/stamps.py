"""The stamp cache: files that were hashed, by everything that changes when they do, so that they need not be again.

A stamp counts only while device, inode, size, mtime and ctime are all as they were. Content can be changed without
changing mtime, but not without the kernel setting ctime. What is left is a change within the same tick of the clock
as the one before; so a file whose times lie less than two seconds before the hashing (the coarsest clock of a file
system in use, FAT) gets no stamp, and neither does one from the future.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final, Self

from launcher.errors import PackageError
from launcher.integrity.hashing import Progress, sha256_file
from launcher.integrity.state_file import MAX_BYTES, StateFile, cache_folder

FILE_NAME: Final = "stamps.json"
SCHEMA: Final = "mindnano.stamps"
VERSION: Final = 1
MAX_STAMPS: Final = 1024
SETTLED_NS: Final = 2_000_000_000
_HEXADECIMAL: Final = set("0123456789abcdef")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """A file's SHA-256 with what was true of it. Sizes in bytes, times in nanoseconds since 1970."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    sha256: str

    def agrees(self, status: os.stat_result) -> bool:
        """Whether nothing changed."""
        return _identity(status) == (self.device, self.inode, self.size, self.mtime_ns, self.ctime_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedFile:
    """A file that was hashed. `stamp` is None where its times are too young for one."""

    sha256: str
    size: int
    stamp: Stamp | None


def hash_steady_file(
    file: int, name: str, *, progress: Progress | None = None, now_ns: Callable[[], int] = time.time_ns
) -> HashedFile:
    """Hashes an open file that must not change meanwhile.

    Raises:
        PackageError: it changed while it was read, or cannot be read.
        Cancelled: `progress` said so.
    """
    before, started = os.fstat(file), now_ns()
    try:
        found = sha256_file(file, progress=progress)
    except PackageError as error:
        if _identity(os.fstat(file)) != _identity(before):
            raise _changed(name) from error
        raise error.about(name) from error
    if _identity(os.fstat(file)) != _identity(before) or found.length != before.st_size:
        raise _changed(name)
    device, inode, size, mtime_ns, ctime_ns = _identity(before)
    settled = started - max(mtime_ns, ctime_ns) >= SETTLED_NS
    stamp = Stamp(device=device, inode=inode, size=size, mtime_ns=mtime_ns, ctime_ns=ctime_ns, sha256=found.digest)
    return HashedFile(sha256=found.digest, size=found.length, stamp=stamp if settled else None)


def _changed(name: str) -> PackageError:
    return PackageError(
        "file-changed-while-read",
        f"{name} changed while it was read",
        hint="wait until nothing writes it any more, then try again",
    )


def _identity(status: os.stat_result) -> tuple[int, int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class StampCache:
    """The stamps of one user. A file of it that is missing, damaged, too large or foreign holds none.

    Args:
        path: where they are kept; None keeps none.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = StateFile(path)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """The cache of the user whose environment this is."""
        folder = cache_folder(environ)
        return cls(None if folder is None else folder / FILE_NAME)

    def lookup(self, path: Path, status: os.stat_result) -> str | None:
        """The SHA-256 of a file that is as it was when it was hashed, else None."""
        stamp = _parse(self._file.read()).get(_key(path))
        return stamp.sha256 if stamp is not None and stamp.agrees(status) else None

    def record(self, stamps: Sequence[tuple[Path, Stamp]]) -> bool:
        """Keeps these stamps beside the others; the oldest make room.

        Returns:
            Whether they were kept; a full or read-only disk is no error.
        """
        if not stamps:
            return True

        def change(data: bytes | None) -> bytes:
            known = _parse(data)
            for path, stamp in stamps:
                known.pop(_key(path), None)  # so that it becomes the youngest
                known[_key(path)] = stamp
            youngest = list(known.items())[-MAX_STAMPS:]
            while len(youngest) > 1 and len(_document(youngest)) > MAX_BYTES:
                youngest = youngest[len(youngest) // 2 :]
            return _document(youngest)

        return self._file.update(change)


def _document(stamps: Sequence[tuple[str, Stamp]]) -> bytes:
    entries = {name: asdict(stamp) for name, stamp in stamps}
    return json.dumps({"schema": SCHEMA, "version": VERSION, "stamps": entries}, indent=1).encode()


def _key(path: Path) -> str:
    return os.path.realpath(path)


def _parse(data: bytes | None) -> dict[str, Stamp]:
    try:
        document = json.loads(data or b"")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(document, dict) or (document.get("schema"), document.get("version")) != (SCHEMA, VERSION):
        return {}
    entries = document.get("stamps")
    if not isinstance(entries, dict):
        return {}
    found = ((name, _stamp(entry)) for name, entry in entries.items())
    return {name: stamp for name, stamp in found if stamp is not None}


def _stamp(entry: object) -> Stamp | None:
    names = {field.name for field in fields(Stamp)}
    if not isinstance(entry, dict) or set(entry) != names:
        return None
    sha256 = entry.pop("sha256")
    if not isinstance(sha256, str) or len(sha256) != 64 or not set(sha256) <= _HEXADECIMAL:
        return None
    if not all(type(value) is int for value in entry.values()):
        return None
    return Stamp(sha256=sha256, **entry)
