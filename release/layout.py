"""Weight layouts of the package: their codes, their sizes and their encoders from float32 rows.

`docs/l3r-format.md` is the specification. A matrix is cut into tiles of 8 rows; within a tile K runs. Encoders work on
row blocks so that memory does not grow with the matrix: every block but the last of a matrix has a multiple of 8 rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final

import numpy as np
import numpy.typing as npt

from launcher.engine_types import Dtype
from release.quantization import GROUP, Q4, Q8, GroupFormat, quantize_groups, without_search

TILE_ROWS = 8
Float32Array = npt.NDArray[np.float32]
ByteArray = npt.NDArray[np.uint8]


GROUP_BYTES = {Dtype.Q8X8: TILE_ROWS * (2 + GROUP), Dtype.Q4X8: TILE_ROWS * (2 + GROUP // 2)}
FORMATS: Final[Mapping[Dtype, GroupFormat]] = {Dtype.Q8X8: Q8, Dtype.Q4X8: Q4}
PLAIN_FORMATS: Final = {dtype: without_search(group_format) for dtype, group_format in FORMATS.items()}


def is_quantized(dtype: Dtype) -> bool:
    """Whether the layout stores integers with a scale per group of 32 along K."""
    return dtype in FORMATS


def matrix_bytes(dtype: Dtype, rows: int, width: int) -> int:
    """Bytes of one tiled matrix ``[rows, width]``, padding rows of the last tile included.

    Raises:
        ValueError: the layout has no tiles, or the width of a quantised matrix is not a multiple of 32.
    """
    tiles = -(-rows // TILE_ROWS)
    if dtype is Dtype.F32X8:
        return tiles * TILE_ROWS * 4 * width
    if dtype is Dtype.BF16X8:
        return tiles * TILE_ROWS * 2 * width
    if dtype not in GROUP_BYTES:
        raise ValueError(f"{dtype.name} is not a layout of matrices")
    if width % GROUP:
        raise ValueError(f"{dtype.name} needs a width that is a multiple of {GROUP}, not {width}")
    return tiles * (width // GROUP) * GROUP_BYTES[dtype]


def tensor_bytes(dtype: Dtype, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor: plain for F32, otherwise the matrices ``[..., rows, K]`` one after the other."""
    if dtype is Dtype.F32:
        return 4 * prod(shape)
    if len(shape) < 2:
        raise ValueError(f"{dtype.name} needs a matrix, not shape {list(shape)}")
    return prod(shape[:-2]) * matrix_bytes(dtype, shape[-2], shape[-1])


def encode(dtype: Dtype, block: Float32Array, *, formats: Mapping[Dtype, GroupFormat] = FORMATS) -> bytes:
    """Encodes a row block ``[rows, K]`` of one matrix, or any array for F32; `formats` say how groups are rounded.

    Raises:
        ScaleOverflow: a quantised group needs a scale beyond float16.
        OverflowError: a value lies beyond bfloat16.
    """
    if dtype is Dtype.F32:
        return np.ascontiguousarray(block, dtype="<f4").tobytes()
    padded = _pad_rows(block)
    if dtype is Dtype.F32X8:
        return _tile(padded).astype("<f4", copy=False).tobytes()
    if dtype is Dtype.BF16X8:
        return _tile(round_to_bfloat16(padded)).astype("<u2", copy=False).tobytes()
    return _encode_groups(dtype, formats[dtype], padded)


def round_to_bfloat16(values: Float32Array) -> npt.NDArray[np.uint16]:
    """Nearest bfloat16, ties to even, as bit patterns of the same shape.

    Raises:
        OverflowError: a finite value rounds to infinity.
    """
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1)))) >> 16).astype(np.uint16)
    if ((rounded & 0x7F80) == 0x7F80).any():
        raise OverflowError("a value is too large for bfloat16")
    return rounded


def _pad_rows(block: Float32Array) -> Float32Array:
    rows, width = block.shape
    missing = -rows % TILE_ROWS
    if not missing:
        return block
    return np.concatenate([block, np.zeros((missing, width), dtype=np.float32)])


def _tile(block: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """``[tiles x 8, K]`` -> ``[tiles, K, 8]``: the eight rows of a tile side by side."""
    rows, width = block.shape
    return block.reshape(rows // TILE_ROWS, TILE_ROWS, width).transpose(0, 2, 1)


def _encode_groups(dtype: Dtype, group_format: GroupFormat, block: Float32Array) -> bytes:
    rows, width = block.shape
    tiles, groups = rows // TILE_ROWS, width // GROUP
    scales, quants = quantize_groups(group_format, block.reshape(rows * groups, GROUP))
    out = np.empty((tiles, groups, GROUP_BYTES[dtype]), dtype=np.uint8)
    by_tile = scales.reshape(tiles, TILE_ROWS, groups).transpose(0, 2, 1)
    out[:, :, : 2 * TILE_ROWS] = np.ascontiguousarray(by_tile, dtype="<f2").view(np.uint8)
    grouped = quants.reshape(tiles, TILE_ROWS, groups, GROUP).transpose(0, 2, 1, 3)
    payload = _interleave_q8(grouped) if dtype is Dtype.Q8X8 else _interleave_q4(grouped)
    out[:, :, 2 * TILE_ROWS :] = payload.reshape(tiles, groups, -1)
    return out.tobytes()


def _interleave_q8(grouped: npt.NDArray[np.int8]) -> ByteArray:
    """``[tiles, groups, row, k]`` -> chunks of 4 along K, each 8 rows x 4 values."""
    tiles, groups = grouped.shape[:2]
    chunks = grouped.reshape(tiles, groups, TILE_ROWS, GROUP // 4, 4).transpose(0, 1, 3, 2, 4)
    return np.ascontiguousarray(chunks).view(np.uint8)


def _interleave_q4(grouped: npt.NDArray[np.int8]) -> ByteArray:
    """``[tiles, groups, row, k]`` -> nibbles: k below 16 low, k from 16 on high, then as Q8 with 4 chunks."""
    tiles, groups = grouped.shape[:2]
    biased = (grouped + np.int8(8)).astype(np.uint8)
    half = GROUP // 2
    packed = biased[..., :half] | (biased[..., half:] << np.uint8(4))
    chunks = packed.reshape(tiles, groups, TILE_ROWS, half // 4, 4).transpose(0, 1, 3, 2, 4)
    return np.ascontiguousarray(chunks)
