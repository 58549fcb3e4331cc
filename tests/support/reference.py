"""The architecture of Ling-3.0 in NumPy and float64, MTP layer included: what the engine is measured against.

It follows the description of the model, not the engine: no tiles, no kernels, every sum in float64. Attention runs in
latent space, which float64 cannot tell from expanded heads, because that is where a quantised engine rounds its
activations. `integer` names the matrices whose inputs are rounded as the engine rounds them (int8 in groups of 32 with
the scale largest magnitude / 127, ties to even).

Weights are named and shaped as in a checkpoint; `checkpoint_weights` and `package_weights` read both ends of the chain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from launcher.engine import Package
from launcher.engine_types import Dtype
from tests.support.dimensions import Dimensions

Array = npt.NDArray[np.float64]
Floats = npt.NDArray[Any]
Ids = npt.NDArray[np.int64]
Rounding = Callable[[Array], Array]

GROUP = 32
L2_EPS = 1e-6  # on the sum of squares, not on the mean
ROUTING_EPS = 1e-20


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Results for T tokens.

    Attributes:
        hidden: [T, H] after the final norm.
        logits: [T, vocabulary].
        routing: [MoE layers, T, experts per token], the chosen experts in falling order of their biased score.
    """

    hidden: Array
    logits: Array
    routing: Ids


@dataclass(slots=True)
class _KdaState:
    window: Array  # [taps - 1, 3 P]
    memory: Array  # [heads, key, value]


@dataclass(slots=True)
class _State:
    position: int = 0
    kda: dict[int, _KdaState] = field(default_factory=dict)
    cache: dict[int, Array] = field(default_factory=dict)


