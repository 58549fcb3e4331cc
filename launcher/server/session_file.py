"""Reading and writing one file of a saved session; nothing in it is used before its checksum was right."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from launcher.server.session_format import (
    DIGEST_BYTES,
    ID_BYTES,
    PREFIX,
    Header,
    damaged,
    decode_header,
    decode_ids,
    header_length,
)

PIECE: Final = 4 << 20
"""Bytes that are written or read at once."""
WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


def open_file(path: Path) -> Any:
    """The file, unbuffered.

    Raises:
        OSError: it cannot be opened; a symbolic link cannot.
        PackageError: others could have written it.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & WRITABLE_BY_OTHERS:
        os.close(handle)
        raise damaged("it is no file that only this user can write")
    return os.fdopen(handle, "rb", buffering=0)


def read_header(file: Any) -> Header:
    """The header of a file that was just opened, whose length is what the header says; the ids come next."""
    prefix = _exactly(file, PREFIX.size)
    header = decode_header(_exactly(file, header_length(prefix)))
    expected = file.tell() + header.body_bytes()
    found = os.fstat(file.fileno()).st_size
    if found != expected:
        raise damaged(f"it has {found} bytes, its header asks for {expected}")
    return header


def read_ids(file: Any, header: Header) -> array[int]:
    """The ids, not verified."""
    return decode_ids(_exactly(file, ID_BYTES * header.tokens))


def read_body(file: Any, header: Header, memory: Any) -> array[int]:
    """Fills `memory` with the export and returns the ids.

    Raises:
        PackageError: the digest over the whole file is wrong.
    """
    digest = hashlib.sha256()
    start = file.tell()
    file.seek(0)
    digest.update(_exactly(file, start))
    ids = _exactly(file, ID_BYTES * header.tokens)
    digest.update(ids)
    with memoryview(memory) as view:
        for offset in range(0, len(view), PIECE):
            with view[offset : offset + PIECE] as piece:
                _fill(file, piece)
                digest.update(piece)
    if _exactly(file, DIGEST_BYTES) != digest.digest():
        raise damaged("its checksum is wrong")
    return decode_ids(ids)


def _exactly(file: Any, count: int) -> bytes:
    data = bytearray(count)
    with memoryview(data) as view:
        _fill(file, view)
    return bytes(data)


def _fill(file: Any, view: memoryview) -> None:
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            raise damaged("it ends too early")
        done += count


def write_file(path: Path, head: bytes, memory: Any, abandon: Callable[[], bool]) -> bool:
    """Writes a whole file and waits for the disk after each piece, so that giving up never waits long for it."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        digest = hashlib.sha256(head)
        _put(handle, memoryview(head))
        with memoryview(memory) as view:
            for offset in range(0, len(view), PIECE):
                if abandon():
                    return False
                with view[offset : offset + PIECE] as piece:
                    digest.update(piece)
                    _put(handle, piece)
                os.fdatasync(handle)
        _put(handle, memoryview(digest.digest()))
        os.fsync(handle)
    finally:
        os.close(handle)
    return True


def _put(handle: int, data: memoryview) -> None:
    done = 0
    while done < len(data):
        done += os.write(handle, data[done:])
