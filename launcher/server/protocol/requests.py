"""The bodies of requests as types.

A field that OpenAI defines is served, or taken because it asks for nothing that this server could do otherwise, or it
has the type null, so that a request that uses it is refused by name. Fields that nobody here knows are passed over:
clients are newer than servers. Roles, kinds of parts and `chat_template_kwargs` are not: they would change the answer.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from launcher.server.protocol.limits import (
    LABEL,
    LABEL_OR_NOTHING,
    MAX_BIAS,
    MAX_BIASES,
    MAX_CHOICES,
    MAX_COMPLETION_LOGPROBS,
    MAX_DETOKENIZED,
    MAX_MESSAGES,
    MAX_METADATA,
    MAX_PENALTY,
    MAX_SEED,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
    MAX_TEMPERATURE,
    MAX_TIMEOUT,
    MAX_TOOLS,
    MAX_TOP_LOGPROBS,
    MIN_SEED,
    REQUEST_ID,
    TOKEN_KEY,
    TOOL_NAME,
)
from launcher.server.protocol.messages import ChatMessage

_StopText = Annotated[str, Meta(max_length=MAX_STOP_CHARACTERS)]
Stop = _StopText | Annotated[list[_StopText], Meta(max_length=MAX_STOPS)]
Penalty = Annotated[float, Meta(ge=-MAX_PENALTY, le=MAX_PENALTY)]
Seed = Annotated[int, Meta(extra_json_schema={"minimum": MIN_SEED, "maximum": MAX_SEED})]
TokenKey = Annotated[str, Meta(pattern=TOKEN_KEY)]
Bias = Annotated[float, Meta(ge=-MAX_BIAS, le=MAX_BIAS)]
Biases = Annotated[dict[TokenKey, Bias], Meta(max_length=MAX_BIASES)]
Metadata = Annotated[dict[str, Any], Meta(max_length=MAX_METADATA)]
Messages = Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
ThinkingBudget = Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)]
TokenId = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]


class StreamOptions(Struct, frozen=True, kw_only=True):
    """`include_usage` asks for one more chunk with the counts."""

    include_usage: bool | None = None


class FunctionDefinition(Struct, frozen=True, kw_only=True):
    """A function that the model may call; `parameters` is the JSON Schema of its arguments."""

    name: Annotated[str, Meta(pattern=TOOL_NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(Struct, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """A tool; functions are the only kind."""

    function: FunctionDefinition

    def variables(self) -> dict[str, object]:
        """What the template sees: the fields that were given, in this order."""
        function = self.function
        seen: dict[str, object] = {"name": function.name}
        if function.description is not None:
            seen["description"] = function.description
        if function.parameters is not None:
            seen["parameters"] = function.parameters
        if function.strict is not None:
            seen["strict"] = function.strict
        return {"type": "function", "function": seen}


class ChosenFunction(Struct, frozen=True, kw_only=True):
    """The function that must be called."""

    name: str


class NamedToolChoice(Struct, frozen=True, kw_only=True, tag_field="type", tag="function"):
    """Asks for a call of one function."""

    function: ChosenFunction


class TextFormat(Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """Any text."""


class JsonObjectFormat(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="json_object"):
    """A JSON object; in llama-server's form it follows `schema`, as with `json_schema`."""

    schema: dict[str, Any] | None = None


class JsonSchema(Struct, frozen=True, kw_only=True):
    """A JSON Schema; `strict` changes nothing, the reply follows the schema always."""

    name: Annotated[str, Meta(pattern=TOOL_NAME)]
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Struct, frozen=True, kw_only=True, tag_field="type", tag="json_schema"):
    """JSON that follows a schema."""

    json_schema: JsonSchema


class TemplateOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`chat_template_kwargs`: the switches of the template."""

    enable_thinking: bool | None = None
    thinking_option: Literal["on", "off"] | None = None


class ThinkingSwitch(Struct, frozen=True, kw_only=True):
    """`thinking` in the form that some clients send."""

    type: Literal["enabled", "disabled"]
    budget_tokens: ThinkingBudget | None = None


class ReasoningSwitch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`reasoning` in the form that some clients send; `effort` is as `reasoning_effort`."""

    enabled: bool | None = None
    effort: str | None = None
    max_tokens: ThinkingBudget | None = None


