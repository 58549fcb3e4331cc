"""What the engine takes and gives, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

from launcher import engine_abi as abi


class Section(IntEnum):
    """`l3_section_kind`."""

    CONFIG = 1
    FEATURES = 2
    TOKENIZER = 3
    CHAT_TEMPLATE = 4
    METADATA = 5


class Dtype(IntEnum):
    """`l3_dtype`."""

    F32 = 0
    F32X8 = 1
    BF16X8 = 2
    Q8X8 = 3
    Q4X8 = 4


class KvType(IntEnum):
    """`l3_kv_type`: how the MLA cache keeps a token; the header says more."""

    F32 = 0
    BF16 = 1
    F16 = 2
    FP8 = 3
    INT8 = 4

    @property
    def label(self) -> str:
        """The word for it on the command line and in JSON."""
        return "fp16" if self is KvType.F16 else self.name.lower()


class Logits(IntEnum):
    """`l3_logits_mode`."""

    NONE = 0
    LAST = 1
    ALL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """`l3_config`: the model's dimensions; the header says what each means."""

    vocab_size: int
    token_count: int
    hidden_size: int
    intermediate_size: int
    layer_count: int
    layer_group_size: int
    head_count: int
    head_dim: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    conv_kernel: int
    expert_count: int
    experts_per_token: int
    expert_group_count: int
    expert_group_top: int
    moe_intermediate_size: int
    shared_intermediate_size: int
    dense_layer_count: int
    norm_topk_prob: bool
    mtp_layer_count: int
    max_position: int
    max_context: int
    stop_ids: tuple[int, ...]
    bos_id: int | None
    eos_id: int | None
    pad_id: int | None
    rms_eps: float
    rope_theta: float
    routed_scaling: float
    kda_lower_bound: float

    @classmethod
    def from_struct(cls, config: abi.CConfig) -> Self:
        """Copies the C struct."""
        plain: dict[str, Any] = {name: getattr(config, name) for name in cls.__slots__ if name not in _CONVERTED}
        tokens: dict[str, Any] = {
            name: None if getattr(config, name) == abi.NO_TOKEN else int(getattr(config, name)) for name in _TOKENS
        }
        return cls(
            **plain,
            **tokens,
            norm_topk_prob=bool(config.norm_topk_prob),
            stop_ids=tuple(config.stop_ids[: config.stop_count]),
        )


_TOKENS = ("bos_id", "eos_id", "pad_id")
_CONVERTED = {*_TOKENS, "stop_ids", "norm_topk_prob"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One entry of the tensor table; offset and length in bytes, `group` 0 trunk or 1 MTP."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    offset: int
    length: int
    group: int
    sha256: bytes

    @classmethod
    def from_struct(cls, info: abi.CTensorInfo) -> Self:
        """Copies the C struct."""
        return cls(
            name=info.name.decode(),
            dtype=Dtype(info.dtype),
            shape=tuple(info.shape[: info.rank]),
            offset=int(info.offset),
            length=int(info.length),
            group=int(info.group),
            sha256=bytes(info.sha256),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """`l3_engine_options`: threads 0 takes one per big core; simd "" takes the best kernel set."""

    threads: int = 0
    mtp: bool = False
    simd: str = ""

    def struct(self) -> abi.CEngineOptions:
        """The C struct."""
        return abi.CEngineOptions(threads=self.threads, mtp=int(self.mtp), simd=self.simd.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """`l3_session_options`: context in tokens, chunk in tokens per prefill step (0: the engine's choice).

    `checkpoints` is the number of slots of `Session.save`; `session_cache_bytes` is only counted by the plan.
    """

    context: int
    kv_type: KvType = KvType.F32
    chunk: int = 0
    poison: bool = False
    checkpoints: int = 0
    session_cache_bytes: int = 0

    def struct(self) -> abi.CSessionOptions:
        """The C struct."""
        return abi.CSessionOptions(
            context=self.context,
            kv_type=int(self.kv_type),
            chunk=self.chunk,
            poison=int(self.poison),
            checkpoints=self.checkpoints,
            session_cache_bytes=self.session_cache_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTerm:
    """One named part of a memory plan in bytes: reserved, resident before the first token, resident when full."""

    name: str
    bytes: int
    idle: int
    full: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """`l3_memory_plan`: what a session costs. The header names the terms and says which are mapped or allocated."""

    terms: tuple[PlanTerm, ...]
    allocated_bytes: int
    mapped_bytes: int
    idle_bytes: int
    full_bytes: int
    bytes_per_token: int

    @classmethod
    def from_struct(cls, plan: abi.CMemoryPlan) -> Self:
        """Copies the C struct."""
        terms = tuple(
            PlanTerm(name=term.name.decode(), bytes=int(term.bytes), idle=int(term.idle), full=int(term.full))
            for term in plan.terms[: plan.term_count]
        )
        return cls(
            terms=terms,
            allocated_bytes=int(plan.allocated_bytes),
            mapped_bytes=int(plan.mapped_bytes),
            idle_bytes=int(plan.idle_bytes),
            full_bytes=int(plan.full_bytes),
            bytes_per_token=int(plan.bytes_per_token),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """`l3_sampling`: temperature 0 is greedy; top_p 1, min_p 0, top_k 0, repetition_penalty 1 and 0 for the other two
    penalties switch each off.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    top_k: int = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int = 0

    def struct(self) -> abi.CSampling:
        """The C struct."""
        return abi.CSampling(
            temperature=self.temperature,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            top_k=self.top_k,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            seed=self.seed,
        )
