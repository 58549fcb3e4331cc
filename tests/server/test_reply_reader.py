"""Thinking, markup or stop texts that leak into an answer, tool calls misread, arguments that are not JSON."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.build import build_library
from launcher.engine_library import Library
from launcher.engine_sampling import Utf8Stream
from launcher.server.events import Content, Delta, Reasoning, TokenLogprob, ToolCallArguments, ToolCallStart
from launcher.server.reply_reader import ReplyReader
from launcher.server.request import Style, Tool
from launcher.template import ChatTemplate, Message, ToolCall

DEMO_TEMPLATE = Path(__file__).resolve().parents[2] / "release" / "demo" / "chat_template.jinja"
STOPS = ("<|role_end|>", "<|endoftext|>")
WEATHER = Tool(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "ratio": {"type": "number"},
            "exact": {"type": "boolean"},
            "near": {"type": "array", "items": {"type": "string"}},
            "extra": {"type": "object"},
            "unit": {"type": ["string", "null"]},
            "either": {"anyOf": [{"type": "integer"}, {"$ref": "#/$defs/flag"}]},
            "loop": {"$ref": "#/$defs/loop"},
            "level": {"enum": ["low", "high"]},
            "any": {},
        },
        "$defs": {"flag": {"type": "boolean"}, "loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"type": "integer"}]}},
    },
)
TIME = Tool(name="get_time", parameters={})
LONGER = Tool(name="get_time_zone", parameters={})
TOOLS = (WEATHER, TIME, LONGER)


@dataclass(slots=True)
class Heard:
    """What the deltas of a reply come to."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    logprobs: list[int] = field(default_factory=list)
    stopped: bool = False
    called: bool = False


def new_reader(
    *,
    style: Style = Style.CHAT,
    reasoning: bool = False,
    tools: tuple[Tool, ...] = TOOLS,
    parallel_calls: bool = True,
    text_or_calls: bool = False,
    stops: tuple[str, ...] = STOPS,
) -> ReplyReader:
    ids = itertools.count()
    return ReplyReader(
        style=style,
        reasoning=reasoning,
        tools=tools,
        parallel_calls=parallel_calls,
        text_or_calls=text_or_calls,
        stops=stops,
        new_call_id=lambda: f"call_{next(ids)}",
    )


def hear(deltas: Iterable[Delta], heard: Heard) -> None:
    for delta in deltas:
        if isinstance(delta, Reasoning):
            assert delta.text
            heard.reasoning += delta.text
        elif isinstance(delta, Content):
            heard.content += delta.text
            heard.logprobs += [entry.token for entry in delta.logprobs]
        elif isinstance(delta, ToolCallStart):
            assert delta.index == len(heard.calls)
            assert delta.id == f"call_{delta.index}"
            heard.calls.append((delta.name, ""))
        else:
            assert delta.text
            assert delta.index == len(heard.calls) - 1
            name, arguments = heard.calls[-1]
            heard.calls[-1] = (name, arguments + delta.text)


def read(reader: ReplyReader, pieces: Sequence[str]) -> Heard:
    heard = Heard()
    for number, text in enumerate(pieces):
        hear(reader.push(text, TokenLogprob(token=number, logprob=-1.0)), heard)
        if reader.stopped:
            break
    hear(reader.finish(), heard)
    assert reader.finish() == ()
    heard.stopped, heard.called = reader.stopped, reader.called
    return heard


def call(name: str, *arguments: tuple[str, str], between: str = "") -> str:
    pairs = between.join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>" for key, value in arguments)
    return f"<tool_call>{name}\n{pairs}\n</tool_call>"


PARIS = call("get_weather", ("city", "Paris"))


