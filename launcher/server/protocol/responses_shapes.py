"""What POST /v1/responses answers, as types: whole answers and the events of a stream are made from them."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

from launcher.server.protocol.requests import JsonObjectFormat, TextFormat
from launcher.server.protocol.responses_requests import FunctionChoice, FunctionTool, SchemaFormat
from launcher.server.protocol.shapes import MetricsShape, TokenShape

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """The text of an answer; `annotations` is always empty. `logprobs` are there where they were asked for."""

    annotations: list[Any] = field(default_factory=list)
    text: str
    logprobs: list[TokenShape] = field(default_factory=list)


class ReasoningText(Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning_text"):
    """The text of thinking."""

    text: str


class ReasoningItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """Thinking; `summary` is always empty."""

    id: str
    summary: list[Any] = field(default_factory=list)
    content: list[ReasoningText]
    encrypted_content: None = None
    status: ItemStatus


class MessageItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """The text that answers."""

    id: str
    role: Literal["assistant"] = "assistant"
    status: ItemStatus
    content: list[OutputText]


class CallItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A call that the model makes; `arguments` is the JSON text of an object. `call_id` is what its output names."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


OutputItem = ReasoningItem | MessageItem | CallItem


class InputTokensDetails(Struct, frozen=True, kw_only=True):
    """`cached_tokens` of the prompt were not evaluated again. `cache_write_tokens` is always 0: nothing is charged."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(Struct, frozen=True, kw_only=True):
    """`reasoning_tokens` of the answer are thinking."""

    reasoning_tokens: int


class ResponseUsage(Struct, frozen=True, kw_only=True):
    """Counts of tokens."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseFault(Struct, frozen=True, kw_only=True):
    """Why an answer failed; `code` is one of OpenAI's few, the event `error` before it has our own."""

    code: Literal["server_error"] = "server_error"
    message: str


class IncompleteDetails(Struct, frozen=True, kw_only=True):
    """Why an answer is cut short."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ReasoningShape(Struct, frozen=True, kw_only=True):
    """What was asked for of thinking."""

    effort: str | None
    summary: None = None


class TextShape(Struct, frozen=True, kw_only=True):
    """What was asked for of the text."""

    format: TextFormat | JsonObjectFormat | SchemaFormat


class ResponseObject(Struct, frozen=True, kw_only=True):
    """An answer, whole or as far as it is. Fields without effect say so: nothing is stored, nothing is left out."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: Literal[False] = False
    error: ResponseFault | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None = None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: None = None
    prompt_cache_key: str | None
    reasoning: ReasoningShape
    safety_identifier: str | None
    service_tier: Literal["default"] = "default"
    store: Literal[False] = False
    temperature: float
    text: TextShape
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice
    tools: list[FunctionTool]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None
    user: str | None
    system_fingerprint: str
    seed: int
    request_id: str
    session_id: str | UnsetType = UNSET
    mindnano_metrics: MetricsShape | UnsetType = UNSET


class ResponseEvent(Struct, frozen=True, kw_only=True, tag_field="type"):
    """One event of a stream; `type` is its name as well."""

    sequence_number: int


class ResponseCreated(ResponseEvent, frozen=True, kw_only=True, tag="response.created"):
    """The request was taken."""

    response: ResponseObject


class ResponseInProgress(ResponseEvent, frozen=True, kw_only=True, tag="response.in_progress"):
    """It waits or is worked on."""

    response: ResponseObject


class ResponseCompleted(ResponseEvent, frozen=True, kw_only=True, tag="response.completed"):
    """The last event: the whole answer."""

    response: ResponseObject


class ResponseIncomplete(ResponseEvent, frozen=True, kw_only=True, tag="response.incomplete"):
    """The last event: an answer that is cut short."""

    response: ResponseObject


class ResponseFailed(ResponseEvent, frozen=True, kw_only=True, tag="response.failed"):
    """The last event: what there is of an answer that failed."""

    response: ResponseObject


class ResponseErrorEvent(ResponseEvent, frozen=True, kw_only=True, tag="error"):
    """What went wrong; `response.failed` follows."""

    code: str | None
    message: str
    param: str | None


class OutputItemAdded(ResponseEvent, frozen=True, kw_only=True, tag="response.output_item.added"):
    """An item begins."""

    output_index: int
    item: OutputItem


class OutputItemDone(ResponseEvent, frozen=True, kw_only=True, tag="response.output_item.done"):
    """An item is complete, or cut short."""

    output_index: int
    item: OutputItem


class PartEvent(ResponseEvent, frozen=True, kw_only=True):
    """Of one part of one item."""

    item_id: str
    output_index: int
    content_index: int = 0


class ContentPartAdded(PartEvent, frozen=True, kw_only=True, tag="response.content_part.added"):
    """The text of an item begins."""

    part: OutputText | ReasoningText


class ContentPartDone(PartEvent, frozen=True, kw_only=True, tag="response.content_part.done"):
    """The text of an item is complete."""

    part: OutputText | ReasoningText


class OutputTextDelta(PartEvent, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """More of the answer's text."""

    delta: str
    logprobs: list[TokenShape]
    mindnano_metrics: MetricsShape


class OutputTextDone(PartEvent, frozen=True, kw_only=True, tag="response.output_text.done"):
    """The whole text."""

    text: str
    logprobs: list[TokenShape]


class ReasoningTextDelta(PartEvent, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """More of the thinking."""

    delta: str
    mindnano_metrics: MetricsShape


class ReasoningTextDone(PartEvent, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    """The whole thinking of one item."""

    text: str


class CallEvent(ResponseEvent, frozen=True, kw_only=True):
    """Of one call."""

    item_id: str
    output_index: int


class CallArgumentsDelta(CallEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    delta: str
    mindnano_metrics: MetricsShape


class CallArgumentsDone(CallEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    """The whole arguments of a call."""

    name: str
    arguments: str


RESPONSE_EVENTS: tuple[type[ResponseEvent], ...] = (
    ResponseCreated,
    ResponseInProgress,
    ResponseCompleted,
    ResponseIncomplete,
    ResponseFailed,
    ResponseErrorEvent,
    OutputItemAdded,
    OutputItemDone,
    ContentPartAdded,
    ContentPartDone,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    CallArgumentsDelta,
    CallArgumentsDone,
)
"""All events of a stream."""
