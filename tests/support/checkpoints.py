"""Random checkpoints of the Ling-3.0 architecture in Hugging Face layout, made with NumPy alone.

    python -m tests.support.checkpoints PRESET FOLDER [--dtype F32|F16|BF16] [--seed N] [--no-mtp] [--branch S]

Names, shapes and config keys are those of the released model. The values are scaled so that every branch, gate and
router has something to do: residual branches change the stream, decays differ, routing is decided by a margin.
"""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.checkpoint_tokenizer import special_ids, tokenizer_json

Array = npt.NDArray[Any]
Bf16 = npt.NDArray[np.uint16]

CHAT_TEMPLATE = (
    "{% for message in messages %}<role>{{ message.role | upper }}</role>{{ message.content }}<|role_end|>{% endfor %}"
    "{% if add_generation_prompt %}<role>ASSISTANT</role>{% endif %}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Dimensions of a checkpoint; `q_lora` None means one query matrix."""

    hidden: int
    intermediate: int
    layers: int
    layer_group: int
    heads: int
    head_dim: int
    q_lora: int | None
    kv_lora: int
    nope: int
    rope: int
    value: int
    experts: int
    per_token: int
    groups: int
    top_groups: int
    expert_intermediate: int
    dense_layers: int
    vocabulary: int
    max_position: int


def _preset(numbers: str, q_lora: int | None) -> Preset:
    names = [name for name in Preset.__slots__ if name != "q_lora"]
    return Preset(q_lora=q_lora, **dict(zip(names, map(int, numbers.split()), strict=True)))


# Order as in Preset, without q_lora. `released` is Ling-3.0-tiny: for plans, not for disks.
PRESETS: Mapping[str, Preset] = {
    "micro": _preset("64 96 4 2 2 32  32 32 16 32  4 2 2 1 32 1  320 512", 32),
    "tiny": _preset("256 512 8 4 4 64  128 64 32 64  8 2 4 2 256 1  512 4096", 64),
    "qnone": _preset("256 512 8 4 4 64  128 64 32 64  8 2 1 1 256 2  512 4096", None),
    "mid": _preset("512 1536 12 4 4 128  512 128 64 128  32 8 8 4 256 1  1024 131072", 256),
    "released": _preset("1536 4608 24 4 16 128  512 128 64 128  128 8 8 4 512 1  157184 131072", 256),
    "bench": _preset("768 2304 12 4 8 128  512 128 64 128  64 8 8 4 256 1  32768 131072", 256),
}


def make_checkpoint(
    folder: Path,
    preset: str | Preset = "micro",
    *,
    dtype: str = "F32",
    seed: int = 0,
    mtp: bool = True,
    shards: int = 1,
    branch: float = 1.0,
) -> Path:
    """Writes a checkpoint folder and returns it.

    Args:
        preset: a name in ``PRESETS``, or dimensions of one's own.
        dtype: ``F32``, ``F16`` or ``BF16``; decay parameters and expert biases stay F32 as in the released model.
        mtp: whether there is an MTP layer.
        shards: number of weight files; more than one comes with an index.
        branch: scale of the matrices that end a residual branch; small values give a calm model.
    """
    chosen = PRESETS[preset] if isinstance(preset, str) else preset
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config_json(chosen, mtp=mtp))
    write_json(folder / "tokenizer.json", tokenizer_json(chosen.vocabulary))
    tokenizer = {"eos_token": "<|role_end|>", "pad_token": "<|endoftext|>", "bos_token": "<|startoftext|>"}
    write_json(folder / "tokenizer_config.json", {**tokenizer, "chat_template": CHAT_TEMPLATE})
    write_json(folder / "generation_config.json", {"temperature": 1.0, "top_p": 0.95, "top_k": 20})
    tensors = random_tensors(chosen, seed=seed, mtp=mtp, branch=branch)
    write_weights(folder, {name: cast(name, values, dtype) for name, values in tensors.items()}, shards=shards)
    return folder


