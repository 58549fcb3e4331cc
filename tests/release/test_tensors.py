"""The list of tensors is that of the released model: its parameter counts are public."""

from __future__ import annotations

from math import prod

import pytest

from launcher.engine_types import ModelConfig
from release.checkpoint.config import check_supported, is_full_attention, read_config
from release.checkpoint.special_tokens import SpecialTokens
from release.checkpoint.tensors import package_tensors
from release.layouts.weights import tensor_bytes
from release.quantization.recipe import RECIPES
from tests.support.checkpoints import PRESETS, config_json, random_tensors


def released(*, mtp: bool) -> ModelConfig:
    config = config_json(PRESETS["released"], mtp=mtp)
    check_supported(config)
    special = SpecialTokens(bos=None, eos=156895, pad=156892, stop=(156895, 156892))
    return read_config(config, special=special, token_count=157184, max_context=None)


@pytest.mark.parametrize(
    ("mtp", "parameters"),
    [(False, 7_893_392_800), (True, 8_209_997_600)],
    ids=["Ling-3.0-tiny", "Ling-3.0-tiny-base-30T"],
)
def test_parameters_add_up_to_the_published_number(mtp: bool, parameters: int) -> None:
    """The hub shows these numbers beside the two checkpoints."""
    tensors = package_tensors(released(mtp=mtp), with_mtp=mtp)
    assert sum(prod(tensor.shape) for tensor in tensors) == parameters
    sources = {source.name: prod(source.shape) for tensor in tensors for source in tensor.sources}
    assert sum(sources.values()) == parameters


def test_the_default_recipe_gives_a_package_of_under_five_gib() -> None:
    recipe = RECIPES["w4a8"]
    tensors = package_tensors(released(mtp=False), with_mtp=False)
    assert sum(tensor_bytes(recipe.dtype(tensor), tensor.shape) for tensor in tensors) < 5 * 2**30


@pytest.mark.parametrize(
    ("layers", "group", "full"),
    [
        (24, 4, {3, 7, 11, 15, 19, 23}),
        (10, 4, {3, 7, 8, 9}),
        (3, 4, {0, 1, 2}),
        (4, 1, {0, 1, 2, 3}),
    ],
)
def test_layers_behind_the_last_full_group_are_mla(layers: int, group: int, full: set[int]) -> None:
    config = config_json(PRESETS["micro"]) | {"num_hidden_layers": layers, "layer_group_size": group}
    special = SpecialTokens(bos=None, eos=311, pad=308, stop=(311,))
    read = read_config(config, special=special, token_count=320, max_context=None)
    assert {layer for layer in range(layers) if is_full_attention(read, layer)} == full


@pytest.mark.parametrize("preset", ["micro", "qnone"])
@pytest.mark.parametrize("mtp", [False, True])
def test_every_source_is_consumed_and_every_name_fits_the_format(preset: str, mtp: bool) -> None:
    config = config_json(PRESETS[preset], mtp=mtp)
    special = SpecialTokens(bos=None, eos=1, pad=1, stop=(1,))
    tensors = package_tensors(
        read_config(config, special=special, token_count=PRESETS[preset].vocabulary, max_context=None), with_mtp=mtp
    )
    sources = {source.name: source.shape for tensor in tensors for source in tensor.sources}
    expected = {name: values.shape for name, values in random_tensors(PRESETS[preset], seed=0, mtp=mtp).items()}
    assert sources == expected
    assert len({tensor.name for tensor in tensors}) == len(tensors)
    assert all(len(tensor.name) < 80 for tensor in tensors)
