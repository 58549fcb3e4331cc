"""What the writer wrote, the engine's reader reads back; `inspect` and `logits` tell the truth about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from launcher.engine import Package
from launcher.engine_types import Dtype
from launcher.errors import PackageError, UsageError
from release.fidelity.logits import LogitsOptions, dump_logits, read_ids
from release.package.inspection import inspect_package
from tests.support.checkpoints import edit_json, make_checkpoint
from tests.support.l3r_file import read_l3r

Convert = Callable[..., Path]


@pytest.mark.parametrize("recipe", ["f32", "bf16", "w8a8", "w4a8"])
def test_the_engine_reads_the_values_that_were_written(micro: Path, convert: Convert, recipe: str) -> None:
    path = convert(micro, recipe)
    written = read_l3r(path)
    with Package(path) as package:
        package.verify()
        assert package.has_mtp
        tensors = package.tensors()
        assert [tensor.name for tensor in tensors] == list(written.tensors)
        for index, tensor in enumerate(tensors):
            rows = int(np.prod(tensor.shape[:-1], dtype=np.int64))
            out = np.empty((rows, tensor.shape[-1]), dtype=np.float32)
            package.read_rows(index, 0, rows, out)
            assert (out == written.values(tensor.name).reshape(out.shape)).all(), tensor.name


def test_the_engine_refuses_a_package_with_one_changed_weight(micro: Path, convert: Convert) -> None:
    path = convert(micro)
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with Package(path) as package, pytest.raises(PackageError):
        package.verify()
    with pytest.raises(PackageError):
        inspect_package(path, verify=True)


def test_config_reaches_the_engine(micro: Path, convert: Convert) -> None:
    with Package(convert(micro, max_context=77)) as package:
        assert package.config.max_context == 77
        assert package.config.stop_ids == (311, 308)
        assert (package.config.bos_id, package.config.eos_id, package.config.pad_id) == (None, 311, 308)
        assert package.config.token_count == 320


def test_a_vocabulary_with_padding_keeps_its_token_count(tmp_path: Path, convert: Convert) -> None:
    folder = make_checkpoint(tmp_path / "padded")
    edit_json(folder / "tokenizer.json", lambda document: document["added_tokens"].pop())
    with Package(convert(folder)) as package:
        assert (package.config.token_count, package.config.vocab_size) == (319, 320)


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    """Forty ids in a text file."""
    path = tmp_path / "ids.txt"
    path.write_text(", ".join(str(7 * index % 300) for index in range(40)) + "\n")
    return path


@pytest.mark.parametrize("recipe", ["f32", "w4a8"])
def test_logits_do_not_depend_on_the_split(
    micro: Path, convert: Convert, ids: Path, tmp_path: Path, recipe: str
) -> None:
    package = convert(micro, recipe)
    arrays = []
    for split in (None, 0, 13, 1000):
        output = tmp_path / f"{split}.npz"
        dump_logits(LogitsOptions(package=package, ids=ids, output=output, split=split, mtp=True, threads=1))
        with np.load(output) as archive:
            arrays.append({name: archive[name] for name in archive.files})
    first = arrays[0]
    assert {name: array.shape for name, array in first.items()} == {
        "ids": (40,),
        "logits": (40, 320),
        "hidden": (40, 64),
        "mtp_logits": (39, 320),
        "mtp_hidden": (39, 64),
    }
    assert first["logits"].dtype == np.float32
    assert np.isfinite(first["logits"]).all()
    assert first["logits"].std() > 0.1
    for other in arrays[1:]:
        for name, array in first.items():
            assert (array == other[name]).all(), name


def test_logits_of_a_package_without_mtp_are_refused_with_mtp(
    micro: Path, convert: Convert, ids: Path, tmp_path: Path
) -> None:
    options = LogitsOptions(package=convert(micro, drop_mtp=True), ids=ids, output=tmp_path / "out.npz", mtp=True)
    with pytest.raises((PackageError, UsageError)):
        dump_logits(options)
    assert not (tmp_path / "out.npz").exists()


def test_more_ids_than_context_are_refused(micro: Path, convert: Convert, ids: Path, tmp_path: Path) -> None:
    package = convert(micro, max_context=39)
    with pytest.raises(UsageError, match="40 ids"):
        dump_logits(LogitsOptions(package=package, ids=ids, output=tmp_path / "out.npz"))


@pytest.mark.parametrize("text", ["", " , ", "1 2 x", "1;2", "-1", "320", "1.5", "0x10", "٣", "1e2", "99999999999"])
def test_words_that_are_no_ids_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "ids").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError):
        read_ids(tmp_path / "ids", 320)


def test_ids_may_be_separated_by_anything_white(tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("\n1,2 3\t4,\n\n319,")
    assert read_ids(tmp_path / "ids", 320) == [1, 2, 3, 4, 319]


def test_unreadable_ids_are_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        read_ids(tmp_path / "nothing", 320)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError):
        read_ids(tmp_path / "binary", 320)


def test_inspect_agrees_with_the_file(micro: Path, convert: Convert) -> None:
    path = convert(micro, "w4a8", license="MIT")
    written = read_l3r(path)
    report = json.loads(inspect_package(path, verify=True).to_json())
    assert (report["schema"], report["version"], report["verified"]) == ("mindnano-package", 1, True)
    assert report["bytes"] == path.stat().st_size
    assert report["metadata"]["license"] == "MIT"
    assert report["config"]["hidden_size"] == 64
    for entry, tensor in zip(report["tensors"], written.tensors.values(), strict=True):
        assert entry["name"] == tensor.name
        assert entry["sha256"] == tensor.sha256.hex()
        assert (entry["offset"], entry["bytes"]) == (tensor.offset, tensor.length)
        assert entry["dtype"] == Dtype(tensor.dtype).name
        assert entry["group"] == ("trunk", "mtp")[tensor.group]
    assert sum(total["bytes"] for total in report["totals"].values()) == sum(t.length for t in written.tensors.values())


def test_inspect_prints_every_tensor_once(micro: Path, convert: Convert) -> None:
    path = convert(micro, "w8a8")
    lines = inspect_package(path, verify=False).to_text().splitlines()
    for name in read_l3r(path).tensors:
        assert sum(line.split()[:1] == [name] for line in lines) == 1
