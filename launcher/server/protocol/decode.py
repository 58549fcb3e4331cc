"""Bytes to requests. Whatever the bytes are: the result is a request or a `RequestError` that names the field."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from launcher.errors import RequestError
from launcher.server.protocol.bounds import numbers_in_words
from launcher.server.protocol.limits import MAX_CONTAINERS, MAX_DEPTH, MAX_SEED, MIN_SEED
from launcher.server.protocol.long_prompts import UnreadPrompt, may_be_long, with_ids
from launcher.server.protocol.nesting import nesting_of, opened
from launcher.server.protocol.requests import (
    ChatRequest,
    Common,
    CompletionRequest,
    ControlRequest,
    DetokenizeRequest,
    NamedToolChoice,
    ReasoningControl,
    TokenizeRequest,
    ToolDefinition,
)

T = TypeVar("T")

_GUIDES: Final = (
    *("grammar", "json_schema", "structured_outputs"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
)
_REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(_GUIDES, "a chat follows a JSON schema by response_format"),
    "audio": "this model reads and writes text only",
    "modalities": 'this model reads and writes text only, so modalities can only be ["text"]',
    "functions": "it is out of use; use tools",
    "function_call": "it is out of use; use tool_choice and tool_calls",
    "moderation": "this server does not moderate",
    "prediction": "this server does not take predicted output",
    "max_thinking_tokens": "use thinking_budget",
    "web_search_options": "this server does not search the web",
    "suffix": "this model does not fill in the middle",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What a refusal says about one kind of body.

    Attributes:
        refused: a field that is not supported -> why, and what to do instead.
        choices: a field -> what it may be, where the library calls a value wrong without saying what would be right.
        kinds: the same for the tags of unions, by a pattern of the path.
    """

    refused: Mapping[str, str]
    choices: Mapping[str, str]
    kinds: tuple[tuple[re.Pattern[str], str], ...]


_WORDS_OF_CHATS: Final = Words(
    refused=_REFUSED,
    choices={
        "role": "system, developer, user, assistant or tool",
        "tool_choice": 'none, auto, required, or {"type": "function", "function": {"name": ...}}',
        "thinking_option": "on or off",
        "action": "reasoning_end",
    },
    kinds=(
        (re.compile(r"content\[\d+\]\.type$"), '"text": this model reads text only'),
        (re.compile(r"response_format\.type$"), "text, json_object or json_schema"),
        (re.compile(r"thinking\.type$"), "enabled or disabled"),
        (re.compile(r"\.type$"), '"function"'),
    ),
)

_WORDS: Final[Mapping[str, str]] = {
    "int": "an integer",
    "str": "a string",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_SHOWN: Final = 80
_PATH: Final = re.compile(r" - at (`key` in )?`\$(.*?)`$", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+)\]")


def decode_chat(body: bytes) -> ChatRequest:
    """The body of a chat.

    Raises:
        RequestError: it is no JSON, or not a request that can be served.
    """
    chat = decode_body(_CHAT, body)
    check_chat(chat)
    return chat


def check_chat(chat: ChatRequest) -> None:
    """What fields of a chat demand of each other, and what types do not say.

    Raises:
        RequestError: a field cannot be served.
    """
    _check_seed(chat)
    if chat.top_logprobs and chat.logprobs is not True:
        raise RequestError("invalid_value", "top_logprobs needs logprobs to be true", param="top_logprobs")
    _check_tools(chat.tools)
    names = {tool.function.name for tool in chat.tools or ()}
    choice = chat.tool_choice
    if isinstance(choice, NamedToolChoice) and choice.function.name not in names:
        known = ", ".join(sorted(names)) or "none"
        found = _shown(choice.function.name)
        param = "tool_choice.function.name"
        raise RequestError("invalid_value", f"{param} is {found}, which is not in tools ({known})", param=param)
    if choice == "required" and not names:
        raise RequestError("invalid_value", 'tool_choice "required" needs tools', param="tool_choice")


def decode_completion(body: bytes) -> CompletionRequest:
    """The body of a completion.

    Raises:
        RequestError: it is no JSON, or not a request that can be served.
    """
    completion = _completion(body)
    _check_seed(completion)
    count = completion.n or 1
    if completion.best_of is not None and completion.best_of > count:
        message = f"best_of is {completion.best_of}, more than n ({count}); every reply that is written is returned"
        raise RequestError("unsupported_parameter", message, param="best_of")
    if completion.echo and completion.logprobs is not None:
        message = "echo and logprobs exclude each other: the probabilities of the prompt are not computed"
        raise RequestError("unsupported_parameter", message, param="echo")
    return completion


def _completion(body: bytes) -> CompletionRequest:
    long = with_ids(decode_body(_UNREAD_PROMPT, body)) if may_be_long(body) else None
    return decode_body(_COMPLETION, body) if long is None else long


def decode_control(body: bytes) -> ControlRequest:
    """The body that cancels, pauses or resumes, or ends the thinking.

    Raises:
        RequestError: it is no JSON, or there is no request id.
    """
    return decode_body(_CONTROL, body)


def decode_reasoning_control(body: bytes) -> ReasoningControl:
    """The body that ends the thinking, as llama-server has it.

    Raises:
        RequestError: it is no JSON, there is no id, or it asks for another action.
    """
    return decode_body(_REASONING_CONTROL, body)


def decode_tokenize(body: bytes) -> TokenizeRequest:
    """The body of /tokenize.

    Raises:
        RequestError: it is no JSON, or has not exactly one of `content` and `messages`.
    """
    request = decode_body(_TOKENIZE, body)
    if (request.content is None) == (request.messages is None):
        raise RequestError("missing_field", "expected exactly one of content and messages", param="content")
    _check_tools(request.tools)
    return request


