"""The line editor of the chat: history, Chinese input, completion of commands, pasted text with several lines.

A terminal without cursor movements (``TERM=dumb``: a serial console, an editor's shell) gets a plain prompt instead,
and so does what is no terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.output import ColorDepth, create_output
from prompt_toolkit.utils import is_dumb_terminal

from launcher.chat import COMMANDS
from launcher.options.table import ColorMode
from launcher.terminal import is_terminal

PROMPT = "> "


def line_reader(stream: TextIO, color: ColorMode) -> Callable[[], str]:
    """A function that asks for one line on the terminal behind `stream`.

    It raises EOFError at Ctrl-D on an empty line and KeyboardInterrupt at Ctrl-C. The history is kept in memory only.
    """
    if is_dumb_terminal() or not is_terminal(stream):
        return partial(_read_plainly, stream)
    session: PromptSession[str] = PromptSession(
        PROMPT,
        history=InMemoryHistory(),
        completer=WordCompleter(list(COMMANDS), sentence=True),
        complete_while_typing=False,
        reserve_space_for_menu=0,
        output=create_output(stdout=stream),
        color_depth=ColorDepth.DEPTH_1_BIT if color is ColorMode.NEVER else None,
    )
    return session.prompt


def _read_plainly(stream: TextIO) -> str:
    """One line as the terminal itself edits it."""
    stream.write(PROMPT)
    stream.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")
