"""Matrix products and the rounding of activations: bit for bit what the kernels' contract says.

The order of every sum is part of that contract, so NumPy can repeat it exactly on what kernel_driver.c dumped.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.kernel_dump import GUARD, GUARD_VALUE, Dump, Values, bits, matching

Float32 = npt.NDArray[np.float32]


def product_inputs(dump: Dump, kind: str, variant: str, k: int) -> tuple[Values, Values]:
    """Unscaled values [rows, k] by docs/l3r-format.md, and the float32 scales [rows, groups] (ones for floats)."""
    raw = dump[f"{kind} {variant} k={k} weights"]
    if kind in ("f32", "bf16"):
        wide = raw.view("<f4") if kind == "f32" else (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
        values = wide.reshape(-1, k, 8).transpose(0, 2, 1).reshape(-1, k)
        return values, np.ones((len(values), 1), dtype=np.float32)
    blocks = raw.reshape(-1, k // 32, {"q8": 272, "q4": 144}[kind])
    scales = np.ascontiguousarray(blocks[..., :16]).view("<f2").astype(np.float32)
    payload = (
        blocks[..., 16:].reshape(*blocks.shape[:2], -1, 8, 4).transpose(0, 3, 1, 2, 4)
    )  # tile, row, group, chunk, 4
    if kind == "q8":
        values = payload.astype(np.uint8).view(np.int8)
    else:
        values = np.concatenate([payload & 15, payload >> 4], axis=3).astype(np.int8) - np.int8(8)
    return values.reshape(-1, k), scales.transpose(0, 2, 1).reshape(-1, k // 32)


def expected_product(dump: Dump, kind: str, variant: str, k: int) -> Float32:
    """[operands, rows], summed in float32 in the order that kernels.h promises; integer sums are exact."""
    weights, scales = product_inputs(dump, kind, variant, k)
    with np.errstate(all="ignore"):
        if kind in ("f32", "bf16"):
            x = dump[f"{kind} {variant} k={k} x"].reshape(9, k)
            total = np.zeros((9, len(weights)), dtype=np.float32)
            for i in range(k):
                total += weights[None, :, i] * x[:, i, None]
            return total
        q = dump[f"{kind} {variant} k={k} q"].view(np.int8).reshape(9, k).astype(np.int64)
        steps = dump[f"{kind} {variant} k={k} scale"].reshape(9, -1)
        whole = np.einsum("rgi,tgi->tgr", weights.astype(np.int64).reshape(len(weights), -1, 32), q.reshape(9, -1, 32))
        assert np.abs(whole).max() < 2**24  # a float32 holds it exactly
        total = np.zeros((9, len(weights)), dtype=np.float32)
        for group in range(k // 32):
            total += whole[:, group].astype(np.float32) * (scales[None, :, group] * steps[:, group, None])
        return total


@pytest.mark.parametrize("kind", ["f32", "bf16", "q8", "q4"])
def test_products_are_exact_sums_in_the_promised_order(scalar: Dump, kind: str) -> None:
    """Every size is a corner of the same product, so batch and height never change a bit either."""
    expected: dict[tuple[str, int], Float32] = {}
    sizes = set()
    for match, values in matching(scalar, rf"{kind} (\w+) k=(\d+) (y|parts) rows=(\d+) n=(\d+)"):
        variant, k, rows, n = match[1], int(match[2]), int(match[4]), int(match[5])
        if (variant, k) not in expected:
            expected[variant, k] = expected_product(scalar, kind, variant, k)
        y = values.reshape(n, rows + GUARD)
        assert (y[:, rows:] == GUARD_VALUE).all(), f"{match[0]} writes past its rows"
        corner = expected[variant, k][:n, :rows]
        same = (bits(y[:, :rows]) == bits(np.ascontiguousarray(corner))) | (np.isnan(y[:, :rows]) & np.isnan(corner))
        assert same.all(), match[0]
        sizes.add((rows, n))
    assert sizes >= {(rows, n) for rows in range(1, 18) for n in range(1, 10)}
    assert {variant for variant, _ in expected} >= (
        {"random", "special"} if kind in ("f32", "bf16") else {"negative", "zero", "subnormal", "huge", "lowest"}
    )


def test_broken_scales_and_activations_are_not_lost(scalar: Dump) -> None:
    """NaN and infinity come out of a product instead of vanishing in it."""
    for kind in ("q8", "q4"):
        for _, values in matching(scalar, rf"{kind} huge k=1536 y rows=17 n=9"):
            assert np.isnan(values.reshape(9, -1)[:, :17]).all()
    for kind in ("f32", "bf16"):
        y = expected_product(scalar, kind, "special", 96)
        assert np.isnan(y[2]).all()
        assert not np.isfinite(y[3]).any()


# -- rounding of activations --


def test_activations_are_rounded_to_the_nearest_integer(scalar: Dump) -> None:
    for match, x in matching(scalar, r"a8 (uniform|wide|ties|single|huge) n=(\d+) x"):
        name = match[0][:-2]
        n = int(match[2])
        q, scale, sum8 = (scalar[f"{name} {part}"] for part in ("q", "scale", "sum8"))
        groups = x.reshape(-1, 32)
        top = np.abs(groups).max(axis=1, keepdims=True)
        with np.errstate(all="ignore"):
            inverse = np.float32(127) / top
            expected = np.clip(np.rint(groups * inverse), -127, 127)  # np.rint rounds ties to even
        actual = q.view(np.int8)[:n].reshape(-1, 32)
        assert np.array_equal(actual, expected), name
        assert np.array_equal(scale[: n // 32], (top / np.float32(127))[:, 0]), name
        assert np.array_equal(sum8[: n // 32], 8 * actual.astype(np.int32).sum(axis=1)), name
        if match[1] in ("uniform", "ties", "single"):
            error = np.abs(actual * scale[: n // 32, None].astype(np.float64) - groups)
            assert (error <= top / 254 * (1 + 1e-5)).all(), name


def test_ties_of_activations_go_to_even(scalar: Dump) -> None:
    q = scalar["a8 ties n=1536 q"].view(np.int8)[:1536].reshape(-1, 32)
    assert (scalar["a8 ties n=1536 scale"][:48] == 1).all()
    assert (q[:, :31] % 2 == 0).all()


@pytest.mark.parametrize("variant", ["zero", "vanishing"])
def test_activations_of_nothing_are_zero(scalar: Dump, variant: str) -> None:
    assert not scalar[f"a8 {variant} n=1536 q"][:1536].any()
    assert not scalar[f"a8 {variant} n=1536 scale"][:48].any()
    assert not scalar[f"a8 {variant} n=1536 sum8"][:48].any()


def test_a_broken_activation_shows_in_the_scale(scalar: Dump) -> None:
    """From each of the 32 positions."""
    assert np.isnan(scalar["a8 broken n=1536 scale"][:48]).all()


def test_rounding_stays_within_its_results(scalar: Dump) -> None:
    for match, values in matching(scalar, r"a8 .* n=(\d+) q"):
        assert (values[int(match[1]) :] == 99).all(), match[0]
    for match, values in matching(scalar, r"a8 .* n=(\d+) scale"):
        assert (values[int(match[1]) // 32 :] == GUARD_VALUE).all(), match[0]
    for match, values in matching(scalar, r"a8 .* n=(\d+) sum8"):
        assert (values[int(match[1]) // 32 :] == 0x63636363).all(), match[0]
