"""Checkpoints, conversions and a program that the tests of `release` share."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from release.package.pack import PackOptions, pack
from release.quantization.quantize import QuantizeOptions, quantize
from tests.support.checkpoints import make_checkpoint
from tests.support.release_folders import stand_in_program

Convert = Callable[..., Path]


@pytest.fixture(scope="session")
def micro(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small F32 checkpoint with an MTP layer; not to be changed."""
    return make_checkpoint(tmp_path_factory.mktemp("micro") / "checkpoint")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with a payload, but no code; not to be changed."""
    return stand_in_program(tmp_path_factory.mktemp("program"))


@pytest.fixture
def checkpoint(micro: Path, tmp_path: Path) -> Path:
    """A copy of the small checkpoint that a test may damage."""
    return Path(shutil.copytree(micro, tmp_path / "checkpoint"))


@pytest.fixture
def convert(tmp_path: Path) -> Convert:
    """Quantises and packs a folder; returns the package."""

    def run(source: Path, recipe: str = "f32", **options: object) -> Path:
        count = len(list(tmp_path.glob("assets-*")))
        output = tmp_path / f"assets-{count}"
        manifest = quantize(QuantizeOptions(source=source, output=output, recipe=recipe, **options))  # type: ignore[arg-type]
        return pack(PackOptions(manifest=manifest, output=tmp_path / f"package-{count}.l3r"))

    return run
