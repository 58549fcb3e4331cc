"""How deep a body nests and how much it holds, found before anything is made of it.

It goes through the body piece by piece: one search through megabytes would keep every other thread waiting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

_PIECE: Final = 1 << 17
_BACKSLASHES: Final = re.compile(rb"\\*+")
_OPENING, _CLOSING = b"[{", b"]}"
_STEPS: Final = bytes.maketrans(_OPENING + _CLOSING, b"\x01\x01\xff\xff")
_OTHERS: Final = bytes(sorted(set(range(256)) - set(_OPENING + _CLOSING)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Nesting:
    """What arrays and objects a body has; brackets in strings are none. Of bytes that are no JSON it is what they have
    up to where they stop being any, or more."""

    depth: int
    containers: int


def nesting_of(body: bytes) -> Nesting:
    """Depth and number of the arrays and objects."""
    depth = deepest = containers = 0
    for steps in _brackets(body):
        containers += steps.count(b"\x01")
        levels = memoryview(steps).cast("b")
        deepest = max(deepest, depth + max(accumulate(levels), default=0))
        depth += sum(levels)
    return Nesting(depth=deepest, containers=containers)


def opened(body: bytes) -> int:
    """How many brackets open, those in strings too; no array or object is without one."""
    return sum(map(body.count, (b"[", b"{")))


def _brackets(body: bytes) -> Iterator[bytes]:
    """Piece by piece the brackets outside strings: 1 for one that opens, 255 for one that closes."""
    start = 0
    is_inside = False
    while start < len(body):
        end = start + _PIECE
        if body[end - 1 : end] == b"\\":  # what it escapes belongs to the same piece
            run = _BACKSLASHES.match(body, end)
            end = (run.end() if run is not None else end) + 1
        # Pairs of backslashes first: what is left before a quotation mark escapes it.
        piece = body[start:end].replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        yield b"".join(parts[is_inside::2]).translate(_STEPS, _OTHERS)
        is_inside ^= len(parts) % 2 == 0
        start = end
