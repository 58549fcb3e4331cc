"""A Ctrl-C that kills the chat or is lost, a terminal left unusable, Chinese input that breaks the line."""

from __future__ import annotations

import os
import signal
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.terminal import TerminalProcess

# What the line editor sends when it waits for keys.
READY = "\x1b[?2004h"
ROOT = Path(__file__).resolve().parents[2]
ENVIRON = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "TERM": "xterm",
    "LANG": "C.UTF-8",
    "PYTHONPATH": str(ROOT),
}


def start(*words: str, term: str = "xterm", through: tuple[str, ...] = ()) -> TerminalProcess:
    command = [*through, sys.executable, "-m", "tests.support.slow_chat", *words]
    return TerminalProcess(command, env=ENVIRON | {"TERM": term}, cwd=str(ROOT))


@pytest.fixture
def chat() -> Iterator[TerminalProcess]:
    with start() as process:
        process.expect(READY)
        yield process


def test_ctrl_c_stops_the_answer_and_keeps_the_conversation(chat: TerminalProcess) -> None:
    chat.send("count\r")
    chat.expect("3 4 5 ")
    chat.send("\x03")
    chat.expect("(stopped)")
    chat.expect(READY)
    chat.send("again\r")
    chat.expect("[again] turn 2")


def test_ctrl_c_at_the_prompt_says_how_to_leave(chat: TerminalProcess) -> None:
    chat.send("half a line\x03")
    chat.expect("/quit quits")
    chat.send("whole\r")
    chat.expect("[whole] turn 1")


def test_ctrl_d_quits(chat: TerminalProcess) -> None:
    chat.send("\x04")
    assert chat.wait() == 0


def test_quit_quits(chat: TerminalProcess) -> None:
    chat.send("/quit\r")
    assert chat.wait() == 0


def test_sigterm_while_answering_ends_with_its_code(chat: TerminalProcess) -> None:
    chat.send("count\r")
    chat.expect("3 4 5 ")
    chat.interrupt(signal.SIGTERM)
    assert chat.wait() == 143


def test_sigterm_at_the_prompt_ends_with_its_code_and_restores_the_terminal(chat: TerminalProcess) -> None:
    chat.interrupt(signal.SIGTERM)
    assert chat.wait() == 143
    local = termios.tcgetattr(chat._master)[3]
    assert local & termios.ECHO
    assert local & termios.ICANON


def test_chinese_input_is_edited_by_character(chat: TerminalProcess) -> None:
    chat.send("你好吗世\x7f\x7f界\r")
    chat.expect("[你好界] turn 1")


def test_pasted_lines_are_one_question(chat: TerminalProcess) -> None:
    chat.send("\x1b[200~one\ntwo\x1b[201~\r")
    chat.expect("[one\r\ntwo] turn 1")


def test_commands(chat: TerminalProcess) -> None:
    chat.send("/help\r")
    chat.expect("/reset ")
    chat.send("first\r")
    chat.expect("turn 1")
    chat.send("second\r")
    chat.expect("turn 2")
    chat.send("/stats\r")
    chat.expect("of 100000 tokens")
    chat.expect("40.0 MiB predicted after loading, 41.0 MiB measured (+1.0 MiB unaccounted)")
    chat.expect("43.0 MiB now, 50.0 MiB predicted when the context is full")
    chat.send("/reset\r")
    chat.expect("new conversation")
    chat.send("third\r")
    chat.expect("[third] turn 1")
    chat.send("/think on\r")
    chat.expect("Thinking is on.")
    chat.send("fourth\r")
    chat.expect("thinking: hm")
    chat.expect("[fourth] turn 2")
    chat.send("/think maybe\r")
    chat.expect("Usage: /think")
    chat.send("/nothing\r")
    chat.expect("There is no command /nothing")
    chat.send(" /as text\r")
    chat.expect("[ /as text] turn 3")


def test_thinking_is_shown_apart() -> None:
    with start("--think") as chat:
        chat.expect(READY)
        chat.send("why\r")
        chat.expect("thinking: ")
        between = chat.expect("[why] turn 1")
        assert "hm" in between
        assert "\n" in between
        assert "</think>" not in chat.shown


def test_dumb_terminal_gets_no_escapes() -> None:
    with start(term="dumb") as chat:
        chat.expect("> ")
        chat.send("first\r")
        chat.expect("[first] turn 1")
        chat.expect("> ")
        chat.expect_sleep()
        chat.send("half\x03")
        chat.expect("/quit quits")
        chat.expect("> ")
        chat.send("count\r")
        chat.expect("3 4 5 ")
        chat.send("\x03")
        chat.expect("(stopped)")
        chat.expect("> ")
        chat.send("\x04")
        assert chat.wait() == 0
        assert "\x1b" not in chat.shown


def test_messages_in_a_file_hold_no_escapes(tmp_path: Path) -> None:
    file = tmp_path / "messages"
    with start(through=("sh", "-c", 'exec "$@" 2>"$0"', str(file))) as chat:
        chat.send("first\r")
        chat.expect("[first] turn 1")
        chat.send("/help\r")
        chat.send("\x04")
        assert chat.wait() == 0
    text = file.read_bytes()
    assert b"/reset" in text
    assert not {0x1B, 0x0D} & set(text)


def test_a_saved_conversation_goes_on_where_it_was(chat: TerminalProcess, tmp_path: Path) -> None:
    chat.send("first\r")
    chat.expect("[first] turn 1")
    chat.expect(READY)
    chat.send(f"/save {tmp_path}/my talk.json\r")
    chat.expect("Saved 1 turns")
    chat.expect(READY)
    chat.send("/reset\r")
    chat.expect(READY)
    chat.send(f"/load {tmp_path}/my talk.json\r")
    chat.expect("Loaded 1 turns")
    chat.expect(READY)
    chat.send("second\r")
    chat.expect("[second] turn 2")


def test_a_file_that_is_not_there_ends_no_chat(chat: TerminalProcess) -> None:
    chat.send("/load /nonexistent/talk\r")
    chat.expect("chat-file")
    chat.expect(READY)
    chat.send("/save\r")
    chat.expect("/save FILE")
    chat.expect(READY)
    chat.send("after\r")
    chat.expect("[after] turn 1")
