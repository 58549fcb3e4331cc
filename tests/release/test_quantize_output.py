"""What a conversion leaves on the disk and takes of the memory: nothing half-done, nothing lost, nothing that grows."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from launcher.errors import ResourceError, UsageError
from release import output
from release.quantization.quantize import QuantizeOptions, quantize
from tests.support.checkpoints import PRESETS, cast, edit_json, make_checkpoint, random_tensors

Tensors = dict[str, npt.NDArray[Any]]


def run(source: Path, tmp_path: Path, **options: Any) -> Path:
    return quantize(QuantizeOptions(source=source, output=tmp_path / "out", **options))


def test_a_full_disk_is_noticed_before_the_work(micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(output.shutil, "disk_usage", lambda _path: usage(1 << 40, 1 << 40, 1 << 20))
    with pytest.raises(ResourceError, match=r"needs .* free") as caught:
        run(micro, tmp_path)
    assert caught.value.exit_code == 5
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_killed_run_do_not_get_in(micro: Path, tmp_path: Path) -> None:
    (tmp_path / "out.partial" / "tensors").mkdir(parents=True)
    (tmp_path / "out.partial" / "tensors" / "stale.bin").write_bytes(b"x")
    run(micro, tmp_path)
    assert not (tmp_path / "out" / "tensors" / "stale.bin").exists()
    assert not (tmp_path / "out.partial").exists()


def test_a_folder_with_other_things_is_never_replaced(micro: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("keep")
    for force in (False, True):
        with pytest.raises(UsageError, match="not empty"):
            run(micro, tmp_path, force=force)
    assert (tmp_path / "out" / "precious").read_text() == "keep"


def test_an_earlier_result_is_replaced_only_with_force(micro: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    manifest = run(micro, tmp_path, recipe="f32")
    with pytest.raises(UsageError):
        run(micro, tmp_path, recipe="w8a8")
    assert "F32X8" in manifest.read_text()
    assert "Q8X8" in run(micro, tmp_path, recipe="w8a8", force=True).read_text()


def test_an_interrupt_while_the_earlier_result_goes_keeps_the_new_one(
    micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_arguments: object, **_options: object) -> None:
        raise KeyboardInterrupt

    run(micro, tmp_path, recipe="f32")
    with monkeypatch.context() as patch:
        patch.setattr(output.shutil, "rmtree", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(micro, tmp_path, recipe="w8a8", force=True)
    assert "Q8X8" in (tmp_path / "out" / "manifest.json").read_text()


def test_a_result_that_cannot_take_its_name_leaves_the_earlier_one(
    micro: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def refuse(source: Path, target: Path) -> Path:
        if source.name.endswith(".partial"):
            raise OSError(28, "No space left on device")
        return rename(source, target)

    run(micro, tmp_path, recipe="f32")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        with pytest.raises(ResourceError, match="No space left"):
            run(micro, tmp_path, recipe="w8a8", force=True)
    assert "F32X8" in (tmp_path / "out" / "manifest.json").read_text()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out", "out.partial"]
    assert "Q8X8" in run(micro, tmp_path, recipe="w8a8", force=True).read_text()
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    """A checkpoint of 128 MB (mostly a hole in the file) is converted and packed in much less memory than that."""
    folder = make_checkpoint(tmp_path / "large")
    vocabulary = 1 << 19
    tensors = random_tensors(PRESETS["micro"], seed=0, mtp=True)
    embedding = np.broadcast_to(np.zeros(1, np.uint16), (vocabulary, 64))
    tensors = {
        name: embedding if name in ("model.word_embeddings.weight", "lm_head.weight") else cast(name, values, "BF16")
        for name, values in tensors.items()
    }
    _write_sparse(folder / "model.safetensors", tensors)
    edit_json(folder / "config.json", lambda config: config.update(vocab_size=vocabulary))
    program = (
        "import sys, resource; from pathlib import Path; from release.package.pack import PackOptions, pack\n"
        "from release.quantization.quantize import QuantizeOptions, quantize\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "manifest = quantize(QuantizeOptions(source=Path(sys.argv[1]), output=Path(sys.argv[2]), recipe='bf16'))\n"
        "pack(PackOptions(manifest=manifest, output=Path(sys.argv[2] + '.l3r')))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    command = [sys.executable, "-c", program, str(folder), str(tmp_path / "out")]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(result.stdout) * 1024 < 48 * 1024 * 1024


def _write_sparse(path: Path, tensors: Tensors) -> None:
    """As write_safetensors, but seeking over tensors of zeros."""
    codes = {"float32": "F32", "uint16": "BF16"}
    header = {}
    position = 0
    for name, values in tensors.items():
        end = position + values.size * values.itemsize
        shape = list(values.shape)
        header[name] = {"dtype": codes[values.dtype.name], "shape": shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            if values.strides[0] == 0:
                file.seek(values.size * values.itemsize, 1)
            else:
                file.write(values.tobytes())
        file.truncate(8 + len(text) + position)
