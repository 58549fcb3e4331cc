"""Writes the payload: appends an archive of files to a linked program and seals the result.

`launcher/payload/file.py` owns the format. The bytes depend on the program and the members alone: members stand in the
order of their names after `payload.json`, dates and attributes are fixed, nothing is compressed.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from bundle.errors import BundleError
from launcher.integrity import strict_json
from launcher.payload.file import (
    ALIGNMENT,
    INDEX,
    SEAL_BYTES,
    SEAL_MAGIC,
    STEP,
    Elf,
    Member,
    index_document,
    is_safe_name,
    seal_line,
)

Source = Path | bytes

# APPNOTE 6.3.10, sections 4.3.7, 4.3.12 and 4.3.16.
_LOCAL: Final = struct.Struct("<4s5H3I2H")
_CENTRAL: Final = struct.Struct("<4s6H3I5H2I")
_END: Final = struct.Struct("<4s4H2IH")
_NEEDED: Final = 10  # version 1.0: stored members
_MADE_BY: Final = 3 << 8 | 30  # Unix, which gives the attributes their meaning
_MIDNIGHT: Final = 0
_FIRST_DAY: Final = 0x0021  # 1980-01-01, the earliest date there is
_ATTRIBUTES: Final = 0o100644 << 16
_PADDING: Final = 0x334C  # an extra field of our own, all zeros
_PADDING_HEADER: Final = struct.Struct("<HH")
_LIMIT: Final = 0xFFFF_0000  # beyond this the format needs its 64-bit form


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A finished program: size and SHA-256 of the whole file, length of its ELF part, and what it carries."""

    path: Path
    size: int
    sha256: str
    elf_bytes: int
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    size: int
    sha256: str
    crc: int


def pack(elf: Path, target: Path, members: Mapping[str, Source]) -> Packed:
    """Writes `elf` with the members behind it to `target`, executable and sealed, and puts it in place at once.

    Raises:
        BundleError: a name is not safe, `elf` is no ELF file or is packed already, or the result would exceed 4 GiB.
    """
    _require_program(elf)
    for name in members:
        if name == INDEX or not is_safe_name(name):
            raise BundleError("payload-name", f"{name!r} cannot be the name of a member")
    facts = {name: _facts(source) for name, source in members.items()}
    program = _facts(elf)
    listed = {name: (fact.size, fact.sha256) for name, fact in facts.items()}
    document = index_document(Elf(size=program.size, sha256=program.sha256), listed)
    index = strict_json.to_bytes(document)
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with partial.open("wb") as stream:
            writer = _Writer(stream)
            writer.copy(elf)
            writer.member(INDEX, index, _facts(index))
            for name in sorted(members):
                writer.member(name, members[name], facts[name])
            writer.finish(program.size)
        partial.chmod(0o755)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return Packed(
        path=target,
        size=writer.position,
        sha256=writer.whole.hexdigest(),
        elf_bytes=program.size,
        members=tuple(writer.members),
    )


class _Writer:
    """Writes and hashes in one pass; knows where it is."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._central: list[bytes] = []
        self.whole = hashlib.sha256()
        self.position = 0
        self.members: list[Member] = []

    def write(self, data: bytes) -> None:
        self._stream.write(data)
        self.whole.update(data)
        self.position += len(data)

    def copy(self, source: Source) -> None:
        for piece in _pieces(source):
            self.write(piece)

    def member(self, name: str, source: Source, facts: _Facts) -> None:
        """Large members start at multiples of 64 KiB, so that they can be mapped."""
        encoded = name.encode("ascii")
        extra = b""
        if facts.size >= ALIGNMENT:
            missing = -(self.position + _LOCAL.size + len(encoded)) % ALIGNMENT
            if missing >= _PADDING_HEADER.size:
                padding = missing - _PADDING_HEADER.size
                extra = _PADDING_HEADER.pack(_PADDING, padding) + bytes(padding)
            else:
                self.write(bytes(missing))  # too little room for a field: a gap between members is allowed as well
        common = (0, 0, _MIDNIGHT, _FIRST_DAY, facts.crc, facts.size, facts.size, len(encoded))
        header = self.position
        self.write(_LOCAL.pack(b"PK\x03\x04", _NEEDED, *common, len(extra)) + encoded + extra)
        entry = _CENTRAL.pack(b"PK\x01\x02", _MADE_BY, _NEEDED, *common, 0, 0, 0, 0, _ATTRIBUTES, header)
        self._central.append(entry + encoded)
        start = self.position
        self.copy(source)
        if self.position - start != facts.size or self.position > _LIMIT:
            raise BundleError("payload-member", f"{name} changed while it was packed, or the file exceeds 4 GiB")
        self.members.append(Member(name=name, offset=start, size=facts.size, sha256=facts.sha256))

    def finish(self, elf_bytes: int) -> None:
        """Writes the directory and the seal."""
        directory = self.position
        for entry in self._central:
            self.write(entry)
        count, length = len(self._central), self.position - directory
        self.write(_END.pack(b"PK\x05\x06", 0, 0, count, count, length, directory, SEAL_BYTES))
        self.write(seal_line(self.position + SEAL_BYTES, elf_bytes, directory))
        self.write(f"{self.whole.hexdigest()}\n".encode("ascii"))


def _require_program(elf: Path) -> None:
    with elf.open("rb") as stream:
        if stream.read(4) != b"\x7fELF":
            raise BundleError("payload-elf", f"{elf} is no ELF file")
        stream.seek(0, os.SEEK_END)
        if stream.tell() >= SEAL_BYTES:
            stream.seek(-SEAL_BYTES, os.SEEK_END)
            if stream.read(len(SEAL_MAGIC)) == SEAL_MAGIC:
                raise BundleError("payload-elf", f"{elf} is packed already", hint="pack the file that the linker wrote")


def _facts(source: Source) -> _Facts:
    digest, crc, size = hashlib.sha256(), 0, 0
    for piece in _pieces(source):
        digest.update(piece)
        crc = zlib.crc32(piece, crc)
        size += len(piece)
    return _Facts(size=size, sha256=digest.hexdigest(), crc=crc)


def _pieces(source: Source) -> Iterator[bytes]:
    if isinstance(source, bytes):
        yield source
        return
    with source.open("rb") as stream:
        while piece := stream.read(STEP):
            yield piece
