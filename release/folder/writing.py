"""A release folder that appears complete or not at all, and never takes the place of another one."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.errors import UsageError
from release.output import check_output_folder, writing


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """An empty folder beside `path` that gets this name when the block ends without an error.

    What an earlier process left half done there is removed; so is this one's, unless it is killed.

    Raises:
        UsageError: there is something under the name already, or another process is at work there.
        ResourceError: it cannot be written.
    """
    check_output_folder(path, marker=None)
    partial = path.with_name(path.name + ".partial")
    with writing(path):
        partial.mkdir(parents=True, exist_ok=True)
        handle = os.open(partial, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
        try:
            _lock(handle, partial)
            _empty(partial)
            try:
                yield partial
                _sync(partial)
                _rename(partial, path)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
        finally:
            os.close(handle)


def _lock(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(
            "output-busy", f"another process is writing {folder}", hint="Wait for it, or give another folder."
        ) from error


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _rename(partial: Path, path: Path) -> None:
    """The system itself refuses to put a folder in the place of one that is not empty."""
    try:
        partial.rename(path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise UsageError("output-exists", f"{path} came up meanwhile", hint="Give another folder.") from error
    _sync(path.parent)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
