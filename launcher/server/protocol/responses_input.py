"""A response's items and settings as the chat that asks for the same.

An answer comes as several items: its thinking, its text, and each of its calls. Those that follow each other become
one message of the assistant again, so that the prompt of the next turn begins with the tokens of this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from launcher.server.protocol.messages import (
    AssistantMessage,
    CalledFunction,
    CallEntry,
    ChatMessage,
    DeveloperMessage,
    RefusalPart,
    SystemMessage,
    ToolMessage,
    UserMessage,
    arguments_of,
)
from launcher.server.protocol.requests import (
    ChatRequest,
    ChosenFunction,
    FunctionDefinition,
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    NamedToolChoice,
    ReasoningSwitch,
    Sampled,
    TextFormat,
    ToolDefinition,
)
from launcher.server.protocol.responses_requests import (
    LOGPROBS,
    CallInput,
    CallOutputInput,
    FunctionChoice,
    FunctionTool,
    InputItem,
    InputText,
    MessageInput,
    OutputTextInput,
    ReasoningInput,
    ResponsesRequest,
    SchemaFormat,
)

_OTHERS: Final[dict[str, type[UserMessage | SystemMessage | DeveloperMessage]]] = {
    "user": UserMessage,
    "system": SystemMessage,
    "developer": DeveloperMessage,
}


def chat_of(asked: ResponsesRequest, items: Sequence[InputItem]) -> ChatRequest:
    """The chat whose reply is the answer to this request.

    Raises:
        RequestError: the arguments of a call are no JSON object.
    """
    reasoning = asked.reasoning
    with_logprobs = bool(asked.top_logprobs) or LOGPROBS in (asked.include or ())
    return ChatRequest(
        **{name: getattr(asked, name) for name in Sampled.__struct_fields__},
        messages=messages_of(asked.instructions, items),
        max_tokens=asked.max_output_tokens,
        logprobs=with_logprobs,
        top_logprobs=asked.top_logprobs if with_logprobs else None,
        tools=None if asked.tools is None else [_tool(tool) for tool in asked.tools],
        tool_choice=_choice(asked),
        parallel_tool_calls=asked.parallel_tool_calls,
        response_format=_format(asked),
        enable_thinking=asked.enable_thinking,
        thinking=asked.thinking,
        chat_template_kwargs=asked.chat_template_kwargs,
        reasoning=None
        if reasoning is None
        else ReasoningSwitch(effort=reasoning.effort, max_tokens=reasoning.max_tokens),
        thinking_budget=asked.thinking_budget,
        metadata=dict(asked.metadata or {}),
    )


def messages_of(instructions: str | None, items: Sequence[InputItem]) -> list[ChatMessage]:
    """The messages that instructions and items are.

    Raises:
        RequestError: the arguments of a call are no JSON object.
    """
    begun = [] if instructions is None else [SystemMessage(content=instructions)]
    return [*begun, *_messages(items)]


@dataclass(slots=True)
class _Turn:
    """What has come of a message of the assistant."""

    content: str | None = None
    reasoning: list[str] = field(default_factory=list)
    calls: list[CallEntry] = field(default_factory=list)

    def is_over(self, item: MessageInput | ReasoningInput | CallInput) -> bool:
        """Whether the item begins another message."""
        return self.content is not None and not isinstance(item, CallInput)

    def message(self) -> AssistantMessage:
        thought = "".join(self.reasoning) if self.reasoning else None
        return AssistantMessage(content=self.content, reasoning_content=thought, tool_calls=self.calls or None)


def _messages(items: Sequence[InputItem]) -> Iterator[ChatMessage]:
    turn: _Turn | None = None
    for index, item in enumerate(items):
        if isinstance(item, CallOutputInput) or (isinstance(item, MessageInput) and item.role != "assistant"):
            if turn is not None:
                yield turn.message()
                turn = None
            yield _other(item)
            continue
        if turn is not None and turn.is_over(item):
            yield turn.message()
            turn = None
        turn = turn or _Turn()
        if isinstance(item, MessageInput):
            turn.content = _text(item.content)
        elif isinstance(item, ReasoningInput):
            turn.reasoning += _thoughts(item)
        else:
            turn.calls.append(_call(item, f"input[{index}].arguments"))
    if turn is not None:
        yield turn.message()


def _other(item: MessageInput | CallOutputInput) -> ChatMessage:
    if isinstance(item, CallOutputInput):
        return ToolMessage(content=_text(item.output), tool_call_id=item.call_id)
    return _OTHERS[item.role](content=_text(item.content))


def _text(content: str | Sequence[InputText | OutputTextInput | RefusalPart]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.refusal if isinstance(part, RefusalPart) else part.text for part in content)


def _thoughts(item: ReasoningInput) -> list[str]:
    return [part.text for part in item.content or item.summary or ()]


def _call(item: CallInput, where: str) -> CallEntry:
    called = CalledFunction(name=item.name, arguments=arguments_of(item.arguments, where))
    return CallEntry(function=called, id=item.call_id)


def _tool(tool: FunctionTool) -> ToolDefinition:
    return ToolDefinition(
        function=FunctionDefinition(
            name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
        )
    )


def _choice(asked: ResponsesRequest) -> NamedToolChoice | Literal["none", "auto", "required"] | None:
    choice = asked.tool_choice
    return NamedToolChoice(function=ChosenFunction(name=choice.name)) if isinstance(choice, FunctionChoice) else choice


def _format(asked: ResponsesRequest) -> TextFormat | JsonObjectFormat | JsonSchemaFormat | None:
    wanted = None if asked.text is None else asked.text.format
    if not isinstance(wanted, SchemaFormat):
        return wanted
    schema = JsonSchema(name=wanted.name, schema=wanted.schema, description=wanted.description, strict=wanted.strict)
    return JsonSchemaFormat(json_schema=schema)
