"""Texts to run a model over: plain UTF-8, or conversations as JSON lines, rendered with the package's chat template.

A line of a `.jsonl` file is an object with `messages`, a list of `{"role", "content"}` where an assistant's message may
have `reasoning_content`, and optionally `enable_thinking` (by default: whether there is reasoning).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from launcher.engine import Package
from launcher.errors import UsageError
from launcher.model import metadata_of, template_of
from launcher.template import ChatTemplate, Message

_EXPECTED: Final = "Give a file with UTF-8 text, or with conversations in .jsonl."
_ROLES: Final = ("system", "user", "assistant", "tool")
_LINE_KEYS: Final = {"messages", "enable_thinking"}
_MESSAGE_KEYS: Final = {"role", "content", "reasoning_content"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """A file: its name, size, digest in hex, and the texts in it, each evaluated on its own."""

    name: str
    bytes: int
    sha256: str
    documents: tuple[Document, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A text, and the character ranges in it, in order, in which the assistant speaks."""

    text: str
    answers: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Token ids that are evaluated together, and for each whether the assistant says it."""

    ids: tuple[int, ...]
    answers: tuple[bool, ...]


def read_text(path: Path, package: Package) -> TextFile:
    """Reads a file; `package` has the chat template for conversations.

    Raises:
        UsageError: unreadable, empty, not UTF-8, or a line that is no conversation.
        PackageError: there are conversations and the package has no working template.
    """
    if path.exists() and not path.is_file():  # a pipe would hold us up, a device may never end
        raise UsageError("text-unreadable", f"{path} is not a plain file", hint=_EXPECTED)
    try:
        data = path.read_bytes()
        text = data.decode()
    except OSError as error:
        raise UsageError("text-unreadable", f"cannot read {path}: {error.strerror}", hint=_EXPECTED) from error
    except UnicodeDecodeError as error:
        raise UsageError(
            "text-encoding",
            f"{path} is not UTF-8: byte {error.start} is {data[error.start]:#04x}",
            hint="Convert it, for example with iconv -t UTF-8 -f and the encoding that it has.",
        ) from error
    if not text.strip():
        raise UsageError("text-empty", f"{path} holds no text", hint=_EXPECTED)
    documents: tuple[Document, ...] = (Document(text=text),)
    if path.suffix == ".jsonl":
        template = template_of(package, metadata_of(package))
        lines = text.split("\n")  # not splitlines: JSON strings may hold other line ends as they are
        documents = tuple(
            _conversation(template, line, f"{path}, line {number}")
            for number, line in enumerate(lines, start=1)
            if line.strip()
        )
    return TextFile(name=path.name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest(), documents=documents)


def windows(documents: Sequence[Document], tokenize: Callable[[str], list[int]], context: int) -> tuple[Window, ...]:
    """The documents in windows of at most `context` tokens; no window holds parts of two documents."""
    found = []
    for document in documents:
        ids = tokenize(document.text)
        answers = _answer_tokens(document, ids, tokenize)
        for start in range(0, len(ids), context):
            places = slice(start, start + context)
            found.append(Window(ids=tuple(ids[places]), answers=tuple(answers[places])))
    return tuple(found)


def _answer_tokens(document: Document, ids: list[int], tokenize: Callable[[str], list[int]]) -> list[bool]:
    """Which tokens belong to answers; none where the tokenizer does not cut the text where answers begin and end."""
    pieces: list[int] = []
    marks: list[bool] = []
    begin = 0
    for start, stop in (*document.answers, (len(document.text), len(document.text))):
        for text, is_answer in ((document.text[begin:start], False), (document.text[start:stop], True)):
            piece = tokenize(text)
            pieces += piece
            marks += [is_answer] * len(piece)
        begin = stop
    return marks if pieces == ids else [False] * len(ids)


def _conversation(template: ChatTemplate, line: str, place: str) -> Document:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _malformed(place, f"it is not JSON: {error}") from error
    _check_keys(place, document, _LINE_KEYS)
    listed = document.get("messages")
    if not isinstance(listed, list) or not listed:
        raise _malformed(place, '"messages" is missing or no list with something in it')
    messages = [_message(place, entry) for entry in listed]
    thinking = document.get("enable_thinking", any(message.reasoning for message in messages))
    if not isinstance(thinking, bool):
        raise _malformed(place, f'"enable_thinking" is {thinking!r}, not true or false')
    try:
        return _rendered(template, messages, enable_thinking=thinking)
    except UsageError as error:
        raise error.about(place) from error


def _rendered(template: ChatTemplate, messages: Sequence[Message], *, enable_thinking: bool) -> Document:
    """The conversation. An answer that the template shows differently once it lies in the past is not marked."""
    text = template.render(messages, enable_thinking=enable_thinking, add_generation_prompt=False)
    answers = []
    for place, message in enumerate(messages):
        if message.role != "assistant" or place == 0:
            continue
        asked = template.render(messages[:place], enable_thinking=enable_thinking)
        told = template.render(messages[: place + 1], enable_thinking=enable_thinking, add_generation_prompt=False)
        if text.startswith(told) and told.startswith(asked):
            answers.append((len(asked), len(told)))
    return Document(text=text, answers=tuple(answers))


def _message(place: str, entry: object) -> Message:
    fields = _check_keys(place, entry, _MESSAGE_KEYS)
    texts = [fields.get("role"), fields.get("content"), fields.get("reasoning_content", "")]
    if not all(isinstance(text, str) for text in texts) or fields["role"] not in _ROLES:
        raise _malformed(place, f"a message needs texts, and a role out of {', '.join(_ROLES)}")
    reasoning = fields.get("reasoning_content")
    return Message(role=fields["role"], content=fields["content"], reasoning=reasoning)


def _check_keys(place: str, value: object, allowed: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _malformed(place, "an object is expected")
    unknown = sorted(set(value) - allowed)
    if unknown:
        raise _malformed(place, f"{unknown[0]!r} is not known here, only {', '.join(sorted(allowed))}")
    return value


def _malformed(place: str, problem: str) -> UsageError:
    hint = 'A line is {"messages": [{"role": "user", "content": "..."}, ...]}; other text goes into a .txt file.'
    return UsageError("text-malformed", f"{place}: {problem}", hint=hint)
