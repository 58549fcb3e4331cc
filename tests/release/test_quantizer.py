"""The C encoder gives the bytes of the NumPy oracle, whatever the processor, and refuses what it cannot store."""

from __future__ import annotations

import ctypes
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from launcher.engine_types import Dtype
from launcher.errors import InternalError
from release.layouts.groups import Q4, Q8, GroupFormat, ScaleOverflow, without_search
from release.layouts.quantizer import Figures, NotFinite, Quantizer, Rows, SourceType, native_quantizer
from release.layouts.weights import matrix_bytes
from tests.support import rounding_oracle
from tests.support.checkpoints import from_bf16, to_bf16

Values = npt.NDArray[np.float32]

LAYOUTS = [Dtype.F32X8, Dtype.BF16X8, Dtype.Q8X8, Dtype.Q4X8]
FORMATS = {Dtype.Q8X8: Q8, Dtype.Q4X8: Q4}
SHAPES = [(1, 32), (7, 64), (8, 32), (9, 96), (24, 1536), (40, 4608)]
ODD_SHAPES = [(1, 1), (3, 5), (8, 31), (17, 33), (9, 100)]


def draw(kind: str, rows: int, width: int) -> Values:
    generator = np.random.default_rng([rows, width, len(kind)])
    normal = generator.standard_normal((rows, width)).astype(np.float32)
    if kind == "every magnitude":
        return normal * np.exp2(generator.uniform(-45, 14, (rows, 1))).astype(np.float32)
    if kind == "heavy tails":
        return generator.standard_t(2, (rows, width)).astype(np.float32)
    if kind == "ties and zeros":
        values = np.round(2 * normal)
        values[:, : width // 2] = -0.0
        return values
    if kind == "below the smallest scale":
        return np.float32(1e-8) * normal
    return normal


KINDS = ["normal", "every magnitude", "heavy tails", "ties and zeros", "below the smallest scale"]


def rows_of(values: Values, **options: Any) -> Rows:
    stored = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return Rows(values=stored, type=SourceType.F32, rows=values.shape[0], width=values.shape[1], **options)


@pytest.fixture(params=["avx2", "portable"])
def kernels(request: pytest.FixtureRequest) -> str:
    if request.param not in native_quantizer().kernels():
        pytest.skip(f"this processor has no {request.param}")
    return str(request.param)


def encode(dtype: Dtype, rows: Rows, kernels: str, group_format: GroupFormat | None = None) -> tuple[bytes, Figures]:
    data, figures = native_quantizer().encode(dtype, rows, group_format or FORMATS.get(dtype), kernels=kernels)
    return data.tobytes(), figures


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_bytes_are_those_of_the_oracle(kernels: str, kind: str, dtype: Dtype, shape: tuple[int, int]) -> None:
    values = draw(kind, *shape)
    assert encode(dtype, rows_of(values), kernels)[0] == rounding_oracle.encode(dtype, values)


@pytest.mark.parametrize("dtype", [Dtype.F32X8, Dtype.BF16X8])
@pytest.mark.parametrize("shape", ODD_SHAPES)
def test_layouts_without_groups_take_any_width(kernels: str, dtype: Dtype, shape: tuple[int, int]) -> None:
    values = draw("normal", *shape)
    assert encode(dtype, rows_of(values), kernels)[0] == rounding_oracle.encode(dtype, values)


@pytest.mark.parametrize(("kind", "dtype"), list(product(KINDS, FORMATS)))
def test_plain_rounding_is_that_of_the_oracle(kernels: str, kind: str, dtype: Dtype) -> None:
    values = draw(kind, 24, 128)
    plain = without_search(FORMATS[dtype])
    data, figures = encode(dtype, rows_of(values), kernels, plain)
    assert data == rounding_oracle.encode(dtype, values, plain)
    assert figures.error == figures.plain_error


@pytest.mark.parametrize(("kind", "dtype"), list(product(KINDS, FORMATS)))
def test_weighted_search_is_that_of_the_oracle(kernels: str, kind: str, dtype: Dtype) -> None:
    values = draw(kind, 24, 128)
    importance = np.random.default_rng(1).exponential(1, 128).astype(np.float32)
    importance[5:9] = 0
    data, _ = encode(dtype, rows_of(values, importance=importance), kernels)
    assert data == rounding_oracle.encode(dtype, values, None, importance)


@pytest.mark.parametrize("dtype", LAYOUTS)
@pytest.mark.parametrize("source", [SourceType.F16, SourceType.BF16])
def test_half_precision_is_widened_exactly(kernels: str, dtype: Dtype, source: SourceType) -> None:
    """Every pattern of a finite number, subnormals included."""
    patterns = np.arange(65536, dtype=np.uint16).reshape(64, 1024)
    exponent = 0x7C00 if source is SourceType.F16 else 0x7F80
    patterns = np.where((patterns & exponent) == exponent, np.uint16(0x3C00), patterns)
    if source is SourceType.BF16:
        patterns = np.where((patterns & 0x7FFF) > 0x4800, np.uint16(0x3F80), patterns)  # within the range of scales
    values = patterns.view(np.float16).astype(np.float32) if source is SourceType.F16 else from_bf16(patterns)
    rows = Rows(values=patterns.reshape(-1).view(np.uint8), type=source, rows=64, width=1024)
    assert encode(dtype, rows, kernels)[0] == rounding_oracle.encode(dtype, values)


@pytest.mark.parametrize("dtype", LAYOUTS)
def test_factors_multiply_in_double_precision(kernels: str, dtype: Dtype) -> None:
    values = draw("normal", 13, 64)
    generator = np.random.default_rng(3)
    by_row, by_column = np.exp2(generator.uniform(-3, 3, 13)), np.exp2(generator.uniform(-3, 3, 64))
    folded = (values.astype(np.float64) * by_row[:, None] * by_column[None]).astype(np.float32)
    data, _ = encode(dtype, rows_of(values, row_factors=by_row, column_factors=by_column), kernels)
    assert data == rounding_oracle.encode(dtype, folded)


@pytest.mark.parametrize("dtype", LAYOUTS)
def test_stored_columns_can_be_the_rows(kernels: str, dtype: Dtype) -> None:
    values = draw("normal", 64, 96)
    stored = np.ascontiguousarray(values.T).reshape(-1).view(np.uint8)
    rows = Rows(values=stored, type=SourceType.F32, rows=64, width=96, transposed=True)
    assert encode(dtype, rows, kernels)[0] == rounding_oracle.encode(dtype, values)


@pytest.mark.parametrize("dtype", FORMATS)
def test_figures_are_the_sums_of_the_squares(kernels: str, dtype: Dtype) -> None:
    values = draw("normal", 24, 128)
    _, figures = encode(dtype, rows_of(values), kernels)
    groups = values.reshape(-1, 32)

    def error(group_format: GroupFormat) -> float:
        scales, quants = rounding_oracle.quantize_groups(group_format, groups)
        return float(((groups - scales.astype(np.float64)[:, None] * quants) ** 2).sum())

    assert figures.energy == pytest.approx((groups.astype(np.float64) ** 2).sum(), rel=1e-5)
    assert figures.error == pytest.approx(error(FORMATS[dtype]), rel=1e-5)
    assert figures.plain_error == pytest.approx(error(without_search(FORMATS[dtype])), rel=1e-5)
    assert figures.error < figures.plain_error


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("source", list(SourceType))
@pytest.mark.parametrize("dtype", LAYOUTS)
@pytest.mark.parametrize("place", [(0, 0), (11, 95), (9, 40)])
def test_the_first_value_that_is_not_finite_is_found(
    kernels: str, value: float, source: SourceType, dtype: Dtype, place: tuple[int, int]
) -> None:
    values = draw("normal", 12, 96)
    values[place] = value
    values[11, 95] = value  # a later one, in a tile and a group that may be read before
    stored = {SourceType.F32: values, SourceType.F16: values.astype(np.float16), SourceType.BF16: to_bf16(values)}
    rows = Rows(values=stored[source].reshape(-1).view(np.uint8), type=source, rows=12, width=96)
    with pytest.raises(NotFinite) as caught:
        encode(dtype, rows, kernels)
    assert caught.value.position == place[0] * 96 + place[1]


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_scale_beyond_float16_is_refused(kernels: str, dtype: Dtype) -> None:
    values = draw("normal", 8, 64)
    values[3, 40] = -1.01 * 65504 * FORMATS[dtype].plain
    with pytest.raises(ScaleOverflow) as caught:
        encode(dtype, rows_of(values), kernels)
    assert caught.value.magnitude == -values[3, 40]
    values[3, 40] = -65504 * FORMATS[dtype].plain
    assert encode(dtype, rows_of(values), kernels)[0] == rounding_oracle.encode(dtype, values)


@pytest.mark.parametrize("dtype", LAYOUTS)
def test_factors_that_leave_float32_are_refused(kernels: str, dtype: Dtype) -> None:
    with pytest.raises((OverflowError, ScaleOverflow)):
        encode(dtype, rows_of(draw("normal", 8, 32), row_factors=np.full(8, 1e60)), kernels)


def test_values_beyond_bfloat16_are_refused(kernels: str) -> None:
    with pytest.raises(OverflowError, match="bfloat16"):
        encode(Dtype.BF16X8, rows_of(np.full((1, 3), -3.4e38, dtype=np.float32)), kernels)


@pytest.mark.parametrize(
    ("dtype", "rows"),
    [
        (Dtype.Q4X8, rows_of(draw("normal", 8, 48))),
        (Dtype.Q8X8, rows_of(draw("normal", 8, 31))),
        (Dtype.F32, rows_of(draw("normal", 8, 32))),
        (Dtype.F32X8, Rows(values=np.zeros(8 * 32 * 4 - 1, np.uint8), type=SourceType.F32, rows=8, width=32)),
        (Dtype.F32X8, Rows(values=np.zeros(64, np.uint8), type=SourceType.F32, rows=2**62, width=2**62)),
        (Dtype.F32X8, Rows(values=np.zeros(0, np.uint8), type=SourceType.F32, rows=0, width=32)),
        (Dtype.Q4X8, rows_of(draw("normal", 8, 32), importance=np.full(32, np.nan, np.float32))),
        (Dtype.Q4X8, rows_of(draw("normal", 8, 32), importance=np.full(32, -1, np.float32))),
        (Dtype.Q4X8, rows_of(draw("normal", 8, 32), importance=np.ones(31, np.float32))),
    ],
)
def test_a_call_that_breaks_the_contract_is_refused(dtype: Dtype, rows: Rows) -> None:
    with pytest.raises(InternalError):
        native_quantizer().encode(dtype, rows, FORMATS.get(dtype))


def test_unknown_kernels_and_missing_formats_are_refused() -> None:
    rows = rows_of(draw("normal", 8, 32))
    with pytest.raises(InternalError):
        native_quantizer().encode(Dtype.Q4X8, rows, Q4, kernels="abacus")
    with pytest.raises(InternalError):
        native_quantizer().encode(Dtype.Q4X8, rows, None)
    with pytest.raises(InternalError):
        native_quantizer().encode(Dtype.Q4X8, rows, Q8)  # integers that four bits do not hold


@pytest.mark.parametrize("dtype", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_sizes_agree_with_the_layout(dtype: Dtype, shape: tuple[int, int]) -> None:
    assert len(encode(dtype, rows_of(draw("normal", *shape)), "")[0]) == matrix_bytes(dtype, *shape)


def test_a_library_that_is_none_is_refused(tmp_path: Any) -> None:
    from launcher.errors import EngineError

    path = tmp_path / "libling3_quantize.so"
    path.write_bytes(b"no library")
    with pytest.raises(EngineError, match="cannot load"):
        Quantizer(path)


def test_the_engine_does_not_carry_the_quantiser() -> None:
    from engine.build import build_library

    assert not hasattr(ctypes.CDLL(str(build_library())), "l3_quantize_rows")
