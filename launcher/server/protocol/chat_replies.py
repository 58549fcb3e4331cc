"""Events to chat completions: streamed chunks, or one document."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import UNSET

from launcher.server.events import (
    Content,
    Delta,
    FinishReason,
    Reasoning,
    TokenLogprob,
    ToolCallArguments,
    ToolCallStart,
)
from launcher.server.protocol.parts import FINISH_WORDS, Named, TokenTexts, encode
from launcher.server.protocol.shapes import (
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    FunctionText,
    ReplyMessage,
    ToolCallShape,
)
from launcher.server.protocol.writers import ChunkStream, WholeReply
from launcher.server.request import GenerationRequest

_FIRST = b'{"role":"assistant","content":""}'
_NOTHING = b"{}"


class ChatStream(ChunkStream):
    """A streamed chat."""

    def __init__(
        self,
        model: Named,
        request: GenerationRequest,
        *,
        include_usage: bool = False,
        return_progress: bool = False,
        created: int | None = None,
    ) -> None:
        """`created` in seconds since 1970; now where it is None."""
        super().__init__(
            model,
            request,
            kind="chat.completion.chunk",
            include_usage=include_usage,
            return_progress=return_progress,
            created=created,
        )
        self._begun: set[int] = set()

    def _begin(self, choice: int) -> list[bytes]:
        if choice in self._begun:
            return []
        self._begun.add(choice)
        return [self._frame.chunk(_choice(choice, _FIRST, b"null", b"null"), None)]

    def _choice(self, choice: int, delta: Delta) -> bytes:
        return _choice(choice, _delta(delta), self._logprobs(delta), b"null")

    def _empty(self, choice: int) -> bytes:
        return _choice(choice, _NOTHING, b"null", b"null")

    def _last(self, choice: int, reason: bytes) -> bytes:
        return _choice(choice, _NOTHING, b"null", reason)

    def _logprobs(self, delta: Delta) -> bytes:
        if not self._with_logprobs or not isinstance(delta, Content) or not delta.logprobs:
            return b"null"
        return encode(ChatLogprobs(content=self._texts.shapes(delta.logprobs)))


def _choice(index: int, delta: bytes, logprobs: bytes, reason: bytes) -> bytes:
    return b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}' % (index, delta, logprobs, reason)


def _delta(delta: Delta) -> bytes:
    if isinstance(delta, Content):
        return b'{"content":%b}' % encode(delta.text)
    if isinstance(delta, Reasoning):
        text = encode(delta.text)
        return b'{"reasoning_content":%b,"reasoning":%b}' % (text, text)
    if isinstance(delta, ToolCallStart):
        function = b'{"name":%b,"arguments":""}' % encode(delta.name)
        call = (delta.index, encode(delta.id), function)
        return b'{"tool_calls":[{"index":%d,"id":%b,"type":"function","function":%b}]}' % call
    return b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}' % (delta.index, encode(delta.text))


@dataclass(slots=True, kw_only=True)
class _Call:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _Choice:
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, _Call] = field(default_factory=dict)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reason: FinishReason = FinishReason.STOP

    def add(self, delta: Delta) -> None:
        if isinstance(delta, Content):
            self.content.append(delta.text)
            self.logprobs += delta.logprobs
        elif isinstance(delta, Reasoning):
            self.reasoning.append(delta.text)
        elif isinstance(delta, ToolCallStart):
            self.calls[delta.index] = _Call(id=delta.id, name=delta.name)
        elif isinstance(delta, ToolCallArguments):
            self.calls[delta.index].arguments.append(delta.text)

    def message(self) -> ReplyMessage:
        content = "".join(self.content)
        reasoning = "".join(self.reasoning) or None
        calls = [
            ToolCallShape(id=call.id, function=FunctionText(name=call.name, arguments="".join(call.arguments)))
            for _, call in sorted(self.calls.items())
        ]
        return ReplyMessage(
            content=None if calls and not content else content,
            reasoning_content=reasoning,
            reasoning=reasoning,
            tool_calls=calls or UNSET,
        )


class ChatReply(WholeReply[_Choice]):
    """A chat as one document."""

    def __init__(self, model: Named, request: GenerationRequest, *, created: int | None = None) -> None:
        """`created` in seconds since 1970; now where it is None."""
        super().__init__(model, request, new_choice=_Choice, shape=ChatCompletion, created=created)

    def _written(self, index: int, choice: _Choice, texts: TokenTexts | None) -> ChatChoice:
        return ChatChoice(
            index=index,
            message=choice.message(),
            logprobs=None if texts is None else ChatLogprobs(content=texts.shapes(choice.logprobs)),
            finish_reason=FINISH_WORDS[choice.reason],
        )
