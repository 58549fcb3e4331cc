"""Formats of groups of 32 weights: small integers with one float16 scale.

A value is scale x q. The scale starts from plain symmetric rounding (largest magnitude / largest q) and is searched for
the least squared error of the group; the plain scale always competes, so no group is worse than plain rounding. A scale
may be negative: where q reaches further down than up, the largest magnitude of a group gets the far end that way.
`release.layouts.quantizer` does it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

GROUP = 32
FLOAT16_MAX = 65504.0


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