class Reference:
    """One timeline of tokens; `forward` and `mtp` continue it."""

    def __init__(
        self,
        dimensions: Dimensions,
        weights: Mapping[str, Floats],
        *,
        integer: frozenset[str] = frozenset(),
        cache_rounding: Rounding | None = None,
    ) -> None:
        """Takes weights by checkpoint name; `integer` holds package names; `cache_rounding` acts on MLA cache rows."""
        self._dim = dimensions
        self._weights = weights
        self._integer = integer
        self._cache_rounding = cache_rounding
        self._trunk = _State()
        self._draft = _State()
        self._routing: list[Ids] = []

    def forward(self, ids: Sequence[int], routing: Ids | None = None) -> Output:
        """The trunk over the next tokens; `routing` (as in `Output`) replaces the router's choice."""
        x = self._vector("model.word_embeddings.weight", ids)
        self._routing = []
        moe = 0
        for layer in range(self._dim.layers):
            is_moe = layer >= self._dim.dense_layers
            x = self._block(layer, x, self._trunk, None if routing is None or not is_moe else routing[moe])
            moe += is_moe
        self._trunk.position += len(ids)
        return self._output(rms_norm(x, self._vector("model.norm.weight"), self._dim.eps))

    def mtp(self, hidden: Floats, next_ids: Sequence[int], routing: Ids | None = None) -> Output:
        """The MTP layer over the next positions: trunk `hidden` [T, H] there, and the token after each."""
        prefix = f"model.layers.{self._dim.layers}"
        eps = self._dim.eps
        embedded = self._vector("model.word_embeddings.weight", next_ids)
        embedded = rms_norm(embedded, self._vector(f"{prefix}.enorm.weight"), eps)
        seen = rms_norm(np.asarray(hidden, dtype=np.float64), self._vector(f"{prefix}.hnorm.weight"), eps)
        x = self._linear(f"{prefix}.eh_proj.weight", np.concatenate([embedded, seen], axis=1))
        self._routing = []
        x = self._block(self._dim.layers, x, self._draft, None if routing is None else routing[0])
        self._draft.position += len(next_ids)
        return self._output(rms_norm(x, self._vector(f"{prefix}.final_layernorm.weight"), eps))

    def _output(self, hidden: Array) -> Output:
        empty = np.zeros((0, len(hidden), self._dim.experts_per_token), dtype=np.int64)
        routing = np.stack(self._routing) if self._routing else empty
        return Output(hidden=hidden, logits=self._linear("lm_head.weight", hidden), routing=routing)

    def _block(self, layer: int, x: Array, state: _State, forced: Ids | None) -> Array:
        prefix = f"model.layers.{layer}"
        normed = rms_norm(x, self._vector(f"{prefix}.input_layernorm.weight"), self._dim.eps)
        attend = self._mla if self._dim.is_full_attention(layer) else self._kda
        x = x + attend(layer, normed, state)
        normed = rms_norm(x, self._vector(f"{prefix}.post_attention_layernorm.weight"), self._dim.eps)
        if layer < self._dim.dense_layers:
            return x + self._feed_forward(f"{prefix}.mlp", normed)
        return x + self._mixture(f"{prefix}.mlp", normed, forced)

    # -- attention --

    def _kda(self, layer: int, x: Array, state: _State) -> Array:
        dim = self._dim
        prefix = f"model.layers.{layer}.attention"
        count, width = len(x), dim.heads * dim.head_dim
        kept = state.kda.setdefault(
            layer,
            _KdaState(
                window=np.zeros((dim.conv_taps - 1, 3 * width)),
                memory=np.zeros((dim.heads, dim.head_dim, dim.head_dim)),
            ),
        )
        projected = np.concatenate([self._linear(f"{prefix}.{letter}_proj.weight", x) for letter in "qkv"], axis=1)
        window = np.concatenate([kept.window, projected])
        kept.window = window[count:]
        taps = np.concatenate([self._vector(f"{prefix}.{letter}_conv1d.weight")[:, 0, :] for letter in "qkv"])
        mixed = silu(sum(window[tap : tap + count] * taps[:, tap] for tap in range(dim.conv_taps)))
        q, k, v = (part.reshape(count, dim.heads, dim.head_dim) for part in np.split(mixed, 3, axis=1))
        q = l2_norm(q) * dim.head_dim**-0.5
        k = l2_norm(k)
        rate = np.exp(self._vector(f"{prefix}.A_log"))[:, None]
        forget = (self._linear(f"{prefix}.f_proj.weight", x) + self._vector(f"{prefix}.dt_bias")).reshape(q.shape)
        decay = np.exp(dim.lower_bound * sigmoid(rate * forget))
        beta = sigmoid(self._linear(f"{prefix}.b_proj.weight", x))
        out = np.empty_like(v)
        memory = kept.memory
        for t in range(count):
            memory = memory * decay[t, :, :, None]
            seen = np.matmul(k[t, :, None, :], memory)[:, 0]
            memory = memory + k[t, :, :, None] * (beta[t, :, None] * (v[t] - seen))[:, None, :]
            out[t] = np.matmul(q[t, :, None, :], memory)[:, 0]
        kept.memory = memory
        gate = sigmoid(self._linear(f"{prefix}.g_proj.weight", x)).reshape(out.shape)
        out = rms_norm(out, self._vector(f"{prefix}.o_norm.weight"), dim.eps) * gate
        return self._linear(f"{prefix}.o_proj.weight", out.reshape(count, width))

    def _mla(self, layer: int, x: Array, state: _State) -> Array:
        dim = self._dim
        prefix = f"model.layers.{layer}.attention"
        count = len(x)
        angles = self._angles(state.position, count)
        if dim.q_lora:
            low = self._linear(f"{prefix}.q_a_proj.weight", x)
            low = rms_norm(low, self._vector(f"{prefix}.q_a_layernorm.weight"), dim.eps)
            q = self._linear(f"{prefix}.q_b_proj.weight", low)
        else:
            q = self._linear(f"{prefix}.q_proj.weight", x)
        q = q.reshape(count, dim.heads, dim.nope + dim.rope)
        new = self._linear(f"{prefix}.kv_a_proj_with_mqa.weight", x)
        latent = rms_norm(new[:, : dim.kv_lora], self._vector(f"{prefix}.kv_a_layernorm.weight"), dim.eps)
        new = np.concatenate([latent, rotate(new[:, dim.kv_lora :], angles)], axis=1)
        if self._cache_rounding is not None:
            new = self._cache_rounding(new)
        cache = np.concatenate([state.cache.get(layer, np.zeros((0, new.shape[1]))), new])
        state.cache[layer] = cache

        halves = self._vector(f"{prefix}.kv_b_proj.weight").reshape(dim.heads, dim.nope + dim.value, dim.kv_lora)
        keys, values = halves[:, : dim.nope], halves[:, dim.nope :]
        q_nope = self._rounded(f"{prefix}.k_b_proj.weight", q[..., : dim.nope])
        absorbed = np.einsum("thn,hnl->htl", q_nope, keys, optimize=True)
        rotary = rotate(q[..., dim.nope :], angles[:, None, :]).transpose(1, 0, 2)
        scores = np.concatenate([absorbed, rotary], axis=2) @ cache.T * (dim.nope + dim.rope) ** -0.5
        rows = len(cache) - count + np.arange(count)
        hidden_from = np.arange(len(cache))[None, :] > rows[:, None]
        scores[:, hidden_from] = -np.inf
        mixed = softmax(scores) @ cache[:, : dim.kv_lora]
        mixed = self._rounded(f"{prefix}.v_b_proj.weight", mixed)
        out = np.einsum("htl,hvl->thv", mixed, values, optimize=True)
        out = out * sigmoid(self._linear(f"{prefix}.g_proj.weight", x))[:, :, None]
        return self._linear(f"{prefix}.dense.weight", out.reshape(count, dim.heads * dim.value))

    def _angles(self, position: int, count: int) -> Array:
        frequencies = self._dim.rope_theta ** (-np.arange(0, self._dim.rope, 2) / self._dim.rope)
        return (position + np.arange(count))[:, None] * frequencies

    # -- feed-forward --

    def _feed_forward(self, prefix: str, x: Array) -> Array:
        gate = self._linear(f"{prefix}.gate_proj.weight", x)
        return self._linear(f"{prefix}.down_proj.weight", silu(gate) * self._linear(f"{prefix}.up_proj.weight", x))

    def _mixture(self, prefix: str, x: Array, forced: Ids | None) -> Array:
        dim = self._dim
        scores = sigmoid(self._linear(f"{prefix}.gate.weight", x))
        chosen = self._route(scores + self._vector(f"{prefix}.gate.expert_bias")) if forced is None else forced
        self._routing.append(chosen)
        weights = np.take_along_axis(scores, chosen, axis=1)
        if dim.normalise_weights:
            weights = weights / (weights.sum(axis=1, keepdims=True) + ROUTING_EPS)
        weights = weights * dim.routed_scaling
        y = self._feed_forward(f"{prefix}.shared_experts", x)
        for expert in np.unique(chosen):
            tokens, ranks = np.nonzero(chosen == expert)
            y[tokens] += weights[tokens, ranks, None] * self._feed_forward(f"{prefix}.experts.{expert}", x[tokens])
        return y

    def _route(self, biased: Array) -> Ids:
        """The best groups by the sum of their two largest scores, then the best experts within them."""
        dim = self._dim
        count = len(biased)
        groups = biased.reshape(count, dim.expert_groups, -1)
        strength = np.sort(groups, axis=2)[..., -2:].sum(axis=2)
        best = np.argsort(-strength, axis=1, kind="stable")[:, : dim.top_groups]
        open_groups = np.zeros(strength.shape, dtype=bool)
        np.put_along_axis(open_groups, best, True, axis=1)
        allowed = np.where(open_groups[:, :, None], groups, -np.inf).reshape(count, -1)
        return np.argsort(-allowed, axis=1, kind="stable")[:, : dim.experts_per_token]

    # -- weights --

    def _vector(self, name: str, rows: Sequence[int] | None = None) -> Array:
        values = self._weights[name]
        return np.asarray(values if rows is None else values[np.asarray(rows)], dtype=np.float64)

    def _linear(self, name: str, x: Array) -> Array:
        return self._rounded(name, x) @ self._vector(name).T

    def _rounded(self, name: str, x: Array) -> Array:
        stacked = re.sub(r"\.experts\.\d+\.", ".experts.", name)
        return round_activations(x) if stacked in self._integer else x


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """weight x / sqrt(mean(x^2) + eps) over the last axis."""
    root: Array = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return weight * x / root