@pytest.mark.parametrize(
    ("reply", "reasoning", "content"),
    [
        ("1+1=2</think>2", "1+1=2", "2"),
        ("</think>2", "", "2"),
        ("no end", "no end", ""),
        ("a\n</think>\n\nb\n", "a\n", "\n\nb\n"),
        ("a</think>b</think>c", "a", "b</think>c"),
        ("1 < 2 </thin", "1 < 2 </thin", ""),
        ("cut<|role_end|></think>no", "cut", ""),
        ("a</think>cut<|role_end|>no", "a", "cut"),
        ("a</think>1 < 2 <|role", "a", "1 < 2 <|role"),
        ("你好</think>世界🙂", "你好", "世界🙂"),
        ("a</think><tool_call>no_such_tool\n</tool_call>", "a", "<tool_call>no_such_tool\n</tool_call>"),
        ("a</think><tool_call>get_time", "a", "<tool_call>get_time"),
        ("a</think>x\n<tool_call>get_ti", "a", "x\n<tool_call>get_ti"),
        ("a</think><tool_call>get_time x\n</tool_call>", "a", "<tool_call>get_time x\n</tool_call>"),
        ("a</think>\n", "a", "\n"),
        ("a<tool_call>none</think>b", "a", "<tool_call>noneb"),
    ],
)
def test_reply_without_a_call(reply: str, reasoning: str, content: str) -> None:
    for pieces in ([reply], list(reply)):
        heard = read(new_reader(reasoning=True), pieces)
        assert (heard.reasoning, heard.content, heard.calls) == (reasoning, content, [])


@pytest.mark.parametrize(
    ("reply", "content", "calls"),
    [
        (PARIS, "", [("get_weather", {"city": "Paris"})]),
        ("<tool_call>get_time\n</tool_call>", "", [("get_time", {})]),
        ("<tool_call>get_time</tool_call>", "", [("get_time", {})]),
        ("<tool_call>\n get_time_zone \n</tool_call>", "", [("get_time_zone", {})]),
        (
            "<tool_call>get_weather<arg_key>city</arg_key><arg_value>a b</arg_value>"
            "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>",
            "",
            [("get_weather", {"city": "a b", "days": 2})],
        ),
        (
            call("get_weather", ("city", "Paris"), ("days", "3"), between="\n"),
            "",
            [("get_weather", {"city": "Paris", "days": 3})],
        ),
        (f"\n{PARIS}", "", [("get_weather", {"city": "Paris"})]),
        (f"I look.\n{PARIS}", "I look.", [("get_weather", {"city": "Paris"})]),
        (f"I look.\n\n{PARIS}", "I look.\n", [("get_weather", {"city": "Paris"})]),
        (f"{PARIS}\n{call('get_time')}\n", "", [("get_weather", {"city": "Paris"}), ("get_time", {})]),
        (f"{PARIS} and {call('get_time')}!", " and !", [("get_weather", {"city": "Paris"}), ("get_time", {})]),
        (f"{PARIS}</think>done", "</think>done", [("get_weather", {"city": "Paris"})]),
        ("<tool_call>none\n" + PARIS, "<tool_call>none", [("get_weather", {"city": "Paris"})]),
        ("<tool_call>" + PARIS, "<tool_call>", [("get_weather", {"city": "Paris"})]),
        # broken after the name was told
        ("<tool_call>get_time\nwhat</tool_call>", "what</tool_call>", [("get_time", {})]),
        ("<tool_call>get_time\n" + PARIS, "", [("get_time", {}), ("get_weather", {"city": "Paris"})]),
        ("<tool_call>get_weather\n<arg_key>city", "", [("get_weather", {})]),
        ("<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_va", "", [("get_weather", {})]),
        ('<tool_call>get_weather\n<arg_key>city</arg_key><arg_value>Pa"r', "", [("get_weather", {"city": 'Pa"r'})]),
        ("<tool_call>get_weather\n<arg_key>days</arg_key><arg_value>1", "", [("get_weather", {"days": 1})]),
        (
            "<tool_call>get_weather\n<arg_key>city<arg_value>x</arg_value></tool_call>",
            "<arg_key>city<arg_value>x</arg_value></tool_call>",
            [("get_weather", {})],
        ),
        (
            "<tool_call>get_weather\n<arg_key>city</arg_key>=<arg_value>x",
            "<arg_key>city</arg_key>=<arg_value>x",
            [("get_weather", {})],
        ),
        (f"{PARIS}<|role_end|>no", "", [("get_weather", {"city": "Paris"})]),
        (
            "<tool_call>get_weather\n<arg_key>city</arg_key><arg_value>Pa<|role_end|>ris</arg_value>",
            "",
            [("get_weather", {"city": "Pa"})],
        ),
        # the first of two equal keys stays: it is out already
        (
            call("get_weather", ("city", "a"), ("city", "b"), ("days", "1"), ("days", "2")),
            "",
            [("get_weather", {"city": "a", "days": 1})],
        ),
        # markup within a value is text
        (
            call("get_weather", ("city", "<tool_call></tool_call>")),
            "",
            [("get_weather", {"city": "<tool_call></tool_call>"})],
        ),
    ],
)
def test_reply_with_calls(reply: str, content: str, calls: list[tuple[str, object]]) -> None:
    for pieces in ([reply], list(reply)):
        heard = read(new_reader(), pieces)
        assert heard.content == content
        assert [(name, json.loads(arguments)) for name, arguments in heard.calls] == calls
        assert heard.called


