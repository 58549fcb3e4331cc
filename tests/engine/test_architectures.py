"""A whole model gives the same bits on every machine: x86-64 here, aarch64 under emulation, with and without the dot
product instruction. A C driver also looks at what the public interface does not show."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from engine.build import build_executable
from tests.support.models import Models, evaluate, open_session, prompt
from tests.support.programs import run_program
from tests.support.qemu import aarch64_command

DRIVER = Path(__file__).with_name("model_driver.c")
COUNT = 24
PACKAGES = [("micro", "f32"), ("micro", "bf16"), ("micro", "w8a8"), ("micro", "w4a8"), ("tiny", "w4a8")]

Lines = dict[str, str]


class Hashes:
    """What the engine of this machine gives, by package."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self.get = cache(self._get)

    def ids(self, name: str) -> list[int]:
        return prompt(COUNT, self._models.preset(name).vocabulary, seed=21)

    def _get(self, name: str, recipe: str) -> Lines:
        with open_session(self._models.package(name, recipe), context=COUNT) as session:
            result = evaluate(session, self.ids(name))
        arrays = {"logits": result.logits, "hidden": result.hidden, "mtp": result.mtp_logits}
        assert all(np.isfinite(values).all() for values in arrays.values())
        hashes = {key: hashlib.sha256(values.tobytes()).hexdigest() for key, values in arrays.items()}
        return {**hashes, "state": result.state.hex()}


@pytest.fixture(scope="module")
def hashes(models: Models) -> Hashes:
    return Hashes(models)


@pytest.fixture(scope="module")
def native_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_executable([DRIVER], "model_driver", out=tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_executable([DRIVER], "model_driver", "aarch64", static=True, out=tmp_path_factory.mktemp("arm"))


def run(command: list[str], package: Path, simd: str, ids: list[int], *, threads: int = 1, chunk: int = 0) -> Lines:
    """Results of the driver by name."""
    result = run_program([*command, "eval", package, simd, str(threads), str(chunk), *map(str, ids)])
    assert result.returncode == 0, result.stderr
    return dict(line.split(" ") for line in result.stdout.splitlines())


@pytest.mark.parametrize(("name", "recipe"), PACKAGES)
def test_neon_gives_the_bits_of_this_machine(
    models: Models, hashes: Hashes, driver: Path, name: str, recipe: str
) -> None:
    lines = run(aarch64_command(driver), models.package_path(name, recipe), "auto", hashes.ids(name), chunk=7)
    assert lines.pop("simd") == "neon"
    assert lines == hashes.get(name, recipe)


@pytest.mark.parametrize("recipe", ["f32", "w8a8", "w4a8"])
def test_a_processor_without_dot_products_falls_back_to_scalar(
    models: Models, hashes: Hashes, driver: Path, recipe: str
) -> None:
    """A Cortex-A72 would stop at the first dot product instruction."""
    command = aarch64_command(driver, cpu="cortex-a72")
    if command == [str(driver)]:
        pytest.skip("this machine is an aarch64 one; its processor is what it is")
    lines = run(command, models.package_path("micro", recipe), "auto", hashes.ids("micro"), threads=2)
    assert lines.pop("simd") == "scalar"
    assert lines == hashes.get("micro", recipe)


def test_neon_is_refused_by_name_where_it_cannot_run(models: Models, driver: Path) -> None:
    command = aarch64_command(driver, cpu="cortex-a72")
    if command == [str(driver)]:
        pytest.skip("this machine is an aarch64 one; its processor is what it is")
    result = run_program([*command, "eval", models.package_path("micro", "w8a8"), "neon", "1", "0", "1", "2"])
    assert result.returncode == 1
    assert "neon" in result.stderr


def test_rotary_angles_are_exact_to_the_end_of_the_context(models: Models, native_driver: Path, driver: Path) -> None:
    """An angle in float32 would be off by 1e-2 at the last position. The C libraries of the two builds are different
    ones, so equal bits also say that the result does not hang on them."""
    package = models.package_path("micro", "f32")
    positions = [*range(0, 262144, 997), 131071, 131072, 262142, 262143]
    command: list[str | Path] = ["rotation", package, *map(str, positions)]
    native, foreign = run_program([native_driver, *command]), run_program([*aarch64_command(driver), *command])
    assert native.returncode == 0, native.stderr
    assert foreign.stdout == native.stdout
    words = [[int(word, 16) for word in line.split()] for line in native.stdout.splitlines()]
    actual = np.array(words, dtype=np.uint32).view(np.float32)
    dimensions = models.dimensions("micro")
    angles = np.outer(positions, dimensions.rope_theta ** (-np.arange(0, dimensions.rope, 2) / dimensions.rope))
    np.testing.assert_allclose(actual[:, 0::2], np.cos(angles), rtol=0, atol=1e-7)
    np.testing.assert_allclose(actual[:, 1::2], np.sin(angles), rtol=0, atol=1e-7)


def test_the_state_hash_sees_every_part(models: Models, native_driver: Path) -> None:
    """Otherwise equal hashes in other tests would say little."""
    result = run_program([native_driver, "state", models.package_path("micro", "f32")])
    assert result.returncode == 0, result.stderr
    parts = ("tokens", "kda_state", "conv_state", "kv_cache", "mtp_cache")
    assert result.stdout.splitlines() == [f"{name} seen" for name in parts]
