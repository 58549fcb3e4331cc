"""A tokenizer.json in the layout of Ling-3.0 that fills a vocabulary without being trained."""

from __future__ import annotations

from typing import Any

SPLIT = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
"""How Ling-3.0 splits text before merging; engine/src/text/split.c says it in words."""

SPECIAL = (
    "<|startoftext|>",
    "<|endoftext|>",
    "[CLS]",
    "[gMASK]",
    "<|role_end|>",
    "<role>",
    "</role>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)


def special_ids(vocabulary: int) -> dict[str, int]:
    """Ids of the added tokens: the last ones of the vocabulary."""
    return {text: vocabulary - len(SPECIAL) + index for index, text in enumerate(SPECIAL)}


def tokenizer_json(vocabulary: int) -> dict[str, Any]:
    """A byte-level BPE tokenizer that fills the vocabulary: bytes, merges of letters, added tokens."""
    alphabet = _byte_alphabet()
    texts = list(alphabet)
    merges: list[list[str]] = []
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pairs = [("\u0120", letter) for letter in letters] + [(a, b) for a in letters for b in letters]
    for left, right in pairs[: max(0, vocabulary - len(SPECIAL) - len(texts))]:
        merges.append([left, right])
        texts.append(left + right)
    filler = vocabulary - len(SPECIAL) - len(texts)
    texts.extend(f"filler{index}" for index in range(filler))
    added = [
        {
            "id": token,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for text, token in special_ids(vocabulary).items()
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: token for token, text in enumerate(texts)},
            "merges": merges,
        },
    }


def _byte_alphabet() -> list[str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(byte) for byte in printable] + [chr(0x100 + index) for index in range(256 - len(printable))]
