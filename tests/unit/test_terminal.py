"""Colour where none may be, escapes of a model that reach the terminal, answers on the wrong stream."""

from __future__ import annotations

import io

import pytest

from launcher.messages import Catalogue, Language
from launcher.options.table import ColorMode
from launcher.terminal import Console, printable, uses_color


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("mode", "environ", "terminal", "expected"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"FORCE_COLOR": "0"}, False, False),
        ("auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ("auto", {"FORCE_COLOR": "1", "TERM": "dumb"}, True, True),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_colour_is_decided_in_order(mode: str, environ: dict[str, str], terminal: bool, expected: bool) -> None:
    stream = Screen() if terminal else io.StringIO()
    assert uses_color(stream, ColorMode(mode), environ) is expected


def console(out: io.StringIO, err: io.StringIO, color: ColorMode = ColorMode.AUTO) -> Console:
    return Console(Catalogue(Language.ENGLISH), out=out, err=err, color=color, environ={})


def test_control_characters_of_the_model_do_not_reach_a_terminal() -> None:
    out, err = Screen(), Screen()
    both = console(out, err, ColorMode.NEVER)
    both.answer("a\x1b]0;title\x07b\tc\n\x9b2J")
    both.thinking("\x1b[2J")
    assert out.getvalue() == "a\ufffd]0;title\ufffdb\tc\n\ufffd2J"
    assert "\x1b" not in err.getvalue()


def test_answer_is_written_as_it_is_off_a_terminal() -> None:
    out, err = io.StringIO(), io.StringIO()
    both = console(out, err)
    both.answer("a\x1b[0m")
    both.thinking("t")
    assert out.getvalue() == "a\x1b[0m"
    assert err.getvalue() == "t"


def test_thinking_is_dim_on_a_terminal() -> None:
    err = Screen()
    console(io.StringIO(), err).thinking("t")
    assert err.getvalue() == "\x1b[2mt\x1b[0m"


def test_printable_keeps_text() -> None:
    assert printable("你好 🙂\n\t~") == "你好 🙂\n\t~"
