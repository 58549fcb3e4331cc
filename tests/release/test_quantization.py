"""Rounding to groups of 32: never worse than plain rounding, exact where it can be, and laid out as documented."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from launcher.engine_types import Dtype
from release.layouts.groups import Q4, Q8, GroupFormat, ScaleOverflow
from release.layouts.weights import encode, matrix_bytes, tensor_bytes
from tests.support.l3r_file import decode

Groups = npt.NDArray[np.float32]


def quantize_groups(group_format: GroupFormat, groups: Groups) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.int8]]:
    """Scales ``[n]`` and integers ``[n, 32]``, taken out of the bytes by the wording of docs/l3r-format.md."""
    dtype = Dtype.Q8X8 if group_format is Q8 else Dtype.Q4X8
    tiles = np.frombuffer(encode(dtype, groups), dtype=np.uint8).reshape(-(-len(groups) // 8), -1)
    scales = np.ascontiguousarray(tiles[:, :16]).view(np.float16)
    chunks = tiles[:, 16:].reshape(len(tiles), -1, 8, 4).transpose(0, 2, 1, 3).reshape(8 * len(tiles), -1)
    quants = chunks.view(np.int8) if dtype is Dtype.Q8X8 else np.hstack([chunks & 15, chunks >> 4]).view(np.int8) - 8
    return scales.reshape(-1)[: len(groups)], quants[: len(groups)]


FORMATS = pytest.mark.parametrize("group_format", [Q8, Q4], ids=["q8", "q4"])


def distributions() -> dict[str, Groups]:
    """Weights of many shapes, [n, 32] each."""
    generator = np.random.default_rng(7)
    normal = generator.standard_normal((512, 32)).astype(np.float32)
    outlier = normal.copy()
    outlier[:, 3] *= 50
    scales = np.exp2(generator.uniform(-40, 15, (512, 1))).astype(np.float32)
    return {
        "normal": 0.02 * normal,
        "heavy tails": generator.standard_t(2, (512, 32)).astype(np.float32),
        "one outlier": outlier,
        "every magnitude": normal * scales,
        "constant": np.full((4, 32), -0.37, dtype=np.float32),
        "one value": np.eye(32, dtype=np.float32) * np.float32(-3e-3),
        "subnormal scales": np.float32(1e-7) * normal,
        "below the smallest scale": np.float32(1e-9) * normal,
        "almost too large": np.full((2, 32), 4.5e5, dtype=np.float32),
    }


def plain_error(group_format: GroupFormat, groups: Groups) -> npt.NDArray[np.float64]:
    """Squared error per group of symmetric rounding with scale = largest magnitude / largest q, in float16."""
    wide = groups.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = (np.abs(wide).max(axis=1) / group_format.highest).astype(np.float16).astype(np.float64)[:, None]
        quants = np.clip(np.rint(wide / scale), group_format.lowest, group_format.highest)
    return ((wide - np.where(scale > 0, quants * scale, 0)) ** 2).sum(axis=1)


def error(group_format: GroupFormat, groups: Groups) -> npt.NDArray[np.float64]:
    scales, quants = quantize_groups(group_format, groups)
    return ((groups.astype(np.float64) - scales.astype(np.float64)[:, None] * quants) ** 2).sum(axis=1)


@FORMATS
@pytest.mark.parametrize("name", distributions())
def test_no_group_is_worse_than_plain_rounding(group_format: GroupFormat, name: str) -> None:
    groups = distributions()[name]
    plain = plain_error(group_format, groups)
    assert (error(group_format, groups) <= plain * (1 + 1e-5) + 1e-30).all()


@pytest.mark.parametrize("name", distributions())
def test_no_q4_group_is_worse_than_rounding_with_the_far_end(name: str) -> None:
    """The value of largest magnitude becomes -8, as in llama.cpp's Q4_0."""
    groups = distributions()[name].astype(np.float64)
    largest = np.where(groups.max(axis=1) > -groups.min(axis=1), groups.max(axis=1), groups.min(axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = (largest / -8).astype(np.float16).astype(np.float64)[:, None]
        quants = np.clip(np.rint(groups / scale), -8, 7)
    far = ((groups - np.where(scale != 0, quants * scale, 0)) ** 2).sum(axis=1)
    assert (error(Q4, distributions()[name]) <= far * (1 + 1e-5) + 1e-30).all()


@pytest.mark.parametrize(("group_format", "share"), [(Q8, 0.9), (Q4, 0.75)], ids=["q8", "q4"])
def test_the_search_pays_on_normal_weights(group_format: GroupFormat, share: float) -> None:
    groups = distributions()["normal"]
    assert error(group_format, groups).sum() < share * plain_error(group_format, groups).sum()


@FORMATS
def test_zero_groups_stay_exactly_zero(group_format: GroupFormat) -> None:
    groups = distributions()["normal"][:5].copy()
    groups[1] = 0
    groups[3] = -0.0
    scales, quants = quantize_groups(group_format, groups)
    assert scales[1] == 0
    assert scales[3] == 0
    assert not quants[[1, 3]].any()
    assert (scales[[0, 2, 4]] != 0).all()


@FORMATS
def test_groups_below_the_smallest_scale_become_zero_groups(group_format: GroupFormat) -> None:
    scales, quants = quantize_groups(group_format, np.full((3, 32), 2.0**-26, dtype=np.float32))
    assert not scales.any()
    assert not quants.any()


@FORMATS
@pytest.mark.parametrize("name", distributions())
def test_scales_and_integers_stay_in_range(group_format: GroupFormat, name: str) -> None:
    scales, quants = quantize_groups(group_format, distributions()[name])
    assert np.isfinite(scales).all()
    assert group_format is Q4 or (scales >= 0).all()
    assert quants.min() >= group_format.lowest
    assert quants.max() <= group_format.highest


@FORMATS
def test_a_group_beyond_float16_scales_is_refused(group_format: GroupFormat) -> None:
    groups = np.zeros((2, 32), dtype=np.float32)
    groups[1, 5] = -1.01 * 65504 * group_format.highest
    with pytest.raises(ScaleOverflow):
        quantize_groups(group_format, groups)


@FORMATS
def test_values_on_the_grid_are_exact(group_format: GroupFormat) -> None:
    generator = np.random.default_rng(3)
    quants = generator.integers(-group_format.highest, group_format.highest + 1, (64, 32))
    quants[:, 0] = group_format.highest
    groups = (quants * 2.0**-9).astype(np.float32)
    assert not error(group_format, groups).any()


@pytest.mark.parametrize("dtype", [Dtype.F32X8, Dtype.BF16X8, Dtype.Q8X8, Dtype.Q4X8])
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 24])
def test_layout_is_the_documented_one(dtype: Dtype, rows: int) -> None:
    generator = np.random.default_rng(rows)
    quants = generator.integers(-7, 8, (rows, 64))
    quants[:, ::32] = 7  # both formats then reproduce the values exactly
    values = (quants * 2.0 ** generator.integers(-6, 2, (rows, 1))).astype(np.float32)
    if dtype is Dtype.Q8X8:
        values[:, ::32] *= np.float32(127 / 7)
    data = encode(dtype, values)
    assert len(data) == matrix_bytes(dtype, rows, 64) == tensor_bytes(dtype, (rows, 64))
    tolerance = 2e-3 * np.abs(values).max() if dtype in (Dtype.Q8X8, Dtype.BF16X8) else 0
    assert np.abs(decode(dtype, (rows, 64), data) - values).max() <= tolerance


def test_f32_is_plain_and_row_major() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert encode(Dtype.F32, values.T) == np.ascontiguousarray(values.T).tobytes()


def test_odd_widths_are_refused_for_quantised_layouts() -> None:
    with pytest.raises(ValueError, match="multiple of 32"):
        matrix_bytes(Dtype.Q4X8, 8, 48)


def test_bfloat16_rounds_to_nearest_even() -> None:
    below, above = np.float32(1.0), np.float32(1.0078125)
    middle = (below + above) / np.float32(2)
    next_middle = above + (middle - below)
    cases = np.array([below, middle, np.nextafter(middle, 2, dtype=np.float32), next_middle, -middle], dtype=np.float32)
    data = encode(Dtype.BF16X8, cases[None])
    assert decode(Dtype.BF16X8, (1, 5), data)[0].tolist() == [1.0, 1.0, 1.0078125, 1.015625, -1.0]


def test_values_beyond_bfloat16_are_refused() -> None:
    with pytest.raises(OverflowError):
        encode(Dtype.BF16X8, np.array([[3.4e38]], dtype=np.float32))
