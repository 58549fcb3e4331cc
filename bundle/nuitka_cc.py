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
# What Nuitka makes of a module calls the interpreter step by step, and small code is as fast there. zig knows `-Os` as
# the least; `-Oz` takes equal sequences out of line too.
MODULE = re.compile(r'"?(?:.*/)?module\.[^/]*\.c"?')
SPEED = "-O2"
SIZE = ("-Os", "-Xclang", "-Oz")
# No exception passes through C code, so nothing looks up its frames. With a section for each function, the linker can
# leave out those of Nuitka's run-time library that nothing calls.
ADDED = ("-fno-unwind-tables", "-fno-asynchronous-unwind-tables", "-ffunction-sections")

Paths = Sequence[Sequence[str]]
"""Pairs: what a word may hold, and what stands there instead."""


def changed(words: Sequence[str], paths: Paths) -> list[str]:
    """The words as the target needs them."""
    kept: list[str] = []
    small = any(map(MODULE.fullmatch, words))
    for word in words:
        for old, new in paths:
            word = word.replace(old, new)
        if small and word == SPEED:
            kept += SIZE
        elif not DROPPED.fullmatch(word):
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
    os.execv(settings["cc"], [settings["cc"], *ADDED, *changed(words[1:], settings["paths"])])


if __name__ == "__main__":
    main()
