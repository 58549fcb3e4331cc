"""The layers of the Ling-3.0 architecture, for training whole packed rows and for decoding token by token.

Parameter names equal those of the Hugging Face checkpoint, except the routed experts, which are stacked.
All activations are float32. `Layout` tells where documents start in a packed row.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from release.demo.architecture import Architecture
from release.demo.delta_rule import CHUNK, chunked, recurrent

TAPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Positions and document borders of packed rows; documents start on multiples of CHUNK.

    positions: [batch, time], 0 at each document's first token; keep: see `delta_rule.chunked`;
    taps: for each tap of the convolution but the last, 0 where it would reach into an earlier document;
    mask: [batch, 1, time, time], 0 where a token may attend, else -inf.
    """

    positions: Tensor
    keep: Tensor
    taps: tuple[Tensor, ...]
    mask: Tensor

    @classmethod
    def of(cls, positions: Tensor) -> "Layout":
        time = positions.shape[1]
        document = (positions == 0).cumsum(1)
        causal = torch.ones(time, time, dtype=torch.bool).tril()
        visible = (document[:, :, None] == document[:, None]) & causal
        return cls(
            positions=positions.float(),
            keep=(positions[:, ::CHUNK] != 0).float(),
            taps=tuple((positions >= TAPS - 1 - tap).float()[..., None] for tap in range(TAPS - 1)),
            mask=torch.where(visible, 0.0, -torch.inf)[:, None],
        )


@dataclass(slots=True, kw_only=True)
class LayerState:
    """What one layer remembers between tokens; empty at the start of a sequence."""

    length: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)


class Matrix(nn.Module):
    """y = x W^T, initialised with standard deviation gain / sqrt(inputs)."""

    def __init__(self, outputs: int, inputs: int, gain: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * (gain / math.sqrt(inputs)))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)


class Norm(nn.Module):
    """RMSNorm with a weight."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weight, self.epsilon)


class Convolution(nn.Module):
    """Weights of the short causal convolution, [channels, 1, TAPS]; the last tap is the current token."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        weight = torch.empty(channels, 1, TAPS).uniform_(-0.3, 0.3)
        weight[..., -1] += 0.7
        self.weight = nn.Parameter(weight)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


