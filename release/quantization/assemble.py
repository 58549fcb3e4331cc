"""Where the values of a package tensor lie in the checkpoint, piece by piece, so that memory stays small."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from release.checkpoint.tensors import Build, PackageTensor
from release.layouts.weights import TILE_ROWS

_PIECE_VALUES = 1 << 20

Float64Array = npt.NDArray[np.float64]
Element = TypeVar("Element", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """Factors that calibration folds into a tensor.

    Attributes:
        rows: one factor per row, ``[rows]`` or ``[n, rows]``; for a vector one per element.
        columns: one factor per column, ``[K]`` or ``[n, K]``.
    """

    rows: Float64Array | None = None
    columns: Float64Array | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some rows of one matrix of a package tensor, and the rows of the checkpoint that hold them.

    Attributes:
        source: name of the tensor in the checkpoint.
        first, last: its rows ``[first, last)``.
        matrix: index of the package tensor's matrix.
        row, rows: first row in that matrix, and how many; all but the last piece of a matrix have a multiple of 8.
        transposed: the stored rows are the columns of the matrix.
    """

    source: str
    first: int
    last: int
    matrix: int
    row: int
    rows: int
    transposed: bool = False


def is_plain(tensor: PackageTensor) -> bool:
    """Whether the tensor is a vector or a convolution, stored without tiles."""
    return len(tensor.shape) == 1 or tensor.build is Build.CONVOLUTION


def pieces(tensor: PackageTensor, head_shape: tuple[int, int]) -> Iterator[Piece]:
    """The pieces of a tensor of matrices, in package order.

    Args:
        tensor: what to assemble.
        head_shape: rows of keys and of values per head in kv_b_proj (qk_nope_head_dim, v_head_dim).
    """
    rows, width = tensor.shape[-2:]
    keys, values = head_shape
    step = max(TILE_ROWS, _PIECE_VALUES // width // TILE_ROWS * TILE_ROWS)
    for matrix in range(tensor.shape[0] if len(tensor.shape) == 3 else 1):
        source = tensor.sources[matrix if tensor.build is Build.STACK else 0].name
        if tensor.build is Build.KEY_HALF:
            head = matrix * (keys + values)
            yield Piece(source=source, first=head, last=head + keys, matrix=matrix, row=0, rows=rows, transposed=True)
            continue
        offset = matrix * (keys + values) + keys if tensor.build is Build.VALUE_HALF else 0
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            yield Piece(
                source=source,
                first=offset + start,
                last=offset + stop,
                matrix=matrix,
                row=start,
                rows=stop - start,
            )


def of_matrix(factors: npt.NDArray[Element] | None, matrix: int) -> npt.NDArray[Element] | None:
    """The factors of one matrix out of those that all share, ``[m]``, or that are given for each, ``[n, m]``."""
    return factors[matrix] if factors is not None and factors.ndim == 2 else factors
