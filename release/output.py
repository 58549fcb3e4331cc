"""Results that appear complete or not at all: written under `.partial`, flushed to disk, renamed."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from launcher.errors import MindnanoError, PackageError, ResourceError, UsageError
from launcher.progress import format_bytes

_RESERVE_BYTES = 16 * 1024 * 1024
_UNWRITABLE = "output-unwritable"


def require_free_space(path: Path, needed: int) -> None:
    """Checks, before long work, that the file system that will hold `path` has room for `needed` bytes.

    Raises:
        ResourceError: there is too little room.
    """
    existing = path.absolute()
    while not existing.exists():
        existing = existing.parent
    available = shutil.disk_usage(existing).free
    if available < needed + _RESERVE_BYTES:
        raise ResourceError(
            "disk-space",
            f"{path} needs {format_bytes(needed + _RESERVE_BYTES)}, {existing} has {format_bytes(available)} free",
            hint="Free some space or choose another place.",
        )


@contextmanager
def partial_file(path: Path, *, force: bool) -> Iterator[BinaryIO]:
    """A file to write that gets its name only when the block ends without an error.

    Raises:
        UsageError: the file exists and `force` is off, it is not a plain file, or another process is writing it.
        ResourceError: it cannot be written.
    """
    check_output_file(path, force=force)
    partial = path.with_name(path.name + ".partial")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _claimed_file(partial) as file:
            try:
                check_output_file(path, force=force)  # whoever wrote here until now may just have finished
                yield file
                file.flush()
                os.fsync(file.fileno())
                partial.replace(path)
                _sync_folder(path.parent)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise


@contextmanager
def _claimed_file(partial: Path) -> Iterator[BinaryIO]:
    """The empty file, for this process alone; what a killed one left is overwritten, what anybody else put there not.

    A link is not followed, and a file with a second name is left alone: what lies behind either is not ours.
    """
    try:
        file = open(partial, "wb", opener=_open_kept)  # noqa: SIM115 - closed below
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
        raise _not_ours(partial, "it is not a plain file") from error
    with file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise _not_ours(partial, "it is not a plain file, or has another name too")
        _lock(file.fileno(), partial)
        file.truncate(0)
        yield file


def _open_kept(name: str, flags: int) -> int:
    """Opens for writing without a change to what is there."""
    return os.open(name, flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def check_output_file(path: Path, *, force: bool) -> None:
    """Refuses, before any work, a file that `partial_file` would not replace.

    Raises:
        UsageError: as for `partial_file`.
    """
    if path.exists() and not path.is_file():
        raise UsageError("output-exists", f"{path} exists and is not a plain file", hint="Give another name.")
    if (path.exists() or path.is_symlink()) and not force:
        raise UsageError("output-exists", f"{path} exists", hint="Give another name, or --force to replace it.")


@contextmanager
def resumable_folder(path: Path, *, marker: str, is_own: Callable[[str], bool], force: bool) -> Iterator[Path]:
    """A folder to fill that gets its name only when the block ends without an error.

    Until then it is `path` with `.partial`. A block that fails for what it reads (PackageError) loses it; after any
    other end, of the process as well, the next block finds in it what is there. Only one process at a time fills it.

    Args:
        path: the final name.
        marker: a file that only a result of ours has; with `force`, a folder that has it is replaced.
        is_own: as for `claimed_folder`.
        force: replace an earlier result.

    Raises:
        UsageError: the folder exists and is not empty, unless it is an earlier result and `force` is on; another
            process is filling it; or what lies under the preliminary name is not ours.
        ResourceError: it cannot be written.
    """
    check_output_folder(path, marker=marker, force=force)
    partial = path.with_name(path.name + ".partial")
    hint = f"Free some space or check permissions, then run the same command again: it goes on with {partial}."
    with writing(path, hint=hint), claimed_folder(partial, is_own=is_own):
        try:
            yield partial
            _exchange(partial, path)
        except PackageError:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        except BaseException as error:
            _remove_if_hollow(partial)
            if isinstance(error, ResourceError) and error.slug == _UNWRITABLE:
                raise ResourceError(_UNWRITABLE, error.message, hint=hint) from error
            raise


def _remove_if_hollow(folder: Path) -> None:
    """Removes a folder that holds nothing but folders: there is nothing to go on with."""
    if all(path.is_dir() for path in folder.rglob("*")):
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def claimed_folder(folder: Path, *, is_own: Callable[[str], bool]) -> Iterator[None]:
    """A folder under a preliminary name, made or found as an earlier run left it, for this process alone.

    The lock goes with the process. Whoever has claimed it may delete what is in it, so nothing else may be.

    Args:
        is_own: whether a run of ours may have left something of this name in it.

    Raises:
        UsageError: it is a link or no folder, holds anything else, or another process has it.
        OSError: it cannot be made or opened.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise _not_ours(folder, "it is not a folder, or only a link to one")
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _lock(handle, folder)
        strange = sorted(entry.name for entry in folder.iterdir() if not is_own(entry.name))
        if strange:
            raise _not_ours(folder, f"it holds {strange[0]!r}")
        yield
    finally:
        os.close(handle)


