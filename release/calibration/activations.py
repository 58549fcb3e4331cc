"""The model in NumPy, one layer at a time over all windows of text, noting what every matrix is multiplied with.

It follows docs/l3r-format.md for names and shapes and computes in float32. Weights come out of the package a matrix or
an expert at a time, so memory is that of the text's hidden states and of one matrix, whatever the size of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from launcher.engine import Package
from launcher.engine_types import ModelConfig
from release.checkpoint.config import is_full_attention

Array = npt.NDArray[np.float32]
Squares = npt.NDArray[np.float64]

_L2_EPS = 1e-6  # on the sum of squares, not on the mean
_ROUTING_EPS = 1e-20


class Weights:
    """Matrices and vectors of an open package by name, as float32."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self._tensors = {tensor.name: (index, tensor) for index, tensor in enumerate(package.tensors())}

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self._tensors[name][1].shape

    def whole(self, name: str) -> Array:
        """A tensor in its own shape."""
        shape = self.shape(name)
        return self._rows(name, 0, int(np.prod(shape[:-1], dtype=np.int64))).reshape(shape)

    def matrix(self, name: str, index: int) -> Array:
        """One of the matrices of a stack."""
        rows = self.shape(name)[-2]
        return self._rows(name, index * rows, rows)

    def rows(self, name: str, ids: Sequence[int]) -> Array:
        """The rows of these numbers, one each."""
        known = {token: self._rows(name, token, 1)[0] for token in set(ids)}
        return np.stack([known[token] for token in ids])

    def _rows(self, name: str, first: int, count: int) -> Array:
        index, tensor = self._tensors[name]
        values = np.empty((count, tensor.shape[-1]), dtype=np.float32)
        self._package.read_rows(index, first, count, values)
        return values


@dataclass(slots=True)
class _Sum:
    squares: Squares  # [K] or [n, K]
    count: npt.NDArray[np.int64]  # [] or [n]


