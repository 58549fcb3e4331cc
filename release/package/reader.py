"""Reads `.l3r` files strictly and without the engine: packages, and side-cars, which hold nothing but an MTP layer.

The engine's reader owns the format and refuses a side-car, since that is no model. This one accepts what the writer in
`release.package.l3r` can have written and nothing else; every number is checked before anything it points to is read.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

from launcher.engine_types import Dtype, ModelConfig, Section, TensorInfo
from launcher.errors import PackageError
from release.checkpoint.config import config_section, parse_config_section
from release.checkpoint.json_text import parse_json
from release.checkpoint.tensors import GROUP_MTP, GROUP_TRUNK, package_tensors
from release.layouts.weights import tensor_bytes
from release.package.l3r import EXTENT_ALIGNMENT, HEADER_BYTES, MAGIC, MAX_TENSORS, SECTION_ALIGNMENT, VERSION

SIDECAR_FORMAT: Final = "l3r-mtp"
"""`format` in the metadata of a side-car; that of a package is anything else."""

_HEADER: Final = struct.Struct("<8sIIQQQIIQQ32s64s32s")
_SECTION: Final = struct.Struct("<IIQQ32s8s")
_TENSOR: Final = struct.Struct("<80sII4QQQII32s16s")
_MAX_SECTION_BYTES: Final = 256 << 20
_CHUNK: Final = 1 << 20
_LIMITS: Final = {"layer_count": 512, "layer_group_size": 512, "expert_count": 4096, "mtp_layer_count": 1}
"""Bounds of what decides how many tensors there are; engine/src/package/config.c has the same."""


class Hash(Protocol):
    """What hashlib makes."""

    def update(self, data: bytes, /) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionInfo:
    """A section: where it lies and its bytes, whose SHA-256 is right."""

    kind: Section
    offset: int
    data: bytes
    sha256: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageFile:
    """A file whose header, directory and sections are right; the tensors' contents have not been looked at."""

    path: Path
    bytes: int
    directory_end: int
    data_offset: int
    trunk_end: int
    sections: tuple[SectionInfo, ...]
    tensors: tuple[TensorInfo, ...]
    config: ModelConfig
    metadata: Mapping[str, Any]

    @property
    def trunk(self) -> tuple[TensorInfo, ...]:
        """The tensors of group 0."""
        return tuple(tensor for tensor in self.tensors if tensor.group == GROUP_TRUNK)

    @property
    def mtp(self) -> tuple[TensorInfo, ...]:
        """The tensors of group 1."""
        return tuple(tensor for tensor in self.tensors if tensor.group == GROUP_MTP)

    @property
    def is_sidecar(self) -> bool:
        """Whether it holds nothing but an MTP layer."""
        return self.metadata.get("format") == SIDECAR_FORMAT

    def section(self, kind: Section) -> SectionInfo | None:
        """The section of a kind, or None."""
        return next((section for section in self.sections if section.kind is kind), None)


