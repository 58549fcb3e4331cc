"""The engine computes the model: float packages against float64 and against implementations of others.

The prompt is longer than the default chunk, so every layer also continues from a state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from launcher.engine import Package
from launcher.engine_library import Library
from launcher.engine_types import Dtype, KvType
from tests.support.dimensions import Dimensions
from tests.support.kv_rows import rounded_rows
from tests.support.models import Evaluation, Float32, Models, evaluate, open_session, prompt
from tests.support.oracles import llama_cpp_convert, llama_cpp_logits, llama_cpp_missing, transformers_logits
from tests.support.packages import ODD, uniform, write_package
from tests.support.reference import (
    Output,
    Reference,
    mean_kl,
    package_weights,
    round_to_bfloat16,
)

COUNT = 96
LOGIT_TOLERANCE = 1e-3
KL_TOLERANCE = 1e-8
# Float32 sums of a few hundred terms through a dozen layers reach 5e-5; a wrong detail of the arithmetic shows above.
FLOAT_NOISE = 2e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One prompt in the engine and in the reference."""

    ids: list[int]
    engine: Evaluation
    trunk: Output
    draft: Output


class Cases:
    def __init__(self, models: Models) -> None:
        self._models = models
        self.get = cache(self._get)

    def _get(self, name: str) -> Case:
        ids = prompt(COUNT, self._models.preset(name).vocabulary)
        reference = Reference(self._models.dimensions(name), self._models.weights(name))
        trunk = reference.forward(ids)
        draft = reference.mtp(trunk.hidden[:-1], ids[1:])
        with open_session(self._models.package(name, "f32"), context=COUNT) as session:
            return Case(ids=ids, engine=evaluate(session, ids), trunk=trunk, draft=draft)


@pytest.fixture(scope="module")
def cases(models: Models) -> Cases:
    return Cases(models)


def assert_close(actual: Float32, expected: npt.NDArray[np.floating], tolerance: float = FLOAT_NOISE) -> None:
    """Logits within the tolerance, with the distributions and the choices they lead to."""
    assert np.isfinite(actual).all()
    assert np.abs(actual - expected).max() < tolerance
    assert mean_kl(expected, actual) < KL_TOLERANCE
    clear = np.diff(np.sort(expected, axis=1)[:, -2:], axis=1)[:, 0] > 2 * tolerance
    assert np.array_equal(actual.argmax(axis=1)[clear], expected.argmax(axis=1)[clear])


@pytest.mark.parametrize("name", ["micro", "tail", "tiny", "qnone", "mid"])
def test_trunk_agrees_with_float64(cases: Cases, name: str) -> None:
    case = cases.get(name)
    assert_close(case.engine.logits, case.trunk.logits)
    assert np.abs(case.engine.hidden - case.trunk.hidden).max() < FLOAT_NOISE


@pytest.mark.parametrize("name", ["micro", "tail", "tiny", "qnone", "mid"])
def test_mtp_agrees_with_float64(cases: Cases, name: str) -> None:
    case = cases.get(name)
    assert_close(case.engine.mtp_logits, case.draft.logits)


@pytest.mark.parametrize("name", ["tiny", "qnone", "mid"])
def test_trunk_agrees_with_transformers(models: Models, cases: Cases, name: str) -> None:
    case = cases.get(name)
    theirs = transformers_logits(models.checkpoint(name), case.ids)
    assert_close(case.engine.logits, theirs, LOGIT_TOLERANCE)


@pytest.mark.skipif(llama_cpp_missing() is not None, reason=str(llama_cpp_missing()))
@pytest.mark.parametrize("name", ["tiny", "qnone", "mid"])
def test_trunk_agrees_with_llama_cpp(models: Models, cases: Cases, name: str, tmp_path: Path) -> None:
    case = cases.get(name)
    llama_cpp_convert(models.checkpoint(name), tmp_path / "model.gguf")
    theirs = llama_cpp_logits(tmp_path / "model.gguf", case.ids)
    assert_close(case.engine.logits, theirs, LOGIT_TOLERANCE)