class Sampled(Struct, frozen=True, kw_only=True):
    """What all requests for text have in common: who asks, of what model, and how tokens are picked.

    `seed` -1 asks for any. An empty stop string stops nothing, and an empty name is none.
    """

    model: str | None = None
    stream: bool | None = None
    stop: Stop | None = None
    seed: Seed | None = None
    temperature: Annotated[float, Meta(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Biases | None = None
    ignore_eos: bool | None = None
    timeout: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT)] | None = None
    request_id: Annotated[str, Meta(pattern=REQUEST_ID)] | None = None
    session_id: Annotated[str, Meta(pattern=LABEL_OR_NOTHING)] | None = None
    prompt_cache_key: str | None = None
    user: str | None = None


class Common(Sampled, frozen=True, kw_only=True):
    """What chats and completions have in common. `return_progress` asks a stream to tell how far the prompt is read.

    Of `max_tokens` and `max_completion_tokens` the smaller one counts. `store` has no effect: nothing is stored.
    """

    stream_options: StreamOptions | None = None
    return_progress: bool | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    # Other servers' fields for replies that follow a grammar. Refused by name: without it the reply is another one.
    grammar: Literal[""] | None = None
    json_schema: None = None
    structured_outputs: None = None
    guided_json: None = None
    guided_regex: None = None
    guided_choice: None = None
    guided_grammar: None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the counts."""
        return self.stream_options is not None and self.stream_options.include_usage is True

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or ()
        return tuple(filter(None, given))


class ChatRequest(Common, frozen=True, kw_only=True):
    """The body of POST /v1/chat/completions and of /apply-template.

    `thinking_budget` is the most tokens of thinking, -1 for no limit; `thinking_budget_tokens`,
    `reasoning_budget_tokens`, `thinking_token_budget`, `thinking.budget_tokens` and `reasoning.max_tokens` are other
    clients' names for it.
    """

    messages: Messages
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    tools: Annotated[list[ToolDefinition], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    enable_thinking: bool | None = None
    thinking: bool | ThinkingSwitch | None = None
    chat_template_kwargs: TemplateOptions | None = None
    reasoning_effort: str | None = None
    reasoning: ReasoningSwitch | None = None
    thinking_budget: ThinkingBudget | None = None
    thinking_budget_tokens: ThinkingBudget | None = None
    reasoning_budget_tokens: ThinkingBudget | None = None
    thinking_token_budget: ThinkingBudget | None = None
    modalities: Annotated[list[Literal["text"]], Meta(max_length=1)] | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    # Refused by name; see `launcher.server.protocol.decode`.
    audio: None = None
    functions: None = None
    function_call: None = None
    max_thinking_tokens: None = None
    moderation: None = None
    prediction: None = None
    web_search_options: None = None


class CompletionRequest(Common, frozen=True, kw_only=True):
    """The body of POST /v1/completions. `prompt` is one text or one list of token ids, in a list of its own or not."""

    prompt: str | list[str | TokenId | list[TokenId]]
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_COMPLETION_LOGPROBS)] | None = None
    suffix: Literal[""] | None = None


class ControlRequest(Struct, frozen=True, kw_only=True):
    """The body of POST /v1/cancel, /v1/pause, /v1/resume and /v1/end-thinking."""

    request_id: Annotated[str, Meta(pattern=LABEL)]


class ReasoningControl(Struct, frozen=True, kw_only=True):
    """The body of POST /v1/chat/completions/control, as llama-server has it; `id` is that of the reply."""

    id: Annotated[str, Meta(pattern=LABEL)]
    action: Literal["reasoning_end"]


class TokenizeRequest(Struct, frozen=True, kw_only=True):
    """The body of POST /tokenize: a text, or messages that go through the template as those of a chat do.

    `parse_special`: special tokens that the text spells become those tokens. `add_special` has no effect: no text of
    this model begins with a token of its own.
    """

    content: str | None = None
    messages: Messages | None = None
    tools: Annotated[list[ToolDefinition], Meta(max_length=MAX_TOOLS)] | None = None
    enable_thinking: bool | None = None
    thinking: bool | ThinkingSwitch | None = None
    chat_template_kwargs: TemplateOptions | None = None
    reasoning_effort: str | None = None
    reasoning: ReasoningSwitch | None = None
    add_special: bool | None = None
    parse_special: bool | None = None


class DetokenizeRequest(Struct, frozen=True, kw_only=True):
    """The body of POST /detokenize."""

    tokens: Annotated[list[TokenId], Meta(max_length=MAX_DETOKENIZED)]