@pytest.mark.parametrize("after", ["</think>", "\n</think>\n", ""])
def test_call_within_the_thinking_ends_it_and_its_closing_tag_is_dropped(after: str) -> None:
    reply = f"I need it.{PARIS}{after}"
    for pieces in ([reply], list(reply)):
        heard = read(new_reader(reasoning=True), pieces)
        assert (heard.reasoning, heard.content) == ("I need it.", "")
        assert [name for name, _ in heard.calls] == ["get_weather"]
        assert read(new_reader(reasoning=True), [*pieces, "ok"]).content.strip() == "ok"


def test_without_tools_a_call_is_answer_text() -> None:
    for pieces in ([PARIS], list(PARIS)):
        heard = read(new_reader(reasoning=True, tools=()), ["x", *pieces])
        assert (heard.reasoning, heard.content, heard.called) == ("x", PARIS, False)


def test_plain_text_knows_only_stop_texts() -> None:
    reply = f"<think>a</think>{PARIS}"
    reader = new_reader(style=Style.TEXT, reasoning=True)
    assert not reader.reasoning
    heard = read(reader, [*reply, "<|role_", "end|>", "b"])
    assert (heard.reasoning, heard.content, heard.calls, heard.stopped) == ("", reply, [], True)


@pytest.mark.parametrize(
    ("value", "key", "expected"),
    [
        ("12", "city", "12"),
        ('"quoted"', "city", '"quoted"'),
        ('{"a": 1}', "city", '{"a": 1}'),
        (' \n a\tb\x01\\ "q" 🙂 \u2028 ', "city", ' \n a\tb\x01\\ "q" 🙂 \u2028 '),
        ("", "city", ""),
        (" 3\n", "days", 3),
        ("3.5", "days", "3.5"),
        ("true", "days", "true"),
        ("three", "days", "three"),
        ("3.5", "ratio", 3.5),
        ("3", "ratio", 3),
        ("NaN", "ratio", "NaN"),
        ("true", "exact", True),
        ("True", "exact", "True"),
        ('["a", "b"]', "near", ["a", "b"]),
        ('["a", ', "near", '["a", '),
        ("[" * 100_000, "near", "[" * 100_000),
        ('{"a": {"b": null}}', "extra", {"a": {"b": None}}),
        ("null", "unit", None),
        ("5", "unit", "5"),
        ("5", "either", 5),
        ("false", "either", False),
        ("[]", "either", "[]"),
        ("7", "loop", 7),
        ("low", "level", "low"),
        ("1", "level", "1"),
        ("[1]", "any", [1]),
        ('"x"', "any", '"x"'),
        ("9" * 5000, "other", "9" * 5000),
        ("1", "other", 1),
        ("text", "other", "text"),
    ],
)
def test_value_has_the_type_that_the_schema_says(value: str, key: str, expected: object) -> None:
    for pieces in ([value], list(value)):
        heard = read(
            new_reader(),
            ["<tool_call>get_weather\n<arg_key>", key, "</arg_key>", "<arg_value>", *pieces, "</arg_value>"],
        )
        found = json.loads(heard.calls[0][1])[key]
        assert found == expected
        assert type(found) is type(expected)


def test_name_is_told_before_the_arguments_and_text_values_stream() -> None:
    reader = new_reader()
    reader.push("<tool_call>get_weather")
    assert reader.push("\n") == (ToolCallStart(index=0, id="call_0", name="get_weather"),)
    assert reader.push("<arg_key>city</arg_key><arg_value>") == (ToolCallArguments(index=0, text='{"city": "'),)
    assert reader.push("Pa\n") == (ToolCallArguments(index=0, text="Pa\\n"),)
    assert reader.push("r</arg") == (ToolCallArguments(index=0, text="r"),)
    assert reader.push("x") == (ToolCallArguments(index=0, text="</argx"),)
    assert reader.push("</arg_value>") == (ToolCallArguments(index=0, text='"'),)
    assert reader.push("</tool_call>") == (ToolCallArguments(index=0, text="}"),)


