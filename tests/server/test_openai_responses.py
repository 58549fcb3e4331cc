"""Responses that the official client, strict, does not read as they were meant, and requests that go on without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from openai import APIStatusError, BadRequestError, NotFoundError, OpenAI
from openai.types.responses import Response, ResponseFunctionToolCall
from pydantic import BaseModel, Field

from tests.support.openai_client import LIST, LISTED, LONG, MODEL, long_text, openai_client, user
from tests.support.server_process import ServerProcess

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [{"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True}]
ASKED: dict[str, Any] = {"model": MODEL, "input": "What is the weather in Paris?", "tools": TOOLS}


class Pet(BaseModel):
    """An answer whose texts are bounded, because the built-in model would go on for long."""

    animal: Literal["cat", "dog", "horse"]
    legs: Annotated[int, Field(ge=0, le=8)]
    names: Annotated[list[Literal["Tom", "Kim"]], Field(max_length=2)]


@pytest.fixture(scope="module")
def client(live: ServerProcess) -> Iterator[OpenAI]:
    with openai_client(live) as opened:
        yield opened


def thinking_of(reply: Response) -> str:
    return "".join(part.text for item in reply.output if item.type == "reasoning" for part in item.content or ())


def calls_of(reply: Response) -> list[ResponseFunctionToolCall]:
    """The calls, their arguments checked against the schema."""
    calls = [item for item in reply.output if item.type == "function_call"]
    for call in calls:
        jsonschema.validate(json.loads(call.arguments), SCHEMA)
    return calls


def cached(reply: Response) -> int:
    assert reply.usage is not None
    return reply.usage.input_tokens_details.cached_tokens


def test_a_whole_answer_has_its_thinking_as_an_item(client: OpenAI) -> None:
    reply = client.responses.create(model=MODEL, input=LIST)
    assert (reply.output_text, thinking_of(reply)) == (LISTED, "I need 5 items.")
    assert [item.type for item in reply.output] == ["reasoning", "message"]
    assert (reply.status, reply.error, reply.incomplete_details) == ("completed", None, None)
    assert reply.id.startswith("resp_")
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens
    assert 0 < reply.usage.output_tokens_details.reasoning_tokens < reply.usage.output_tokens
    extra = reply.model_extra or {}
    assert (extra["request_id"], extra["store"]) == (reply.id, False)
    assert extra["mindnano_metrics"]["generated_tokens"] == reply.usage.output_tokens


def test_a_response_is_the_chat_that_asks_for_the_same(client: OpenAI) -> None:
    settings: dict[str, Any] = {"model": MODEL, "temperature": 1.5, "extra_body": {"seed": 5}}
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, *user(LIST)]
    chat = client.chat.completions.create(messages=messages, max_tokens=60, **settings)
    reply = client.responses.create(instructions="Be brief.", input=LIST, max_output_tokens=60, **settings)
    assert reply.output_text == (chat.choices[0].message.content or "")
    assert thinking_of(reply) == (chat.choices[0].message.model_extra or {})["reasoning_content"]
    assert (reply.temperature, reply.instructions, reply.max_output_tokens) == (1.5, "Be brief.", 60)


def test_events_are_streamed_and_end_with_the_whole_answer(client: OpenAI) -> None:
    whole = client.responses.create(model=MODEL, input=LIST)
    events = list(client.responses.create(model=MODEL, input=LIST, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    thought = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
    assert (text, thought) == (LISTED, "I need 5 items.")
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == whole.output_text
    assert last.response.usage is not None
    assert whole.usage is not None
    assert last.response.usage.output_tokens == whole.usage.output_tokens


def test_the_wire_has_named_events_and_no_done(live: ServerProcess) -> None:
    with live.stream({"input": LIST}, path="/v1/responses") as stream:
        lines = [line for line in stream if not line.startswith(":")]
    assert stream.id.startswith("resp_")
    for name, data in zip(lines[::2], lines[1::2], strict=True):
        told = json.loads(data.removeprefix("data: "))
        assert name == f"event: {told['type']}"
    assert lines[-2] == "event: response.completed"


def test_the_clients_own_helper_follows_the_stream(client: OpenAI) -> None:
    with client.responses.stream(model=MODEL, input=LIST) as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert snapshots[-1] == final.output_text == LISTED


@pytest.mark.parametrize(
    "off",
    [
        {"reasoning": {"effort": "none"}},
        {"enable_thinking": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_thinking_can_be_switched_off(client: OpenAI, off: dict[str, Any]) -> None:
    reply = client.responses.create(model=MODEL, input=LIST, extra_body=off)
    assert (reply.output_text, [item.type for item in reply.output]) == (LISTED, ["message"])
    assert reply.usage is not None
    assert reply.usage.output_tokens_details.reasoning_tokens == 0


@pytest.mark.parametrize("limit", [3, 12])
def test_an_answer_that_is_cut_is_incomplete(client: OpenAI, limit: int) -> None:
    reply = client.responses.create(model=MODEL, input=LIST, max_output_tokens=limit)
    assert (reply.status, reply.usage and reply.usage.output_tokens) == ("incomplete", limit)
    assert reply.incomplete_details is not None
    assert reply.incomplete_details.reason == "max_output_tokens"
    *_, last = client.responses.create(model=MODEL, input=LIST, max_output_tokens=limit, stream=True)
    assert last.type == "response.incomplete"
    assert last.response.output_text == reply.output_text


def test_logprobs_are_of_the_answer(client: OpenAI) -> None:
    reply = client.responses.create(model=MODEL, input=LIST, include=["message.output_text.logprobs"], top_logprobs=2)
    (part,) = [part for item in reply.output if item.type == "message" for part in item.content]
    assert part.type == "output_text"
    assert "".join(each.token for each in part.logprobs or ()) == LISTED
    assert all(len(each.top_logprobs) == 2 for each in part.logprobs or ())
    assert reply.top_logprobs == 2


def test_the_next_turn_reuses_the_answer(client: OpenAI, live: ServerProcess) -> None:
    """The answer's items go back as they came, thinking included."""
    named: dict[str, Any] = {"model": MODEL, "instructions": long_text(120), "prompt_cache_key": "responses"}
    history: list[Any] = user(LIST)
    first = client.responses.create(input=history, **named)
    history += [item.model_dump(exclude_none=True) for item in first.output]
    second = client.responses.create(input=[*history, *user("Hello!")], **named)
    assert first.usage is not None
    assert cached(second) >= first.usage.total_tokens - 2
    assert (second.model_extra or {})["session_id"] == "responses"
    assert live.ask("DELETE", "/v1/sessions/responses").status == 200


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_a_call_and_its_result_make_a_round_trip(client: OpenAI, choice: Any) -> None:
    called = client.responses.create(**ASKED, tool_choice=choice)
    calls = calls_of(called)
    assert len(calls) == 1
    assert called.status == "completed"
    history: list[Any] = [
        *user(ASKED["input"]),
        *(item.model_dump(exclude_none=True) for item in called.output),
        {"type": "function_call_output", "call_id": calls[0].call_id, "output": "18 degrees and rain"},
    ]
    reply = client.responses.create(model=MODEL, input=history, tools=TOOLS)
    assert reply.status == "completed"
    assert called.usage is not None
    assert cached(reply) >= called.usage.input_tokens - 8
    history[-2]["arguments"] = "[1]"
    with pytest.raises(BadRequestError) as caught:
        client.responses.create(model=MODEL, input=history, tools=TOOLS)
    assert caught.value.param == f"input[{len(history) - 2}].arguments"


