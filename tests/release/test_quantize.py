"""Conversion loses nothing and invents nothing: the closed world, exact values, names in errors, equal bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from launcher.errors import PackageError, UsageError
from release.quantization.quantize import QuantizeOptions, quantize
from tests.support.checkpoints import (
    PRESETS,
    cast,
    edit_json,
    from_bf16,
    make_checkpoint,
    random_tensors,
    write_weights,
)
from tests.support.l3r_file import Q4X8, Q8X8, L3rFile, read_l3r

Convert = Callable[..., Path]
Tensors = dict[str, npt.NDArray[Any]]


def micro_tensors(mtp: bool = True) -> Tensors:
    return random_tensors(PRESETS["micro"], seed=0, mtp=mtp)


def run(source: Path, tmp_path: Path, **options: Any) -> Path:
    return quantize(QuantizeOptions(source=source, output=tmp_path / "out", **options))


def expected_values(tensors: Tensors, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """A package tensor from the source by the wording of docs/l3r-format.md."""
    preset = PRESETS["micro"]
    if ".k_b_proj." in name or ".v_b_proj." in name:
        source = tensors[name.replace(".k_b_proj.", ".kv_b_proj.").replace(".v_b_proj.", ".kv_b_proj.")]
        by_head = source.reshape(preset.heads, preset.nope + preset.value, preset.kv_lora)
        if ".k_b_proj." in name:
            return np.stack([head[: preset.nope].T for head in by_head]).astype(np.float64)
        return by_head[:, preset.nope :].astype(np.float64)
    if ".conv1d." in name:
        out = np.empty(shape)
        width = shape[1] // 3
        for index, letter in enumerate("qkv"):
            for tap in range(shape[0]):
                source = tensors[name.replace(".conv1d.", f".{letter}_conv1d.")]
                out[tap, index * width : (index + 1) * width] = source[:, 0, tap]
        return out
    if ".mlp.experts." in name:
        names = [name.replace(".experts.", f".experts.{expert}.") for expert in range(preset.experts)]
        return np.stack([tensors[expert] for expert in names]).astype(np.float64)
    return tensors[name].astype(np.float64)


def assert_holds(package: L3rFile, tensors: Tensors) -> None:
    for tensor in package.tensors.values():
        assert (package.values(tensor.name) == expected_values(tensors, tensor.name, tensor.shape)).all(), tensor.name


def test_f32_package_holds_every_value_of_an_f32_source(micro: Path, convert: Convert) -> None:
    package = read_l3r(convert(micro))
    assert_holds(package, micro_tensors())
    groups = [tensor.group for tensor in package.tensors.values()]
    assert groups == sorted(groups)
    assert set(groups) == {0, 1}
    last_trunk = max((tensor for tensor in package.tensors.values() if tensor.group == 0), key=lambda t: t.offset)
    assert package.trunk_end == last_trunk.offset + last_trunk.length


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_sources_are_widened_exactly(tmp_path: Path, convert: Convert, dtype: str) -> None:
    folder = make_checkpoint(tmp_path / "half", dtype=dtype)
    stored = {name: cast(name, values, dtype) for name, values in micro_tensors().items()}
    widened = {
        name: from_bf16(values) if values.dtype == np.uint16 else values.astype(np.float32)
        for name, values in stored.items()
    }
    assert_holds(read_l3r(convert(folder)), widened)


def test_bf16_recipe_is_exact_for_a_bf16_source(tmp_path: Path, convert: Convert) -> None:
    folder = make_checkpoint(tmp_path / "half", dtype="BF16")
    exact, half = read_l3r(convert(folder, "f32")), read_l3r(convert(folder, "bf16"))
    assert len(half.data) < 0.6 * len(exact.data) + 100 * 65536
    for name in exact.tensors:
        assert (exact.values(name) == half.values(name)).all(), name


def test_query_matrix_without_rank(tmp_path: Path, convert: Convert) -> None:
    folder = make_checkpoint(tmp_path / "folder")
    tensors = {
        name: values
        for name, values in micro_tensors().items()
        if not name.endswith(("q_a_proj.weight", "q_a_layernorm.weight", "q_b_proj.weight"))
    }
    for layer in (1, 3, 4):
        tensors[f"model.layers.{layer}.attention.q_proj.weight"] = np.ones((96, 64), dtype=np.float32)
    write_weights(folder, tensors)
    edit_json(folder / "config.json", lambda config: config.update(q_lora_rank=None))
    package = read_l3r(convert(folder))
    assert package.tensors["model.layers.1.attention.q_proj.weight"].shape == (96, 64)
    assert "model.layers.1.attention.q_b_proj.weight" not in package.tensors


@pytest.mark.parametrize(("recipe", "limit"), [("w8a8", 0.012), ("w4a8", 0.12)])
def test_quantised_packages_stay_close(micro: Path, convert: Convert, recipe: str, limit: float) -> None:
    package = read_l3r(convert(micro, recipe))
    tensors = micro_tensors()
    for tensor in package.tensors.values():
        values = expected_values(tensors, tensor.name, tensor.shape)
        difference = package.values(tensor.name) - values
        relative = np.sqrt((difference**2).sum() / (values**2).sum())
        assert relative <= (limit if tensor.dtype == Q4X8 else 0.012 if tensor.dtype == Q8X8 else 0), tensor.name


def test_w4a8_gives_each_tensor_its_layout(micro: Path, convert: Convert) -> None:
    package = read_l3r(convert(micro, "w4a8"))
    layout = {name: tensor.dtype for name, tensor in package.tensors.items()}
    four = ("experts.gate_proj", "experts.down_proj", "attention.q_proj", "attention.o_proj", "attention.dense")
    eight = ("word_embeddings", "lm_head", "attention.f_proj", "attention.b_proj", "kv_a_proj_with_mqa", "k_b_proj")
    plain = ("A_log", "dt_bias", "conv1d", "expert_bias", "layernorm", "o_norm", "model.norm")
    trunk = {name: dtype for name, dtype in layout.items() if not name.startswith("model.layers.4.")}
    assert {dtype for name, dtype in trunk.items() if any(part in name for part in four)} == {4}
    assert {dtype for name, dtype in trunk.items() if any(part in name for part in eight)} == {3}
    assert {dtype for name, dtype in trunk.items() if any(part in name for part in plain)} == {0}
    assert {dtype for name, dtype in layout.items() if name.endswith("mlp.gate.weight")} == {1}
    assert layout["model.layers.4.eh_proj.weight"] == 3
    assert layout["model.layers.4.attention.dense.weight"] == 3
    assert layout["model.layers.4.mlp.experts.up_proj.weight"] == 4


def test_shards_give_the_same_weights_as_one_file(micro: Path, tmp_path: Path, convert: Convert) -> None:
    sharded = make_checkpoint(tmp_path / "sharded", shards=5)
    one, many = read_l3r(convert(micro, "w4a8")), read_l3r(convert(sharded, "w4a8"))
    assert [tensor.sha256 for tensor in one.tensors.values()] == [tensor.sha256 for tensor in many.tensors.values()]


def test_two_runs_give_equal_bytes(micro: Path, convert: Convert) -> None:
    first, second = convert(micro, "w4a8"), convert(micro, "w4a8")
    assert first.read_bytes() == second.read_bytes()


def test_nothing_depends_on_where_the_folder_lies(micro: Path, tmp_path: Path, convert: Convert) -> None:
    import shutil

    moved = Path(shutil.copytree(micro, tmp_path / "else" / "where" / micro.name))
    package = convert(moved)
    assert package.read_bytes() == convert(micro).read_bytes()
    assert str(tmp_path).encode() not in package.read_bytes()


def test_metadata_tells_where_the_weights_come_from(micro: Path, convert: Convert) -> None:
    package = read_l3r(convert(micro, "w8a8", name="N", license="MIT", repository="a/b", revision="c0ffee"))
    metadata = json.loads(package.sections[5])
    assert (metadata["format"], metadata["version"], metadata["name"], metadata["license"]) == ("l3r", 1, "N", "MIT")
    assert metadata["quantization"] == {"recipe": "w8a8", "calibration": None, "mtp": "kept"}
    assert metadata["generation"] == {"temperature": 1.0, "top_p": 0.95, "top_k": 20}
    assert metadata["special_tokens"] == {"bos": None, "eos": "<|role_end|>", "pad": "<|endoftext|>"}
    assert (metadata["source"]["repository"], metadata["source"]["revision"]) == ("a/b", "c0ffee")
    for file in metadata["source"]["files"]:
        data = (micro / file["path"]).read_bytes()
        assert (file["bytes"], file["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert {file["path"] for file in metadata["source"]["files"]} == {path.name for path in micro.iterdir()}


def test_unknown_provenance_is_null_and_the_name_is_the_folder(micro: Path, convert: Convert) -> None:
    metadata = json.loads(read_l3r(convert(micro)).sections[5])
    assert metadata["name"] == micro.name
    assert metadata["license"] is None
    assert metadata["source"]["repository"] is None


def test_template_and_features_are_packed(micro: Path, convert: Convert) -> None:
    sections = read_l3r(convert(micro)).sections
    assert sections[4].decode() == json.loads((micro / "tokenizer_config.json").read_text())["chat_template"]
    features = sections[2].decode().splitlines()
    assert features == sorted(features)
    assert len(features) == 7


def without(name: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(name)


def resized(name: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: tensors[name][:-1]})


@pytest.mark.parametrize(
    ("change", "kind", "name"),
    [
        (without("model.norm.weight"), "missing", "model.norm.weight"),
        (without("model.layers.2.attention.k_conv1d.weight"), "missing", "model.layers.2.attention.k_conv1d.weight"),
        (without("model.layers.1.mlp.experts.3.up_proj.weight"), "missing", "model.layers.1.mlp.experts.3.up_proj"),
        (without("model.layers.4.enorm.weight"), "missing", "model.layers.4.enorm.weight"),
        (
            lambda tensors: tensors.update({"model.layers.0.attention.f_a_proj.weight": np.zeros(1, np.float32)}),
            "unexpected",
            "model.layers.0.attention.f_a_proj.weight",
        ),
        (
            lambda tensors: tensors.update({"model.layers.0.attention.q_proj.bias": np.zeros(64, np.float32)}),
            "unexpected",
            "model.layers.0.attention.q_proj.bias",
        ),
        (resized("lm_head.weight"), "wrongly shaped", r"lm_head.weight \[319, 64\] instead of \[320, 64\]"),
        (resized("model.layers.1.attention.kv_b_proj.weight"), "wrongly shaped", "kv_b_proj"),
        (resized("model.layers.1.mlp.experts.0.down_proj.weight"), "wrongly shaped", "experts.0.down_proj"),
        (resized("model.layers.0.attention.A_log"), "wrongly shaped", "A_log"),
    ],
)
def test_the_world_of_tensors_is_closed(
    checkpoint: Path, tmp_path: Path, change: Callable[[Tensors], object], kind: str, name: str
) -> None:
    tensors = micro_tensors()
    change(tensors)
    write_weights(checkpoint, tensors)
    with pytest.raises(PackageError, match=rf"1 {kind} \(.*{name}") as caught:
        run(checkpoint, tmp_path)
    assert caught.value.slug == "checkpoint-tensors-differ"
    assert not (tmp_path / "out").exists()


def test_all_differences_are_listed_together(checkpoint: Path, tmp_path: Path) -> None:
    tensors = micro_tensors()
    del tensors["model.norm.weight"]
    tensors["surplus"] = np.zeros(1, np.float32)
    resized("lm_head.weight")(tensors)
    write_weights(checkpoint, tensors)
    with pytest.raises(PackageError, match=r"1 missing .*1 unexpected .*1 wrongly shaped"):
        run(checkpoint, tmp_path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("name", ["model.layers.1.mlp.experts.2.gate_proj.weight", "model.layers.0.attention.dt_bias"])
def test_a_value_that_is_not_finite_is_refused_by_tensor_name(
    checkpoint: Path, tmp_path: Path, value: float, dtype: str, name: str
) -> None:
    tensors = micro_tensors()
    tensors[name].flat[17] = value
    write_weights(checkpoint, {key: cast(key, values, dtype) for key, values in tensors.items()})
    with pytest.raises(PackageError, match=rf"tensor {name} .* at element 17") as caught:
        run(checkpoint, tmp_path)
    assert caught.value.slug == "checkpoint-not-finite"
    assert list(tmp_path.iterdir()) == [checkpoint]


@pytest.mark.parametrize(("recipe", "value"), [("w4a8", 1e6), ("w8a8", 1e7), ("bf16", 3.4e38)])
def test_a_value_too_large_for_the_layout_is_refused_by_tensor_name(
    checkpoint: Path, tmp_path: Path, recipe: str, value: float
) -> None:
    tensors = micro_tensors()
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name][5, 5] = value
    write_weights(checkpoint, tensors)
    with pytest.raises(PackageError, match=f"tensor {name} cannot be stored as"):
        run(checkpoint, tmp_path, recipe=recipe)


def test_zero_tensors_survive_quantisation(checkpoint: Path, convert: Convert) -> None:
    tensors = micro_tensors()
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name][:] = 0
    write_weights(checkpoint, tensors)
    assert not read_l3r(convert(checkpoint, "w4a8")).values(name).any()


def test_a_checkpoint_without_mtp_has_none(tmp_path: Path, convert: Convert) -> None:
    package = read_l3r(convert(make_checkpoint(tmp_path / "plain", mtp=False)))
    assert {tensor.group for tensor in package.tensors.values()} == {0}
    assert json.loads(package.sections[5])["quantization"]["mtp"] == "absent"


def test_mtp_can_be_dropped(micro: Path, convert: Convert) -> None:
    package = read_l3r(convert(micro, drop_mtp=True))
    assert {tensor.group for tensor in package.tensors.values()} == {0}
    assert json.loads(package.sections[5])["quantization"]["mtp"] == "dropped"


def test_mtp_tensors_without_the_config_key_are_unexpected(checkpoint: Path, tmp_path: Path) -> None:
    edit_json(checkpoint / "config.json", lambda config: config.update(num_nextn_predict_layers=0))
    with pytest.raises(PackageError, match=r"unexpected \(model\.layers\.4\."):
        run(checkpoint, tmp_path)


def test_a_config_that_promises_mtp_in_vain_has_a_way_out(checkpoint: Path, tmp_path: Path, convert: Convert) -> None:
    write_weights(checkpoint, micro_tensors(mtp=False))
    with pytest.raises(PackageError, match=r"missing \(model\.layers\.4\.") as caught:
        run(checkpoint, tmp_path)
    assert "--drop-mtp" in caught.value.hint
    package = read_l3r(convert(checkpoint, drop_mtp=True))
    assert json.loads(package.sections[5])["quantization"]["mtp"] == "absent"


def test_a_small_matrix_of_odd_width_stays_float32(checkpoint: Path, convert: Convert) -> None:
    tensors = micro_tensors()
    edit_json(checkpoint / "config.json", lambda config: config.update(intermediate_size=40))
    for part in ("gate_proj", "up_proj"):
        tensors[f"model.layers.0.mlp.{part}.weight"] = np.ones((40, 64), np.float32)
    tensors["model.layers.0.mlp.down_proj.weight"] = np.ones((64, 40), np.float32)
    write_weights(checkpoint, tensors)
    package = read_l3r(convert(checkpoint, "w4a8"))
    assert package.tensors["model.layers.0.mlp.down_proj.weight"].dtype == 1
    assert package.tensors["model.layers.0.mlp.up_proj.weight"].dtype == 4


def test_a_large_matrix_of_odd_width_is_refused_by_name(checkpoint: Path, tmp_path: Path) -> None:
    tensors = micro_tensors()
    edit_json(checkpoint / "config.json", lambda config: config.update(intermediate_size=4100))
    for part in ("gate_proj", "up_proj"):
        tensors[f"model.layers.0.mlp.{part}.weight"] = np.ones((4100, 64), np.float32)
    tensors["model.layers.0.mlp.down_proj.weight"] = np.ones((64, 4100), np.float32)
    write_weights(checkpoint, tensors)
    with pytest.raises(PackageError, match=r"model\.layers\.0\.mlp\.down_proj\.weight, whose width 4100"):
        run(checkpoint, tmp_path)


def test_an_unknown_recipe_is_a_usage_error(micro: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="w2a8"):
        run(micro, tmp_path, recipe="w2a8")
