"""Which log-probabilities go out with which answer text, although text is held back and markup is not shown."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from launcher.server.events import TokenLogprob


@dataclass(slots=True, kw_only=True)
class _Span:
    """Text that some tokens brought, by position; `shown`: some of it was answer text."""

    start: int
    end: int
    logprobs: tuple[TokenLogprob, ...]
    shown: bool = False


class LogprobPlaces:
    """Follows the text of a reply as it arrives and as it is used up, in the same order."""

    def __init__(self) -> None:
        self._arrived = 0
        self._used = 0
        self._spans: deque[_Span] = deque()
        self._unplaced: list[TokenLogprob] = []  # tokens whose bytes have not made a character yet
        self._ready: list[TokenLogprob] = []

    def arrive(self, length: int, logprob: TokenLogprob | None) -> None:
        """A token brought `length` characters; with 0 its bytes are part of the next character."""
        start = self._arrived
        self._arrived += length
        if logprob is not None:
            self._unplaced.append(logprob)
        if length and self._unplaced:
            self._spans.append(_Span(start=start, end=self._arrived, logprobs=tuple(self._unplaced)))
            self._unplaced.clear()

    def show(self, length: int) -> tuple[TokenLogprob, ...]:
        """The next characters are answer text: the log-probabilities to send with them."""
        self._use(length, shown=True)
        return self._take()

    def drop(self, length: int) -> None:
        """The next characters are thinking or markup."""
        self._use(length, shown=False)

    def rest(self, *, in_answer: bool) -> tuple[TokenLogprob, ...]:
        """What is left at the end: of tokens that were cut, and of tokens without text if the answer is the last."""
        for span in self._spans:
            if span.shown:
                self._ready += span.logprobs
        self._spans.clear()
        if in_answer:
            self._ready += self._unplaced
        self._unplaced.clear()
        return self._take()

    def _use(self, length: int, *, shown: bool) -> None:
        if length == 0:
            return
        self._used += length
        while self._spans and self._spans[0].start < self._used:
            span = self._spans[0]
            span.shown |= shown
            if span.end > self._used:
                return
            self._spans.popleft()
            if span.shown:
                self._ready += span.logprobs

    def _take(self) -> tuple[TokenLogprob, ...]:
        taken = tuple(self._ready)
        self._ready.clear()
        return taken