def config_json(preset: Preset, *, mtp: bool = True) -> dict[str, Any]:
    """config.json with the keys of the released model, dead ones included."""
    special = special_ids(preset.vocabulary)
    return {
        "architectures": ["BailingMoeV3ForCausalLM"],
        "model_type": "bailing_hybrid",
        "hidden_size": preset.hidden,
        "intermediate_size": preset.intermediate,
        "num_hidden_layers": preset.layers,
        "layer_group_size": preset.layer_group,
        "num_attention_heads": preset.heads,
        "num_key_value_heads": preset.heads,
        "head_dim": preset.head_dim,
        "q_lora_rank": preset.q_lora,
        "kv_lora_rank": preset.kv_lora,
        "qk_nope_head_dim": preset.nope,
        "qk_rope_head_dim": preset.rope,
        "qk_head_dim": preset.nope + preset.rope,
        "v_head_dim": preset.value,
        "num_experts": preset.experts,
        "num_experts_per_tok": preset.per_token,
        "n_group": preset.groups,
        "topk_group": preset.top_groups,
        "moe_intermediate_size": preset.expert_intermediate,
        "moe_shared_expert_intermediate_size": preset.expert_intermediate,
        "num_shared_experts": 1,
        "first_k_dense_replace": preset.dense_layers,
        "vocab_size": preset.vocabulary,
        "max_position_embeddings": preset.max_position,
        "rms_norm_eps": 1e-6,
        "rope_theta": 6000000.0,
        "rope_scaling": None,
        "rope_interleave": True,
        "partial_rotary_factor": 0.5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "use_bias": False,
        "use_qkv_bias": False,
        "use_qk_norm": True,
        "linear_attention": "kda",
        "linear_silu": True,
        "group_norm_size": 1,
        "short_conv_kernel_size": 4,
        "no_kda_lora": True,
        "use_kda_lora": False,
        "kda_safe_gate": True,
        "kda_lower_bound": -5.0,
        "gated_attention_proj_granularity_type": "head_wise",
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
        "score_function": "sigmoid",
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "moe_router_enable_expert_bias": True,
        "router_dtype": "fp32",
        "expert_swiglu_limit_list": None,
        "share_expert_swiglu_limit_list": None,
        "num_nextn_predict_layers": int(mtp),
        "bos_token_id": None,
        "eos_token_id": special["<|role_end|>"],
        "pad_token_id": special["<|endoftext|>"],
        "torch_dtype": "float32",
    }


def random_tensors(preset: Preset, *, seed: int, mtp: bool, branch: float = 1.0) -> dict[str, Array]:
    """All tensors as float32, by their name in the checkpoint."""
    maker = _Maker(preset, np.random.default_rng(seed), branch)
    maker.model(mtp=mtp)
    return maker.tensors


class _Maker:
    def __init__(self, preset: Preset, generator: np.random.Generator, branch: float) -> None:
        self._preset = preset
        self._generator = generator
        self._branch = branch
        self.tensors: dict[str, Array] = {}

    def model(self, *, mtp: bool) -> None:
        preset = self._preset
        self.tensors["model.word_embeddings.weight"] = self._normal(preset.vocabulary, preset.hidden)
        for layer in range(preset.layers + int(mtp)):
            self._layer(layer)
        self._norm("model.norm.weight", preset.hidden)
        self._linear("lm_head.weight", preset.vocabulary, preset.hidden, 2.0)

    def _layer(self, layer: int) -> None:
        preset = self._preset
        prefix = f"model.layers.{layer}"
        self._norm(f"{prefix}.input_layernorm.weight", preset.hidden)
        self._norm(f"{prefix}.post_attention_layernorm.weight", preset.hidden)
        tail = preset.layers // preset.layer_group * preset.layer_group
        is_full = (layer + 1) % preset.layer_group == 0 or layer >= tail
        (self._mla if is_full else self._kda)(f"{prefix}.attention")
        if layer < preset.dense_layers:
            self._mlp(f"{prefix}.mlp", preset.intermediate)
        else:
            self._experts(f"{prefix}.mlp")
        if layer == preset.layers:
            for name in ("enorm", "hnorm", "final_layernorm"):
                self._norm(f"{prefix}.{name}.weight", preset.hidden)
            self._linear(f"{prefix}.eh_proj.weight", preset.hidden, 2 * preset.hidden)

    def _kda(self, prefix: str) -> None:
        preset = self._preset
        width = preset.heads * preset.head_dim
        for letter in "qkv":
            self._linear(f"{prefix}.{letter}_proj.weight", width, preset.hidden, 1.5)
            self.tensors[f"{prefix}.{letter}_conv1d.weight"] = 0.5 * self._normal(width, 1, 4)
        self._linear(f"{prefix}.f_proj.weight", width, preset.hidden)
        self._linear(f"{prefix}.b_proj.weight", preset.heads, preset.hidden)
        self._linear(f"{prefix}.g_proj.weight", width, preset.hidden, 2.0)
        uniform = self._generator.uniform(0.5, 2.0, preset.heads)
        self.tensors[f"{prefix}.A_log"] = np.log(uniform).astype(np.float32)
        self.tensors[f"{prefix}.dt_bias"] = self._normal(width) - np.float32(3)
        self._norm(f"{prefix}.o_norm.weight", preset.head_dim)
        self._linear(f"{prefix}.o_proj.weight", preset.hidden, width, 1.5 * self._branch)

    def _mla(self, prefix: str) -> None:
        preset = self._preset
        queries = preset.heads * (preset.nope + preset.rope)
        if preset.q_lora:
            self._linear(f"{prefix}.q_a_proj.weight", preset.q_lora, preset.hidden)
            self._norm(f"{prefix}.q_a_layernorm.weight", preset.q_lora)
            self._linear(f"{prefix}.q_b_proj.weight", queries, preset.q_lora, 1.5)
        else:
            self._linear(f"{prefix}.q_proj.weight", queries, preset.hidden, 1.5)
        self._linear(f"{prefix}.kv_a_proj_with_mqa.weight", preset.kv_lora + preset.rope, preset.hidden, 1.5)
        self._norm(f"{prefix}.kv_a_layernorm.weight", preset.kv_lora)
        self._linear(f"{prefix}.kv_b_proj.weight", preset.heads * (preset.nope + preset.value), preset.kv_lora, 1.5)
        self._linear(f"{prefix}.g_proj.weight", preset.heads, preset.hidden, 2.0)
        self._linear(f"{prefix}.dense.weight", preset.hidden, preset.heads * preset.value, 1.5 * self._branch)

    def _experts(self, prefix: str) -> None:
        preset = self._preset
        self._linear(f"{prefix}.gate.weight", preset.experts, preset.hidden, 2.0)
        self.tensors[f"{prefix}.gate.expert_bias"] = np.float32(0.2) * self._normal(preset.experts)
        for expert in range(preset.experts):
            self._mlp(f"{prefix}.experts.{expert}", preset.expert_intermediate)
        self._mlp(f"{prefix}.shared_experts", preset.expert_intermediate)

    def _mlp(self, prefix: str, inner: int) -> None:
        self._linear(f"{prefix}.gate_proj.weight", inner, self._preset.hidden, 1.5)
        self._linear(f"{prefix}.up_proj.weight", inner, self._preset.hidden, 1.5)
        self._linear(f"{prefix}.down_proj.weight", self._preset.hidden, inner, 1.5 * self._branch)

    def _linear(self, name: str, rows: int, width: int, scale: float = 1.0) -> None:
        self.tensors[name] = self._normal(rows, width) * np.float32(scale / width**0.5)

    def _norm(self, name: str, width: int) -> None:
        self.tensors[name] = 1 + np.float32(0.1) * self._normal(width)

    def _normal(self, *shape: int) -> Array:
        return self._generator.standard_normal(shape, dtype=np.float32)


