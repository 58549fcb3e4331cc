"""What a command prints where its exit code counts, whether anybody reads the text or not."""

from __future__ import annotations

import sys


def show(text: str) -> None:
    """Prints a text on stdout. A reader who has gone away, as `head` and `grep -q` do, ends nothing."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        sys.stdout = None  # closing must not complain either
