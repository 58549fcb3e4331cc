"""From config.json to the engine's configuration, refusing by name whatever the engine does not compute."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from launcher import engine_abi as abi
from launcher.engine_types import ModelConfig
from launcher.errors import PackageError, UsageError
from release.checkpoint.special_tokens import SpecialTokens

ARCHITECTURE: Final = "BailingMoeV3ForCausalLM"
MODEL_TYPE: Final = "bailing_hybrid"
FEATURES: Final = (
    "bailing-v3",
    "kda-full-rank",
    "kda-safe-gate",
    "mla-head-wise-gate",
    "rope-interleaved",
    "router-sigmoid-noaux-tc",
    "tokenizer-bpe-bailing",
)
_DEFAULT_MAX_CONTEXT: Final = 262144

_REQUIRED: Final[Mapping[str, object]] = {
    "hidden_act": "silu",
    "no_kda_lora": True,
    "kda_safe_gate": True,
    "gated_attention_proj_granularity_type": "head_wise",
    "rope_interleave": True,
    "score_function": "sigmoid",
    "topk_method": "noaux_tc",
    "moe_router_enable_expert_bias": True,
}
"""Keys that change the arithmetic and therefore must be present with this value."""

_IF_PRESENT: Final[Mapping[str, object]] = {
    "use_kda_lora": False,
    "use_bias": False,
    "use_qkv_bias": False,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "scoring_func": "sigmoid",
    "linear_attention": "kda",
    "router_dtype": "fp32",
}
"""Keys that change the arithmetic when they have another value; absent or null means this value."""

_MUST_BE_NULL: Final = (
    "rope_scaling",
    "quantization_config",
    "expert_swiglu_limit_list",
    "share_expert_swiglu_limit_list",
)
"""Keys that must be absent or null; a list of nothing but null counts as null."""

_BOUNDS: Final[Mapping[str, tuple[int, int]]] = {
    "vocab_size": (1, 1 << 20),
    "hidden_size": (8, 1 << 14),
    "intermediate_size": (1, 1 << 16),
    "num_hidden_layers": (1, 512),
    "layer_group_size": (1, 512),
    "num_attention_heads": (1, 256),
    "head_dim": (8, 512),
    "kv_lora_rank": (8, 4096),
    "qk_nope_head_dim": (8, 1024),
    "qk_rope_head_dim": (8, 1024),
    "v_head_dim": (8, 1024),
    "short_conv_kernel_size": (1, 16),
    "num_experts": (1, 4096),
    "num_experts_per_tok": (1, 64),
    "num_shared_experts": (1, 64),
    "n_group": (1, 4096),
    "topk_group": (1, 4096),
    "moe_intermediate_size": (1, 1 << 16),
    "moe_shared_expert_intermediate_size": (1, 1 << 16),
    "first_k_dense_replace": (0, 512),
    "max_position_embeddings": (1, 1 << 24),
}
"""What the engine's reader accepts (engine/src/package/config.c)."""

_MULTIPLE_OF_8: Final = ("hidden_size", "head_dim", "kv_lora_rank", "qk_rope_head_dim")


def config_section(config: ModelConfig) -> bytes:
    """The 256 bytes of the config section: `l3_config` of engine/include/ling3.h."""
    tokens = {name: getattr(config, name) for name in ("bos_id", "eos_id", "pad_id")}
    plain = {
        field.name: getattr(config, field.name)
        for field in fields(config)
        if field.name not in tokens and field.name != "stop_ids"
    }
    struct = abi.CConfig(**plain, stop_count=len(config.stop_ids))
    struct.stop_ids[: len(config.stop_ids)] = config.stop_ids
    for name, token in tokens.items():
        setattr(struct, name, abi.NO_TOKEN if token is None else token)
    return bytes(struct)


def parse_config_section(data: bytes) -> ModelConfig:
    """Reads back what `config_section` wrote.

    Raises:
        PackageError: not 256 bytes, or more stop ids than there is room for.
    """
    size = ctypes.sizeof(abi.CConfig)
    if len(data) != size:
        raise PackageError("config-malformed", f"the config section has {len(data)} bytes, not {size}")
    struct = abi.CConfig.from_buffer_copy(data)
    if struct.stop_count > abi.MAX_STOP_IDS:
        raise PackageError("config-malformed", f"the config section has {struct.stop_count} stop ids, at most 8 fit")
    return ModelConfig.from_struct(struct)


