"""A conversation: messages on one side, the session's timeline on the other, kept consistent.

The engine's recurrent state cannot be rewound, so a session is reused only when the new prompt continues it exactly.
The comparison is made on bytes: where the rendered prompt begins with what the session has consumed and goes on with an
added token (as every turn of the template does), only the rest is evaluated; otherwise the session starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from launcher.errors import Cancelled, MindnanoError, UsageError
from launcher.generate import CancelFlag, SessionPort, Stats, StopReason, decode, prefill
from launcher.reply import Kind, Piece, ReplySplitter
from launcher.template import ChatTemplate, Message


class TextPort(Protocol):
    """What a conversation needs of `launcher.engine.Package`."""

    def tokenize(self, text: str, *, special: bool = True) -> list[int]: ...

    def token_bytes(self, token: int) -> bytes: ...


class StreamPort(Protocol):
    """What a conversation needs of `launcher.engine.Utf8Stream`."""

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


@dataclass(slots=True)
class Timeline:
    """The bytes that the session has consumed, and the token that was shown but not consumed when a reply was cut."""

    text: TextPort
    session: SessionPort
    _bytes: bytearray = field(default_factory=bytearray)
    _known: int = 0
    _sampled: tuple[int, int] | None = None

    def note_sampled(self, token: int) -> None:
        """Remembers a token that is about to be evaluated, in case a cancel comes first."""
        self._sampled = (self.session.position, token)

    def sync(self) -> bytes:
        """Reads from the session what it has consumed since the last time."""
        position = self.session.position
        if position < self._known:
            self._bytes.clear()
            self._known = 0
        for token in self.session.tokens()[self._known : position]:
            self._bytes += self.text.token_bytes(token)
        self._known = position
        return bytes(self._bytes)

    def continue_with(self, prompt: str) -> tuple[list[int], int]:
        """The ids to evaluate for this prompt and how many consumed ones it reuses; resets the session if it must."""
        consumed = self.sync()
        whole = prompt.encode()
        lead = []
        if self._sampled is not None and self._sampled[0] == self._known:
            lead = [self._sampled[1]]
            consumed += self.text.token_bytes(lead[0])
        if consumed and whole.startswith(consumed):
            rest = whole[len(consumed) :]
            with suppress(UnicodeDecodeError):
                ids = self.text.tokenize(rest.decode())
                plain = self.text.tokenize(rest.decode(), special=False)
                if ids and ids[:1] != plain[:1]:  # begins with an added token
                    return [*lead, *ids], self._known
        self._sampled = None
        if self._known:
            self.session.reset()
            self.sync()
        return self.text.tokenize(prompt), 0


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
        self._timeline = Timeline(ports.text, ports.session)
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
        """Forgets every turn; the sampler starts over from its seed."""
        self._messages.clear()
        self._ports.session.reset()
        self._sampler = self._ports.new_sampler()
        self.stats = Stats()

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
        _require_text(question)
        turn = Message(role="user", content=question)
        prompt = self._template.render(self._with_system([*self._messages, turn]), enable_thinking=self.thinking)
        ids, self.stats.reused = self._timeline.continue_with(prompt)
        self.stats.prompt = self.stats.reused + len(ids)
        try:
            prefill(self._flag, ids, progress, self.stats)
        except Cancelled:
            self.stats.reason = StopReason.CANCELLED
            return
        reply: dict[Kind, list[str]] = {kind: [] for kind in Kind}
        try:
            for piece in self._pieces(prompt):
                reply[piece.kind].append(piece.text)
                yield piece
        except MindnanoError:
            self._ports.session.reset()
            raise
        reasoning = "".join(reply[Kind.REASONING])
        self._messages += [turn, Message(role="assistant", content="".join(reply[Kind.CONTENT]), reasoning=reasoning)]

    def _pieces(self, prompt: str) -> Iterator[Piece]:
        stream = self._ports.new_stream()
        splitter = ReplySplitter(prompt, self._stop_texts)
        for token in decode(self._flag, self._sampler, self._ports.stop_ids, self._max_tokens, self.stats):
            self._timeline.note_sampled(token)
            yield from splitter.push(stream.push(self._ports.text.token_bytes(token)))
            if splitter.stopped:
                return
        yield from splitter.push(stream.finish())
        yield from splitter.finish()

    def _with_system(self, turns: Sequence[Message]) -> list[Message]:
        if not self._system:
            return list(turns)
        return [Message(role="system", content=self._system), *turns]


def _require_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError("text-encoding", f"the text is not valid Unicode: {error}", hint="send UTF-8") from error
