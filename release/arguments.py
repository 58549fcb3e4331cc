"""What the words of a command line may be: types for argparse, which shows their errors and ends with 2."""

from __future__ import annotations

import argparse


def count(word: str) -> int:
    """A whole number below 10^9."""
    if not (word.isascii() and word.isdigit()) or len(word) > 9:
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number")
    return int(word)


def positive(word: str) -> int:
    """A whole number from 1 on."""
    value = count(word)
    if value == 0:
        raise argparse.ArgumentTypeError("it must be positive")
    return value


def positive_list(word: str) -> tuple[int, ...]:
    """Such numbers with commas between them."""
    return tuple(positive(part) for part in word.split(","))


def words(word: str) -> tuple[str, ...]:
    """Words with commas between them, each once."""
    return tuple(dict.fromkeys(word.split(",")))


def label(word: str) -> str:
    """A text that is stored and shown: a line of characters that can be seen."""
    if not word or not word.isprintable():
        raise argparse.ArgumentTypeError(f"{word!r} is empty or has characters that cannot be shown")
    return word