def test_streamed_pieces_of_a_call_make_it_whole(client: OpenAI) -> None:
    whole = calls_of(client.responses.create(**ASKED, tool_choice="required"))
    with client.responses.stream(**ASKED, tool_choice="required") as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        final = calls_of(stream.get_final_response())
    assert "".join(pieces) == whole[0].arguments == final[0].arguments


def test_auto_and_none_leave_the_model_its_own_answer(client: OpenAI) -> None:
    for choice in ("auto", "none"):
        reply = client.responses.create(**ASKED, tool_choice=choice)  # type: ignore[call-overload]
        assert not calls_of(reply)
        assert reply.output_text


def test_a_schema_is_followed_and_parsed(client: OpenAI) -> None:
    parsed = client.responses.parse(model=MODEL, input=LIST, text_format=Pet)
    assert isinstance(parsed.output_parsed, Pet)
    with client.responses.stream(model=MODEL, input=LIST, text_format=Pet) as stream:
        assert isinstance(stream.get_final_response().output_parsed, Pet)
    text: Any = {"format": {"type": "json_schema", "name": "weather", "schema": SCHEMA, "strict": True}}
    reply = client.responses.create(model=MODEL, input="Hello!", text=text, temperature=1.5)
    jsonschema.validate(json.loads(reply.output_text), SCHEMA)
    assert reply.text is not None
    assert reply.text.model_dump(by_alias=True, exclude_none=True) == text


