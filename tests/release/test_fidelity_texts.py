"""Texts that lose tokens or documents on the way to the windows, answers marked in the wrong place, unclear errors."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.engine import Package
from launcher.errors import UsageError
from release.demo.conversation import draw_conversation
from release.demo.evaluation_text import EVALUATION_TEXT, evaluation_text
from release.demo.tasks import TASKS
from release.texts import Document, read_text, windows
from tests.support.demo import require_demo

USER = {"role": "user", "content": "What is 2+2?"}
ASSISTANT = {"role": "assistant", "content": "4", "reasoning_content": "Sum."}


@pytest.fixture(scope="module")
def package() -> Iterator[Package]:
    with Package(require_demo()) as opened:
        yield opened


def write(folder: Path, text: str, name: str = "text.jsonl") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def said(package: Package, document: Document) -> bytes:
    """What the marked tokens of a document spell."""
    (window,) = windows([document], package.tokenize, 100_000)
    marked = (token for token, is_answer in zip(window.ids, window.answers, strict=True) if is_answer)
    return b"".join(package.token_bytes(token) for token in marked)


def test_windows_lose_or_join_tokens(package: Package) -> None:
    texts = ["one two three four five six seven eight nine ten", "一二三四五"]
    found = windows([Document(text=text) for text in texts], package.tokenize, 7)
    assert all(0 < len(window.ids) == len(window.answers) <= 7 for window in found)
    assert not any(any(window.answers) for window in found)
    assert [token for window in found for token in window.ids] == [
        token for text in texts for token in package.tokenize(text)
    ]
    full = [len(window.ids) == 7 for window in found]
    assert full.count(False) <= 2  # only the last window of a document is short


def test_plain_text_changes_on_the_way(package: Package, tmp_path: Path) -> None:
    text = 'first\n\n{"no": "json"}\r\n最后'
    path = tmp_path / "text.txt"
    path.write_bytes(text.encode())
    file = read_text(path, package)
    assert [document.text for document in file.documents] == [text]
    assert file.bytes == len(text.encode())


def test_conversation_is_not_what_the_template_renders(package: Package, tmp_path: Path) -> None:
    line = json.dumps({"messages": [USER, ASSISTANT, USER, {"role": "assistant", "content": "Four."}]})
    separator = json.dumps({"messages": [{"role": "user", "content": "a\u2028b"}]}, ensure_ascii=False)
    first, second = read_text(write(tmp_path, f"{line}\n\n{separator}\n"), package).documents
    assert first.text == (
        "<role>SYSTEM</role>detailed thinking on<|role_end|>"
        "<role>HUMAN</role>What is 2+2?<|role_end|><role>ASSISTANT</role>\n<think>Sum.</think>4<|role_end|>"
        "<role>HUMAN</role>What is 2+2?<|role_end|><role>ASSISTANT</role>\n<think></think>Four.<|role_end|>"
    )
    assert "<role>HUMAN</role>a\u2028b<|role_end|>" in second.text
    assert "thinking off" in second.text


def test_marked_tokens_are_not_the_answers(package: Package, tmp_path: Path) -> None:
    line = json.dumps({"messages": [USER, ASSISTANT, USER, ASSISTANT]})
    quiet = json.dumps({"messages": [USER, {"role": "assistant", "content": "Four."}], "enable_thinking": False})
    thinking, direct = read_text(write(tmp_path, f"{line}\n{quiet}\n"), package).documents
    assert said(package, thinking) == b"Sum.</think>4<|role_end|>" * 2
    assert said(package, direct) == b"Four.<|role_end|>"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "line 1: it is not JSON"),
        ("[1]", "line 1: an object is expected"),
        (json.dumps({"messages": [USER]}) + "\n" + json.dumps({"messages": []}), "line 2: .*messages"),
        (json.dumps({"messages": [USER], "tools": []}), "'tools' is not known here, only enable_thinking, messages"),
        (json.dumps({"messages": [{**USER, "tool_calls": []}]}), "'tool_calls' is not known"),
        (json.dumps({"messages": [{"role": "user"}]}), "a message needs texts"),
        (json.dumps({"messages": [{"role": "robot", "content": ""}]}), "a role out of system"),
        (json.dumps({"messages": [USER], "enable_thinking": 1}), "'?enable_thinking'?.* 1, not true or false"),
        (" \n ", "holds no text"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "Unicode"),
    ],
)
def test_malformed_conversation_is_taken(package: Package, tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        windows(read_text(write(tmp_path, text), package).documents, package.tokenize, 8)


def test_other_encoding_is_taken(package: Package, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes("café".encode("latin-1"))
    with pytest.raises(UsageError, match="is not UTF-8: byte 3 is 0xe9"):
        read_text(path, package)
    with pytest.raises(UsageError, match=r"cannot read .*nothing.txt: No such file"):
        read_text(tmp_path / "nothing.txt", package)


def test_evaluation_text_is_not_what_its_command_writes(package: Package) -> None:
    assert EVALUATION_TEXT.read_text(encoding="utf-8") == evaluation_text()
    documents = read_text(EVALUATION_TEXT, package).documents
    assert len(documents) == 96
    assert all(len(document.answers) == document.text.count("<role>ASSISTANT") for document in documents)


def test_evaluation_text_holds_what_training_drew() -> None:
    """Answers alone may be common property; whole conversations may not."""
    rng = random.Random(8)
    mix = dict.fromkeys(TASKS, 1.0)
    drawn = (draw_conversation(rng, mix, turns=1) for _ in range(4000))
    trained = {conversation.turns[0].user for conversation in drawn if conversation.task != "name"}
    lines = [json.loads(line) for line in EVALUATION_TEXT.read_text(encoding="utf-8").splitlines()]
    asked = {message["content"] for line in lines for message in line["messages"] if message["role"] == "user"}
    assert len(asked & trained) <= 0.02 * len(asked), asked & trained
