"""Reads safetensors files without loading them: checked headers, then rows by position.

The `safetensors` package has no bfloat16 for NumPy and hands out whole tensors; here memory is bounded by the rows that
are asked for. Format: u64 header length, JSON header, then the data; https://huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self, TypeGuard

import numpy as np
import numpy.typing as npt

from launcher.errors import PackageError

_MAX_HEADER_BYTES = 100_000_000  # the limit of the reference reader
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_READ_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}

ByteArray = npt.NDArray[np.uint8]
Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLocation:
    """Where one tensor lies: file, element type (``F32``, ``F16`` or ``BF16``), shape, first byte in the file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def bytes(self) -> int:
        """Size in the file."""
        return prod(self.shape) * _ITEM_BYTES[self.dtype]


def read_header(path: Path) -> dict[str, TensorLocation]:
    """The tensors of one safetensors file, by name.

    Raises:
        PackageError: the file cannot be read, is truncated or malformed, or holds an element type other than
            BF16, F16 and F32.
    """
    header, data_start, data_bytes = _load_header(path)
    tensors: dict[str, TensorLocation] = {}
    extents: list[tuple[int, int, str]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        location, begin, end = _parse_entry(path, name, entry, data_start)
        if end > data_bytes:
            raise _malformed(path, f"tensor {name} ends at byte {end:,} of {data_bytes:,}: the file is truncated")
        tensors[name] = location
        extents.append((begin, end, name))
    _check_extents(path, sorted(extents), data_bytes)
    return tensors


class TensorReader:
    """Reads located tensors. A context manager that keeps the files open; any number of threads may read at once."""

    def __init__(self, tensors: Mapping[str, TensorLocation]) -> None:
        self._tensors = tensors
        self._files: dict[Path, int] = {}
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            while self._files:
                os.close(self._files.popitem()[1])

    def location(self, name: str) -> TensorLocation:
        """Where a tensor lies."""
        return self._tensors[name]

    def read(self, name: str) -> Float32Array:
        """A whole tensor as float32 in its own shape. Only finite values are returned.

        Raises:
            PackageError: NaN or infinity in the tensor, or the file cannot be read.
        """
        location = self._tensors[name]
        values = _widen(location, self.stored(name)).reshape(location.shape)
        finite = np.isfinite(values)
        if not finite.all():
            raise self.not_finite(name, int(np.argmin(finite)))
        return values

    def stored(self, name: str) -> ByteArray:
        """The bytes of a whole tensor.

        Raises:
            PackageError: the file cannot be read.
        """
        location = self._tensors[name]
        return self._fill(location, 0, prod(location.shape))

    def stored_rows(self, name: str, first: int, last: int) -> ByteArray:
        """The bytes of rows ``[first, last)`` of a matrix.

        Raises:
            PackageError: the file cannot be read.
        """
        location = self._tensors[name]
        width = location.shape[1]
        return self._fill(location, first * width, last * width)

    def not_finite(self, name: str, position: int) -> PackageError:
        """The error that names an element of a tensor which is NaN or infinite."""
        location = self._tensors[name]
        value = _widen(location, self._fill(location, position, position + 1))[0]
        return PackageError(
            "checkpoint-not-finite",
            f"tensor {name} in {location.path.name} holds {value} at element {position:,}",
            hint="A checkpoint with NaN or infinite weights cannot be converted. Download or export it again.",
        )

    def _fill(self, location: TensorLocation, first: int, last: int) -> ByteArray:
        item = _ITEM_BYTES[location.dtype]
        data = np.empty((last - first) * item, dtype=np.uint8)
        buffer = data.data
        offset = location.offset + first * item
        filled = 0
        try:
            file = self._open(location.path)
            while filled < len(buffer):
                count = os.preadv(file, [buffer[filled:]], offset + filled)
                if not count:
                    raise _malformed(location.path, "it became shorter while it was read")
                filled += count
        except OSError as error:
            raise unreadable(location.path, error) from error
        return data

    def _open(self, path: Path) -> int:
        with self._lock:
            if path not in self._files:
                self._files[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            return self._files[path]


def _widen(location: TensorLocation, data: ByteArray) -> Float32Array:
    values = data.view(_READ_DTYPES[location.dtype])
    if location.dtype == "BF16":
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.float32)


def _load_header(path: Path) -> tuple[dict[str, object], int, int]:
    """Header object, first byte of the data, bytes of data."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # a pipe would hold us up
            raise _malformed(path, "it is not a plain file")
        size = found.st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or length > size - 8:
                raise _malformed(path, f"the header should be {length:,} bytes, the whole file has {size:,}")
            if length > _MAX_HEADER_BYTES:
                raise _malformed(path, f"the header of {length:,} bytes is larger than {_MAX_HEADER_BYTES:,}")
            text = file.read(length)
    except OSError as error:
        raise unreadable(path, error) from error
    try:
        header = json.loads(text, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise _malformed(path, f"the header is not valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise _malformed(path, "the header is not a JSON object")
    return header, 8 + length, size - 8 - length


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} appears twice")
    return result


def _parse_entry(path: Path, name: str, entry: object, data_start: int) -> tuple[TensorLocation, int, int]:
    if not isinstance(entry, dict):
        raise _malformed(path, f"the entry of tensor {name} is not an object")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _malformed(path, f"the entry of tensor {name} has no valid shape and data_offsets")
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        raise PackageError(
            "checkpoint-dtype-unsupported",
            f"tensor {name} in {path.name} has element type {dtype}; BF16, F16 and F32 are supported",
            hint="Convert from the original checkpoint, not from one that is already quantised.",
        )
    begin, end = offsets
    expected = prod(shape) * _ITEM_BYTES[dtype]
    if end - begin != expected:
        raise _malformed(path, f"tensor {name} has {end - begin:,} bytes, its type and shape give {expected:,}")
    location = TensorLocation(path=path, dtype=dtype, shape=tuple(shape), offset=data_start + begin)
    return location, begin, end


def _are_counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**60 for item in value)


def _check_extents(path: Path, extents: list[tuple[int, int, str]], data_bytes: int) -> None:
    position = 0
    for begin, end, name in extents:
        if begin != position:
            problem = "overlaps the one before it" if begin < position else "leaves a gap before it"
            raise _malformed(path, f"tensor {name} {problem}")
        position = end
    if position != data_bytes:
        raise _malformed(path, f"{data_bytes - position:,} bytes after the last tensor belong to nothing")


def unreadable(path: Path, error: OSError) -> PackageError:
    """The error for a file of a checkpoint that the system does not let be read."""
    return PackageError(
        "checkpoint-unreadable",
        f"cannot read {path}: {error.strerror}",
        hint="Check its permissions and the disk that it is on.",
    )


def _malformed(path: Path, problem: str) -> PackageError:
    return PackageError(
        "checkpoint-malformed",
        f"{path.name} is not a valid safetensors file: {problem}",
        hint="Download the file again and compare its size and SHA-256 with the source.",
    )
