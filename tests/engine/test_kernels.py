"""Every kernel set computes the same bits, and the right ones.

A C driver runs each kernel on generated inputs and dumps inputs and results. The scalar set's results are held against
NumPy within a stated bound of float64 (products and rounding: test_kernel_products.py; attention and its cache:
test_kernel_cache.py). The vector sets are then held against the scalar one.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from engine.build import build_executable
from launcher.engine_library import Library
from tests.support.kernel_dump import GUARD_VALUE, Dump, Values, bits, differences, dump_of, matching, read_dump
from tests.support.programs import run_program, sanitizers
from tests.support.qemu import aarch64_command

DRIVER = Path(__file__).with_name("kernel_driver.c")
ULP = 2.0**-23  # of a value in [1, 2)

Float32 = npt.NDArray[np.float32]


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


def test_an_unknown_or_missing_set_is_refused(native_driver: Path, arm_driver: Path) -> None:
    """Without the dot product instruction there is no NEON set, and asking for it is no illegal instruction."""
    assert run_program([native_driver, "sse9"]).returncode == 2
    command = aarch64_command(arm_driver, cpu="cortex-a72")
    if command[0] != str(arm_driver):
        result = run_program([*command, "neon"])
        assert result.returncode == 2, result.stderr
        assert "scalar" in result.stderr
