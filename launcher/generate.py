"""The token loop: evaluate a prompt, then sample and evaluate until something ends the reply."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Protocol

from launcher.engine_types import Logits
from launcher.errors import Cancelled, ContextFull
from launcher.timeline import CheckpointPort

# Long prompts are evaluated in slices: progress can be shown and a cancel is seen soon. Splits change no result.
PREFILL_SLICE = 256


class EnginePort(Protocol):
    """What evaluates tokens, as `launcher.engine.Session` does."""

    @property
    def context(self) -> int: ...

    @property
    def position(self) -> int: ...

    def eval(self, ids: Sequence[int], *, mode: Logits = Logits.LAST) -> None: ...

    def cancel(self) -> None: ...


class SessionPort(EnginePort, CheckpointPort, Protocol):
    """What a conversation needs of `launcher.engine.Session`."""


class StopReason(Enum):
    """Why a reply ended."""

    STOP = "stop"
    LENGTH = "length"
    CONTEXT = "context"
    CANCELLED = "cancelled"


@dataclass(slots=True, kw_only=True)
class Stats:
    """Counts and times of one reply; times in seconds. `reused` prompt tokens were already in the session;
    `evaluated` is how many of the others were read, which is all of them unless the reading was stopped.

    `first_seconds` is the time from the question to the first token of the reply; 0 where there was none.
    """

    prompt: int = 0
    reused: int = 0
    evaluated: int = 0
    generated: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    first_seconds: float = 0.0
    reason: StopReason = StopReason.STOP

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens evaluated per second."""
        return self.evaluated / self.prefill_seconds if self.prefill_seconds > 0 else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens generated per second: sampling and evaluation, not the time in which the caller showed them."""
        return self.generated / self.decode_seconds if self.decode_seconds > 0 else 0.0

    def facts(self) -> dict[str, object]:
        """For the log."""
        return {
            "prompt_tokens": self.prompt,
            "reused_tokens": self.reused,
            "generated_tokens": self.generated,
            "ttft_seconds": round(self.first_seconds, 6) or None,
            "prefill_tokens_per_second": round(self.prefill_rate, 3),
            "decode_tokens_per_second": round(self.decode_rate, 3),
            "reason": self.reason.value,
        }


@dataclass(slots=True)
class CancelFlag:
    """Asks a running reply to stop; safe from any thread and from a signal handler.

    The engine's own cancel stops "a running or the next" evaluation, so one that comes too late would stop the next
    reply. A stop that the engine reports and nobody asked for since `absorb` is such a one: the evaluation goes on.
    """

    session: EnginePort
    _event: threading.Event

    @classmethod
    def of(cls, session: EnginePort) -> CancelFlag:
        """A flag for this session."""
        return cls(session, threading.Event())

    def set(self) -> None:
        """Asks for the stop."""
        self._event.set()  # first, so that whoever sees the engine stop also sees why
        self.session.cancel()

    @property
    def is_set(self) -> bool:
        """Whether the stop was asked for."""
        return self._event.is_set()

    def absorb(self) -> None:
        """Forgets an earlier request, before a new reply."""
        self._event.clear()

    def eval(self, ids: Sequence[int], mode: Logits) -> None:
        """Evaluates; raises `Cancelled` only for a request made since `absorb`."""
        before = self.session.position
        try:
            self.session.eval(ids, mode=mode)
        except Cancelled:
            if self._event.is_set():
                raise
            self.session.eval(ids[self.session.position - before :], mode=mode)


def prefill(
    flag: CancelFlag,
    ids: Sequence[int],
    progress: Callable[[int, int], None] | None,
    stats: Stats,
    marks: Mapping[int, Callable[[], None]] | None = None,
) -> None:
    """Evaluates the prompt's new tokens in slices.

    Args:
        flag: the session and its cancel.
        ids: the tokens.
        progress: called with tokens done and in all.
        stats: takes the time and how many were evaluated.
        marks: called when so many of the ids are evaluated.

    Raises:
        ContextFull: the prompt does not fit; nothing was evaluated.
        Cancelled: the session keeps what was consumed.
    """
    session = flag.session
    if len(ids) > session.context - session.position:
        raise ContextFull(
            "context-full",
            f"the prompt has {session.position + len(ids)} tokens, the context holds {session.context}",
            hint="shorten it, or start again with a larger --context",
        )
    calls = marks or {}
    stops = sorted({*range(PREFILL_SLICE, len(ids), PREFILL_SLICE), len(ids), *calls})
    start, begin = time.monotonic(), session.position
    try:
        for first, stop in pairwise([0, *(stop for stop in stops if 0 < stop <= len(ids))]):
            if flag.is_set:
                raise Cancelled("cancelled", "stopped while reading the prompt")
            flag.eval(ids[first:stop], Logits.LAST if stop == len(ids) else Logits.NONE)
            if stop in calls:
                calls[stop]()
            if progress is not None:
                progress(stop, len(ids))
    finally:
        stats.prefill_seconds += time.monotonic() - start
        stats.evaluated += session.position - begin


def decode(
    flag: CancelFlag, sample: Callable[[], int], stops: Collection[int], max_tokens: int | None, stats: Stats
) -> Iterator[int]:
    """Yields tokens until a stop token, `max_tokens`, a full context or a cancel; `stats.reason` says which.

    A token is evaluated after it is yielded, so that it is shown at once; the last one is not when the reply is cut.
    """
    while True:
        if max_tokens is not None and stats.generated >= max_tokens:
            stats.reason = StopReason.LENGTH
            return
        start = time.monotonic()
        token = sample()
        if token in stops:
            stats.reason = StopReason.STOP
            return
        stats.generated += 1
        stats.decode_seconds += time.monotonic() - start
        yield token
        start = time.monotonic()
        try:
            if flag.is_set:
                raise Cancelled("cancelled", "stopped")
            flag.eval([token], Logits.LAST)
        except Cancelled:
            stats.reason = StopReason.CANCELLED
            return
        except ContextFull:
            stats.reason = StopReason.CONTEXT
            return
        finally:
            stats.decode_seconds += time.monotonic() - start
