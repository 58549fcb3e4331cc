"""The description of the API, OpenAPI 3.1, made from the types that requests are read with and replies written from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from launcher.server.protocol.fact_shapes import (
    Controlled,
    Health,
    Properties,
    Readiness,
    SessionDeleted,
    SessionList,
    SessionTaken,
    Slot,
)
from launcher.server.protocol.limits import LABEL_IN_HEADER, MAX_ITEMS
from launcher.server.protocol.requests import (
    ChatRequest,
    CompletionRequest,
    ControlRequest,
    DetokenizeRequest,
    ReasoningControl,
    TokenizeRequest,
)
from launcher.server.protocol.responses_decode import INPUT_ITEMS
from launcher.server.protocol.responses_requests import ResponsesRequest
from launcher.server.protocol.responses_shapes import RESPONSE_EVENTS, ResponseEvent, ResponseObject
from launcher.server.protocol.shapes import (
    ChatChunk,
    ChatCompletion,
    Completion,
    CompletionChunk,
    ErrorReply,
    InputTokens,
    ModelCard,
    ModelList,
    PlainText,
    PromptText,
    Tokens,
)

Document = dict[str, Any]

_SCHEMAS: Final = "#/components/schemas/"
_TYPES: Final = (
    ChatRequest,
    CompletionRequest,
    ResponsesRequest,
    *INPUT_ITEMS.values(),
    ControlRequest,
    ReasoningControl,
    TokenizeRequest,
    DetokenizeRequest,
    ChatCompletion,
    ChatChunk,
    Completion,
    CompletionChunk,
    ResponseObject,
    *RESPONSE_EVENTS,
    ErrorReply,
    InputTokens,
    ModelCard,
    ModelList,
    PlainText,
    PromptText,
    Tokens,
    Controlled,
    Health,
    Properties,
    Readiness,
    SessionDeleted,
    SessionList,
    SessionTaken,
    Slot,
)
_ABOUT: Final = (
    "An OpenAI-compatible server for one model on one machine. Beside what each path says, any of them answers 405 "
    "with `Allow` to a method that it does not have (HEAD goes with GET, OPTIONS with all); and what is no request, "
    "comes too slowly, has too large a head, or finds too many connections gets 400, 408, 431 or 503 on every path."
)
_ERRORS: Final[Mapping[int, str]] = {
    400: "The request is not valid; `param` names the field, and `code` may be context_length_exceeded",
    401: "An API key is missing or wrong",
    403: "The Host or Origin header names a site that may not use this server",
    404: "There is no such path, model, request or session",
    408: "The body did not arrive in time",
    409: "The request was cancelled, or another one of the caller has its id; or a reply is being made in the session",
    413: "The body is too large",
    415: "The body is not what this path takes: JSON in UTF-8, or a session's state",
    429: "Too many requests wait or are paused, or too many sessions move; Retry-After gives the seconds until a retry",
    500: "The server failed",
    501: "The library for grammars does not load, so no reply can be constrained; or there is no session cache",
    503: "The model is being loaded, or the server stops or is overloaded; Retry-After gives the seconds until a retry",
    504: "The request ran past its deadline",
    507: "The session finds no room in the session cache beside what is in use of it",
}
_ALWAYS: Final = (401, 403, 500)
_WITH_BODY: Final = (400, 404, 408, 413, 415, 429, 503)
_GENERATING: Final = (*_WITH_BODY, 409, 504)
_STREAM: Final = (
    "With `stream`: server-sent events. Each `data:` line is a {chunk}, the last one is `[DONE]`. "
    "Lines that begin with a colon are comments: they keep the connection alive and tell the place in the queue. "
    "A failure on the way is a `data:` line with an error object, after which the stream ends without `[DONE]`."
)
_TYPED_STREAM: Final = (
    "With `stream`: server-sent events. Each has an `event:` line with its type and a `data:` line with one of "
    + ", ".join(kind.__name__ for kind in RESPONSE_EVENTS)
    + "; the last one is `response.completed`, `response.incomplete` or `response.failed`. "
    "Lines that begin with a colon are comments: they keep the connection alive and tell the place in the queue."
)
_OBJECT: Final[Document] = {"type": "object"}
_HEADERS: Final[Mapping[str, Document]] = {
    "X-Request-Id": {"description": "The id of the request.", "schema": {"type": "string"}},
    "X-Served-By": {"description": "The name of the machine.", "schema": {"type": "string"}},
    "X-Session-Id": {
        "description": "The name of the conversation; what is not ASCII, and %, percent-encoded.",
        "schema": {"type": "string"},
    },
    "Retry-After": {"description": "Seconds until a retry.", "schema": {"type": "integer", "minimum": 1}},
    "X-Queue-Depth": {"description": "Requests that wait, where these are too many.", "schema": {"type": "integer"}},
    "X-Should-Retry": {
        "description": "`false` where the same request would only fail once more; OpenAI's clients heed it.",
        "schema": {"type": "string", "enum": ["false"]},
    },
    "WWW-Authenticate": {"description": "How a key is given.", "schema": {"type": "string"}},
    "ETag": {"description": "The checksum at the end of the file.", "schema": {"type": "string"}},
    "Repr-Digest": {"description": "SHA-256 of the whole file (RFC 9530).", "schema": {"type": "string"}},
}
_ON_ALL: Final = ("X-Request-Id", "X-Served-By")
_ON_STATUS: Final[Mapping[str, tuple[str, ...]]] = {
    "401": ("WWW-Authenticate",),
    "429": ("Retry-After",),
    "500": ("X-Should-Retry",),
    "501": ("X-Should-Retry",),
    "503": ("Retry-After",),
    "504": ("X-Should-Retry",),
}
# Where only one kind is possible, the decoder takes an object that does not name it.
_KIND_MAY_LACK: Final = (
    "CallEntry",
    "FunctionChoice",
    "FunctionTool",
    "MessageInput",
    "NamedToolChoice",
    "ReasoningTextInput",
    "SummaryTextInput",
    "TextPart",
    "ToolDefinition",
)


def openapi_document(version: str) -> Document:
    """The document; `version` is that of the program."""
    _, components = msgspec.json.schema_components(_TYPES, ref_template=_SCHEMAS + "{name}")
    components["ResponsesRequest"]["properties"]["input"] = _input_schema()
    components["CompletionRequest"]["properties"]["prompt"] = _prompt_schema()
    for name in _KIND_MAY_LACK:
        components[name]["required"].remove("type")
    components["TokenizeRequest"]["oneOf"] = [_has("content", "string"), _has("messages", "array")]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "mindnano-infer",
            "version": version,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{}, {"bearer": []}, {"key": []}],
        "paths": _paths(),
        "components": {
            "schemas": components,
            "headers": dict(_HEADERS),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "Where the server has API keys."},
                "key": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The same."},
            },
        },
    }


def _prompt_schema() -> Document:
    # The type says "text or list" only: msgspec tells no two kinds of list apart.
    text = {"type": "string", "minLength": 1}
    ids = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": (1 << 31) - 1}, "minItems": 1}
    alone = {"type": "array", "items": {"anyOf": [text, ids]}, "minItems": 1, "maxItems": 1}
    return {"anyOf": [text, ids, alone], "description": "One text or one list of token ids."}


def _input_schema() -> Document:
    # The type says "text or objects" only: an item without a type is a message.
    items = [{"$ref": _SCHEMAS + kind.__name__} for kind in INPUT_ITEMS.values()]
    listed = {"type": "array", "items": {"anyOf": items}, "minItems": 1, "maxItems": MAX_ITEMS}
    return {"anyOf": [{"type": "string"}, listed], "description": "A question, or the conversation as items."}


def _has(name: str, kind: str) -> Document:
    other = {"content": "messages", "messages": "content"}[name]
    return {"required": [name], "properties": {name: {"type": kind}, other: {"type": "null"}}}


def _paths() -> Document:
    chat = _generation("chat", "Answer a chat", ChatRequest, ChatCompletion, ChatChunk, also=(501,))
    completion = _generation("complete", "Continue a text", CompletionRequest, Completion, CompletionChunk)
    response = _generation("respond", "Answer a response", ResponsesRequest, ResponseObject, ResponseEvent, also=(501,))
    response["description"] = _TYPED_STREAM
    models = _operation("listModels", "The models that are served", _json(ModelList), (503,))
    model = _operation("getModel", "One model", _json(ModelCard), (404, 503))
    sessions = _operation("listSessions", "The caller's sessions in the cache", _json(SessionList), (503,))
    forget = _operation("deleteSession", "Forget a session", _json(SessionDeleted), (404, 503))
    ready = _operation("ready", "Whether requests are taken", _json(Readiness), (503,), open_to_all=True)
    return {
        "/v1/chat/completions": {"post": chat},
        "/v1/completions": {"post": completion},
        "/v1/responses": {"post": response},
        "/v1/cancel": {"post": _control("cancel", "End a request in any phase")},
        "/v1/pause": {"post": _control("pause", "Halt a request; it keeps its place")},
        "/v1/resume": {"post": _control("resume", "Let a paused request go on")},
        "/v1/end-thinking": {"post": _control("endThinking", "Let a request think no more, and answer")},
        "/v1/chat/completions/control": {
            "post": _control("control", "The same, as llama-server has it", ReasoningControl)
        },
        "/v1/models": {"get": models},
        "/v1/models/{id}": {"parameters": [_path_id("The model's name")], "get": model},
        "/v1/sessions": {"get": sessions},
        "/slots": {"get": _slots()},
        "/v1/sessions/{id}/state": _session_state(),
        "/v1/sessions/{id}": {"parameters": [_path_id("The session's name")], "delete": forget},
        "/v1/chat/completions/input_tokens": {
            "post": _posted("countChat", "Tokens of a chat's prompt", ChatRequest, InputTokens)
        },
        "/v1/responses/input_tokens": {
            "post": _posted("countResponse", "Tokens of a response's prompt", ResponsesRequest, InputTokens)
        },
        "/tokenize": {"post": _posted("tokenize", "Token ids of a text or of messages", TokenizeRequest, Tokens)},
        "/detokenize": {"post": _posted("detokenize", "The text of token ids", DetokenizeRequest, PlainText)},
        "/apply-template": {"post": _posted("applyTemplate", "The prompt of a chat", ChatRequest, PromptText)},
        "/health": {"get": _operation("health", "Whether the server lives", _json(Health), (), open_to_all=True)},
        "/readyz": {"get": ready},
        "/metrics": {"get": _operation("metrics", "Counters for Prometheus", _text("text/plain"), ())},
        "/props": {"get": _operation("props", "Facts about the server", _json(Properties), (503,))},
        "/openapi.json": {"get": _operation("describe", "This description", _json_object(), ())},
        "/": {"get": _operation("page", "A page to chat", _text("text/html"), (), open_to_all=True)},
        "/page.css": {"get": _operation("pageStyle", "Of the page", _text("text/css"), (), open_to_all=True)},
        "/page.js": {"get": _operation("pageScript", "Of the page", _text("text/javascript"), (), open_to_all=True)},
    }


def _generation(
    name: str, summary: str, body: type, reply: type, chunk: type, *, also: tuple[int, ...] = ()
) -> Document:
    content = _json(reply) | {
        "text/event-stream": {"schema": {"description": "Server-sent events", "contentMediaType": "text/event-stream"}}
    }
    operation = _operation(name, summary, content, (*_GENERATING, *also))
    operation["description"] = _STREAM.format(chunk=chunk.__name__)
    operation["requestBody"] = _body(body)
    operation["parameters"] = [
        _header(
            "X-Session-Id",
            "The name of the conversation, where the body has no session_id; percent-encoded or not.",
            LABEL_IN_HEADER,
        ),
        _header("X-Request-Id", "The id of the request, where the body has no request_id and this is one.", None),
    ]
    for status in ("200", "409", "500", "501", "503", "504"):
        if status in operation["responses"]:
            operation["responses"][status]["headers"] |= _named("X-Session-Id")
    operation["responses"]["409"]["headers"] |= _named("X-Should-Retry")
    operation["responses"]["429"]["headers"] |= _named("X-Queue-Depth")
    return operation


def _posted(name: str, summary: str, body: type, reply: type) -> Document:
    return _operation(name, summary, _json(reply), _WITH_BODY) | {"requestBody": _body(body)}


def _control(name: str, summary: str, body: type = ControlRequest) -> Document:
    return _operation(name, summary, _json(Controlled), _WITH_BODY) | {"requestBody": _body(body)}


def _operation(
    name: str, summary: str, content: Document, statuses: tuple[int, ...], *, open_to_all: bool = False
) -> Document:
    """An operation; `statuses` are the errors beyond those that every path can give."""
    responses: Document = {"200": {"description": "Done", "content": content}}
    for status in sorted({*_ALWAYS, *statuses}):
        responses[str(status)] = {"description": _ERRORS[status], "content": _json(ErrorReply)}
    for code, response in responses.items():
        response["headers"] = _named(*_ON_ALL, *_ON_STATUS.get(code, ()))
    operation: Document = {"operationId": name, "summary": summary, "responses": responses}
    if open_to_all:
        operation["security"] = []
        responses.pop("401")
    return operation


def _slots() -> Document:
    content = {"application/json": {"schema": {"type": "array", "items": {"$ref": f"{_SCHEMAS}{Slot.__name__}"}}}}
    flag = {
        "name": "fail_on_no_slot",
        "in": "query",
        "required": False,
        "description": "Answer with 503 where no slot is free, whatever the value.",
        "schema": {"type": "string"},
    }
    return _operation("slots", "The place on the engine, as llama-server tells it", content, (503,)) | {
        "parameters": [flag]
    }


def _session_state() -> Document:
    binary = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    give = _operation("getSessionState", "A session as a file", binary, (404, 409, 429, 501, 503, 507))
    give["parameters"] = [_header("If-None-Match", "The ETag of a file that the caller has.", None)]
    give["responses"]["200"]["headers"] |= _named("ETag", "Repr-Digest")
    give["responses"]["304"] = {
        "description": "It is still the one that If-None-Match names",
        "headers": give["responses"]["200"]["headers"],
    }
    take = _operation("putSessionState", "Take a session in", _json(SessionTaken), (*_WITH_BODY, 409, 501, 507))
    take["responses"]["201"] = take["responses"]["200"] | {"description": "Done; there was none before"}
    take["requestBody"] = {"required": True, "content": binary}
    return {"parameters": [_path_id("The session's name")], "get": give, "put": take}


def _header(name: str, description: str, pattern: str | None) -> Document:
    schema = {"type": "string"} if pattern is None else {"type": "string", "pattern": pattern}
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


def _named(*names: str) -> Document:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _path_id(description: str) -> Document:
    schema = {"type": "string", "minLength": 1}
    return {"name": "id", "in": "path", "required": True, "description": description, "schema": schema}


def _body(kind: type) -> Document:
    return {"required": True, "content": _json(kind)}


def _json(kind: type) -> Document:
    return {"application/json": {"schema": {"$ref": _SCHEMAS + kind.__name__}}}


def _json_object() -> Document:
    return {"application/json": {"schema": _OBJECT}}


def _text(kind: str) -> Document:
    return {kind: {"schema": {"type": "string"}}}
