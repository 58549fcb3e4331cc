"""The numbers of a model that the reference needs, from a checkpoint or from a package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from launcher.engine_types import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """What the arithmetic depends on beside the weights."""

    hidden: int
    layers: int
    layer_group: int
    heads: int
    head_dim: int
    q_lora: int
    kv_lora: int
    nope: int
    rope: int
    value: int
    conv_taps: int
    experts: int
    experts_per_token: int
    expert_groups: int
    top_groups: int
    dense_layers: int
    normalise_weights: bool
    routed_scaling: float
    eps: float
    rope_theta: float
    lower_bound: float

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """From the keys of config.json."""
        return cls(
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            layer_group=config["layer_group_size"],
            heads=config["num_attention_heads"],
            head_dim=config["head_dim"],
            q_lora=config["q_lora_rank"] or 0,
            kv_lora=config["kv_lora_rank"],
            nope=config["qk_nope_head_dim"],
            rope=config["qk_rope_head_dim"],
            value=config["v_head_dim"],
            conv_taps=config["short_conv_kernel_size"],
            experts=config["num_experts"],
            experts_per_token=config["num_experts_per_tok"],
            expert_groups=config["n_group"],
            top_groups=config["topk_group"],
            dense_layers=config["first_k_dense_replace"],
            normalise_weights=config["norm_topk_prob"],
            routed_scaling=config["routed_scaling_factor"],
            eps=config["rms_norm_eps"],
            rope_theta=config["rope_theta"],
            lower_bound=config["kda_lower_bound"],
        )

    @classmethod
    def from_package(cls, config: ModelConfig) -> Self:
        """From the configuration of a package."""
        return cls(
            hidden=config.hidden_size,
            layers=config.layer_count,
            layer_group=config.layer_group_size,
            heads=config.head_count,
            head_dim=config.head_dim,
            q_lora=config.q_lora_rank,
            kv_lora=config.kv_lora_rank,
            nope=config.qk_nope_head_dim,
            rope=config.qk_rope_head_dim,
            value=config.v_head_dim,
            conv_taps=config.conv_kernel,
            experts=config.expert_count,
            experts_per_token=config.experts_per_token,
            expert_groups=config.expert_group_count,
            top_groups=config.expert_group_top,
            dense_layers=config.dense_layer_count,
            normalise_weights=config.norm_topk_prob,
            routed_scaling=config.routed_scaling,
            eps=config.rms_eps,
            rope_theta=config.rope_theta,
            lower_bound=config.kda_lower_bound,
        )

    def is_full_attention(self, layer: int) -> bool:
        """MLA closes every group; what is left after the last whole group, and the MTP layer, is MLA too."""
        return (layer + 1) % self.layer_group == 0 or layer >= self.layers // self.layer_group * self.layer_group