def test_a_client_that_leaves_ends_its_request(live: ServerProcess) -> None:
    before = live.metric("mindnano_engine_tokens_total")
    with live.stream({"input": LIST, **LONG}, path="/v1/responses") as stream:
        for line in stream:
            if line == "event: response.output_text.delta":
                break
    live.wait_idle()
    assert live.metric("mindnano_engine_tokens_total") - before < 3900


def test_a_request_is_cancelled_by_its_id(client: OpenAI) -> None:
    stream = client.responses.create(model=MODEL, input=LIST, stream=True, extra_body=LONG | {"request_id": "mine"})
    events = []
    for event in stream:
        events.append(event)
        if event.type == "response.output_text.delta" and len(events) < 100:
            assert client.post("/cancel", body={"request_id": "mine"}, cast_to=object)
            break
    events += stream
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    error, failed = events[-2:]
    assert error.type == "error"
    assert error.code == "cancelled"
    assert failed.type == "response.failed"
    assert (failed.response.id, failed.response.status) == ("mine", "failed")


def test_a_deadline_on_the_way_is_an_event_and_else_a_status(client: OpenAI) -> None:
    late: dict[str, Any] = {"model": MODEL, "input": LIST, "extra_body": LONG | {"timeout": 0.3}}
    *_, error, failed = client.responses.create(**late, stream=True)
    assert error.type == "error"
    assert error.code == "deadline_exceeded"
    assert failed.type == "response.failed"
    with pytest.raises(APIStatusError) as caught:
        client.responses.create(**late)
    assert caught.value.status_code == 504


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("more", "kind", "code", "param"),
    [
        ({"temperature": 9}, BadRequestError, "invalid_value", "temperature"),
        ({"model": "gpt-4"}, NotFoundError, "model_not_found", "model"),
        ({"previous_response_id": "resp_1"}, BadRequestError, "unsupported_parameter", "previous_response_id"),
        ({"background": True}, BadRequestError, "unsupported_parameter", "background"),
        ({"tools": [{"type": "web_search"}]}, BadRequestError, "invalid_value", "tools[0].type"),
        ({"input": "red " * 5000}, BadRequestError, "context_length_exceeded", "input"),
        (
            {"text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "colour"}}}},
            BadRequestError,
            "invalid_json_schema",
            "text.format.schema",
        ),
    ],
)
def test_errors_come_before_the_first_event(
    client: OpenAI, more: dict[str, Any], kind: type[APIStatusError], code: str, param: str, stream: bool
) -> None:
    with pytest.raises(kind) as caught:
        client.responses.create(**({"model": MODEL, "input": LIST, "stream": stream} | more))
    assert caught.value.code == code
    assert (caught.value.param or "").startswith(param)


def test_tokens_can_be_counted_before(client: OpenAI, live: ServerProcess) -> None:
    """As many as the answer says, also where they would not fit, with tools and items in them."""
    asked: dict[str, Any] = {
        "model": MODEL,
        "instructions": "Be brief.",
        "input": [{"role": "user", "content": LIST}],
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}],
    }
    counted = client.responses.input_tokens.count(**asked)
    assert counted.object == "response.input_tokens"
    usage = client.responses.create(**asked, max_output_tokens=1).usage
    assert usage is not None
    assert counted.input_tokens == usage.input_tokens
    assert client.responses.input_tokens.count(model=MODEL, input="x " * 9000).input_tokens > 9000
    chat = {"messages": [{"role": "user", "content": LIST}], "enable_thinking": False}
    alike = live.ask("POST", "/v1/chat/completions/input_tokens", chat).json()["input_tokens"]
    answered = live.ask("POST", "/v1/chat/completions", chat | {"max_tokens": 1}).json()
    assert alike == answered["usage"]["prompt_tokens"]
    with pytest.raises(NotFoundError):
        client.responses.input_tokens.count(model="another", input="x")
    with pytest.raises(BadRequestError) as caught:
        client.responses.input_tokens.count(model=MODEL, input="x", previous_response_id="resp_1")
    assert caught.value.param == "previous_response_id"


def test_nothing_is_stored(client: OpenAI) -> None:
    reply = client.responses.create(model=MODEL, input=LIST, store=True)
    assert (reply.model_extra or {})["store"] is False
    with pytest.raises(NotFoundError):
        client.responses.retrieve(reply.id)
