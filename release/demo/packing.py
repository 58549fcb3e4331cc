"""Packs tokenised conversations into rows: no padding between them beyond the chunk border each one starts on."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from release.demo.conversation import Conversation, draw_conversation, segments
from release.demo.delta_rule import CHUNK


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Token ids of one conversation, and for each its weight in the loss: 0 for what the model is given.

    Within an answer of n tokens each weighs 1 / sqrt(n), so that short answers are not drowned by long ones.
    """

    ids: list[int]
    weights: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """ids, positions: [rows, time], int64; weights: [rows, time]; `tokens`: how many are not padding."""

    ids: Tensor
    positions: Tensor
    weights: Tensor
    tokens: int


def tokenise(tokenizer: Tokenizer, conversation: Conversation) -> Document:
    """Tokenises a conversation piece by piece, which equals the whole because pieces end at special tokens."""
    pieces = segments(conversation)
    encoded = tokenizer.encode_batch_fast([piece.text for piece in pieces], add_special_tokens=False)
    ids: list[int] = []
    weights: list[float] = []
    for piece, encoding in zip(pieces, encoded, strict=True):
        ids.extend(encoding.ids)
        length = len(encoding.ids)
        weights.extend([length**-0.5 if piece.answer else 0.0] * length)
    return Document(ids=ids, weights=weights)


class Packer:
    """An endless source of batches; its state is the random generator and the documents that did not fit yet."""

    def __init__(self, tokenizer: Tokenizer, *, rows: int, time: int, padding: int, seed: int) -> None:
        self.tokenizer = tokenizer
        self.rows = rows
        self.time = time
        self.padding = padding
        self.rng = random.Random(seed)
        self.waiting: list[Document] = []

    def restore(self, waiting: Iterable[tuple[list[int], list[float]]]) -> None:
        """Puts back the documents that waited when a run was saved."""
        self.waiting = [Document(ids=ids, weights=weights) for ids, weights in waiting]

    def batch(self, mix: Mapping[str, float], lesson: int) -> Batch:
        """Fills every row first-fit until six documents in a row found no place; those begin the next batch."""
        ids = torch.full((self.rows, self.time), self.padding)
        weights = torch.zeros(self.rows, self.time)
        positions = torch.arange(self.time).repeat(self.rows, 1)
        used = [0] * self.rows
        tokens = 0
        queue, self.waiting = self.waiting, []
        while len(self.waiting) < 6:
            document = (
                queue.pop(0) if queue else tokenise(self.tokenizer, draw_conversation(self.rng, mix, lesson=lesson))
            )
            length = len(document.ids)
            if length > self.time:
                continue
            row = next((index for index in range(self.rows) if used[index] + length <= self.time), None)
            if row is None:
                self.waiting.append(document)
                continue
            start = used[row]
            ids[row, start : start + length] = torch.tensor(document.ids)
            weights[row, start : start + length] = torch.tensor(document.weights)
            positions[row, start:] = torch.arange(self.time - start)
            used[row] = -(-(start + length) // CHUNK) * CHUNK
            tokens += length
        for row, end in enumerate(used):
            positions[row, end:] = torch.arange(self.time - end)
        return Batch(ids=ids, positions=positions, weights=weights, tokens=tokens)