def read_package(path: Path) -> PackageFile:
    """Reads header, directory and sections.

    Raises:
        PackageError: missing, unreadable, or not exactly what the writer writes.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            return _read(path, file, size)
        except OSError as error:
            raise PackageError("package-unreadable", f"cannot read {path}: {error.strerror}") from error
        except (ValueError, KeyError, RecursionError) as error:
            raise PackageError(
                "package-damaged", f"{path}: {error}", hint="Copy or download the file again."
            ) from error


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The file, unbuffered.

    Raises:
        PackageError: it is missing, no plain file or cannot be opened.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not hold us up
    except FileNotFoundError as error:
        raise PackageError("package-missing", f"{path} does not exist", hint="Check the path.") from error
    except OSError as error:
        raise PackageError("package-unreadable", f"cannot read {path}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise PackageError("package-unreadable", f"{path} is not a plain file")
    with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123 - a descriptor has no path
        yield file


def hash_tensors(
    package: PackageFile, advance: Callable[[int], None], *, whole: Hash | None = None
) -> dict[str, bytes]:
    """SHA-256 of what each tensor's extent holds, by name; reads the file once from end to end.

    Args:
        package: what `read_package` gave.
        advance: receives the bytes read.
        whole: a hash that is fed with every byte of the file.

    Raises:
        PackageError: it cannot be read, became shorter, or has something between two parts.
    """
    digests = {}
    end = 0
    parts = [(0, package.directory_end, "")]
    parts += [(section.offset, len(section.data), "") for section in package.sections]
    parts += [(tensor.offset, tensor.length, tensor.name) for tensor in package.tensors]
    with opened(package.path) as file:
        for offset, length, name in parts:
            for chunk in _chunks(package.path, file, end, offset - end, advance):
                if chunk.count(0) != len(chunk):
                    raise PackageError(
                        "package-damaged",
                        f"{package.path}: between two parts, before byte {offset:,}, lies something that is not zero",
                        hint="Copy or download the file again.",
                    )
                if whole is not None:
                    whole.update(chunk)
            digest = hashlib.sha256()
            for chunk in _chunks(package.path, file, offset, length, advance):
                digest.update(chunk)
                if whole is not None:
                    whole.update(chunk)
            if name:
                digests[name] = digest.digest()
            end = offset + length
    return digests


def damaged_tensors(package: PackageFile, digests: Mapping[str, bytes]) -> list[str]:
    """Names of the tensors whose contents are not what the directory says."""
    return [tensor.name for tensor in package.tensors if digests[tensor.name] != tensor.sha256]


def tensor_copier(
    package: PackageFile, tensor: TensorInfo, advance: Callable[[int], None]
) -> Callable[[BinaryIO], None]:
    """Copies one extent, byte for byte, to the file it is called with."""

    def copy(target: BinaryIO) -> None:
        with opened(package.path) as source:
            for chunk in _chunks(package.path, source, tensor.offset, tensor.length, advance):
                target.write(chunk)

    return copy


def _chunks(path: Path, file: BinaryIO, offset: int, length: int, advance: Callable[[int], None]) -> Iterator[bytes]:
    file.seek(offset)
    while length:
        try:
            chunk = file.read(min(length, _CHUNK))
        except OSError as error:
            raise PackageError("package-unreadable", f"cannot read {path}: {error.strerror}") from error
        if not chunk:
            raise PackageError("package-damaged", f"{path} became shorter while it was read")
        advance(len(chunk))
        length -= len(chunk)
        yield chunk


def _read(path: Path, file: BinaryIO, size: int) -> PackageFile:
    front = file.read(HEADER_BYTES)
    if front[:8] != MAGIC:
        raise ValueError("not an .l3r file: the first 8 bytes are not its magic")
    if len(front) != HEADER_BYTES:
        raise ValueError(f"the file has {size} bytes; the header alone has {HEADER_BYTES}")
    fields = _HEADER.unpack(front)
    _, version, header_bytes, file_bytes, directory_offset, directory_bytes, section_count, tensor_count = fields[:8]
    data_offset, trunk_end, directory_sha256, reserved, header_sha256 = fields[8:]
    if version != VERSION:
        raise PackageError("package-unsupported", f"{path} is of version {version}; this program reads {VERSION}")
    if hashlib.sha256(front[:160]).digest() != header_sha256 or any(reserved):
        raise ValueError("the header is damaged")
    if file_bytes != size:
        raise ValueError(f"the file has {size:,} bytes, its header says {file_bytes:,}")
    expected = _SECTION.size * section_count + _TENSOR.size * tensor_count
    if (header_bytes, directory_offset, directory_bytes) != (HEADER_BYTES, HEADER_BYTES, expected):
        raise ValueError("header and directory are not where they belong")
    if section_count > len(Section) or not 1 <= tensor_count <= MAX_TENSORS:
        raise ValueError(f"{section_count} sections and {tensor_count} tensors are not possible")
    end = HEADER_BYTES + directory_bytes
    if data_offset % EXTENT_ALIGNMENT or not end <= data_offset <= size or data_offset > _MAX_SECTION_BYTES:
        raise ValueError(f"data offset {data_offset:,} is not possible")
    front += file.read(data_offset - HEADER_BYTES)
    directory = front[HEADER_BYTES:end]
    if hashlib.sha256(directory).digest() != directory_sha256:
        raise ValueError("the directory is damaged")
    sections = _read_sections(front, directory[: _SECTION.size * section_count], end, data_offset)
    table = directory[_SECTION.size * section_count :]
    tensors = tuple(_read_tensor(table[start : start + _TENSOR.size]) for start in range(0, len(table), _TENSOR.size))
    _check_extents(tensors, data_offset, trunk_end, size)
    contents = {section.kind: section.data for section in sections}
    config = parse_config_section(contents[Section.CONFIG])
    if config_section(config) != contents[Section.CONFIG]:
        raise ValueError("the config section has something where nothing belongs")
    metadata = parse_json(contents[Section.METADATA])
    if not isinstance(metadata, dict):
        raise ValueError("the metadata section is not a JSON object")
    _check_names(config, tensors, is_sidecar=metadata.get("format") == SIDECAR_FORMAT)
    return PackageFile(
        path=path,
        bytes=size,
        directory_end=end,
        data_offset=data_offset,
        trunk_end=trunk_end,
        sections=sections,
        tensors=tensors,
        config=config,
        metadata=metadata,
    )


def _read_sections(front: bytes, table: bytes, end: int, data_offset: int) -> tuple[SectionInfo, ...]:
    sections: list[SectionInfo] = []
    for kind, zero, offset, length, sha256, tail in _SECTION.iter_unpack(table):
        section = SectionInfo(kind=Section(kind), offset=offset, data=front[offset : offset + length], sha256=sha256)
        if zero or any(tail) or offset % SECTION_ALIGNMENT or offset < end or offset + length > data_offset:
            raise ValueError(f"section {section.kind.name.lower()} is misplaced")
        if any(earlier.kind is section.kind for earlier in sections):
            raise ValueError(f"section {section.kind.name.lower()} occurs twice")
        if hashlib.sha256(section.data).digest() != sha256:
            raise ValueError(f"section {section.kind.name.lower()} is damaged")
        sections.append(section)
        end = offset + length
    missing = {Section.CONFIG, Section.FEATURES, Section.METADATA} - {section.kind for section in sections}
    if missing:
        raise ValueError(f"section {min(missing).name.lower()} is missing")
    return tuple(sections)


def _read_tensor(entry: bytes) -> TensorInfo:
    text, dtype, rank, *sizes, offset, length, group, zero, sha256, tail = _TENSOR.unpack(entry)
    name, _, rest = text.partition(b"\0")
    if not name or len(name) == len(text) or any(rest) or zero or any(tail):
        raise ValueError("an entry of the tensor table is malformed")
    tensor = TensorInfo(
        name=name.decode("utf-8"),
        dtype=Dtype(dtype),
        shape=tuple(sizes[:rank]),
        offset=offset,
        length=length,
        group=group,
        sha256=sha256,
    )
    if not 1 <= rank <= 3 or any(sizes[rank:]) or not all(0 < count < 2**32 for count in tensor.shape):
        raise ValueError(f"tensor {tensor.name} has the impossible shape {sizes} of rank {rank}")
    exact = tensor_bytes(tensor.dtype, tensor.shape)
    if length != exact:
        raise ValueError(f"tensor {tensor.name} has {length:,} bytes; type and shape give {exact:,}")
    return tensor


def _check_extents(tensors: tuple[TensorInfo, ...], data_offset: int, trunk_end: int, size: int) -> None:
    end = trunk = data_offset
    for tensor in tensors:
        is_past = tensor.group == GROUP_MTP and tensor.offset >= trunk_end
        is_before = tensor.group == GROUP_TRUNK and tensor.offset + tensor.length <= trunk_end
        if tensor.offset % EXTENT_ALIGNMENT or tensor.offset < end or not (is_past or is_before):
            raise ValueError(f"tensor {tensor.name} is misplaced")
        end = tensor.offset + tensor.length
        trunk = end if tensor.group == GROUP_TRUNK else trunk
    if (trunk, end) != (trunk_end, size):
        raise ValueError(f"trunk and file end at {trunk:,} and {end:,}, not at {trunk_end:,} and {size:,}")


def _check_names(config: ModelConfig, tensors: tuple[TensorInfo, ...], *, is_sidecar: bool) -> None:
    """Names, shapes and order must be those that the config section describes."""
    for name, limit in _LIMITS.items():
        lowest = 0 if name == "mtp_layer_count" else 1
        if not lowest <= getattr(config, name) <= limit:
            raise ValueError(f"{name} is {getattr(config, name)}; {lowest} to {limit} is possible")
    has_mtp = any(tensor.group == GROUP_MTP for tensor in tensors)
    if has_mtp and config.mtp_layer_count != 1:
        raise ValueError("it holds an MTP layer, but its config names none")
    expected = [
        (tensor.name, tensor.shape, tensor.group)
        for tensor in package_tensors(config, with_mtp=has_mtp)
        if tensor.group == GROUP_MTP or not is_sidecar
    ]
    found = [(tensor.name, tensor.shape, tensor.group) for tensor in tensors]
    if found != expected:
        wrong = next((pair[0] for pair in zip(found, expected, strict=False) if pair[0] != pair[1]), None)
        where = f"{len(found)} instead of {len(expected)}" if wrong is None else f"{wrong[0]} {list(wrong[1])}"
        raise ValueError(f"its tensors are not those that its config describes: {where}")
