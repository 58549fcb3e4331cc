"""The matrix products of librknnrt as ctypes see them: our own declarations of the documented interface.

Two layouts of the description of a product exist: that of 1.5.2 and 1.6, and that of 2.x, which carries scales and
memory domains. The version in the file's own text decides. Source: RKNN API reference 2.3.2.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char, c_int, c_int8, c_int16, c_int32, c_uint32, c_uint64, c_void_p
from typing import Any, Final

from launcher.npu.rknn_library import numbers

INT8_INT8_INT32: Final = 2
NORMAL: Final = 0
NATIVE: Final = 1
SYNC_TO_DEVICE: Final = 1
SYNC_FROM_DEVICE: Final = 2
_ERRORS: Final = {
    -1: "failed",
    -2: "timeout",
    -3: "device unavailable",
    -4: "out of memory",
    -5: "parameter refused",
    -6: "invalid model",
    -7: "invalid context",
    -8: "invalid input",
    -9: "invalid output",
    -10: "device mismatch",
    -11: "incompatible model",
    -12: "incompatible optimisation level",
    -13: "wrong target platform",
}


class TensorMemory(ctypes.Structure):
    """A buffer that CPU and NPU share."""

    _fields_ = [
        ("virtual", c_void_p),
        ("physical", c_uint64),
        ("fd", c_int32),
        ("offset", c_int32),
        ("size", c_uint32),
        ("flags", c_uint32),
        ("private", c_void_p),
    ]


class TensorAttributes(ctypes.Structure):
    """One operand as the library describes it."""

    _fields_ = [
        ("name", c_char * 256),
        ("dimension_count", c_uint32),
        ("dimensions", c_uint32 * 16),
        ("size", c_uint32),
        ("type", c_int),
    ]


class OperandAttributes(ctypes.Structure):
    """A, B and C of a product."""

    _fields_ = [("a", TensorAttributes), ("b", TensorAttributes), ("c", TensorAttributes)]


class ProductOf1(ctypes.Structure):
    """What to multiply, for 1.5.2 and 1.6: C [M][N] = A [M][K] times B [K][N]."""

    _fields_ = [
        ("m", c_int32),
        ("k", c_int32),
        ("n", c_int32),
        ("type", c_int),
        ("b_layout", c_int32),
        ("ac_layout", c_int32),
    ]


class ProductOf2(ctypes.Structure):
    """What to multiply, for 2.x."""

    _fields_ = [
        ("m", c_int32),
        ("k", c_int32),
        ("n", c_int32),
        ("type", c_int),
        ("b_layout", c_int16),
        ("b_quantisation", c_int16),
        ("ac_layout", c_int16),
        ("ac_quantisation", c_int16),
        ("domain", c_int32),
        ("group_size", c_int16),
        ("reserved", c_int8 * 34),
    ]


_MEMORY = POINTER(TensorMemory)
_PROTOTYPES: Final[tuple[tuple[str, Any, tuple[Any, ...]], ...]] = (
    ("rknn_matmul_create", c_int, (POINTER(c_uint64), c_void_p, POINTER(OperandAttributes))),
    ("rknn_matmul_set_io_mem", c_int, (c_uint64, _MEMORY, POINTER(TensorAttributes))),
    ("rknn_matmul_set_core_mask", c_int, (c_uint64, c_int)),
    ("rknn_matmul_run", c_int, (c_uint64,)),
    ("rknn_matmul_destroy", c_int, (c_uint64,)),
    ("rknn_create_mem", _MEMORY, (c_uint64, c_uint32)),
    ("rknn_destroy_mem", c_int, (c_uint64, _MEMORY)),
)
_SYNC: Final = ("rknn_mem_sync", c_int, (c_uint64, _MEMORY, c_int))


class SymbolMissing(Exception):
    """The library does not define a function; the text is its name."""


class RknnFunctions:
    """The functions of a loaded library, with their types declared."""

    def __init__(self, path: str, version: str) -> None:
        """Loads the library by its path.

        Raises:
            OSError: it cannot be loaded; the text is the loader's.
            SymbolMissing: a function is not there.
        """
        self.second_generation = numbers(version) >= (2, 0, 0)
        self._library = ctypes.CDLL(path)
        for name, result, arguments in (*_PROTOTYPES, *((_SYNC,) if self.second_generation else ())):
            try:
                function = getattr(self._library, name)
            except AttributeError as error:
                raise SymbolMissing(name) from error
            function.restype = result
            function.argtypes = arguments

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def product(self, m: int, k: int, n: int, b_layout: int) -> ctypes.Structure:
        """The description of an INT8 product with A and C in plain row order."""
        kind = ProductOf2 if self.second_generation else ProductOf1
        return kind(m=m, k=k, n=n, type=INT8_INT8_INT32, b_layout=b_layout, ac_layout=NORMAL)


def error_text(code: int) -> str:
    """What an error code of the library means."""
    return _ERRORS.get(code, "unknown")
