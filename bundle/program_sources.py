"""Which files of the source the portable program is made from, and one digest of all of them.

The digest is the SHA-256 of the list that `sha256sum` prints of these files: one line each, sorted by the bytes of
their paths. It depends on nothing but names and contents, so it is the same in every checkout of one source, and
another one wherever the source differs. The program carries it in its bill of materials, and a release is made only of
a program that has the digest of the checkout.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from engine.fetch import file_sha256

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = ("bundle", "engine", "launcher", "notices")
"""Everything in them counts: program text, tables, pages, licence texts."""
FILES: Final = ("LICENSE", "LICENSES.md", "NOTICE", "requirements/nuitka.txt", "requirements/run.txt")
"""What is taken from elsewhere: the project's own terms, and which packages of which digests are inside."""

_LEFT_BEHIND: Final = (".partial", ".pyc", "~")


def is_source(path: str) -> bool:
    """Whether a file with this path in the checkout, `/` between parts, is one of them.

    What editors, Python and interrupted writes leave between the files is not.
    """
    parts = PurePosixPath(path).parts
    if path in FILES:
        return True
    if parts[0] not in FOLDERS or len(parts) < 2 or path.endswith(_LEFT_BEHIND):
        return False
    return not any(part.startswith(".") or part == "__pycache__" for part in parts)


def source_list(root: Path = ROOT) -> bytes:
    """The files with their digests, as `sha256sum` prints them."""
    files = {os.fsencode(path.relative_to(root)): path for path in _files(root)}
    return b"".join(_line(file_sha256(files[name]), name) for name in sorted(files))


def source_digest(root: Path = ROOT) -> str:
    """SHA-256 of the list, in hex."""
    return hashlib.sha256(source_list(root)).hexdigest()


def _line(digest: str, name: bytes) -> bytes:
    """Names are bytes in whatever encoding; one with a line feed in it must not look like two files."""
    escaped = name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
    return (b"" if escaped == name else b"\\") + digest.encode() + b"  " + escaped + b"\n"


def _files(root: Path) -> Iterator[Path]:
    for path in (root / name for name in FILES):
        if path.is_file():
            yield path
    for folder in FOLDERS:
        for path in (root / folder).rglob("*"):
            if is_source(path.relative_to(root).as_posix()) and path.is_file():
                yield path
