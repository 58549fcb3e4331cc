"""Streams the values of a package tensor from its sources, block by block, so that memory stays small."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from release.layout import TILE_ROWS
from release.tensors import Build, PackageTensor

_BLOCK_VALUES = 1 << 20

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]


class Reader(Protocol):
    """Where source values come from: see `release.safetensors_reader.TensorReader`."""

    def read(self, name: str) -> Float32Array: ...

    def rows(self, name: str, start: int, stop: int) -> Float32Array: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Factors that calibration folds into a tensor.

    Attributes:
        rows: one factor per row, ``[rows]`` or ``[n, rows]``; for a vector one per element.
        columns: one factor per column, ``[K]`` or ``[n, K]``.
    """

    rows: Float64Array | None = None
    columns: Float64Array | None = None


def blocks(
    tensor: PackageTensor,
    reader: Reader,
    *,
    head_shape: tuple[int, int],
    fold: Fold | None = None,
) -> Iterator[Float32Array]:
    """Row blocks of the tensor's matrices in order; each but the last of a matrix has a multiple of 8 rows.

    A vector or convolution is one block in its own shape.

    Args:
        tensor: what to assemble.
        reader: the checkpoint.
        head_shape: rows of keys and of values per head in kv_b_proj (qk_nope_head_dim, v_head_dim).
        fold: calibration factors of this tensor.
    """
    if len(tensor.shape) == 1 or tensor.build is Build.CONVOLUTION:
        yield _apply_vector(_small(tensor, reader), fold)
        return
    rows, width = tensor.shape[-2:]
    step = max(TILE_ROWS, _BLOCK_VALUES // width // TILE_ROWS * TILE_ROWS)
    for matrix in range(len(tensor.sources) if tensor.build is Build.STACK else _matrices(tensor)):
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            values = _matrix_rows(tensor, reader, head_shape, matrix, start, stop)
            yield _apply_matrix(values, fold, matrix, start, stop)


def _matrices(tensor: PackageTensor) -> int:
    return tensor.shape[0] if len(tensor.shape) == 3 else 1


def _small(tensor: PackageTensor, reader: Reader) -> Float32Array:
    if tensor.build is not Build.CONVOLUTION:
        return reader.read(tensor.sources[0].name)
    taps = [reader.read(source.name)[:, 0, :] for source in tensor.sources]
    return np.ascontiguousarray(np.concatenate(taps).T)


def _matrix_rows(
    tensor: PackageTensor, reader: Reader, head_shape: tuple[int, int], matrix: int, start: int, stop: int
) -> Float32Array:
    if tensor.build is Build.STACK:
        return reader.rows(tensor.sources[matrix].name, start, stop)
    name = tensor.sources[0].name
    if tensor.build is Build.COPY:
        return reader.rows(name, start, stop)
    keys, values = head_shape
    first = matrix * (keys + values)
    if tensor.build is Build.VALUE_HALF:
        return reader.rows(name, first + keys + start, first + keys + stop)
    return np.ascontiguousarray(reader.rows(name, first, first + keys).T[start:stop])


def _apply_vector(values: Float32Array, fold: Fold | None) -> Float32Array:
    if fold is None or fold.rows is None:
        return values
    return (values * fold.rows).astype(np.float32)


def _apply_matrix(values: Float32Array, fold: Fold | None, matrix: int, start: int, stop: int) -> Float32Array:
    if fold is None:
        return values
    wide = values.astype(np.float64)
    if fold.rows is not None:
        wide *= _of_matrix(fold.rows, matrix)[start:stop, None]
    if fold.columns is not None:
        wide *= _of_matrix(fold.columns, matrix)[None, :]
    return wide.astype(np.float32)


def _of_matrix(factors: Float64Array, matrix: int) -> Float64Array:
    return factors[matrix] if factors.ndim == 2 else factors
