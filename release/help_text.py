"""How `mindnano --help` is laid out, and the exit codes that it ends with."""

from __future__ import annotations

import argparse
from typing import Final

EXIT_CODES: Final = """exit codes:
  0 ok   1 internal error; mtp audit: something differs   2 usage   3 device
  4 checkpoint, package or release missing, damaged or unsupported   5 not enough memory or disk   6 network
  7 port busy   8 signature   9 engine could not load   10 engine failed   130 interrupted   143 terminated"""


class CommandHelp(argparse.RawDescriptionHelpFormatter):
    """One line for each command: the standard one forgets how far commands are indented."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._action_max_length = 14
