"""Fidelity figures that are not what their names say, against torch and against plain sums in Python's floats."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from launcher.errors import EngineCrash
from release.fidelity.metrics import ErrorSums, Figures, compare, predictions

Floats = npt.NDArray[np.float32]


def pair(rows: int = 23, vocabulary: int = 301, spread: float = 4.0) -> tuple[Floats, Floats]:
    generator = np.random.default_rng(11)
    expected = (spread * generator.standard_normal((rows, vocabulary))).astype(np.float32)
    actual = (expected + 0.3 * generator.standard_normal((rows, vocabulary))).astype(np.float32)
    return expected, actual


def figures(expected: Floats, actual: Floats, *, block: int = 1000) -> Figures:
    sums = ErrorSums(len(expected))
    for start in range(0, len(expected), block):
        places = slice(start, start + block)
        errors = compare(predictions(expected[places]), predictions(actual[places]))
        sums.add(np.arange(len(expected))[places], errors)
    return sums.figures()


@pytest.mark.parametrize("spread", [0.1, 4.0, 60.0])
def test_figures_are_not_those_of_torch(spread: float) -> None:
    torch = pytest.importorskip("torch")
    expected, actual = pair(spread=spread)
    left, right = (torch.from_numpy(values).double() for values in (expected, actual))
    log_p, log_q = left.log_softmax(1), right.log_softmax(1)
    wanted = {
        "mae": torch.nn.functional.l1_loss(right, left),
        "rmse": torch.nn.functional.mse_loss(right, left).sqrt(),
        "max_abs": torch.dist(left, right, p=float("inf")),
        "tv": torch.cdist(log_p.exp()[:, None], log_q.exp()[:, None], p=1).mean() / 2,
        "kl": torch.nn.functional.kl_div(log_q, log_p, reduction="batchmean", log_target=True),
        "top1": (left.argmax(1) == right.argmax(1)).double().mean(),
    }
    found = figures(expected, actual)
    for name, value in wanted.items():
        assert getattr(found, name) == pytest.approx(float(value), rel=1e-12, abs=1e-15), name
    targets = np.arange(5, 25)
    surprisal = torch.nn.functional.cross_entropy(left[:20], torch.from_numpy(targets), reduction="sum")
    assert predictions(expected).surprisal(targets) == pytest.approx(float(surprisal), rel=1e-12)


def test_figures_are_not_those_of_exact_sums() -> None:
    expected, actual = pair(rows=5, vocabulary=17)
    divergences, variations, absolute, squared = [], [], [], []
    for left, right in zip(expected.astype(float).tolist(), actual.astype(float).tolist(), strict=True):
        p, q = probabilities(left), probabilities(right)
        divergences.append(math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))
        variations.append(math.fsum(max(0.0, a - b) for a, b in zip(p, q, strict=True)))  # the same by definition
        absolute += [abs(a - b) for a, b in zip(left, right, strict=True)]
        squared += [(a - b) ** 2 for a, b in zip(left, right, strict=True)]
    found = figures(expected, actual)
    assert found.kl == pytest.approx(math.fsum(divergences) / 5, rel=1e-12)
    assert found.tv == pytest.approx(math.fsum(variations) / 5, rel=1e-12)
    assert found.mae == pytest.approx(math.fsum(absolute) / len(absolute), rel=1e-12)
    assert found.rmse == pytest.approx(math.sqrt(math.fsum(squared) / len(squared)), rel=1e-12)
    assert found.max_abs == pytest.approx(max(absolute), rel=1e-12)
    assert found.kl_by_position == tuple(enumerate(pytest.approx(value, rel=1e-12) for value in divergences))


def probabilities(logits: list[float]) -> list[float]:
    largest = max(logits)
    powers = [math.exp(value - largest) for value in logits]
    total = math.fsum(powers)
    return [power / total for power in powers]


def test_divergence_is_taken_the_wrong_way_round() -> None:
    """The reference is sure; a package that spreads out is punished by KL(reference || package) with ln 2."""
    sure = np.array([[40.0, 0.0]], dtype=np.float32)
    even = np.array([[0.0, 0.0]], dtype=np.float32)
    assert figures(sure, even).kl == pytest.approx(math.log(2))
    assert figures(even, sure).kl == pytest.approx(20 - math.log(2))


def test_equal_logits_have_an_error() -> None:
    expected, _ = pair()
    found = figures(expected, expected.copy())
    assert (found.mae, found.rmse, found.max_abs, found.tv, found.kl, found.top1) == (0, 0, 0, 0, 0, 1)


def test_blocks_change_the_figures() -> None:
    expected, actual = pair()
    whole, cut = figures(expected, actual), figures(expected, actual, block=4)
    assert cut.kl == whole.kl
    assert cut.kl_by_position == whole.kl_by_position
    assert cut.rmse == pytest.approx(whole.rmse, rel=1e-14)
    assert (cut.max_abs, cut.top1) == (whole.max_abs, whole.top1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_logit_that_is_no_number_goes_into_the_mean(value: float) -> None:
    logits = np.zeros((2, 4), dtype=np.float32)
    logits[1, 2] = value
    with pytest.raises(EngineCrash, match="finite"):
        predictions(logits)