def l2_norm(x: Array) -> Array:
    """x / sqrt(sum(x^2) + eps) over the last axis."""
    root: Array = np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + L2_EPS)
    return x / root


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x) without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def silu(x: Array) -> Array:
    """x sigmoid(x)."""
    return x * sigmoid(x)


def softmax(x: Array) -> Array:
    """Over the last axis."""
    e: Array = np.exp(x - x.max(axis=-1, keepdims=True))
    total: Array = e.sum(axis=-1, keepdims=True)
    return e / total


def rotate(x: Array, angles: Array) -> Array:
    """Rotates the pairs (2j, 2j + 1) of the last axis by angles[..., j]."""
    out = np.empty_like(x)
    even, odd = x[..., 0::2], x[..., 1::2]
    out[..., 0::2] = even * np.cos(angles) - odd * np.sin(angles)
    out[..., 1::2] = even * np.sin(angles) + odd * np.cos(angles)
    return out


def round_activations(x: Array) -> Array:
    """The values that int8 activations stand for: groups of 32 along the last axis, scale amax / 127, ties to even."""
    groups = x.reshape(*x.shape[:-1], -1, GROUP)
    top = np.abs(groups).max(axis=-1, keepdims=True)
    step = np.where(top > 0, top / 127.0, 1.0)
    return (np.rint(groups / step) * step).reshape(x.shape)


