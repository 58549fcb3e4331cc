"""Whatever the engine does not compute is refused by the name of its key; what it needs is read right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.engine_types import ModelConfig
from launcher.errors import PackageError, UsageError
from release.checkpoint.config import check_supported, config_section, parse_config_section, read_config
from release.checkpoint.special_tokens import SpecialTokens, resolve_special_tokens
from tests.support.checkpoints import PRESETS, config_json

SPECIAL = SpecialTokens(bos=None, eos=311, pad=308, stop=(311, 308))


def micro_config(**changes: Any) -> dict[str, Any]:
    return {**config_json(PRESETS["micro"]), **changes}


def read(config: dict[str, Any], max_context: int | None = None) -> ModelConfig:
    check_supported(config)
    return read_config(config, special=SPECIAL, token_count=320, max_context=max_context)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_scaling", {"type": "yarn", "factor": 2}),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 6000000.0}),
        ("expert_swiglu_limit_list", [None, 4.0]),
        ("share_expert_swiglu_limit_list", [0.0]),
        ("quantization_config", {"quant_method": "fp8"}),
        ("use_kda_lora", True),
        ("no_kda_lora", False),
        ("kda_safe_gate", False),
        ("gated_attention_proj_granularity_type", "elementwise"),
        ("rope_interleave", False),
        ("score_function", "softmax"),
        ("scoring_func", "softmax"),
        ("topk_method", "greedy"),
        ("moe_router_enable_expert_bias", False),
        ("router_dtype", "bf16"),
        ("linear_attention", "lightning"),
        ("use_bias", True),
        ("use_qkv_bias", True),
        ("attention_bias", True),
        ("tie_word_embeddings", True),
        ("hidden_act", "gelu"),
        ("num_nextn_predict_layers", 2),
        ("num_nextn_predict_layers", True),
        ("num_key_value_heads", 1),
        ("hidden_size", 60),
        ("hidden_size", "64"),
        ("hidden_size", 64.0),
        ("hidden_size", True),
        ("vocab_size", 319),
        ("vocab_size", 1 << 30),
        ("num_hidden_layers", 0),
        ("qk_head_dim", 49),
        ("head_dim", 36),
        ("q_lora_rank", 0),
        ("first_k_dense_replace", 5),
        ("n_group", 3),
        ("n_group", 4),
        ("topk_group", 3),
        ("num_experts_per_tok", 3),
        ("num_shared_experts", 0),
        ("norm_topk_prob", 1),
        ("rms_norm_eps", 0),
        ("rms_norm_eps", float("nan")),
        ("rope_theta", "6e6"),
        ("kda_lower_bound", 0.0),
        ("kda_lower_bound", -100.0),
        ("layer_types", ["full_attention"] * 4),
        ("mlp_layer_types", ["sparse"] * 4),
    ],
)
def test_an_unsupported_value_is_refused_by_its_key(key: str, value: object) -> None:
    with pytest.raises(PackageError, match=rf"config\.json: {key} ") as caught:
        read(micro_config(**{key: value}))
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    "key",
    [
        "no_kda_lora",
        "kda_safe_gate",
        "gated_attention_proj_granularity_type",
        "rope_interleave",
        "score_function",
        "topk_method",
        "moe_router_enable_expert_bias",
        "hidden_act",
        "hidden_size",
        "norm_topk_prob",
        "rope_theta",
    ],
)
def test_a_missing_key_that_changes_the_arithmetic_is_refused(key: str) -> None:
    config = micro_config()
    del config[key]
    with pytest.raises(PackageError, match=rf"config\.json: {key} is"):
        read(config)


@pytest.mark.parametrize(
    ("architectures", "model_type"),
    [
        (["BailingMoeV2_5ForCausalLM"], "bailing_hybrid"),
        (["BailingMoeV3ForCausalLM"], "bailing_moe"),
        (["LlamaForCausalLM"], "llama"),
        (None, None),
    ],
)
def test_another_architecture_is_refused_and_named(architectures: object, model_type: object) -> None:
    with pytest.raises(PackageError) as caught:
        read(micro_config(architectures=architectures, model_type=model_type))
    assert caught.value.slug == "architecture-unsupported"
    assert str(architectures) in caught.value.message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("partial_rotary_factor", 0.25),
        ("use_qk_norm", False),
        ("linear_silu", False),
        ("group_norm_size", 8),
        ("max_window_layers", 20),
        ("expert_swiglu_limit_list", [None, None]),
        ("scoring_func", None),
        ("layer_types", ["linear_attention", "full_attention"] * 2),
        ("mlp_layer_types", ["dense", "sparse", "sparse", "sparse"]),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 6000000.0}),
    ],
)
def test_dead_and_redundant_keys_change_nothing(key: str, value: object) -> None:
    assert read(micro_config(**{key: value})) == read(micro_config())


def test_dimensions_are_read_from_their_keys() -> None:
    config = read(config_json(PRESETS["mid"]) | {"num_shared_experts": 2})
    assert (config.hidden_size, config.intermediate_size, config.layer_count) == (512, 1536, 12)
    assert (config.q_lora_rank, config.kv_lora_rank, config.qk_nope_head_dim) == (256, 512, 128)
    assert (config.expert_count, config.expert_group_count, config.expert_group_top) == (32, 8, 4)
    assert (config.moe_intermediate_size, config.shared_intermediate_size) == (256, 512)
    assert (config.mtp_layer_count, config.dense_layer_count, config.norm_topk_prob) == (1, 1, True)
    assert config.kda_lower_bound == -5.0


def test_absent_query_rank_means_one_matrix() -> None:
    assert read(micro_config(q_lora_rank=None)).q_lora_rank == 0


@pytest.mark.parametrize(
    ("native", "given", "expected"),
    [(512, None, 1024), (131072, None, 262144), (262144, None, 262144), (524288, None, 524288), (512, 100, 100)],
)
def test_max_context_defaults_to_twice_the_native_one(native: int, given: int | None, expected: int) -> None:
    config = read(micro_config(max_position_embeddings=native), given)
    assert (config.max_position, config.max_context) == (native, expected)


def test_max_context_beyond_the_format_is_refused() -> None:
    with pytest.raises(UsageError):
        read(micro_config(), 1 << 25)


def test_config_section_survives_a_round_trip() -> None:
    config = read(micro_config())
    data = config_section(config)
    assert len(data) == 256
    assert parse_config_section(data).stop_ids == (311, 308)
    assert config_section(parse_config_section(data)) == data


@pytest.mark.parametrize("damage", [b"", b"\0" * 255, b"\0" * 100 + b"\x09" + b"\0" * 155])
def test_a_damaged_config_section_is_refused(damage: bytes) -> None:
    with pytest.raises(PackageError):
        parse_config_section(damage)


ADDED = {"<|endoftext|>": 308, "<|role_end|>": 311}


def test_special_ids_come_from_all_files_without_repetition() -> None:
    special = resolve_special_tokens(
        {"eos_token_id": [311, 7], "pad_token_id": 308, "bos_token_id": None},
        {"eos_token_id": 9},
        {"eos_token": {"content": "<|role_end|>"}, "bos_token": "not looked up"},
        ADDED,
        320,
    )
    assert special == SpecialTokens(bos=None, eos=311, pad=308, stop=(311, 7, 9, 308))


def test_special_ids_fall_back_to_the_names_of_the_tokenizer() -> None:
    tokenizer_config = {"eos_token": "<|role_end|>", "pad_token": "<|endoftext|>"}
    special = resolve_special_tokens({}, {}, tokenizer_config, ADDED, 320)
    assert special == SpecialTokens(bos=None, eos=311, pad=308, stop=(311, 308))


@pytest.mark.parametrize(
    ("config", "tokenizer_config", "added"),
    [
        ({"eos_token_id": 320}, {}, ADDED),
        ({"eos_token_id": -1}, {}, ADDED),
        ({"eos_token_id": "311"}, {}, ADDED),
        ({"pad_token_id": True}, {}, ADDED),
        ({}, {"eos_token": "</s>"}, ADDED),
        ({}, {}, {}),
        ({"eos_token_id": list(range(9))}, {}, ADDED),
    ],
)
def test_special_ids_that_are_no_tokens_are_refused(
    config: dict[str, Any], tokenizer_config: dict[str, Any], added: dict[str, int]
) -> None:
    with pytest.raises(PackageError) as caught:
        resolve_special_tokens(config, {}, tokenizer_config, added, 320)
    assert caught.value.slug == "special-tokens-invalid"


def test_supported_means_the_whole_folder_converts(micro: Path, convert: Any) -> None:
    assert convert(micro).is_file()
