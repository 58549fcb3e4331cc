"""The gated delta rule of KDA: token by token, as it is defined, and in chunks, as it is trained.

Per head there is a state S of shape [key, value]. Each token does, in this order (a = exp(log_decay) per key channel):

    S <- diag(a) S;    u = beta (v - S^T k);    S <- S + k u^T;    o = S^T q

Within a chunk the tokens' corrections u depend on each other through a strictly lower triangular matrix L, so they
come from (I + L)^-1; between chunks only S is carried. This is the WY form of the delta rule (Yang et al.,
"Parallelizing Linear Transformers with the Delta Rule over Sequence Length", 2024), here with a decay per channel
(Kimi Linear, 2025).
"""

from typing import Final

import torch
from torch import Tensor

CHUNK: Final = 16
"""Tokens per chunk. With log_decay > -5 the decay within a chunk stays above e^-80; centred at half of it, every factor
lies within e^+-40, which float32 holds."""


def recurrent(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One token for each sequence.

    q, k, v, log_decay: [batch, head, width]; beta: [batch, head]; state: [batch, head, key, value].
    Returns the output [batch, head, width] and the new state.
    """
    state = state * log_decay.exp()[..., None]
    correction = beta[..., None] * (v - torch.einsum("bhkv,bhk->bhv", state, k))
    state = state + k[..., None] * correction[..., None, :]
    return torch.einsum("bhkv,bhk->bhv", state, q), state


def chunked(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, keep: Tensor) -> Tensor:
    """All tokens of each sequence, from an empty state.

    q, k, v, log_decay: [batch, time, head, width]; beta: [batch, time, head]; keep: [batch, chunk], 0 where a document
    starts with that chunk (the state is emptied there), else 1. `time` is a multiple of CHUNK.
    Returns [batch, time, head, width].
    """
    batch, time, heads, width = q.shape
    count = time // CHUNK

    def split(x: Tensor) -> Tensor:  # -> [batch, head, chunk, CHUNK, width]
        return x.view(batch, count, CHUNK, heads, -1).permute(0, 3, 1, 2, 4)

    q, k, v, log_decay, beta = (split(x) for x in (q, k, v, log_decay, beta))
    total = log_decay.cumsum(-2)
    last = total[..., -1:, :]
    middle = last * 0.5
    down = (total - middle).exp()
    up = (middle - total).exp()
    decay = total.exp()
    keys_up = (k * up).transpose(-1, -2)
    between = ((k * down) @ keys_up).tril(-1) * beta  # L
    seen = ((q * down) @ keys_up).tril()
    inverse = _inverse_of_one_plus(between)
    fresh = inverse @ (beta * v)  # u for an empty S
    through = inverse @ (beta * (k * decay))  # how S at the chunk's start reduces u
    carried_keys = (k * (last - total).exp()).transpose(-1, -2)
    carried_decay = last.exp().transpose(-1, -2)
    read_fresh = seen @ fresh
    read_state = q * decay - seen @ through
    gained = carried_keys @ fresh
    state = q.new_zeros(batch, heads, width, width)
    gates = keep.view(batch, 1, count, 1, 1)
    states = []
    parts = (x.unbind(2) for x in (gates, carried_decay, gained, carried_keys, through))
    for gate, decay_of, gained_by, keys_of, through_of in zip(*parts, strict=True):
        state = state * gate
        states.append(state)
        state = decay_of * state + gained_by - keys_of @ (through_of @ state)
    out = read_fresh + read_state @ torch.stack(states, 2)
    return out.permute(0, 2, 3, 1, 4).reshape(batch, time, heads, width)


def _inverse_of_one_plus(lower: Tensor) -> Tensor:
    """(I + L)^-1 for strictly lower triangular L of side 16: (I - L)(I + L^2)(I + L^4)(I + L^8), exact as L^16 = 0."""
    power = -lower
    inverse = torch.eye(CHUNK, dtype=lower.dtype, device=lower.device) + power
    for _ in range(3):
        power = power @ power
        inverse = inverse + inverse @ power
    return inverse
