"""Catches calls that cannot be read back or whose arguments break their schema, and schemas that nobody can serve."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime, time
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from launcher.errors import RequestError
from launcher.server.constraint import GrammarFactory
from launcher.server.events import Delta, ToolCallArguments, ToolCallStart
from launcher.server.grammar import MARKS, CallReply, EitherReply, JsonReply
from launcher.server.reply_reader import ReplyReader
from launcher.server.request import Style, Tool
from tests.support.constrained import ByteVocabulary, accepts, allowed_ids, demo_factory, demo_package, random_reply

ADDRESS = {
    "type": "object",
    "properties": {"street": {"type": "string", "maxLength": 8}, "number": {"type": "integer"}},
    "required": ["street"],
    "additionalProperties": False,
}
PARAMETERS: dict[str, dict[str, object]] = {
    "nothing": {},
    "no properties": {"type": "object", "properties": {}},
    "text": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
    "optional": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}, "c": {"type": "string"}},
        "required": ["b"],
    },
    "numbers": {
        "type": "object",
        "properties": {"n": {"type": "number", "minimum": 1, "maximum": 2}, "i": {"type": "integer", "maximum": 9}},
        "required": ["n", "i"],
    },
    "text with rules": {
        "type": "object",
        "properties": {
            "short": {"type": "string", "minLength": 1, "maxLength": 4},
            "code": {"type": "string", "pattern": "^[A-C]{3}$|^x\\d"},
            "inside": {"type": "string", "pattern": "q+", "maxLength": 9},
        },
        "required": ["short", "code", "inside"],
    },
    "formats": {
        "type": "object",
        "properties": {
            name: {"type": "string", "format": name, "maxLength": 40}
            for name in ("date", "time", "date-time", "uuid", "ipv4", "email")
        },
        "required": ["date", "time", "date-time", "uuid", "ipv4", "email"],
    },
    "enum": {
        "type": "object",
        "properties": {
            "unit": {"type": "string", "enum": ["C", "CC", "", "5", "é"]},
            "n": {"enum": [1, "1", "x", None]},
        },
        "required": ["unit", "n"],
    },
    "text or null": {
        "type": "object",
        "properties": {
            "a": {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 5}, {"type": "null"}]},
            "b": {"type": ["string", "integer"], "maxLength": 4, "minimum": 10, "maximum": 99},
        },
        "required": ["a", "b"],
    },
    "references": {
        "$defs": {"address": ADDRESS, "name": {"type": "string", "enum": ["Ada", "Bob"]}},
        "type": "object",
        "properties": {
            "home": {"$ref": "#/$defs/address"},
            "others": {"type": "array", "items": {"$ref": "#/$defs/address"}, "maxItems": 2},
            "name": {"$ref": "#/$defs/name"},
        },
        "required": ["home", "others", "name"],
    },
    "reference to a property": {
        "type": "object",
        "properties": {"a": ADDRESS, "b": {"type": "array", "items": {"$ref": "#/properties/a"}, "maxItems": 1}},
        "required": ["a", "b"],
    },
    "allOf": {
        "type": "object",
        "properties": {"a": {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 3}]}},
        "required": ["a"],
    },
    "anything": {"type": "object", "properties": {"a": {}, "b": {"description": "whatever"}}, "required": ["a", "b"]},
    "free keys": {"type": "object", "additionalProperties": {"type": "integer"}},
    "free keys of any kind": {"type": "object"},
    "free keys beside others": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "additionalProperties": {"type": "string", "maxLength": 3},
    },
    "required without a schema": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a", "z"],
        "additionalProperties": {"type": "integer"},
    },
    "names": {"type": "object", "properties": {"größe 颜色": {"type": "integer"}}, "required": ["größe 颜色"]},
}


def _tool(name: str) -> Tool:
    return Tool(name=re.sub(r"\W", "_", name), parameters=PARAMETERS[name])


def _calls(reply: str, tools: Iterable[Tool], *, reasoning: bool) -> list[tuple[str, dict[str, Any]]]:
    """The calls as the server reads them."""
    reader = ReplyReader(
        style=Style.CHAT,
        reasoning=reasoning,
        tools=tuple(tools),
        parallel_calls=True,
        stops=(),
        new_call_id=lambda: "id",
    )
    calls: list[tuple[str, list[str]]] = []
    deltas: tuple[Delta, ...] = (*reader.push(reply), *reader.finish())
    for delta in deltas:
        if isinstance(delta, ToolCallStart):
            calls.append((delta.name, []))
        elif isinstance(delta, ToolCallArguments):
            calls[delta.index][1].append(delta.text)
    return [(name, json.loads("".join(parts))) for name, parts in calls]


def _raw_calls(reply: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """The calls as they stand in the text; fails where there is anything else but newlines."""
    found = re.findall(r"<tool_call>(.*?)\n(.*?)</tool_call>", reply, re.DOTALL)
    assert re.fullmatch(r"(<tool_call>.*?</tool_call>\n*)+", reply, re.DOTALL)
    pair = r"<arg_key>(.*?)</arg_key>\n?<arg_value>(.*?)</arg_value>\n?"
    for _name, arguments in found:
        assert re.fullmatch(rf"({pair})*\n?", arguments, re.DOTALL), arguments
    return [(name, re.findall(pair, arguments, re.DOTALL)) for name, arguments in found]


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("reasoning", [False, True], ids=["direct", "thinking"])
def test_random_calls_are_read_back_and_follow_the_schema(name: str, reasoning: bool) -> None:
    tool = _tool(name)
    wanted = CallReply(tools=(tool,), name=None, parallel=False)
    new_constraint = demo_factory().constraint(wanted, reasoning=reasoning)
    validator = Draft202012Validator(tool.parameters, format_checker=Draft202012Validator.FORMAT_CHECKER)
    for seed in range(6):
        reply = random_reply(new_constraint, demo_package(), seed)
        ((called, arguments),) = _calls(reply, [tool], reasoning=reasoning)
        assert called == tool.name
        validator.validate(arguments)
        ((_, pairs),) = _raw_calls(reply[reply.index("<tool_call>") :])
        declared = [key for key, _ in pairs if key in tool.parameters.get("properties", {})]  # type: ignore[operator]
        order = [key for key in tool.parameters.get("properties", {}) if key in declared]  # type: ignore[attr-defined]
        assert declared == order, "each at most once, in the order of the schema"
        if name == "formats":
            datetime.fromisoformat(arguments["date-time"])
            time.fromisoformat(arguments["time"])
        if name in ("nothing", "no properties"):
            assert arguments == {}


@pytest.mark.parametrize("name", ["text with rules", "enum", "references", "free keys beside others", "optional"])
@pytest.mark.parametrize("marks", [(), MARKS, ("</think>", "<tool_call>")], ids=["text", "tokens", "some"])
def test_marks_that_are_ordinary_text_work_too(name: str, marks: tuple[str, ...]) -> None:
    tool = _tool(name)
    vocabulary = ByteVocabulary.like(demo_package().config, marks)
    wanted = CallReply(tools=(tool,), name=tool.name, parallel=True)
    for reasoning in (False, True):
        new_constraint = GrammarFactory(vocabulary).constraint(wanted, reasoning=reasoning)
        for seed in range(3):
            reply = random_reply(new_constraint, vocabulary, seed, patience=10, most=6000)
            calls = _calls(reply, [tool], reasoning=reasoning)
            assert calls
            for _, arguments in calls:
                Draft202012Validator(tool.parameters).validate(arguments)


def test_thinking_ends_where_marks_are_ordinary_text() -> None:
    vocabulary = ByteVocabulary.like(demo_package().config)
    new_constraint = GrammarFactory(vocabulary).constraint(JsonReply(schema={"type": "integer"}), reasoning=True)
    assert accepts(new_constraint(), vocabulary, "so </thin it is</think>\n\n12")
    assert accepts(new_constraint(), vocabulary, "</think>12")
    assert not accepts(new_constraint(), vocabulary, "a</think>b")
    assert not accepts(new_constraint(), vocabulary, "12")


def test_a_stop_token_is_never_text() -> None:
    """Even where the vocabulary does not mark it as special."""
    vocabulary = ByteVocabulary.like(demo_package().config, MARKS)
    constraint = GrammarFactory(vocabulary).constraint(JsonReply(schema={"type": "string"}), reasoning=False)()
    constraint.advance(ord('"'))
    assert not set(vocabulary.config.stop_ids) & set(allowed_ids(constraint))


WEATHER = Tool(
    name="weather",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)
CLOCK = Tool(name="weather_clock", parameters={})
CALL = "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Ulm</arg_value>\n</tool_call>"
TICK = "<tool_call>weather_clock\n</tool_call>"


@pytest.mark.parametrize(
    ("reply", "fits"),
    [
        (CALL, True),
        (TICK, True),
        (CALL + "\n" + TICK, True),
        (CALL + TICK + "\n\n" + CALL, True),
        ("<tool_call>weather\n<arg_key>city</arg_key><arg_value>a<b>\n</x></arg_value></tool_call>", True),
        (CALL.replace("\n</tool", "<arg_key>days</arg_key><arg_value>3</arg_value>\n</tool"), True),
        (CALL.replace("\n</tool", "\n<arg_key>days</arg_key>\n<arg_value>-30</arg_value></tool"), True),
        ("", False),
        ("text" + CALL, False),
        (CALL + "\n", False),
        (CALL + "text", False),
        (CALL[:-5], False),
        ("<tool_call>weather\n</tool_call>", False),
        ("<tool_call>other\n</tool_call>", False),
        (CALL.replace("city", "town"), False),
        (CALL.replace("\n</tool", "<arg_key>days</arg_key><arg_value>three</arg_value></tool"), False),
        (CALL.replace("\n</tool", "<arg_key>city</arg_key><arg_value>twice</arg_value></tool"), False),
        (
            "<tool_call>weather\n<arg_key>days</arg_key><arg_value>3</arg_value>"
            "<arg_key>city</arg_key><arg_value>late</arg_value></tool_call>",
            False,
        ),
    ],
)
def test_what_a_reply_of_calls_may_be(reply: str, fits: bool) -> None:
    wanted = CallReply(tools=(WEATHER, CLOCK), name=None, parallel=True)
    assert accepts(demo_factory().constraint(wanted, reasoning=False)(), demo_package(), reply) is fits


@pytest.mark.parametrize(
    ("reply", "fits"),
    [
        (f"I think.</think>{CALL}", True),
        (f"</think>\n\n{CALL}", True),
        (f"Let me{CALL}", True),
        (f"Let me\n{CALL}\n{TICK}", True),
        (CALL, True),
        (f"no</think>well {CALL}", False),
        ("only thinking</think>", False),
        ("only thinking", False),
    ],
)
def test_a_call_may_end_the_thinking(reply: str, fits: bool) -> None:
    wanted = CallReply(tools=(WEATHER, CLOCK), name=None, parallel=True)
    assert accepts(demo_factory().constraint(wanted, reasoning=True)(), demo_package(), reply) is fits


def test_a_named_tool_is_the_only_one() -> None:
    wanted = CallReply(tools=(WEATHER, CLOCK), name="weather_clock", parallel=True)
    new_constraint = demo_factory().constraint(wanted, reasoning=False)
    assert accepts(new_constraint(), demo_package(), TICK)
    assert not accepts(new_constraint(), demo_package(), CALL)


def test_one_call_only_where_calls_are_not_parallel() -> None:
    wanted = CallReply(tools=(WEATHER, CLOCK), name=None, parallel=False)
    constraint = demo_factory().constraint(wanted, reasoning=False)()
    for token in demo_package().tokenize(TICK):
        constraint.advance(token)
    assert constraint.is_finished


@pytest.mark.parametrize(
    ("reply", "fits"),
    [
        ('I think.</think>{"a": 1}', True),
        (f"I think.</think>{CALL}", True),
        (f"Let me{CALL}\n{TICK}", True),
        ("I think.</think>text", False),
        (f'</think>{{"a": 1}}{CALL}', False),
        (f'</think>{CALL}{{"a": 1}}', False),
        ('{"a": 1}', False),
        ('</think>{"b": 1}', False),
    ],
)
def test_a_reply_may_be_json_or_calls_and_nothing_else(reply: str, fits: bool) -> None:
    wanted = EitherReply(
        json=JsonReply(
            schema={
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "required": ["a"],
                "additionalProperties": False,
            }
        ),
        calls=CallReply(tools=(WEATHER, CLOCK), name=None, parallel=True),
    )
    assert accepts(demo_factory().constraint(wanted, reasoning=True)(), demo_package(), reply) is fits
    direct = demo_factory().constraint(wanted, reasoning=False)
    for text in ('{"a": 1}', CALL, TICK + TICK):
        assert accepts(direct(), demo_package(), text)
    assert not accepts(direct(), demo_package(), f'{{"a": 1}}{TICK}')


def test_a_name_that_no_tool_has_is_refused() -> None:
    with pytest.raises(RequestError, match="'nope'") as caught:
        demo_factory().constraint(CallReply(tools=(WEATHER,), name="nope", parallel=True), reasoning=False)
    assert caught.value.param == "tool_choice"


def test_texts_that_would_be_read_as_something_else_are_not_written() -> None:
    """Text or number: the reader takes 12 for a number, so 12 must follow the rules for numbers."""
    schema = {"type": "object", "properties": {"a": {"type": ["string", "integer"], "maximum": 5}}, "required": ["a"]}
    wanted = CallReply(tools=(Tool(name="f", parameters=schema),), name=None, parallel=False)
    new_constraint = demo_factory().constraint(wanted, reasoning=False)

    def fits(value: str) -> bool:
        reply = f"<tool_call>f\n<arg_key>a</arg_key><arg_value>{value}</arg_value></tool_call>"
        return accepts(new_constraint(), demo_package(), reply)

    assert all(fits(value) for value in ("", "5", "-12", "12 apples", "null", "[1]", '"5"'))
    assert not any(fits(value) for value in ("12", " 12", "12\n", "6e3", "7.0"))
