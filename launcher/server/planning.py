"""From a decoded request to a `GenerationRequest`: rendered, tokenised, checked against the model and bounded.

Decisions where OpenAI leaves room or this model differs:

- `tool_choice` "none" leaves the tools in the prompt, so that the cached prefix stays the same, and forbids the token
  that begins a call.
- With `response_format` and tools that may be called the whole reply is one or the other: JSON, or calls. With
  `tool_choice` "required" or a named function the calls are all of it, and the format has nothing to act on.
- A completion has one prompt.
"""

from __future__ import annotations

import re
import secrets
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from launcher.engine_types import Sampling
from launcher.errors import RequestError, UsageError
from launcher.reply import THINK_CLOSE, THINK_OPEN, TOOL_CALL
from launcher.server.grammar import CallReply, ConstrainedReply, EitherReply, JsonReply
from launcher.server.marks import marks
from launcher.server.protocol.errors import ContextLengthExceeded
from launcher.server.protocol.limits import MAX_BIAS, MAX_NAME_CHARACTERS, REQUEST_ID
from launcher.server.protocol.messages import template_messages
from launcher.server.protocol.requests import (
    ChatRequest,
    Common,
    CompletionRequest,
    DetokenizeRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedToolChoice,
    TextFormat,
    TokenizeRequest,
)
from launcher.server.request import Constraint, GenerationRequest, Style, Tool
from launcher.server.served import ServedModel
from launcher.server.session_names import session_name
from launcher.server.thinking import thinking_budget, thinking_of
from launcher.template import Message

# The engine computes in float32, where smaller values become 0, which it refuses.
_SMALLEST: Final = 1e-6
# And where it takes what is just below 1 for 1.
_BELOW_ONE: Final = 1 - 2**-24
# Of a seed that is picked here. It is told, and JavaScript reads no larger number exactly.
_SEED_BITS: Final = 53
# The seed that asks for any, as llama-server has it.
_ANY_SEED: Final = -1
_REQUEST_ID: Final = re.compile(REQUEST_ID)


def plan_chat(
    model: ServedModel, chat: ChatRequest, *, owner: str, header_session: str | None, id: str
) -> GenerationRequest:
    """What a chat asks of the engine.

    Args:
        model: what is served.
        chat: the decoded body.
        owner: who asks; see `GenerationRequest`.
        header_session: the value of X-Session-Id, if there is one.
        id: the request's id.

    Raises:
        RequestError: what cannot be served, with the field's name; 404 for another model.
        PackageError: the template fails.
    """
    _check_model(model, chat)
    session = session_name(chat, header_session)
    thinking = thinking_of(chat, model.thinking)
    messages = template_messages(chat.messages)
    tools = [tool.variables() for tool in chat.tools or ()]
    prompt = _render(model, messages, thinking=thinking, tools=tools)
    ids = _prompt_ids(model, prompt, "messages")
    room = model.context - len(ids)
    reasoning = prompt.rstrip().endswith(THINK_OPEN)
    reply = _constrained_reply(chat)
    return GenerationRequest(
        id=id,
        owner=owner,
        session=session,
        prompt=tuple(ids),
        marks=marks(
            model.template,
            messages,
            thinking=thinking,
            tools=tools or None,
            prompt=prompt,
            ids=ids,
            tokenize=model.text.tokenize,
            limit=min(model.checkpoints, max(1, model.checkpoints - 1)),  # one slot is the system text's
        )
        if model.checkpoints
        else (),
        max_tokens=_max_tokens(model, room, chat.max_tokens, chat.max_completion_tokens),
        choices=chat.n or 1,
        sampling=_sampling(model, chat),
        logit_bias=_biases(model, chat) | (_no_calls(model) if tools and chat.tool_choice == "none" else {}),
        stops=chat.stops,
        ignore_eos=chat.ignore_eos is True,
        logprobs=(chat.top_logprobs or 0) if chat.logprobs else None,
        style=Style.CHAT,
        reasoning=reasoning,
        thinking_budget=thinking_budget(chat, model.thinking_budget),
        thinking_end=tuple(model.text.tokenize(THINK_CLOSE)) if reasoning else (),
        tools=() if chat.tool_choice == "none" else _tools(chat),
        parallel_calls=chat.parallel_tool_calls is not False,
        text_or_calls=isinstance(reply, EitherReply),
        new_constraint=_constraint(model, chat, reply, reasoning=reasoning),
        deadline=_deadline(model, chat),
    )


