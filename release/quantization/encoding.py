"""One package tensor from its sources: jobs that read and encode a piece each, in any thread and in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from launcher.engine_types import Dtype
from launcher.errors import PackageError
from release.checkpoint.safetensors_reader import TensorReader
from release.checkpoint.tensors import Build, PackageTensor
from release.layouts.groups import GroupFormat, ScaleOverflow
from release.layouts.quantizer import ByteArray, Figures, Float32Array, NotFinite, Rows, SourceType, native_quantizer
from release.quantization.assemble import Fold, Piece, is_plain, of_matrix, pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A tensor to encode.

    Attributes:
        tensor: what it is and where it comes from.
        dtype: its layout.
        group_format: how groups are rounded; None for a layout without groups.
        fold: factors of calibration.
        importance: weight of each column's squared error, ``[K]`` or ``[n, K]``.
    """

    tensor: PackageTensor
    dtype: Dtype
    group_format: GroupFormat | None
    fold: Fold | None = None
    importance: Float32Array | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A piece of the package tensor, what was read for it, and how much rounding cost."""

    stored: tuple[ByteArray, ...]
    data: ByteArray
    figures: Figures


def encoding_jobs(task: Task, reader: TensorReader, *, head_shape: tuple[int, int]) -> Iterator[Callable[[], Encoded]]:
    """Jobs whose results, one after the other, are the tensor.

    A job raises PackageError where a source cannot be read, holds NaN or infinity or does not fit the layout.

    Args:
        task: what to encode.
        reader: the checkpoint.
        head_shape: see `release.quantization.assemble.pieces`.
    """
    if is_plain(task.tensor):
        yield partial(_encode_plain, task, reader)
        return
    native_quantizer()  # built and loaded before threads ask for it
    for piece in pieces(task.tensor, head_shape):
        yield partial(_encode_piece, task, piece, reader)


def _encode_plain(task: Task, reader: TensorReader) -> Encoded:
    """A vector or the convolutions, as float32 in the package's shape."""
    tensor = task.tensor
    values = [reader.read(source.name) for source in tensor.sources]
    stored = tuple(reader.stored(source.name) for source in tensor.sources)
    is_convolution = tensor.build is Build.CONVOLUTION
    whole = np.concatenate([taps[:, 0, :] for taps in values]).T if is_convolution else values[0]
    if task.fold is not None and task.fold.rows is not None:
        whole = (whole * task.fold.rows).astype(np.float32)
    data = np.ascontiguousarray(whole, dtype="<f4").reshape(-1).view(np.uint8)
    return Encoded(stored=stored, data=data, figures=Figures())


def _encode_piece(task: Task, piece: Piece, reader: TensorReader) -> Encoded:
    stored = reader.stored_rows(piece.source, piece.first, piece.last)
    fold = task.fold or Fold()
    row_factors = of_matrix(fold.rows, piece.matrix)
    rows = Rows(
        values=stored,
        type=SourceType[reader.location(piece.source).dtype],
        rows=piece.rows,
        width=task.tensor.shape[-1],
        transposed=piece.transposed,
        row_factors=None if row_factors is None else row_factors[piece.row : piece.row + piece.rows],
        column_factors=of_matrix(fold.columns, piece.matrix),
        importance=of_matrix(task.importance, piece.matrix),
    )
    try:
        data, figures = native_quantizer().encode(task.dtype, rows, task.group_format)
    except NotFinite as error:
        raise _not_finite(piece, rows, error.position, reader) from error
    except (ScaleOverflow, OverflowError) as error:
        raise PackageError(
            "tensor-too-large",
            f"tensor {task.tensor.name} cannot be stored as {task.dtype.name}: {error}",
            hint="Use --recipe f32, or check the checkpoint.",
        ) from error
    return Encoded(stored=(stored,), data=data, figures=figures)


def _not_finite(piece: Piece, rows: Rows, position: int, reader: TensorReader) -> PackageError:
    """Names the element by its place in the checkpoint's tensor."""
    row, column = divmod(position, rows.width)
    place = column * rows.rows + row if rows.transposed else position
    width = rows.rows if rows.transposed else rows.width
    return reader.not_finite(piece.source, piece.first * width + place)
