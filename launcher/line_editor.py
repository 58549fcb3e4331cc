"""The line editor of the chat: history, Chinese input, completion of commands, pasted text with several lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.output import ColorDepth, create_output

from launcher.chat import COMMANDS
from launcher.options.table import ColorMode

PROMPT = "> "


def line_reader(stream: TextIO, color: ColorMode) -> Callable[[], str]:
    """A function that asks for one line on the terminal behind `stream`.

    It raises EOFError at Ctrl-D on an empty line and KeyboardInterrupt at Ctrl-C. The history is kept in memory only.
    """
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
