"""A conversation that comes back changed, a stranger's file that is overwritten, a broken one that is believed."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from launcher.chat_files import load_conversation, save_conversation
from launcher.errors import UsageError
from launcher.template import Message

TURNS = [
    Message(role="user", content="你好\n\0 <|role_end|>"),
    Message(role="assistant", content=" 42", reasoning="40+2"),
    Message(role="user", content=""),
    Message(role="assistant", content="…"),
]


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    save_conversation(path, "model", TURNS)
    assert load_conversation(path) == TURNS
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["talk.json"]


def test_a_saved_conversation_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    save_conversation(path, "model", TURNS)
    save_conversation(path, "model", TURNS[:2])
    assert load_conversation(path) == TURNS[:2]
    path.write_text("my notes", encoding="utf-8")
    with pytest.raises(UsageError, match="no saved conversation"):
        save_conversation(path, "model", TURNS)
    assert path.read_text(encoding="utf-8") == "my notes"


def test_a_link_leads_to_the_file_that_is_written(tmp_path: Path) -> None:
    save_conversation(tmp_path / "talk.json", "model", TURNS)
    (tmp_path / "link").symlink_to("talk.json")
    save_conversation(tmp_path / "link", "model", TURNS[:2])
    assert (tmp_path / "link").is_symlink()
    assert load_conversation(tmp_path / "talk.json") == TURNS[:2]


def test_the_messages_are_what_an_api_takes(tmp_path: Path) -> None:
    save_conversation(tmp_path / "talk.json", "model", TURNS[:2])
    document = json.loads((tmp_path / "talk.json").read_text(encoding="utf-8"))
    assert document["messages"][1] == {"role": "assistant", "content": " 42", "reasoning_content": "40+2"}
    assert document["model"] == "model"


def broken() -> list[object]:
    good = {"schema": "mindnano-infer.conversation", "version": 1, "model": "m", "messages": []}
    turn = {"role": "user", "content": "a"}
    return [
        [],
        {**good, "schema": "other"},
        {**good, "version": 2},
        {**good, "messages": {}},
        {**good, "messages": [turn]},
        {**good, "messages": [turn, turn]},
        {**good, "messages": [{"role": "assistant", "content": "a"}, turn]},
        {**good, "messages": [{"role": "user"}, turn]},
        {**good, "messages": ["text"]},
        {**good, "messages": [{"role": "user", "content": ["a"]}]},
        {**good, "messages": [{"role": "user", "content": "\ud800"}]},
    ]


@pytest.mark.parametrize("document", broken(), ids=range(len(broken())))
def test_another_document_is_refused(tmp_path: Path, document: object) -> None:
    (tmp_path / "x").write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        load_conversation(tmp_path / "x")
    assert caught.value.slug == "chat-file-invalid"


@pytest.mark.parametrize("data", [b"", b"\xff", b"[" * 100_000, b"{"], ids=["empty", "bytes", "deep", "cut"])
def test_other_bytes_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(UsageError, match="no saved conversation"):
        load_conversation(tmp_path / "x")


def test_a_file_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="missing"):
        load_conversation(tmp_path / "missing")
    with pytest.raises(UsageError, match="cannot read"):
        load_conversation(tmp_path)
    with pytest.raises(UsageError, match="cannot write"):
        save_conversation(tmp_path / "no folder" / "talk.json", "model", TURNS)


def test_a_pipe_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError):
        load_conversation(tmp_path / "pipe")
