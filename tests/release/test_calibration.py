"""Folded scales leave the function as it was, and a scale that cannot be folded is refused by name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from launcher.errors import PackageError
from release.fidelity.logits import LogitsOptions, dump_logits
from release.quantization.quantize import QuantizeOptions, quantize
from tests.support.checkpoints import write_safetensors
from tests.support.l3r_file import read_l3r

Convert = Callable[..., Path]

# Every kind of entry of the documented table; layer 0 KDA and dense, 1 MLA and MoE, 4 MTP.
FOLDABLE: dict[str, tuple[int, ...]] = {
    "model.layers.0.input_layernorm.weight": (64,),
    "model.layers.0.attention.o_norm.weight": (32,),
    "model.layers.0.post_attention_layernorm.weight": (64,),
    "model.layers.0.mlp.down_proj.weight": (96,),
    "model.layers.1.input_layernorm.weight": (64,),
    "model.layers.1.attention.q_a_layernorm.weight": (32,),
    "model.layers.1.attention.kv_a_layernorm.weight": (32,),
    "model.layers.1.attention.dense.weight": (64,),
    "model.layers.1.post_attention_layernorm.weight": (64,),
    "model.layers.1.mlp.experts.down_proj.weight": (4, 32),
    "model.layers.1.mlp.shared_experts.down_proj.weight": (32,),
    "model.layers.4.enorm.weight": (64,),
    "model.layers.4.hnorm.weight": (64,),
    "model.layers.4.input_layernorm.weight": (64,),
}


def write_scales(folder: Path, shapes: dict[str, tuple[int, ...]], value: float | None = None) -> Path:
    generator = np.random.default_rng(5)
    scales: dict[str, npt.NDArray[Any]] = {
        name: np.exp2(generator.uniform(-2, 2, shape)).astype(np.float32) for name, shape in shapes.items()
    }
    if value is not None:
        next(iter(scales.values())).flat[0] = value
    path = folder / "scales.safetensors"
    write_safetensors(path, scales)
    return path


def logits(package: Path, tmp_path: Path, *, mtp: bool) -> dict[str, npt.NDArray[np.float32]]:
    ids = tmp_path / "ids.txt"
    ids.write_text(" ".join(str(11 * index % 300) for index in range(24)))
    output = tmp_path / f"{package.stem}.npz"
    dump_logits(LogitsOptions(package=package, ids=ids, output=output, mtp=mtp, threads=1, force=True))
    with np.load(output) as archive:
        return {name: archive[name] for name in archive.files if name.endswith("logits")}


@pytest.mark.parametrize("names", [*([name] for name in FOLDABLE), list(FOLDABLE)], ids=[*FOLDABLE, "all together"])
def test_folding_keeps_the_function(micro: Path, tmp_path: Path, convert: Convert, names: list[str]) -> None:
    scales = write_scales(tmp_path, {name: FOLDABLE[name] for name in names})
    plain, folded = convert(micro), convert(micro, calibration_scales=scales)
    before, after = logits(plain, tmp_path, mtp=True), logits(folded, tmp_path, mtp=True)
    for name, array in before.items():
        assert np.abs(array - after[name]).max() < 1e-3, name
    assert read_l3r(plain).tensors[names[0]].sha256 != read_l3r(folded).tensors[names[0]].sha256


def test_final_norm_folds_into_the_head_without_mtp(micro: Path, tmp_path: Path, convert: Convert) -> None:
    scales = write_scales(tmp_path, {"model.norm.weight": (64,)})
    plain, folded = convert(micro, drop_mtp=True), convert(micro, drop_mtp=True, calibration_scales=scales)
    before, after = logits(plain, tmp_path, mtp=False), logits(folded, tmp_path, mtp=False)
    assert np.abs(before["logits"] - after["logits"]).max() < 1e-3


def test_folding_multiplies_columns_and_divides_the_norm(micro: Path, tmp_path: Path, convert: Convert) -> None:
    name = "model.layers.0.input_layernorm.weight"
    path = write_scales(tmp_path, {name: (64,)})
    scales = np.frombuffer(path.read_bytes()[-256:], dtype=np.float32).astype(np.float64)
    plain, folded = read_l3r(convert(micro)), read_l3r(convert(micro, calibration_scales=path))
    assert np.allclose(folded.values(name) * scales, plain.values(name), rtol=1e-6)
    for part in ("q_proj", "k_proj", "v_proj", "f_proj", "g_proj", "b_proj"):
        matrix = f"model.layers.0.attention.{part}.weight"
        assert np.allclose(folded.values(matrix), plain.values(matrix) * scales, rtol=1e-6), part
    untouched = "model.layers.0.attention.o_proj.weight"
    assert folded.tensors[untouched].sha256 == plain.tensors[untouched].sha256


def test_scales_lower_the_error_of_outlying_channels(checkpoint: Path, tmp_path: Path, convert: Convert) -> None:
    """The reason to have them: a channel whose weights are tiny is lost in its group until it is scaled up."""
    from tests.support.checkpoints import PRESETS, random_tensors, write_weights

    tensors = random_tensors(PRESETS["micro"], seed=0, mtp=True)
    matrix = "model.layers.0.attention.q_proj.weight"
    tensors[matrix][:, 5] /= 64
    write_weights(checkpoint, tensors)
    scales = np.ones(64, np.float32)
    scales[5] = 64
    write_safetensors(tmp_path / "s.safetensors", {"model.layers.0.input_layernorm.weight": scales})
    plain = read_l3r(convert(checkpoint, "w4a8")).values(matrix)[:, 5]
    folded = read_l3r(convert(checkpoint, "w4a8", calibration_scales=tmp_path / "s.safetensors")).values(matrix)[:, 5]
    exact = tensors[matrix][:, 5]
    assert ((folded / 64 - exact) ** 2).sum() < 0.1 * ((plain - exact) ** 2).sum()


def test_the_metadata_names_the_scales(micro: Path, tmp_path: Path, convert: Convert) -> None:
    path = write_scales(tmp_path, {"model.layers.0.input_layernorm.weight": (64,)})
    metadata = json.loads(read_l3r(convert(micro, calibration_scales=path)).sections[5])
    assert metadata["quantization"]["calibration"] == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.norm.weight", (64,)),
        ("model.layers.4.final_layernorm.weight", (64,)),
        ("model.layers.0.attention.o_proj.weight", (64,)),
        ("model.layers.0.attention.q_proj.weight", (64,)),
        ("model.layers.0.attention.A_log", (2,)),
        ("model.layers.1.attention.k_b_proj.weight", (32,)),
        ("lm_head.weight", (64,)),
        ("model.layers.9.input_layernorm.weight", (64,)),
        ("anything", (1,)),
        ("model.layers.0.input_layernorm.weight", (63,)),
        ("model.layers.0.input_layernorm.weight", (1, 64)),
        ("model.layers.0.attention.o_norm.weight", (64,)),
        ("model.layers.0.mlp.down_proj.weight", (64,)),
        ("model.layers.1.mlp.experts.down_proj.weight", (32,)),
        ("model.layers.4.hnorm.weight", (128,)),
    ],
)
def test_what_cannot_be_folded_is_refused_by_name(
    micro: Path, tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    scales = write_scales(tmp_path, {name: shape})
    with pytest.raises(PackageError, match=f"scales: {name} ") as caught:
        quantize(QuantizeOptions(source=micro, output=tmp_path / "out", calibration_scales=scales))
    assert caught.value.slug == "calibration-invalid"


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_scales_that_are_not_positive_and_finite_are_refused(micro: Path, tmp_path: Path, value: float) -> None:
    scales = write_scales(tmp_path, {"model.layers.0.input_layernorm.weight": (64,)}, value)
    with pytest.raises(PackageError, match="input_layernorm"):
        quantize(QuantizeOptions(source=micro, output=tmp_path / "out", calibration_scales=scales))


def test_a_missing_scales_file_is_named(micro: Path, tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"nothing\.safetensors"):
        quantize(
            QuantizeOptions(source=micro, output=tmp_path / "out", calibration_scales=tmp_path / "nothing.safetensors")
        )


def write_entries(folder: Path, entries: dict[str, npt.NDArray[Any]]) -> Path:
    path = folder / "scales.safetensors"
    write_safetensors(path, {name: values.astype(np.float32) for name, values in entries.items()})
    return path


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.layers.0.attention.q_proj.weight", (64,)),
        ("model.layers.1.mlp.experts.up_proj.weight", (64,)),
        ("model.layers.1.mlp.experts.up_proj.weight", (4, 64)),
        ("model.layers.1.attention.v_b_proj.weight", (32,)),
    ],
)
def test_weights_move_the_error_to_where_it_counts_less(
    micro: Path, tmp_path: Path, convert: Convert, name: str, shape: tuple[int, ...]
) -> None:
    weights = np.random.default_rng(2).exponential(1, shape) ** 3
    path = write_entries(tmp_path, {f"{name}.importance": weights})
    exact = read_l3r(convert(micro, "f32")).values(name)
    plain = read_l3r(convert(micro, "w4a8"))
    weighted = read_l3r(convert(micro, "w4a8", calibration_scales=path))
    each = weights if weights.ndim == 1 else weights[:, None, :]
    before, after = (plain.values(name) - exact) ** 2, (weighted.values(name) - exact) ** 2
    assert (each * after).sum() < 0.97 * (each * before).sum()
    assert after.sum() > before.sum()
    others = [tensor.name for tensor in plain.tensors.values() if tensor.name != name]
    assert all(plain.tensors[other].sha256 == weighted.tensors[other].sha256 for other in others)


def test_only_the_proportions_of_weights_count(micro: Path, tmp_path: Path, convert: Convert) -> None:
    name = "model.layers.0.attention.q_proj.weight"
    weights = np.random.default_rng(2).exponential(1, 64)
    digests = [
        read_l3r(
            convert(
                micro,
                "w4a8",
                calibration_scales=write_entries(tmp_path, {f"{name}.importance": factor * weights}),
            )
        )
        .tensors[name]
        .sha256
        for factor in (1, 2.0**40)
    ]
    assert digests[0] == digests[1]


def test_weights_are_of_the_unfolded_model(micro: Path, tmp_path: Path, convert: Convert) -> None:
    """A fold by powers of two and the weights that undo it leave the integers and scales of every group as they are."""
    name = "model.layers.0.attention.q_proj.weight"
    weights = np.ones(64)
    scales = {"model.layers.0.input_layernorm.weight": np.full(64, 4.0)}
    folded = read_l3r(convert(micro, "w4a8", calibration_scales=write_entries(tmp_path, scales))).values(name)
    scales["model.layers.0.input_layernorm.weight"][::2] = 2
    uneven = read_l3r(convert(micro, "w4a8", calibration_scales=write_entries(tmp_path, scales))).values(name)
    scales[f"{name}.importance"] = weights
    weighted = read_l3r(convert(micro, "w4a8", calibration_scales=write_entries(tmp_path, scales))).values(name)
    exact = read_l3r(convert(micro, "f32")).values(name)
    columns = scales["model.layers.0.input_layernorm.weight"]
    assert np.abs(folded / 4 - exact).max() < 0.2
    assert ((weighted / columns - exact) ** 2).sum() < ((uneven / columns - exact) ** 2).sum()


@pytest.mark.parametrize(
    ("name", "shape", "value"),
    [
        ("model.layers.0.input_layernorm.weight", (64,), 1.0),
        ("model.layers.0.attention.conv1d.weight", (192,), 1.0),
        ("nothing.weight", (64,), 1.0),
        ("model.layers.0.attention.q_proj.weight", (63,), 1.0),
        ("model.layers.0.attention.q_proj.weight", (1, 64), 1.0),
        ("model.layers.1.mlp.experts.up_proj.weight", (3, 64), 1.0),
        ("model.layers.0.attention.q_proj.weight", (64,), 0.0),
        ("model.layers.0.attention.q_proj.weight", (64,), -1.0),
    ],
)
def test_weights_that_belong_to_nothing_are_refused_by_name(
    micro: Path, tmp_path: Path, name: str, shape: tuple[int, ...], value: float
) -> None:
    scales = write_entries(tmp_path, {f"{name}.importance": np.full(shape, value)})
    with pytest.raises(PackageError, match=rf"scales: {name}\.importance ") as caught:
        quantize(QuantizeOptions(source=micro, output=tmp_path / "out", calibration_scales=scales))
    assert caught.value.slug == "calibration-invalid"
