"""Tool calls and JSON replies that the official client cannot use, or that do not follow what was asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from openai import OpenAI, pydantic_function_tool
from openai.types.chat import ChatCompletion
from pydantic import BaseModel, Field

from tests.support.openai_client import LIST, MODEL, openai_client, user
from tests.support.server_process import ServerProcess

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Paris", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "units": {"type": "array", "items": {"enum": ["C", "F"]}, "maxItems": 2},
        "exact": {"type": "boolean"},
    },
    "required": ["city", "days", "units", "exact"],
    "additionalProperties": False,
}
LOOK: dict[str, Any] = {
    "type": "object",
    "properties": {"open": {"type": "boolean"}},
    "required": ["open"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": WEATHER, "look": LOOK}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "description": f"It is {name}.", "parameters": schema}}
    for name, schema in SCHEMAS.items()
]
ASKED: dict[str, Any] = {"model": MODEL, "messages": user("What is the weather in Paris?"), "tools": TOOLS}


class Pet(BaseModel):
    """An answer whose texts are bounded, because the built-in model would go on for long."""

    animal: Literal["cat", "dog", "horse"]
    legs: Annotated[int, Field(ge=0, le=8)]
    friendly: bool
    names: Annotated[list[Literal["Tom", "Kim"]], Field(max_length=2)]


@pytest.fixture(scope="module")
def client(live: ServerProcess) -> Iterator[OpenAI]:
    with openai_client(live) as opened:
        yield opened


def calls_of(reply: ChatCompletion) -> list[tuple[str, dict[str, Any]]]:
    """Names and arguments of the calls, each checked against its schema."""
    found = []
    for call in reply.choices[0].message.tool_calls or ():
        assert call.type == "function"
        arguments = json.loads(call.function.arguments)
        jsonschema.validate(arguments, SCHEMAS[call.function.name])
        found.append((call.function.name, arguments))
    return found


@pytest.mark.parametrize("thinking", [True, False])
def test_required_gives_a_call(client: OpenAI, thinking: bool) -> None:
    reply = client.chat.completions.create(**ASKED, tool_choice="required", extra_body={"enable_thinking": thinking})
    assert len(calls_of(reply)) == 1
    assert (reply.choices[0].finish_reason, reply.choices[0].message.content) == ("tool_calls", None)


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_a_named_function_is_the_one_that_is_called(client: OpenAI, name: str) -> None:
    reply = client.chat.completions.create(**ASKED, tool_choice={"type": "function", "function": {"name": name}})
    assert [called for called, _ in calls_of(reply)] == [name]
    assert reply.choices[0].finish_reason == "tool_calls"


def test_none_gives_no_call_even_where_the_mark_of_calls_is_likely(client: OpenAI, live: ServerProcess) -> None:
    mark = live.ask("POST", "/tokenize", {"content": "<tool_call>"}).json()["tokens"]
    assert len(mark) == 1
    reply = client.chat.completions.create(**ASKED, tool_choice="none", logit_bias={str(mark[0]): 100})
    assert (reply.choices[0].finish_reason, reply.choices[0].message.tool_calls) == ("stop", None)
    assert "<tool_call>" not in (reply.choices[0].message.content or "")


def test_auto_leaves_the_model_its_own_answer(client: OpenAI) -> None:
    reply = client.chat.completions.create(**ASKED)
    assert (reply.choices[0].finish_reason, reply.choices[0].message.tool_calls) == ("stop", None)
    assert reply.choices[0].message.content


def several(client: OpenAI, live: ServerProcess, **settings: Any) -> ChatCompletion:
    """A reply with many calls: their mark is likely, and less so each time that it comes."""
    mark = live.ask("POST", "/tokenize", {"content": "<tool_call>"}).json()["tokens"][0]
    likely = {"logit_bias": {str(mark): 30}, "frequency_penalty": 2.0, "max_tokens": 600}
    return client.chat.completions.create(**ASKED, tool_choice="required", **likely, **settings)


def test_parallel_calls_have_ids_of_their_own(client: OpenAI, live: ServerProcess) -> None:
    reply = several(client, live)
    assert len(calls_of(reply)) > 1
    assert reply.choices[0].finish_reason == "tool_calls"
    ids = [call.id for call in reply.choices[0].message.tool_calls or ()]
    assert len(set(ids)) == len(ids)


def test_without_parallel_calls_there_is_one(client: OpenAI, live: ServerProcess) -> None:
    reply = several(client, live, parallel_tool_calls=False)
    assert len(calls_of(reply)) == 1
    assert reply.choices[0].finish_reason == "tool_calls"


def test_streamed_pieces_of_calls_make_the_calls_of_the_whole_reply(client: OpenAI, live: ServerProcess) -> None:
    """Assembled by the client's own helper."""
    mark = live.ask("POST", "/tokenize", {"content": "<tool_call>"}).json()["tokens"][0]
    settings: dict[str, Any] = {
        **ASKED,
        "tool_choice": "required",
        "logit_bias": {str(mark): 30},
        "frequency_penalty": 2.0,
        "max_tokens": 600,
    }
    whole = client.chat.completions.create(**settings)
    with client.chat.completions.stream(**settings) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    assert calls_of(final) == calls_of(whole)
    assert len(calls_of(final)) > 1
    assert final.choices[0].finish_reason == "tool_calls"
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert [event.index for event in done] == list(range(len(calls_of(final))))
    reasoning = (final.choices[0].message.model_extra or {})["reasoning_content"]
    assert reasoning == (whole.choices[0].message.model_extra or {})["reasoning_content"]


