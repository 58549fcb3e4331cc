"""How well the MTP layer drafts: what share of its guesses the trunk would have accepted, one to three tokens ahead.

Greedy speculation accepts a draft exactly when it equals the token that the model itself puts there. So the model's own
greedy text tells it all, and every place of the text is tried at once. For a place t, with the token t+1 known:
the first draft is for t+2 and uses the trunk's hidden state at t; each further draft uses the MTP layer's own output
and the draft before it, and attends to the MTP cache of the true text up to t plus the drafts' own entries.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from release.demo.layers import Layout, Mla
from release.demo.model import Ling

DEPTH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Places tried and drafts accepted: `accepted[d]` counts the places where the first d + 1 drafts are all right."""

    places: int
    accepted: tuple[int, ...]

    def __add__(self, other: "Acceptance") -> "Acceptance":
        sums = tuple(a + b for a, b in zip(self.accepted, other.accepted, strict=True))
        return Acceptance(places=self.places + other.places, accepted=sums)

    def shares(self) -> list[float]:
        """Share of places with the first 1, 2, 3 drafts right."""
        return [count / self.places for count in self.accepted]


NOTHING = Acceptance(places=0, accepted=(0,) * DEPTH)


@torch.no_grad()
def acceptance(model: Ling, prompt: Sequence[int], made: Sequence[int]) -> Acceptance:
    """Drafts along one greedy text; `made` are the generated tokens with the stop token at their end.

    A place counts when its first draft is for a generated token beyond the first; drafts beyond the end count as wrong
    nowhere: a place counts for depth d + 1 only through the depths that the text still holds.
    """
    ids = [*prompt, *made]
    first_place = len(prompt) - 1
    places = range(first_place, len(ids) - 2)
    if not places:
        return NOTHING
    drafts = _drafts(model, ids)
    accepted = [0] * DEPTH
    for place in places:
        for depth in range(DEPTH):
            wanted = place + 2 + depth
            # Past the stop token nothing is needed: speculation ends there, and the draft is neither used nor wrong.
            if wanted < len(ids) and int(drafts[depth, place]) != ids[wanted]:
                break
            accepted[depth] += 1
    return Acceptance(places=len(places), accepted=tuple(accepted))


def _drafts(model: Ling, ids: Sequence[int]) -> Tensor:
    """[DEPTH, time - 1]: at (d, t), the greedy draft for the token t + 2 + d."""
    time = len(ids) - 1
    padded = [*ids, *[0] * (-len(ids) % 16)]
    layout = Layout.of(torch.arange(len(padded))[None])
    hidden = model.trunk(torch.tensor([padded]), layout)[0, :time]
    block = model.prediction
    attention = block.attention
    assert isinstance(attention, Mla)
    visible = torch.full((time, time), -torch.inf).triu(1)
    positions = torch.arange(time, dtype=torch.float32)
    following = torch.tensor(ids[1:])
    true_keys: Tensor | None = None
    true_values: Tensor | None = None
    own_keys: list[Tensor] = []
    own_values: list[Tensor] = []
    drafts = []
    for depth in range(DEPTH):
        x = block.join(hidden, model.word_embeddings(following))
        normed = block.input_layernorm(x)
        q, k, v = attention.project(normed, positions + depth)  # [time, head, width]
        if true_keys is None or true_values is None:
            true_keys, true_values = k, v
        else:
            own_keys.append(k)
            own_values.append(v)
        scores = torch.einsum("thd,shd->hts", q, true_keys) * attention.scale + visible
        if own_keys:
            own = torch.stack([(q * key).sum(-1) for key in own_keys], -1) * attention.scale  # [time, head, drafts]
            scores = torch.cat([scores, own.transpose(0, 1)], -1)
        weights = scores.softmax(-1)
        context = torch.einsum("hts,shd->thd", weights[..., :time], true_values)
        for index, value in enumerate(own_values):
            context = context + weights[..., time + index].T[..., None] * value
        x = x + attention.finish(context, normed)
        x = x + block.mlp(block.post_attention_layernorm(x))
        hidden = block.final_layernorm(x)
        following = model.logits(hidden).argmax(-1)
        drafts.append(following)
    return torch.stack(drafts)