def test_lone_surrogates_are_escaped_so_that_the_fragment_has_a_utf8_form() -> None:
    heard = read(new_reader(), [call("get_weather", ("city", "a\ud83d b"), ("any", '["\udc00"]'))])
    heard.calls[0][1].encode()
    assert json.loads(heard.calls[0][1]) == {"city": "a\ud83d b", "any": ["\udc00"]}


def test_only_one_call_where_no_more_are_allowed() -> None:
    for pieces in ([PARIS + PARIS + "x"], list(PARIS + PARIS + "x")):
        heard = read(new_reader(parallel_calls=False), pieces)
        assert heard.stopped
        assert (len(heard.calls), heard.content) == (1, "")


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_json_text_that_spells_a_call_is_an_answer_where_it_excludes_calls(size: int) -> None:
    called = call("get_time")
    said = json.dumps({"a": called, "b": call("get_weather", ("city", "Ulm"))})
    for reply, content, calls in (
        (said, said, []),
        (called + "\n" + called, "", [("get_time", "{}"), ("get_time", "{}")]),
        ("</think>\n" + called, "", [("get_time", "{}")]),
    ):
        pieces = [reply[at : at + size] for at in range(0, len(reply), size)]
        heard = read(new_reader(reasoning=reply.startswith("</think>"), text_or_calls=True), pieces)
        assert (heard.content, heard.calls) == (content, calls)


def test_cut_call_does_not_count_as_complete() -> None:
    heard = read(new_reader(parallel_calls=False), [PARIS[:-20]])
    assert not heard.stopped
    json.loads(heard.calls[0][1])


@pytest.mark.parametrize(
    ("stops", "reply", "content"),
    [
        (("STOP",), "one STOP two", "one "),
        (("b", "abc"), "xabc", "x"),
        (("bc", "abcd"), "xabce", "xa"),
        (("abcd", "bc"), "xabc", "xa"),
        (("ab", "abc"), "xabc", "x"),
        (("", "y"), "xy", "x"),
        (("\n\n",), "a\nb\n\nc", "a\nb"),
        (("🙂",), "a🙂b", "a"),
        (("l>x",), "a</tool_call>x", "a</tool_cal"),
    ],
)
def test_stop_text_ends_the_reply_wherever_it_is_cut(stops: tuple[str, ...], reply: str, content: str) -> None:
    for pieces in ([reply], list(reply)):
        heard = read(new_reader(stops=stops), pieces)
        assert (heard.content, heard.stopped) == (content, True)
        thought = read(new_reader(stops=stops, reasoning=True), pieces)
        assert (thought.reasoning, thought.content, thought.stopped) == (content, "", True)


def test_thinking_is_told_until_it_ends() -> None:
    reader = new_reader(reasoning=True)
    told = [reader.reasoning]
    for text in ("a", "</thi", "nk>", "b"):
        reader.push(text)
        told.append(reader.reasoning)
    assert told == [True, True, True, False, False]


PARTS = [
    "<", "/", "think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
    "</arg_value>", "get_time", "get_weather", "city", "days", "7", "\n", " ", '"', "\\", "\x00", "é", "🙂", "x",
    "<|ro", "<|role_end|>", "EN", "END", PARIS, call("get_time"), "get_weather\n<arg_key>city</arg_key><arg_value>",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PARTS), max_size=30).map("".join)
HYPOTHESIS_STOPS = ("<|role_end|>", "END")


@given(TEXTS, st.data(), st.booleans(), st.booleans(), st.sampled_from([(), TOOLS]))
def test_how_the_text_arrives_does_not_matter(
    text: str, data: st.DataObject, reasoning: bool, parallel: bool, tools: tuple[Tool, ...]
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=12)))
    pieces = [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]

    def heard(pieces: Sequence[str]) -> Heard:
        reader = new_reader(reasoning=reasoning, parallel_calls=parallel, tools=tools, stops=HYPOTHESIS_STOPS)
        result = read(reader, pieces)
        result.logprobs.clear()
        return result

    assert heard(pieces) == heard([text])
    assert heard(list(text)) == heard([text])


@given(TEXTS, st.booleans())
def test_arguments_are_json_however_the_reply_breaks(text: str, reasoning: bool) -> None:
    heard = read(new_reader(reasoning=reasoning, stops=HYPOTHESIS_STOPS), list(text))
    for _name, arguments in heard.calls:
        assert isinstance(json.loads(arguments), dict)


