"""A release folder that appears complete or not at all, and never takes the place of another one."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.errors import PackageError, UsageError
from launcher.integrity.manifest import read_manifest
from release.output import check_output_folder, claimed_folder, writing


@contextmanager
def new_folder(path: Path, *, is_own: Callable[[str], bool]) -> Iterator[Path]:
    """An empty folder beside `path` that gets this name when the block ends without an error.

    What an earlier process left half done there is removed; so is this one's, unless it is killed.

    Args:
        is_own: as for `claimed_folder`.

    Raises:
        UsageError: as `check_new_folder`; something that is not ours is beside it, or another process is at work there.
        ResourceError: it cannot be written.
    """
    check_new_folder(path)
    partial = path.with_name(path.name + ".partial")
    with writing(path), claimed_folder(partial, is_own=is_own):
        _empty(partial)
        try:
            yield partial
            _sync(partial)
            _rename(partial, path)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise


def check_new_folder(path: Path) -> None:
    """Refuses, before any work, a place where `new_folder` would not make a release.

    Raises:
        UsageError: there is something under the name already, a link to nothing included; or it is inside a release,
            which would then have files that are none of its own.
    """
    if path.is_symlink():
        raise UsageError("output-exists", f"{path} is a link", hint="Give the name of a new folder, not a link to one.")
    check_output_folder(path, marker=None)
    around = next((folder for folder in path.absolute().parents if _is_release(folder)), None)
    around = around or next((folder for folder in path.resolve().parents if _is_release(folder)), None)
    if around is not None:
        raise UsageError(
            "output-inside-release",
            f"{path} is inside the release {around}, which it would spoil",
            hint="Give a folder outside of it.",
        )


def _is_release(folder: Path) -> bool:
    """Whether a folder has a release's manifest, of whatever version; other programs have files of this name too."""
    try:
        return read_manifest(folder) is not None
    except PackageError as error:
        return error.slug in ("metadata-version", "launcher-too-old")


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
