"""Stands in for zig where Nuitka calls it, and leads to the compiler of the target.

Nuitka runs on this machine's Python and knows nothing of another processor. What it asks of the compiler is right but
for the processor and the folder with headers and library, which goes into the run path too.

The build copies this file beside a JSON file with its settings and starts it as a program; nothing imports it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

DROPPED = re.compile(r"-march=.*|-mcpu=.*|-Wl,-rpath.*|-DHACL_CAN_COMPILE_VEC\d+")

Paths = Sequence[Sequence[str]]
"""Pairs: what a word may hold, and what stands there instead."""


def changed(words: Sequence[str], paths: Paths) -> list[str]:
    """The words as the target needs them."""
    kept = []
    for word in words:
        for old, new in paths:
            word = word.replace(old, new)
        if not DROPPED.fullmatch(word):
            kept.append(word)
    return kept


def change_file(path: Path, paths: Paths) -> None:
    """Rewrites a file of words; Nuitka writes one word a line."""
    words = changed(path.read_text(encoding="utf-8").splitlines(), paths)
    path.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")


def main() -> None:
    """Becomes the compiler of the target, or zig for all that compiles nothing."""
    settings = json.loads(Path(sys.argv[0]).with_suffix(".json").read_text(encoding="utf-8"))
    words = sys.argv[1:]
    if words[:1] != ["cc"]:
        os.execv(settings["zig"], [settings["zig"], *words])
    for word in words:
        if word.startswith("@"):
            change_file(Path(word[1:]), settings["paths"])
    os.execv(settings["cc"], [settings["cc"], *changed(words[1:], settings["paths"])])


if __name__ == "__main__":
    main()
