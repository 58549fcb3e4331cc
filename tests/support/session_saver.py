"""Saves ever new states of one session until it is killed: `session_saver.py FOLDER`. Prints a line when it begins."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from launcher.server.session_entries import Key, token_array
from launcher.server.session_files import SessionFiles
from launcher.server.session_format import Origin

ORIGIN = Origin(identity=bytes(32), template_sha256=bytes(32), kv="bf16", engine="test 1")
KEY = Key(owner="", name="a")
BYTES = 9 << 20


def state(number: int) -> tuple[list[int], bytes]:
    """Ids and export of the state with this number."""
    return [1, 2, number], number.to_bytes(4, "little") * (BYTES // 4)


def main(folder: Path) -> None:
    """Runs until it is killed."""
    files = SessionFiles(folder, limit_bytes=1 << 30, origin=ORIGIN, report=lambda error: sys.exit(error.message))
    print("begins", flush=True)
    for number in itertools.count(1):
        ids, memory = state(number)
        files.save(KEY, token_array(ids), {0: 2}, memory, lambda: False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