def round_to_bfloat16(x: Array) -> Array:
    """Nearest bfloat16 of the nearest float32, ties to even."""
    bits = np.asarray(x, dtype=np.float32).view(np.uint32).astype(np.uint64)
    kept = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32)
    return kept.view(np.float32).astype(np.float64)


def round_to_float16(x: Array) -> Array:
    """Nearest float16 of the nearest float32, ties to even."""
    with np.errstate(over="ignore"):  # becomes infinity
        return np.asarray(x, dtype=np.float32).astype(np.float16).astype(np.float64)


def mean_kl(expected: Floats, actual: Floats) -> float:
    """Mean over the rows of KL(softmax(expected) || softmax(actual)), nats."""
    log_p = _log_softmax(np.asarray(expected, dtype=np.float64))
    log_q = _log_softmax(np.asarray(actual, dtype=np.float64))
    return float(np.mean(np.sum(np.exp(log_p) * (log_p - log_q), axis=1)))


def _log_softmax(x: Array) -> Array:
    x = x - x.max(axis=1, keepdims=True)
    result: Array = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
    return result


def checkpoint_weights(folder: Path) -> dict[str, Floats]:
    """All tensors of a float32 or float16 checkpoint, by name."""
    weights: dict[str, Floats] = {}
    for path in sorted(folder.glob("*.safetensors")):
        weights.update(load_file(path))
    return weights


def package_weights(package: Package) -> tuple[dict[str, Floats], frozenset[str]]:
    """Dequantised tensors under their checkpoint names, and the package names of those stored as integers."""
    weights: dict[str, Floats] = {}
    integer = set()
    for index, tensor in enumerate(package.tensors()):
        values = np.empty((int(np.prod(tensor.shape[:-1])), tensor.shape[-1]), dtype=np.float32)
        package.read_rows(index, 0, len(values), values)
        weights[tensor.name] = values.reshape(tensor.shape)
        if tensor.dtype in (Dtype.Q8X8, Dtype.Q4X8):
            integer.add(tensor.name)
    for name in list(weights):
        prefix, _, last = name.removesuffix(".weight").rpartition(".")
        if last == "conv1d":  # [taps, q | k | v] -> three [P, 1, taps]
            for letter, part in zip("qkv", np.split(weights.pop(name), 3, axis=1), strict=True):
                weights[f"{prefix}.{letter}_conv1d.weight"] = part.T[:, None, :]
        elif last == "k_b_proj":  # [heads, latent, nope] and [heads, value, latent] -> [heads (nope + value), latent]
            halves = [weights.pop(name).transpose(0, 2, 1), weights.pop(f"{prefix}.v_b_proj.weight")]
            joined = np.concatenate(halves, axis=1)
            weights[f"{prefix}.kv_b_proj.weight"] = joined.reshape(-1, joined.shape[-1])
        elif prefix.endswith(".experts"):
            for expert, matrix in enumerate(weights.pop(name)):
                weights[f"{prefix}.{expert}.{last}.weight"] = matrix
    return weights, frozenset(integer)
