"""Coverage-guided fuzzing of the reader, bounded by inputs: whatever a package says, nothing is read outside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.engine_types import Dtype
from tests.support.package_bytes import Image
from tests.support.packages import INTEGER, ODD, uniform, write_package
from tests.support.programs import guarded_program, run_program

ROUNDS = 8000
DENSE = replace(INTEGER, dense_layer_count=2, mtp_layer_count=0, q_lora_rank=0)


@pytest.fixture(scope="module")
def fronts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Header, directory and sections of sound packages of three kinds."""
    folder = tmp_path_factory.mktemp("fronts")
    packages = [
        write_package(folder / "integer.l3r"),
        write_package(folder / "odd.l3r", ODD, uniform(Dtype.BF16X8)),
        write_package(folder / "dense.l3r", DENSE, uniform(Dtype.F32X8), mtp=False),
    ]
    for package in packages:
        image = Image(package)
        package.with_suffix(".front").write_bytes(image.data[: max(section.end for section in image.sections)])
    return [package.with_suffix(".front") for package in packages]


@pytest.mark.slow
def test_no_package_leads_outside_itself(fronts: list[Path], tmp_path: Path) -> None:
    program = guarded_program("fuzz_package", "fuzz_loop", folder=tmp_path, coverage=True)
    last = tmp_path / "last"
    result = run_program([program, str(ROUNDS), "1", last, *fronts])
    assert result.returncode == 0, f"the input is in {last}:\n{result.stderr[-8000:]}"
    rounds, taken, seeds, features, kept = map(int, result.stdout.split())
    assert rounds == ROUNDS
    # Both ways were taken often, and what was kept led on: without guidance far fewer features are found.
    assert taken > ROUNDS // 20
    assert rounds - taken > ROUNDS // 4
    assert features > seeds + 300
    assert kept > 100
