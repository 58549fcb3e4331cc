"""Tokenizers of Ling-3.0's kind, trained by the `tokenizers` library, with which the engine is compared."""

from __future__ import annotations

import json
import random
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from release.package.tokenizer_tables import byte_alphabet
from tests.support import texts
from tests.support.checkpoint_tokenizer import SPLIT


def train(vocabulary: int) -> Tokenizer:
    """A byte-level BPE of `vocabulary` tokens on generated text, plus special and other added tokens."""
    tokenizer = Tokenizer(models.BPE())
    _add_split(tokenizer)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    rng = random.Random(vocabulary)
    kinds = (texts.english, texts.chinese, texts.digits, texts.spaces, texts.assigned)
    tokenizer.train_from_iterator((" ".join(kind(rng) for kind in kinds) for _ in range(4000)), trainer)
    tokenizer.add_special_tokens(list(texts.SPECIAL_TOKENS))
    tokenizer.add_tokens(
        [
            # Overlapping ones: the leftmost wins, then the longest.
            AddedToken("<tool", normalized=False),
            AddedToken("<tool_call>", normalized=False),
            AddedToken("call>x", normalized=False),
            AddedToken("思考", normalized=False),
            AddedToken("考虑", normalized=False),
            AddedToken("|", normalized=False),
            # One of the second pass, and one that the vocabulary already has.
            AddedToken("@@@", normalized=True),
            AddedToken("the", normalized=False),
        ]
    )
    return tokenizer


def class_revealing() -> Tokenizer:
    """A tokenizer whose ids show where `a?b ?.` is cut, whatever stands for the question mark.

    It merges an `a` or a space with the first byte of the next character and the last byte of a character with a `b`,
    so each such pair of bytes is one token where they are in one piece, and two where they are not.
    """
    alphabet = {byte: character for character, byte in byte_alphabet().items()}
    pairs = [(alphabet[ord(first)], alphabet[byte]) for first in "a " for byte in range(256)]
    pairs += [(alphabet[byte], "b") for byte in range(256)]
    pairs = list(dict.fromkeys(pairs))
    entries = [*alphabet.values(), *(left + right for left, right in pairs)]
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(entries)}, pairs))
    _add_split(tokenizer)
    return tokenizer


def without_merges(tokenizer: Tokenizer, share: float) -> dict[str, Any]:
    """The same with a share of its merges missing and `ignore_merges`: some tokens are found as whole words only."""
    document: dict[str, Any] = json.loads(tokenizer.to_str())
    rng = random.Random(7)
    model = document["model"]
    model["merges"] = [merge for merge in model["merges"] if rng.random() >= share]
    model["ignore_merges"] = True
    return document


def without_added_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer for which added tokens are plain text."""
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = []
    return Tokenizer.from_str(json.dumps(document))


def _add_split(tokenizer: Tokenizer) -> None:
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
