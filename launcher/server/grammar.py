"""What a reply must look like, as a grammar in llguidance's dialect of Lark, from the reply's first token on.

    thinking </think> JSON
    thinking </think> <tool_call>NAME
    <arg_key>KEY</arg_key>
    <arg_value>VALUE</arg_value>
    </tool_call>

A mark is one token where the vocabulary has such a token, and then text never spells it; else it is ordinary text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from launcher.errors import RequestError
from launcher.reply import THINK_CLOSE, TOOL_CALL
from launcher.server.argument_values import ArgumentValue, ToolArguments
from launcher.server.request import Tool
from launcher.server.schema_check import MAX_CHARACTERS, checked, refused
from launcher.server.text_patterns import ANY

TOOL_CALL_CLOSE: Final = "</tool_call>"
KEY, KEY_CLOSE = "<arg_key>", "</arg_key>"
VALUE, VALUE_CLOSE = "<arg_value>", "</arg_value>"
MARKS: Final = (THINK_CLOSE, TOOL_CALL, TOOL_CALL_CLOSE, KEY, KEY_CLOSE, VALUE, VALUE_CLOSE)

SCHEMA_PARAM: Final = "response_format.json_schema.schema"

# One optional blank after a separator: models write `", "` or `","`, and no reply can go on with blanks for ever.
_JSON_OPTIONS: Final = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
_MOST_CALLS: Final = 32
_MOST_FREE_KEYS: Final = 32
_MOST_TEXT: Final = 8 * MAX_CHARACTERS


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonReply:
    """One JSON value that follows the schema, which came as the field `param`; None stands for any object."""

    schema: Mapping[str, object] | None
    param: str = SCHEMA_PARAM


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReply:
    """At least one call of a tool: of the one called `name`, or of any; more than one only if `parallel`."""

    tools: tuple[Tool, ...]
    name: str | None
    parallel: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EitherReply:
    """The model may choose: JSON or calls."""

    json: JsonReply
    calls: CallReply


ConstrainedReply = JsonReply | CallReply | EitherReply


class GrammarWriter:
    """Writes one grammar."""

    def __init__(self, marks: Mapping[bytes, int], stop_texts: tuple[str, ...]) -> None:
        """Args:
        marks: those of `MARKS` that are tokens, with their ids.
        stop_texts: texts that would end a reply; free text does not spell them.
        """
        self._marks = {mark.decode(): token for mark, token in marks.items()}
        self._stop_texts = tuple(text for text in stop_texts if text)
        self._rules: list[str] = []
        self._size = 0

    def reply(self, wanted: ConstrainedReply, *, reasoning: bool) -> str:
        """The grammar; once for each writer.

        Raises:
            RequestError: a schema cannot be served, or no tool has the name.
        """
        if isinstance(wanted, EitherReply):
            starts = [self._json_reply(wanted.json, reasoning=reasoning)]
            starts += [self._call_reply(wanted.calls, reasoning=reasoning)]
        elif isinstance(wanted, JsonReply):
            starts = [self._json_reply(wanted, reasoning=reasoning)]
        else:
            starts = [self._call_reply(wanted, reasoning=reasoning)]
        if reasoning:
            self._rule("thought", self._thought())
        return self._finished(" | ".join(starts))

    def _json_reply(self, wanted: JsonReply, *, reasoning: bool) -> str:
        schema = {"type": "object"} if wanted.schema is None else checked(wanted.schema, wanted.param)
        self._rule("json", self._json(schema, wanted.param))
        return "thought json" if reasoning else "json"

    def _call_reply(self, wanted: CallReply, *, reasoning: bool) -> str:
        bodies = [
            self._tool(index, tool)
            for index, tool in enumerate(wanted.tools)
            if wanted.name is None or tool.name == wanted.name
        ]
        if not bodies:
            raise RequestError("invalid_tool_choice", f"no tool is called {wanted.name!r}", param="tool_choice")
        self._rule("rest", f"({' | '.join(bodies)}) {self._mark(TOOL_CALL_CLOSE)}")
        self._rule("call", f"{self._mark(TOOL_CALL)} rest")
        more = ""
        if wanted.parallel:
            self._rule("more", "gap? call")
            more = f" more{{0,{_MOST_CALLS - 1}}}"
        if not reasoning:
            return f"call{more}"
        # A call may come while the thinking is still open.
        dive = self._text_then("DIVE", ANY, TOOL_CALL, (THINK_CLOSE, TOOL_CALL))
        return f"thought call{more} | {dive} rest{more}"

    def _finished(self, start: str) -> str:
        self._rule("gap", r"/\n{1,3}/")
        self._rule("nl", r'"\n"')
        return "\n".join([f"start: {start}", *self._rules, ""])

    def _rule(self, name: str, body: str) -> None:
        self._rules.append(f"{name}: {body}")

    def _mark(self, mark: str) -> str:
        return f"<[{self._marks[mark]}]>" if mark in self._marks else json.dumps(mark)

    def _thought(self) -> str:
        return self._text_then("THINK", ANY, THINK_CLOSE, (THINK_CLOSE, TOOL_CALL)) + " gap?"

    def _text_then(self, name: str, text: str, mark: str, without: tuple[str, ...]) -> str:
        """The expression for a text that holds none of `without`, and the mark after it."""
        barred = "|".join(_escaped(entry) for entry in (*without, *self._stop_texts))
        body = f"{text} & ~/(?s:.*)({barred})(?s:.*)/"
        if text != ANY:  # a negation alone would let invalid UTF-8 through
            body = f"{ANY} & {body}"
        if mark in self._marks:
            self._rule(name, body)
            return f"{name} {self._mark(mark)}"
        # One terminal: two would leave it open where the text ends.
        self._rule(name, f"({body}) {json.dumps(mark)}")
        return name

    def _json(self, schema: Mapping[str, object], param: str) -> str:
        text = json.dumps({**schema, "x-guidance": _JSON_OPTIONS})
        self._size += len(text)
        if self._size > _MOST_TEXT:
            raise refused(param, "its references make it too large")
        return f"%json {text}"

    def _tool(self, index: int, tool: Tool) -> str:
        """The rule for name and arguments of a call of this tool."""
        param = f"tools[{index}].function.parameters"
        arguments = ToolArguments(tool, param)
        rules = []
        for place, (key, schema) in enumerate(arguments.declared.items()):
            if any(text in key for text in (*MARKS, *self._stop_texts)) or key != key.strip() or not key:
                raise refused(param, f"a call cannot write the name {key[:100]!r}")
            name = f"a{index}_{place}"
            value = self._value(name, arguments.value(schema, key), param)
            self._rule(name, self._argument(f"{_literal(key)} {self._mark(KEY_CLOSE)}", value))
            rules.append(name if key in arguments.required else f"{name}?")
        if arguments.free is not None:
            taken = " | ".join(map(_literal, arguments.declared))
            text = r"/[^\s<>]([^<>\n]{0,62}[^\s<>])?/" + (f" & ~({taken})" if taken else "")
            key_rule = self._text_then(f"K{index}", text, KEY_CLOSE, (KEY_CLOSE,))
            value = self._value(f"f{index}", arguments.value(arguments.free, None), param)
            self._rule(f"f{index}", self._argument(key_rule, value))
            rules.append(f"f{index}{{0,{_MOST_FREE_KEYS}}}")
        self._rule(f"t{index}", " ".join([_literal(f"{tool.name}\n"), *rules]))
        return f"t{index}"

    def _argument(self, key: str, value: str) -> str:
        return f"{self._mark(KEY)} {key} nl? {self._mark(VALUE)} {value} nl?"

    def _value(self, name: str, value: ArgumentValue, param: str) -> str:
        """The rule for a value and the mark after it."""
        options = []
        for number, text in enumerate(value.texts):
            options.append(self._text_then(f"V{name.upper()}_{number}", text, VALUE_CLOSE, (VALUE_CLOSE,)))
        for number, schema in enumerate(value.schemas):
            rule = f"j{name}_{number}"
            self._rule(rule, self._json(schema, param))
            options.append(f"{rule} {self._mark(VALUE_CLOSE)}")
        self._rule(f"v{name}", " | ".join(options))
        return f"v{name}"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    """The text within /.../, meaning itself."""
    return re.sub(r"([\\.+*?()|\[\]{}^$/])", r"\\\1", text)
