"""What one accepted request asks of the engine: everything is tokenised, checked and bounded before it is queued.

The HTTP side makes these values, the generation thread works them off; neither knows the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from launcher.engine_types import Sampling


class Constraint(Protocol):
    """A grammar that a reply must follow, token by token, from the reply's first token on. One for each reply."""

    def allowed(self) -> object:
        """A writable buffer of ceil(vocab_size / 32) uint32 words: bit i % 32 of word i // 32 is 1 where id i may come.

        Stop ids are allowed exactly where the reply may end. The buffer is valid until the next call.
        """

    def advance(self, token: int) -> None:
        """The token that was picked.

        Raises:
            InternalError: the grammar does not allow it.
        """

    @property
    def is_finished(self) -> bool:
        """Whether nothing can follow but the end."""


class MarkKind(Enum):
    """What ends at a mark."""

    SYSTEM = "system"  # the beginning that every conversation with this system text and these tools shares
    TURN = "turn"  # a message of the user, of the assistant, or of a tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A place in the prompt where a checkpoint is worth keeping; `position` counts tokens from the start."""

    position: int
    kind: MarkKind


class Style(Enum):
    """How a reply is to be read."""

    CHAT = "chat"  # thinking, answer and tool calls are told apart
    TEXT = "text"  # the text as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the model may call. `parameters` is its JSON Schema, {} where none was given."""

    name: str
    parameters: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One request, ready to run.

    Attributes:
        id: the id that the client sees, e.g. ``chatcmpl-...``, or its own; unique among those of the owner
            that have not ended.
        owner: who asks: a digest of the API key, or "" where there are no keys. Nothing is shared between owners but
            the time that an identical prefix saves.
        session: the client's name for its conversation, or None.
        prompt: token ids, at least one; fewer than the context.
        marks: where to keep checkpoints, by position.
        max_tokens: most tokens of each choice, at least 1; prompt and reply fit the context together.
        choices: how many replies (`n`), one after the other; choice i samples with seed + i.
        sampling: how to pick tokens.
        logit_bias: id -> what is added to its logit.
        stops: texts that end the reply and are not part of it.
        ignore_eos: a stop id does not end the reply (benchmarks).
        logprobs: None, or how many likeliest tokens to report beside each one that was picked (0 to 20).
        style: how to read the reply.
        reasoning: whether the prompt ends inside an open ``<think>``.
        thinking_budget: most tokens of thinking of each choice; None for no limit.
        thinking_end: the tokens of ``</think>``, which close the thinking at its limit, or when that is asked for.
        tools: the functions that the reply may call; without any, nothing in a reply is a call.
        parallel_calls: whether it may call more than one; else the reply ends after the first.
        text_or_calls: text and calls exclude each other, so that nothing within an answer is a call.
        new_constraint: makes the grammar for one choice; None leaves the model free.
        deadline: seconds from acceptance until the request is given up; None for no limit.
    """

    id: str
    owner: str
    session: str | None
    prompt: tuple[int, ...]
    marks: tuple[Mark, ...] = ()
    max_tokens: int
    choices: int = 1
    sampling: Sampling
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stops: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    style: Style = Style.CHAT
    reasoning: bool = False
    thinking_budget: int | None = None
    thinking_end: tuple[int, ...] = ()
    tools: tuple[Tool, ...] = ()
    parallel_calls: bool = True
    text_or_calls: bool = False
    new_constraint: Callable[[], Constraint] | None = None
    deadline: float | None = None