def plan_completion(
    model: ServedModel, completion: CompletionRequest, *, owner: str, header_session: str | None, id: str
) -> GenerationRequest:
    """What a completion asks of the engine; arguments and errors as those of `plan_chat`."""
    _check_model(model, completion)
    session = session_name(completion, header_session)
    prompt = _one_prompt(completion)
    if isinstance(prompt, str):
        ids: Sequence[int] = _prompt_ids(model, prompt, "prompt")
    else:
        ids = prompt
        _check_ids(model, ids, "prompt")
        _check_room(model, len(ids), "prompt")
    if not ids:
        raise RequestError("invalid_value", "prompt is empty, expected at least one token", param="prompt")
    room = model.context - len(ids)
    return GenerationRequest(
        id=id,
        owner=owner,
        session=session,
        prompt=tuple(ids),
        max_tokens=_max_tokens(model, room, completion.max_tokens, completion.max_completion_tokens),
        choices=completion.n or 1,
        sampling=_sampling(model, completion),
        logit_bias=_biases(model, completion),
        stops=completion.stops,
        ignore_eos=completion.ignore_eos is True,
        logprobs=completion.logprobs,
        style=Style.TEXT,
        deadline=_deadline(model, completion),
    )


def prompt_text(model: ServedModel, chat: ChatRequest) -> str:
    """The prompt that the template makes of a chat.

    Raises:
        RequestError: the messages cannot be rendered.
        PackageError: the template fails.
    """
    _check_model(model, chat)
    tools = [tool.variables() for tool in chat.tools or ()]
    thinking = thinking_of(chat, model.thinking)
    return _render(model, template_messages(chat.messages), thinking=thinking, tools=tools)


def count_of(model: ServedModel, chat: ChatRequest) -> int:
    """Tokens of the prompt that a chat makes, whether or not they fit the context; errors as `prompt_text`."""
    return model.text.first_tokens(prompt_text(model, chat), 0)[1]


def tokens_of(model: ServedModel, request: TokenizeRequest) -> array[int]:
    """The token ids of a text, or of the prompt that messages make.

    Raises:
        RequestError: the messages cannot be rendered.
        PackageError: the template fails.
    """
    if request.messages is None:
        return model.text.first_tokens(request.content or "", special=request.parse_special is not False)[0]
    tools = [tool.variables() for tool in request.tools or ()]
    thinking = thinking_of(request, model.thinking)
    prompt = _render(model, template_messages(request.messages), thinking=thinking, tools=tools)
    return model.text.first_tokens(prompt)[0]


def detokenized(model: ServedModel, request: DetokenizeRequest) -> str:
    """The text of token ids, with U+FFFD for what is no UTF-8.

    Raises:
        RequestError: an id has no token.
    """
    _check_ids(model, request.tokens, "tokens")
    return text_of(model, request.tokens)


def text_of(model: ServedModel, ids: Sequence[int]) -> str:
    """The text of known token ids; `echo` of a completion is that of its prompt."""
    return b"".join(map(model.text.token_bytes, ids)).decode(errors="replace")


def request_name(request: Common, header: str | None) -> str | None:
    """The client's id for its request: request_id, else X-Request-Id. Proxies set that header too, with any text: what
    is no id is passed over."""
    if request.request_id is not None or header is None:
        return request.request_id
    return header if _REQUEST_ID.search(header) else None


def _check_model(model: ServedModel, request: Common) -> None:
    if request.model is not None and request.model != model.id:
        message = f"the model {request.model[:MAX_NAME_CHARACTERS]!r} is not served here; this server has {model.id!r}"
        raise RequestError("model_not_found", message, status=404, param="model")


def _render(
    model: ServedModel, messages: Sequence[Message], *, thinking: bool, tools: Sequence[Mapping[str, object]]
) -> str:
    try:
        return model.template.render(messages, enable_thinking=thinking, tools=tools or None)
    except UsageError as error:
        raise RequestError("template_refused", error.message, param="messages") from error


def _prompt_ids(model: ServedModel, prompt: str, param: str) -> list[int]:
    """The ids of a prompt that leaves room for a reply; of a longer one, nothing but their number is made."""
    ids, count = model.text.first_tokens(prompt, model.context)
    _check_room(model, count, param)
    return ids.tolist()


def _check_room(model: ServedModel, count: int, param: str) -> None:
    if count >= model.context:
        raise ContextLengthExceeded(count, model.context, param=param)


def _max_tokens(model: ServedModel, room: int, *asked: int | None) -> int:
    given = [count for count in asked if count is not None]
    if not given and model.max_tokens is not None:
        given = [model.max_tokens]
    return min([room, *given])


