"""A conversation: messages on one side, the session's timeline on the other, kept consistent.

Every question renders and tokenises the whole conversation. What the session has consumed is kept as far as it is the
same, token for token; `launcher.timeline` returns to a checkpoint where it is not, as when a template leaves the
thinking out of earlier turns, or thinking is switched on or off.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from launcher.errors import Cancelled, MindnanoError, PackageError, UsageError
from launcher.generate import CancelFlag, SessionPort, Stats, StopReason, decode, prefill
from launcher.reply import Kind, Piece, ReplySplitter
from launcher.template import ChatTemplate, Message
from launcher.timeline import Timeline, common_length

# The base ends before the switch for thinking where that costs no more tokens than this.
_SWITCH_TOKENS = 16


class TextPort(Protocol):
    """What a conversation needs of `launcher.engine.Package`."""

    def tokenize(self, text: str, *, special: bool = True) -> list[int]: ...

    def token_bytes(self, token: int) -> bytes: ...


class StreamPort(Protocol):
    """What a conversation needs of `launcher.engine_sampling.Utf8Stream`."""

    def push(self, data: bytes) -> str: ...

    def finish(self) -> str: ...


class SamplerPort(Protocol):
    """What a conversation needs of a sampler bound to its session."""

    def __call__(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The parts of the engine that a conversation uses; tests put others in their place."""

    text: TextPort
    session: SessionPort
    new_stream: Callable[[], StreamPort]
    new_sampler: Callable[[], SamplerPort]
    stop_ids: frozenset[int]


class Conversation:
    """Messages, a session and the way from one to the other."""

    def __init__(
        self,
        ports: Ports,
        template: ChatTemplate,
        *,
        system: str = "",
        thinking: bool = True,
        max_tokens: int | None = None,
    ) -> None:
        self._ports = ports
        self._template = template
        _require_text(system)
        self._system = system
        self._max_tokens = max_tokens
        self._messages: list[Message] = []
        self._timeline = Timeline(ports.session)
        self._flag = CancelFlag.of(ports.session)
        self._sampler = ports.new_sampler()
        stops = (ports.text.token_bytes(token).decode(errors="replace") for token in sorted(ports.stop_ids))
        self._stop_texts = tuple(stops)
        self.thinking = thinking
        self.stats = Stats()

    @property
    def messages(self) -> tuple[Message, ...]:
        """The turns so far."""
        return tuple(self._messages)

    @property
    def position(self) -> int:
        """Tokens in the session."""
        return self._ports.session.position

    def reset(self) -> None:
        """Forgets every turn; the sampler starts over from its seed. The system text stays evaluated."""
        self._messages.clear()
        self._timeline.forget()
        self._sampler = self._ports.new_sampler()
        self.stats = Stats()

    def resume(self, messages: Sequence[Message]) -> None:
        """Goes on from these turns, a question and its answer each, in place of those so far."""
        self.reset()
        self._messages += messages

    def cancel(self) -> None:
        """Stops the reply that is running; callable from any thread."""
        self._flag.set()

    def ask(self, question: str, progress: Callable[[int, int], None] | None = None) -> Iterator[Piece]:
        """Yields the reply to one more user turn; `progress(done, total)` counts prompt tokens.

        When it ends, `stats` says why, and the turn is part of the conversation, cut where it was stopped. A question
        that fails before the reply begins is not kept.

        Raises:
            ContextFull: the prompt does not fit.
            UsageError, PackageError: the text is not Unicode, or the template refuses or fails.
        """
        self._flag.absorb()
        self.stats = Stats()
        start = time.monotonic()
        _require_text(question)
        turn = Message(role="user", content=question)
        turns = self._with_system([*self._messages, turn])
        prompt = self._template.render(turns, enable_thinking=self.thinking)
        ids = self._ports.text.tokenize(prompt)
        self.stats.prompt = len(ids)
        self.stats.reused = self._timeline.agree(ids)
        try:
            marks = self._marks(turns, prompt, ids)
            prefill(self._flag, ids[self.stats.reused :], progress, self.stats, marks)
        except Cancelled:
            self.stats.reason = StopReason.CANCELLED
            return
        reply: dict[Kind, list[str]] = {kind: [] for kind in Kind}
        try:
            for piece in self._pieces(prompt, start):
                reply[piece.kind].append(piece.text)
                yield piece
        except MindnanoError:
            self._ports.session.reset()
            raise
        reasoning = "".join(reply[Kind.REASONING])
        self._messages += [turn, Message(role="assistant", content="".join(reply[Kind.CONTENT]), reasoning=reasoning)]

    def _pieces(self, prompt: str, start: float) -> Iterator[Piece]:
        stream = self._ports.new_stream()
        splitter = ReplySplitter(prompt, self._stop_texts)
        for token in decode(self._flag, self._sampler, self._ports.stop_ids, self._max_tokens, self.stats):
            self.stats.first_seconds = self.stats.first_seconds or time.monotonic() - start
            yield from splitter.push(stream.push(self._ports.text.token_bytes(token)))
            if splitter.stopped:
                return
        yield from splitter.push(stream.finish())
        yield from splitter.finish()

    def _marks(self, turns: Sequence[Message], prompt: str, ids: Sequence[int]) -> Mapping[int, Callable[[], None]]:
        """Where to keep a checkpoint: new tokens evaluated -> what to call then."""
        if not self._ports.session.checkpoints:
            return {}
        places = {self._turn_end(turns, prompt, ids): False, self._base_end(prompt, ids): True}
        reused = self.stats.reused
        return {
            place - reused: partial(self._timeline.keep, base=base)
            for place, base in places.items()
            if reused < place < len(ids)
        }

    def _turn_end(self, turns: Sequence[Message], prompt: str, ids: Sequence[int]) -> int:
        """Tokens up to the end of the last turn, before what makes the model speak; 0 where that cannot be told."""
        whole = self._template.render(turns, enable_thinking=self.thinking, add_generation_prompt=False)
        if not prompt.startswith(whole):
            return 0
        rest = self._ports.text.tokenize(prompt[len(whole) :])
        return len(ids) - len(rest) if ids[len(ids) - len(rest) :] == rest else 0

    def _base_end(self, prompt: str, ids: Sequence[int]) -> int:
        """Tokens that every conversation with this system text begins with, whether thinking or not."""
        try:
            same, other = (
                self._template.render(self._with_system([Message(role="user", content="")]), enable_thinking=thinking)
                for thinking in (self.thinking, not self.thinking)
            )
        except (UsageError, PackageError):  # a template may refuse an empty question
            return 0
        tokenize = self._ports.text.tokenize
        until_question, until_switch = (
            common_length(tokenize(prompt[: common_length(prompt, text)]), ids) for text in (same, other)
        )
        return until_switch if until_question - until_switch <= _SWITCH_TOKENS else until_question

    def _with_system(self, turns: Sequence[Message]) -> list[Message]:
        if not self._system:
            return list(turns)
        return [Message(role="system", content=self._system), *turns]


def _require_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError("text-encoding", f"the text is not valid Unicode: {error}", hint="send UTF-8") from error
