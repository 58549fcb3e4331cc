"""What the server answers, as types: non-streamed replies are made from them, and the API's description as well."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

FinishWord = Literal["stop", "length", "tool_calls"]


class MetricsShape(Struct, frozen=True, kw_only=True):
    """`mindnano_metrics`: how a reply goes. Times in seconds, rates in tokens per second."""

    ttft_seconds: float
    queue_seconds: float
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    prompt_tokens: int
    cached_tokens: int
    cache_source: Literal["none", "live", "ram", "disk"]
    generated_tokens: int
    drafted_tokens: int
    accepted_tokens: int


class Timings(Struct, frozen=True, kw_only=True):
    """The same as llama-server has it, in milliseconds: `cache_n` tokens of the prompt were reused, `prompt_n` read.

    The rates are those of `mindnano_metrics`: the first token comes with the prompt and counts in no time of writing.
    `draft_n` and `draft_n_accepted` are there where tokens were drafted.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int | UnsetType = UNSET
    draft_n_accepted: int | UnsetType = UNSET


class PromptProgress(Struct, frozen=True, kw_only=True):
    """`processed` of `total` tokens are read; the first `cache` of them needed no reading. `time_ms` since it began."""

    total: int
    cache: int
    processed: int
    time_ms: int


class PromptDetails(Struct, frozen=True, kw_only=True):
    """`cached_tokens` of the prompt were not evaluated again."""

    cached_tokens: int


class CompletionDetails(Struct, frozen=True, kw_only=True):
    """`reasoning_tokens` of the reply are thinking."""

    reasoning_tokens: int


class Usage(Struct, frozen=True, kw_only=True):
    """Counts of tokens; those of the reply over all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class TopToken(Struct, frozen=True, kw_only=True):
    """A token that was likely. `bytes` are exact, in `token` U+FFFD stands for what is no UTF-8."""

    token: str
    bytes: list[int]
    logprob: float


class TokenShape(Struct, frozen=True, kw_only=True):
    """A token of the reply with the likeliest ones at its place."""

    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[TopToken]


class ChatLogprobs(Struct, frozen=True, kw_only=True):
    """Log-probabilities of the content's tokens."""

    content: list[TokenShape]
    refusal: None = None


class FunctionText(Struct, frozen=True, kw_only=True):
    """`arguments` is the JSON text of an object."""

    name: str
    arguments: str


class ToolCallShape(Struct, frozen=True, kw_only=True):
    """A call that the model makes."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionText


class ReplyMessage(Struct, frozen=True, kw_only=True):
    """A reply. `reasoning` is the same as `reasoning_content`."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallShape] | UnsetType = UNSET


class ChatChoice(Struct, frozen=True, kw_only=True):
    """One of `n` replies."""

    index: int
    message: ReplyMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishWord


class Identity(Struct, frozen=True, kw_only=True):
    """What names a reply, in its document and in each of its chunks. `seed` is the one in use, given or not;
    `session_id` is there where one was given."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    seed: int
    request_id: str
    session_id: str | UnsetType = UNSET


class Document(Identity, frozen=True, kw_only=True):
    """What every whole reply has."""

    usage: Usage
    mindnano_metrics: MetricsShape
    timings: Timings


class Chunk(Identity, frozen=True, kw_only=True):
    """What every chunk may have; `usage` is there where `stream_options.include_usage` asks for it, `prompt_progress`
    where `return_progress` does, until the prompt is read; `timings` are in the last chunk of a choice and in that with
    the usage."""

    usage: Usage | UnsetType | None = UNSET
    prompt_progress: PromptProgress | UnsetType = UNSET
    mindnano_metrics: MetricsShape | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class ChatCompletion(Document, frozen=True, kw_only=True):
    """The answer to a chat."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]


class FunctionPiece(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """More of a call."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallPiece(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """More of the call `index`; the first piece has its id and name."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionPiece


class ChatDelta(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is new."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallPiece] | UnsetType = UNSET


class ChunkChoice(Struct, frozen=True, kw_only=True):
    """More of one choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishWord | None


class ChatChunk(Chunk, frozen=True, kw_only=True):
    """One `data:` line of a streamed chat."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChunkChoice]


class TextLogprobs(Struct, frozen=True, kw_only=True):
    """Log-probabilities of a completion, one entry a token; `text_offset` in characters."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(Struct, frozen=True, kw_only=True):
    """One of `n` completions."""

    text: str
    index: int
    logprobs: TextLogprobs | None
    finish_reason: FinishWord


class Completion(Document, frozen=True, kw_only=True):
    """The answer to a prompt."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[TextChoice]


class TextChunkChoice(Struct, frozen=True, kw_only=True):
    """More of one completion."""

    text: str
    index: int
    logprobs: TextLogprobs | None
    finish_reason: FinishWord | None


class CompletionChunk(Chunk, frozen=True, kw_only=True):
    """One `data:` line of a streamed completion."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[TextChunkChoice]


class ErrorShape(Struct, frozen=True, kw_only=True):
    """What went wrong; `n_prompt_tokens` and `n_ctx` come with `context_length_exceeded`."""

    message: str
    type: str
    param: str | None
    code: str | None
    n_prompt_tokens: int | UnsetType = UNSET
    n_ctx: int | UnsetType = UNSET


class ErrorReply(Struct, frozen=True, kw_only=True):
    """Every answer that is no success, and the last `data:` line of a stream that fails."""

    error: ErrorShape


class ModelCard(Struct, frozen=True, kw_only=True):
    """The model that is served; `meta` has its context, its cache format and the like."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    meta: dict[str, Any] = field(default_factory=dict)


class ModelList(Struct, frozen=True, kw_only=True):
    """The models that are served: one."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Tokens(Struct, frozen=True, kw_only=True):
    """Token ids of a text."""

    tokens: list[int]
    count: int


class InputTokens(Struct, frozen=True, kw_only=True):
    """How many tokens the prompt of a request has."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class PlainText(Struct, frozen=True, kw_only=True):
    """The text of token ids."""

    content: str


class PromptText(Struct, frozen=True, kw_only=True):
    """The text that the template makes of messages."""

    prompt: str
