"""A comparison with published figures that does not follow from them, or that the documentation states differently."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import pytest

from engine.build import build_library
from launcher.engine import Package
from launcher.engine_library import Library
from launcher.engine_types import EngineOptions, KvType, SessionOptions
from tests.support.demo import ROOT
from tests.support.expanded_cache import (
    HELD_OUT,
    MIB,
    PROJECTED_MIB,
    PUBLISHED_CAPACITY,
    PUBLISHED_MIB,
    earlier_mib,
    expanded_token_bytes,
    latent_token_bytes,
)
from tests.support.full_size import CONFIG, write_hollow

PAGE = (ROOT / "docs" / "memory.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Package]:
    path = write_hollow(tmp_path_factory.mktemp("full") / "hollow.l3r")
    with Package(path, library=Library(build_library())) as opened:
        yield opened


def test_slopes_follow_from_the_dimensions() -> None:
    assert expanded_token_bytes(CONFIG) == 60 * 1024
    assert latent_token_bytes(CONFIG) == 6.75 * 1024
    assert expanded_token_bytes(CONFIG, element=1) == 30 * 1024


@pytest.mark.parametrize(("used", "published"), PUBLISHED_MIB.items())
def test_published_rows_are_reproduced(used: int, published: int) -> None:
    assert earlier_mib(CONFIG, PUBLISHED_CAPACITY, used) == pytest.approx(published, rel=0.002)


def test_a_run_that_nothing_was_fitted_to_is_reproduced() -> None:
    capacity, used, published = HELD_OUT
    assert earlier_mib(CONFIG, capacity, used) == pytest.approx(published, rel=0.002)


@pytest.mark.parametrize(("size", "expected"), PROJECTED_MIB.items())
def test_projected_rows_are_exact(size: int, expected: tuple[int, int]) -> None:
    capacity = size * 1024
    assert (earlier_mib(CONFIG, capacity, 0), earlier_mib(CONFIG, capacity, capacity)) == expected


def test_this_engines_cache_is_the_latent_one(package: Package) -> None:
    for size in PROJECTED_MIB:
        options = SessionOptions(context=size * 1024, kv_type=KvType.BF16)
        terms = {term.name: term.full for term in package.plan(EngineOptions(threads=4), options).terms}
        assert terms["kv_cache"] == size * 1024 * latent_token_bytes(CONFIG)


def test_the_documentation_has_these_figures(package: Package) -> None:
    for size, (idle, full) in PROJECTED_MIB.items():
        options = SessionOptions(context=size * 1024, kv_type=KvType.BF16, checkpoints=4)
        plan = package.plan(EngineOptions(threads=4), options)
        ours = (round(plan.idle_bytes / MIB), round(plan.full_bytes / MIB))
        row = f"| {size}K | {idle:,} | {full:,} | {ours[0]:,} | {ours[1]:,} | {full - ours[1]:,} |"
        assert row in PAGE, row
    for used, published in PUBLISHED_MIB.items():
        computed = earlier_mib(CONFIG, PUBLISHED_CAPACITY, used)
        row = f"| {used:,} | {published:,} | {computed:,.0f} | {100 * (computed / published - 1):+.2f} % |"
        assert row in PAGE, row


def test_the_full_size_package_is_the_published_size(package: Package) -> None:
    """kv_b_proj is stored in two halves that together have its size, so the package counts as the checkpoint does."""
    assert sum(prod(tensor.shape) for tensor in package.tensors()) == 7_893_392_800
