"""Calibration notes what the model really multiplies its matrices with, and what it writes makes rounding better."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from launcher.engine import Package
from launcher.errors import PackageError, UsageError
from release.calibration.activations import ActivationRun, Record, Weights
from release.calibration.calibrate import CALIBRATION_TEXT, CalibrateOptions, calibrate
from release.mtp.extract import ExtractOptions, extract
from release.mtp.record import read_record
from release.package.reader import read_package
from release.quantization.quantize import QuantizeOptions, quantize
from tests.support.checkpoints import make_checkpoint, write_safetensors
from tests.support.dimensions import Dimensions
from tests.support.l3r_file import read_l3r
from tests.support.reference import Reference, package_weights

Convert = Callable[..., Path]
Array = npt.NDArray[np.float64]


class Listening(Reference):
    """The reference, which keeps the inputs of every matrix by the name of the package."""

    heard: dict[str, list[Array]]

    def _rounded(self, name: str, x: Array) -> Array:
        self.heard.setdefault(name, []).append(x)
        return super()._rounded(name, x)


WINDOWS = [[11 * index % 300 for index in range(40)], [7], [5 * index % 300 for index in range(23)]]


@pytest.mark.parametrize("preset", ["micro", "tiny", "qnone"])
def test_hidden_states_and_inputs_are_those_of_the_reference(preset: str, tmp_path: Path, convert: Convert) -> None:
    folder = make_checkpoint(tmp_path / "checkpoint", preset)
    with Package(convert(folder, "f32")) as package:
        record = Record()
        layers: list[int] = []
        run = ActivationRun(Weights(package), package.config, record)
        found = run.run(WINDOWS, layers.append)
        weights, _ = package_weights(package)
        heard: dict[str, list[Array]] = {}
        for ids, hidden in zip(WINDOWS, found, strict=True):
            reference = Listening(Dimensions.from_package(package.config), weights)
            reference.heard = heard
            expected = reference.forward(ids).hidden
            np.testing.assert_allclose(hidden, expected, atol=2e-4)
            if len(ids) > 1:
                reference.mtp(expected[:-1], ids[1:])
    assert sum(layers) == package_layers(folder)
    for name in record.names():
        means = record.means(name, prior=0) if ".experts." not in name else None
        if ".v_b_proj." in name:
            inputs = np.concatenate([x.transpose(1, 0, 2) for x in heard[name]])
        elif means is None:
            continue
        else:
            inputs = np.concatenate(heard[name])
        np.testing.assert_allclose(means, (inputs**2).mean(axis=0), rtol=2e-3, atol=1e-7)
    for layer in (package.config.layer_count - 1,) if preset != "qnone" else ():
        name = f"model.layers.{layer}.mlp.experts.down_proj.weight"
        for expert in range(Dimensions.from_package(package.config).experts):
            inputs = heard.get(name.replace(".experts.", f".experts.{expert}."), [])
            if inputs:
                sums = record.means(name, prior=0)[expert]
                np.testing.assert_allclose(sums, (np.concatenate(inputs) ** 2).mean(axis=0), rtol=2e-3, atol=1e-7)


def package_layers(folder: Path) -> int:
    config = json.loads((folder / "config.json").read_text())
    return int(config["num_hidden_layers"] + config["num_nextn_predict_layers"])


def calibrated(package: Path, tmp_path: Path, **options: Any) -> Path:
    output = tmp_path / "calibration-scales.safetensors"
    return calibrate(CalibrateOptions(package=package, output=output, tokens=600, **options))


def test_every_quantised_matrix_but_the_embedding_gets_weights(micro: Path, tmp_path: Path, convert: Convert) -> None:
    entries = load_file(calibrated(convert(micro, "bf16"), tmp_path))
    manifest = quantize(QuantizeOptions(source=micro, output=tmp_path / "out"))
    tensors = json.loads(manifest.read_text())["tensors"]
    expected = {f"{tensor['name']}.importance" for tensor in tensors if tensor["dtype"] in ("Q4X8", "Q8X8")}
    assert set(entries) == expected - {"model.word_embeddings.weight.importance"}
    assert all(np.isfinite(values).all() and (values >= 0).all() for values in entries.values())


def test_the_file_is_taken_by_quantize_and_two_runs_are_equal(micro: Path, tmp_path: Path, convert: Convert) -> None:
    package = convert(micro, "bf16")
    path = calibrated(package, tmp_path)
    data = path.read_bytes()
    with pytest.raises(UsageError, match="exists"):
        calibrated(package, tmp_path)
    assert calibrated(package, tmp_path, force=True).read_bytes() == data
    first = convert(micro, "w4a8", calibration_scales=path)
    assert first.read_bytes() == convert(micro, "w4a8", calibration_scales=path).read_bytes()
    assert first.read_bytes() != convert(micro, "w4a8").read_bytes()


def test_without_the_mtp_layer_its_weights_are_left_alone(micro: Path, tmp_path: Path, convert: Convert) -> None:
    """A file about the whole model fits a trunk alone, as well as one that never had the layer's entries."""
    entries = load_file(calibrated(convert(micro, "bf16"), tmp_path))
    layer = f"model.layers.{package_layers(micro) - 1}."
    own = {name: values for name, values in entries.items() if not name.startswith(layer)}
    own |= {"model.layers.0.input_layernorm.weight": np.full(64, 2, np.float32)}
    packages = []
    for more in ({}, {f"{layer}enorm.weight": np.full(64, 2, np.float32)}):
        path = tmp_path / f"{len(packages)}.safetensors"
        write_safetensors(path, {**(entries if more else {}), **own, **more})
        packages.append(read_l3r(convert(micro, "w4a8", drop_mtp=True, calibration_scales=path)))
    assert {name: tensor.sha256 for name, tensor in packages[0].tensors.items()} == {
        name: tensor.sha256 for name, tensor in packages[1].tensors.items()
    }
    write_safetensors(tmp_path / "wrong.safetensors", {**own, "model.layers.9.enorm.weight": np.ones(64, np.float32)})
    with pytest.raises(PackageError, match="not a tensor of the package"):
        convert(micro, "w4a8", drop_mtp=True, calibration_scales=tmp_path / "wrong.safetensors")


