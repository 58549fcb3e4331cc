"""Conversations in files: `/save` writes one, `/load` reads it back. The messages are OpenAI's, for others to use."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from launcher.errors import UsageError
from launcher.template import Message

SCHEMA: Final = "mindnano-infer.conversation"
VERSION: Final = 1
_MAX_BYTES: Final = 64 << 20
_ROLES: Final = ("user", "assistant")  # the system text is an option, not a turn
_FILE_HINT: Final = "name a file in a folder that exists and may be written to"


def save_conversation(path: Path, model: str, messages: Sequence[Message]) -> None:
    """Writes the turns; only another conversation is replaced, and only once the new one is complete.

    Raises:
        UsageError: another kind of file has that name, or it cannot be written.
    """
    if path.exists() or path.is_symlink():
        load_conversation(path)
    turns = [_turn(message) for message in messages]
    document = {"schema": SCHEMA, "version": VERSION, "model": model, "messages": turns}
    data = json.dumps(document, ensure_ascii=False, indent=2).encode() + b"\n"
    target = path.resolve()
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        # What was said is nobody else's business.
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError("chat-file", f"cannot write {path}: {error.strerror}", hint=_FILE_HINT) from error


def load_conversation(path: Path) -> list[Message]:
    """The turns in a file.

    Raises:
        UsageError: it cannot be read, or holds no conversation.
    """
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise UsageError("chat-file", f"cannot read {path}: {error.strerror}", hint="check the name") from error
    if len(data) > _MAX_BYTES:
        raise _no_conversation(path, f"it has more than {_MAX_BYTES} bytes")
    try:
        document = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise _no_conversation(path, f"it is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise _no_conversation(path, f"its schema is not {SCHEMA}")
    if document.get("version") != VERSION:
        raise _no_conversation(path, f"its version is {document.get('version')!r}, expected {VERSION}")
    turns = document.get("messages")
    if not isinstance(turns, list):
        raise _no_conversation(path, "it has no list of messages")
    messages = [_message(path, index, turn) for index, turn in enumerate(turns)]
    for index, message in enumerate(messages):
        if message.role != _ROLES[index % 2]:
            raise _no_conversation(path, f"message {index} is the {message.role}'s, expected the {_ROLES[index % 2]}'s")
    if len(messages) % 2:
        raise _no_conversation(path, "its last question has no answer")
    return messages


def _open_without_waiting(path: str, flags: int) -> int:
    """A pipe would wait for its writer for ever."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _turn(message: Message) -> dict[str, str]:
    turn = {"role": message.role, "content": message.content}
    return turn | {"reasoning_content": message.reasoning} if message.reasoning else turn


def _message(path: Path, index: int, turn: object) -> Message:
    if not isinstance(turn, dict):
        raise _no_conversation(path, f"message {index} is no object")
    texts = [turn.get("role"), turn.get("content"), turn.get("reasoning_content", "")]
    role, content, reasoning = (_text(path, index, text) for text in texts)
    return Message(role=role, content=content, reasoning=reasoning)


def _text(path: Path, index: int, text: object) -> str:
    if not isinstance(text, str):
        raise _no_conversation(path, f"message {index} lacks a text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _no_conversation(path, f"message {index} is not valid Unicode") from error
    return text


def _no_conversation(path: Path, fault: str) -> UsageError:
    return UsageError(
        "chat-file-invalid", f"{path} is no saved conversation: {fault}", hint="name a file that /save wrote"
    )
