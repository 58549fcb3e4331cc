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
from release.layouts.groups import GROUP, Q4, Q8, GroupFormat, without_search
from release.layouts.quantizer import Rows, SourceType, native_quantizer

TILE_ROWS = 8
Float32Array = npt.NDArray[np.float32]

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
        NotFinite: a value is NaN or infinite.
        ValueError: the width of a quantised matrix is not a multiple of 32.
    """
    stored = np.ascontiguousarray(block, dtype="<f4")
    if dtype is Dtype.F32:
        return stored.tobytes()
    rows, width = stored.shape
    matrix_bytes(dtype, rows, width)
    values = Rows(values=stored.reshape(-1).view(np.uint8), type=SourceType.F32, rows=rows, width=width)
    data, _ = native_quantizer().encode(dtype, values, formats.get(dtype))
    return data.tobytes()
