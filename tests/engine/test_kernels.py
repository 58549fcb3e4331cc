"""Every kernel set computes the same bits, and the right ones.

A C driver runs each kernel on generated inputs and dumps inputs and results. The scalar set's results are held against
NumPy: bit for bit where the order of the sum is part of the kernels' contract, within a stated bound of float64
elsewhere. The vector sets are then held against the scalar one.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from engine.build import build_executable
from launcher.engine_library import Library
from tests.support.kernel_dump import Values, bits, differences, read_dump
from tests.support.programs import run_program, sanitizers
from tests.support.qemu import aarch64_command

DRIVER = Path(__file__).with_name("kernel_driver.c")
GUARD = 3
GUARD_VALUE = np.float32(-77)
ULP = 2.0**-23  # of a value in [1, 2)

Dump = dict[str, Values]
Float32 = npt.NDArray[np.float32]


def dump_of(command: list[str]) -> Dump:
    """Runs the driver to its end."""
    result = subprocess.run(command, capture_output=True)
    assert result.returncode == 0, result.stderr.decode(errors="replace")
    return read_dump(result.stdout)


@pytest.fixture(scope="module")
def native_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_executable([DRIVER], "kernel_driver", out=tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="module")
def arm_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_executable([DRIVER], "kernel_driver", "aarch64", static=True, out=tmp_path_factory.mktemp("arm"))


@pytest.fixture(scope="module")
def scalar(native_driver: Path) -> Dump:
    return dump_of([str(native_driver), "scalar"])


def matching(dump: Dump, pattern: str) -> Iterator[tuple[re.Match[str], Values]]:
    """Arrays whose name matches as a whole; there must be some."""
    found = [(match, values) for name, values in dump.items() if (match := re.fullmatch(pattern, name))]
    assert found, pattern
    yield from found


# -- the sets among each other --


def test_vector_set_of_this_machine_gives_scalar_bits(native_driver: Path, scalar: Dump, library: Library) -> None:
    sets = [name for name in library.simd_available if name != "scalar"]
    if not sets:
        pytest.skip("this processor has no vector set that the engine knows")
    for name in sets:
        assert differences(scalar, dump_of([str(native_driver), name])) == []


def test_neon_gives_scalar_bits(arm_driver: Path, scalar: Dump) -> None:
    assert differences(scalar, dump_of([*aarch64_command(arm_driver), "neon"])) == []


def test_scalar_gives_the_same_bits_on_another_architecture(arm_driver: Path, scalar: Dump) -> None:
    assert differences(scalar, dump_of([*aarch64_command(arm_driver), "scalar"])) == []


def test_kernels_stay_within_their_buffers(library: Library, scalar: Dump, tmp_path: Path) -> None:
    """Sanitizers watch blocks of exact size: reading past a matrix or a vector, misaligned or undefined steps."""
    program = build_executable([DRIVER], "kernel_driver", sanitize=sanitizers(), out=tmp_path)
    for name in library.simd_available:
        with (tmp_path / "dump").open("wb") as file:
            result = subprocess.run([program, name], stdout=file, stderr=subprocess.PIPE)
        assert result.returncode == 0, f"{name}:\n{result.stderr.decode(errors='replace')[-8000:]}"
        assert differences(scalar, read_dump((tmp_path / "dump").read_bytes())) == []


# -- matrix products --


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


# -- vectors --

VECTOR_KERNELS = [
    "rms_norm",
    "l2_norm",
    "add",
    "axpy",
    "scale",
    "silu_mul",
    "sigmoid_mul",
    "sigmoid",
    "kda_decay",
    "softmax",
]


def sigmoid(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def expected_vector(kernel: str, a: Values, b: Values, w: Values) -> npt.NDArray[np.float64]:
    """The kernel in float64, with the constants that the driver passes."""
    a, b, w = (part.astype(np.float64) for part in (a, b, w))
    with np.errstate(all="ignore"):
        match kernel:
            case "rms_norm":
                return w * a / np.sqrt(np.mean(a * a) + 1e-6)
            case "l2_norm":
                return a / np.sqrt(np.sum(a * a) + 1e-6) * 0.25
            case "add":
                return a + b
            case "axpy":
                return a - 1.75 * b
            case "scale":
                return a * 0.3
            case "silu_mul":
                return a * sigmoid(a) * b
            case "sigmoid_mul":
                return a * sigmoid(b)
            case "sigmoid":
                return sigmoid(a)
            case "kda_decay":
                return np.exp(-5.0 * sigmoid(np.exp(0.4) * (a + b)))
            case _:
                e = np.exp(a - a.max())
                return e / e.sum()


@pytest.mark.parametrize("kernel", VECTOR_KERNELS)
@pytest.mark.parametrize("variant", ["uniform", "wide", "large"])
def test_vector_kernels_agree_with_float64(scalar: Dump, kernel: str, variant: str) -> None:
    """Within a few roundings: 1e-6 of the value; for sums of two terms that may cancel, of the terms. An argument x of
    the exponential carries a rounding of x itself, which grows the error to |x| roundings."""
    lengths = set()
    for match, y in matching(scalar, rf"{kernel} {variant} n=(\d+)"):
        n = int(match[1])
        a, b, w = (scalar[f"input {part} {variant} n={n}"] for part in "abw")
        expected = expected_vector(kernel, a, b, w)
        size = np.abs(a) + 1.75 * np.abs(b) if kernel in ("add", "axpy") else np.abs(expected)
        # Below 1e-37 the exponential is clamped and float32 runs out of digits.
        argument = {"kda_decay": np.abs(a) + np.abs(b), "softmax": a.max() - a}.get(kernel, np.zeros_like(a))
        bound = (1e-6 + ULP / 2 * argument) * size + 1e-37 * (1 + np.abs(a) + np.abs(b)) ** 2
        assert (np.abs(y[:n] - expected) <= bound).all(), match[0]
        assert (y[n:] == GUARD_VALUE).all(), f"{match[0]} writes past its end"
        lengths.add(n)
    assert lengths >= set(range(1, 18))


def test_work_in_place_changes_nothing(scalar: Dump) -> None:
    """The forward pass normalises and activates buffers in place."""
    for match, values in matching(scalar, r"(rms_norm|l2_norm|silu_mul|sigmoid) in place (.*)"):
        apart = scalar[f"{match[1]} {match[2]}"]
        assert ((bits(values) == bits(apart)) | (np.isnan(values) & np.isnan(apart))).all(), match[0]


@pytest.mark.parametrize("kernel", VECTOR_KERNELS)
def test_nan_is_never_swallowed(scalar: Dump, kernel: str) -> None:
    for match, y in matching(scalar, rf"{kernel} (?:nan|special) n=(\d+)"):
        n = int(match[1])
        label = match[0].removeprefix(f"{kernel} ")
        a_nan, b_nan = (np.isnan(scalar[f"input {part} {label}"]) for part in "ab")
        if kernel in ("rms_norm", "l2_norm", "softmax"):
            expected = np.full(n, a_nan.any())
        elif kernel in ("scale", "sigmoid"):
            expected = a_nan
        else:
            expected = a_nan | b_nan
        assert np.isnan(y[:n][expected]).all(), match[0]
        if "nan" in label and not expected.all():
            assert not np.isnan(y[:n][~expected]).any(), f"{match[0]} spreads it"
        assert (y[n:] == GUARD_VALUE).all(), match[0]


def test_softmax_of_equal_and_of_single_values(scalar: Dump) -> None:
    for match, y in matching(scalar, r"softmax equal n=(\d+)"):
        n = int(match[1])
        np.testing.assert_allclose(y[:n], 1 / n, rtol=1e-6)
    for variant in ("uniform", "wide", "large", "equal"):
        assert scalar[f"softmax {variant} n=1"][0] == 1


def test_exponentials_are_accurate_over_their_whole_range(scalar: Dump) -> None:
    """Four roundings of relative error where float32 has full precision; clamped values stay below 1e-37."""
    x = scalar["input a grid"].astype(np.float64)
    for name, expected in (
        ("sigmoid grid", sigmoid(x)),
        ("silu_mul grid", x * sigmoid(x)),
        ("softmax pairs grid", sigmoid(x)),
    ):
        error = np.abs(scalar[name] - expected)
        assert (error <= 4 * ULP * np.abs(expected) + 1e-36).all(), name
    # The gate, of up to 5, is the exponent: its rounding is added.
    decay = np.exp(-5 * sigmoid(x))
    assert (np.abs(scalar["kda_decay grid"] - decay) <= 10 * ULP * decay).all()


# -- the recurrent parts --


def test_convolution_agrees_with_float64(scalar: Dump) -> None:
    for match, x in matching(scalar, r"conv (uniform|special) taps=(\d+) n=(\d+) x"):
        taps, n = int(match[2]), int(match[3])
        w, y = scalar[match[0][:-1] + "w"].astype(np.float64), scalar[match[0][:-1] + "y"]
        rows = x.astype(np.float64).reshape(taps, n)
        with np.errstate(all="ignore"):
            terms = np.stack([w[tap * (n + 5) :][:n] * rows[tap] for tap in range(taps)])
            total = terms.sum(axis=0)
            expected = total * sigmoid(total)
        finite = np.isfinite(total)
        bound = 1e-6 * (1 + np.abs(terms[:, finite]).sum(axis=0))
        assert (np.abs(y[:n][finite] - expected[finite]) <= bound).all(), match[0]
        assert np.isnan(y[:n][np.isnan(total)]).all(), match[0]
        assert (y[n:] == GUARD_VALUE).all(), match[0]


def test_delta_rule_agrees_with_float64(scalar: Dump) -> None:
    """Sums of up to 128 terms of order one: 1e-5."""
    for match, s in matching(scalar, r"delta dk=(\d+) dv=(\d+) step=(\d) s"):
        dk, dv, step = (int(group) for group in match.groups())
        q, k, v, a, b, o, after = (scalar[match[0][:-1] + part].astype(np.float64) for part in "qkvabot")
        memory = s.astype(np.float64).reshape(dk, dv) * a[:, None]
        seen = np.einsum("kv,k->v", memory, k)
        memory = memory + np.outer(k, b[0] * (v - seen))
        out = np.einsum("kv,k->v", memory, q)
        if step == 3:
            broken = np.isnan(v)
            assert np.isnan(o[:dv][broken]).all()
            assert np.isnan(after.reshape(dk, dv)[:, broken]).all()
            assert np.isfinite(o[:dv][~broken]).all(), "a column touches its neighbour"
            continue
        np.testing.assert_allclose(o[:dv], out, rtol=0, atol=1e-5)
        np.testing.assert_allclose(after.reshape(dk, dv), memory, rtol=0, atol=1e-5)
        assert (o[dv:] == GUARD_VALUE).all()


# -- attention --


def test_attention_agrees_with_float64(scalar: Dump) -> None:
    for match, raw in matching(scalar, r"attention kv=(\d) heads=(\d+) width=(\d+) count=(\d+) c"):
        kv, heads, width, count = (int(group) for group in match.groups())
        q, p, scores, mixed = (scalar[match[0][:-1] + part] for part in "qpsm")
        if kv == 1:
            stored = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            stored = raw.view("<f4" if kv == 0 else "<f2")
        rows = stored.astype(np.float64).reshape(count, width)
        q64 = q.astype(np.float64).reshape(heads, width)
        stride = count + 2
        actual = scores[:-GUARD].reshape(heads, stride)
        bound = 1e-6 * (np.abs(q64) @ np.abs(rows).T)
        assert (np.abs(actual[:, :count] - 0.125 * (q64 @ rows.T)) <= bound).all(), match[0]
        assert (actual[:, count:] == GUARD_VALUE).all(), match[0]
        p64 = p.astype(np.float64).reshape(heads, stride)[:, :count]
        first, last = (8, width - 8) if width > 16 else (0, width)
        actual = mixed[:-GUARD].reshape(heads, width)
        bound = 1e-6 * (np.abs(p64) @ np.abs(rows))
        assert (np.abs(actual - p64 @ rows) <= bound)[:, first:last].all(), match[0]
        assert (actual[:, :first] == GUARD_VALUE).all(), match[0]
        assert (actual[:, last:] == GUARD_VALUE).all(), match[0]


def test_cache_rows_are_rounded_to_their_type(scalar: Dump) -> None:
    for match, raw in matching(scalar, r"attention kv=(\d) heads=\d+ width=\d+ count=\d+ c"):
        rows = scalar[match[0][:-1] + "r"]
        if match[1] == "0":
            assert raw.tobytes() == rows.tobytes()
        elif match[1] == "2":
            assert raw.tobytes() == rows.astype("<f2").tobytes()


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


def test_an_unknown_or_missing_set_is_refused(native_driver: Path, arm_driver: Path) -> None:
    """Without the dot product instruction there is no NEON set, and asking for it is no illegal instruction."""
    assert run_program([native_driver, "sse9"]).returncode == 2
    command = aarch64_command(arm_driver, cpu="cortex-a72")
    if command[0] != str(arm_driver):
        result = run_program([*command, "neon"])
        assert result.returncode == 2, result.stderr
        assert "scalar" in result.stderr
