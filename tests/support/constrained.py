"""Walks through constraints without a model: random tokens, forced texts, and vocabularies made up for a test."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from launcher.engine import Package
from launcher.engine_types import ModelConfig
from launcher.server.constraint import GrammarFactory
from launcher.server.guidance import Vocabulary
from launcher.server.request import Constraint
from tests.support.demo import require_demo


@lru_cache
def demo_package() -> Package:
    return Package(require_demo())


@lru_cache
def demo_factory() -> GrammarFactory:
    return GrammarFactory(demo_package())


def allowed_ids(constraint: Constraint) -> list[int]:
    words = memoryview(constraint.allowed()).cast("B").cast("I")  # type: ignore[arg-type]
    return [32 * place + bit for place, word in enumerate(words) if word for bit in range(32) if word >> bit & 1]


def accepts(constraint: Constraint, vocabulary: Vocabulary, text: str) -> bool:
    """Whether a reply may be exactly this text, in the vocabulary's own division into tokens."""
    for token in vocabulary.tokenize(text):
        if token not in allowed_ids(constraint):
            return False
        constraint.advance(token)
    return vocabulary.config.stop_ids[0] in allowed_ids(constraint)


def random_reply(
    new_constraint: Callable[[], Constraint],
    vocabulary: Vocabulary,
    seed: int,
    *,
    patience: int = 25,
    most: int = 1500,
) -> str:
    """A reply of tokens that are uniformly random among the allowed ones; past `patience` it takes what ends sooner."""
    rng = random.Random(seed)
    constraint = new_constraint()
    config = vocabulary.config
    tokens: list[int] = []
    while len(tokens) < most:
        allowed = allowed_ids(constraint)
        assert allowed, f"nothing may follow {text_of(vocabulary, tokens)!r}"
        stops = [token for token in allowed if token in config.stop_ids]
        if stops and (len(tokens) > patience or len(allowed) == len(stops) or rng.random() < 0.3):
            constraint.advance(rng.choice(stops))
            return text_of(vocabulary, tokens)
        choice = [token for token in allowed if token not in stops]
        if len(tokens) > patience:
            choice = _ending(choice, vocabulary, tokens, rng)
        token = rng.choice(choice)
        constraint.advance(token)
        tokens.append(token)
    raise AssertionError(f"no end in {most} tokens: {text_of(vocabulary, tokens)[-300:]!r}")


@lru_cache
def _closers(vocabulary: Vocabulary) -> tuple[frozenset[int], frozenset[int]]:
    """Tokens that begin with a closing mark, and those that begin with a closing sign of JSON."""
    count = vocabulary.config.token_count
    texts = [vocabulary.token_bytes(token) for token in range(count)]
    return (
        frozenset(token for token in range(count) if texts[token].startswith(b"</")),
        frozenset(token for token in range(count) if texts[token][:1] in (b'"', b"]", b"}")),
    )


def _ending(choice: list[int], vocabulary: Vocabulary, tokens: list[int], rng: random.Random) -> list[int]:
    """Of the choice, what leads to the end."""
    marks, signs = (sorted(closers.intersection(choice)) for closers in _closers(vocabulary))
    if marks and rng.random() < 0.8:
        return marks
    if isinstance(vocabulary, ByteVocabulary):
        spelled = _spelling(choice, vocabulary, tokens)
        if spelled and rng.random() < 0.95:
            return spelled
    return signs if signs and rng.random() < 0.8 else choice


def _spelling(choice: list[int], vocabulary: Vocabulary, tokens: list[int]) -> list[int]:
    """The next bytes of the marks that are begun furthest, where marks are ordinary text."""
    tail = b"".join(map(vocabulary.token_bytes, tokens[-12:]))
    begun: dict[int, list[int]] = {}
    for mark in (b"</arg_value>", b"</arg_key>", b"</think>", b"</tool_call>"):
        known = next(length for length in range(len(mark) - 1, -1, -1) if tail.endswith(mark[:length]))
        if mark[known] in choice:
            begun.setdefault(known, []).append(mark[known])
    return begun[max(begun)] if begun else []


def text_of(vocabulary: Vocabulary, tokens: list[int]) -> str:
    """The text, which must be valid UTF-8."""
    return b"".join(map(vocabulary.token_bytes, tokens)).decode()


@dataclass(frozen=True)
class ByteVocabulary:
    """Every byte is a token, then come the stop token and, where `marks` names them, marks; some rows are padding."""

    config: ModelConfig
    marks: tuple[str, ...] = ()
    stop_text: str = "<|role_end|>"

    @staticmethod
    def like(config: ModelConfig, marks: tuple[str, ...] = ()) -> ByteVocabulary:
        count = 257 + len(marks)
        return ByteVocabulary(
            replace(config, vocab_size=300, token_count=count, stop_ids=(256,), eos_id=256, pad_id=None), marks
        )

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else (self.stop_text, *self.marks)[token - 256].encode()

    def token_is_special(self, token: int) -> bool:
        return False  # not even the stop token is marked

    def token_find(self, data: bytes) -> int | None:
        if len(data) == 1:
            return data[0]
        texts = (self.stop_text, *self.marks)
        return 256 + texts.index(data.decode()) if data.decode() in texts else None

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        texts = (self.stop_text, *self.marks) if special else ()
        ids: list[int] = []
        for piece in re.split(f"({'|'.join(map(re.escape, texts))})", text) if texts else [text]:
            ids += [256 + texts.index(piece)] if piece in texts else list(piece.encode())
        return ids