def _lock(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_here = os.path.samestat(os.fstat(handle), path.lstat())  # not renamed between opening and locking
    except (BlockingIOError, FileNotFoundError):
        is_here = False
    if not is_here:
        raise UsageError("output-busy", f"another process is writing {path}", hint="Wait for it, or give another name.")


def _not_ours(path: Path, found: str) -> UsageError:
    return UsageError(
        "output-foreign",
        f"{path} is needed for what is not complete yet, and no earlier run has left it like this: {found}",
        hint="Move it away, or give another name for the output.",
    )


def _exchange(partial: Path, path: Path) -> None:
    """Gives `partial` the name `path`. An earlier result goes only when the new one has its name, since deleting takes
    time and may be interrupted.
    """
    if not path.exists():
        partial.rename(path)
        _sync_folder(path.parent)
        return
    aside = Path(tempfile.mkdtemp(prefix=f"{path.name}.replaced-", dir=path.parent))
    earlier = aside / path.name
    try:
        path.rename(earlier)
        partial.rename(path)
    except BaseException:
        if earlier.exists() and not path.exists():
            earlier.rename(path)
        raise
    finally:
        _sync_folder(path.parent)
        if path.exists():
            shutil.rmtree(aside)


def check_output_folder(path: Path, *, marker: str | None, force: bool = False) -> None:
    """Refuses, before any work, a folder that `resumable_folder` would not replace.

    Args:
        marker: a file that only a result of ours has; None where results are never replaced.
        force: replace an earlier result.

    Raises:
        UsageError: it is not empty, unless it is an earlier result and `force` is on; or it has no name of its own.
    """
    if path.name in ("", ".."):
        raise UsageError("output-name", f"{str(path)!r} is no name for a new folder", hint="Give one such as ./out.")
    if not path.exists():
        return
    if not path.is_dir():
        raise UsageError("output-exists", f"{path} is not a folder", hint="Give another name.")
    is_empty = next(path.iterdir(), None) is None
    if is_empty or (force and marker is not None and (path / marker).is_file()):
        return
    hint = "Give another folder."
    if marker is not None:
        hint = "Give another folder, or --force to replace an earlier result."
    if force:
        hint = f"It has no {marker}, so it is not an earlier result and --force does not replace it."
    raise UsageError("output-exists", f"{path} is not empty", hint=hint)


@contextmanager
def writing(path: Path, *, hint: str = "Check free space and permissions.") -> Iterator[None]:
    """Turns failures of the file system inside the block into errors that name `path`."""
    try:
        yield
    except MindnanoError:
        raise
    except OSError as error:
        raise ResourceError(
            _UNWRITABLE,
            f"cannot write {path}: {error.strerror}",
            hint=hint,
        ) from error


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
