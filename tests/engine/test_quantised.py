"""Quantised packages compute what their integers stand for.

The reference runs on the dequantised weights, with the routing that it chose itself forced on the engine. What is left
is the rounding of activations to int8. A reference that rounds them in the same way agrees to float noise, with one
exception: a value within that noise of the border between two integers may fall on the other side. One such step, a
127th of its group's largest value, shows in the logits and is amplified by every later layer, so the bound holds for
the median token rather than for all. Short prompts keep a step from spreading over the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.dimensions import Dimensions
from tests.support.models import Models, evaluate, open_session, prompt
from tests.support.reference import Reference, package_weights

PROMPTS = 16
COUNT = 6
FLOAT_NOISE = 1e-4
RECIPES = ["w8a8", "w4a8"]

Errors = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Largest error of each token's logits, and the spread of the logits themselves."""

    trunk: Errors
    draft: Errors
    unrounded: Errors
    spread: float
    share: float  # of the dequantised weights that integers stand for


class Comparisons:
    def __init__(self, models: Models) -> None:
        self._models = models
        self.get = cache(self._get)

    def _get(self, name: str, recipe: str) -> Comparison:
        package = self._models.package(name, recipe)
        weights, integer = package_weights(package)
        dimensions = Dimensions.from_package(package.config)
        trunk, draft, unrounded, spread = [], [], [], []
        with open_session(package, context=COUNT) as session:
            for seed in range(PROMPTS):
                ids = prompt(COUNT, package.config.token_count, seed)
                reference = Reference(dimensions, weights, integer=integer)
                expected = reference.forward(ids)
                exact = Reference(dimensions, weights).forward(ids, expected.routing)
                session.reset()
                session.force_routing(expected.routing.ravel().tolist(), COUNT)
                result = evaluate(session, ids)
                drafted = reference.mtp(result.hidden[:-1], ids[1:])
                trunk.append(np.abs(result.logits - expected.logits).max(axis=1))
                draft.append(np.abs(result.mtp_logits - drafted.logits).max(axis=1))
                unrounded.append(np.abs(result.logits - exact.logits).max(axis=1))
                spread.append(exact.logits.std())
        stored = {tensor.name: int(np.prod(tensor.shape)) for tensor in package.tensors()}
        return Comparison(
            trunk=np.concatenate(trunk),
            draft=np.concatenate(draft),
            unrounded=np.concatenate(unrounded),
            spread=float(np.mean(spread)),
            share=sum(stored[name] for name in integer) / sum(stored.values()),
        )


@pytest.fixture(scope="module")
def comparisons(models: Models) -> Comparisons:
    return Comparisons(models)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", ["micro", "shallow", "shallow-experts", "tiny"])
def test_agrees_with_a_reference_that_rounds_activations(comparisons: Comparisons, name: str, recipe: str) -> None:
    comparison = comparisons.get(name, recipe)
    assert comparison.share > 0.9, "hardly anything is quantised"
    assert np.median(comparison.trunk) < FLOAT_NOISE
    assert np.median(comparison.draft) < FLOAT_NOISE
    # Even where a step was taken, the error is that of a step, not of wrong arithmetic.
    assert comparison.trunk.max() < comparison.unrounded.max()


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", ["micro", "shallow", "shallow-experts", "tiny"])
def test_rounding_of_activations_costs_little(comparisons: Comparisons, name: str, recipe: str) -> None:
    """Against exact activations: the error is there, because they are rounded, and small beside the logits."""
    comparison = comparisons.get(name, recipe)
    assert np.median(comparison.unrounded) > 100 * FLOAT_NOISE
    assert np.median(comparison.unrounded) < 0.25 * comparison.spread
    assert comparison.unrounded.max() < comparison.spread


@pytest.mark.parametrize("recipe", RECIPES)
def test_forced_routing_decides_the_experts(models: Models, recipe: str) -> None:
    """Otherwise the comparisons above would compare two choices that happen to be alike."""
    package = models.package("micro", recipe)
    weights, integer = package_weights(package)
    dimensions = Dimensions.from_package(package.config)
    errors, effects = [], []
    with open_session(package, context=COUNT) as session:
        for seed in range(PROMPTS):
            ids = prompt(COUNT, package.config.token_count, seed)
            routing = Reference(dimensions, weights, integer=integer).forward(ids).routing
            routing = (routing + 1) % package.config.expert_count
            expected = Reference(dimensions, weights, integer=integer).forward(ids, routing)
            session.reset()
            free = evaluate(session, ids)
            session.reset()
            session.force_routing(routing.ravel().tolist(), COUNT)
            forced = evaluate(session, ids)
            session.reset()
            assert evaluate(session, ids).same_bits(free), "reset does not end forced routing"
            errors.append(np.abs(forced.logits - expected.logits).max(axis=1))
            effects.append(np.abs(forced.logits - free.logits).max(axis=1))
    assert (np.median(errors, axis=0) < FLOAT_NOISE).all()  # at each position of the prompt
    assert (np.median(effects, axis=0) > 0.1).all()
