"""What goes to which stream, and how it looks: stdout has what was asked for, stderr the rest.

Colour follows `--color`, then NO_COLOR, FORCE_COLOR, TERM=dumb, then whether that stream is a terminal.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TextIO

from launcher.messages import Catalogue
from launcher.options.table import ColorMode

_DIM = "\x1b[2m"
_RESET = "\x1b[0m"
# Control characters, except tab and newline, must not reach a terminal: a model could write escapes.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def is_terminal(stream: TextIO) -> bool:
    """Whether the stream is a terminal; a closed one is not."""
    try:
        return stream.isatty()
    except ValueError:
        return False


def uses_color(stream: TextIO, mode: ColorMode, environ: Mapping[str, str]) -> bool:
    """Whether text on this stream is coloured."""
    if mode is not ColorMode.AUTO:
        return mode is ColorMode.ALWAYS
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR", "0") not in {"", "0"}:
        return True
    return environ.get("TERM") != "dumb" and is_terminal(stream)


def printable(text: str) -> str:
    """The text with control characters replaced by U+FFFD."""
    return _CONTROLS.sub("\ufffd", text)


def emit(text: str) -> None:
    """Prints a result on stdout. A reader that has gone away changes nothing: the exit code still says the result."""
    try:
        print(text)
        sys.stdout.flush()
    except BrokenPipeError:
        abandon_stdout()


def abandon_stdout() -> None:
    """Sends what is still buffered nowhere; the interpreter would complain about it when it ends."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def let_go_of_lost_terminal() -> bool:
    """Sends what a stream holds but cannot write nowhere; else the interpreter would end with a code of its own.

    Returns:
        Whether there was such a stream.
    """
    lost = False
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            lost = True
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return lost


class Console:
    """The two output streams of the program."""

    def __init__(
        self, texts: Catalogue, *, out: TextIO, err: TextIO, color: ColorMode, environ: Mapping[str, str]
    ) -> None:
        self.texts = texts
        self.out = out
        self.err = err
        self._dim_err = uses_color(err, color, environ)
        self._out_is_terminal = is_terminal(out)
        self._err_is_terminal = is_terminal(err)

    def say(self, slug: str, /, **facts: object) -> None:
        """A message on stderr."""
        self.say_text(self.texts(slug, **facts))

    def say_text(self, text: str) -> None:
        """Text on stderr, with a newline."""
        self.err.write(text + "\n")
        self.err.flush()

    def answer(self, text: str) -> None:
        """A part of the answer on stdout."""
        self.out.write(printable(text) if self._out_is_terminal else text)
        self.out.flush()

    def thinking(self, text: str) -> None:
        """A part of the model's thinking on stderr, dim where there is colour."""
        shown = printable(text) if self._err_is_terminal else text
        self.err.write(f"{_DIM}{shown}{_RESET}" if self._dim_err else shown)
        self.err.flush()
