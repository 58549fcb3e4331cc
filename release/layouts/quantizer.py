"""The C encoder of engine/include/ling3_quantize.h: rows of a checkpoint in, bytes of a layout out.

A call releases the interpreter, so threads encode side by side.
"""

from __future__ import annotations

import ctypes
import hashlib
from ctypes import c_char_p, c_double, c_float, c_int32, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engine.build import build_quantizer
from engine.errors import BuildError
from launcher.engine_types import Dtype
from launcher.errors import EngineError, InternalError
from release.layouts.groups import GroupFormat, ScaleOverflow

_ABI_VERSION: Final = 1
_MAX_DIVISORS: Final = 8
_OK, _ARGUMENT, _NOT_FINITE, _SCALE_RANGE, _VALUE_RANGE = range(5)

ByteArray = npt.NDArray[np.uint8]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]


class SourceType(IntEnum):
    """Element types of a checkpoint: `l3_source_type`."""

    F32 = 0
    F16 = 1
    BF16 = 2


class NotFinite(Exception):
    """The source holds NaN or infinity; `position` is row x width + column of the first one."""

    def __init__(self, position: int) -> None:
        super().__init__(f"the value at {position} is not finite")
        self.position = position


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A block of rows as it is stored, and what happens to a value before it is encoded.

    Attributes:
        values: the stored bytes, contiguous.
        type: how an element is stored.
        rows, width: size of the block.
        transposed: element (row, k) lies at ``k x rows + row`` instead of ``row x width + k``.
        row_factors, column_factors: ``[rows]`` and ``[width]``; a value is multiplied by both.
        importance: ``[width]``, weight of each column's squared error in the search for scales.
    """

    values: ByteArray
    type: SourceType
    rows: int
    width: int
    transposed: bool = False
    row_factors: Float64Array | None = None
    column_factors: Float64Array | None = None
    importance: Float32Array | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Sums of squares over quantised values, of the values, of the errors made and of those that plain rounding makes.

    Weighted by importance where there is one.
    """

    energy: float = 0.0
    error: float = 0.0
    plain_error: float = 0.0

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            energy=self.energy + other.energy,
            error=self.error + other.error,
            plain_error=self.plain_error + other.plain_error,
        )


class _Source(ctypes.Structure):
    _fields_ = [
        ("values", c_void_p),
        ("bytes", c_uint64),
        ("rows", c_uint64),
        ("width", c_uint64),
        ("row_stride", c_uint64),
        ("column_stride", c_uint64),
        ("row_factors", c_void_p),
        ("column_factors", c_void_p),
        ("importance", c_void_p),
        ("type", c_uint32),
        ("reserved", c_uint32),
    ]


class _Rounding(ctypes.Structure):
    _fields_ = [
        ("lowest", c_int32),
        ("highest", c_int32),
        ("plain", c_float),
        ("refinements", c_uint32),
        ("divisor_count", c_uint32),
        ("far_count", c_uint32),
        ("divisors", c_float * _MAX_DIVISORS),
        ("far_divisors", c_float * _MAX_DIVISORS),
    ]


class _Result(ctypes.Structure):
    _fields_ = [
        ("energy", c_double),
        ("error", c_double),
        ("plain_error", c_double),
        ("position", c_uint64),
        ("magnitude", c_float),
        ("reserved", c_uint32),
    ]


