"""Stand-ins for package, session and sampler: bytes as tokens, scripted replies, the cancel rules of ling3.h."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from launcher.conversation import Ports
from launcher.engine_types import Logits
from launcher.errors import Cancelled, ContextFull

SPECIALS = ("<|role_end|>", "<|endoftext|>", "<role>", "</role>", "<think>", "</think>", "<tool_call>", "</tool_call>")
STOP = 256


class FakeText:
    """Token n < 256 is the byte n; the others are the special tokens."""

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        pattern = "|".join(re.escape(token) for token in SPECIALS)
        ids: list[int] = []
        for piece in re.split(f"({pattern})", text) if special else [text]:
            ids += [256 + SPECIALS.index(piece)] if special and piece in SPECIALS else list(piece.encode())
        return ids

    def first_tokens(self, text: str, most: int | None = None, *, special: bool = True) -> tuple[array[int], int]:
        ids = self.tokenize(text, special=special)
        return array("i", ids[:most]), len(ids)

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else SPECIALS[token - 256].encode()


@dataclass
class FakeSession:
    """A timeline that counts what is evaluated. `before_eval` runs first, to interrupt at a chosen point."""

    context: int = 100_000
    timeline: list[int] = field(default_factory=list)
    evaluated: int = 0
    resets: int = 0
    restores: int = 0
    cancel_pending: bool = False
    checkpoints: int = 0
    slots: dict[int, list[int]] = field(default_factory=dict)
    before_eval: Callable[[Sequence[int]], None] = lambda _ids: None

    @property
    def position(self) -> int:
        return len(self.timeline)

    def tokens(self) -> list[int]:
        return list(self.timeline)

    def reset(self) -> None:
        self.timeline.clear()
        self.slots.clear()
        self.resets += 1

    def save(self, slot: int) -> None:
        assert 0 <= slot < self.checkpoints
        self.slots[slot] = list(self.timeline)

    def restore(self, slot: int) -> None:
        self.timeline = list(self.slots[slot])
        self.slots = {number: kept for number, kept in self.slots.items() if len(kept) <= len(self.timeline)}
        self.restores += 1

    def checkpoint(self, slot: int) -> int | None:
        return len(self.slots[slot]) if slot in self.slots else None

    def cancel(self) -> None:
        self.cancel_pending = True

    def eval(self, ids: Sequence[int], *, mode: Logits = Logits.LAST) -> None:
        self.before_eval(ids)
        if self.cancel_pending:
            self.cancel_pending = False
            raise Cancelled("cancelled", "cancelled")
        if len(self.timeline) + len(ids) > self.context:
            raise ContextFull("context-full", "full")
        self.timeline += ids
        self.evaluated += len(ids)


class FakeStream:
    """Decodes byte by byte as the engine does."""

    def __init__(self) -> None:
        self._held = b""

    def push(self, data: bytes) -> str:
        self._held += data
        try:
            text = self._held.decode()
        except UnicodeDecodeError as error:
            if error.reason != "unexpected end of data":
                text = self._held.decode(errors="replace")
            else:
                text = self._held[: error.start].decode()
                self._held = self._held[error.start :]
                return text
        self._held = b""
        return text

    def finish(self) -> str:
        text = self._held.decode(errors="replace")
        self._held = b""
        return text


def fake_ports(session: FakeSession, replies: Iterable[str]) -> Ports:
    """Ports whose sampler speaks the replies one after the other, each ended by the stop token."""
    text = FakeText()
    script: list[int] = []
    for reply in replies:
        script += [*text.tokenize(reply), STOP]

    def new_sampler() -> Callable[[], int]:
        return lambda: script.pop(0)

    return Ports(
        text=text,
        session=session,
        new_stream=FakeStream,
        new_sampler=new_sampler,
        stop_ids=frozenset({STOP, STOP + 1}),
    )
