"""What running a request needs of the engine, of the tokenizer and of what keeps sessions, and where a request is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from launcher.generate import EnginePort
from launcher.server.events import CacheSource
from launcher.server.request import GenerationRequest, MarkKind


class SamplerPort(Protocol):
    """Picks the tokens of one choice, from the logits of what the engine evaluated last."""

    def pick(self, reply_length: int, allowed: object) -> int:
        """The next id. `allowed` is a mask as `Constraint.allowed` gives it, or None."""

    def bar(self, token: int) -> None:
        """From now on it does not pick this id."""

    def log_probabilities(self, token: int, top: int) -> tuple[float, tuple[tuple[int, float], ...]]:
        """Natural log-probability of the token, and the `top` likeliest ids with theirs."""

    def close(self) -> None:
        """Frees it; does nothing the second time."""


class BegunPort(Protocol):
    """How much of a prompt the engine holds already, and where that came from."""

    @property
    def reused(self) -> int: ...

    @property
    def source(self) -> CacheSource: ...


class StorePort(Protocol):
    """What keeps sessions. Only the generation thread calls it."""

    def begin(
        self, *, owner: str, name: str | None, ids: Sequence[int], is_stopped: Callable[[], bool], before: object
    ) -> BegunPort:
        """Makes the engine hold the first `reused` of the ids, fewer than all of them; `before` is what this returned
        to the same request the last time, or None.

        Raises:
            Cancelled: `is_stopped()` while there was still something to write to a disk; nothing is lost.
        """

    def keep(self, kind: MarkKind) -> None:
        """Keeps a checkpoint at the engine's position."""

    def end(self) -> None:
        """What the engine holds now is good and may be reused."""

    def discard(self) -> None:
        """What the engine holds now must not be used again."""

    def idle(self, wanted: Callable[[], bool]) -> float | None:
        """Does work that can wait while nothing else is `wanted`; returns the seconds until there is more, or None."""

    def close(self) -> None:
        """Saves what is to be saved."""


class TextPort(Protocol):
    """What running needs of `launcher.engine.Package`."""

    def token_bytes(self, token: int) -> bytes: ...


class StreamPort(Protocol):
    """What running needs of `launcher.engine.Utf8Stream`."""

    def push(self, data: bytes) -> str: ...

    def finish(self) -> str: ...


@dataclass(slots=True)
class Totals:
    """Tokens since the start. Only the generation thread writes them."""

    generated: int = 0
    prefilled: int = 0
    cached: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """What every request runs on. `stop_texts` end a reply in which the model spells a stop token in pieces."""

    engine: EnginePort
    store: StorePort
    new_sampler: Callable[[GenerationRequest, int], SamplerPort]
    text: TextPort
    new_stream: Callable[[], StreamPort]
    stop_ids: frozenset[int]
    stop_texts: tuple[str, ...]
    clock: Callable[[], float]
    totals: Totals


class Phase(Enum):
    """Where a request is."""

    WAITING = "waiting"
    READING = "reading"
    WRITING = "writing"
    PAUSED = "paused"
