"""Files of a release on disk: small ones read whole under a cap, names that stay in the folder, safe opening."""

from __future__ import annotations

import errno
import os
import stat
import unicodedata
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Final

from launcher.errors import PackageError

MAX_PATH_BYTES: Final = 1024
MAX_PART_BYTES: Final = 255  # what Linux file systems allow


def read_capped(path: Path, limit: int) -> bytes | None:
    """All bytes of a small regular file, or None where there is no such file.

    Args:
        limit: bytes; a larger file is refused before it is read.

    Raises:
        PackageError: it is too large, no regular file, or cannot be read.
    """
    try:
        # O_NONBLOCK: opening a pipe must not wait for a writer.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise _unreadable(path, str(error)) from error
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise _unreadable(path, "it is not a regular file")
        with os.fdopen(handle, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise _unreadable(path, str(error)) from error
    finally:
        os.close(handle)
    if len(data) > limit:
        raise PackageError(
            "metadata-too-large",
            f"{path} is larger than the {limit} bytes that such a file may have",
            hint="fetch it again from the publisher",
        )
    return data


def _unreadable(path: Path, reason: str) -> PackageError:
    return PackageError(
        "metadata-unreadable", f"cannot read {path}: {reason}", hint="check its permissions and the disk"
    )


def path_fault(path: str) -> str | None:
    """Why this is no name of a file inside a release, or None where it is one.

    A name is relative with ``/`` between its parts, has no part that is empty, ``.`` or ``..``, no NUL, and does not
    begin with ``-``, which commands would take for an option or for standard input.
    """
    if not path:
        return "it is empty"
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    parts = path.split("/")
    if len(encoded) > MAX_PATH_BYTES or any(len(part.encode()) > MAX_PART_BYTES for part in parts):
        return f"it is longer than {MAX_PATH_BYTES} bytes, or a part of it than {MAX_PART_BYTES}"
    if path.startswith("/"):
        return "it is absolute"
    if any(part in {"", ".", ".."} for part in parts):
        return "a part of it is empty, '.' or '..'"
    if path.startswith("-"):
        return "it begins with '-'"
    if "\0" in path:
        return "it has a NUL"
    return None


def portable_path_fault(path: str) -> str | None:
    """As `path_fault`, and no backslash, colon or control character either, so that it means the same everywhere."""
    fault = path_fault(path)
    if fault is not None:
        return fault
    if "\\" in path:
        return "it has a backslash"
    if ":" in path:
        return "it has a colon"
    if any(unicodedata.category(character) in {"Cc", "Zl", "Zp"} for character in path):
        return "it has a control character"
    return None


def clashing_paths(paths: Iterable[str]) -> tuple[str, str] | None:
    """Two names of which a file system can keep only one: equal but for case or composition, or a file and its folder.

    Returns:
        The first such pair, or None.
    """
    # With a separator that sorts before everything else, a file stands right before what lies below it. Looking for
    # every folder of every name instead would take gigabytes for a list of a few megabytes.
    keyed = sorted((_folded(path).replace("/", "\0"), index, path) for index, path in enumerate(paths))
    clashes = (
        sorted(((first[1], first[2]), (second[1], second[2])), key=lambda place: place[0])
        for first, second in pairwise(keyed)
        if second[0] == first[0] or second[0].startswith(first[0] + "\0")
    )
    found = min(clashes, key=lambda pair: pair[1][0], default=None)
    return None if found is None else (found[0][1], found[1][1])


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def printable(text: str) -> str:
    """The text with everything that could move a cursor or hide itself written as an escape."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


class Refused(Exception):
    """A listed file that must not be read; `reason` is a stable word."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def open_member(folder: Path, path: str) -> int:
    """Opens a file of a release for reading; links are followed as long as they stay inside the folder.

    Args:
        folder: the release, as `Path.resolve` gives it.
        path: a name that passed `path_fault`.

    Returns:
        The descriptor, of a regular file. The caller closes it.

    Raises:
        FileNotFoundError: there is no such file.
        Refused: ``link-leaves-folder``, ``link-loop`` or ``not-a-regular-file``.
        OSError: it cannot be opened.
    """
    try:
        target = (folder / path).resolve(strict=True)
    except NotADirectoryError as error:
        raise FileNotFoundError(str(error)) from error
    except RuntimeError as error:  # a loop of links, before Python 3.13
        raise Refused("link-loop") from error
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Refused("link-loop") from error
        raise
    if not target.is_relative_to(folder):
        raise Refused("link-leaves-folder")
    if not stat.S_ISREG(target.lstat().st_mode):
        raise Refused("not-a-regular-file")
    handle = os.open(target, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise Refused("not-a-regular-file")
    return handle
