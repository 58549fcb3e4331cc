"""Recipes: which layout each kind of tensor gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

from launcher.engine_types import Dtype
from launcher.errors import PackageError
from release.checkpoint.tensors import PackageTensor, Role
from release.layouts.groups import GROUP, GroupFormat
from release.layouts.weights import FORMATS, PLAIN_FORMATS, is_quantized

SMALL_MATRIX_BYTES: Final = 1 << 20
"""A matrix that cannot be quantised because of its width stays F32 up to this size as F32; a larger one is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A name, one line that says what it does, the layout of each role, and how groups of integers are rounded."""

    name: str
    summary: str
    layouts: Mapping[Role, Dtype]
    searches_scales: bool = True

    @property
    def formats(self) -> Mapping[Dtype, GroupFormat]:
        """How groups of each quantised layout are rounded."""
        return FORMATS if self.searches_scales else PLAIN_FORMATS

    def dtype(self, tensor: PackageTensor) -> Dtype:
        """The layout of a tensor.

        Raises:
            PackageError: the recipe quantises it, but its width is not a multiple of 32 and it is not small.
        """
        dtype = self.layouts[tensor.role]
        if not is_quantized(dtype) or tensor.shape[-1] % GROUP == 0:
            return dtype
        if 4 * prod(tensor.shape) <= SMALL_MATRIX_BYTES:
            return Dtype.F32X8
        raise PackageError(
            "recipe-width-unsupported",
            f"recipe {self.name} quantises {tensor.name}, whose width {tensor.shape[-1]} is not a multiple of {GROUP}",
            hint="Use --recipe bf16 or f32 for this model.",
        )


def _uniform(dtype: Dtype) -> dict[Role, Dtype]:
    fixed = {Role.VECTOR: Dtype.F32, Role.ROUTER: Dtype.F32X8}
    return {role: fixed.get(role, dtype) for role in Role}


_MIXED: Final = {**_uniform(Dtype.Q8X8), Role.FEED_FORWARD: Dtype.Q4X8, Role.LARGE_PROJECTION: Dtype.Q4X8}

RECIPES: Final[Mapping[str, Recipe]] = {
    recipe.name: recipe
    for recipe in (
        Recipe(name="f32", summary="every matrix as float32: the exact reference", layouts=_uniform(Dtype.F32X8)),
        Recipe(
            name="bf16",
            summary="matrices as bfloat16 (exact for a bfloat16 source), router float32",
            layouts=_uniform(Dtype.BF16X8),
        ),
        Recipe(
            name="w8a8",
            summary="matrices as int8 in groups of 32, router float32",
            layouts=_uniform(Dtype.Q8X8),
        ),
        Recipe(
            name="w4a8",
            summary="feed-forward and large projections as int4 in groups of 32; embeddings, head, small projections"
            " and MTP projections as int8; router float32",
            layouts=_MIXED,
        ),
        Recipe(
            name="w4a8-plain",
            summary="the layouts of w4a8 by plain rounding to nearest, without the search for scales: for comparisons",
            layouts=_MIXED,
            searches_scales=False,
        ),
    )
}
