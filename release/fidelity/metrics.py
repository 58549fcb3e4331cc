"""How far one model's predictions are from another's, position by position, and the sums over a text.

All arithmetic is float64 over logits `[positions, vocabulary]` without the padding rows of the vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from launcher.errors import EngineCrash

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """Next-token distributions of some positions.

    Attributes:
        logits: [n, V].
        log_probabilities, probabilities: [n, V], natural logarithm.
        best: [n], the most likely token; of equal ones the lowest id.
    """

    logits: Float64Array
    log_probabilities: Float64Array
    probabilities: Float64Array
    best: npt.NDArray[np.intp]

    def surprisal(self, targets: npt.NDArray[np.intp]) -> float:
        """Sum of -ln p of the tokens that came after the first ``len(targets)`` positions."""
        return -float(self.log_probabilities[np.arange(len(targets)), targets].sum())


def predictions(logits: npt.NDArray[np.float32]) -> Predictions:
    """The distributions that logits ``[n, V]`` stand for.

    Raises:
        EngineCrash: a logit is not finite.
    """
    wide = logits.astype(np.float64)
    if not np.isfinite(wide).all():
        raise EngineCrash(
            "logits-not-finite", "the engine computed a logit that is no finite number", hint="Verify the package."
        )
    shifted = wide - wide.max(axis=1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return Predictions(
        logits=wide,
        log_probabilities=log_probabilities,
        probabilities=np.exp(log_probabilities),
        best=wide.argmax(axis=1),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Figures of each position, [n]: over the vocabulary the mean absolute, mean squared and largest difference of
    logits; total variation, half the sum of absolute differences of probabilities; KL(expected || actual) in nats;
    whether the most likely token is the same.
    """

    absolute: Float64Array
    squared: Float64Array
    largest: Float64Array
    variation: Float64Array
    divergence: Float64Array
    agrees: npt.NDArray[np.bool_]


def compare(expected: Predictions, actual: Predictions) -> Errors:
    """The figures of positions of which both predicted the next token."""
    difference = np.abs(actual.logits - expected.logits)
    ratio = expected.log_probabilities - actual.log_probabilities
    return Errors(
        absolute=difference.mean(axis=1),
        squared=np.square(difference).mean(axis=1),
        largest=difference.max(axis=1),
        variation=0.5 * np.abs(actual.probabilities - expected.probabilities).sum(axis=1),
        divergence=(expected.probabilities * ratio).sum(axis=1),
        agrees=actual.best == expected.best,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Over a whole text.

    Attributes:
        mae, rmse, max_abs: of logits.
        tv: mean total variation, 0 to 1.
        kl: mean KL divergence from what is compared with, nats.
        top1: share of positions with the same most likely token.
        kl_by_position: position in the window and mean KL there, of every position that was added.
    """

    mae: float
    rmse: float
    max_abs: float
    tv: float
    kl: float
    top1: float
    kl_by_position: tuple[tuple[int, float], ...]


class ErrorSums:
    """Adds up the errors of a text, block by block."""

    def __init__(self, context: int) -> None:
        self._absolute = 0.0
        self._squared = 0.0
        self._largest = 0.0
        self._variation = 0.0
        self._agreeing = 0
        self._divergence = np.zeros(context)
        self._count = np.zeros(context, dtype=np.int64)

    def add(self, places: npt.NDArray[np.intp], errors: Errors) -> None:
        """Adds different positions of one window, at least one."""
        self._absolute += float(errors.absolute.sum())
        self._squared += float(errors.squared.sum())
        self._largest = max(self._largest, float(errors.largest.max()))
        self._variation += float(errors.variation.sum())
        self._agreeing += int(errors.agrees.sum())
        self._divergence[places] += errors.divergence
        self._count[places] += 1

    def figures(self) -> Figures:
        """The figures of all positions added, at least one."""
        positions = int(self._count.sum())
        seen = np.flatnonzero(self._count)
        return Figures(
            mae=self._absolute / positions,
            rmse=math.sqrt(self._squared / positions),
            max_abs=self._largest,
            tv=self._variation / positions,
            kl=float(self._divergence.sum()) / positions,
            top1=self._agreeing / positions,
            kl_by_position=tuple(
                zip(seen.tolist(), (self._divergence[seen] / self._count[seen]).tolist(), strict=True)
            ),
        )
