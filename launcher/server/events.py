"""What the generation thread tells of one request, in order. `Finished` or `Failed` is the last.

Every event is an immutable value; the receiver is called in the generation thread (or in the thread that submits,
cancels or pauses) and must return at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from launcher.errors import MindnanoError


class FinishReason(Enum):
    """`finish_reason` of a choice."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


class CacheSource(Enum):
    """Where the reused beginning of a prompt came from."""

    NONE = "none"
    LIVE = "live"  # still in the engine
    RAM = "ram"
    DISK = "disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """A token with its natural log-probability under the model itself, before temperature, penalties and grammars.

    `top` are the likeliest tokens at that place, likeliest first, as (id, log-probability).
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Counts and times of one choice, or of several together; times in seconds.

    `first_seconds` runs from acceptance to the first token, so it includes the queue; 0 before that token.
    `decode_seconds` is the time of `decoded` tokens: all but the first, which comes of reading the prompt.
    `drafted` and `accepted` count speculated tokens; an engine that does not speculate leaves them 0.
    """

    prompt: int = 0
    cached: int = 0
    cache_source: CacheSource = CacheSource.NONE
    generated: int = 0
    reasoning: int = 0
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    first_seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0
    choices: int = 1

    @property
    def decoded(self) -> int:
        """Tokens that had to be evaluated for: all but the first of each of the `choices`."""
        return max(self.generated - self.choices, 0)

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens evaluated per second."""
        return (self.prompt - self.cached) / self.prefill_seconds if self.prefill_seconds > 0 else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens per second of decoding; 0 before the second token."""
        return self.decoded / self.decode_seconds if self.decode_seconds > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """The request waits; `position` 1 is the next to run."""

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Progress through the prompt of choice `choice` in tokens, of which the first `cached` needed no reading.

    `seconds` since it began, pauses included. After a pause it goes on where it was: `done` never falls, and `cached`
    stays what it was at the beginning. Once the choice has a token there is no more of it, whatever the engine has to
    read again after a pause.
    """

    done: int
    total: int
    cached: int = 0
    seconds: float = 0.0
    choice: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """The request was paused; it waits for its resume."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reasoning:
    """Some text of the thinking."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """Some text of the answer. `logprobs` are of the tokens that it ends, where they were asked for."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallStart:
    """A call begins; `index` counts the calls of the choice from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallArguments:
    """More of the JSON text of a call's arguments; the fragments of one call joined are one JSON object."""

    index: int
    text: str


Delta = Reasoning | Content | ToolCallStart | ToolCallArguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Deltas:
    """New parts of choice `choice`, in order. `metrics` is how it goes so far."""

    choice: int
    deltas: tuple[Delta, ...]
    metrics: Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceFinished:
    """Choice `choice` is complete; another one may follow."""

    choice: int
    reason: FinishReason
    metrics: Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """All choices are complete. `metrics` has one entry a choice."""

    metrics: tuple[Metrics, ...] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The request ended without being complete: an error, a cancel (`Cancelled`), or its deadline."""

    error: MindnanoError


Event = Queued | Reading | Paused | Deltas | ChoiceFinished | Finished | Failed
Sink = Callable[[Event], None]
