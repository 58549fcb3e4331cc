"""Sessions on disk: one file each in a folder that only this user can write, the longest unused one first out.

A file appears by a rename, complete and checksummed, and takes the place of the conversation's older one, so whoever
comes after a crash finds the old session or the new one. The limit holds at every moment, for both of them together.
What cannot be trusted is refused and the request runs cold; no trouble with a file fails a request.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import threading
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

from launcher.errors import BusyError, MindnanoError, PackageError, ResourceError, UsageError
from launcher.server.session_entries import Block, Key
from launcher.server.session_file import (
    WRITABLE_BY_OTHERS,
    open_file,
    read_body,
    read_header,
    read_ids,
    write_file,
)
from launcher.server.session_format import Header, Origin, damaged, encode_ids, file_name

_SUFFIX: Final = ".session"
_PARTIAL: Final = ".partial"
_Result = TypeVar("_Result")
_OURS: Final = re.compile(r"[0-9a-f]{64}-[0-9a-f]{16}\.session(\.partial)?")


class Saved(Enum):
    """What became of a save."""

    DONE = "done"
    ABANDONED = "abandoned"  # it was asked to stop; the file is as it was
    REFUSED = "refused"  # this state of the conversation cannot be saved, however often it is tried
    FAILED = "failed"  # it cannot be done now


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A file in the folder. `header` is None where another model, template, cache type or engine made it."""

    path: Path
    size: int
    modified_ns: int
    header: Header | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSession:
    """What is known of a saved session: size in bytes, `modified` in seconds since 1970."""

    key: Key
    tokens: int
    size: int
    modified: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A session that was read and verified."""

    ids: array[int]
    checkpoints: dict[int, int]
    block: Block
    private: bool


class SessionFiles:
    """The folder. `save` and `load` are called by one thread, everything else by any."""

    def __init__(
        self, folder: Path, *, limit_bytes: int, origin: Origin, report: Callable[[MindnanoError], None]
    ) -> None:
        """Makes the folder where it is missing, removes what killed saves left, and reads the headers.

        Args:
            folder: for sessions alone; other files in it are left alone.
            limit_bytes: most that all sessions in it take, those of other models included.
            origin: what makes the sessions of this process.
            report: gets what is wrong with a file or the disk; a disk that takes nothing is told once until it does.

        Raises:
            UsageError: the folder cannot be used, or others can write to it.
            BusyError: another process keeps its sessions there.
        """
        self._folder = folder
        self._limit = limit_bytes
        self._origin = origin.fields()
        self._report = report
        self._told = False
        self._lock = threading.RLock()
        self._files: dict[str, _File] = {}
        self._handle = _open_folder(folder)
        try:
            self._read_folder()
        except OSError as error:
            os.close(self._handle)
            raise _unusable(folder, error) from error

    def close(self) -> None:
        """Lets another process have the folder. Closing twice is no fault."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    @property
    def bytes(self) -> int:
        """Of all sessions in the folder."""
        with self._lock:
            return sum(file.size for file in self._files.values())

    def saved(self) -> tuple[SavedSession, ...]:
        """The sessions that this process could go on with."""
        with self._lock:
            return tuple(
                SavedSession(
                    key=file.header.key,
                    tokens=file.header.tokens,
                    size=file.size,
                    modified=file.modified_ns / 1e9,
                )
                for file in self._files.values()
                if file.header is not None
            )

    def holds(self, key: Key) -> bool:
        """Whether there is a file for this conversation."""
        with self._lock:
            file = self._files.get(self._name(key))
            return key.is_saved and file is not None and file.header is not None

    def peek(self, key: Key) -> tuple[array[int], Mapping[int, int]] | None:
        """Token ids and checkpoints of a session, not verified yet: enough to tell whether it is worth loading."""
        return self._read(key, lambda file, header: (read_ids(file, header), header.checkpoints))

    def load(self, key: Key, new_block: Callable[[int], Block | None], free: Callable[[Block], None]) -> Loaded | None:
        """Reads and verifies a session; None where there is none, no memory for it, or where it is refused."""

        def read(file: Any, header: Header) -> Loaded | None:
            block = new_block(header.export_bytes)
            if block is None:
                return None
            try:
                ids = read_body(file, header, block.memory)
            except BaseException:
                free(block)
                raise
            with contextlib.suppress(OSError):
                os.utime(file.fileno())
            return Loaded(ids=ids, checkpoints=dict(header.checkpoints), block=block, private=header.private)

        loaded = self._read(key, read)
        if loaded is not None:
            self._touch(key)
        return loaded

    def save(
        self,
        key: Key,
        ids: array[int],
        checkpoints: Mapping[int, int],
        memory: Any,
        abandon: Callable[[], bool],
        *,
        private: bool = False,
    ) -> Saved:
        """Writes a session in pieces, asking `abandon` between them; replaces the conversation's older file at once."""
        header = Header(
            key=key,
            origin=self._origin,
            tokens=len(ids),
            export_bytes=len(memory),
            checkpoints=checkpoints,
            private=private,
        )
        partial = self._folder / (self._name(key) + _PARTIAL)
        try:
            head = header.encode()
            total = len(head) + header.body_bytes()
            self._make_room(key, total)
            if not write_file(partial, head + encode_ids(ids), memory, abandon):
                partial.unlink()
                return Saved.ABANDONED
            if not self._commit(key, header, partial, abandon):
                return Saved.ABANDONED
        except ResourceError as error:
            self.tell(error)
            return Saved.REFUSED
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            self.tell(_unsaved(self._folder, error))
            return Saved.FAILED
        self._told = False
        return Saved.DONE

    def tell(self, error: MindnanoError) -> None:
        """Reports why a session was not saved, once until another one is."""
        if not self._told:
            self._told = True
            self._report(error)

    def remove(self, key: Key) -> bool:
        """Removes a conversation's file; returns whether there was one.

        Raises:
            ResourceError: the folder does not let it go.
        """
        with self._lock:
            if not self.holds(key):
                return False
            try:
                self._unlink(self._name(key))
            except OSError as error:
                raise ResourceError(
                    "session-undeleted", f"{self._folder / self._name(key)} cannot be removed: {error.strerror}"
                ) from error
            return True

    def _name(self, key: Key) -> str:
        return file_name(key, self._origin) + _SUFFIX

    def _read_folder(self) -> None:
        for path in sorted(self._folder.iterdir()):
            if _OURS.fullmatch(path.name) is None:
                continue
            if path.name.endswith(_PARTIAL):
                path.unlink()
                continue
            try:
                with open_file(path) as file:
                    status = os.fstat(file.fileno())
                    header = read_header(file)
            except OSError as error:
                self._report(damaged(f"it cannot be read: {error.strerror}").about(path))
                continue
            except PackageError as error:
                self._refuse(path, error)
                continue
            if file_name(header.key, header.origin) + _SUFFIX != path.name:
                self._refuse(path, damaged("its name is not that of the session in it"))
                continue
            self._files[path.name] = _File(
                path=path,
                size=status.st_size,
                modified_ns=status.st_mtime_ns,
                header=header if header.origin == self._origin else None,
            )

    def _read(self, key: Key, use: Callable[[Any, Header], _Result | None]) -> _Result | None:
        """What `use` makes of the conversation's file, open behind its header; None where there is none to trust."""
        if not self.holds(key):
            return None
        path = self._folder / self._name(key)
        try:
            with open_file(path) as file:
                header = read_header(file)
                if header.key != key or header.origin != self._origin:
                    raise damaged("its header is that of another session")
                return use(file, header)
        except FileNotFoundError:
            self._drop(path.name)
        except OSError as error:
            self._drop(path.name)
            self._report(damaged(f"it cannot be read: {error.strerror}").about(path))
        except PackageError as error:
            self._refuse(path, error)
        return None

    def _refuse(self, path: Path, error: PackageError) -> None:
        with contextlib.suppress(OSError):
            self._unlink(path.name)
        self._report(error.about(path))

    def _touch(self, key: Key) -> None:
        with self._lock:
            file = self._files.get(self._name(key))
            if file is not None:
                with contextlib.suppress(OSError):
                    self._index(file.path, file.header)

    def _index(self, path: Path, header: Header | None) -> None:
        status = path.stat()
        self._files[path.name] = _File(path=path, size=status.st_size, modified_ns=status.st_mtime_ns, header=header)

    def _drop(self, name: str) -> None:
        with self._lock:
            self._files.pop(name, None)

    def _unlink(self, name: str) -> None:
        with self._lock:
            (self._folder / name).unlink(missing_ok=True)
            self._files.pop(name, None)

    def _make_room(self, key: Key, size: int) -> None:
        """Removes the longest unused sessions of others until `size` more bytes fit beside the conversation's own file.

        Raises:
            ResourceError: they would not even where there were no others, which then stay.
            OSError: a file cannot be removed.
        """
        own = self._name(key)
        with self._lock:
            old = self._files[own].size if own in self._files else 0
            if old + size > self._limit:
                beside = f" beside its older state of {old} bytes" if old else ""
                raise ResourceError(
                    "session-unsaved",
                    f"a session of {size} bytes{beside} is more than sessions on disk may take, {self._limit} bytes",
                    hint="raise --session-dir-mib",
                )
            others = sorted((name for name in self._files if name != own), key=lambda it: self._files[it].modified_ns)
            while self.bytes + size > self._limit:
                self._unlink(others.pop(0))

    def _commit(self, key: Key, header: Header, partial: Path, abandon: Callable[[], bool]) -> bool:
        """Puts the new file in its place, unless the session is no longer wanted: nobody can remove it in between."""
        with self._lock:
            if abandon():
                partial.unlink()
                return False
            path = self._folder / self._name(key)
            partial.replace(path)
            self._index(path, header)
        # Without the lock: whoever asks for the sizes of sessions, or for what holds their lock, waits for no disk.
        with contextlib.suppress(OSError):
            os.fsync(self._handle)
        return True


