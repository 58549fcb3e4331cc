"""The `.l3r` file: where each part goes, and the bytes of header and directory (docs/l3r-format.md).

The same sections and tensors give the same bytes on every machine.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final

from launcher.engine_types import Dtype, Section
from launcher.errors import InternalError, PackageError

MAGIC: Final = b"\x89L3R\r\n\x1a\n"
VERSION: Final = 1
HEADER_BYTES: Final = 192
EXTENT_ALIGNMENT: Final = 65536
SECTION_ALIGNMENT: Final = 64
MAX_TENSORS: Final = 65536
_NAME_BYTES: Final = 80
_HEADER: Final = struct.Struct("<8sIIQQQIIQQ32s64x")
_SECTION: Final = struct.Struct("<I4xQQ32s8x")
_TENSOR: Final = struct.Struct("<80sII4QQQI4x32s16x")


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionPart:
    """A section to write: kind, bytes, SHA-256."""

    kind: Section
    length: int
    sha256: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPart:
    """A tensor to write; `length` is what dtype and shape give, `group` 0 trunk or 1 MTP."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    group: int
    length: int
    sha256: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlan:
    """Where everything lies, and the bytes before the first section."""

    front: bytes
    section_offsets: tuple[int, ...]
    tensor_offsets: tuple[int, ...]
    file_bytes: int


def plan_file(sections: Sequence[SectionPart], tensors: Sequence[TensorPart], *, has_trunk: bool = True) -> FilePlan:
    """Places sections and tensors in the order given and writes header and directory.

    Args:
        sections: what the file says of itself.
        tensors: what it holds.
        has_trunk: False for a side-car, which holds nothing but MTP tensors.

    Raises:
        PackageError: a name is too long, there are too many tensors or none, or an MTP tensor precedes a trunk tensor.
    """
    _check_tensors(tensors, has_trunk=has_trunk)
    directory_bytes = _SECTION.size * len(sections) + _TENSOR.size * len(tensors)
    section_offsets, end = _place((part.length for part in sections), HEADER_BYTES + directory_bytes, SECTION_ALIGNMENT)
    data_offset = _align(end, EXTENT_ALIGNMENT)
    tensor_offsets, file_bytes = _place((part.length for part in tensors), data_offset, EXTENT_ALIGNMENT)
    placed = list(zip(tensors, tensor_offsets, strict=True))
    trunk_end = max((offset + part.length for part, offset in placed if part.group == 0), default=data_offset)
    directory = b"".join(
        [
            *(
                _SECTION.pack(part.kind, offset, part.length, part.sha256)
                for part, offset in zip(sections, section_offsets, strict=True)
            ),
            *(_tensor_entry(part, offset) for part, offset in placed),
        ]
    )
    head = _HEADER.pack(
        MAGIC,
        VERSION,
        HEADER_BYTES,
        file_bytes,
        HEADER_BYTES,
        directory_bytes,
        len(sections),
        len(tensors),
        data_offset,
        trunk_end,
        hashlib.sha256(directory).digest(),
    )
    return FilePlan(
        front=head + hashlib.sha256(head).digest() + directory,
        section_offsets=section_offsets,
        tensor_offsets=tensor_offsets,
        file_bytes=file_bytes,
    )


def write_file(file: BinaryIO, plan: FilePlan, parts: Iterable[Callable[[BinaryIO], None]]) -> None:
    """Writes the planned file; each of `parts` writes one section or tensor, in order, sections first.

    Raises:
        InternalError: a part wrote more or fewer bytes than planned.
    """
    file.write(plan.front)
    for offset, write in zip((*plan.section_offsets, *plan.tensor_offsets), parts, strict=True):
        gap = offset - file.tell()
        if gap < 0:
            raise InternalError("package-overrun", f"a part before offset {offset} is longer than planned")
        file.write(b"\0" * gap)
        write(file)
    if file.tell() != plan.file_bytes:
        raise InternalError("package-overrun", f"the file has {file.tell()} bytes instead of {plan.file_bytes}")


def _check_tensors(tensors: Sequence[TensorPart], *, has_trunk: bool) -> None:
    if not 1 <= len(tensors) <= MAX_TENSORS or (tensors[0].group == 0) != has_trunk:
        raise PackageError(
            "package-tensors-invalid",
            f"a package has 1 to {MAX_TENSORS} tensors and begins with the trunk; a side-car has no trunk",
        )
    groups = [part.group for part in tensors]
    if groups != sorted(groups):
        raise PackageError("package-tensors-invalid", "an MTP tensor precedes a trunk tensor")
    for part in tensors:
        if not 1 <= len(part.shape) <= 3 or len(part.name.encode()) >= _NAME_BYTES:
            raise PackageError(
                "package-tensors-invalid",
                f"tensor {part.name} has {len(part.shape)} dimensions and a name of {len(part.name.encode())} bytes;"
                f" 1 to 3 and at most {_NAME_BYTES - 1} are possible",
            )


def _tensor_entry(part: TensorPart, offset: int) -> bytes:
    shape = (*part.shape, *[0] * (4 - len(part.shape)))
    return _TENSOR.pack(
        part.name.encode(), part.dtype, len(part.shape), *shape, offset, part.length, part.group, part.sha256
    )


def _place(lengths: Iterable[int], start: int, alignment: int) -> tuple[tuple[int, ...], int]:
    """Aligned offsets of consecutive parts, and the end of the last one."""
    offsets = []
    position = start
    for length in lengths:
        offset = _align(position, alignment)
        offsets.append(offset)
        position = offset + length
    return tuple(offsets), position


def _align(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