def cast(name: str, values: Array, dtype: str) -> Array:
    """Float32 values as stored: float32, float16, or bfloat16 patterns in uint16."""
    if dtype == "F32" or name.endswith(("A_log", "dt_bias", "expert_bias")):
        return values.astype(np.float32)
    return values.astype(np.float16) if dtype == "F16" else to_bf16(values)


def to_bf16(values: Array) -> Bf16:
    """Nearest bfloat16, ties to even, as bit patterns."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(patterns: Bf16) -> npt.NDArray[np.float32]:
    """The float32 values of bfloat16 patterns."""
    return (patterns.astype(np.uint32) << 16).view(np.float32)


def write_weights(folder: Path, tensors: Mapping[str, Array], *, shards: int = 1) -> None:
    """Writes model.safetensors, or several shards with their index."""
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        write_safetensors(folder / file, part)
        weight_map |= dict.fromkeys(part, file)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def write_safetensors(path: Path, tensors: Mapping[str, Array]) -> None:
    """Writes one file; uint16 arrays are bfloat16 patterns."""
    codes = {"float32": "F32", "float16": "F16", "uint16": "BF16", "int8": "I8", "float64": "F64"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, values in tensors.items():
        end = position + values.nbytes
        header[name] = {
            "dtype": codes[values.dtype.name],
            "shape": list(values.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors.values():
            file.write(np.ascontiguousarray(values).tobytes())


def write_json(path: Path, document: object) -> None:
    """Writes indented JSON."""
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False), encoding="utf-8")


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Applies a change to a JSON object on disk."""
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    write_json(path, document)


def main() -> None:
    """Command line of the generator."""
    parser = argparse.ArgumentParser(description="Writes a random checkpoint of the Ling-3.0 architecture.")
    parser.add_argument("preset", choices=PRESETS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--dtype", default="F32", choices=("F32", "F16", "BF16"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-mtp", action="store_true")
    parser.add_argument("--branch", type=float, default=1.0)
    arguments = parser.parse_args()
    make_checkpoint(
        arguments.folder,
        arguments.preset,
        dtype=arguments.dtype,
        seed=arguments.seed,
        mtp=not arguments.no_mtp,
        branch=arguments.branch,
    )


if __name__ == "__main__":
    main()
