"""The body of POST /v1/responses as types.

`input` and its items are read in two steps, because an item that is a message need not say so: the body first, then
each item as the kind that its `type` names. Fields that nobody here knows are passed over, as in chats.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from launcher.server.protocol.limits import (
    MAX_INCLUDED,
    MAX_ITEMS,
    MAX_METADATA,
    MAX_PARTS,
    MAX_TOOLS,
    MAX_TOP_LOGPROBS,
    TOOL_NAME,
)
from launcher.server.protocol.messages import RefusalPart
from launcher.server.protocol.requests import (
    JsonObjectFormat,
    Sampled,
    TemplateOptions,
    TextFormat,
    ThinkingBudget,
    ThinkingSwitch,
)

LOGPROBS: Final = "message.output_text.logprobs"
"""The name in `include` that asks for log-probabilities."""


class InputText(Struct, frozen=True, kw_only=True, tag_field="type", tag="input_text"):
    """A piece of text."""

    text: str


class OutputTextInput(Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """A piece of an earlier answer."""

    text: str


class ReasoningTextInput(Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning_text"):
    """A piece of earlier thinking."""

    text: str


class SummaryTextInput(Struct, frozen=True, kw_only=True, tag_field="type", tag="summary_text"):
    """A piece of a summary of earlier thinking."""

    text: str


Texts = Annotated[list[InputText | OutputTextInput | RefusalPart], Meta(max_length=MAX_PARTS)]
FunctionName = Annotated[str, Meta(pattern=TOOL_NAME)]


class MessageInput(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """A message; an item without a type is one."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | Texts


class ReasoningInput(Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """Thinking of the answer that follows: its text, or the summary where that is all there is."""

    summary: Annotated[list[SummaryTextInput], Meta(max_length=MAX_PARTS)] | None = None
    content: Annotated[list[ReasoningTextInput], Meta(max_length=MAX_PARTS)] | None = None


class CallInput(Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A call that an earlier answer made. `arguments` is the JSON text of an object."""

    call_id: str
    name: FunctionName
    arguments: str


class CallOutputInput(Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call_output"):
    """What a call gave back."""

    call_id: str
    output: str | Texts


InputItem = MessageInput | ReasoningInput | CallInput | CallOutputInput


class FunctionTool(Struct, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """A function that the model may call; `parameters` is the JSON Schema of its arguments."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionChoice(Struct, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """Asks for a call of one function."""

    name: str


class SchemaFormat(Struct, frozen=True, kw_only=True, tag_field="type", tag="json_schema"):
    """JSON that follows a schema; `strict` changes nothing, the answer follows the schema always."""

    name: FunctionName
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class TextSettings(Struct, frozen=True, kw_only=True):
    """What the answer's text has to be. `verbosity` has no effect."""

    format: TextFormat | JsonObjectFormat | SchemaFormat | None = None
    verbosity: str | None = None


class ReasoningSettings(Struct, frozen=True, kw_only=True):
    """`effort` "none" switches thinking off, `max_tokens` bounds it. It is told as it is: `summary` has no effect."""

    effort: str | None = None
    max_tokens: ThinkingBudget | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponsesRequest(Sampled, frozen=True, kw_only=True):
    """The body of POST /v1/responses.

    `store`, `truncation`, `max_tool_calls` and names in `include` other than that of log-probabilities have no effect,
    and the answer says so: `store` is false in it, and `truncation` "disabled".
    """

    input: str | Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MAX_ITEMS)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    include: Annotated[list[str], Meta(max_length=MAX_INCLUDED)] | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    enable_thinking: bool | None = None
    thinking: bool | ThinkingSwitch | None = None
    chat_template_kwargs: TemplateOptions | None = None
    thinking_budget: ThinkingBudget | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=MAX_METADATA)] | None = None
    stream_options: dict[str, Any] | None = None
    store: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    max_tool_calls: int | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    background: Literal[False] | None = None
    # Refused by name; see `launcher.server.protocol.responses_decode`.
    context_management: None = None
    conversation: None = None
    moderation: None = None
    previous_response_id: None = None
    prompt: None = None
    # Names that these things have in chats: passed over, they would change the answer without a word.
    max_completion_tokens: None = None
    max_tokens: None = None
    messages: None = None
    n: Literal[1] | None = None
    reasoning_effort: None = None
    response_format: None = None