def _deadline(model: ServedModel, request: Common) -> float | None:
    return min((limit for limit in (request.timeout, model.timeout) if limit is not None), default=None)


def _sampling(model: ServedModel, request: Common) -> Sampling:
    seed = model.seed if request.seed is None else request.seed
    if seed in (None, _ANY_SEED):
        seed = secrets.randbits(_SEED_BITS)
    changes: dict[str, Any] = {"seed": seed}  # told as it was given; the engine takes it modulo 2**64
    for name in ("temperature", "frequency_penalty", "presence_penalty"):
        value = getattr(request, name)
        if value is not None:
            changes[name] = value
    for name in ("top_p", "repetition_penalty"):
        value = getattr(request, name)
        if value is not None:
            changes[name] = max(value, _SMALLEST)
    if request.min_p is not None:
        changes["min_p"] = min(request.min_p, _BELOW_ONE)
    if request.top_k is not None:
        changes["top_k"] = max(request.top_k, 0)  # -1 is what some clients send for "off"
    return replace(model.sampling, **changes)


def _biases(model: ServedModel, request: Common) -> dict[int, float]:
    biases: dict[int, float] = {}
    for key, bias in (request.logit_bias or {}).items():
        token = int(key)
        if token >= model.token_count:
            message = f"logit_bias names the token {key}, the model has ids from 0 to {model.token_count - 1}"
            raise RequestError("invalid_value", message, param=f"logit_bias.{key}")
        if not model.text.token_bytes(token):  # the sampler refuses it, but only when the request has begun
            message = f"logit_bias names the id {key}, which no token of the model has"
            raise RequestError("invalid_value", message, param=f"logit_bias.{key}")
        biases[token] = bias
    return biases


def _no_calls(model: ServedModel) -> dict[int, float]:
    ids = model.text.tokenize(TOOL_CALL)
    return {ids[0]: -MAX_BIAS} if len(ids) == 1 else {}


def _check_ids(model: ServedModel, ids: Sequence[int], param: str) -> None:
    for index, token in enumerate(ids):
        if token >= model.token_count:
            message = f"{param}[{index}] is {token}, the model has ids from 0 to {model.token_count - 1}"
            raise RequestError("invalid_value", message, param=f"{param}[{index}]")


def _one_prompt(completion: CompletionRequest) -> str | list[int]:
    prompt = completion.prompt
    if isinstance(prompt, str):
        return prompt
    ids = [entry for entry in prompt if isinstance(entry, int)]
    if len(ids) == len(prompt):
        return ids
    only = prompt[0]
    if len(prompt) == 1 and not isinstance(only, int):
        return only
    if ids:
        raise RequestError("invalid_type", "prompt mixes token ids with other things", param="prompt")
    message = f"prompt is a list of {len(prompt)} prompts, expected one; send one request for each"
    raise RequestError("unsupported_parameter", message, param="prompt")


def _tools(chat: ChatRequest) -> tuple[Tool, ...]:
    return tuple(Tool(name=tool.function.name, parameters=tool.function.parameters or {}) for tool in chat.tools or ())


def _constraint(
    model: ServedModel, chat: ChatRequest, reply: ConstrainedReply | None, *, reasoning: bool
) -> Callable[[], Constraint] | None:
    if reply is None:
        return None
    if chat.ignore_eos:
        message = "ignore_eos cannot be combined with a reply that follows a grammar, which has an end"
        raise RequestError("unsupported_parameter", message, param="ignore_eos")
    return model.grammar.constraint(reply, reasoning=reasoning)


def _constrained_reply(chat: ChatRequest) -> ConstrainedReply | None:
    choice = chat.tool_choice
    parallel = chat.parallel_tool_calls is not False
    if isinstance(choice, NamedToolChoice):
        return CallReply(tools=_tools(chat), name=choice.function.name, parallel=parallel)
    if choice == "required":
        return CallReply(tools=_tools(chat), name=None, parallel=parallel)
    wanted = chat.response_format
    if wanted is None or isinstance(wanted, TextFormat):
        return None
    json = _json_reply(wanted)
    if chat.tools and choice != "none":
        return EitherReply(json=json, calls=CallReply(tools=_tools(chat), name=None, parallel=parallel))
    return json


def _json_reply(wanted: JsonObjectFormat | JsonSchemaFormat) -> JsonReply:
    if isinstance(wanted, JsonObjectFormat):
        return JsonReply(schema=wanted.schema, param="response_format.schema")
    return JsonReply(schema=wanted.json_schema.schema or {})
