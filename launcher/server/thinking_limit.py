"""When the thinking of a reply has to end, and the tokens that end it in place of the model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

# Bytes of a character that can lack of its end, and with it the tokens that bring them.
_MOST_PENDING: Final = 3


class ThinkingLimit:
    """The limit of one choice. The thinking is closed once at most; what comes afterwards is the model's own."""

    def __init__(self, *, budget: int | None, end: tuple[int, ...], is_ended: Callable[[], bool]) -> None:
        """Args:
        budget: most tokens of thinking; None for no limit.
        end: the tokens that close it; without any it is never closed.
        is_ended: whether somebody asked for its end.
        """
        self._budget = budget
        self._end = end
        self._is_ended = is_ended
        self._due: deque[int] = deque()
        self._closed = False
        self._tail = b""
        self._waited = 0

    @property
    def has_closed(self) -> bool:
        """Whether the thinking is over by this limit, though text may be held back that does not show it yet."""
        return self._closed

    def follow(self, data: bytes) -> None:
        """The bytes of a token of the reply."""
        self._tail = (self._tail + data)[-_MOST_PENDING:]

    def next_token(self, *, thinking: bool, thought: int) -> int | None:
        """The token that has to come next, or None where the model picks it.

        A character whose bytes have not all come is completed by the model first, so that the thinking stays text that
        gives the same tokens again. That takes three tokens at most.

        Args:
            thinking: whether the reply is still in its thinking.
            thought: tokens of it so far.
        """
        if not self._due:
            if self._closed or not thinking or not self._is_due(thought):
                return None
            if self._waited < _MOST_PENDING and _is_within_character(self._tail):
                self._waited += 1
                return None
            self._closed = True
            self._due.extend(self._end)
        return self._due.popleft()

    def _is_due(self, thought: int) -> bool:
        return bool(self._end) and ((self._budget is not None and thought >= self._budget) or self._is_ended())


def _is_within_character(tail: bytes) -> bool:
    """Whether bytes end inside a character of UTF-8."""
    for count, byte in enumerate(reversed(tail), 1):
        if byte >> 6 != 0b10:  # the first byte of a character tells how many it has
            return count < (4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1)
    return False
