"""The closed world: which tensors a checkpoint of this architecture has, and which ones the package gets from them.

Every source tensor is consumed exactly once and every expected one is produced; anything else fails, naming the
difference.
Order, names and shapes of the package tensors are those of docs/l3r-format.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from launcher.engine_types import ModelConfig
from launcher.errors import PackageError
from release.checkpoint.config import is_full_attention

GROUP_TRUNK = 0
GROUP_MTP = 1
_MAX_LISTED = 12


class Role(Enum):
    """What a tensor is for; a recipe gives each role a layout."""

    VECTOR = auto()
    EMBEDDING = auto()
    HEAD = auto()
    LARGE_PROJECTION = auto()
    SMALL_PROJECTION = auto()
    LATENT_PROJECTION = auto()
    MTP_PROJECTION = auto()
    FEED_FORWARD = auto()
    ROUTER = auto()


class Build(Enum):
    """How a package tensor comes from its sources."""

    COPY = auto()
    STACK = auto()  # one matrix per source
    CONVOLUTION = auto()  # three [P, 1, taps] -> [taps, 3 P]
    KEY_HALF = auto()  # of kv_b_proj, transposed per head
    VALUE_HALF = auto()  # of kv_b_proj


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTensor:
    """A tensor that the checkpoint must have."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageTensor:
    """A tensor of the package, its group (0 trunk, 1 MTP) and where it comes from."""

    name: str
    shape: tuple[int, ...]
    role: Role
    group: int
    build: Build
    sources: tuple[SourceTensor, ...]


def package_tensors(config: ModelConfig, *, with_mtp: bool) -> tuple[PackageTensor, ...]:
    """All tensors of a package, in package order."""
    return tuple(_Plan(config).tensors(with_mtp=with_mtp))


def check_closed_world(
    tensors: tuple[PackageTensor, ...],
    found: Mapping[str, tuple[int, ...]],
    *,
    dropped: tuple[PackageTensor, ...] = (),
) -> None:
    """Compares what the checkpoint has with what it should have.

    Args:
        tensors: what will be produced.
        found: name and shape of every tensor of the checkpoint.
        dropped: tensors whose sources may be present and are left out on purpose.

    Raises:
        PackageError: missing, unexpected or wrongly shaped tensors, all of them named (up to 12 of a kind).
    """
    expected = {source.name: source.shape for tensor in tensors for source in tensor.sources}
    optional = {source.name for tensor in dropped for source in tensor.sources}
    missing = sorted(set(expected) - set(found))
    unexpected = sorted(set(found) - set(expected) - optional)
    wrong = sorted(
        f"{name} {list(found[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    )
    problems = [
        _list(kind, names)
        for kind, names in (("missing", missing), ("unexpected", unexpected), ("wrongly shaped", wrong))
        if names
    ]
    if problems:
        raise PackageError(
            "checkpoint-tensors-differ",
            "the checkpoint does not have exactly the tensors that its config.json describes: " + "; ".join(problems),
            hint="Check that config.json belongs to these weights and that every shard is there."
            " --drop-mtp leaves out the MTP layer.",
        )


def _list(kind: str, names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_LISTED])
    rest = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return f"{len(names)} {kind} ({shown}{rest})"