def is_full_attention(config: ModelConfig, layer: int) -> bool:
    """Whether a layer is MLA: the last of each group, the tail behind the last full group, and the MTP layer."""
    size = config.layer_group_size
    return (layer + 1) % size == 0 or layer >= config.layer_count // size * size


def check_supported(config: Mapping[str, Any]) -> None:
    """Refuses configurations that ask for something the engine does not compute, naming the key.

    Raises:
        PackageError: another architecture, or a key with an unsupported value.
    """
    architectures = config.get("architectures")
    if architectures != [ARCHITECTURE] or config.get("model_type") != MODEL_TYPE:
        found = f"{architectures} / {config.get('model_type')!r}"
        raise PackageError(
            "architecture-unsupported",
            f"config.json describes {found}; only ['{ARCHITECTURE}'] / '{MODEL_TYPE}' is supported",
            hint="This converter is for Ling-3.0. Ling-2.5 and 2.6 share the model_type, not the architecture.",
        )
    for key, expected in _REQUIRED.items():
        if key not in config:
            raise _bad_key(key, f"is missing; only {expected!r} is supported and it must be stated")
        _require(config, key, expected)
    for key, expected in _IF_PRESENT.items():
        if config.get(key) is not None:
            _require(config, key, expected)
    for key in _MUST_BE_NULL:
        if _is_set(config.get(key)):
            raise _bad_key(key, f"is {_short(config[key])}; only null is supported")
    _check_rope_parameters(config)
    if config.get("num_key_value_heads") not in (None, config.get("num_attention_heads")):
        raise _bad_key("num_key_value_heads", "differs from num_attention_heads")


def read_config(
    config: Mapping[str, Any], *, special: SpecialTokens, token_count: int, max_context: int | None
) -> ModelConfig:
    """The engine's configuration of a supported config.json.

    Args:
        config: the parsed config.json, accepted by `check_supported`.
        special: ids resolved from the tokenizer files.
        token_count: ids that the tokenizer knows.
        max_context: largest context to allow, tokens; by default twice the native one, at most 262,144.

    Raises:
        PackageError: a value is missing, out of bounds or contradicts another one.
        UsageError: `max_context` is out of bounds.
    """
    count = {key: _integer(config, key, *bounds) for key, bounds in _BOUNDS.items()}
    q_lora_rank = 0 if config.get("q_lora_rank") is None else _integer(config, "q_lora_rank", 1, 1 << 14)
    native = count["max_position_embeddings"]
    allowed = min(_DEFAULT_MAX_CONTEXT, 2 * native) if max_context is None else max_context
    allowed = max(allowed, native) if max_context is None else allowed
    if not 1 <= allowed <= 1 << 24:
        raise UsageError(
            "max-context-invalid",
            f"--max-context {allowed} is outside 1 to {1 << 24}",
            hint=f"Give a number in this range; the model's own context is {native}.",
        )
    result = ModelConfig(
        vocab_size=count["vocab_size"],
        token_count=token_count,
        hidden_size=count["hidden_size"],
        intermediate_size=count["intermediate_size"],
        layer_count=count["num_hidden_layers"],
        layer_group_size=count["layer_group_size"],
        head_count=count["num_attention_heads"],
        head_dim=count["head_dim"],
        q_lora_rank=q_lora_rank,
        kv_lora_rank=count["kv_lora_rank"],
        qk_nope_head_dim=count["qk_nope_head_dim"],
        qk_rope_head_dim=count["qk_rope_head_dim"],
        v_head_dim=count["v_head_dim"],
        conv_kernel=count["short_conv_kernel_size"],
        expert_count=count["num_experts"],
        experts_per_token=count["num_experts_per_tok"],
        expert_group_count=count["n_group"],
        expert_group_top=count["topk_group"],
        moe_intermediate_size=count["moe_intermediate_size"],
        shared_intermediate_size=count["moe_shared_expert_intermediate_size"] * count["num_shared_experts"],
        dense_layer_count=count["first_k_dense_replace"],
        norm_topk_prob=_boolean(config, "norm_topk_prob"),
        mtp_layer_count=_mtp_layers(config),
        max_position=native,
        max_context=allowed,
        stop_ids=special.stop,
        bos_id=special.bos,
        eos_id=special.eos,
        pad_id=special.pad,
        rms_eps=_number(config, "rms_norm_eps", 1e-30, 0.5),
        rope_theta=_number(config, "rope_theta", 1.001, 1e12),
        routed_scaling=_number(config, "routed_scaling_factor", 0.0, 1e6),
        kda_lower_bound=_number(config, "kda_lower_bound", -80.0, -1e-6),
    )
    _check_consistency(config, result)
    return result


