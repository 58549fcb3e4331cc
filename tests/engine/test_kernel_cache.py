"""The attention cache: a row that is rounded wrongly, read wrongly or shifted by a value; sums over the wrong rows.

Reads the dump of the scalar set; test_kernels.py holds the other sets against it, bit for bit. PyTorch's float8 is the
measure of E4M3 where it is installed.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from launcher.engine_types import KvType
from tests.support.kernel_dump import GUARD, GUARD_VALUE, Dump, Values, matching
from tests.support.kv_rows import (
    E4M3,
    LARGEST,
    NOTHING,
    e4m3_from_float,
    float_from_e4m3,
    latent_bytes,
    read_rows,
    row_bytes,
)
from tests.support.reference import round_to_bfloat16

ATTENTION = r"attention kv=(\d) heads=(\d+) latent=(\d+) rope=(\d+) count=(\d+) c"
BYTE_TYPES = [KvType.FP8, KvType.INT8]


def sizes(match: re.Match[str]) -> tuple[KvType, int, int, int, int]:
    kind, heads, latent, rope, count = (int(group) for group in match.groups())
    return KvType(kind), heads, latent, rope, count


def test_attention_agrees_with_float64(scalar: Dump) -> None:
    seen = set()
    for match, raw in matching(scalar, ATTENTION):
        kind, heads, latent, rope, count = sizes(match)
        q, p, scores, mixed = (scalar[match[0][:-1] + part].astype(np.float64) for part in "qpsm")
        rows = read_rows(kind, raw, latent, rope)
        width = latent + rope
        assert rows.shape == (count, width), match[0]
        q = q.reshape(heads, width)
        stride = count + 2
        actual = scores[:-GUARD].reshape(heads, stride)
        bound = 1e-6 * (np.abs(q) @ np.abs(rows).T)
        assert (np.abs(actual[:, :count] - 0.125 * (q @ rows.T)) <= bound).all(), match[0]
        assert (actual[:, count:] == GUARD_VALUE).all(), match[0]
        p = p.reshape(heads, stride)[:, :count]
        first, last = (8, latent - 8) if latent > 16 else (0, latent)
        actual = mixed[:-GUARD].reshape(heads, width)
        bound = 1e-6 * (np.abs(p) @ np.abs(rows))
        assert (np.abs(actual - p @ rows) <= bound)[:, first:last].all(), match[0]
        assert (actual[:, :first] == GUARD_VALUE).all(), match[0]
        assert (actual[:, last:] == GUARD_VALUE).all(), match[0]
        seen.add(kind)
    assert seen == set(KvType)


def test_cache_rows_are_rounded_to_their_type(scalar: Dump) -> None:
    for match, raw in matching(scalar, ATTENTION):
        kind, _, latent, rope, count = sizes(match)
        rows = scalar[match[0][:-1] + "r"].reshape(count, latent + rope)
        match kind:
            case KvType.F32:
                assert raw.tobytes() == rows.tobytes()
            case KvType.F16:
                assert raw.tobytes() == rows.astype("<f2").tobytes()
            case KvType.BF16:
                assert np.array_equal(read_rows(kind, raw, latent, rope), round_to_bfloat16(rows))
            case _:
                for row, stored in zip(rows, raw.reshape(count, -1), strict=True):
                    check_byte_row(kind, row, stored, latent)


def check_byte_row(kind: KvType, row: Values, stored: Values, latent: int) -> None:
    """Every byte of a row, and how far its values are from the ones that were given."""
    rope = len(row) - latent
    expected, scale = latent_bytes(kind, row[:latent])
    assert np.array_equal(stored[:latent], expected)
    assert stored[latent + 2 * rope :].tobytes() == scale.tobytes()
    values = read_rows(kind, stored, latent, rope)[0]
    assert np.array_equal(values[latent:], round_to_bfloat16(row[latent:]))
    given = row[:latent].astype(np.float64)
    # Half a step: of 1 for int8; of 1/8 of the power of two below, or of 2^-9, for E4M3. The scale itself is rounded.
    step = np.abs(given) / 16 + float(scale) * 2**-10 if kind is KvType.FP8 else np.full(latent, float(scale) / 2)
    if np.abs(given).max() >= NOTHING:
        assert (np.abs(values[:latent] - given) <= step + 1e-6 * np.abs(given).max()).all()


@pytest.mark.parametrize("kind", BYTE_TYPES, ids=lambda kind: kind.label)
def test_rows_of_bytes_are_what_numpy_makes_of_them(scalar: Dump, kind: KvType) -> None:
    labels = set()
    for match, row in matching(scalar, rf"byte row kv={int(kind)} (\S+) x"):
        labels.add(match[1])
        stored, back = scalar[match[0][:-1] + "b"], scalar[match[0][:-1] + "y"]
        assert len(stored) == row_bytes(kind, 256, 8) == 256 + 16 + 4
        assert (back[256:] == GUARD_VALUE).all()
        if not np.isfinite(row).all():
            assert np.isnan(back[:256]).all(), f"{match[0]} swallows what is not finite"
            continue
        check_byte_row(kind, row, stored, 256)
        # The scale is multiplied in first, then rounds once more with the value.
        np.testing.assert_allclose(back[:256], read_rows(kind, stored, 256, 8)[0, :256], rtol=1e-6, atol=1e-44)
    assert labels >= {"offset=-2", "offset=0", "power=-140", "power=120", "wide", "zero", "tiny", "nan", "infinite"}


@pytest.mark.parametrize("kind", BYTE_TYPES, ids=lambda kind: kind.label)
def test_the_largest_magnitude_fills_the_range(scalar: Dump, kind: KvType) -> None:
    for match, row in matching(scalar, rf"byte row kv={int(kind)} (?:power=-?\d+|wide|single|huge) x"):
        top = np.abs(row[:256]).argmax()
        if np.abs(row[top]) >= NOTHING:
            value = read_rows(kind, scalar[match[0][:-1] + "b"], 256, 8)[0, top]
            np.testing.assert_allclose(value, row[top], rtol=2e-7)


@pytest.mark.parametrize("kind", BYTE_TYPES, ids=lambda kind: kind.label)
def test_numbers_between_two_steps_go_to_the_nearest_even(scalar: Dump, kind: KvType) -> None:
    """With 448 or 127 in the row its scale is 1, so the bytes are the rounding itself."""
    for match, row in matching(scalar, rf"byte row kv={int(kind)} offset=-?\d x"):
        x = row[:256]
        assert np.abs(x).max() == LARGEST[kind]
        stored = scalar[match[0][:-1] + "b"][:256]
        expected = e4m3_from_float(x) if kind is KvType.FP8 else np.rint(x).astype(np.int8).view(np.uint8)
        assert np.array_equal(stored, expected), match[0]


def test_every_byte_is_read_exactly(scalar: Dump) -> None:
    patterns = np.arange(256, dtype=np.uint8)
    assert np.array_equal(scalar["byte read kv=4"], patterns.view(np.int8).astype(np.float32))
    numbers = np.flatnonzero(patterns & 127 != 127)  # the NaN is never written
    assert np.array_equal(scalar["byte read kv=3"][numbers], float_from_e4m3(patterns[numbers]))


def test_the_measure_of_e4m3_agrees_with_pytorch(scalar: Dump) -> None:
    torch = pytest.importorskip("torch", reason="the extra `train` is not installed")
    patterns = np.arange(256, dtype=np.uint8)
    theirs = torch.from_numpy(patterns).view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(float_from_e4m3(patterns), theirs, equal_nan=True)
    middles = (E4M3[1:] + E4M3[:-1]) / 2
    x = np.concatenate([E4M3, middles, np.nextafter(middles, 0, dtype=np.float32), middles * (1 + 1e-6)])
    x = np.concatenate([x, np.random.default_rng(1).normal(0, 20, 20000)]).astype(np.float32)
    x = np.concatenate([x, -x])
    x = x[np.abs(x) <= 448]
    assert np.array_equal(e4m3_from_float(x), torch.from_numpy(x).to(torch.float8_e4m3fn).view(torch.uint8).numpy())


# -- the types of 16 bits --


def test_every_half_precision_pattern_is_read_exactly(scalar: Dump) -> None:
    patterns = np.arange(65536, dtype=np.uint16)
    for kv, expected in ((1, (patterns.astype(np.uint32) << 16).view(np.float32)), (2, patterns.view(np.float16))):
        actual = scalar[f"half read kv={kv}"]
        assert np.array_equal(actual, expected.astype(np.float32), equal_nan=True)


def test_half_precision_is_written_to_the_nearest_even(scalar: Dump) -> None:
    for match, stored in matching(scalar, r"half write kv=(\d) offset=(-?\d) h"):
        x = scalar[match[0][:-1] + "x"]
        nan = np.isnan(x)
        if match[1] == "2":
            with np.errstate(over="ignore"):
                expected = x.astype(np.float16).view(np.uint16)
            is_nan = np.isnan(stored.view(np.float16))
        else:
            wide = x.view(np.uint32).astype(np.uint64)
            expected = ((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16).astype(np.uint16)
            is_nan = np.isnan((stored.astype(np.uint32) << 16).view(np.float32))
        assert np.array_equal(is_nan, nan), match[0]
        assert np.array_equal(stored[~nan], expected[~nan]), match[0]
