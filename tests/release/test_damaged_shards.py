"""A shard or an index that is cut short or has a flipped bit is refused by its name, or told by its digest."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from pathlib import Path

import pytest

from launcher.errors import PackageError
from release.quantization.quantize import QuantizeOptions, quantize
from tests.support.random_checkpoint import write_random_checkpoint

INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return write_random_checkpoint(tmp_path / "checkpoint", "micro", shard_bytes=60_000, mtp=True)


def run(folder: Path, tmp_path: Path) -> Path:
    return quantize(QuantizeOptions(source=folder, output=tmp_path / "out", force=True))


def refusal(folder: Path, tmp_path: Path) -> PackageError | None:
    try:
        run(folder, tmp_path)
    except PackageError as error:
        return error
    return None


def shards(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.safetensors"))
    assert len(found) > 3
    return found


def flip(path: Path, position: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


@pytest.mark.parametrize("keep", [0, 7, 8, 200, -1, -4000])
def test_a_truncated_shard_is_named(sharded: Path, tmp_path: Path, keep: int) -> None:
    shard = shards(sharded)[2]
    shard.write_bytes(shard.read_bytes()[:keep])
    with pytest.raises(PackageError, match=shard.name) as caught:
        run(sharded, tmp_path)
    assert caught.value.exit_code == 4
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.partial").exists()


def test_a_missing_shard_is_named(sharded: Path, tmp_path: Path) -> None:
    shards(sharded)[1].unlink()
    with pytest.raises(PackageError, match=r"missing: model-00002-of-"):
        run(sharded, tmp_path)


@pytest.mark.parametrize("seed", range(8))
def test_a_flipped_bit_in_front_of_the_data_never_passes_for_another_model(
    sharded: Path, tmp_path: Path, seed: int
) -> None:
    """It is refused, or it lies in what means nothing and the weights are the same."""
    good = json.loads(run(sharded, tmp_path).read_text())["tensors"]
    generator = random.Random(seed)
    for _ in range(6):
        target = generator.choice([*shards(sharded), sharded / INDEX])
        kept = target.read_bytes()
        end = len(kept) if target.name == INDEX else 8 + struct.unpack("<Q", kept[:8])[0]
        flip(target, generator.randrange(end), generator.randrange(8))
        error = refusal(sharded, tmp_path)
        if error is None:
            assert json.loads((tmp_path / "out" / "manifest.json").read_text())["tensors"] == good
        else:
            assert error.exit_code == 4
            assert ".safetensors" in error.message or error.slug == "checkpoint-tensors-differ"
        target.write_bytes(kept)


def test_a_flipped_bit_in_the_data_shows_in_the_digests(sharded: Path, tmp_path: Path) -> None:
    shard = shards(sharded)[0]
    digest = hashlib.sha256(shard.read_bytes()).hexdigest()
    manifest = run(sharded, tmp_path)
    assert digest in (manifest.parent / "metadata.json").read_text()
    before = json.loads(manifest.read_text())["tensors"]
    flip(shard, shard.stat().st_size // 2, 7)
    manifest = run(sharded, tmp_path)
    assert digest not in (manifest.parent / "metadata.json").read_text()
    assert json.loads(manifest.read_text())["tensors"] != before
