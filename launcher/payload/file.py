"""The payload: files that the portable program carries behind its ELF part, in one zip archive.

Nothing is unpacked to be used. Members are stored as they are, and large ones start at multiples of 64 KiB, so they are
mapped where they lie. The archive's comment, which is the end of the file, is the seal: one line of text with the
lengths of the file and of its ELF part, where the archive's directory starts, and the SHA-256 of everything before it.

The member `payload.json` lists the others with size and SHA-256, and the ELF part with them.
`bundle/native/start.c` reads the seal too, and `bundle/payload.py` writes all of this.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from launcher.errors import InternalError, PackageError

SEAL_MAGIC: Final = b"MNSEAL1 "
SEAL_BYTES: Final = 124
SEAL_HASHED: Final = 59
"""How many bytes of the seal its digest covers."""
ALIGNMENT: Final = 65536
INDEX: Final = "payload.json"
SCHEMA: Final = "mindnano-infer.payload"
VERSION: Final = 1
STEP: Final = 1 << 20

_SEAL: Final = re.compile(rb"MNSEAL1 ([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9a-f]{16}) ([0-9a-f]{64})\n")
_MAX_NAME: Final = 200
_LOCAL_HEADER: Final = struct.Struct("<4s5H3I2H")
_LOCAL_MAGIC: Final = b"PK\x03\x04"

Advance = Callable[[int], None]
"""Gets the number of bytes that were read since it was last called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file of the payload: its `size` bytes lie at `offset` of the program's file."""

    name: str
    offset: int
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Elf:
    """The program proper, which the payload follows."""

    size: int
    sha256: str


def is_safe_name(name: str) -> bool:
    """Whether a member may have this name: relative, one way to write it, printable ASCII, no way out of a folder."""
    parts = name.split("/")
    return (
        0 < len(name) <= _MAX_NAME
        and name.isascii()
        and name.isprintable()
        and not set(name) & set('\\:*?"<>| ')
        and all(part not in {"", ".", ".."} for part in parts)
    )