def _check_consistency(config: Mapping[str, Any], result: ModelConfig) -> None:
    if result.token_count > result.vocab_size:
        raise _bad_key("vocab_size", f"is {result.vocab_size}, the tokenizer has {result.token_count} tokens")
    for key in _MULTIPLE_OF_8:
        if config[key] % 8:
            raise _bad_key(key, f"is {config[key]}; only multiples of 8 are supported")
    head = result.qk_nope_head_dim + result.qk_rope_head_dim
    if config.get("qk_head_dim") not in (None, head):
        raise _bad_key("qk_head_dim", f"is {config['qk_head_dim']}, nope and rope parts give {head}")
    if result.dense_layer_count > result.layer_count:
        raise _bad_key("first_k_dense_replace", f"is {result.dense_layer_count} of {result.layer_count} layers")
    per_group, rest = divmod(result.expert_count, result.expert_group_count)
    if rest or (per_group < 2 and result.expert_group_count > 1):
        raise _bad_key("n_group", f"is {result.expert_group_count} for {result.expert_count} experts")
    if result.expert_group_top > result.expert_group_count:
        raise _bad_key("topk_group", f"is {result.expert_group_top} of {result.expert_group_count} groups")
    if result.experts_per_token > result.expert_group_top * per_group:
        reachable = result.expert_group_top * per_group
        raise _bad_key("num_experts_per_tok", f"is {result.experts_per_token}, {reachable} experts can be reached")
    layers = range(result.layer_count)
    attention = ["full_attention" if is_full_attention(result, layer) else "linear_attention" for layer in layers]
    feed_forward = ["dense" if layer < result.dense_layer_count else "sparse" for layer in layers]
    for key, derived in (("layer_types", attention), ("mlp_layer_types", feed_forward)):
        if config.get(key) not in (None, derived):
            raise _bad_key(key, "contradicts layer_group_size or first_k_dense_replace")


def _mtp_layers(config: Mapping[str, Any]) -> int:
    count = config.get("num_nextn_predict_layers") or 0
    if count not in (0, 1) or isinstance(count, bool):
        raise _bad_key("num_nextn_predict_layers", f"is {_short(count)}; 0 and 1 are supported")
    return int(count)


def _check_rope_parameters(config: Mapping[str, Any]) -> None:
    parameters = config.get("rope_parameters")
    if parameters is None:
        return
    plain = {"rope_type": "default", "rope_theta": config.get("rope_theta")}
    if not isinstance(parameters, dict) or {**plain, **parameters} != plain:
        raise _bad_key("rope_parameters", f"is {_short(parameters)}; only the default rotation is supported")


def _is_set(value: object) -> bool:
    """Whether a limit or scaling is in force: a list of nothing but null is not."""
    if isinstance(value, list):
        return any(item is not None for item in value)
    return value is not None


def _require(config: Mapping[str, Any], key: str, expected: object) -> None:
    found = config[key]
    if type(found) is not type(expected) or found != expected:
        raise _bad_key(key, f"is {_short(found)}; only {expected!r} is supported")


def _integer(config: Mapping[str, Any], key: str, lowest: int, highest: int) -> int:
    value = config.get(key)
    if type(value) is not int or not lowest <= value <= highest:
        raise _bad_key(key, f"is {_short(value)}; expected a whole number from {lowest} to {highest}")
    return value


def _number(config: Mapping[str, Any], key: str, lowest: float, highest: float) -> float:
    value: Any = config.get(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not lowest <= value <= highest:  # NaN is in no range
        raise _bad_key(key, f"is {_short(value)}; expected a number from {lowest:g} to {highest:g}")
    return float(value)


def _boolean(config: Mapping[str, Any], key: str) -> bool:
    value = config.get(key)
    if not isinstance(value, bool):
        raise _bad_key(key, f"is {_short(value)}; expected true or false")
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _bad_key(key: str, problem: str) -> PackageError:
    return PackageError(
        "config-unsupported",
        f"config.json: {key} {problem}",
        hint="Compare with the config.json of inclusionAI/Ling-3.0-tiny.",
    )
