"""The reference that the engine is measured against agrees with implementations of others."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.models import Models, prompt
from tests.support.oracles import NUMPY_ORACLE, numpy_oracle, transformers_logits
from tests.support.reference import (
    Reference,
    mean_kl,
    package_weights,
    round_activations,
    round_to_bfloat16,
    round_to_float16,
)

COUNT = 48


def reference(models: Models, name: str) -> Reference:
    return Reference(models.dimensions(name), models.weights(name))


@pytest.mark.parametrize("name", ["micro", "tiny"])
def test_trunk_agrees_with_transformers(models: Models, name: str) -> None:
    ids = prompt(COUNT, models.preset(name).vocabulary)
    ours = reference(models, name).forward(ids).logits
    theirs = transformers_logits(models.checkpoint(name), ids)
    assert np.abs(ours - theirs).max() < 2e-4  # theirs is float32
    assert mean_kl(ours, theirs) < 1e-9


@pytest.mark.skipif(not NUMPY_ORACLE.is_file(), reason="there is no ../shared/oracle/ref_numpy.py beside the checkout")
@pytest.mark.parametrize("name", ["micro", "tail", "qnone"])
def test_trunk_and_mtp_agree_with_the_shared_float64_oracle(models: Models, name: str) -> None:
    ids = prompt(COUNT, models.preset(name).vocabulary, seed=1)
    subject, oracle = reference(models, name), numpy_oracle(models.checkpoint(name))
    trunk = subject.forward(ids)
    hidden, logits = oracle.forward(ids)
    np.testing.assert_allclose(trunk.hidden, hidden, rtol=0, atol=1e-10)
    np.testing.assert_allclose(trunk.logits, logits, rtol=0, atol=1e-10)
    layers = range(models.preset(name).dense_layers, models.preset(name).layers)
    assert np.array_equal(trunk.routing, np.array([oracle.route[layer] for layer in layers]))
    draft = subject.mtp(trunk.hidden[:-1], ids[1:])
    hidden, logits = oracle.mtp(hidden[:-1], ids[1:])
    np.testing.assert_allclose(draft.hidden, hidden, rtol=0, atol=1e-10)
    np.testing.assert_allclose(draft.logits, logits, rtol=0, atol=1e-10)


def test_state_carries_over_calls(models: Models) -> None:
    ids = prompt(COUNT, 320, seed=2)
    whole, pieces = reference(models, "micro"), reference(models, "micro")
    expected = whole.forward(ids)
    parts = [pieces.forward(ids[start:stop]) for start, stop in ((0, 1), (1, 2), (2, 31), (31, COUNT))]
    np.testing.assert_allclose(np.concatenate([part.logits for part in parts]), expected.logits, rtol=0, atol=1e-10)
    drafts = [pieces.mtp(expected.hidden[start:stop], ids[start + 1 : stop + 1]) for start, stop in ((0, 1), (1, 47))]
    logits = whole.mtp(expected.hidden[:-1], ids[1:]).logits
    np.testing.assert_allclose(np.concatenate([draft.logits for draft in drafts]), logits, rtol=0, atol=1e-10)


def test_forced_routing_is_obeyed(models: Models) -> None:
    ids = prompt(8, 320)
    free = reference(models, "micro").forward(ids)
    same = reference(models, "micro").forward(ids, free.routing)
    assert np.array_equal(same.logits, free.logits)
    other = reference(models, "micro").forward(ids, (free.routing + 1) % 4)
    assert np.abs(other.logits - free.logits).max() > 0.1


def test_float32_package_holds_the_checkpoint(models: Models) -> None:
    """The package's tensors, read back through the engine, are the source's: nothing is transposed or swapped."""
    weights, integer = package_weights(models.package("tail", "f32"))
    source = models.weights("tail")
    assert integer == frozenset()
    assert set(weights) == set(source)
    for name, values in source.items():
        assert np.array_equal(weights[name], values), name


def test_rounding_of_activations() -> None:
    x = np.zeros((2, 64))
    x[0, :4] = [127.0, 2.5, 3.5, -0.6]
    x[1, 32:36] = [-2.0, 1.0, 0.001, 1.999]
    rounded = round_activations(x)
    assert rounded[0, :4].tolist() == [127.0, 2.0, 4.0, -1.0]  # ties to even
    np.testing.assert_allclose(rounded[1, 32:36], np.array([-127, 64, 0, 127]) * 2 / 127, rtol=1e-15)
    assert not rounded[1, :32].any()


def test_rounding_of_cache_rows() -> None:
    x = np.array([[1.0, 1 + 2**-8, 1 + 3 * 2**-8, -3.0e38, 1 + 2**-11, 65519.0, 65520.0]])
    assert round_to_bfloat16(x)[0, :3].tolist() == [1.0, 1.0, 1 + 2**-6]
    assert round_to_bfloat16(x)[0, 3] == -float.fromhex("0x1.c4p127")
    assert round_to_float16(x)[0, 4:].tolist() == [1.0, 65504.0, np.inf]
