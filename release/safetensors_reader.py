"""Reads safetensors files without loading them: checked headers, then rows by position.

The `safetensors` package has no bfloat16 for NumPy and hands out whole tensors; here memory is bounded by the rows that
are asked for. Format: u64 header length, JSON header, then the data; https://huggingface.co/docs/safetensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, TypeGuard

import numpy as np
import numpy.typing as npt

from launcher.errors import PackageError

_MAX_HEADER_BYTES = 100_000_000  # the limit of the reference reader
_ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_READ_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLocation:
    """Where one tensor lies: file, element type (``F32``, ``F16`` or ``BF16``), shape, first byte in the file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int


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
    """Reads rows of located tensors as float32. A context manager that keeps the files open."""

    def __init__(self, tensors: Mapping[str, TensorLocation]) -> None:
        self._tensors = tensors
        self._files: dict[Path, BinaryIO] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.clear()
        self._stack.close()

    def read(self, name: str) -> Float32Array:
        """A whole tensor in its own shape. Only finite values are returned.

        Raises:
            PackageError: NaN or infinity in the tensor, or the file cannot be read.
        """
        location = self._tensors[name]
        return self._values(name, 0, prod(location.shape)).reshape(location.shape)

    def rows(self, name: str, start: int, stop: int) -> Float32Array:
        """Rows ``[start, stop)`` of a matrix, ``[stop - start, K]``.

        Raises:
            PackageError: as for `read`.
        """
        width = self._tensors[name].shape[1]
        return self._values(name, start * width, stop * width).reshape(stop - start, width)

    def _values(self, name: str, first: int, last: int) -> Float32Array:
        location = self._tensors[name]
        raw = np.empty(last - first, dtype=np.dtype(_READ_DTYPES[location.dtype]))
        self._fill(location, location.offset + first * raw.itemsize, raw.data.cast("B"))
        if location.dtype == "BF16":
            values = (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)
        else:
            values = raw.astype(np.float32, copy=False)
        finite = np.isfinite(values)
        if not finite.all():
            position = first + int(np.argmin(finite))
            raise PackageError(
                "checkpoint-not-finite",
                f"tensor {name} in {location.path.name} holds {values[position - first]} at element {position:,}",
                hint="A checkpoint with NaN or infinite weights cannot be converted. Download or export it again.",
            )
        return values

    def _fill(self, location: TensorLocation, offset: int, buffer: memoryview) -> None:
        try:
            file = self._files.get(location.path)
            if file is None:
                file = self._files[location.path] = self._stack.enter_context(location.path.open("rb", buffering=0))
            file.seek(offset)
            filled = 0
            while filled < len(buffer):
                count = file.readinto(buffer[filled:])  # type: ignore[attr-defined]
                if not count:
                    raise _malformed(location.path, "it became shorter while it was read")
                filled += count
        except OSError as error:
            raise PackageError("checkpoint-unreadable", f"cannot read {location.path}: {error.strerror}") from error


def _load_header(path: Path) -> tuple[dict[str, object], int, int]:
    """Header object, first byte of the data, bytes of data."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or length > size - 8:
                raise _malformed(path, f"the header should be {length:,} bytes, the whole file has {size:,}")
            if length > _MAX_HEADER_BYTES:
                raise _malformed(path, f"the header of {length:,} bytes is larger than {_MAX_HEADER_BYTES:,}")
            text = file.read(length)
    except OSError as error:
        raise PackageError("checkpoint-unreadable", f"cannot read {path}: {error.strerror}") from error
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


def _malformed(path: Path, problem: str) -> PackageError:
    return PackageError(
        "checkpoint-malformed",
        f"{path.name} is not a valid safetensors file: {problem}",
        hint="Download the file again and compare its size and SHA-256 with the source.",
    )
