"""Opens and plans a package in a process of its own and prints as JSON what that touched and mapped.

    python -m tests.support.measured_open PACKAGE LIBRARY [--mtp]

With --mtp an engine with the MTP layer is created as well, before the mappings are listed.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

from launcher.engine import Engine, Package
from launcher.engine_library import Library
from launcher.engine_types import EngineOptions, SessionOptions


def mappings(path: Path) -> Iterator[tuple[int, int, int]]:
    """Offset in the file, length and resident part in bytes of every mapping of the file in this process."""
    offset = length = 0
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            first, last = (int(word, 16) for word in words[0].split("-"))
            offset, length = int(words[2], 16), last - first
            inside = words[-1] == str(path)
        elif words[0] == "Rss:" and inside:
            yield offset, length, 1024 * int(words[1])


def bytes_read() -> int:
    """What this process has read by system calls so far."""
    lines = Path("/proc/self/io").read_text(encoding="utf-8").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("rchar:")))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("package", type=Path)
    parser.add_argument("library", type=Path)
    parser.add_argument("--mtp", action="store_true")
    arguments = parser.parse_args()
    library = Library(arguments.library)
    options = EngineOptions(threads=1, mtp=arguments.mtp)
    read_before = bytes_read()
    start = time.perf_counter()
    package = Package(arguments.package, library=library)
    plan = package.plan(options, SessionOptions(context=package.config.max_context))
    seconds = time.perf_counter() - start
    read = bytes_read() - read_before
    engine = Engine(package, options) if arguments.mtp else None
    found = list(mappings(arguments.package))
    if engine is not None:
        engine.close()
    package.close()
    result = {"seconds": seconds, "read": read, "mapped_bytes": plan.mapped_bytes, "mappings": found}
    result["left"] = list(mappings(arguments.package))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
