"""Finds marker texts in text that arrives in pieces, so that no part of one is shown before it is known."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Text before `start` belongs to no marker.

    At `start` stands `marker`; where that is None, the text from `start` on is empty or may yet become one.
    """

    start: int
    marker: str | None


class Markers:
    """A set of marker texts. The one that begins first counts, and the longest of those that begin together."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = tuple(sorted({text for text in texts if text}, key=lambda text: (-len(text), text)))
        self._beginnings = frozenset(text[0] for text in self._texts)
        self._longest = len(self._texts[0]) if self._texts else 0
        self._pattern = re.compile("|".join(map(re.escape, self._texts)))

    def find(self, text: str, *, complete: bool = False) -> Found:
        """The first marker in the text; `complete` says that no more text will come."""
        match = self._pattern.search(text) if self._texts else None
        if not complete:
            last = len(text) - 1 if match is None else match.start()
            for start in range(max(0, len(text) - self._longest + 1), last + 1):
                if self._may_become_longer(text, start):
                    return Found(start=start, marker=None)
        if match is None:
            return Found(start=len(text), marker=None)
        return Found(start=match.start(), marker=match.group())

    def _may_become_longer(self, text: str, start: int) -> bool:
        if text[start] not in self._beginnings:
            return False
        tail = text[start:]
        return any(len(marker) > len(tail) and marker.startswith(tail) for marker in self._texts)
