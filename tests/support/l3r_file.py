"""Reads `.l3r` files straight from docs/l3r-format.md, value by value, sharing no code with writer and engine."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

F32, F32X8, BF16X8, Q8X8, Q4X8 = range(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One entry of the tensor table."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    offset: int
    length: int
    group: int
    sha256: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class L3rFile:
    """A parsed file; `sections` by kind."""

    data: bytes
    sections: dict[int, bytes]
    tensors: dict[str, Tensor]
    data_offset: int
    trunk_end: int

    def values(self, name: str) -> npt.NDArray[np.float64]:
        """A tensor's values in its shape."""
        tensor = self.tensors[name]
        return decode(tensor.dtype, tensor.shape, self.data[tensor.offset : tensor.offset + tensor.length])


def read_l3r(path: Path) -> L3rFile:
    """Parses a file and asserts everything that the document promises about its structure."""
    data = path.read_bytes()
    assert data[:8] == bytes.fromhex("894C33520D0A1A0A")
    version, header_bytes = struct.unpack_from("<II", data, 8)
    file_bytes, directory_offset, directory_bytes = struct.unpack_from("<QQQ", data, 16)
    section_count, tensor_count = struct.unpack_from("<II", data, 40)
    data_offset, trunk_end = struct.unpack_from("<QQ", data, 48)
    assert (version, header_bytes, directory_offset) == (1, 192, 192)
    assert file_bytes == len(data)
    assert directory_bytes == 64 * section_count + 192 * tensor_count
    assert hashlib.sha256(data[192 : 192 + directory_bytes]).digest() == data[64:96]
    assert not any(data[96:160])
    assert hashlib.sha256(data[:160]).digest() == data[160:192]
    covered = [(0, 192 + directory_bytes)]
    sections = {}
    for index in range(section_count):
        kind, zero, offset, length, digest = struct.unpack_from("<IIQQ32s", data, 192 + 64 * index)
        content = data[offset : offset + length]
        assert zero == 0
        assert offset % 64 == 0
        assert hashlib.sha256(content).digest() == digest
        assert kind not in sections
        sections[kind] = content
        covered.append((offset, offset + length))
    assert covered[-1][1] <= data_offset
    tensors = {}
    for index in range(tensor_count):
        tensor = _tensor(data, 192 + 64 * section_count + 192 * index)
        content = data[tensor.offset : tensor.offset + tensor.length]
        assert tensor.offset % 65536 == 0
        assert hashlib.sha256(content).digest() == tensor.sha256
        assert tensor.name not in tensors
        tensors[tensor.name] = tensor
        covered.append((tensor.offset, tensor.offset + tensor.length))
    _assert_zero_between(data, covered)
    return L3rFile(data=data, sections=sections, tensors=tensors, data_offset=data_offset, trunk_end=trunk_end)


def decode(dtype: int, shape: tuple[int, ...], data: bytes) -> npt.NDArray[np.float64]:
    """Values of a tensor by the formulas of the document, one at a time for the quantised layouts."""
    if dtype == F32:
        return np.frombuffer(data, dtype="<f4").astype(np.float64).reshape(shape)
    rows, width = shape[-2:]
    count = int(np.prod(shape[:-2], dtype=np.int64))
    size = len(data) // count
    assert size * count == len(data)
    matrices = [_decode_matrix(dtype, rows, width, data[index * size : (index + 1) * size]) for index in range(count)]
    return np.stack(matrices).reshape(shape)


def _decode_matrix(dtype: int, rows: int, width: int, data: bytes) -> npt.NDArray[np.float64]:
    tiles = -(-rows // 8)
    out = np.zeros((tiles * 8, width))
    if dtype in (F32X8, BF16X8):
        code = "<f4" if dtype == F32X8 else "<u2"
        raw = np.frombuffer(data, dtype=code).reshape(tiles, width, 8)
        if dtype == BF16X8:
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        for tile in range(tiles):
            for row in range(8):
                out[8 * tile + row] = raw[tile, :, row]
    else:
        block = 272 if dtype == Q8X8 else 144
        assert len(data) == tiles * (width // 32) * block
        for tile in range(tiles):
            for group in range(width // 32):
                start = (tile * (width // 32) + group) * block
                out[8 * tile : 8 * tile + 8, 32 * group : 32 * group + 32] = _group(dtype, data[start : start + block])
    assert not out[rows:].any()
    return out[:rows]


def _group(dtype: int, block: bytes) -> npt.NDArray[np.float64]:
    scales = np.frombuffer(block[:16], dtype="<f2").astype(np.float64)
    assert np.isfinite(scales).all()
    assert dtype != Q8X8 or (scales >= 0).all()
    payload = block[16:]
    out = np.zeros((8, 32))
    for row in range(8):
        for k in range(32):
            if dtype == Q8X8:
                byte = payload[32 * (k // 4) + 4 * row + k % 4]
                quant = byte - 256 if byte > 127 else byte
                assert quant != -128
            else:
                byte = payload[32 * (k % 16 // 4) + 4 * row + k % 4]
                quant = (byte & 15 if k < 16 else byte >> 4) - 8
            assert scales[row] != 0 or quant == 0
            out[row, k] = scales[row] * quant
    return out


def _tensor(data: bytes, position: int) -> Tensor:
    name, dtype, rank = struct.unpack_from("<80sII", data, position)
    shape = struct.unpack_from("<4Q", data, position + 88)
    offset, length = struct.unpack_from("<QQ", data, position + 120)
    group, zero = struct.unpack_from("<II", data, position + 136)
    assert zero == 0
    assert not any(data[position + 176 : position + 192])
    assert not any(shape[rank:])
    return Tensor(
        name=name.rstrip(b"\0").decode(),
        dtype=dtype,
        shape=shape[:rank],
        offset=offset,
        length=length,
        group=group,
        sha256=data[position + 144 : position + 176],
    )


def _assert_zero_between(data: bytes, covered: list[tuple[int, int]]) -> None:
    position = 0
    for start, end in covered:
        assert start >= position
        assert not any(data[position:start])
        position = end
    assert position == len(data)
