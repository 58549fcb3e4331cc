"""Thinking that leaks into the answer, markers shown in part, text lost between pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.reply import Kind, ReplySplitter

STOPS = ("<|role_end|>", "<|endoftext|>")
OPEN = "<role>ASSISTANT</role>\n<think>"
CLOSED = "<role>ASSISTANT</role>\n<think></think>"


def split(prompt: str, pieces: list[str]) -> tuple[str, str]:
    splitter = ReplySplitter(prompt, STOPS)
    found = {Kind.REASONING: "", Kind.CONTENT: ""}
    for text in pieces:
        for piece in splitter.push(text):
            found[piece.kind] += piece.text
    for piece in splitter.finish():
        found[piece.kind] += piece.text
    return found[Kind.REASONING], found[Kind.CONTENT]


@pytest.mark.parametrize(
    ("prompt", "reply", "reasoning", "content"),
    [
        (OPEN, "1+1=2</think>2", "1+1=2", "2"),
        (OPEN, "</think>2", "", "2"),
        (OPEN, "no end", "no end", ""),
        (CLOSED, "2", "", "2"),
        (CLOSED, "a </think> b", "", "a </think> b"),
        (OPEN, "call it<tool_call>f\n</tool_call>", "call it", "<tool_call>f\n</tool_call>"),
        (OPEN, "x</think><tool_call>f", "x", "<tool_call>f"),
        (CLOSED, "done<|role_end|>not shown", "", "done"),
        (OPEN, "cut<|role_end|></think>no", "cut", ""),
        (CLOSED, "1 < 2 <|role", "", "1 < 2 <|role"),
        (OPEN, "你好</think>世界", "你好", "世界"),
    ],
)
def test_reply_is_split_alike_whole_and_character_by_character(
    prompt: str, reply: str, reasoning: str, content: str
) -> None:
    assert split(prompt, [reply]) == (reasoning, content)
    assert split(prompt, list(reply)) == (reasoning, content)


@given(
    st.lists(st.sampled_from(["<", "/", "think>", "</think>", "<tool_call>", "<|role_end|>", "a", "|", "<|ro"])),
    st.data(),
)
def test_how_the_text_arrives_does_not_matter(parts: list[str], data: st.DataObject) -> None:
    text = "".join(parts)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(OPEN, pieces) == split(OPEN, [text])


def test_no_part_of_a_marker_is_shown_before_it_is_known() -> None:
    splitter = ReplySplitter(OPEN, STOPS)
    shown = ""
    for character in "ab</think":
        shown += "".join(piece.text for piece in splitter.push(character))
    assert shown == "ab"


def test_stop_text_in_pieces_stops() -> None:
    splitter = ReplySplitter(CLOSED, STOPS)
    for text in ("a", "<|", "role", "_end", "|>"):
        splitter.push(text)
    assert splitter.stopped
    assert splitter.finish() == []
