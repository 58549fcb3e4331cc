"""What a linker put together: static libraries with their members, and objects, as its own command names them."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Final

from notices.errors import NoticeError

_MAGIC: Final = b"!<arch>\n"
_HEADER_BYTES: Final = 60
_SYMBOL_TABLES: Final = ("/", "/SYM64/", "__.SYMDEF", "__.SYMDEF SORTED")


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A static library that was linked, with the names of its members in order; a name can occur more than once."""

    name: str
    sha256: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFile:
    """A single object that was linked."""

    name: str
    sha256: str


def read_archive(path: Path, name: str | None = None) -> Archive:
    """A static library on disk, called `name`, or as its file is called.

    Raises:
        NoticeError: it cannot be read or is no `ar` archive of the GNU or BSD kind; thin ones refer to files elsewhere.
    """
    try:
        with path.open("rb") as stream:
            members = tuple(_members(stream, path))
            stream.seek(0)
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise _unreadable(path, str(error)) from error
    return Archive(name=name or path.name, sha256=digest, members=members)


def read_object(path: Path, name: str | None = None) -> ObjectFile:
    """An object on disk.

    Raises:
        NoticeError: it cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return ObjectFile(name=name or path.name, sha256=hashlib.file_digest(stream, "sha256").hexdigest())
    except OSError as error:
        raise _unreadable(path, str(error)) from error


def linker_command(output: str, result: str) -> tuple[str, ...]:
    """The words of the linker's own command in what `zig cc -v` prints.

    zig prints those of libraries too that it makes on the way; the one that is meant writes `result`.

    Raises:
        NoticeError: there is none, or there are several.
    """
    commands = [tuple(shlex.split(line)) for line in output.splitlines() if line.startswith("ld.lld ")]
    found = [words for words in commands if ("-o", result) in pairwise(words)]
    if len(found) != 1:
        raise NoticeError("notices-linked", f"the output holds {len(found)} commands of the linker that write {result}")
    return found[0]


def linked_files(
    words: Iterable[str],
    folder: Path,
    *,
    joined: Mapping[str, Sequence[Archive]] | None = None,
    names: Mapping[Path, str] | None = None,
) -> tuple[tuple[Archive, ...], tuple[ObjectFile, ...]]:
    """The static libraries and objects among the words of a linker's command.

    The command must be the linker's own, see `linker_command`: start files and run-time libraries are on it, which no
    command of the build names.

    Args:
        folder: where the linker ran; relative names start there.
        joined: libraries that the build joined to one, by the name of that one; its parts stand in for it.
        names: what to call objects whose file names say nothing, by path.

    Raises:
        NoticeError: a file cannot be read, or `joined` names a library that was not linked.
    """
    parts = dict(joined or {})
    archives: list[Archive] = []
    objects: list[ObjectFile] = []
    for path in dict.fromkeys(folder / word for word in _inputs(words)):
        if path.suffix == ".o":
            objects.append(read_object(path, (names or {}).get(path)))
        elif path.name in parts:
            archives += parts.pop(path.name)
        else:
            archives.append(read_archive(path))
    if parts:
        raise NoticeError("notices-linked", f"{', '.join(sorted(parts))} should have been linked and was not")
    if not objects and not archives:
        raise NoticeError("notices-linked", "the linker's command names neither objects nor static libraries")
    return tuple(archives), tuple(objects)


def _inputs(words: Iterable[str]) -> Iterator[str]:
    """Words that name a file to link; the name after `-o` is that of the result."""
    previous = ""
    for word in words:
        if word.endswith((".a", ".o")) and not word.startswith("-") and previous not in ("-o", "-soname", "-Map"):
            yield word
        previous = word


def _members(stream: BinaryIO, path: Path) -> Iterator[str]:
    if stream.read(len(_MAGIC)) != _MAGIC:
        raise _unreadable(path, "it does not begin as an ar archive does")
    long_names = b""
    while header := stream.read(_HEADER_BYTES):
        if len(header) != _HEADER_BYTES or header[58:] != b"`\n":
            raise _unreadable(path, f"no member begins at byte {stream.tell() - len(header)}")
        try:
            name, size = header[:16].decode("ascii").rstrip(), int(header[48:58])
        except ValueError as error:
            raise _unreadable(path, f"a member has no name or size: {error}") from error
        start = stream.tell()
        if name == "//":
            long_names = stream.read(size)
        elif name.startswith("#1/"):
            name = stream.read(int(name[3:])).rstrip(b"\0").decode("utf-8", "replace")
        elif name.startswith("/") and name[1:].isdecimal():
            name = long_names[int(name[1:]) :].partition(b"\n")[0].decode("utf-8", "replace").removesuffix("/")
        if name != "//" and name not in _SYMBOL_TABLES:
            yield Path(name.removesuffix("/")).name
        stream.seek(start + size + size % 2)


def _unreadable(path: Path, fault: str) -> NoticeError:
    return NoticeError("notices-linked", f"{path.name} cannot be taken apart: {fault}")