class _Plan:
    """Walks the layers in order; one method per part of a layer."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._group = GROUP_TRUNK

    def tensors(self, *, with_mtp: bool) -> Iterator[PackageTensor]:
        config = self._config
        vocabulary = (config.vocab_size, config.hidden_size)
        yield self._copy("model.word_embeddings.weight", vocabulary, Role.EMBEDDING)
        for layer in range(config.layer_count):
            yield from self._layer(layer)
        yield self._copy("model.norm.weight", (config.hidden_size,), Role.VECTOR)
        yield self._copy("lm_head.weight", vocabulary, Role.HEAD)
        if with_mtp:
            self._group = GROUP_MTP
            yield from self._mtp(config.layer_count)

    def _layer(self, layer: int) -> Iterator[PackageTensor]:
        hidden = self._config.hidden_size
        prefix = f"model.layers.{layer}"
        yield self._copy(f"{prefix}.input_layernorm.weight", (hidden,), Role.VECTOR)
        is_full = layer >= self._config.layer_count or is_full_attention(self._config, layer)
        yield from (self._mla if is_full else self._kda)(f"{prefix}.attention")
        yield self._copy(f"{prefix}.post_attention_layernorm.weight", (hidden,), Role.VECTOR)
        if layer < self._config.dense_layer_count:
            yield from self._feed_forward(f"{prefix}.mlp", self._config.intermediate_size)
        else:
            yield from self._experts(f"{prefix}.mlp")

    def _mtp(self, layer: int) -> Iterator[PackageTensor]:
        hidden = self._config.hidden_size
        prefix = f"model.layers.{layer}"
        yield self._copy(f"{prefix}.enorm.weight", (hidden,), Role.VECTOR)
        yield self._copy(f"{prefix}.hnorm.weight", (hidden,), Role.VECTOR)
        yield self._copy(f"{prefix}.eh_proj.weight", (hidden, 2 * hidden), Role.MTP_PROJECTION)
        yield from self._layer(layer)
        yield self._copy(f"{prefix}.final_layernorm.weight", (hidden,), Role.VECTOR)

    def _kda(self, prefix: str) -> Iterator[PackageTensor]:
        config = self._config
        hidden, heads, taps = config.hidden_size, config.head_count, config.conv_kernel
        width = heads * config.head_dim
        for letter in "qkv":
            yield self._copy(f"{prefix}.{letter}_proj.weight", (width, hidden), Role.LARGE_PROJECTION)
        yield self._copy(f"{prefix}.f_proj.weight", (width, hidden), Role.SMALL_PROJECTION)
        yield self._copy(f"{prefix}.g_proj.weight", (width, hidden), Role.LARGE_PROJECTION)
        yield self._copy(f"{prefix}.b_proj.weight", (heads, hidden), Role.SMALL_PROJECTION)
        taps_of = [SourceTensor(name=f"{prefix}.{letter}_conv1d.weight", shape=(width, 1, taps)) for letter in "qkv"]
        yield PackageTensor(
            name=f"{prefix}.conv1d.weight",
            shape=(taps, 3 * width),
            role=Role.VECTOR,
            group=self._group,
            build=Build.CONVOLUTION,
            sources=tuple(taps_of),
        )
        yield self._copy(f"{prefix}.A_log", (heads,), Role.VECTOR)
        yield self._copy(f"{prefix}.dt_bias", (width,), Role.VECTOR)
        yield self._copy(f"{prefix}.o_norm.weight", (config.head_dim,), Role.VECTOR)
        yield self._copy(f"{prefix}.o_proj.weight", (hidden, width), Role.LARGE_PROJECTION)

    def _mla(self, prefix: str) -> Iterator[PackageTensor]:
        config = self._config
        hidden, heads, latent = config.hidden_size, config.head_count, config.kv_lora_rank
        nope, rope, value = config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim
        is_mtp = self._group == GROUP_MTP
        large = Role.MTP_PROJECTION if is_mtp else Role.LARGE_PROJECTION
        small = Role.MTP_PROJECTION if is_mtp else Role.SMALL_PROJECTION
        queries = heads * (nope + rope)
        if config.q_lora_rank:
            yield self._copy(f"{prefix}.q_a_proj.weight", (config.q_lora_rank, hidden), small)
            yield self._copy(f"{prefix}.q_a_layernorm.weight", (config.q_lora_rank,), Role.VECTOR)
            yield self._copy(f"{prefix}.q_b_proj.weight", (queries, config.q_lora_rank), large)
        else:
            yield self._copy(f"{prefix}.q_proj.weight", (queries, hidden), large)
        yield self._copy(f"{prefix}.kv_a_proj_with_mqa.weight", (latent + rope, hidden), small)
        yield self._copy(f"{prefix}.kv_a_layernorm.weight", (latent,), Role.VECTOR)
        source = SourceTensor(name=f"{prefix}.kv_b_proj.weight", shape=(heads * (nope + value), latent))
        yield PackageTensor(
            name=f"{prefix}.k_b_proj.weight",
            shape=(heads, latent, nope),
            role=Role.LATENT_PROJECTION,
            group=self._group,
            build=Build.KEY_HALF,
            sources=(source,),
        )
        yield PackageTensor(
            name=f"{prefix}.v_b_proj.weight",
            shape=(heads, value, latent),
            role=Role.LATENT_PROJECTION,
            group=self._group,
            build=Build.VALUE_HALF,
            sources=(source,),
        )
        yield self._copy(f"{prefix}.g_proj.weight", (heads, hidden), small)
        yield self._copy(f"{prefix}.dense.weight", (hidden, heads * value), large)

    def _feed_forward(self, prefix: str, inner: int) -> Iterator[PackageTensor]:
        hidden = self._config.hidden_size
        yield self._copy(f"{prefix}.gate_proj.weight", (inner, hidden), Role.FEED_FORWARD)
        yield self._copy(f"{prefix}.up_proj.weight", (inner, hidden), Role.FEED_FORWARD)
        yield self._copy(f"{prefix}.down_proj.weight", (hidden, inner), Role.FEED_FORWARD)

    def _experts(self, prefix: str) -> Iterator[PackageTensor]:
        config = self._config
        hidden, inner, count = config.hidden_size, config.moe_intermediate_size, config.expert_count
        yield self._copy(f"{prefix}.gate.weight", (count, hidden), Role.ROUTER)
        yield self._copy(f"{prefix}.gate.expert_bias", (count,), Role.VECTOR)
        for part, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
            names = [f"{prefix}.experts.{expert}.{part}_proj.weight" for expert in range(count)]
            yield PackageTensor(
                name=f"{prefix}.experts.{part}_proj.weight",
                shape=(count, *shape),
                role=Role.FEED_FORWARD,
                group=self._group,
                build=Build.STACK,
                sources=tuple(SourceTensor(name=name, shape=shape) for name in names),
            )
        yield from self._feed_forward(f"{prefix}.shared_experts", config.shared_intermediate_size)

    def _copy(self, name: str, shape: tuple[int, ...], role: Role) -> PackageTensor:
        source = SourceTensor(name=name, shape=shape)
        return PackageTensor(name=name, shape=shape, role=role, group=self._group, build=Build.COPY, sources=(source,))