def test_an_extracted_layer_is_rounded_as_in_the_package(micro: Path, tmp_path: Path, convert: Convert) -> None:
    path = tmp_path / "scales.safetensors"
    layer = f"model.layers.{package_layers(micro) - 1}."
    scales = {f"{layer}enorm.weight": np.full(64, 2, np.float32)}
    write_safetensors(path, {**load_file(calibrated(convert(micro, "bf16"), tmp_path)), **scales})
    whole = read_l3r(convert(micro, "w4a8", calibration_scales=path))
    trunk = convert(micro, "w4a8", drop_mtp=True, calibration_scales=path)
    options = ExtractOptions(
        source=micro, output=tmp_path / "one.mtp.l3r", trunk=trunk, recipe="w4a8", calibration_scales=path
    )
    side_car = extract(options)
    found = {tensor.name: tensor.sha256 for tensor in read_package(side_car).mtp}
    assert found == {tensor.name: tensor.sha256 for tensor in whole.tensors.values() if tensor.name.startswith(layer)}
    plain = extract(replace(options, output=tmp_path / "two.mtp.l3r", calibration_scales=None))
    assert found != {tensor.name: tensor.sha256 for tensor in read_package(plain).mtp}
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert read_record(read_package(side_car)).donor.calibration == digest
    with pytest.raises(UsageError, match="--calibration-scales says nothing"):
        extract(replace(options, source=side_car, recipe=None, output=tmp_path / "three.mtp.l3r"))
    write_safetensors(path, {"model.norm.weight": np.full(64, 2, np.float32)})
    with pytest.raises(PackageError, match="the MTP layer reads the norm"):
        extract(replace(options, output=tmp_path / "three.mtp.l3r"))


def test_what_weighted_rounding_changes_in_a_product_becomes_smaller(
    micro: Path, tmp_path: Path, convert: Convert
) -> None:
    """The expected squared error of each row's product with inputs of the given squares."""
    path = calibrated(convert(micro, "bf16"), tmp_path)
    entries = load_file(path)
    total = {}
    with Package(convert(micro, "f32")) as exact:
        names = {tensor.name for tensor in exact.tensors()}
        truth = {name: Weights(exact).whole(name) for name in names if f"{name}.importance" in entries}
    for kind, options in (("plain", {}), ("weighted", {"calibration_scales": path})):
        with Package(convert(micro, "w4a8", **options)) as package:
            weights = Weights(package)
            errors = [
                float((each(entries[f"{name}.importance"]) * (weights.whole(name) - values) ** 2).sum())
                for name, values in truth.items()
            ]
        total[kind] = sum(errors)
    assert total["weighted"] < 0.98 * total["plain"]


def each(weights: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return weights if weights.ndim == 1 else weights[:, None, :]


def test_the_set_of_our_own_has_both_languages() -> None:
    lines = [json.loads(line) for line in CALIBRATION_TEXT.read_text(encoding="utf-8").splitlines()]
    texts = [line["messages"][0]["content"] for line in lines]
    chinese = [text for text in texts if any("\u4e00" <= character <= "\u9fff" for character in text)]
    assert len(set(texts)) == len(texts) >= 30
    assert abs(2 * len(chinese) - len(texts)) <= 4


def test_weights_that_are_rounded_already_tell_nothing(
    micro: Path, tmp_path: Path, convert: Callable[..., Path]
) -> None:
    """The inputs of a rounded model are not those of the checkpoint that is to be rounded."""
    with pytest.raises(UsageError, match="rounded already") as caught:
        calibrated(convert(micro, "w4a8"), tmp_path)
    assert "bf16" in caught.value.hint
