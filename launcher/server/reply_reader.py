"""Reads a reply while it streams in: thinking, answer, tool calls, and the texts that end it.

Stop texts are looked for in the raw text first, everywhere, and win over what they cut; the rest then falls into parts:

    thinking </think> answer <tool_call>NAME
    <arg_key>KEY</arg_key>
    <arg_value>VALUE</arg_value>
    </tool_call>

Thinking and answer are passed on as the model wrote them, newlines after `</think>` included: the chat template puts
nothing between them, so a reply that is sent back in the history gives the same text, the same tokens and a cache hit.
The template itself writes one newline before a call, so one newline there is not part of the answer, nor is blank
text that has only calls beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import Enum

from launcher.markers import Markers
from launcher.reply import THINK_CLOSE, TOOL_CALL
from launcher.server.events import Content, Delta, Reasoning, TokenLogprob, ToolCallArguments, ToolCallStart
from launcher.server.logprob_places import LogprobPlaces
from launcher.server.request import Style, Tool
from launcher.server.tool_arguments import ArgumentsWriter

_CALL_CLOSE = "</tool_call>"
_KEY, _KEY_CLOSE = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_CLOSE = "<arg_value>", "</arg_value>"

_THINKING_ENDS = Markers((THINK_CLOSE, TOOL_CALL))
_VALUE_ENDS = Markers((_VALUE_CLOSE,))
_CALL_OR_THINK_CLOSE = Markers((TOOL_CALL, THINK_CLOSE))
_TAGS = Markers((TOOL_CALL, _CALL_CLOSE, _KEY, _KEY_CLOSE, _VALUE, _VALUE_CLOSE))


class _Part(Enum):
    """Which part of the reply the next text belongs to."""

    REASONING = "reasoning"
    CONTENT = "content"
    CALL = "call"  # between the arguments of a call
    VALUE = "value"


class ReplyReader:
    """Feed it text with `push` until `stopped`, then call `finish`.

    A call that is not one (a tool that was not offered, a name that never ends) is answer text. One that breaks after
    its name was told is closed: its arguments are valid JSON, and what broke it is answer text. Where a key comes
    twice, the first value stays.
    """

    def __init__(
        self,
        *,
        style: Style,
        reasoning: bool,
        tools: tuple[Tool, ...],
        parallel_calls: bool,
        text_or_calls: bool = False,
        stops: tuple[str, ...],
        new_call_id: Callable[[], str],
    ) -> None:
        """Args:
        style: with `Style.TEXT` only the stop texts mean anything.
        reasoning: whether the prompt ends inside an open `<think>`.
        tools: what may be called; without any, `<tool_call>` only ends the thinking and is answer text.
        parallel_calls: whether more than one call may come; else the reply is over after the first.
        text_or_calls: where answer text has begun, no call can come: a JSON text may spell one.
        stops: texts that end the reply and are not part of it.
        new_call_id: makes an id for each call.
        """
        is_chat = style is Style.CHAT
        self._tools = {tool.name: tool for tool in tools} if is_chat else {}
        self._name = _name_pattern(self._tools)
        self._call_begins = Markers((TOOL_CALL,) if self._tools else ())
        self._parallel_calls = parallel_calls
        self._text_or_calls = text_or_calls
        # A stop text that begins with another one is never reached; without it nothing waits for its end.
        self._stops = Markers(stop for stop in stops if not any(_begins(stop, other) for other in stops))
        self._new_call_id = new_call_id
        self._part = _Part.REASONING if reasoning and is_chat else _Part.CONTENT
        self._thinking_open = False  # a call ended the thinking: the `</think>` that follows means nothing
        self._blank = True  # no answer text yet since the thinking or since the last call
        self._calls = 0
        self._arguments = ArgumentsWriter({})
        self._raw = ""  # may hold the beginning of a stop text
        self._held = ""  # no stop text in it; may hold the beginning of a marker
        self._places = LogprobPlaces()
        self._deltas: list[Delta] = []
        self._stopped = False
        self._over = False
        self._is_cut = False

    @property
    def stopped(self) -> bool:
        """Whether the reply is over: a stop text was seen, or the one allowed call is complete."""
        return self._stopped

    @property
    def reasoning(self) -> bool:
        """Whether it is still thinking."""
        return self._part is _Part.REASONING and not self._over

    @property
    def called(self) -> bool:
        """Whether a tool call was begun."""
        return self._calls > 0

    @property
    def is_cut(self) -> bool:
        """Whether the reply ended inside a call, which then lacks what was to come; only its closing mark may lack."""
        return self._is_cut

    def push(self, text: str, logprob: TokenLogprob | None = None) -> tuple[Delta, ...]:
        """What is known now that this text has arrived; `logprob` is of the token that brought it."""
        if self._over:
            return ()
        self._places.arrive(len(text), logprob)
        self._raw += text
        self._read(final=False)
        return self._drain()

    def finish(self) -> tuple[Delta, ...]:
        """What was held back; the reply has ended."""
        if not self._over:
            self._read(final=True)
        return self._drain()

    def _read(self, *, final: bool) -> None:
        found = self._stops.find(self._raw, complete=final)
        self._held += self._raw[: found.start]
        self._raw = self._raw[found.start :]
        self._stopped = found.marker is not None
        steps = {
            _Part.REASONING: self._read_reasoning,
            _Part.CONTENT: self._read_content,
            _Part.CALL: self._read_call,
            _Part.VALUE: self._read_value,
        }
        is_last = final or self._stopped
        while self._held or is_last:
            if not steps[self._part](is_last):
                break
        self._over = is_last or self._stopped
        if self._over:
            logprobs = self._places.rest(in_answer=self._part is _Part.CONTENT and not self.called)
            if logprobs:
                self._deltas.append(Content(text="", logprobs=logprobs))

    def _read_reasoning(self, final: bool) -> bool:
        found = _THINKING_ENDS.find(self._held, complete=final)
        if found.start:
            self._deltas.append(Reasoning(text=self._held[: found.start]))
            self._drop(found.start)
        if found.marker is None:
            return False
        self._part = _Part.CONTENT
        if found.marker == THINK_CLOSE:
            self._drop(len(THINK_CLOSE))
        else:
            self._thinking_open = bool(self._tools)
        return True

    def _read_content(self, final: bool) -> bool:
        found = (_CALL_OR_THINK_CLOSE if self._thinking_open else self._call_begins).find(self._held, complete=final)
        is_blank = self._blank and not self._held[: found.start].strip()
        if self._text_or_calls and self._tools and not is_blank:
            self._tools = {}
            self._call_begins = Markers(())
            return self._read_content(final)
        if found.marker is None:
            if not final:
                self._show(self._certain(found.start))
            elif is_blank and self.called:
                self._drop(found.start)
            else:
                self._show(found.start)
            return False
        if found.marker == THINK_CLOSE:
            if is_blank:
                self._drop(found.start)
            else:
                self._show(found.start)
            self._drop(len(THINK_CLOSE))
            self._thinking_open = False
            self._blank = True
            return True
        return self._read_name(found.start, final)

    def _read_name(self, start: int, final: bool) -> bool:
        """Reads the name of the call that `<tool_call>` at `start` may begin."""
        after = start + len(TOOL_CALL)
        match = self._name.match(self._held, after)
        if match is not None:
            shown = self._certain(start)
            self._show(shown)
            self._drop(match.end() - shown)
            self._begin_call(self._tools[match.group(1)])
            return True
        if not final and self._may_become_name(self._held[after:]):
            self._show(self._certain(start))
            return False
        self._show(after)
        return True

    def _may_become_name(self, text: str) -> bool:
        begun = text.lstrip()
        for name in self._tools:
            if name.startswith(begun):
                return True
            if begun.startswith(name):
                rest = begun[len(name) :].lstrip(" \t\r")
                if _KEY.startswith(rest) or _CALL_CLOSE.startswith(rest):
                    return True
        return False

    def _read_call(self, final: bool) -> bool:
        self._drop(len(self._held) - len(self._held.lstrip()))
        held = self._held
        if held.startswith(_CALL_CLOSE):
            self._drop(len(_CALL_CLOSE))
            self._end_call()
            return True
        if held.startswith(_KEY):
            return self._read_key(final)
        if _KEY.startswith(held) or _CALL_CLOSE.startswith(held):
            return self._wait_in_call(final)
        self._end_call()
        return True

    def _read_key(self, final: bool) -> bool:
        begin = len(_KEY)
        found = _TAGS.find(self._held[begin:], complete=final)
        if found.marker is None:
            return self._wait_in_call(final)
        end = begin + found.start
        rest = self._held[end + len(found.marker) :].lstrip()
        if found.marker == _KEY_CLOSE and rest.startswith(_VALUE):
            self._write(self._arguments.begin(self._held[begin:end].strip()))
            self._drop(len(self._held) - len(rest) + len(_VALUE))
            self._part = _Part.VALUE
            return True
        if found.marker == _KEY_CLOSE and _VALUE.startswith(rest):
            return self._wait_in_call(final)
        self._end_call()
        return True

    def _wait_in_call(self, final: bool) -> bool:
        """More of the call's markup must come; where the reply has ended, an argument without a value is dropped."""
        if final:
            self._is_cut = bool(self._held) or self._stopped
            self._drop(len(self._held))
            self._end_call(cut=True)
        return final

    def _read_value(self, final: bool) -> bool:
        found = _VALUE_ENDS.find(self._held, complete=final)
        self._write(self._arguments.push(self._held[: found.start]))
        self._drop(found.start)
        if found.marker is not None:
            self._write(self._arguments.end())
            self._drop(len(_VALUE_CLOSE))
            self._part = _Part.CALL
            return True
        if final:
            self._is_cut = True
            self._end_call(cut=True)
        return final

    def _begin_call(self, tool: Tool) -> None:
        self._deltas.append(ToolCallStart(index=self._calls, id=self._new_call_id(), name=tool.name))
        self._calls += 1
        self._arguments = ArgumentsWriter(tool.parameters)
        self._part = _Part.CALL

    def _end_call(self, *, cut: bool = False) -> None:
        """Closes the arguments; `cut`: the reply ended before the call did."""
        self._write(self._arguments.close())
        self._part = _Part.CONTENT
        self._blank = True
        if not self._parallel_calls and not cut:
            self._stopped = True
            self._held = ""

    def _write(self, arguments: str) -> None:
        if arguments:
            self._deltas.append(ToolCallArguments(index=self._calls - 1, text=arguments))

    def _certain(self, end: int) -> int:
        """How much of the held text up to `end` is answer text even if a call begins at `end`."""
        text = self._held[:end]
        if not self._tools:
            return end
        if self._blank and not text.strip():
            return 0
        return end - text.endswith("\n")

    def _show(self, length: int) -> None:
        if length:
            text = self._held[:length]
            self._blank = self._blank and not text.strip()
            self._deltas.append(Content(text=text, logprobs=self._places.show(length)))
            self._held = self._held[length:]

    def _drop(self, length: int) -> None:
        self._places.drop(length)
        self._held = self._held[length:]

    def _drain(self) -> tuple[Delta, ...]:
        deltas: list[Delta] = []
        for delta in self._deltas:
            joined = _join(deltas[-1], delta) if deltas else None
            if joined is None:
                deltas.append(delta)
            else:
                deltas[-1] = joined
        self._deltas.clear()
        return tuple(deltas)


def _name_pattern(names: Iterable[str]) -> re.Pattern[str]:
    """A tool's name, complete because what may follow one does follow."""
    longest_first = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.compile(rf"\s*({longest_first})[ \t\r]*(?=\n|{_KEY}|{_CALL_CLOSE})")


def _begins(text: str, beginning: str) -> bool:
    return text != beginning and bool(beginning) and text.startswith(beginning)


def _join(first: Delta, second: Delta) -> Delta | None:
    """Both as one delta; None where they are of different parts."""
    if isinstance(first, Reasoning) and isinstance(second, Reasoning):
        return Reasoning(text=first.text + second.text)
    if isinstance(first, Content) and isinstance(second, Content):
        return Content(text=first.text + second.text, logprobs=first.logprobs + second.logprobs)
    if isinstance(first, ToolCallArguments) and isinstance(second, ToolCallArguments) and first.index == second.index:
        return ToolCallArguments(index=first.index, text=first.text + second.text)
    return None
