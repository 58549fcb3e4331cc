"""Damage to `.l3r` files: where their fields lie (docs/l3r-format.md), and checksums that fit the damage."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tests.support.programs import Answer, PackageDriver

Patch = tuple[int, bytes]
"""Bytes to put at an offset of the file."""

HEADER = 192
SECTION = 64
TENSOR = 192
SEALED_SECTIONS = (1, 2)
"""Kinds whose SHA-256 is checked when a package is opened: config and features."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A number in the file: its offset within its table entry and its width in bytes."""

    offset: int
    width: int

    def patch(self, base: int, value: int) -> Patch:
        """The number, cut to its width, in the entry at `base`."""
        return base + self.offset, (value % (1 << 8 * self.width)).to_bytes(self.width, "little")


def _fields(**places: tuple[int, int]) -> Mapping[str, Field]:
    return {name: Field(offset=offset, width=width) for name, (offset, width) in places.items()}


HEADER_FIELDS = _fields(
    magic=(0, 8),
    version=(8, 4),
    header_bytes=(12, 4),
    file_bytes=(16, 8),
    directory_offset=(24, 8),
    directory_bytes=(32, 8),
    section_count=(40, 4),
    tensor_count=(44, 4),
    data_offset=(48, 8),
    trunk_end=(56, 8),
    reserved_first=(96, 8),
    reserved_last=(152, 8),
)
SECTION_FIELDS = _fields(kind=(0, 4), zero=(4, 4), offset=(8, 8), length=(16, 8), sha256=(24, 8), tail=(56, 8))
TENSOR_FIELDS = _fields(
    dtype=(80, 4),
    rank=(84, 4),
    shape0=(88, 8),
    shape1=(96, 8),
    shape2=(104, 8),
    shape3=(112, 8),
    offset=(120, 8),
    length=(128, 8),
    group=(136, 4),
    zero=(140, 4),
    tail_first=(176, 8),
    tail_last=(184, 8),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A section or tensor: where its entry is, its kind or group, and its bytes `offset` to `end`."""

    entry: int
    label: int
    offset: int
    length: int

    @property
    def end(self) -> int:
        """First byte after it."""
        return self.offset + self.length


class Image:
    """The bytes of a sound package with its tables, to derive damaged ones from."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        sections, tensors = struct.unpack_from("<II", self.data, 40)
        self.data_offset, self.trunk_end = struct.unpack_from("<QQ", self.data, 48)
        self.sections = [self._extent(HEADER + SECTION * index, SECTION_FIELDS, "kind") for index in range(sections)]
        first = HEADER + SECTION * sections
        self.tensors = [self._extent(first + TENSOR * index, TENSOR_FIELDS, "group") for index in range(tensors)]
        self.directory_end = first + TENSOR * tensors

    def section(self, kind: int) -> Extent:
        """The section of a kind."""
        return next(section for section in self.sections if section.label == kind)

    def number(self, base: int, field: Field) -> int:
        """A field's value in the sound file."""
        return int.from_bytes(self.data[base + field.offset : base + field.offset + field.width], "little")

    def name(self, tensor: Extent) -> str:
        """The tensor's name."""
        return self.data[tensor.entry : tensor.entry + 80].rstrip(b"\0").decode()

    def sealed(self, patches: Sequence[Patch]) -> list[Patch]:
        """The patches with the checksums of config, features, directory and header made to fit."""
        front = bytearray(self.data[: self.data_offset])
        for offset, data in patches:
            assert offset + len(data) <= len(front), "only what lies before the extents is under checksums"
            front[offset : offset + len(data)] = data
        for section in self.sections:
            if section.label in SEALED_SECTIONS:
                start, length = struct.unpack_from("<QQ", front, section.entry + 8)
                content = front[start : start + length] if start < len(front) else b""
                front[section.entry + 24 : section.entry + 56] = hashlib.sha256(content).digest()
        front[64:96] = hashlib.sha256(front[HEADER : self.directory_end]).digest()
        front[160:192] = hashlib.sha256(front[:160]).digest()
        return [(0, bytes(front))]

    def _extent(self, entry: int, fields: Mapping[str, Field], label: str) -> Extent:
        return Extent(
            entry=entry,
            label=self.number(entry, fields[label]),
            offset=self.number(entry, fields["offset"]),
            length=self.number(entry, fields["length"]),
        )


class Workbench:
    """One file on disk that is damaged, shown to the driver and mended again."""

    def __init__(self, image: Image, path: Path, driver: PackageDriver) -> None:
        self.image = image
        self._path = path
        self._driver = driver
        path.write_bytes(image.data)

    def ask(self, patches: Sequence[Patch], depth: str = "open", *, length: int | None = None) -> Answer:
        """What the engine says to the file with these patches; cut or extended to `length` it has empty extents."""
        if length is not None:
            return self._ask_cut(patches, depth, length)
        with self._path.open("r+b") as file:
            _apply(file, patches)
        answer = self._driver.ask(depth, self._path)
        with self._path.open("r+b") as file:
            _apply(file, [(offset, self.image.data[offset : offset + len(patch)]) for offset, patch in patches])
        return answer

    def _ask_cut(self, patches: Sequence[Patch], depth: str, length: int) -> Answer:
        path = self._path.with_suffix(".cut")
        with path.open("wb") as file:
            file.write(self.image.data[: self.image.data_offset])
            _apply(file, patches)
            file.truncate(length)  # holes instead of extents
        return self._driver.ask(depth, path)


def _apply(file: BinaryIO, patches: Sequence[Patch]) -> None:
    for offset, patch in patches:
        file.seek(offset)
        file.write(patch)
