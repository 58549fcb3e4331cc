"""Fields and headers of answers that the API's description does not have."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from launcher.server.openapi import openapi_document
from tests.support.server_process import Answer, ServerProcess

DOCUMENT = openapi_document("1.2.3")
# What HTTP itself says, or the page's safety.
PLAIN_HEADERS = {
    "cache-control",
    "connection",
    "content-length",
    "content-security-policy",
    "content-type",
    "date",
    "referrer-policy",
    "transfer-encoding",
    "x-accel-buffering",
    "x-content-type-options",
}
SAY: dict[str, Any] = {"messages": [{"role": "user", "content": "17+25=?"}], "session_id": "talk", "max_tokens": 60}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALLS = SAY | {"tools": [TOOL], "tool_choice": "required", "max_tokens": 200}
LIKELY = {"logprobs": True, "top_logprobs": 1}
FILE = {"Content-Type": "application/octet-stream"}


def closed(value: Any) -> Any:
    """The schemas, where an object may have what is named and no more."""
    if isinstance(value, list):
        return [closed(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {name: closed(each) for name, each in value.items()}
    if found.get("type") == "object" and "properties" in found:
        found.setdefault("additionalProperties", False)
    return found


CLOSED = closed(copy.deepcopy(DOCUMENT["components"]))


def check(schema: dict[str, Any], value: object) -> None:
    jsonschema.Draft202012Validator({**schema, "components": CLOSED}).validate(value)


def check_answer(path: str, method: str, answer: Answer) -> None:
    """Status, headers and, where it is JSON, every field."""
    response = DOCUMENT["paths"][path][method.lower()]["responses"][str(answer.status)]
    told = {name.lower() for name in response["headers"]}
    found = {name.lower() for name in answer.headers}
    assert found - PLAIN_HEADERS <= told, (method, path, answer.status)
    content = response.get("content", {}).get("application/json")
    if content is not None and answer.headers["content-type"].startswith("application/json"):
        check(content["schema"], answer.json())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("complete")
    with ServerProcess(folder, "--session-dir", str(folder / "sessions"), "--queue", "0") as started:
        yield started


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", SAY | LIKELY),
        ("/v1/chat/completions", CALLS),
        ("/v1/chat/completions", SAY | {"model": "another"}),
        ("/v1/chat/completions", SAY | {"messages": [{"role": "user", "content": "x " * 5000}]}),
        ("/v1/chat/completions", SAY | {"timeout": 0.0001}),
        ("/v1/completions", {"prompt": "A", "max_tokens": 4, "logprobs": 2, "user": "talk"}),
        ("/v1/responses", {"input": "17+25=?", "session_id": "talk", "top_logprobs": 1}),
        ("/v1/responses", {"input": "x", "tools": [{"type": "function", "name": "f"}], "tool_choice": "required"}),
        ("/v1/chat/completions/input_tokens", SAY),
        ("/v1/responses/input_tokens", {"input": "x"}),
        ("/tokenize", {"content": "x"}),
        ("/detokenize", {"tokens": [1]}),
        ("/apply-template", SAY),
        ("/v1/cancel", {"request_id": "none"}),
    ],
)
def test_what_is_posted_is_answered_as_described(server: ServerProcess, path: str, body: dict[str, Any]) -> None:
    check_answer(path, "POST", server.ask("POST", path, body))


@pytest.mark.parametrize(
    ("path", "schema", "body"),
    [
        ("/v1/chat/completions", "ChatChunk", SAY | LIKELY),
        ("/v1/chat/completions", "ChatChunk", CALLS | {"stream_options": {"include_usage": True}}),
        ("/v1/chat/completions", "ChatChunk", SAY | {"return_progress": True}),
        ("/v1/completions", "CompletionChunk", {"prompt": "A", "max_tokens": 4, "logprobs": 2}),
        ("/v1/completions", "CompletionChunk", {"prompt": "A", "max_tokens": 4, "return_progress": True}),
        ("/v1/responses", None, {"input": "17+25=?"}),
    ],
)
def test_what_is_streamed_is_as_described(
    server: ServerProcess, path: str, schema: str | None, body: dict[str, Any]
) -> None:
    answer = server.ask("POST", path, body | {"stream": True})
    check_answer(path, "POST", answer)
    lines = [line.removeprefix("data: ") for line in answer.body.decode().split("\n") if line.startswith("data: {")]
    assert len(lines) > 3
    kinds = {entry["properties"]["type"]["const"]: name for name, entry in event_schemas().items()}
    for line in lines:
        event = json.loads(line)
        check({"$ref": f"#/components/schemas/{schema or kinds[event['type']]}"}, event)


def event_schemas() -> dict[str, Any]:
    """Those of the typed events of responses."""
    found = {}
    for name, schema in CLOSED["schemas"].items():
        properties = schema.get("properties", {})
        if "sequence_number" in properties and "type" in properties:
            found[name] = {"properties": {"type": {"const": next(iter(properties["type"]["enum"]))}}}
    return found


def test_what_is_asked_is_answered_as_described(server: ServerProcess) -> None:
    server.ask("POST", "/v1/chat/completions", SAY)
    for path, item in DOCUMENT["paths"].items():
        if "get" in item:
            target = path.replace("models/{id}", "models/mindnano-demo").replace("{id}", "talk")
            answer = server.ask("GET", target)
            assert answer.status == 200, target
            check_answer(path, "GET", answer)
    state = "/v1/sessions/{id}/state"
    file = server.ask("GET", "/v1/sessions/talk/state")
    tag = {"If-None-Match": file.headers["etag"]}
    known = server.ask("GET", "/v1/sessions/talk/state", headers=tag)
    assert known.status == 304
    check_answer(state, "GET", known)
    for name in ("talk", "other"):
        check_answer(state, "PUT", server.ask("PUT", f"/v1/sessions/{name}/state", file.body, headers=FILE))
    for _ in range(2):
        check_answer("/v1/sessions/{id}", "DELETE", server.ask("DELETE", "/v1/sessions/other"))


def test_a_running_request_and_what_is_done_to_it_are_as_described(server: ServerProcess) -> None:
    """With no room to wait, one more is refused."""
    named = SAY | {"stream": True, "ignore_eos": True, "max_tokens": 4000, "request_id": "mine"}
    with server.stream(named):
        refused = server.ask("POST", "/v1/chat/completions", SAY)
        assert refused.status == 429
        assert refused.headers["x-queue-depth"] == "0"
        check_answer("/v1/chat/completions", "POST", refused)
        for path in ("/v1/pause", "/v1/resume", "/v1/end-thinking", "/v1/cancel"):
            check_answer(path, "POST", server.ask("POST", path, {"request_id": "mine"}))
            slots = server.ask("GET", "/slots")
            check_answer("/slots", "GET", slots)
            if path == "/v1/pause":
                assert slots.json()[0]["requests"]
            if path == "/v1/resume":
                check_answer("/slots", "GET", server.ask("GET", "/slots?fail_on_no_slot=1"))
