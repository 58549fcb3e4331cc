"""Bodies of /v1/responses that ask for another chat than they say, or whose refusal does not name what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import RequestError
from launcher.server.planning import plan_chat, text_of
from launcher.server.protocol.decode import check_chat, decode_chat
from launcher.server.protocol.errors import ContextLengthExceeded
from launcher.server.protocol.limits import MAX_ITEMS
from launcher.server.protocol.requests import ChatRequest, JsonObjectFormat, JsonSchemaFormat, TextFormat
from launcher.server.protocol.responses_decode import decode_responses, renamed
from launcher.server.protocol.responses_input import chat_of
from launcher.server.session_names import session_name
from tests.support.served_model import served_model

TOOL = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "add", "arguments": '{"a": 1}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "2"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
ANSWER = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "It is 2.", "annotations": [], "logprobs": []}],
}
QUESTION = {"role": "user", "content": "1 + 1?"}


def chat(input: object = "hi", **fields: Any) -> ChatRequest:
    asked, items = decode_responses(json.dumps({"input": input} | fields).encode())
    return chat_of(asked, items)


def equal_chat(messages: list[Any], **fields: Any) -> ChatRequest:
    return decode_chat(json.dumps({"messages": messages} | fields).encode())


def prompt(request: ChatRequest) -> str:
    model = served_model()
    return text_of(model, plan_chat(model, request, owner="", header_session=None, id="resp_1").prompt)


def attempt(input: object = "hi", **fields: Any) -> None:
    """Reads and plans, and renames what planning refuses, as the server does."""
    asked, items = decode_responses(json.dumps({"input": input} | fields).encode())
    try:
        request = chat_of(asked, items)
        check_chat(request)
        plan_chat(served_model(), request, owner="", header_session=None, id="resp_1")
    except RequestError as error:
        raise renamed(error) from error


def refused(input: object = "hi", **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        attempt(input, **fields)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("input", "fields", "messages"),
    [
        ("hi", {}, [{"role": "user", "content": "hi"}]),
        (
            "hi",
            {"instructions": "Be brief."},
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        ),
        ([QUESTION], {}, [QUESTION]),
        ([{"type": "message", **QUESTION}], {}, [QUESTION]),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "input_text", "text": "1 +"}, {"type": "input_text", "text": " 1?"}],
                }
            ],
            {},
            [QUESTION],
        ),
        ([{"role": "developer", "content": "x"}, QUESTION], {}, [{"role": "system", "content": "x"}, QUESTION]),
        (
            [QUESTION, THOUGHT, ANSWER, QUESTION],
            {},
            [QUESTION, {"role": "assistant", "content": "It is 2.", "reasoning_content": "hm"}, QUESTION],
        ),
        (
            [
                QUESTION,
                {"role": "assistant", "content": "It is 2."},
                {"role": "assistant", "content": "Yes."},
                QUESTION,
            ],
            {},
            [
                QUESTION,
                {"role": "assistant", "content": "It is 2."},
                {"role": "assistant", "content": "Yes."},
                QUESTION,
            ],
        ),
        (
            [QUESTION, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, QUESTION],
            {},
            [QUESTION, {"role": "assistant", "content": "No."}, QUESTION],
        ),
        (
            [QUESTION, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}]}, ANSWER, QUESTION],
            {},
            [QUESTION, {"role": "assistant", "content": "It is 2.", "reasoning_content": "short"}, QUESTION],
        ),
        (
            [QUESTION, {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}, ANSWER, QUESTION],
            {},
            [QUESTION, {"role": "assistant", "content": "It is 2."}, QUESTION],
        ),
    ],
)
def test_items_are_the_messages_of_a_chat(input: object, fields: dict[str, Any], messages: list[Any]) -> None:
    assert prompt(chat(input, **fields)) == prompt(equal_chat(messages))


def called(*calls: tuple[str, str], content: str | None = None, **more: Any) -> dict[str, Any]:
    listed = [
        {"id": id, "type": "function", "function": {"name": "add", "arguments": arguments}} for id, arguments in calls
    ]
    return {"role": "assistant", "content": content, "tool_calls": listed, **more}


def test_an_answer_in_items_is_one_message_again() -> None:
    items = [QUESTION, THOUGHT, ANSWER, CALL, CALL | {"call_id": "call_2", "arguments": ""}]
    results = [
        OUTPUT,
        {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "3"}]},
    ]
    messages = [
        QUESTION,
        called(("call_1", '{"a": 1}'), ("call_2", ""), content="It is 2.", reasoning_content="hm"),
        {"role": "tool", "tool_call_id": "call_1", "content": "2"},
        {"role": "tool", "tool_call_id": "call_2", "content": "3"},
    ]
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}, "strict": True}}]
    assert prompt(chat([*items, *results], tools=[TOOL])) == prompt(equal_chat(messages, tools=tools))


def test_calls_with_a_result_between_them_are_two_messages() -> None:
    found = chat([QUESTION, CALL, OUTPUT, THOUGHT, CALL, OUTPUT, QUESTION]).messages
    assert [message.__struct_config__.tag for message in found] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "user",
    ]


def test_every_setting_is_the_one_of_a_chat() -> None:
    schema = {"type": "object", "properties": {}}
    request = chat(
        model="tiny",
        temperature=0.5,
        top_p=0.25,
        max_output_tokens=7,
        top_logprobs=3,
        parallel_tool_calls=False,
        tools=[TOOL],
        tool_choice={"type": "function", "name": "add"},
        reasoning={"effort": "none"},
        thinking_budget=5,
        seed=3,
        stop=["x"],
        request_id="r",
        text={"format": {"type": "json_schema", "name": "s", "schema": schema, "strict": True}},
    )
    assert (request.temperature, request.top_p, request.max_tokens, request.seed) == (0.5, 0.25, 7, 3)
    assert (request.logprobs, request.top_logprobs, request.parallel_tool_calls) == (True, 3, False)
    assert (request.stops, request.request_id, request.thinking_budget) == (("x",), "r", 5)
    assert request.tools is not None
    assert request.tools[0].variables()["function"] == {"name": "add", "parameters": {"type": "object"}, "strict": True}
    assert not isinstance(request.tool_choice, str | None)
    assert request.tool_choice.function.name == "add"
    assert isinstance(request.response_format, JsonSchemaFormat)
    assert request.response_format.json_schema.schema == schema
    assert isinstance(chat(text={"format": {"type": "json_object"}}).response_format, JsonObjectFormat)
    assert isinstance(chat(text={"format": {"type": "text"}}).response_format, TextFormat)
    assert chat(text={"verbosity": "low"}).response_format is None


@pytest.mark.parametrize(
    ("fields", "thinks"),
    [
        ({}, True),
        ({"reasoning": {"effort": "none"}}, False),
        ({"reasoning": {"effort": "high", "summary": "auto"}}, True),
        ({"enable_thinking": False}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
    ],
)
def test_thinking_is_switched(fields: dict[str, Any], thinks: bool) -> None:
    assert prompt(chat(**fields)).endswith("<think>") is thinks


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({}, (False, None)),
        ({"top_logprobs": 0}, (False, None)),
        ({"top_logprobs": 2}, (True, 2)),
        ({"include": ["message.output_text.logprobs"]}, (True, None)),
        ({"include": ["reasoning.encrypted_content"]}, (False, None)),
    ],
)
def test_logprobs_are_asked_for_in_two_ways(fields: dict[str, Any], logprobs: tuple[bool, int | None]) -> None:
    request = chat(**fields)
    assert (bool(request.logprobs), request.top_logprobs) == logprobs
    check_chat(request)


@pytest.mark.parametrize(
    "fields", [{"session_id": "a"}, {"prompt_cache_key": "a"}, {"user": "a"}, {"metadata": {"session_id": "a"}}]
)
def test_a_conversation_has_a_name(fields: dict[str, Any]) -> None:
    assert session_name(chat(**fields), None) == "a"


def test_what_asks_for_nothing_else_is_taken() -> None:
    chat(
        store=True,
        background=False,
        truncation="auto",
        service_tier="auto",
        safety_identifier="s",
        include=["reasoning.encrypted_content", "file_search_call.results"],
        max_tool_calls=3,
        stream_options={"include_obfuscation": False},
        prompt_cache_retention="24h",
        previous_response_id=None,
        conversation=None,
        n=1,
        a_field_of_tomorrow=[1],
    )
    chat([QUESTION | {"phase": "commentary", "status": "completed"}])


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"background": True}, "background", "stream"),
        ({"conversation": "c"}, "conversation", "the whole history"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "the whole history"),
        ({"prompt": {"id": "p"}}, "prompt", "instructions"),
        ({"context_management": [{"type": "compaction"}]}, "context_management", "oldest items"),
        ({"max_tokens": 3}, "max_tokens", "max_output_tokens"),
        ({"messages": [QUESTION]}, "messages", "input"),
        ({"response_format": {"type": "text"}}, "response_format", "text.format"),
        ({"reasoning_effort": "none"}, "reasoning_effort", "reasoning.effort"),
        ({"n": 2}, "n", "again"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "define a function"),
        ({"tools": [TOOL, {"type": "mcp", "server_label": "x"}]}, "tools[1].type", '"mcp"'),
        ({"tools": [TOOL, TOOL]}, "tools[1].name", "occurs before"),
        ({"tools": [TOOL | {"name": "a b"}]}, "tools[0].name", "letters"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "sub"}}, "tool_choice.name", "(add)"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type", '"function"'),
        ({"tool_choice": "required"}, "tool_choice", "tools"),
        ({"text": {"format": {"type": "json_schema", "name": "s"}}}, "text.format.schema", "missing"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type", "json_schema"),
        ({"temperature": 3}, "temperature", "<= 2"),
        ({"max_output_tokens": 0}, "max_output_tokens", ">= 1"),
        ({"top_logprobs": 21}, "top_logprobs", "<= 20"),
        ({"metadata": {"a": 1}}, "metadata", "a string"),
        ({"truncation": "left"}, "truncation", '"left"'),
        ({"instructions": [QUESTION]}, "instructions", "a string"),
        ({"reasoning": {"effort": 3}}, "reasoning.effort", "a string"),
        ({"reasoning": {"max_tokens": -5}}, "reasoning.max_tokens", "-5"),
        ({"seed": 1 << 64}, "seed", "an integer"),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_name(fields: dict[str, Any], param: str, words: str) -> None:
    error = refused(**fields)
    assert (error.param or "").startswith(param)
    assert words in error.message


@pytest.mark.parametrize(
    ("item", "param", "words"),
    [
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]},
            "content[0].type",
            "reads text only",
        ),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}, "content[0].type", "reads text only"),
        ({"role": "tool", "content": "x"}, "role", "user, assistant, system or developer"),
        ({"role": "user"}, "content", "missing"),
        ({"role": "user", "content": 3}, "content", "3"),
        ({"type": "item_reference", "id": "msg_1"}, "type", "send the item itself"),
        ({"type": "web_search_call", "id": "ws_1"}, "type", '"web_search_call"'),
        ({"type": 3}, "type", "message, reasoning"),
        ({"type": None, "role": "user", "content": "x"}, "type", "message, reasoning"),
        (CALL | {"arguments": "[1]"}, "arguments", "no object"),
        (CALL | {"arguments": "{"}, "arguments", "not JSON"),
        (CALL | {"name": "a b"}, "name", "letters"),
        ({"type": "function_call_output", "output": "x"}, "call_id", "missing"),
        (OUTPUT | {"output": [{"type": "input_image"}]}, "output[0].type", "reads text only"),
        (THOUGHT | {"content": [{"type": "text", "text": "x"}]}, "content[0].type", "reasoning_text"),
        (THOUGHT | {"summary": [{"type": "text", "text": "x"}]}, "summary[0].type", "summary_text"),
    ],
)
def test_an_item_that_cannot_be_read_is_named(item: dict[str, Any], param: str, words: str) -> None:
    error = refused([QUESTION, item])
    assert error.param == f"input[1].{param}"
    assert words in error.message


@pytest.mark.parametrize("input", [None, 3, [], ["hi"], [[QUESTION]], [QUESTION] * (MAX_ITEMS + 1)])
def test_input_that_is_none(input: object) -> None:
    assert (refused(input).param or "").startswith("input")
    with pytest.raises(RequestError, match="input is missing"):
        decode_responses(b"{}")


def test_a_prompt_that_does_not_fit_is_told_with_both_counts() -> None:
    error = refused("x" * 5000)
    assert isinstance(error, ContextLengthExceeded)
    assert (error.param, error.context) == ("input", 4096)
    assert error.prompt > 5000


def test_what_has_no_other_name_is_not_renamed() -> None:
    error = RequestError("invalid_value", "seed is odd", param="seed")
    assert renamed(error) is error
    nameless = RequestError("invalid_json", "no JSON")
    assert renamed(nameless) is nameless


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_NAMES = st.sampled_from(["type", "role", "content", "output", "summary", "call_id", "name", "arguments", "text"])
_WORDS = st.sampled_from(["message", "reasoning", "function_call", "function_call_output", "user", "input_text", "{}"])
_ITEMS = st.dictionaries(_NAMES, _WORDS | _JSON | st.lists(st.dictionaries(_NAMES, _WORDS, max_size=3), max_size=2))


@given(input=st.lists(_ITEMS | _JSON, max_size=3))
def test_no_items_end_in_another_error(input: list[Any]) -> None:
    refusals: list[RequestError] = []
    try:
        chat(input)
    except RequestError as error:
        refusals.append(error)
    assert all(error.status == 400 and error.param for error in refusals)
