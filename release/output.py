"""Results that appear complete or not at all: written under `.partial`, flushed to disk, renamed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
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
        UsageError: the file exists and `force` is off, or it is not a plain file.
        ResourceError: it cannot be written.
    """
    check_output_file(path, force=force)
    partial = path.with_name(path.name + ".partial")
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            _sync_folder(path.parent)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def check_output_file(path: Path, *, force: bool) -> None:
    """Refuses, before any work, a file that `partial_file` would not replace.

    Raises:
        UsageError: as for `partial_file`.
    """
    if path.exists() and not path.is_file():
        raise UsageError("output-exists", f"{path} exists and is not a plain file", hint="Give another name.")
    if path.exists() and not force:
        raise UsageError("output-exists", f"{path} exists", hint="Give another name, or --force to replace it.")


@contextmanager
def partial_folder(path: Path, *, marker: str, force: bool) -> Iterator[Path]:
    """A folder to fill that gets its name only when the block ends without an error.

    Args:
        path: the final name.
        marker: a file that only a result of ours has; with `force`, a folder that has it is replaced.
        force: replace an earlier result.

    Raises:
        UsageError: the folder exists and is not empty, unless it is an earlier result and `force` is on.
        ResourceError: it cannot be written.
    """
    check_output_folder(path, marker=marker, force=force)
    partial = path.with_name(path.name + ".partial")
    with writing(path):
        try:
            if partial.exists():
                shutil.rmtree(partial)
            partial.mkdir(parents=True)
            yield partial
            _exchange(partial, path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


@contextmanager
def resumable_folder(path: Path, *, marker: str, force: bool) -> Iterator[Path]:
    """A folder to fill that gets its name only when the block ends without an error.

    Until then it is `path` with `.partial`. A block that fails for what it reads (PackageError) loses it; after any
    other end, of the process as well, the next block finds in it what is there. Only one process at a time fills it.

    Args:
        path: the final name.
        marker: a file that only a result of ours has; with `force`, a folder that has it is replaced.
        force: replace an earlier result.

    Raises:
        UsageError: the folder exists and is not empty, unless it is an earlier result and `force` is on; or another
            process is filling it.
        ResourceError: it cannot be written.
    """
    check_output_folder(path, marker=marker, force=force)
    partial = path.with_name(path.name + ".partial")
    hint = f"Free some space or check permissions, then run the same command again: it goes on with {partial}."
    with writing(path, hint=hint):
        partial.mkdir(parents=True, exist_ok=True)
        with _locked(partial):
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
def _locked(folder: Path) -> Iterator[None]:
    """Keeps the folder for this process; the lock goes with the process."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                "output-busy", f"another process is writing {folder}", hint="Wait for it, or give another folder."
            ) from error
        yield
    finally:
        os.close(handle)


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
    """Refuses, before any work, a folder that `partial_folder` and `resumable_folder` would not replace.

    Args:
        marker: a file that only a result of ours has; None where results are never replaced.
        force: replace an earlier result.

    Raises:
        UsageError: it is not empty, unless it is an earlier result and `force` is on.
    """
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
