"""Memory of an earlier engine for the same model, by the same accounting: what keeping every head's K and V costs.

Its published figures (an RK3588 board, BF16) are explained by three numbers: a base, and the expanded cache twice, once
for the whole capacity from the start and once more for what is used. docs/memory.md compares it with this engine.
"""

from __future__ import annotations

from launcher.engine_types import ModelConfig

MIB = 1 << 20
BASE_MIB = 5271
"""Package, program and buffers of the earlier engine without any cache: 5511 MiB at 4K less 4096 x 60 KiB."""

PUBLISHED_CAPACITY = 32768
PUBLISHED_MIB = {192: 7197, 576: 7230, 1088: 7258, 2112: 7322, 4160: 7429, 8256: 7661, 16448: 8162}
"""Peak RSS by tokens used, at a capacity of 32K."""

HELD_OUT = (8192, 192, 5767)
"""Capacity, tokens used and MiB of a run on another board, which no number above was fitted to."""

PROJECTED_MIB = {
    4: (5511, 5751),
    8: (5751, 6231),
    16: (6231, 7191),
    32: (7191, 9111),
    64: (9111, 12951),
    128: (12951, 20631),
    256: (20631, 35991),
}
"""Idle and full by capacity in K tokens."""


def expanded_token_bytes(config: ModelConfig, element: int = 2) -> int:
    """Bytes per token of a cache that holds keys and values of every head in each MLA layer."""
    head = config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim
    return _mla_layers(config) * config.head_count * head * element


def latent_token_bytes(config: ModelConfig, element: int = 2) -> int:
    """Bytes per token of this engine's cache: one latent and one rotary key in each MLA layer."""
    return _mla_layers(config) * (config.kv_lora_rank + config.qk_rope_head_dim) * element


def earlier_mib(config: ModelConfig, capacity: int, used: int) -> float:
    """Resident MiB of the earlier engine with room for `capacity` tokens, `used` of them consumed."""
    return BASE_MIB + (capacity + used) * expanded_token_bytes(config) / MIB


def _mla_layers(config: ModelConfig) -> int:
    return sum((layer + 1) % config.layer_group_size == 0 for layer in range(config.layer_count))
