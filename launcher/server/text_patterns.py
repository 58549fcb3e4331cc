"""Turns the `pattern` of a JSON Schema, which is searched for, into a terminal that the whole text must match."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from launcher.server.guidance import load_library
from launcher.server.schema_check import refused

ANY: Final = "/(?s:.*)/"


def pattern_terminal(pattern: str, param: str) -> str:
    """The terminal expression in the library's Lark.

    Raises:
        RequestError: anchors inside the pattern; what else is wrong with it shows when the grammar is compiled.
    """
    branches = [_whole(branch, param) for branch in _branches(pattern)]
    # With \d and \w as ECMA-262 means them: ASCII.
    return f"/{load_library().regex_to_lark('|'.join(branches), 'dw')}/"


def _branches(pattern: str) -> list[str]:
    """The alternatives of the outermost level."""
    starts = [-1, *(place for place, sign, depth in _signs(pattern) if sign == "|" and depth == 0), len(pattern)]
    return [pattern[first + 1 : second] for first, second in pairwise(starts)]


def _whole(branch: str, param: str) -> str:
    anchors = {place: sign for place, sign, _depth in _signs(branch) if sign in "^$"}
    starts, ends = anchors.pop(0, "") == "^", anchors.pop(len(branch) - 1, "") == "$"
    if anchors:
        raise refused(param, f"pattern {branch[:100]!r} has ^ or $ inside; only its ends may be anchored")
    body = branch[starts : len(branch) - ends]
    return ("" if starts else "(?s:.*)") + f"(?:{body})" + ("" if ends else "(?s:.*)")


def _signs(pattern: str) -> list[tuple[int, str, int]]:
    """Every character that may mean something, outside classes and escapes: its place and how deep it stands."""
    found: list[tuple[int, str, int]] = []
    depth = 0
    in_class = escaped = False
    for place, sign in enumerate(pattern):
        if escaped:
            escaped = False
        elif sign == "\\":
            escaped = True
        elif in_class:
            in_class = sign != "]"
        elif sign == "[":
            in_class = True
        else:
            depth -= sign == ")"
            found.append((place, sign, depth))
            depth += sign == "("
    return found
