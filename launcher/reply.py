"""Tells thinking from answer while a reply streams in.

The prompt ends inside an open `<think>`, so a reply with thinking on begins as reasoning. Reasoning ends at `</think>`,
or at `<tool_call>`, which is already content. The stop texts end the reply even when the model spells them in pieces
instead of using the special token. A marker that has only partly arrived is held back: no part of one is ever shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from launcher.markers import Markers

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
        self._stops = frozenset(text for text in stop_texts if text)
        self._markers = {
            Kind.REASONING: Markers((*self._stops, THINK_CLOSE, TOOL_CALL)),
            Kind.CONTENT: Markers(self._stops),
        }
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
        self._scan(pieces, complete=False)
        return pieces

    def finish(self) -> list[Piece]:
        """What was held back, when the reply ends without a marker."""
        pieces: list[Piece] = []
        self._scan(pieces, complete=True)
        self._emit(pieces, self._held)
        self._held = ""
        return pieces

    def _scan(self, pieces: list[Piece], *, complete: bool) -> None:
        marker: str | None = ""
        while marker is not None:
            found = self._markers[self._kind].find(self._held, complete=complete)
            marker = found.marker
            self._emit(pieces, self._held[: found.start])
            self._held = self._held[found.start + len(marker or "") :]
            if marker in self._stops:
                self._stopped = True
                self._held = ""
                return
            if marker is not None:
                self._kind = Kind.CONTENT
            if marker == TOOL_CALL:
                self._emit(pieces, marker)

    def _emit(self, pieces: list[Piece], text: str) -> None:
        if text:
            pieces.append(Piece(kind=self._kind, text=text))