class Payload:
    """An open payload. It holds a descriptor, so replacing or removing the file changes nothing for it."""

    def __init__(self, path: str) -> None:
        """Opens a finished file and reads its seal, directory and list.

        Raises:
            PackageError: it cannot be read, carries no payload, or its parts contradict each other.
        """
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _damaged(f"cannot open {path}: {error.strerror}") from error
        self.path: Final = path
        try:
            self._read()
        except OSError as error:
            self.close()
            raise _damaged(f"cannot read {path}: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    def _read(self) -> None:
        self.file_bytes = os.fstat(self._descriptor).st_size
        if self.file_bytes < SEAL_BYTES:
            raise _damaged(f"{self.path} has {self.file_bytes} bytes, fewer than a seal")
        seal = _SEAL.fullmatch(self.read_at(self.file_bytes - SEAL_BYTES, SEAL_BYTES))
        if seal is None:
            raise _damaged(f"{self.path} does not end with a seal")
        length, elf_bytes, self.directory_offset = (int(seal[index], 16) for index in (1, 2, 3))
        self.sealed_sha256 = seal[4].decode()
        if length != self.file_bytes or not elf_bytes <= self.directory_offset <= self.file_bytes - SEAL_BYTES:
            raise _damaged(f"{self.path} has {self.file_bytes} bytes; its seal says {length}")
        places = self._places()
        if INDEX not in places:
            raise _damaged(f"{self.path} has no {INDEX}")
        self.elf, self.members = _listed(self.read_at(*places.pop(INDEX)), places)
        if self.elf.size != elf_bytes:
            raise _damaged(f"the ELF part has {elf_bytes} bytes; {INDEX} says {self.elf.size}")

    def _places(self) -> dict[str, tuple[int, int]]:
        """Offset and size of every member, from the archive's directory."""
        from zipfile import ZIP_STORED, BadZipFile, ZipFile

        places = {}
        try:
            with os.fdopen(os.dup(self._descriptor), "rb") as file, ZipFile(file) as archive:
                for entry in archive.infolist():
                    if entry.compress_type != ZIP_STORED or entry.compress_size != entry.file_size:
                        raise _damaged(f"{entry.filename} is compressed; members are stored as they are")
                    if not is_safe_name(entry.filename) or entry.filename in places:
                        raise _damaged(f"{entry.filename!r} is no name for a member, or stands there twice")
                    places[entry.filename] = self._place(entry.header_offset, entry.file_size), entry.file_size
        except (BadZipFile, ValueError, NotImplementedError, struct.error) as error:
            raise _damaged(f"the directory of {self.path} cannot be read: {error}") from error
        return places

    def _place(self, header: int, size: int) -> int:
        fields = _LOCAL_HEADER.unpack(self.read_at(header, _LOCAL_HEADER.size))
        offset = header + _LOCAL_HEADER.size + int(fields[9]) + int(fields[10])
        if fields[0] != _LOCAL_MAGIC or offset + size > self.directory_offset:
            raise _damaged(f"a member at {header} leaves the payload")
        return offset

    def read_at(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes of the file.

        Raises:
            PackageError: the file ends before.
        """
        data = b"".join(self.pieces(offset, size))
        if len(data) != size:
            raise _damaged(f"{self.path} ends before byte {offset + size}")
        return data

    def pieces(self, offset: int, size: int) -> Iterator[bytes]:
        """The bytes from `offset` on, at most 1 MiB at a time; fewer than `size` where the file ends before."""
        end = offset + size
        while offset < end and (data := os.pread(self._descriptor, min(STEP, end - offset), offset)):
            yield data
            offset += len(data)

    def member(self, name: str) -> Member:
        """The member of that name.

        Raises:
            InternalError: there is none.
        """
        if name not in self.members:
            raise InternalError("payload-member", f"the payload has no {name}")
        return self.members[name]

    def read(self, name: str) -> bytes:
        """A member's bytes."""
        member = self.member(name)
        return self.read_at(member.offset, member.size)

    @property
    def open_path(self) -> str:
        """A path by which the same file is opened again, even when its name is gone."""
        return f"/proc/self/fd/{self._descriptor}"

    def sha256(self, offset: int, size: int, advance: Advance | None = None) -> str:
        """SHA-256 of a stretch of the file, or of what there is of it."""
        digest = hashlib.sha256()
        for piece in self.pieces(offset, size):
            digest.update(piece)
            if advance is not None:
                advance(len(piece))
        return digest.hexdigest()

    def sealed_part_sha256(self, advance: Advance | None = None) -> str:
        """SHA-256 of all that the seal covers; equal to `sealed_sha256` where the file is whole."""
        return self.sha256(0, self.file_bytes - (SEAL_BYTES - SEAL_HASHED), advance)

    def close(self) -> None:
        """Closes the descriptor; does nothing the second time."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def seal_line(file_bytes: int, elf_bytes: int, directory_offset: int) -> bytes:
    """The part of the seal that its digest covers."""
    return SEAL_MAGIC + f"{file_bytes:016x} {elf_bytes:016x} {directory_offset:016x} ".encode("ascii")


def index_document(elf: Elf, members: Mapping[str, tuple[int, str]]) -> dict[str, object]:
    """The content of `payload.json`: the ELF part, and (size, SHA-256) of every member."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "elf": {"size": elf.size, "sha256": elf.sha256},
        "members": [{"name": name, "size": size, "sha256": sha256} for name, (size, sha256) in sorted(members.items())],
    }


def _listed(data: bytes, places: Mapping[str, tuple[int, int]]) -> tuple[Elf, Mapping[str, Member]]:
    try:
        document = json.loads(data)
        if (document["schema"], document["version"]) != (SCHEMA, VERSION):
            raise _damaged(f"{INDEX} is {document['schema']} {document['version']}; expected {SCHEMA} {VERSION}")
        elf = Elf(size=int(document["elf"]["size"]), sha256=str(document["elf"]["sha256"]))
        listed = {str(entry["name"]): (int(entry["size"]), str(entry["sha256"])) for entry in document["members"]}
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(f"{INDEX} cannot be read: {error!r}") from error
    for name in sorted(listed.keys() ^ places.keys()):
        where = "is listed but not there" if name in listed else "is there but not listed"
        raise _damaged(f"{name} {where}")
    members = {}
    for name, (offset, size) in sorted(places.items()):
        if listed[name][0] != size:
            raise _damaged(f"{name} has {size} bytes; {INDEX} says {listed[name][0]}")
        members[name] = Member(name=name, offset=offset, size=size, sha256=listed[name][1])
    return elf, members


def _damaged(message: str) -> PackageError:
    return PackageError("payload-damaged", message, hint="copy or download the program again")
