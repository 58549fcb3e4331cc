"""Tells thinking from answer while a reply streams in.

The prompt ends inside an open `<think>`, so a reply with thinking on begins as reasoning. Reasoning ends at `</think>`,
or at `<tool_call>`, which is already content. The stop texts end the reply even when the model spells them in pieces
instead of using the special token. A marker that has only partly arrived is held back: no part of one is ever shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
TOOL_CALL = "<tool_call>"


class Kind(Enum):
    """What a piece of the reply is."""

    REASONING = "reasoning"
    CONTENT = "content"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some text of the reply."""

    kind: Kind
    text: str


class ReplySplitter:
    """Feed it text with `push` until `stopped`, then call `finish`."""

    def __init__(self, prompt: str, stop_texts: Iterable[str]) -> None:
        """Args:
        prompt: the rendered prompt; the reply is reasoning first when the prompt ends in an open `<think>`.
        stop_texts: texts that end the reply and are not part of it.
        """
        opened = prompt.rstrip().endswith(THINK_OPEN)
        self._kind = Kind.REASONING if opened else Kind.CONTENT
        self._stops = tuple(text for text in stop_texts if text)
        self._held = ""
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether a stop text was seen; everything after it is ignored."""
        return self._stopped

    def push(self, text: str) -> list[Piece]:
        """What can be shown now that this text has arrived."""
        pieces: list[Piece] = []
        if self._stopped:
            return pieces
        self._held += text
        while not self._stopped:
            found = self._first_marker()
            if found is None:
                break
            start, marker = found
            self._emit(pieces, self._held[:start])
            self._held = self._held[start + len(marker) :]
            if marker in self._stops:
                self._stopped = True
                self._held = ""
            else:
                self._kind = Kind.CONTENT
                if marker == TOOL_CALL:
                    self._emit(pieces, marker)
        if not self._stopped:
            keep = self._partial_marker()
            self._emit(pieces, self._held[: len(self._held) - keep])
            self._held = self._held[len(self._held) - keep :]
        return pieces

    def finish(self) -> list[Piece]:
        """What was held back, when the reply ends without a marker."""
        pieces: list[Piece] = []
        self._emit(pieces, self._held)
        self._held = ""
        return pieces

    def _markers(self) -> tuple[str, ...]:
        if self._kind is Kind.REASONING:
            return (*self._stops, THINK_CLOSE, TOOL_CALL)
        return self._stops

    def _first_marker(self) -> tuple[int, str] | None:
        places = [(self._held.find(marker), marker) for marker in self._markers()]
        return min(((start, marker) for start, marker in places if start >= 0), default=None)

    def _partial_marker(self) -> int:
        """Length of the longest end of the held text that could become a marker."""
        longest = max((len(marker) - 1 for marker in self._markers()), default=0)
        for length in range(min(longest, len(self._held)), 0, -1):
            tail = self._held[-length:]
            if any(marker.startswith(tail) for marker in self._markers()):
                return length
        return 0

    def _emit(self, pieces: list[Piece], text: str) -> None:
        if text:
            pieces.append(Piece(kind=self._kind, text=text))
