"""Events to responses: the typed events of a stream, or one document.

A stream begins with `response.created` and `response.in_progress`, tells each item from its `output_item.added` to its
`output_item.done`, and ends with `response.completed`, `response.incomplete`, or `error` and `response.failed`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
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
    ToolCallArguments,
)
from launcher.server.protocol.errors import error_body
from launcher.server.protocol.parts import Named, TokenTexts, encode, metrics_shape, total
from launcher.server.protocol.requests import TextFormat
from launcher.server.protocol.responses_output import Item, Kind, Output
from launcher.server.protocol.responses_requests import ResponsesRequest
from launcher.server.protocol.responses_shapes import (
    CallArgumentsDelta,
    CallArgumentsDone,
    ContentPartAdded,
    ContentPartDone,
    IncompleteDetails,
    InputTokensDetails,
    ItemStatus,
    OutputItemAdded,
    OutputItemDone,
    OutputText,
    OutputTextDelta,
    OutputTextDone,
    OutputTokensDetails,
    ReasoningShape,
    ReasoningText,
    ReasoningTextDelta,
    ReasoningTextDone,
    ResponseCompleted,
    ResponseCreated,
    ResponseErrorEvent,
    ResponseEvent,
    ResponseFailed,
    ResponseFault,
    ResponseIncomplete,
    ResponseInProgress,
    ResponseObject,
    ResponseUsage,
    TextShape,
)
from launcher.server.protocol.shapes import ErrorReply
from launcher.server.request import GenerationRequest

_ERROR: Final = msgspec.json.Decoder(ErrorReply)
_Event = Callable[..., ResponseEvent]


class _Answer:
    """What one answer is made of, and how it looks at any time."""

    def __init__(
        self,
        model: Named,
        asked: ResponsesRequest,
        request: GenerationRequest,
        created: int | None,
    ) -> None:
        self.output = Output(request.id, TokenTexts(model.text) if request.logprobs is not None else None)
        self.reason = FinishReason.STOP
        self._created = int(time.time()) if created is None else created
        self._known: dict[str, Any] = {
            "id": request.id,
            "created_at": self._created,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "model": model.id,
            "parallel_tool_calls": asked.parallel_tool_calls is not False,
            "prompt_cache_key": asked.prompt_cache_key,
            "reasoning": ReasoningShape(effort=None if asked.reasoning is None else asked.reasoning.effort),
            "safety_identifier": asked.safety_identifier,
            "temperature": request.sampling.temperature,
            "text": TextShape(format=(asked.text and asked.text.format) or TextFormat()),
            "tool_choice": asked.tool_choice or "auto",
            "tools": asked.tools or [],
            "top_logprobs": request.logprobs or 0,
            "top_p": request.sampling.top_p if asked.top_p is None else asked.top_p,
            "user": asked.user,
            "system_fingerprint": model.fingerprint,
            "seed": request.sampling.seed,
            "request_id": request.id,
            "session_id": UNSET if request.session is None else request.session,
        }

    def begun(self) -> ResponseObject:
        """Before anything has come."""
        return self._shape("in_progress", "in_progress")

    def finished(self, metrics: Metrics) -> ResponseObject:
        """At its end."""
        cut = self.reason is FinishReason.LENGTH
        return self._shape(
            "incomplete" if cut else "completed",
            self.last_status,
            completed_at=None if cut else max(int(time.time()), self._created),
            incomplete_details=IncompleteDetails() if cut else None,
            usage=_usage(metrics),
            mindnano_metrics=metrics_shape(metrics),
        )

    def failed(self, message: str) -> ResponseObject:
        """As far as it came."""
        return self._shape("failed", "incomplete", error=ResponseFault(message=message))

    @property
    def last_status(self) -> ItemStatus:
        """What the last item is at the end."""
        return "incomplete" if self.reason is FinishReason.LENGTH else "completed"

    def _shape(self, status: str, last: ItemStatus, **more: Any) -> ResponseObject:
        nothing = dict.fromkeys(("completed_at", "error", "incomplete_details", "usage"))
        return ResponseObject(
            **{**self._known, **nothing, **more, "status": status, "output": self.output.shapes(last)}
        )


def _usage(metrics: Metrics) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=metrics.prompt,
        input_tokens_details=InputTokensDetails(cached_tokens=metrics.cached),
        output_tokens=metrics.generated,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=metrics.reasoning),
        total_tokens=metrics.prompt + metrics.generated,
    )


class ResponsesStream:
    """Writes the events of a stream, each one JSON text whose `type` is the event's name."""

    def __init__(
        self, model: Named, asked: ResponsesRequest, request: GenerationRequest, *, created: int | None = None
    ) -> None:
        """`created` in seconds since 1970; now where it is None."""
        self._answer = _Answer(model, asked, request, created)
        self._output = self._answer.output
        self._open: Item | None = None
        self._count = 0

    def write(self, event: Event) -> Sequence[bytes]:
        """The texts that this event makes."""
        return [encode(each) for each in self._events(event)]

    def _events(self, event: Event) -> Iterator[ResponseEvent]:
        if self._count == 0:
            yield self._numbered(ResponseCreated, response=self._answer.begun())
            yield self._numbered(ResponseInProgress, response=self._answer.begun())
        if isinstance(event, Deltas):
            for delta in event.deltas:
                yield from self._more(delta, event.metrics)
        elif isinstance(event, ChoiceFinished):
            self._answer.reason = event.reason
        elif isinstance(event, Finished):
            yield from self._end(total(event.metrics))
        elif isinstance(event, Failed):
            error = _ERROR.decode(error_body(event.error)[2]).error
            yield self._numbered(ResponseErrorEvent, code=error.code, message=error.message, param=error.param)
            yield self._numbered(ResponseFailed, response=self._answer.failed(error.message))

    def _numbered(self, kind: _Event, **fields: Any) -> ResponseEvent:
        event = kind(sequence_number=self._count, **fields)
        self._count += 1
        return event

    def _of(self, item: Item, kind: _Event, **fields: Any) -> ResponseEvent:
        return self._numbered(kind, item_id=item.id, output_index=item.index, **fields)

    def _more(self, delta: Delta, metrics: Metrics) -> Iterator[ResponseEvent]:
        item = self._output.add(delta)
        if item is not self._open:
            yield from self._close("completed")
            yield from self._begin(item)
        shown = metrics_shape(metrics)
        if isinstance(delta, Content):
            logprobs = self._output.logprobs(delta.logprobs)
            yield self._of(item, OutputTextDelta, delta=delta.text, logprobs=logprobs, mindnano_metrics=shown)
        elif isinstance(delta, Reasoning):
            yield self._of(item, ReasoningTextDelta, delta=delta.text, mindnano_metrics=shown)
        elif isinstance(delta, ToolCallArguments):
            yield self._of(item, CallArgumentsDelta, delta=delta.text, mindnano_metrics=shown)

    def _begin(self, item: Item) -> Iterator[ResponseEvent]:
        self._open = item
        shape = self._output.shape(item, "in_progress")
        yield self._numbered(OutputItemAdded, output_index=item.index, item=shape)
        if item.kind is Kind.MESSAGE:
            yield self._of(item, ContentPartAdded, part=OutputText(text=""))
        elif item.kind is Kind.REASONING:
            yield self._of(item, ContentPartAdded, part=ReasoningText(text=""))

    def _close(self, status: ItemStatus) -> Iterator[ResponseEvent]:
        item, self._open = self._open, None
        if item is None:
            return
        if item.kind is Kind.MESSAGE:
            part = self._output.output_text(item)
            yield self._of(item, OutputTextDone, text=part.text, logprobs=part.logprobs)
            yield self._of(item, ContentPartDone, part=part)
        elif item.kind is Kind.REASONING:
            yield self._of(item, ReasoningTextDone, text=item.text)
            yield self._of(item, ContentPartDone, part=ReasoningText(text=item.text))
        else:
            yield self._of(item, CallArgumentsDone, name=item.name, arguments=item.text)
        yield self._numbered(OutputItemDone, output_index=item.index, item=self._output.shape(item, status))

    def _end(self, metrics: Metrics) -> Iterator[ResponseEvent]:
        yield from self._close(self._answer.last_status)
        cut = self._answer.reason is FinishReason.LENGTH
        if not cut and not self._output.is_answered:
            yield from self._begin(self._output.begin_message())
            yield from self._close("completed")
        yield self._numbered(ResponseIncomplete if cut else ResponseCompleted, response=self._answer.finished(metrics))


class ResponsesReply:
    """Collects the events of an answer and makes one document of them."""

    def __init__(
        self, model: Named, asked: ResponsesRequest, request: GenerationRequest, *, created: int | None = None
    ) -> None:
        """`created` in seconds since 1970; now where it is None."""
        self._answer = _Answer(model, asked, request, created)
        self._metrics: Metrics | None = None

    def add(self, event: Event) -> None:
        """Takes the next event.

        Raises:
            MindnanoError: the request failed; this is why.
        """
        if isinstance(event, Deltas):
            for delta in event.deltas:
                self._answer.output.add(delta)
        elif isinstance(event, ChoiceFinished):
            self._answer.reason = event.reason
        elif isinstance(event, Finished):
            self._metrics = total(event.metrics)
        elif isinstance(event, Failed):
            raise event.error

    def document(self) -> bytes:
        """The JSON of the answer, after `Finished`.

        Raises:
            InternalError: the answer is not complete.
        """
        if self._metrics is None:
            raise InternalError("internal", "an answer was written before it was complete")
        output = self._answer.output
        if self._answer.reason is not FinishReason.LENGTH and not output.is_answered:
            output.begin_message()
        return encode(self._answer.finished(self._metrics))
