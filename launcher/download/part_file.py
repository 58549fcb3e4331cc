"""A file that is being fetched: NAME.part with a note beside it, NAME only when its bytes are proven.

The note, NAME.part.json, says where the bytes come from, so that a later run can tell whether it may continue. The part
is locked while it is written: two downloads never mix.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from launcher.errors import BusyError, PackageError, ResourceError, UsageError
from launcher.integrity.release_files import read_capped
from launcher.integrity.strict_json import Fields, parse_object, to_bytes

PART_SUFFIX: Final = ".part"
NOTE_SUFFIX: Final = ".part.json"
BAD_SUFFIX: Final = ".bad"
_SCHEMA: Final = "mindnano.part"
_VERSION: Final = 1
_NOTE_BYTES: Final = 64 << 10
_READ_BYTES: Final = 1 << 20
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_LOCK_TRIES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the bytes of a part come from.

    Attributes:
        url: what was asked for, without a query; the text of a path for a copy.
        etag: strong validator of the server, None where it gave none.
        size: bytes of the whole file, None where nobody said.
        sha256: expected digest of the whole file in lower-case hexadecimal, None where nobody said.
    """

    url: str
    etag: str | None
    size: int | None
    sha256: str | None


class PartFile:
    """The part of one file. A context manager: holds the lock, and leaves the part for the next run."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = target.with_name(target.name + PART_SUFFIX)
        self.origin: Origin | None = None
        self._note = target.with_name(target.name + NOTE_SUFFIX)
        self._handle = -1
        self._size = 0
        self._digest = hashlib.sha256()
        self._digest_bytes = 0

    @property
    def size(self) -> int:
        """Bytes that are here."""
        return self._size

    def __enter__(self) -> Self:
        """Opens and locks the part.

        Raises:
            BusyError: another process writes it.
            UsageError: the folder cannot be written.
            ResourceError: there is no space for it.
        """
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            self._handle = self._locked()
            self._size = os.fstat(self._handle).st_size
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self.origin = self._read_note() if self._size else None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle < 0:
            return
        if self._size == 0:
            self._discard()
        else:
            with suppress(OSError):
                os.fsync(self._handle)
        os.close(self._handle)
        self._handle = -1

    def restart(self) -> None:
        """Forgets every byte."""
        os.ftruncate(self._handle, 0)
        self._size = 0
        self._digest = hashlib.sha256()
        self._digest_bytes = 0
        self.origin = None

    def note(self, origin: Origin) -> None:
        """Keeps where the bytes come from.

        Raises:
            ResourceError: there is no space for it.
        """
        if origin == self.origin:
            return
        document = {"schema": _SCHEMA, "version": _VERSION, **asdict(origin)}
        write_atomically(self._note, to_bytes(document))
        self.origin = origin

    def append(self, data: bytes) -> None:
        """Adds bytes at the end.

        Raises:
            ResourceError: the disk is full; what fitted stays.
        """
        view = memoryview(data)
        while view:
            try:
                count = os.pwrite(self._handle, view, self._size)
            except OSError as error:
                raise _unwritable(self.path, error) from error
            if self._digest_bytes == self._size:
                self._digest.update(view[:count])
                self._digest_bytes += count
            self._size += count
            view = view[count:]

    def sha256(self, progress: Callable[[int], None]) -> str:
        """Digest of every byte that is here; those of earlier runs are read again.

        Args:
            progress: gets the bytes that were just read.

        Raises:
            PackageError: the part cannot be read.
        """
        while self._digest_bytes < self._size:
            try:
                data = os.pread(self._handle, min(_READ_BYTES, self._size - self._digest_bytes), self._digest_bytes)
            except OSError as error:
                raise PackageError("package-unreadable", f"{self.path}: {error.strerror}") from error
            if not data:
                raise PackageError("package-unreadable", f"{self.path} became shorter while it was read")
            self._digest.update(data)
            self._digest_bytes += len(data)
            progress(len(data))
        return self._digest.hexdigest()

    def publish(self) -> None:
        """Gives the part its final name, durably. The caller has proven its bytes.

        Raises:
            ResourceError, UsageError: it cannot be written.
        """
        try:
            os.fsync(self._handle)
            self.path.rename(self.target)
            sync_folder(self.target.parent)
        except OSError as error:
            raise _unwritable(self.target, error) from error
        self._forget_note()

    def reject(self) -> Path:
        """Keeps the part as NAME.bad, where nothing uses it; returns that path."""
        bad = self.target.with_name(self.target.name + BAD_SUFFIX)
        try:
            self.path.rename(bad)
        except OSError as error:
            raise _unwritable(bad, error) from error
        self._forget_note()
        return bad

    def _locked(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        for _ in range(_LOCK_TRIES):
            handle = os.open(self.path, flags, 0o644)
            try:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    raise OSError(errno.EINVAL, "it is not a regular file")
                self._lock(handle)
                if _is_at(handle, self.path):
                    return handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)  # another process finished it between opening and locking
        raise _busy(self.path)

    def _lock(self, handle: int) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _busy(self.path) from error
        except OSError:
            pass  # some file systems have no locks; then there is only the user's care

    def _read_note(self) -> Origin | None:
        try:
            data = read_capped(self._note, _NOTE_BYTES)
            if data is None:
                return None
            fields = parse_object(data, str(self._note))
            if fields.take("schema") != _SCHEMA or fields.take("version") != _VERSION:
                return None
            return _origin(fields)
        except PackageError:
            return None  # only costs a new start

    def _discard(self) -> None:
        with suppress(OSError):
            if _is_at(self._handle, self.path):
                self.path.unlink()
        self._forget_note()

    def _forget_note(self) -> None:
        with suppress(OSError):
            self._note.unlink()


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces a small file as a whole.

    Raises:
        ResourceError, UsageError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # of a run that was killed and had this number
        # O_EXCL: in a folder that others may write to, what waits there under this name is not followed.
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise _unwritable(path, error) from error


def sync_folder(folder: Path) -> None:
    """Makes new names in a folder durable.

    Raises:
        OSError: the disk failed.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:  # file systems without it
            raise
    finally:
        os.close(handle)


def _origin(fields: Fields) -> Origin:
    return Origin(
        url=fields.text("url", limit=8192),
        etag=fields.text("etag", limit=1024) if fields.has("etag") else None,
        size=fields.integer("size") if fields.has("size") else None,
        sha256=fields.digest("sha256") if fields.has("sha256") else None,
    )


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False


def _busy(path: Path) -> BusyError:
    return BusyError("download-busy", f"another process is writing {path}", hint="wait for it, or stop it")


def _unwritable(path: Path, error: OSError) -> ResourceError | UsageError:
    if error.errno == errno.EFBIG:
        return ResourceError(
            "disk-full",
            f"{path}: the file system or a limit does not allow a file of this size",
            hint="choose another disk with --model-dir; FAT32 ends at 4 GiB, ulimit -f shows a limit",
        )
    if error.errno in _FULL:
        return ResourceError(
            "disk-full",
            f"{path}: {error.strerror}; what is here is kept",
            hint="free some space and run the same command to continue, or choose another disk with --model-dir",
        )
    return UsageError(
        "folder-unwritable", f"cannot write {path}: {error.strerror}", hint="choose a folder with --model-dir"
    )