class Kda(nn.Module):
    """Kimi delta attention: short convolutions, unit keys, per-channel decay, gated output."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.heads, self.width, self.floor = a.heads, a.head_width, a.decay_floor
        inner = a.heads * a.head_width
        self.inner = inner
        self.q_proj = Matrix(inner, a.hidden)
        self.k_proj = Matrix(inner, a.hidden)
        self.v_proj = Matrix(inner, a.hidden)
        self.f_proj = Matrix(inner, a.hidden, 0.5)
        self.g_proj = Matrix(inner, a.hidden)
        self.b_proj = Matrix(a.heads, a.hidden)
        self.o_proj = Matrix(a.hidden, inner, 1 / math.sqrt(2 * a.layers))
        self.q_conv1d = Convolution(inner)
        self.k_conv1d = Convolution(inner)
        self.v_conv1d = Convolution(inner)
        self.A_log = nn.Parameter(torch.zeros(a.heads))
        # Initial log decays per token spread evenly, on a logarithmic scale, between -0.001 and -0.5.
        decays = torch.empty(inner).uniform_(math.log(1e-3), math.log(0.5)).exp()
        self.dt_bias = nn.Parameter(torch.logit(decays / -a.decay_floor))
        self.o_norm = Norm(a.head_width, a.epsilon)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All six projections as one product: convolution input, decay, gate, beta."""
        parts = (self.q_proj, self.k_proj, self.v_proj, self.f_proj, self.g_proj, self.b_proj)
        joined = functional.linear(x, torch.cat([part.weight for part in parts]))
        raw, decay, gate, beta = joined.split([3 * self.inner, self.inner, self.inner, self.heads], -1)  # type: ignore[no-untyped-call]
        return raw, decay, gate, beta

    def _taps(self) -> Tensor:
        """[3 * inner, TAPS]"""
        return torch.cat([self.q_conv1d.weight, self.k_conv1d.weight, self.v_conv1d.weight])[:, 0]

    def _prepare(self, mixed: Tensor, decay: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        shape = (*mixed.shape[:-1], self.heads, self.width)
        q, k, v = (part.reshape(shape) for part in functional.silu(mixed).split(self.inner, -1))  # type: ignore[no-untyped-call]
        raw = (decay + self.dt_bias).view(shape)
        log_decay = self.floor * torch.sigmoid(self.A_log.exp()[:, None] * raw)
        return _unit(q) * self.width**-0.5, _unit(k), v, log_decay, torch.sigmoid(beta)

    def _finish(self, out: Tensor, gate: Tensor) -> Tensor:
        gated: Tensor = self.o_norm(out) * torch.sigmoid(gate.reshape(out.shape))
        result: Tensor = self.o_proj(gated.flatten(-2))
        return result

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        time = x.shape[1]
        raw, decay, gate, beta = self._project(x)
        weights = self._taps()
        padded = functional.pad(raw, (0, 0, TAPS - 1, 0))
        mixed = raw * weights[:, -1]
        for tap, reach in enumerate(layout.taps):
            mixed = mixed + padded[:, tap : tap + time] * weights[:, tap] * reach
        return self._finish(chunked(*self._prepare(mixed, decay, beta), layout.keep), gate)

    def step(self, x: Tensor, state: LayerState) -> Tensor:
        """x: [batch, hidden], one token for each sequence."""
        raw, decay, gate, beta = self._project(x)
        kept = state.tensors
        if not kept:
            kept["window"] = x.new_zeros(len(x), TAPS - 1, 3 * self.inner)
            kept["state"] = x.new_zeros(len(x), self.heads, self.width, self.width)
        window = torch.cat([kept["window"], raw[:, None]], 1)
        kept["window"] = window[:, 1:]
        mixed = (window * self._taps().T).sum(1)
        out, kept["state"] = recurrent(*self._prepare(mixed, decay, beta), kept["state"])
        return self._finish(out, gate)


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary position on interleaved pairs (2j, 2j+1)."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1).flatten(-2)


class Mla(nn.Module):
    """Multi-head latent attention with one gate per head."""

    frequencies: Tensor

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.heads, self.nope, self.rope, self.value, self.latent = (
            a.heads,
            a.nope_width,
            a.rope_width,
            a.value_width,
            a.latent_rank,
        )
        self.scale = (a.nope_width + a.rope_width) ** -0.5
        self.q_a_proj = Matrix(a.query_rank, a.hidden)
        self.q_a_layernorm = Norm(a.query_rank, a.epsilon)
        self.q_b_proj = Matrix(a.heads * (a.nope_width + a.rope_width), a.query_rank)
        self.kv_a_proj_with_mqa = Matrix(a.latent_rank + a.rope_width, a.hidden)
        self.kv_a_layernorm = Norm(a.latent_rank, a.epsilon)
        self.kv_b_proj = Matrix(a.heads * (a.nope_width + a.value_width), a.latent_rank)
        self.g_proj = Matrix(a.heads, a.hidden)
        self.dense = Matrix(a.hidden, a.heads * a.value_width, 1 / math.sqrt(2 * a.layers))
        exponents = torch.arange(0, a.rope_width, 2) / a.rope_width
        self.register_buffer("frequencies", a.rope_theta**-exponents, persistent=False)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [..., head, width]; positions has the shape of x without its last axis."""
        lead = x.shape[:-1]
        angles = positions[..., None] * self.frequencies
        cosine, sine = angles.cos(), angles.sin()
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(*lead, self.heads, self.nope + self.rope)
        latent, shared = self.kv_a_proj_with_mqa(x).split([self.latent, self.rope], -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(latent)).view(*lead, self.heads, self.nope + self.value)
        shared = rotate(shared, cosine, sine)[..., None, :].expand(*lead, self.heads, self.rope)
        turned = rotate(q[..., self.nope :], cosine[..., None, :], sine[..., None, :])
        queries = torch.cat([q[..., : self.nope], turned], -1)
        return queries, torch.cat([kv[..., : self.nope], shared], -1), kv[..., self.nope :]

    def finish(self, context: Tensor, x: Tensor) -> Tensor:
        """Gates each head by the layer's input and mixes the heads."""
        result: Tensor = self.dense((context * torch.sigmoid(self.g_proj(x))[..., None]).flatten(-2))
        return result

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in self.project(x, layout.positions))
        scores = (q @ k.transpose(-1, -2)) * self.scale + layout.mask
        return self.finish((scores.softmax(-1) @ v).transpose(1, 2), x)

    def step(self, x: Tensor, state: LayerState) -> Tensor:
        """x: [batch, hidden], one token for each sequence."""
        positions = x.new_full((len(x),), float(state.length))
        q, k, v = self.project(x, positions)
        kept = state.tensors
        kept["k"] = torch.cat([kept["k"], k[:, None]], 1) if kept else k[:, None]
        kept["v"] = torch.cat([kept["v"], v[:, None]], 1) if state.length else v[:, None]
        state.length += 1
        weights = (torch.einsum("bhd,bthd->bht", q, kept["k"]) * self.scale).softmax(-1)
        return self.finish(torch.einsum("bht,bthd->bhd", weights, kept["v"]), x)


