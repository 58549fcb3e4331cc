"""A description of the API that is not valid, or that says something else than the server does."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from launcher.errors import RequestError
from launcher.server.openapi import openapi_document
from launcher.server.protocol.decode import decode_chat, decode_completion, decode_tokenize
from launcher.server.protocol.responses_decode import decode_responses

DOCUMENT = openapi_document("1.2.3")
PATHS = {
    "/v1/chat/completions": "post",
    "/v1/completions": "post",
    "/v1/responses": "post",
    "/v1/cancel": "post",
    "/v1/pause": "post",
    "/v1/resume": "post",
    "/v1/end-thinking": "post",
    "/v1/chat/completions/control": "post",
    "/v1/models": "get",
    "/v1/models/{id}": "get",
    "/v1/sessions": "get",
    "/v1/sessions/{id}/state": "get",
    "/v1/sessions/{id}": "delete",
    "/slots": "get",
    "/v1/chat/completions/input_tokens": "post",
    "/v1/responses/input_tokens": "post",
    "/tokenize": "post",
    "/detokenize": "post",
    "/apply-template": "post",
    "/health": "get",
    "/readyz": "get",
    "/metrics": "get",
    "/props": "get",
    "/openapi.json": "get",
    "/": "get",
    "/page.css": "get",
    "/page.js": "get",
}
USER = {"role": "user", "content": "x"}
PART = {"type": "text", "text": "x"}


def accepts(name: str, value: object) -> bool:
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def decodes(decode: Callable[[bytes], object], value: object) -> bool:
    try:
        decode(json.dumps(value).encode())
    except RequestError:
        return False
    return True


def test_all_routes_are_described() -> None:
    found = {path: next(name for name in item if name != "parameters") for path, item in DOCUMENT["paths"].items()}
    assert found == PATHS
    operations = [item[PATHS[path]] for path, item in DOCUMENT["paths"].items()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    for path, item in DOCUMENT["paths"].items():
        responses = item[PATHS[path]]["responses"]
        assert "200" in responses
        assert "500" in responses
    generating = DOCUMENT["paths"]["/v1/chat/completions"]["post"]
    assert {"400", "401", "403", "404", "413", "415", "429", "501", "503"} <= set(generating["responses"])
    assert "text/event-stream" in generating["responses"]["200"]["content"]
    assert "[DONE]" in generating["description"]


def test_every_schema_is_valid_and_every_reference_leads_somewhere() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    text = json.dumps(DOCUMENT)
    references = {part.split('"')[0] for part in text.split('"$ref": "#/components/schemas/')[1:]}
    assert references <= set(schemas)


def test_schemathesis_can_read_it() -> None:
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    schema.validate()
    assert len(list(schema.get_all_operations())) == len(PATHS) + 1  # a state can be put, too


@pytest.mark.parametrize(
    ("fields", "fine"),
    [
        ({}, True),
        ({"n": 16}, True),
        ({"n": 17}, False),
        ({"n": "1"}, False),
        ({"temperature": 2}, True),
        ({"temperature": 2.1}, False),
        ({"top_p": 0}, True),
        ({"stop": ["x"] * 16}, True),
        ({"stop": ["x"] * 17}, False),
        ({"stop": ""}, True),
        ({"audio": None}, True),
        ({"audio": {}}, False),
        ({"store": True}, True),
        ({"modalities": ["audio"]}, False),
        ({"session_id": "a b"}, True),
        ({"session_id": ""}, True),
        ({"user": "a\n" * 300}, True),
        ({"session_id": "a\n"}, False),
        ({"seed": (1 << 64) - 1}, True),
        ({"seed": 1 << 64}, False),
        ({"logit_bias": {"1": 3}}, True),
        ({"logit_bias": {"x": 3}}, False),
        ({"logit_bias": {"1": 101}}, False),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True),
        ({"chat_template_kwargs": {"other": True}}, False),
        ({"messages": []}, False),
        ({"messages": [{"role": "wizard", "content": "x"}]}, False),
        ({"messages": [{"role": "user", "content": [PART]}]}, True),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, False),
        ({"messages": [{"role": "assistant"}]}, True),
        ({"messages": [{"role": "user"}]}, False),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, False),
        ({"response_format": {"type": "json_object"}}, True),
        ({"response_format": {"type": "xml"}}, False),
        ({"unknown": 1}, True),
    ],
)
def test_description_and_decoder_agree_on_chats(fields: dict[str, Any], fine: bool) -> None:
    body = {"messages": [USER]} | fields
    assert accepts("ChatRequest", body) is fine
    assert decodes(decode_chat, body) is fine


@pytest.mark.parametrize(
    ("body", "fine"),
    [
        ({"prompt": "x"}, True),
        ({"prompt": [1, 2]}, True),
        ({"prompt": [[1, 2]]}, True),
        ({"prompt": ["x"]}, True),
        ({"prompt": None}, False),
        ({"prompt": [1.5]}, False),
        ({"prompt": "x", "logprobs": 6}, False),
        ({"prompt": "x", "suffix": "y"}, False),
        ({}, False),
    ],
)
def test_description_and_decoder_agree_on_completions(body: dict[str, Any], fine: bool) -> None:
    assert accepts("CompletionRequest", body) is fine
    assert decodes(decode_completion, body) is fine


@pytest.mark.parametrize("prompt", ["", [], [""], [[]], ["a", "b"], [[1], [2]], [1, "a"]])
def test_the_description_knows_that_a_completion_has_one_prompt(prompt: object) -> None:
    assert not accepts("CompletionRequest", {"prompt": prompt})


@pytest.mark.parametrize(
    ("fields", "fine"),
    [
        ({}, True),
        ({"input": [USER]}, True),
        ({"input": [{"type": "message", **USER}]}, True),
        ({"input": [{"role": "tool", "content": "x"}]}, False),
        ({"input": []}, False),
        ({"input": None}, False),
        ({"input": ["x"]}, False),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}]}, True),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, False),
        ({"input": [{"type": "reasoning", "summary": []}]}, True),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "a", "arguments": "{}"}]}, True),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "a"}]}, False),
        ({"input": [{"call_id": "c", "output": "x"}]}, False),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, True),
        ({"input": [{"type": "item_reference", "id": "x"}]}, False),
        ({"tools": [{"type": "function", "name": "a"}]}, True),
        ({"tools": [{"type": "web_search"}]}, False),
        ({"tool_choice": {"type": "function", "name": "a"}, "tools": [{"name": "a"}]}, True),
        ({"tool_choice": "any"}, False),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {}}}}, True),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, False),
        ({"store": True}, True),
        ({"background": True}, False),
        ({"previous_response_id": "x"}, False),
        ({"max_tokens": 1}, False),
        ({"metadata": {"a": 1}}, False),
        ({"n": 1}, True),
        ({"n": 2}, False),
        ({"unknown": 1}, True),
    ],
)
def test_description_and_decoder_agree_on_responses(fields: dict[str, Any], fine: bool) -> None:
    body = {"input": "x"} | fields
    assert accepts("ResponsesRequest", body) is fine
    assert decodes(decode_responses, body) is fine


@pytest.mark.parametrize(
    ("body", "fine"),
    [
        ({"content": "x"}, True),
        ({"messages": [USER]}, True),
        ({"content": "x", "messages": None}, True),
        ({"content": "x", "messages": [USER]}, False),
        ({}, False),
    ],
)
def test_description_and_decoder_agree_on_texts_to_tokenise(body: dict[str, Any], fine: bool) -> None:
    assert accepts("TokenizeRequest", body) is fine
    assert decodes(decode_tokenize, body) is fine


_OPERATION = schemathesis.openapi.from_dict(DOCUMENT)["/detokenize"]["POST"]


@given(case=_OPERATION.as_strategy())
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
def test_requests_can_be_made_from_it(case: Any) -> None:
    assert accepts("DetokenizeRequest", case.body)
