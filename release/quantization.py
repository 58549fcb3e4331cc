"""Rounding of groups of 32 weights to small integers with one float16 scale.

A value is scale x q. The scale starts from plain symmetric rounding (largest magnitude / largest q) and is searched for
the least squared error of the group; the plain scale always competes, so no group is worse than plain rounding. A scale
may be negative: where q reaches further down than up, the largest magnitude of a group gets the far end that way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

GROUP = 32
FLOAT16_MAX = 65504.0
FLOAT16_TINY = 2.0**-24
_BATCH_GROUPS = 4096  # 512 KiB of float32: the search stays in the second-level cache

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFormat:
    """An integer format and the scales that the search tries.

    Attributes:
        lowest, highest: range of q.
        plain: divisor of the largest magnitude in plain symmetric rounding.
        divisors: further divisors to try.
        far_divisors: divisors to try with the sign that puts the largest magnitude at the lowest q.
        refinements: how often the best scale is replaced by the least-squares scale of its own integers.
    """

    lowest: int
    highest: int
    plain: float
    divisors: tuple[float, ...]
    far_divisors: tuple[float, ...]
    refinements: int


Q8 = GroupFormat(lowest=-127, highest=127, plain=127.0, divisors=(127.45, 126.2, 125.1), far_divisors=(), refinements=2)
Q4 = GroupFormat(lowest=-8, highest=7, plain=7.0, divisors=(6.4,), far_divisors=(7.4, 8.0, 8.5, 9.1), refinements=2)


def without_search(group_format: GroupFormat) -> GroupFormat:
    """The same integers with the plain scale of every group: round-to-nearest, the yardstick of the search."""
    return replace(group_format, divisors=(), far_divisors=(), refinements=0)


class ScaleOverflow(Exception):
    """A group needs a scale beyond float16; `magnitude` is the value that causes it."""

    def __init__(self, magnitude: float) -> None:
        super().__init__(f"a group with magnitude {magnitude:g} needs a scale beyond float16")
        self.magnitude = magnitude


def quantize_groups(
    group_format: GroupFormat, groups: Float32Array
) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.int8]]:
    """Rounds finite ``groups[n, 32]``; returns finite scales ``[n]`` and integers ``[n, 32]``.

    A group whose integers are all zero has scale 0.

    Raises:
        ScaleOverflow: a group is too large for the format.
    """
    count = len(groups)
    scales = np.empty(count, dtype=np.float16)
    quants = np.empty((count, GROUP), dtype=np.int8)
    for start in range(0, count, _BATCH_GROUPS):
        stop = min(start + _BATCH_GROUPS, count)
        scales[start:stop], quants[start:stop] = _search(group_format, groups[start:stop])
    return scales, quants


def plain_scales(group_format: GroupFormat, groups: Float32Array) -> Float32Array:
    """The scales of plain symmetric rounding of ``groups[n, 32]``, as float16 values in float32.

    Raises:
        ScaleOverflow: a scale is beyond float16.
    """
    magnitude = np.abs(groups).max(axis=1)
    largest = float(magnitude.max(initial=0.0))
    if largest / group_format.plain > FLOAT16_MAX:
        raise ScaleOverflow(largest)
    return _representable(magnitude / np.float32(group_format.plain), magnitude)


def round_to_scales(group_format: GroupFormat, groups: Float32Array, scales: Float32Array) -> Float32Array:
    """Nearest integers (as float32) of ``groups[n, 32]`` for given scales ``[n]``; zero where the scale is zero."""
    inverse = np.divide(np.float32(1), scales, out=np.zeros_like(scales), where=scales != 0)
    quants = groups * inverse[:, None]
    np.rint(quants, out=quants)
    return np.clip(quants, group_format.lowest, group_format.highest, out=quants)


def _representable(scales: Float32Array, magnitude: Float32Array) -> Float32Array:
    """Rounds scales to float16; what would round to zero becomes the smallest float16, except for zero groups."""
    bounded = np.clip(np.abs(scales), FLOAT16_TINY, FLOAT16_MAX).astype(np.float16).astype(np.float32)
    return np.where(magnitude > 0, np.copysign(bounded, scales), np.float32(0))


def _search(group_format: GroupFormat, groups: Float32Array) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.int8]]:
    magnitude = np.abs(groups).max(axis=1)
    best_scales = plain_scales(group_format, groups)
    best_quants = round_to_scales(group_format, groups, best_scales)
    best_error = _squared_error(groups, best_quants, best_scales)
    far = np.where(groups.max(axis=1) > -groups.min(axis=1), -magnitude, magnitude)
    candidates = [magnitude / np.float32(divisor) for divisor in group_format.divisors]
    candidates += [far / np.float32(divisor) for divisor in group_format.far_divisors]
    for candidate in candidates:
        scales = _representable(candidate, magnitude)
        _keep_better(group_format, groups, scales, best_scales, best_quants, best_error)
    for _ in range(group_format.refinements):
        scales = _least_squares(groups, best_quants, best_scales, magnitude)
        _keep_better(group_format, groups, scales, best_scales, best_quants, best_error)
    best_scales[~best_quants.any(axis=1)] = 0
    return best_scales.astype(np.float16), best_quants.astype(np.int8)


def _keep_better(
    group_format: GroupFormat,
    groups: Float32Array,
    scales: Float32Array,
    best_scales: Float32Array,
    best_quants: Float32Array,
    best_error: Float32Array,
) -> None:
    """Replaces scale, integers and error, in place, of every group that these scales serve better."""
    quants = round_to_scales(group_format, groups, scales)
    error = _squared_error(groups, quants, scales)
    better = error < best_error
    np.copyto(best_scales, scales, where=better)
    np.copyto(best_quants, quants, where=better[:, None])
    np.copyto(best_error, error, where=better)


def _least_squares(
    groups: Float32Array, quants: Float32Array, scales: Float32Array, magnitude: Float32Array
) -> Float32Array:
    """The scale that fits the integers best, sum(x q) / sum(q q), where there is one."""
    dot = np.einsum("gk,gk->g", groups, quants)
    norm = np.einsum("gk,gk->g", quants, quants)
    fitted = np.divide(dot, norm, out=scales.copy(), where=norm > 0)
    return _representable(fitted, magnitude)


def _squared_error(groups: Float32Array, quants: Float32Array, scales: Float32Array) -> Float32Array:
    difference = quants * scales[:, None]
    np.subtract(groups, difference, out=difference)
    error: Float32Array = np.einsum("gk,gk->g", difference, difference)
    return error