def decode_detokenize(body: bytes) -> DetokenizeRequest:
    """The body of /detokenize.

    Raises:
        RequestError: it is no JSON, or no list of token ids.
    """
    return decode_body(_DETOKENIZE, body)


_CHAT: Final = msgspec.json.Decoder(ChatRequest)
_COMPLETION: Final = msgspec.json.Decoder(CompletionRequest)
_UNREAD_PROMPT: Final = msgspec.json.Decoder(UnreadPrompt)
_CONTROL: Final = msgspec.json.Decoder(ControlRequest)
_REASONING_CONTROL: Final = msgspec.json.Decoder(ReasoningControl)
_TOKENIZE: Final = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE: Final = msgspec.json.Decoder(DetokenizeRequest)


def decode_body(decoder: msgspec.json.Decoder[T], body: bytes, words: Words = _WORDS_OF_CHATS) -> T:
    """The request that a body is.

    Raises:
        RequestError: it is no JSON, or not a request of this kind.
    """
    _check_nesting(body)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise refusal_of(str(error), body, decoder.type, words) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if not body.strip():
            raise RequestError("invalid_json", "the body is empty, expected a JSON object") from error
        raise RequestError("invalid_json", f"the body is not valid JSON in UTF-8: {error}") from error


def _check_nesting(body: bytes) -> None:
    if opened(body) <= MAX_DEPTH:  # most bodies; those need no closer look
        return
    found = nesting_of(body)
    if found.depth > MAX_DEPTH:
        raise RequestError("invalid_json", f"the body nests deeper than {MAX_DEPTH} levels")
    if found.containers > MAX_CONTAINERS:
        raise RequestError(
            "request_too_large", f"the body has more than {MAX_CONTAINERS} lists and objects", status=413
        )


def refusal_of(said: str, body: bytes, request: object, words: Words) -> RequestError:
    """A validation error of msgspec with what was found, and the path as a param; `request` is the body's type."""
    match = _PATH.search(said)
    path = match[2].lstrip(".") if match is not None else ""
    fault = said if match is None else said[: match.start()]
    field = path.rpartition(".")[2].partition("[")[0]
    missing = re.match(r"Object missing required field `(.*?)`", fault)
    if missing is not None:
        name = f"{path}.{missing[1]}" if path else missing[1]
        return RequestError("missing_field", f"{name} is missing", param=name)
    unknown = re.match(r"Object contains unknown field `(.*?)`", fault, re.DOTALL)
    if unknown is not None:
        name = f"{path}.{unknown[1]}" if path else unknown[1]
        shown = _cut(name)
        taken = f"; {path} takes {_TAKEN[field]}" if field in _TAKEN else ""
        return RequestError("unknown_field", f"{shown} is not known here{taken}", param=shown)
    if field in words.refused and ("." not in path or path.startswith("messages[")):  # elsewhere it means another thing
        return RequestError("unsupported_parameter", f"{path} is not supported: {words.refused[field]}", param=path)
    expected = _expected(fault, path, field, words)
    if match is not None and match[1]:
        return RequestError("invalid_value", f"a key of {path} is not {expected}", param=path)
    if fault.endswith("out of range"):  # of 64 bits; what reads it again could not show it either
        return RequestError(
            "invalid_value", f"{path} is out of range, expected {numbers_in_words(request, path)}", param=path
        )
    found = _found(body, path)
    code = "invalid_type" if ", got `" in fault else "invalid_value"
    return RequestError(code, f"{path or 'the body'} is {found}, expected {expected}", param=path or None)


_TAKEN: Final[Mapping[str, str]] = {
    "chat_template_kwargs": "enable_thinking and thinking_option",
    "reasoning": "max_tokens, enabled and effort",
}


def _expected(fault: str, path: str, field: str, words: Words) -> str:
    described = re.match(r"Expected (.*?)(, got `.*`)?$", fault, re.DOTALL)
    if described is None:
        kinds = next((kinds for pattern, kinds in words.kinds if pattern.search(path)), "another value")
        return words.choices.get(field, kinds)
    text = re.sub(r"`([^`]*)`", lambda found: _in_words(found[1]), described[1])
    if field in {"session_id", "name", "request_id"} and "regex" in text:
        if "a-zA-Z0-9" not in text:
            return "1 to 256 printable characters"
        return "1 to 64 letters, digits, _, ., : or -" if ":" in text else "1 to 64 letters, digits, _, . or -"
    return "a token id in digits" if "regex" in text else text


def _in_words(types: str) -> str:
    return " or ".join(_WORDS.get(name, name) for name in types.split(" | "))


def _found(body: bytes, path: str) -> str:
    """The value at the path as it would be written, cut short; only looked for once a request is refused anyway."""
    try:
        value: Any = msgspec.json.decode(body)
        for name, index in _STEP.findall(f".{path}"):
            value = value[int(index)] if index else value[name]
    except (msgspec.MsgspecError, LookupError, TypeError):  # the rest is no JSON, or the path names any key
        return "wrong"
    return _shown(value)


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    return _cut(msgspec.json.encode(value).decode())


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _check_seed(request: Common) -> None:
    if request.seed is not None and not MIN_SEED <= request.seed <= MAX_SEED:
        message = f"seed is out of range, expected an integer >= {MIN_SEED} and <= {MAX_SEED}"
        raise RequestError("invalid_value", message, param="seed")


def _check_tools(tools: list[ToolDefinition] | None) -> None:
    seen: set[str] = set()
    for index, tool in enumerate(tools or ()):
        name = tool.function.name
        if name in seen:
            param = f"tools[{index}].function.name"
            raise RequestError("invalid_value", f"{param} is {_shown(name)}, which occurs before", param=param)
        seen.add(name)