def _unsaved(folder: Path, error: OSError) -> MindnanoError:
    return ResourceError(
        "session-unsaved",
        f"a session could not be saved in {folder}: {error.strerror}",
        hint="free some space, or name another --session-dir",
    )


def require_folder(folder: Path) -> None:
    """Makes sure, before a model is loaded, that sessions can be kept in the folder; makes it where it is missing.

    Raises:
        UsageError: the folder cannot be used, or others can write to it.
        BusyError: another process keeps its sessions there.
    """
    os.close(_open_folder(folder))


def _open_folder(folder: Path) -> int:
    """A handle of the folder that keeps other processes out of it while it is open."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _unusable(folder, error) from error
    try:
        status = os.fstat(handle)
        if status.st_uid != os.geteuid() or status.st_mode & WRITABLE_BY_OTHERS:
            raise UsageError(
                "session-dir-unsafe",
                f"other users can write to {folder} (mode {stat.S_IMODE(status.st_mode):o}, owner {status.st_uid})",
                hint="give a folder of your own, mode 700: what is in it becomes part of conversations",
            )
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(
                "session-dir-busy",
                f"another server keeps its sessions in {folder}",
                hint="give each server a folder of its own",
            ) from error
        except OSError:
            pass  # a file system without locks
    except BaseException:
        os.close(handle)
        raise
    return handle


def _unusable(folder: Path, error: Exception) -> UsageError:
    fault = error.strerror if isinstance(error, OSError) else str(error)
    return UsageError(
        "session-dir-unusable", f"{folder} cannot hold sessions: {fault}", hint="give a folder that can be written"
    )