def test_a_call_that_is_cut_ends_as_length(client: OpenAI) -> None:
    reply = client.chat.completions.create(**ASKED, tool_choice="required", max_tokens=14)
    assert reply.choices[0].finish_reason == "length"


def test_results_go_back_and_the_beginning_is_not_read_again(client: OpenAI, live: ServerProcess) -> None:
    named: dict[str, Any] = {"user": "weather", "tools": TOOLS, "model": MODEL}
    called = client.chat.completions.create(messages=ASKED["messages"], tool_choice="required", **named)
    message = called.choices[0].message
    assert message.tool_calls
    messages = [
        *ASKED["messages"],
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "18 degrees and rain"},
    ]
    prompt = live.ask("POST", "/apply-template", {"messages": messages, "tools": TOOLS}).json()["prompt"]
    assert "18 degrees and rain" in prompt
    reply = client.chat.completions.create(messages=messages, **named)
    assert reply.choices[0].finish_reason == "stop"
    assert called.usage is not None
    assert reply.usage is not None
    assert reply.usage.prompt_tokens_details is not None
    cached = reply.usage.prompt_tokens_details.cached_tokens or 0
    assert cached >= called.usage.prompt_tokens - 8


def test_parse_gives_an_object_of_the_class(client: OpenAI) -> None:
    reply = client.chat.completions.parse(model=MODEL, messages=user(LIST), response_format=Pet)
    assert isinstance(reply.choices[0].message.parsed, Pet)
    assert reply.choices[0].finish_reason == "stop"


def test_a_streamed_object_is_parsed_as_well(client: OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=user(LIST), response_format=Pet) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Pet)


def test_arguments_are_parsed_into_the_class_of_the_tool(client: OpenAI) -> None:
    tools = [pydantic_function_tool(Pet, name="keep")]
    reply = client.chat.completions.parse(model=MODEL, messages=user(LIST), tools=tools, tool_choice="required")
    calls = reply.choices[0].message.tool_calls
    assert calls
    assert isinstance(calls[0].function.parsed_arguments, Pet)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_schema_is_followed(client: OpenAI, temperature: float) -> None:
    schema = {"name": "weather", "schema": WEATHER, "strict": True}
    for seed in range(3):
        reply = client.chat.completions.create(
            model=MODEL,
            messages=user("Hello!"),
            temperature=temperature,
            seed=seed,
            response_format={"type": "json_schema", "json_schema": schema},  # type: ignore[arg-type]
        )
        jsonschema.validate(json.loads(reply.choices[0].message.content or ""), WEATHER)


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("calls", [True, False])
def test_with_tools_an_answer_follows_its_schema_or_is_calls(
    client: OpenAI, live: ServerProcess, thinking: bool, calls: bool
) -> None:
    """Which of them is the model's own choice, so its mark of calls is made likely or impossible."""
    mark = live.ask("POST", "/tokenize", {"content": "<tool_call>"}).json()["tokens"][0]
    reply = client.chat.completions.create(
        **ASKED,
        logit_bias={str(mark): 100 if calls else -100},
        parallel_tool_calls=False,
        response_format={"type": "json_schema", "json_schema": {"name": "look", "schema": LOOK}},
        extra_body={"enable_thinking": thinking},
    )
    choice = reply.choices[0]
    if calls:
        assert (len(calls_of(reply)), choice.finish_reason, choice.message.content) == (1, "tool_calls", None)
    else:
        assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
        jsonschema.validate(json.loads(choice.message.content or ""), LOOK)


def test_a_schema_beside_json_object_is_followed(client: OpenAI) -> None:
    reply = client.chat.completions.create(
        model=MODEL,
        messages=user("Hello!"),
        response_format={"type": "json_object", "schema": LOOK},  # type: ignore[arg-type]
    )
    jsonschema.validate(json.loads(reply.choices[0].message.content or ""), LOOK)


def test_any_json_is_an_object(client: OpenAI) -> None:
    """A long one may be cut; up to there it is the beginning of an object."""
    ended = 0
    for seed in range(6):
        reply = client.chat.completions.create(
            model=MODEL,
            messages=user("List 3 animals as JSON."),
            temperature=0.5 * (seed % 3),
            seed=seed,
            max_tokens=500,
            response_format={"type": "json_object"},
        )
        content = (reply.choices[0].message.content or "").strip()
        assert content.startswith("{")
        if reply.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(content), dict)
            ended += 1
    assert ended