@pytest.mark.parametrize("kv_type", [kind for kind in KvType if kind is not KvType.F32], ids=lambda kind: kind.label)
def test_rounded_cache_agrees_with_a_rounded_reference(models: Models, kv_type: KvType) -> None:
    name = "tiny"
    ids = prompt(COUNT, models.preset(name).vocabulary, seed=3)
    dimensions = models.dimensions(name)
    reference = Reference(
        dimensions, models.weights(name), cache_rounding=lambda rows: rounded_rows(kv_type, rows, dimensions.kv_lora)
    )
    trunk = reference.forward(ids)
    exact = Reference(models.dimensions(name), models.weights(name)).forward(ids)
    with open_session(models.package(name, "f32"), context=COUNT, kv_type=kv_type) as session:
        result = evaluate(session, ids)
    draft = reference.mtp(result.hidden[:-1], ids[1:])
    errors = np.abs(result.logits - trunk.logits).max(axis=1)
    effect = np.abs(exact.logits - trunk.logits).max(axis=1)
    # Float noise moves a few values of the cache over the border between two neighbours; most tokens see none of them.
    assert np.median(errors) < FLOAT_NOISE
    assert errors.max() < effect.max() / 4, "no better than a reference with an exact cache"
    assert np.median(np.abs(result.mtp_logits - draft.logits).max(axis=1)) < FLOAT_NOISE


@pytest.mark.parametrize(("kv_type", "bound"), [(KvType.FP8, 0.015), (KvType.INT8, 0.008)], ids=["fp8", "int8"])
def test_a_cache_of_bytes_stays_close_to_an_exact_one(
    models: Models, cases: Cases, kv_type: KvType, bound: float
) -> None:
    """In fractions of the spread of a token's logits; of the median token, because here and there rounding tips the
    choice between two experts, and experts of random weights have nothing in common."""
    exact = cases.get("tiny")
    with open_session(models.package("tiny", "f32"), context=COUNT, kv_type=kv_type) as session:
        result = evaluate(session, exact.ids, mtp=False)
    error = np.sqrt(np.mean((result.logits - exact.engine.logits) ** 2, axis=1)) / exact.engine.logits.std(axis=1)
    assert (error > 0).all(), "nothing was rounded"
    assert np.median(error) < bound


def test_bfloat16_package_agrees_with_rounded_weights(models: Models) -> None:
    name = "tiny"
    ids = prompt(COUNT, models.preset(name).vocabulary, seed=4)
    package = models.package(name, "bf16")
    weights, integer = package_weights(package)
    source = models.weights(name)
    assert integer == frozenset()
    layer = "model.layers.3"
    for tensor in ("lm_head.weight", f"{layer}.attention.kv_b_proj.weight", f"{layer}.mlp.experts.5.up_proj.weight"):
        assert np.array_equal(weights[tensor], round_to_bfloat16(source[tensor])), tensor
    reference = Reference(Dimensions.from_package(package.config), weights)
    trunk = reference.forward(ids)
    with open_session(package, context=COUNT) as session:
        result = evaluate(session, ids)
    assert_close(result.logits, trunk.logits)
    assert_close(result.mtp_logits, reference.mtp(trunk.hidden[:-1], ids[1:]).logits)
    unrounded = Reference(models.dimensions(name), source).forward(ids)
    assert np.abs(result.logits - unrounded.logits).max() > 10 * FLOAT_NOISE, "the weights were not rounded at all"


@pytest.mark.parametrize("layout", [Dtype.F32X8, Dtype.BF16X8], ids=lambda layout: layout.name)
def test_widths_that_fill_no_vector_register_agree(library: Library, tmp_path: Path, layout: Dtype) -> None:
    """Heads of 9 and 11 values, 13 and 7 inner ones, 333 tokens, three convolution taps, three of six experts."""
    with Package(write_package(tmp_path / "odd.l3r", ODD, uniform(layout)), library=library) as package:
        ids = prompt(60, package.config.vocab_size)
        reference = Reference(Dimensions.from_package(package.config), package_weights(package)[0])
        trunk = reference.forward(ids)
        draft = reference.mtp(trunk.hidden[:-1], ids[1:])
        for simd in library.simd_available:
            with open_session(package, context=len(ids), chunk=17, simd=simd) as session:
                result = evaluate(session, ids)
            assert_close(result.logits, trunk.logits)
            assert_close(result.mtp_logits, draft.logits)


def test_a_long_prompt_agrees(models: Models) -> None:
    """Sixteen chunks and a thousand positions to attend to, to the last place of the context."""
    count = models.preset("micro").max_position * 2
    ids = prompt(count, models.preset("micro").vocabulary, seed=5)
    trunk = Reference(models.dimensions("micro"), models.weights("micro")).forward(ids)
    with open_session(models.package("micro", "f32"), context=count) as session:
        result = evaluate(session, ids, mtp=False)
    assert_close(result.logits, trunk.logits)