class FeedForward(nn.Module):
    """down(silu(gate x) * up x)."""

    def __init__(self, hidden: int, inner: int, layers: int) -> None:
        super().__init__()
        self.gate_proj = Matrix(inner, hidden)
        self.up_proj = Matrix(inner, hidden)
        self.down_proj = Matrix(hidden, inner, 1 / math.sqrt(2 * layers))

    def forward(self, x: Tensor) -> Tensor:
        both = functional.linear(x, torch.cat([self.gate_proj.weight, self.up_proj.weight]))
        gate, up = both.chunk(2, -1)
        result: Tensor = self.down_proj(functional.silu(gate) * up)
        return result


class Experts(nn.Module):
    """Mixture of experts: sigmoid scores, group-limited choice by biased scores, one shared expert.

    `expert_bias` is not learnt by gradient: the trainer nudges it so that all experts get work (loss-free balancing,
    Wang et al. 2024). `load` counts the tokens per expert since the trainer last emptied it.
    """

    expert_bias: Tensor
    load: Tensor

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.count, self.groups, self.kept = a.experts, a.expert_groups, a.groups_kept
        self.chosen, self.scale = a.experts_per_token, a.routed_scale
        self.gate = Matrix(a.experts, a.hidden)
        self.register_buffer("expert_bias", torch.zeros(a.experts))
        self.register_buffer("load", torch.zeros(a.experts), persistent=False)
        self.gate_up = nn.Parameter(torch.randn(a.experts, 2 * a.expert_inner, a.hidden) / math.sqrt(a.hidden))
        deviation = 2 / (a.routed_scale * math.sqrt(2 * a.layers * a.expert_inner))
        self.down = nn.Parameter(torch.randn(a.experts, a.hidden, a.expert_inner) * deviation)
        self.shared_experts = FeedForward(a.hidden, a.expert_inner, a.layers)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Chosen experts and their weights, both [tokens, chosen]."""
        scores = torch.sigmoid(self.gate(x))
        ranked = (scores + self.expert_bias).detach().view(len(x), self.groups, -1)
        best = ranked.topk(2, -1).values.sum(-1).topk(self.kept, -1).indices
        index = best[..., None].expand(-1, -1, ranked.shape[-1])
        masked = torch.full_like(ranked, -torch.inf).scatter(1, index, ranked.gather(1, index))
        experts = masked.flatten(1).topk(self.chosen, -1).indices
        weights = scores.gather(1, experts)
        return experts, weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.scale

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        experts, weights = self.route(flat)
        order = experts.flatten().argsort(stable=True)
        counts = torch.bincount(experts.flatten(), minlength=self.count)
        if self.training:
            self.load += counts
        token = order // self.chosen
        share = weights.flatten().index_select(0, order)[:, None]
        shares_of_rows = flat.index_select(0, token).split(counts.tolist())  # type: ignore[no-untyped-call]
        parts = []
        # unbind, not indexing: the gradient of an index is a whole stack of zeros for each expert.
        for rows, gate_up, down in zip(shares_of_rows, self.gate_up.unbind(), self.down.unbind(), strict=True):
            if len(rows):
                gate, up = (rows @ gate_up.T).chunk(2, -1)
                parts.append((functional.silu(gate) * up) @ down.T)
        mixed: Tensor = self.shared_experts(flat).index_add(0, token, torch.cat(parts) * share)
        return mixed.view(x.shape)
