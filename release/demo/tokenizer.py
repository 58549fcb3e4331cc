"""The built-in model's tokenizer: byte-level BPE with Ling's pre-split and Ling's added tokens."""

import random
from collections.abc import Iterator
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from release.demo.conversation import draw_conversation, segments

SPECIAL: Final = ("<|startoftext|>", "<|endoftext|>", "[CLS]", "[gMASK]", "<|role_end|>", "<role>", "</role>")
"""Marks that never belong to an answer's text; skipped when special tokens are skipped."""

MARKS: Final = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
)
"""Marks inside an answer: one token each, but part of its text."""

PADDING: Final = "<|endoftext|>"

PRE_SPLIT: Final = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
"""Ling's pre-split: contractions, words with one leading mark, single digits, punctuation, white space."""

UNUSED_ROWS: Final = 8
"""Rows of the embedding that no token uses, as the released model has: they must never be sampled."""

TRAINING_CONVERSATIONS: Final = 30_000
TOKENIZER_MIX: Final = {
    "greeting": 2.0,
    "identity": 4.0,
    "fact": 40.0,
    "unknown": 14.0,
    "list": 6.0,
    "copy": 16.0,
    "reverse": 2.0,
    "count": 3.0,
    "table": 8.0,
    "add": 2.0,
    "subtract": 2.0,
    "digits": 2.0,
    "name": 4.0,
}
"""Shares of the tasks in the tokenizer's text: many words, few digits and letters."""


def id_of(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that must exist. Raises KeyError if it does not."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise KeyError(token)
    return int(found)


def _texts(seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    for _ in range(TRAINING_CONVERSATIONS):
        for piece in segments(draw_conversation(rng, TOKENIZER_MIX, turns=1, lesson=1)):
            text = piece.text
            for mark in (*SPECIAL, *MARKS):
                text = text.replace(mark, "\0")
            yield from filter(None, text.split("\0"))


def train_tokenizer(vocabulary: int, seed: int) -> Tokenizer:
    """Trains the merges on generated text; added tokens get the highest ids, `UNUSED_ROWS` ids stay free."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PRE_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - UNUSED_ROWS - len(SPECIAL) - len(MARKS),
        min_frequency=12,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed), trainer)
    tokenizer.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in SPECIAL])
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    return tokenizer