class Record:
    """Sums of squares of what each matrix was multiplied with."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sum] = {}

    def note(self, name: str, x: Array) -> None:
        """Adds inputs ``[T, K]`` of a matrix, or ``[T, n, K]`` of the n matrices of a stack."""
        squares = np.square(x, dtype=np.float64).sum(axis=0)
        counts = np.full(squares.shape[:-1], len(x), dtype=np.int64)
        known = self._sums.setdefault(name, _Sum(squares=np.zeros_like(squares), count=np.zeros_like(counts)))
        known.squares += squares
        known.count += counts

    def note_one(self, name: str, index: int, count: int, x: Array) -> None:
        """Adds inputs ``[T, K]`` of matrix `index` out of `count`."""
        known = self._sums.setdefault(
            name, _Sum(squares=np.zeros((count, x.shape[1])), count=np.zeros(count, dtype=np.int64))
        )
        known.squares[index] += np.square(x, dtype=np.float64).sum(axis=0)
        known.count[index] += len(x)

    def means(self, name: str, *, prior: int) -> Squares:
        """Mean squares of a matrix, or of each matrix of a stack.

        Matrices that saw few inputs, such as rarely chosen experts, lean on the mean of the stack, which counts as much
        as `prior` inputs.
        """
        known = self._sums[name]
        if known.squares.ndim == 1:
            means: Squares = known.squares / max(1, int(known.count))
            return means
        common = known.squares.sum(axis=0) / max(1, int(known.count.sum()))
        leaning: Squares = (known.squares + prior * common) / (known.count + prior)[:, None]
        return leaning

    def names(self) -> tuple[str, ...]:
        """Every matrix that was noted, sorted."""
        return tuple(sorted(self._sums))


class ActivationRun:
    """Runs windows of token ids through the model.

    Args:
        weights: the package.
        config: its dimensions.
        record: where inputs are noted.
    """

    def __init__(self, weights: Weights, config: ModelConfig, record: Record) -> None:
        self._weights = weights
        self._config = config
        self._record = record

    def run(self, windows: Sequence[Sequence[int]], advance: Callable[[int], None]) -> list[Array]:
        """Hidden states ``[T, H]`` after the final norm of every window; `advance` is called after each layer.

        The MTP layer runs as well where the package has it.
        """
        config = self._config
        streams = [self._weights.rows("model.word_embeddings.weight", ids) for ids in windows]
        for layer in range(config.layer_count):
            streams = self._layer(layer, streams)
            advance(1)
        norm = self._weights.whole("model.norm.weight")
        hidden = [self._norm(x, norm) for x in streams]
        for x in hidden:
            self._record.note("lm_head.weight", x)
        if f"model.layers.{config.layer_count}.eh_proj.weight" in self._weights:
            self._mtp(windows, hidden)
            advance(1)
        return hidden

    def _mtp(self, windows: Sequence[Sequence[int]], hidden: list[Array]) -> None:
        prefix = f"model.layers.{self._config.layer_count}"
        by_embedding = self._weights.whole(f"{prefix}.enorm.weight")
        by_hidden = self._weights.whole(f"{prefix}.hnorm.weight")
        inputs = []
        for ids, x in zip(windows, hidden, strict=True):
            if len(ids) > 1:
                embedded = self._norm(self._weights.rows("model.word_embeddings.weight", ids[1:]), by_embedding)
                inputs.append(np.concatenate([embedded, self._norm(x[:-1], by_hidden)], axis=1))
        streams = self._linear(f"{prefix}.eh_proj.weight", inputs)
        streams = self._layer(self._config.layer_count, streams)
        norm = self._weights.whole(f"{prefix}.final_layernorm.weight")
        for x in streams:
            self._record.note("lm_head.weight", self._norm(x, norm))

    def _layer(self, layer: int, streams: list[Array]) -> list[Array]:
        prefix = f"model.layers.{layer}"
        norm = self._weights.whole(f"{prefix}.input_layernorm.weight")
        normed = [self._norm(x, norm) for x in streams]
        attend = self._mla if is_full_attention(self._config, layer) else self._kda
        streams = [x + y for x, y in zip(streams, attend(f"{prefix}.attention", normed), strict=True)]
        norm = self._weights.whole(f"{prefix}.post_attention_layernorm.weight")
        normed = [self._norm(x, norm) for x in streams]
        is_dense = layer < self._config.dense_layer_count
        feed = self._feed_forward if is_dense else self._mixture
        return [x + y for x, y in zip(streams, feed(f"{prefix}.mlp", normed), strict=True)]

    def _kda(self, prefix: str, inputs: list[Array]) -> list[Array]:
        config = self._config
        parts = {
            letter: self._linear(f"{prefix}.{letter}_proj.weight", inputs) for letter in ("q", "k", "v", "f", "b", "g")
        }
        taps = self._weights.whole(f"{prefix}.conv1d.weight")
        rate = np.exp(self._weights.whole(f"{prefix}.A_log"))[:, None]
        bias = self._weights.whole(f"{prefix}.dt_bias")
        norm = self._weights.whole(f"{prefix}.o_norm.weight")
        outputs = []
        for index, x in enumerate(inputs):
            heads = (len(x), config.head_count, config.head_dim)
            projected = np.concatenate([parts[letter][index] for letter in "qkv"], axis=1)
            padded = np.concatenate([np.zeros((len(taps) - 1, projected.shape[1]), np.float32), projected])
            mixed = np.zeros_like(projected)
            for tap, weight in enumerate(taps):
                mixed += padded[tap : tap + len(x)] * weight
            q, k, v = (part.reshape(heads) for part in np.split(_silu(mixed), 3, axis=1))
            forget = (parts["f"][index] + bias).reshape(heads)
            decay = np.exp(np.float32(config.kda_lower_bound) * _sigmoid(rate * forget))
            beta = _sigmoid(parts["b"][index])
            out = _delta_rule(_unit(q) * np.float32(config.head_dim**-0.5), _unit(k), v, decay, beta)
            gate = _sigmoid(parts["g"][index]).reshape(heads)
            outputs.append((self._norm(out, norm) * gate).reshape(len(x), -1))
        return self._linear(f"{prefix}.o_proj.weight", outputs)

    def _mla(self, prefix: str, inputs: list[Array]) -> list[Array]:
        config = self._config
        if config.q_lora_rank:
            norm = self._weights.whole(f"{prefix}.q_a_layernorm.weight")
            low = [self._norm(x, norm) for x in self._linear(f"{prefix}.q_a_proj.weight", inputs)]
            queries = self._linear(f"{prefix}.q_b_proj.weight", low)
        else:
            queries = self._linear(f"{prefix}.q_proj.weight", inputs)
        latents = self._linear(f"{prefix}.kv_a_proj_with_mqa.weight", inputs)
        gates = self._linear(f"{prefix}.g_proj.weight", inputs)
        norm = self._weights.whole(f"{prefix}.kv_a_layernorm.weight")
        keys = self._weights.whole(f"{prefix}.k_b_proj.weight")  # [heads, latent, nope]
        values = self._weights.whole(f"{prefix}.v_b_proj.weight")  # [heads, value, latent]
        outputs = []
        for flat, new, gate in zip(queries, latents, gates, strict=True):
            count = len(flat)
            q = flat.reshape(count, config.head_count, -1)
            nope = q[..., : config.qk_nope_head_dim]
            angles = self._angles(count)
            latent = self._norm(new[:, : config.kv_lora_rank], norm)
            rope = _rotate(new[:, config.kv_lora_rank :], angles)
            self._record.note(f"{prefix}.k_b_proj.weight", nope)
            absorbed = np.matmul(nope.transpose(1, 0, 2), keys.transpose(0, 2, 1))
            rotary = _rotate(q[..., config.qk_nope_head_dim :], angles[:, None, :]).transpose(1, 0, 2)
            scores = (absorbed @ latent.T + rotary @ rope.T) * np.float32(q.shape[-1] ** -0.5)
            scores[:, np.triu(np.ones((count, count), dtype=bool), 1)] = -np.inf
            mixed = (_softmax(scores) @ latent).transpose(1, 0, 2)
            self._record.note(f"{prefix}.v_b_proj.weight", mixed)
            out = np.matmul(mixed.transpose(1, 0, 2), values.transpose(0, 2, 1)).transpose(1, 0, 2)
            outputs.append((out * _sigmoid(gate)[:, :, None]).reshape(count, -1))
        return self._linear(f"{prefix}.dense.weight", outputs)

    def _angles(self, count: int) -> Array:
        width = self._config.qk_rope_head_dim
        frequencies = self._config.rope_theta ** (-np.arange(0, width, 2) / width)
        return (np.arange(count)[:, None] * frequencies).astype(np.float32)

    def _feed_forward(self, prefix: str, inputs: list[Array]) -> list[Array]:
        gates = self._linear(f"{prefix}.gate_proj.weight", inputs)
        ups = self._linear(f"{prefix}.up_proj.weight", inputs)
        inner = [_silu(gate) * up for gate, up in zip(gates, ups, strict=True)]
        return self._linear(f"{prefix}.down_proj.weight", inner)

    def _mixture(self, prefix: str, inputs: list[Array]) -> list[Array]:
        """Every expert once, over all of its tokens in all windows."""
        config = self._config
        x = np.concatenate(inputs)
        scores = _sigmoid(x @ self._weights.whole(f"{prefix}.gate.weight").T)
        chosen = self._route(scores + self._weights.whole(f"{prefix}.gate.expert_bias"))
        shares = np.take_along_axis(scores, chosen, axis=1)
        if config.norm_topk_prob:
            shares = shares / (shares.sum(axis=1, keepdims=True) + np.float32(_ROUTING_EPS))
        shares = shares * np.float32(config.routed_scaling)
        y = np.concatenate(self._feed_forward(f"{prefix}.shared_experts", inputs))
        names = [f"{prefix}.experts.{part}_proj.weight" for part in ("gate", "up", "down")]
        for expert in range(config.expert_count):
            tokens, ranks = np.nonzero(chosen == expert)
            seen = x[tokens]
            gate, up, down = (self._weights.matrix(name, expert) for name in names)
            inner = _silu(seen @ gate.T) * (seen @ up.T)
            for name, values in zip(names, (seen, seen, inner), strict=True):
                self._record.note_one(name, expert, config.expert_count, values)
            y[tokens] += shares[tokens, ranks, None] * (inner @ down.T)
        return np.split(y, np.cumsum([len(part) for part in inputs])[:-1])

    def _route(self, biased: Array) -> npt.NDArray[np.int64]:
        """The best groups by the sum of their two largest scores, then the best experts within them."""
        config = self._config
        groups = biased.reshape(len(biased), config.expert_group_count, -1)
        strength = np.sort(groups, axis=2)[..., -2:].sum(axis=2)
        best = np.argsort(-strength, axis=1, kind="stable")[:, : config.expert_group_top]
        is_open = np.zeros(strength.shape, dtype=bool)
        np.put_along_axis(is_open, best, True, axis=1)
        allowed = np.where(is_open[:, :, None], groups, -np.inf).reshape(len(biased), -1)
        return np.argsort(-allowed, axis=1, kind="stable")[:, : config.experts_per_token]

    def _linear(self, name: str, inputs: list[Array]) -> list[Array]:
        weight = self._weights.whole(name)
        for x in inputs:
            self._record.note(name, x)
        return [x @ weight.T for x in inputs]

    def _norm(self, x: Array, weight: Array) -> Array:
        root: Array = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.float32(self._config.rms_eps))
        return weight * x / root


def _delta_rule(q: Array, k: Array, v: Array, decay: Array, beta: Array) -> Array:
    """Decay first, then the delta of the decayed memory, then the answer of the updated one; ``[T, heads, dim]``."""
    out = np.empty_like(v)
    memory = np.zeros((q.shape[1], q.shape[2], v.shape[2]), dtype=np.float32)
    for t in range(len(q)):
        memory *= decay[t, :, :, None]
        seen = np.matmul(k[t, :, None, :], memory)[:, 0]
        memory += k[t, :, :, None] * (beta[t, :, None] * (v[t] - seen))[:, None, :]
        out[t] = np.matmul(q[t, :, None, :], memory)[:, 0]
    return out


def _unit(x: Array) -> Array:
    root: Array = np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + np.float32(_L2_EPS))
    return x / root


def _sigmoid(x: Array) -> Array:
    small: Array = np.exp(-np.abs(x))
    above: Array = np.where(x >= 0, np.float32(1), small)
    return above / (1 + small)


def _silu(x: Array) -> Array:
    return x * _sigmoid(x)


def _softmax(x: Array) -> Array:
    shares: Array = np.exp(x - x.max(axis=-1, keepdims=True))
    total: Array = shares.sum(axis=-1, keepdims=True)
    return shares / total


def _rotate(x: Array, angles: Array) -> Array:
    """Rotates the pairs (2j, 2j + 1) of the last axis by angles[..., j]."""
    out = np.empty_like(x)
    even, odd = x[..., 0::2], x[..., 1::2]
    out[..., 0::2] = even * np.cos(angles) - odd * np.sin(angles)
    out[..., 1::2] = even * np.sin(angles) + odd * np.cos(angles)
    return out
