"""The layouts of docs/l3r-format.md in NumPy: what the C encoder must reproduce bit for bit.

Sums are written out in one order, so that the answer depends neither on NumPy's version nor on the processor.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from launcher.engine_types import Dtype
from release.layouts.groups import FLOAT16_MAX, GROUP, Q4, Q8, GroupFormat, ScaleOverflow

FLOAT16_TINY = 2.0**-24
TILE_ROWS = 8
_FORMATS = {Dtype.Q8X8: Q8, Dtype.Q4X8: Q4}

ByteArray = npt.NDArray[np.uint8]
Float32Array = npt.NDArray[np.float32]


def encode(
    dtype: Dtype, block: Float32Array, group_format: GroupFormat | None = None, importance: Float32Array | None = None
) -> bytes:
    """Encodes a row block ``[rows, K]`` in a layout of matrices.

    Raises:
        ScaleOverflow: a quantised group needs a scale beyond float16.
        OverflowError: a value lies beyond bfloat16.
    """
    padded = _pad_rows(block)
    if dtype is Dtype.F32X8:
        return _tile(padded).astype("<f4", copy=False).tobytes()
    if dtype is Dtype.BF16X8:
        return _tile(round_to_bfloat16(padded)).astype("<u2", copy=False).tobytes()
    return _encode_groups(dtype, group_format or _FORMATS[dtype], padded, importance)


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


def quantize_groups(
    group_format: GroupFormat, groups: Float32Array, weights: Float32Array | None = None
) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.int8]]:
    """Rounds finite ``groups[n, 32]``; returns finite scales ``[n]`` and integers ``[n, 32]``.

    ``weights[n, 32]`` weigh the squared errors. A group whose integers are all zero has scale 0.

    Raises:
        ScaleOverflow: a group is too large for the format.
    """
    return _search(group_format, groups, weights)


def plain_scales(group_format: GroupFormat, groups: Float32Array) -> Float32Array:
    """The scales of plain symmetric rounding of ``groups[n, 32]``, as float16 values in float32.

    Raises:
        ScaleOverflow: a scale is beyond float16.
    """
    magnitude = np.abs(groups).max(axis=1)
    largest = float(magnitude.max(initial=0.0))
    if largest / group_format.plain > FLOAT16_MAX:
        raise ScaleOverflow(largest)
    return _representable(magnitude / np.float32(group_format.plain), magnitude)


def round_to_scales(group_format: GroupFormat, groups: Float32Array, scales: Float32Array) -> Float32Array:
    """Nearest integers (as float32) of ``groups[n, 32]`` for given scales ``[n]``; zero where the scale is zero."""
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales != 0)
    quants = groups * inverse[:, None]
    np.rint(quants, out=quants)
    return np.clip(quants, group_format.lowest, group_format.highest, out=quants)


def _representable(scales: Float32Array, magnitude: Float32Array) -> Float32Array:
    """Rounds scales to float16; what would round to zero becomes the smallest float16, except for zero groups."""
    bounded = np.clip(np.abs(scales), FLOAT16_TINY, FLOAT16_MAX).astype(np.float16).astype(np.float32)
    return np.where(magnitude > 0, np.copysign(bounded, scales), np.float32(0))


def _search(
    group_format: GroupFormat, groups: Float32Array, weights: Float32Array | None
) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.int8]]:
    magnitude = np.abs(groups).max(axis=1)
    best_scales = plain_scales(group_format, groups)
    best_quants = round_to_scales(group_format, groups, best_scales)
    best_error = _squared_error(groups, best_quants, best_scales, weights)
    far = np.where(groups.max(axis=1) > -groups.min(axis=1), -magnitude, magnitude)
    candidates = [magnitude / np.float32(divisor) for divisor in group_format.divisors]
    candidates += [far / np.float32(divisor) for divisor in group_format.far_divisors]
    for candidate in candidates:
        scales = _representable(candidate, magnitude)
        _keep_better(group_format, groups, weights, scales, best_scales, best_quants, best_error)
    for _ in range(group_format.refinements):
        scales = _least_squares(groups, weights, best_quants, best_scales, magnitude)
        _keep_better(group_format, groups, weights, scales, best_scales, best_quants, best_error)
    best_scales[~best_quants.any(axis=1)] = 0
    return best_scales.astype(np.float16), best_quants.astype(np.int8)


def _keep_better(
    group_format: GroupFormat,
    groups: Float32Array,
    weights: Float32Array | None,
    scales: Float32Array,
    best_scales: Float32Array,
    best_quants: Float32Array,
    best_error: Float32Array,
) -> None:
    """Replaces scale, integers and error, in place, of every group that these scales serve better."""
    quants = round_to_scales(group_format, groups, scales)
    error = _squared_error(groups, quants, scales, weights)
    better = error < best_error
    np.copyto(best_scales, scales, where=better)
    np.copyto(best_quants, quants, where=better[:, None])
    np.copyto(best_error, error, where=better)


def _least_squares(
    groups: Float32Array,
    weights: Float32Array | None,
    quants: Float32Array,
    scales: Float32Array,
    magnitude: Float32Array,
) -> Float32Array:
    """The scale that fits the integers best, sum(x q) / sum(q q), where there is one."""
    dot = _sum_products(groups, quants, weights)
    norm = _sum_products(quants, quants, weights)
    fitted = np.divide(dot, norm, out=scales.copy(), where=norm > 0)
    return _representable(fitted, magnitude)


def _squared_error(
    groups: Float32Array, quants: Float32Array, scales: Float32Array, weights: Float32Array | None
) -> Float32Array:
    difference = quants * scales[:, None]
    np.subtract(groups, difference, out=difference)
    return _sum_products(difference, difference, weights)


def _sum_products(first: Float32Array, second: Float32Array, weights: Float32Array | None) -> Float32Array:
    """Row by row: four running sums over every fourth product, each half of the group from its upper end."""
    products = first * second if weights is None else (first * weights) * second
    sums = [np.zeros(len(products), dtype=np.float32) for _ in range(4)]
    for half in (0, 16):
        for step in (12, 8, 4, 0):
            for lane in range(4):
                sums[lane] = sums[lane] + products[:, half + step + lane]
    return (sums[0] + sums[1]) + (sums[2] + sums[3])


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


def _encode_groups(
    dtype: Dtype, group_format: GroupFormat, block: Float32Array, importance: Float32Array | None
) -> bytes:
    rows, width = block.shape
    tiles, groups = rows // TILE_ROWS, width // GROUP
    weights = None if importance is None else np.tile(importance.reshape(groups, GROUP), (rows, 1))
    scales, quants = quantize_groups(group_format, block.reshape(rows * groups, GROUP), weights)
    out = np.empty((tiles, groups, TILE_ROWS * (2 + GROUP // (2 if dtype is Dtype.Q4X8 else 1))), dtype=np.uint8)
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
