"""A model without weights for tests of the protocol: bytes are tokens, the template is the built-in model's."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.engine_types import Sampling
from launcher.server.grammar import ConstrainedReply
from launcher.server.request import Constraint
from launcher.server.served import ServedModel
from launcher.template import ChatTemplate

TEMPLATE = Path(__file__).resolve().parents[2] / "release" / "demo" / "chat_template.jinja"
SPECIAL = ("<role>", "</role>", "<|role_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>")
TOKEN_COUNT = 256 + len(SPECIAL)


class ByteText:
    """Ids 0 to 255 are bytes, the next ones special tokens."""

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        ids: list[int] = []
        for piece in re.split(f"({'|'.join(map(re.escape, SPECIAL))})", text) if special else [text]:
            ids += [256 + SPECIAL.index(piece)] if special and piece in SPECIAL else list(piece.encode())
        return ids

    def first_tokens(self, text: str, most: int | None = None, *, special: bool = True) -> tuple[array[int], int]:
        ids = self.tokenize(text, special=special)
        return array("i", ids[:most]), len(ids)

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else SPECIAL[token - 256].encode()


@dataclass
class AskedGrammars:
    """Remembers what grammars were asked for."""

    asked: list[tuple[ConstrainedReply, bool]] = field(default_factory=list)

    def constraint(self, wanted: ConstrainedReply, *, reasoning: bool) -> Callable[[], Constraint]:
        self.asked.append((wanted, reasoning))

        def never() -> Constraint:
            raise AssertionError("no reply is made here")

        return never


def served_model(**changes: Any) -> ServedModel:
    """A model with a context of 4096 tokens."""
    settings: dict[str, Any] = {
        "id": "tiny",
        "created": 1_700_000_000,
        "text": ByteText(),
        "template": ChatTemplate(TEMPLATE.read_text(encoding="utf-8"), special_tokens={"eos": "<|role_end|>"}),
        "sampling": Sampling(temperature=0.7, top_p=0.9),
        "context": 4096,
        "token_count": TOKEN_COUNT,
        "stop_ids": frozenset({258}),
        "fingerprint": "fp_test",
        "grammar": AskedGrammars(),
    }
    return ServedModel(**(settings | changes))
