"""SHA-256 of files: by the engine, with the processor's own instructions, or by hashlib where no engine is built.

Both ways read from offset 0 with pread, so a file that others read at the same time keeps its offset. Both let other
threads run while they hash, so several files can be hashed in parallel.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from ctypes import byref, c_uint8, c_uint64
from dataclasses import dataclass
from functools import cache
from typing import Final

from launcher import engine_abi as abi
from launcher.engine_library import Library
from launcher.errors import Cancelled, EngineError, PackageError
from launcher.interrupts import held_back

STEP_BYTES: Final = 1 << 20
"""How much is read between two reports of progress."""

Progress = Callable[[int, int], bool]
"""Gets the bytes done and the size that the file had at the start; a true answer cancels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDigest:
    """SHA-256 in lower-case hexadecimal, and the number of bytes that it covers."""

    digest: str
    length: int


def sha256_file(file: int, *, progress: Progress | None = None, library: Library | None = None) -> FileDigest:
    """Hashes everything in an open file.

    Args:
        file: descriptor of a readable file; its offset stays where it is.
        progress: called about every MiB; what it raises comes out of here.
        library: the engine to hash with; by default the one that is built, else hashlib.

    Raises:
        PackageError: the file cannot be read, or ended before the size that it had at the start.
        Cancelled: `progress` said so.
    """
    engine = library or _built_engine()
    return _by_hashlib(file, progress) if engine is None else _by_engine(file, progress, engine)


def implementation(library: Library | None = None) -> str:
    """What hashes here: `sha-ni`, `armv8` or `scalar` in the engine, or `hashlib`."""
    engine = library or _built_engine()
    return "hashlib" if engine is None else str(engine.functions.l3_sha256_implementation().decode())


@cache
def _built_engine() -> Library | None:
    try:
        return Library()
    except EngineError:
        return None  # files can be checked before, and without, an engine


def _by_engine(file: int, progress: Progress | None, engine: Library) -> FileDigest:
    raised: list[BaseException] = []
    digest = (c_uint8 * 32)()
    length = c_uint64()
    with held_back() as is_interrupted:

        def report(_user: object, done: int, total: int) -> int:
            # Called even where nobody listens, so that an interrupt is noticed between two steps.
            try:
                return int(is_interrupted() or (progress is not None and bool(progress(done, total))))
            except BaseException as error:  # must not cross C; raised again below
                raised.append(error)
                return 1

        try:
            engine.call("l3_sha256_fd", file, abi.ProgressFunction(report), None, digest, byref(length))
        except Cancelled:
            if raised:
                raise raised[0] from None
            raise
    return FileDigest(digest=bytes(digest).hex(), length=length.value)


def _by_hashlib(file: int, progress: Progress | None) -> FileDigest:
    digest = hashlib.sha256()
    buffer = bytearray(STEP_BYTES)
    done = 0
    try:
        size = os.fstat(file).st_size
        while count := os.preadv(file, [buffer], done):
            digest.update(memoryview(buffer)[:count])
            done += count
            if progress is not None and progress(done, size):
                raise Cancelled("cancelled", "hashing was cancelled")
    except OSError as error:
        raise _unreadable(f"cannot read the file at byte {done}: {error.strerror}") from error
    if done < size:
        raise _unreadable(f"the file ends at byte {done}; it had {size} when reading began")
    return FileDigest(digest=digest.hexdigest(), length=done)


def _unreadable(message: str) -> PackageError:
    return PackageError("package-unreadable", message, hint="check the file's permissions and the disk")
