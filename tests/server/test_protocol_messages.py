"""Messages that reach the template otherwise than transformers would give them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launcher.errors import RequestError
from launcher.server.protocol.decode import decode_chat
from launcher.server.protocol.messages import template_messages
from launcher.template import Message
from tests.support.served_model import TEMPLATE, served_model


def converted(*messages: dict[str, Any]) -> list[Message]:
    return template_messages(decode_chat(json.dumps({"messages": messages}).encode()).messages)


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_no_content_is_empty_content_in_every_role(role: str) -> None:
    assert converted({"role": role, "content": None}) == converted({"role": role, "content": ""})


def call(arguments: object, **fields: Any) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": arguments}} | fields


@pytest.mark.parametrize("thinking", [True, False])
def test_the_built_in_template_gives_the_same_text_as_transformers_for_calls_and_results(thinking: bool) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    tools = [{"type": "function", "function": {"name": "add", "description": "d", "parameters": {"type": "object"}}}]
    sent: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "1+"}, {"type": "text", "text": "2 和 3?"}]},
        {"role": "assistant", "content": None, "reasoning": "easy", "tool_calls": [call('{"a": 1, "b": [2, "é"]}')]},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
        {"role": "tool", "content": [{"type": "text", "text": "4"}]},
        {"role": "assistant", "content": "3"},
        {"role": "assistant", "content": "<think>old</think>style"},
        {"role": "user", "content": ""},
    ]
    expected: list[dict[str, Any]] = [dict(message) for message in sent]
    expected[2] |= {"reasoning_content": "easy", "tool_calls": [call({"a": 1, "b": [2, "é"]})]}
    rendered, _ = utils.render_jinja_template(
        conversations=[expected],
        tools=tools,
        chat_template=TEMPLATE.read_text(encoding="utf-8"),
        add_generation_prompt=True,
        enable_thinking=thinking,
        eos_token="<|role_end|>",
    )
    ours = served_model().template.render(converted(*sent), enable_thinking=thinking, tools=tools)
    assert ours == rendered[0]
    assert "<arg_key>b</arg_key>" in ours
    assert "<think>old</think>style" in ours


def test_what_the_template_sees_of_calls_and_results() -> None:
    assistant, tool = converted(
        {"role": "assistant", "content": "", "tool_calls": [call('{"a":1}')], "name": "bot"},
        {"role": "tool", "content": "3", "tool_call_id": "call_1", "name": "add"},
    )
    function = {"name": "add", "arguments": {"a": 1}}
    assert assistant.variables() == {
        "role": "assistant",
        "content": "",
        "name": "bot",
        "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
    }
    assert tool.variables() == {"role": "tool", "content": "3", "tool_call_id": "call_1", "name": "add"}


def test_a_developer_is_a_system_and_several_systems_stay() -> None:
    messages = converted(
        {"role": "developer", "content": "a"}, {"role": "system", "content": "b"}, {"role": "user", "content": "c"}
    )
    assert [message.role for message in messages] == ["system", "system", "user"]


def test_reasoning_goes_by_two_names() -> None:
    for name in ("reasoning", "reasoning_content"):
        assert converted({"role": "assistant", "content": "x", name: "why"})[0].reasoning == "why"
    assert converted({"role": "assistant", "content": "x"})[0].reasoning is None


@pytest.mark.parametrize("given", ["", "  ", "{}", {}])
def test_a_call_without_arguments_has_none(given: object) -> None:
    assert converted({"role": "assistant", "tool_calls": [call(given)]})[0].tool_calls[0].arguments == {}


def test_large_numbers_in_arguments_stay_exact() -> None:
    message = converted({"role": "assistant", "tool_calls": [call('{"a": 12345678901234567890123}')]})[0]
    assert message.tool_calls[0].arguments == {"a": 12345678901234567890123}


@pytest.mark.parametrize(
    "given", ["{", "[1]", "3", '"x"', "null", "nonsense", '{"a": NaN}', '"\\ud800"', "[" * 100_000]
)
def test_arguments_that_are_no_object_are_named(given: str) -> None:
    with pytest.raises(RequestError) as caught:
        converted({"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call("{}"), call(given)]})
    assert caught.value.status == 400
    assert caught.value.param == "messages[1].tool_calls[1].function.arguments"