class Quantizer:
    """The loaded library.

    Raises:
        EngineError: it cannot be loaded or has another interface.
    """

    def __init__(self, path: Path) -> None:
        try:
            library = ctypes.CDLL(str(path))
            version = int(library.l3_quantize_abi_version())
        except (OSError, AttributeError) as error:
            raise EngineError("quantizer-unloadable", f"cannot load {path}: {error}") from error
        if version != _ABI_VERSION:
            raise EngineError("quantizer-unloadable", f"{path} has interface {version} instead of {_ABI_VERSION}")
        self.sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        self._library = library
        library.l3_quantize_bytes.restype = c_uint64
        library.l3_quantize_bytes.argtypes = [c_uint32, c_uint64, c_uint64]
        library.l3_quantize_rows.argtypes = [
            c_void_p,
            c_uint32,
            c_void_p,
            c_void_p,
            c_uint64,
            c_char_p,
            c_void_p,
        ]

    def kernels(self) -> tuple[str, ...]:
        """Instruction sets that this processor can use, best first."""
        names = (c_char_p * 8)()
        count = int(self._library.l3_quantize_kernels(names, 8))
        return tuple(str(name.decode()) for name in names[:count] if name is not None)

    def encode(
        self, dtype: Dtype, rows: Rows, group_format: GroupFormat | None = None, *, kernels: str = ""
    ) -> tuple[ByteArray, Figures]:
        """Encodes the rows; missing rows of the last tile of 8 become zero.

        Args:
            dtype: a layout of matrices.
            rows: what to encode.
            group_format: how the groups of a quantised layout are rounded.
            kernels: one of `kernels`; the best one by default.

        Raises:
            NotFinite: the source holds NaN or infinity.
            ScaleOverflow: a group needs a scale beyond float16.
            OverflowError: a value lies beyond bfloat16, or beyond float32 after its factors.
            InternalError: the call breaks the contract of the header.
        """
        kept = (
            np.ascontiguousarray(rows.values),
            _array(rows.row_factors, np.float64, rows.rows),
            _array(rows.column_factors, np.float64, rows.width),
            _array(rows.importance, np.float32, rows.width),
        )
        source = _Source(
            values=_address(kept[0]),
            bytes=kept[0].nbytes,
            rows=rows.rows,
            width=rows.width,
            row_stride=1 if rows.transposed else rows.width,
            column_stride=rows.rows if rows.transposed else 1,
            row_factors=_address(kept[1]),
            column_factors=_address(kept[2]),
            importance=_address(kept[3]),
            type=int(rows.type),
        )
        size = int(self._library.l3_quantize_bytes(int(dtype), rows.rows, rows.width))
        out = np.empty(max(size, 1), dtype=np.uint8)
        result = _Result()
        rounding = None if group_format is None else ctypes.byref(_rounding(group_format))
        status = self._library.l3_quantize_rows(
            ctypes.byref(source),
            int(dtype),
            rounding,
            _address(out),
            size,
            kernels.encode(),
            ctypes.byref(result),
        )
        if status == _OK:
            return out, Figures(energy=result.energy, error=result.error, plain_error=result.plain_error)
        if status == _NOT_FINITE:
            raise NotFinite(int(result.position))
        if status == _SCALE_RANGE:
            raise ScaleOverflow(float(result.magnitude))
        if status == _VALUE_RANGE:
            kind = "bfloat16" if dtype is Dtype.BF16X8 and np.isfinite(result.magnitude) else "float32"
            raise OverflowError(f"a value is too large for {kind}")
        raise InternalError("quantizer-argument", f"the quantiser refused a call for {dtype.name}")


@cache
def native_quantizer() -> Quantizer:
    """The library for this machine, built where it is not yet.

    Raises:
        EngineError: it cannot be built or loaded.
    """
    try:
        path = build_quantizer()
    except BuildError as error:
        raise EngineError("quantizer-unbuilt", error.message, hint=error.hint) from error
    return Quantizer(path)


def _rounding(group_format: GroupFormat) -> _Rounding:
    if max(len(group_format.divisors), len(group_format.far_divisors)) > _MAX_DIVISORS:
        raise InternalError("quantizer-argument", f"at most {_MAX_DIVISORS} divisors of a kind can be tried")
    array = c_float * _MAX_DIVISORS
    return _Rounding(
        lowest=group_format.lowest,
        highest=group_format.highest,
        plain=group_format.plain,
        refinements=group_format.refinements,
        divisor_count=len(group_format.divisors),
        far_count=len(group_format.far_divisors),
        divisors=array(*group_format.divisors),
        far_divisors=array(*group_format.far_divisors),
    )


def _array(values: npt.NDArray[Any] | None, dtype: type[np.generic], count: int) -> npt.NDArray[Any] | None:
    if values is None:
        return None
    if values.shape != (count,):
        raise InternalError("quantizer-argument", f"factors have shape {list(values.shape)} instead of [{count}]")
    return np.ascontiguousarray(values, dtype=dtype)


def _address(values: npt.NDArray[Any] | None) -> int | None:
    return None if values is None else int(values.ctypes.data)
