"""The messages of a chat as clients send them, and as the chat template takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from launcher.errors import RequestError
from launcher.server.protocol.limits import LABEL, MAX_PARTS, MAX_TOOL_CALLS, TOOL_NAME
from launcher.template import Message, ToolCall


class TextPart(Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """A piece of text. The model reads nothing else."""

    text: str


class RefusalPart(Struct, frozen=True, kw_only=True, tag_field="type", tag="refusal"):
    """A refusal that the assistant wrote; read as text."""

    refusal: str


Parts = Annotated[list[TextPart], Meta(max_length=MAX_PARTS)]
AssistantParts = Annotated[list[TextPart | RefusalPart], Meta(max_length=MAX_PARTS)]
Name = Annotated[str, Meta(pattern=LABEL)]


class CalledFunction(Struct, frozen=True, kw_only=True):
    """A function that was called. `arguments` is the JSON text of an object, or the object itself."""

    name: Annotated[str, Meta(pattern=TOOL_NAME)]
    arguments: str | dict[str, Any] = ""


class CallEntry(Struct, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """A call in a message of the assistant."""

    function: CalledFunction
    id: str | None = None


class SystemMessage(Struct, frozen=True, kw_only=True, tag_field="role", tag="system"):
    """How to behave."""

    content: str | Parts | None
    name: Name | None = None


class DeveloperMessage(Struct, frozen=True, kw_only=True, tag_field="role", tag="developer"):
    """The same as a system message."""

    content: str | Parts | None
    name: Name | None = None


class UserMessage(Struct, frozen=True, kw_only=True, tag_field="role", tag="user"):
    """What the user says."""

    content: str | Parts | None
    name: Name | None = None


class AssistantMessage(Struct, frozen=True, kw_only=True, tag_field="role", tag="assistant"):
    """An earlier reply: its text, its calls, or both. `reasoning` is another name of `reasoning_content`."""

    content: str | AssistantParts | None = None
    name: Name | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[CallEntry], Meta(max_length=MAX_TOOL_CALLS)] | None = None
    audio: None = None
    function_call: None = None


class ToolMessage(Struct, frozen=True, kw_only=True, tag_field="role", tag="tool"):
    """What a call gave back."""

    content: str | Parts | None
    tool_call_id: str | None = None
    name: Name | None = None


ChatMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage

_ROLES: Mapping[type, str] = {
    SystemMessage: "system",
    DeveloperMessage: "system",
    UserMessage: "user",
    AssistantMessage: "assistant",
    ToolMessage: "tool",
}


def template_messages(messages: Sequence[ChatMessage]) -> list[Message]:
    """The messages as the template takes them: parts joined, arguments as mappings.

    Raises:
        RequestError: the arguments of a call are no JSON object.
    """
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: ChatMessage, path: str) -> Message:
    role, text = _ROLES[type(message)], _text(message.content)
    if isinstance(message, AssistantMessage):
        reasoning = message.reasoning if message.reasoning_content is None else message.reasoning_content
        calls = tuple(
            ToolCall(
                id=call.id or "", name=call.function.name, arguments=_arguments(call, f"{path}.tool_calls[{index}]")
            )
            for index, call in enumerate(message.tool_calls or ())
        )
        return Message(
            role=role,
            content=text or message.refusal or "",
            reasoning=reasoning,
            tool_calls=calls,
            name=message.name or "",
        )
    call_id = (message.tool_call_id or "") if isinstance(message, ToolMessage) else ""
    return Message(role=role, content=text, reasoning=None, name=message.name or "", tool_call_id=call_id)


def _text(content: str | Sequence[TextPart | RefusalPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


def _arguments(call: CallEntry, path: str) -> Mapping[str, object]:
    given = call.function.arguments
    return arguments_of(given, f"{path}.function.arguments") if isinstance(given, str) else given


def arguments_of(text: str, where: str) -> dict[str, Any]:
    """The arguments that a JSON text has; none where it is blank.

    Raises:
        RequestError: it is no JSON object; `where` is its path.
    """
    if not text.strip():
        return {}
    try:
        found: object = msgspec.json.decode(text.encode())
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _no_object(where, "text that is not JSON") from error
    if not isinstance(found, dict):
        raise _no_object(where, "JSON, but no object")
    return found


def _no_object(where: str, found: str) -> RequestError:
    return RequestError("invalid_value", f"{where} is {found}, expected the JSON text of an object", param=where)
