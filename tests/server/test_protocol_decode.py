"""Bodies that end in another error than a 400 which names the field, and requests that clients send but that fail."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.errors import RequestError
from launcher.server.protocol import limits
from launcher.server.protocol.decode import (
    decode_completion,
    decode_control,
    decode_reasoning_control,
    decode_tokenize,
)
from tests.support.request_bodies import TOOL, USER, chat, refused


def refused_chat(**fields: Any) -> RequestError:
    return refused({"messages": [USER]} | fields)


def test_all_fields_of_openai_that_ask_for_nothing_else_are_taken() -> None:
    request = chat(
        store=False,
        metadata={"a": "b"},
        service_tier="auto",
        parallel_tool_calls=True,
        user="u",
        prompt_cache_key="k",
        prompt_cache_retention="24h",
        safety_identifier="s",
        reasoning_effort="high",
        verbosity="low",
        modalities=["text"],
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
        logit_bias={},
        stop=None,
        n=None,
        seed=None,
        tools=[],
        tool_choice="auto",
        response_format={"type": "text"},
        a_field_of_tomorrow={"x": [1]},
    )
    assert request.include_usage
    assert request.stops == ()


@pytest.mark.parametrize(
    "name",
    [
        "audio",
        "function_call",
        "functions",
        "grammar",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "json_schema",
        "max_thinking_tokens",
        "moderation",
        "prediction",
        "structured_outputs",
        "web_search_options",
    ],
)
def test_what_this_server_cannot_do_is_refused_by_name(name: str) -> None:
    error = refused_chat(**{name: {"x": 1}})
    assert (error.slug, error.param) == ("unsupported_parameter", name)
    assert name in error.message
    chat(**{name: None})


def test_a_field_that_is_no_budget_of_ours_names_the_one_that_is() -> None:
    assert "thinking_budget" in refused_chat(max_thinking_tokens=5).message


@pytest.mark.parametrize("value", [-2, 1 << 31, 1.5, "5", True])
def test_a_budget_that_is_no_count_of_tokens_is_told_with_its_name(value: object) -> None:
    names = ("thinking_budget", "thinking_budget_tokens", "reasoning_budget_tokens", "thinking_token_budget")
    given: list[tuple[str, dict[str, Any]]] = [(name, {name: value}) for name in names]
    given.append(("thinking.budget_tokens", {"thinking": {"type": "enabled", "budget_tokens": value}}))
    given.append(("reasoning.max_tokens", {"reasoning": {"max_tokens": value}}))
    for param, fields in given:
        error = refused_chat(**fields)
        assert error.param == param
        assert error.slug in {"invalid_type", "invalid_value"}
        assert "integer" in error.message


def test_the_field_of_a_message_is_another_one_than_that_of_the_body() -> None:
    assert refused({"messages": [{"role": "assistant", "reasoning": 5}]}).slug == "invalid_type"
    unknown = refused_chat(reasoning={"exclude": True})
    assert (unknown.slug, unknown.param) == ("unknown_field", "reasoning.exclude")
    assert "max_tokens" in unknown.message


def test_another_action_than_the_end_of_thinking_is_told_with_that_one() -> None:
    error = refused({"id": "x", "action": "explode"}, decode_reasoning_control)
    assert (error.slug, error.param) == ("invalid_value", "action")
    assert "reasoning_end" in error.message
    assert refused({"action": "reasoning_end"}, decode_reasoning_control).param == "id"
    assert decode_reasoning_control(b'{"id": "x", "action": "reasoning_end"}').id == "x"


@pytest.mark.parametrize("id", ["", "a b", "a\n", "é", "x" * 65, "a/b"])
def test_what_is_no_id_of_a_request_is_told_with_what_is_one(id: str) -> None:
    error = refused_chat(request_id=id)
    assert (error.slug, error.param) == ("invalid_value", "request_id")
    assert "1 to 64 letters, digits, _, ., : or -" in error.message
    assert chat(request_id="x" * 64).request_id == "x" * 64


def test_other_modalities_are_refused_by_name() -> None:
    assert refused_chat(modalities=["text", "audio"]).slug == "unsupported_parameter"
    assert refused_chat(modalities=["audio"]).slug == "unsupported_parameter"


def test_an_unknown_role_is_named() -> None:
    error = refused({"messages": [USER, {"role": "wizard", "content": "x"}]})
    assert error.param == "messages[1].role"
    assert '"wizard"' in error.message
    assert "assistant" in error.message


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_an_unknown_content_part_is_named_in_every_role(role: str) -> None:
    parts = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    error = refused({"messages": [{"role": role, "content": parts}]})
    assert error.param == "messages[0].content[1].type"
    assert '"image_url"' in error.message


def test_an_unknown_switch_of_the_template_is_named() -> None:
    error = refused_chat(chat_template_kwargs={"thinking": False})
    assert error.param == "chat_template_kwargs.thinking"
    assert "enable_thinking" in error.message


@pytest.mark.parametrize(
    ("field", "value", "found"),
    [
        ("n", 0, "0"),
        ("n", 17, "17"),
        ("temperature", 2.5, "2.5"),
        ("temperature", -1, "-1"),
        ("top_p", -0.1, "-0.1"),
        ("top_p", 1.5, "1.5"),
        ("min_p", 2, "2"),
        ("top_k", -2, "-2"),
        ("frequency_penalty", 3, "3"),
        ("presence_penalty", -3, "-3"),
        ("repetition_penalty", 0, "0"),
        ("max_tokens", 0, "0"),
        ("max_tokens", -1, "-1"),
        ("max_completion_tokens", 0, "0"),
        ("timeout", 0, "0"),
        ("session_id", "a\nb", "a\\nb"),
        ("session_id", "a\n", "a\\n"),
        ("session_id", "x" * 257, "xxx"),
        ("messages", [], "list of 0"),
        ("response_format", {"type": "xml"}, '"xml"'),
        ("tool_choice", "sometimes", '"sometimes"'),
        ("tool_choice", {"type": "allowed_tools"}, '"allowed_tools"'),
        ("tools", [{"type": "custom", "custom": {"name": "x"}}], '"custom"'),
    ],
)
def test_a_value_out_of_range_is_named_with_what_was_found(field: str, value: object, found: str) -> None:
    error = refused_chat(**{field: value})
    assert error.slug == "invalid_value"
    assert (error.param or "").startswith(field)
    assert found in error.message
    assert "expected" in error.message


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("n", "3", "an integer or null"),
        ("n", True, "an integer or null"),
        ("n", 1.5, "an integer or null"),
        ("temperature", "hot", "a number or null"),
        ("stream", 1, "true or false or null"),
        ("messages", {}, "a list"),
        ("messages", ["hi"], "an object"),
        ("stop", 5, "a string"),
        ("logit_bias", [], "an object"),
        ("tools", [{"type": "function", "function": {"name": "x", "parameters": []}}], "an object"),
    ],
)
def test_a_wrong_type_is_named_with_the_right_one(field: str, value: object, wanted: str) -> None:
    error = refused_chat(**{field: value})
    assert error.slug == "invalid_type"
    assert (error.param or "").startswith(field)
    assert wanted in error.message


def test_a_missing_field_is_named_with_its_path() -> None:
    assert refused(b"{}").param == "messages"
    assert refused({"messages": [{"content": "x"}]}).param == "messages[0].role"
    assert refused({"messages": [{"role": "user"}]}).param == "messages[0].content"
    assert refused({"messages": [{"role": "user"}]}).slug == "missing_field"
    assert refused(b"{}", decode_completion).param == "prompt"
    assert refused(b"{}", decode_control).param == "request_id"
    assert refused(b"{}", decode_tokenize).slug == "missing_field"
    assert refused(b'{"response_format":{"type":"json_schema"},"messages":[{"role":"user","content":""}]}').param == (
        "response_format.json_schema"
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  ",
        b"{",
        b'{"messages":',
        b"nonsense",
        b'{"messages":[{"role":"user","content":""}]}x',
        b"\xef\xbb\xbf{}",
        b"\xff\xfe",
        b'{"messages":[{"role":"user","content":"\xff"}]}',
        b'{"messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"messages":[{"role":"user","content":"\\ud800\\u0041"}]}',
        b'{"messages":[{"role":"user","content":"\\udc00"}]}',
        b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}',
        b'{"temperature":NaN,"messages":[]}',
        b'{"temperature":Infinity,"messages":[]}',
        b'{"temperature":-Infinity,"messages":[]}',
        b'{"metadata":{"x":NaN},"messages":[{"role":"user","content":""}]}',
    ],
)
def test_what_is_no_json_or_no_unicode_is_refused(body: bytes) -> None:
    assert refused(body).slug == "invalid_json"


def test_numbers_beyond_all_bounds_are_refused() -> None:
    for text in (b"1e999", b"-1e999", b"9" * 5000):
        for field in (b"temperature", b"metadata", b"seed"):
            value = b'{"x":' + text + b"}" if field == b"metadata" else text
            refused(b'{"messages":[{"role":"user","content":""}],"' + field + b'":' + value + b"}")


@pytest.mark.parametrize(
    ("field", "wanted"),
    [
        ("temperature", "a number >= 0 and <= 2"),
        ("top_p", "a number >= 0 and <= 1"),
        ("timeout", "a number > 0 and <= 604800"),
        ("n", "an integer >= 1 and <= 16"),
        ("max_tokens", "an integer >= 1"),
        ("seed", f"an integer >= {limits.MIN_SEED} and <= {limits.MAX_SEED}"),
        ("logit_bias", "a number >= -100 and <= 100"),
        ("metadata", "a number >= -1.79769e+308 and <= 1.79769e+308"),
    ],
)
@pytest.mark.parametrize("value", [b"1e999", b"-1e999"])
def test_a_number_that_no_float_holds_is_answered_with_what_its_field_takes(
    field: str, wanted: str, value: bytes
) -> None:
    value = b'{"1": %b}' % value if field in {"logit_bias", "metadata"} else value
    error = refused(b'{"messages": [{"role": "user", "content": "x"}], "%b": %b}' % (field.encode(), value))
    assert (error.param or "").startswith(field)
    assert error.message == f"{error.param} is out of range, expected {wanted}"


def test_the_bounds_of_an_id_in_a_list_are_told() -> None:
    error = refused(b'{"prompt": [1e999]}', decode_completion)
    assert error.message.endswith("is out of range, expected an integer >= 0 and <= 2147483647")


def test_a_body_that_is_no_object_is_refused() -> None:
    for body in (b"[]", b"null", b"1", b'"x"', b"true"):
        error = refused(body)
        assert error.slug == "invalid_type"
        assert "object" in error.message


def test_seeds_of_64_bits_are_taken_and_larger_ones_named() -> None:
    for seed in (0, -1, -(1 << 63), (1 << 64) - 1):
        assert chat(seed=seed).seed == seed
    for seed in (1 << 64, -(1 << 63) - 1):
        assert refused_chat(seed=seed).param == "seed"


def test_limits_on_counts_hold() -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("messages", {"messages": [USER] * (limits.MAX_MESSAGES + 1)}),
        ("messages[0].content", {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 1025}]}),
        ("stop", {"stop": ["x"] * (limits.MAX_STOPS + 1)}),
        ("stop", {"stop": "x" * (limits.MAX_STOP_CHARACTERS + 1)}),
        ("stop[1]", {"stop": ["x", "x" * (limits.MAX_STOP_CHARACTERS + 1)]}),
        ("tools", {"tools": [TOOL] * (limits.MAX_TOOLS + 1)}),
        ("logit_bias", {"logit_bias": {str(key): 1 for key in range(limits.MAX_BIASES + 1)}}),
        ("metadata", {"metadata": {str(key): "" for key in range(limits.MAX_METADATA + 1)}}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
    ]
    for param, fields in cases:
        assert refused_chat(**fields).param == param
    chat(stop=["x"] * limits.MAX_STOPS, messages=[USER] * limits.MAX_MESSAGES)


@pytest.mark.parametrize("key", ["x", "-1", "1.5", "", "1\n", "1234567890"])
def test_keys_of_the_bias_are_token_ids(key: str) -> None:
    error = refused_chat(logit_bias={key: 1})
    assert error.param == "logit_bias"
    assert "token id" in error.message


def test_biases_stay_within_a_hundred() -> None:
    assert refused_chat(logit_bias={"1": 100.5}).slug == "invalid_value"
    assert chat(logit_bias={"1": -100, "2": 100.0}).logit_bias == {"1": -100.0, "2": 100.0}


@pytest.mark.parametrize("name", ["", "two words", "a/b", "x" * 65, "ü", "a\n"])
def test_names_of_tools_have_a_form(name: str) -> None:
    error = refused_chat(tools=[{"type": "function", "function": {"name": name}}])
    assert error.param == "tools[0].function.name"


def test_tools_and_the_choice_among_them_agree() -> None:
    assert refused_chat(tools=[TOOL, TOOL]).param == "tools[1].function.name"
    assert refused_chat(tool_choice="required").param == "tool_choice"
    named = {"type": "function", "function": {"name": "sub"}}
    error = refused_chat(tools=[TOOL], tool_choice=named)
    assert error.param == "tool_choice.function.name"
    assert "add" in error.message
    chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "add"}})


def test_empty_stop_strings_stop_nothing() -> None:
    """As llama-server has it; an empty text is found everywhere, and would end every reply before its first token."""
    assert [chat(stop=stop).stops for stop in ("", [], [""], ["x", ""])] == [(), (), (), ("x",)]


def test_top_logprobs_without_logprobs_is_refused_where_it_asks_for_something() -> None:
    assert chat(top_logprobs=0, logprobs=False).logprobs is False
    assert chat(top_logprobs=0).logprobs is None
    assert refused_chat(top_logprobs=3).param == "top_logprobs"
    assert refused_chat(top_logprobs=3, logprobs=False).param == "top_logprobs"


@pytest.mark.parametrize(
    "content", [None, "", "x", [{"type": "text", "text": "x"}], [{"type": "refusal", "refusal": "x"}]]
)
def test_an_assistant_with_calls_may_have_any_content(content: object) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    chat(messages=[USER, {"role": "assistant", "content": content, "tool_calls": [call]}])
    chat(messages=[USER, {"role": "assistant", "tool_calls": [call]}])


def test_completions_refuse_what_they_cannot_do() -> None:
    def complete(**fields: Any) -> RequestError:
        return refused({"prompt": "x"} | fields, decode_completion)

    assert complete(suffix="y").param == "suffix"
    assert complete(guided_json={}).param == "guided_json"
    assert complete(grammar="root ::= x").slug == "unsupported_parameter"
    assert complete(best_of=2).param == "best_of"
    assert complete(best_of=3, n=2).param == "best_of"
    assert complete(logprobs=6).param == "logprobs"
    assert complete(echo=True, logprobs=1).param == "echo"
    assert complete(prompt=[1.5]).param == "prompt[0]"
    assert complete(prompt=[-1]).param == "prompt[0]"
    decode_completion(b'{"prompt":[[1,2]],"best_of":2,"n":2,"suffix":null,"echo":true}')
