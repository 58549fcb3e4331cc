"""Opening and planning a package of gigabytes touches almost nothing of it; the MTP extents are mapped on request."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from engine.build import build_library
from launcher.engine_types import Dtype
from tests.support.package_bytes import Image
from tests.support.packages import INTEGER, uniform, write_package, write_sparse_package

ROOT = Path(__file__).parents[2]
PAGE = 4096
LARGE = replace(
    INTEGER,
    vocab_size=100_352,
    token_count=100_000,
    hidden_size=2048,
    intermediate_size=5120,
    layer_count=24,
    layer_group_size=4,
    head_count=16,
    head_dim=128,
    q_lora_rank=0,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    expert_count=128,
    experts_per_token=8,
    expert_group_count=8,
    expert_group_top=4,
    moe_intermediate_size=512,
    shared_intermediate_size=512,
    max_position=131_072,
    max_context=262_144,
    stop_ids=(99_999,),
    eos_id=99_999,
    pad_id=99_998,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping:
    """A mapping of the package: its place in the file, its length and what of it is resident, bytes."""

    offset: int
    length: int
    resident: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What opening and planning did."""

    seconds: float
    read: int
    mapped_bytes: int
    mappings: list[Mapping]
    left: list[Mapping]


def measure(path: Path, *flags: str) -> Measured:
    """Opens the package in a fresh process."""
    command = [sys.executable, "-m", "tests.support.measured_open", str(path), str(build_library()), *flags]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    for name in ("mappings", "left"):
        document[name] = [Mapping(offset=a, length=b, resident=c) for a, b, c in document[name]]
    return Measured(**document)


def pages(length: int) -> int:
    return -(-length // PAGE) * PAGE


def test_opening_gigabytes_touches_less_than_one_megabyte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_sparse_package(tmp_path / "large.l3r", LARGE, uniform(Dtype.Q4X8))
    size = path.stat().st_size
    assert size > 4 * 10**9
    assert path.stat().st_blocks * 512 < 64 * 10**6, "the file system keeps no holes"
    best = min((measure(path) for _ in range(3)), key=lambda measured: measured.seconds)
    assert best.mapped_bytes > 3 * 10**9
    assert len(best.mappings) == 1
    assert best.mappings[0].resident < 10**6
    assert best.read < 10**6
    assert best.left == []
    with capsys.disabled():
        print(
            f"\nopening and planning {size / 1e9:.2f} GB: {best.seconds * 1e3:.2f} ms,"
            f" {best.mappings[0].resident // 1024} KiB resident, {best.read} bytes read"
        )


def test_mtp_extents_are_mapped_only_on_request(tmp_path: Path) -> None:
    path = write_package(tmp_path / "small.l3r")
    image = Image(path)
    first = min(tensor.offset for tensor in image.tensors if tensor.label == 1)
    without = measure(path)
    assert [(m.offset, m.length) for m in without.mappings] == [(0, pages(image.trunk_end))]
    assert pages(image.trunk_end) <= first
    mtp_bytes = sum(tensor.length for tensor in image.tensors if tensor.label == 1)
    trunk_bytes = sum(tensor.length for tensor in image.tensors if tensor.label == 0)
    assert without.mapped_bytes == image.trunk_end
    assert trunk_bytes < image.trunk_end
    with_mtp = measure(path, "--mtp")
    expected = [(0, pages(image.trunk_end)), (first, pages(len(image.data) - first))]
    assert sorted((m.offset, m.length) for m in with_mtp.mappings) == expected
    assert with_mtp.mapped_bytes == image.trunk_end + len(image.data) - first
    assert mtp_bytes <= len(image.data) - first
    assert with_mtp.left == []
