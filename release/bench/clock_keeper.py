"""The process that locks clocks and puts them back when its input ends: `python -m release.bench.clock_keeper ROOT`.

Each line of its input is `[PATH, VALUE, VALUE BEFORE]`; the answer is `[null]` or `[REASON]`. At the end of the input
the last answer is a list of `[PATH, REASON]`: what could not be put back.
"""

from __future__ import annotations

import json
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from launcher.system import SystemView
from release.bench.clocks import Setting, restore, write


def keep(system: SystemView, requests: TextIO, answers: TextIO) -> None:
    """Serves requests until there are no more, then puts everything back."""
    before: list[Setting] = []
    try:
        for line in requests:
            if not line.endswith("\n"):  # whoever wrote it ended in the middle
                break
            path, value, old = json.loads(line)
            before.append(Setting(path=path, value=old))
            reason = write(system, Setting(path=path, value=value))
            with suppress(OSError):  # nobody listens any more: the input ends with the next line
                print(json.dumps([reason]), file=answers, flush=True)
    finally:
        left = restore(system, before)
        with suppress(OSError):
            print(json.dumps([[each.path, each.reason] for each in left]), file=answers, flush=True)


def main() -> None:
    """Runs the keeper. Signals are ignored: only the end of the input ends it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    keep(SystemView(root=Path(sys.argv[1])), sys.stdin, sys.stdout)


if __name__ == "__main__":
    main()
