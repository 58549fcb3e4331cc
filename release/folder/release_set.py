"""Which files a folder is meant to hold: a whole release, or the flat set that Hugging Face shows; and what is extra.

A folder is the whole release as soon as anything lies in it that only the whole release has: the longer list, its
signature, or a file outside the flat set. So no list can be left out unnoticed, since the other files still tell.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Final

from launcher.errors import PackageError
from launcher.integrity import checksums, manifest
from launcher.integrity.manifest import Manifest
from launcher.integrity.signature import SUFFIX
from launcher.payload.carried import NOTICES
from release.folder.files import LISTS

_FOREIGN_FOLDERS: Final = frozenset({".git", ".cache"})
"""What git, and the client of Hugging Face, put beside the files."""
_CACHE: Final = "models--"
"""How the cache of Hugging Face's client calls the folder of a model repository."""


def is_whole(folder: Path, described: Manifest | None) -> bool:
    """Whether a folder is a whole release, rather than the flat set alone."""
    marks = {checksums.FILE_NAME, checksums.FILE_NAME + SUFFIX, NOTICES.rstrip("/")}
    marks |= set() if described is None else {file.path for file in described.files if not file.public}
    return any(os.path.lexists(folder / mark) for mark in marks)


def wanted_lists(*, whole: bool) -> tuple[str, ...]:
    """The lists of checksums that such a folder must have; the first is the one that it is checked against."""
    return LISTS if whole else (checksums.PUBLIC_FILE_NAME,)


def require_own_files(folder: Path) -> None:
    """Refuses a folder whose lists are links that lead out of it, as they are in the cache of Hugging Face's client.

    Raises:
        PackageError: that is so; the message says how to fetch the files themselves.
    """
    for name in (manifest.FILE_NAME, *LISTS):
        place = folder / name
        if not place.is_symlink() or place.resolve().is_relative_to(folder.resolve()):
            continue
        raise PackageError(
            "release-links",
            f"{folder} holds links to files elsewhere ({name} is one), as a download into the cache does;"
            " only files that lie in the folder itself can be verified",
            hint=f"Fetch them as files: hf download {_repository(folder)} --local-dir DIR; then: mindnano verify DIR",
        )


def empty_folders(folder: Path, listed: Iterable[str]) -> tuple[str, ...]:
    """Folders with no file below them which no listed file asks for, each with `/` behind; not those inside them.

    Raises:
        OSError: one cannot be read.
    """
    asked = {str(parent) for path in listed for parent in PurePosixPath(path).parents}
    found = []
    waiting = [""]
    while waiting:
        place = waiting.pop()
        for entry in os.scandir(folder / place):
            path = place + entry.name
            if path in _FOREIGN_FOLDERS or not entry.is_dir(follow_symlinks=False):
                continue
            if path not in asked and _holds_no_file(folder / path):
                found.append(path + "/")
            else:
                waiting.append(path + "/")
    return tuple(sorted(found))


def _holds_no_file(folder: Path) -> bool:
    """Whether nothing but folders lies below; a link counts as a file, and so does a folder that may not be read."""
    closed: list[OSError] = []
    for place, folders, files in os.walk(folder, onerror=closed.append):
        if files or closed or any((Path(place) / name).is_symlink() for name in folders):
            return False
    return not closed


def _repository(folder: Path) -> str:
    """ORG/NAME where the path is that of the cache."""
    found = next((part for part in reversed(folder.absolute().parts) if part.startswith(_CACHE)), "")
    organisation, _, name = found.removeprefix(_CACHE).partition("--")
    return f"{organisation}/{name}" if organisation and name else "ORG/NAME"
