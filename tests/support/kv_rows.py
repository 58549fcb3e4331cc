"""Rows of the MLA cache in NumPy: what the engine should write, and what its bytes mean. Independent of the engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from launcher.engine_types import KvType
from tests.support.reference import round_to_bfloat16, round_to_float16

Array = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

LARGEST = {KvType.FP8: np.float32(448), KvType.INT8: np.float32(127)}
NOTHING = np.float32(1e-30)
"""A latent whose largest magnitude is below becomes zero."""


def _e4m3_magnitudes() -> Array:
    """The 127 numbers without sign, from the definition: exponent bias 7, no infinity, one NaN (pattern 127)."""
    exponent, mantissa = np.divmod(np.arange(127), 8)
    return np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))


E4M3 = _e4m3_magnitudes()


def e4m3_from_float(x: npt.NDArray[Any]) -> Bytes:
    """Pattern of the nearest number, ties to the even pattern, magnitudes above 448 to 448."""
    size = np.abs(x.astype(np.float64))
    above = np.minimum(np.searchsorted(E4M3, size), 126)
    below = np.maximum(above - 1, 0)
    gap = (E4M3[above] - size) - (size - E4M3[below])
    pattern = np.where((gap < 0) | ((gap == 0) & (above % 2 == 0)), above, below)
    patterns: Bytes = (pattern + 128 * np.signbit(x)).astype(np.uint8)
    return patterns


def float_from_e4m3(patterns: Bytes) -> Array:
    """Numbers of patterns; NaN for 127 and 255."""
    magnitudes = np.append(E4M3, np.nan)[patterns & 127]
    values: Array = np.where(patterns & 128, -magnitudes, magnitudes)
    return values


def row_bytes(kind: KvType, latent: int, rope: int) -> int:
    """Length of one row, from the description in the engine's kernels.h."""
    match kind:
        case KvType.F32:
            return 4 * (latent + rope)
        case KvType.FP8 | KvType.INT8:
            return -(-(latent + 2 * rope + 4) // 4) * 4
        case _:
            return 2 * (latent + rope)


def latent_bytes(kind: KvType, latent: Float32) -> tuple[Bytes, np.float32]:
    """The bytes of a finite latent and its scale, in float32 arithmetic as the engine states it."""
    top = np.abs(latent).max()
    if top < NOTHING:
        factor, scale = np.float32(0), np.float32(0)
    else:
        factor, scale = LARGEST[kind] / top, top / LARGEST[kind]
    scaled = np.clip(latent * factor, -LARGEST[kind], LARGEST[kind])
    if kind is KvType.FP8:
        return e4m3_from_float(scaled), scale
    return np.rint(scaled).astype(np.int8).view(np.uint8), scale


def read_rows(kind: KvType, raw: Bytes, latent: int, rope: int) -> Array:
    """Values [count][latent + rope] of stored rows."""
    rows = raw.reshape(-1, row_bytes(kind, latent, rope))
    match kind:
        case KvType.F32:
            return rows.view("<f4").astype(np.float64)
        case KvType.F16:
            return rows.view("<f2").astype(np.float64)
        case KvType.BF16:
            return _from_bfloat16(rows)
    kept = np.ascontiguousarray(rows[:, :latent])
    values = float_from_e4m3(kept) if kind is KvType.FP8 else kept.view(np.int8).astype(np.float64)
    scale = np.ascontiguousarray(rows[:, latent + 2 * rope :][:, :4]).view("<f4").astype(np.float64)
    return np.concatenate([scale * values, _from_bfloat16(rows[:, latent : latent + 2 * rope])], axis=1)


def rounded_rows(kind: KvType, rows: Array, latent: int) -> Array:
    """What a cache gives back of rows [count][latent + rope]."""
    match kind:
        case KvType.F32:
            return rows.astype(np.float32).astype(np.float64)
        case KvType.BF16:
            return round_to_bfloat16(rows)
        case KvType.F16:
            return round_to_float16(rows)
    result = round_to_bfloat16(rows)
    for index, row in enumerate(rows[:, :latent].astype(np.float32)):
        stored, scale = latent_bytes(kind, row)
        values = float_from_e4m3(stored) if kind is KvType.FP8 else stored.view(np.int8).astype(np.float64)
        result[index, :latent] = np.float64(scale) * values
    return result


def _from_bfloat16(raw: Bytes) -> Array:
    halves = np.ascontiguousarray(raw).view("<u2")
    return (halves.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