@given(TEXTS, st.booleans())
def test_nothing_from_a_stop_text_on_is_ever_shown(text: str, reasoning: bool) -> None:
    places = [place for place in map(text.find, HYPOTHESIS_STOPS) if place >= 0]
    whole = read(new_reader(reasoning=reasoning, stops=HYPOTHESIS_STOPS), list(text))
    cut = read(new_reader(reasoning=reasoning, stops=HYPOTHESIS_STOPS), list(text[: min(places, default=len(text))]))
    assert whole.stopped == bool(places)
    whole.stopped = False
    assert whole == cut


@given(st.lists(st.sampled_from(["a", "\n", "<", "</th", "x\n"]), max_size=12).map("".join))
def test_nothing_of_a_reply_without_markup_is_lost(text: str) -> None:
    assert read(new_reader(), list(text)).content == text


@pytest.mark.parametrize(
    ("pieces", "kept"),
    [
        (["th", "</think>", "Hel", "lo"], [2, 3]),
        (["t</think>H", "i"], [0, 1]),
        (["</think>", "a<", "b"], [1, 2]),
        (["</think>", "", "é", "x"], [1, 2, 3]),
        (["</think>", "a", "EN", "D", "b"], [1]),
        (["</think>", "aE", "ND"], [1]),
        (["</think>", "a", "\n", "<tool_call>", "get_time", "\n", "</tool_call>"], [1]),
        (["</think>", "a\n", "<tool_call>", "get_time", "\n", "</tool_call>"], [1]),
        (["</think>", "a", "<tool_call>", "none", "\n"], [1, 2, 3, 4]),
        (["</think>", "a", ""], [1, 2]),
        (["a", ""], []),
    ],
)
def test_logprobs_go_with_the_answer_text_of_their_token(pieces: list[str], kept: list[int]) -> None:
    assert read(new_reader(reasoning=True, stops=("END",)), pieces).logprobs == kept


def test_logprob_waits_for_the_text_that_is_held_back() -> None:
    reader = new_reader(tools=())
    first, second = (TokenLogprob(token=number, logprob=-0.5) for number in (1, 2))
    assert reader.push("a<|ro", first) == (Content(text="a"),)
    assert reader.push("b", second) == (Content(text="<|rob", logprobs=(first, second)),)


def test_invalid_utf8_of_the_model_becomes_replacement_characters() -> None:
    stream = Utf8Stream(Library(build_library()))
    reader = new_reader(reasoning=True)
    heard = Heard()
    tokens = [
        b"ok \xe2\x9c",
        b"\x85",
        b"\x85",
        b"</think>",
        b"a\xf0\x9f",
        b"<tool_call>get_weather\n<arg_key>city</arg_key>",
    ]
    tokens += [b"<arg_value>\xe4\xb8", b"\xad\xff", b"</arg_value></tool_call>", b"\xe4"]
    for number, data in enumerate(tokens):
        hear(reader.push(stream.push(data), TokenLogprob(token=number, logprob=-1.0)), heard)
    hear(reader.push(stream.finish()), heard)
    hear(reader.finish(), heard)
    assert heard.reasoning == "ok ✅\ufffd"
    assert heard.content == "a\ufffd\ufffd"
    assert json.loads(heard.calls[0][1]) == {"city": "中\ufffd"}
    assert heard.logprobs == [4, 5, 9]


@pytest.mark.parametrize(
    "reply",
    [
        "7+5\n</think>42",
        "</think>\n\n42\n",
        f"I look it up.</think>{PARIS}",
        f"a</think>I look.\n{PARIS}\n{call('get_time')}",
        f"a</think>I look.\n\n\n{call('get_weather', ('city', ' x '), ('days', '3'), ('near', '[1]'))}",
    ],
)
def test_history_gives_the_text_that_the_model_wrote(reply: str) -> None:
    template = ChatTemplate(DEMO_TEMPLATE.read_text(encoding="utf-8"), special_tokens={})
    question = Message(role="user", content="?")
    heard = read(new_reader(reasoning=True), list(reply))
    answer = Message(
        role="assistant",
        content=heard.content,
        reasoning=heard.reasoning,
        tool_calls=tuple(ToolCall(name=name, arguments=json.loads(arguments)) for name, arguments in heard.calls),
    )
    prompt = template.render([question], enable_thinking=True)
    history = template.render([question, answer], enable_thinking=True, add_generation_prompt=False)
    assert history == f"{prompt}{reply}<|role_end|>"
