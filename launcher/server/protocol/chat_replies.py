"""Events to chat completions: streamed chunks, or one document."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import UNSET

from launcher.errors import InternalError
from launcher.server.events import (
    ChoiceFinished,
    Content,
    Delta,
    Deltas,
    Event,
    Failed,
    Finished,
    FinishReason,
    Metrics,
    Reasoning,
    TokenLogprob,
    ToolCallArguments,
    ToolCallStart,
)
from launcher.server.protocol.errors import error_body
from launcher.server.protocol.parts import (
    FINISH_WORDS,
    Frame,
    Named,
    TokenTexts,
    encode,
    metrics_shape,
    total,
    usage_of,
)
from launcher.server.protocol.shapes import (
    ChatChoice,
    ChatCompletion,
    ChatLogprobs,
    FunctionText,
    ReplyMessage,
    ToolCallShape,
)
from launcher.server.request import GenerationRequest

_FIRST = b'{"role":"assistant","content":""}'
_NOTHING = b"{}"


class ChatStream:
    """Writes the `data:` texts of a streamed chat; `[DONE]` is for the one who sends them."""

    def __init__(
        self, model: Named, request: GenerationRequest, *, include_usage: bool = False, created: int | None = None
    ) -> None:
        """`created` in seconds since 1970; now where it is None."""
        self._frame = Frame(
            id=request.id,
            kind="chat.completion.chunk",
            created=int(time.time()) if created is None else created,
            model=model,
            include_usage=include_usage,
        )
        self._include_usage = include_usage
        self._with_logprobs = request.logprobs is not None
        self._texts = TokenTexts(model.text)
        self._begun: set[int] = set()

    def write(self, event: Event) -> Sequence[bytes]:
        """The chunks that this event makes, each one JSON text; a failure makes an error object."""
        if isinstance(event, Deltas):
            chunks = self._begin(event.choice)
            metrics = encode(metrics_shape(event.metrics))
            for delta in event.deltas:
                logprobs = self._logprobs(delta)
                chunks.append(self._frame.chunk(_choice(event.choice, _delta(delta), logprobs, b"null"), metrics))
            return chunks
        if isinstance(event, ChoiceFinished):
            chunks = self._begin(event.choice)
            reason = encode(FINISH_WORDS[event.reason])
            metrics = encode(metrics_shape(event.metrics))
            chunks.append(self._frame.chunk(_choice(event.choice, _NOTHING, b"null", reason), metrics))
            return chunks
        if isinstance(event, Finished):
            return [self._frame.usage(total(event.metrics))] if self._include_usage else []
        if isinstance(event, Failed):
            return [error_body(event.error)[2]]
        return []

    def _begin(self, choice: int) -> list[bytes]:
        if choice in self._begun:
            return []
        self._begun.add(choice)
        return [self._frame.chunk(_choice(choice, _FIRST, b"null", b"null"), None)]

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


class ChatReply:
    """Collects the events of a chat and makes one document of them."""

    def __init__(self, model: Named, request: GenerationRequest, *, created: int | None = None) -> None:
        """`created` in seconds since 1970; now where it is None."""
        self._model = model
        self._request = request
        self._created = int(time.time()) if created is None else created
        self._choices: dict[int, _Choice] = {}
        self._metrics: tuple[Metrics, ...] | None = None

    def add(self, event: Event) -> None:
        """Takes the next event.

        Raises:
            MindnanoError: the request failed; this is why.
        """
        if isinstance(event, Deltas):
            choice = self._choices.setdefault(event.choice, _Choice())
            for delta in event.deltas:
                choice.add(delta)
        elif isinstance(event, ChoiceFinished):
            self._choices.setdefault(event.choice, _Choice()).reason = event.reason
        elif isinstance(event, Finished):
            self._metrics = event.metrics
        elif isinstance(event, Failed):
            raise event.error

    def document(self) -> bytes:
        """The JSON of the reply, after `Finished`.

        Raises:
            InternalError: the reply is not complete.
        """
        if self._metrics is None:
            raise InternalError("internal", "a reply was written before it was complete")
        metrics = total(self._metrics)
        return encode(
            ChatCompletion(
                id=self._request.id,
                created=self._created,
                model=self._model.id,
                system_fingerprint=self._model.fingerprint,
                choices=self._written(),
                usage=usage_of(metrics),
                request_id=self._request.id,
                mindnano_metrics=metrics_shape(metrics),
            )
        )

    def _written(self) -> list[ChatChoice]:
        texts = TokenTexts(self._model.text)
        wanted = self._request.logprobs is not None
        return [
            ChatChoice(
                index=index,
                message=choice.message(),
                logprobs=ChatLogprobs(content=texts.shapes(choice.logprobs)) if wanted else None,
                finish_reason=FINISH_WORDS[choice.reason],
            )
            for index, choice in sorted(self._choices.items())
        ]
