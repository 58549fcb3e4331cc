"""Sizes of a model of the Ling-3.0 family and their `config.json`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Every size that the demo model's code reads. The defaults are the built-in model's.

    Input widths of all matrices are multiples of 32, so that they quantise in groups of 32.
    """

    vocabulary: int = 2048
    hidden: int = 128
    dense_inner: int = 256
    layers: int = 8
    group: int = 4
    heads: int = 4
    head_width: int = 32
    query_rank: int = 64
    latent_rank: int = 64
    nope_width: int = 32
    rope_width: int = 16
    value_width: int = 32
    rope_theta: float = 6_000_000.0
    experts: int = 16
    experts_per_token: int = 4
    expert_groups: int = 4
    groups_kept: int = 2
    expert_inner: int = 64
    routed_scale: float = 2.5
    dense_layers: int = 1
    decay_floor: float = -5.0
    epsilon: float = 1e-6
    max_positions: int = 4096

    def attends(self, layer: int) -> bool:
        """Whether a layer is full attention (MLA) rather than KDA; the MTP layer, index `layers`, always is."""
        return (layer + 1) % self.group == 0 or layer >= self.layers // self.group * self.group

    def config(self, *, end_of_turn: int, padding: int) -> dict[str, Any]:
        """The Hugging Face `config.json`, with every key that the released Ling-3.0-tiny has."""
        return {
            "architectures": ["BailingMoeV3ForCausalLM"],
            "model_type": "bailing_hybrid",
            "hidden_size": self.hidden,
            "intermediate_size": self.dense_inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "head_dim": self.head_width,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.max_positions,
            "rms_norm_eps": self.epsilon,
            "hidden_act": "silu",
            "rope_theta": self.rope_theta,
            "rope_scaling": None,
            "rope_interleave": True,
            "partial_rotary_factor": 0.5,
            "tie_word_embeddings": False,
            "use_bias": False,
            "use_qkv_bias": False,
            "use_qk_norm": True,
            "attention_dropout": 0.0,
            "layer_group_size": self.group,
            "linear_attention": "kda",
            "short_conv_kernel_size": 4,
            "no_kda_lora": True,
            "use_kda_lora": False,
            "kda_safe_gate": True,
            "kda_lower_bound": self.decay_floor,
            "linear_silu": True,
            "group_norm_size": 1,
            "gated_attention_proj_granularity_type": "head_wise",
            "q_lora_rank": self.query_rank,
            "kv_lora_rank": self.latent_rank,
            "qk_nope_head_dim": self.nope_width,
            "qk_rope_head_dim": self.rope_width,
            "qk_head_dim": self.nope_width + self.rope_width,
            "v_head_dim": self.value_width,
            "first_k_dense_replace": self.dense_layers,
            "num_experts": self.experts,
            "num_experts_per_tok": self.experts_per_token,
            "num_shared_experts": 1,
            "moe_intermediate_size": self.expert_inner,
            "moe_shared_expert_intermediate_size": self.expert_inner,
            "n_group": self.expert_groups,
            "topk_group": self.groups_kept,
            "norm_topk_prob": True,
            "routed_scaling_factor": self.routed_scale,
            "score_function": "sigmoid",
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "moe_router_enable_expert_bias": True,
            "router_dtype": "fp32",
            "expert_swiglu_limit_list": None,
            "share_expert_swiglu_limit_list": None,
            "num_nextn_predict_layers": 1,
            "mtp_loss_scaling_factor": 0.0,
            "bos_token_id": None,
            "eos_token_id": end_of_turn,
            "pad_token_id": padding,
            "use_cache": True,
            "torch_dtype": "bfloat16",
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Architecture":
        """Reads the sizes back from a `config.json` that `config` wrote."""
        return cls(
            vocabulary=config["vocab_size"],
            hidden=config["hidden_size"],
            dense_inner=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            group=config["layer_group_size"],
            heads=config["num_attention_heads"],
            head_width=config["head_dim"],
            query_rank=config["q_lora_rank"],
            latent_rank=config["kv_lora_rank"],
            nope_width=config["qk_nope_head_dim"],
            rope_width=config["qk_rope_head_dim"],
            value_width=config["v_head_dim"],
            rope_theta=config["rope_theta"],
            experts=config["num_experts"],
            experts_per_token=config["num_experts_per_tok"],
            expert_groups=config["n_group"],
            groups_kept=config["topk_group"],
            expert_inner=config["moe_intermediate_size"],
            routed_scale=config["routed_scaling_factor"],
            dense_layers=config["first_k_dense_replace"],
            decay_floor=config["kda_lower_bound"],
            epsilon=config["rms_norm_eps"],
            max_positions=config["max_position_embeddings"],
        )
