"""The whole model: embedding, blocks, head, and the layer that predicts one token further (MTP)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from release.demo.architecture import Architecture
from release.demo.layers import Experts, FeedForward, Kda, LayerState, Layout, Matrix, Mla, Norm


class Embedding(nn.Module):
    """A plain table, [vocabulary, hidden]."""

    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocabulary, hidden) * 0.05)

    def forward(self, ids: Tensor) -> Tensor:
        return functional.embedding(ids, self.weight)


class Block(nn.Module):
    """x + attention(norm x), then x + feed-forward(norm x)."""

    def __init__(self, a: Architecture, index: int) -> None:
        super().__init__()
        self.input_layernorm = Norm(a.hidden, a.epsilon)
        self.post_attention_layernorm = Norm(a.hidden, a.epsilon)
        self.attention: Mla | Kda = Mla(a) if a.attends(index) else Kda(a)
        dense = index < a.dense_layers
        self.mlp: FeedForward | Experts = FeedForward(a.hidden, a.dense_inner, a.layers) if dense else Experts(a)

    def forward(self, x: Tensor, layout: Layout) -> Tensor:
        x = x + self.attention(self.input_layernorm(x), layout)
        result: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return result

    def step(self, x: Tensor, state: LayerState) -> Tensor:
        x = x + self.attention.step(self.input_layernorm(x), state)
        result: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return result


class PredictionBlock(Block):
    """The MTP layer: from the trunk's hidden state at t and the token at t+1 to the hidden state that gives t+2."""

    def __init__(self, a: Architecture) -> None:
        super().__init__(a, a.layers)
        self.enorm = Norm(a.hidden, a.epsilon)
        self.hnorm = Norm(a.hidden, a.epsilon)
        self.final_layernorm = Norm(a.hidden, a.epsilon)
        self.eh_proj = Matrix(a.hidden, 2 * a.hidden)

    def join(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """The block's input; the embedding comes first."""
        result: Tensor = self.eh_proj(torch.cat([self.enorm(embedded), self.hnorm(hidden)], -1))
        return result


class Ling(nn.Module):
    """A model of the Ling-3.0 architecture with one MTP layer, as the last entry of `layers`."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        a = architecture
        self.architecture = a
        self.word_embeddings = Embedding(a.vocabulary, a.hidden)
        self.lm_head = Matrix(a.vocabulary, a.hidden, 0.5)
        self.norm = Norm(a.hidden, a.epsilon)
        blocks: list[Block] = [Block(a, index) for index in range(a.layers)]
        self.layers = nn.ModuleList([*blocks, PredictionBlock(a)])

    @property
    def prediction(self) -> PredictionBlock:
        """The MTP layer."""
        block = self.layers[-1]
        assert isinstance(block, PredictionBlock)
        return block

    def trunk(self, ids: Tensor, layout: Layout) -> Tensor:
        """Hidden states after the final norm, [batch, time, hidden], of ids [batch, time]."""
        x: Tensor = self.word_embeddings(ids)
        for block in self.layers[:-1]:
            x = block(x, layout)
        result: Tensor = self.norm(x)
        return result

    def predict(self, hidden: Tensor, following: Tensor, layout: Layout) -> Tensor:
        """Hidden states for the token after `following` ([batch, time], the tokens one further than `hidden`'s)."""
        block = self.prediction
        x = block(block.join(hidden, self.word_embeddings(following)), layout)
        result: Tensor = block.final_layernorm(x)
        return result

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., vocabulary]"""
        result: Tensor = self.lm_head(hidden)
        return result

    def new_states(self) -> list[LayerState]:
        """Empty memories of all trunk layers."""
        return [LayerState() for _ in range(self.architecture.layers)]

    def step(self, ids: Tensor, states: list[LayerState]) -> Tensor:
        """Logits [batch, vocabulary] after one more token, ids [batch], for each sequence."""
        x: Tensor = self.word_embeddings(ids)
        for block, state in zip(self.layers[:-1], states, strict=True):
            assert isinstance(block, Block)
            x = block.step(x, state)
        return self.logits(self.norm(x))
