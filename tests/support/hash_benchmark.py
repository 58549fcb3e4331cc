"""The engine's SHA-256 beside hashlib's, in one run: the figures of docs/performance.md.

    python -m tests.support.hash_benchmark [--mib 1024] [--rounds 5]

Both hash the same file, which lies in memory. They take turns, and the best round of each counts.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Callable

from engine.build import build_library
from launcher.engine_library import Library
from launcher.integrity.hashing import implementation, sha256_file

MIB = 1 << 20


def by_hashlib(file: int) -> str:
    """OpenSSL's SHA-256, fed as hashlib does it itself."""
    with open(file, "rb", closefd=False) as stream:
        stream.seek(0)
        return hashlib.file_digest(stream, "sha256").hexdigest()


def seconds(work: Callable[[], str], expected: str | None) -> tuple[float, str]:
    """How long the work takes, and its digest, which must be the expected one."""
    start = time.perf_counter()
    digest = work()
    taken = time.perf_counter() - start
    assert digest == expected or expected is None, "the digests differ"
    return taken, digest


def main() -> int:
    """Measures and prints one table."""
    parser = argparse.ArgumentParser(description="Measures the engine's SHA-256 beside hashlib's.")
    parser.add_argument("--mib", type=int, default=1024, help="size of the file in MiB (default: 1024)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (default: 5)")
    options = parser.parse_args()
    library = Library(build_library())
    file = os.memfd_create("hash_benchmark")
    block = os.urandom(MIB)
    for index in range(options.mib):
        os.pwrite(file, block, index * MIB)
    ways: dict[str, Callable[[], str]] = {
        "hashlib": lambda: by_hashlib(file),
        f"engine ({implementation(library)})": lambda: sha256_file(file, library=library).digest,
    }
    best = dict.fromkeys(ways, float("inf"))
    expected = None
    for _ in range(options.rounds):
        for name, work in ways.items():
            taken, expected = seconds(work, expected)
            best[name] = min(best[name], taken)
    os.close(file)
    print(f"{options.mib} MiB in memory, best of {options.rounds} rounds in turns")
    print("| | MiB/s | ratio |")
    print("|---|---|---|")
    for name, taken in best.items():
        print(f"| {name} | {options.mib / taken:.0f} | {best['hashlib'] / taken:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
