"""Release versions: ``1.2.3`` with up to four numbers, and before it ``1.2.3.dev1 < 1.2.3a1 < 1.2.3b1 < 1.2.3rc1``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_NUMBERS: Final = 4
_FINAL_STAGE: Final = 4
_STAGES: Final = {".dev": 0, "a": 1, "b": 2, "rc": 3}
_PATTERN: Final = re.compile(r"(\d{1,9}(?:\.\d{1,9}){1,3})(?:(\.dev|a|b|rc)(\d{1,9}))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Version:
    """A version by its order: ``1.2`` equals ``1.2.0``."""

    numbers: tuple[int, ...]
    stage: int
    serial: int


def parse_version(text: str) -> Version | None:
    """The version that this text names, or None where it names none."""
    match = _PATTERN.fullmatch(text)
    if match is None:
        return None
    numbers = [int(number) for number in match[1].split(".")]
    padded = tuple(numbers + [0] * (_NUMBERS - len(numbers)))
    stage = _FINAL_STAGE if match[2] is None else _STAGES[match[2]]
    return Version(numbers=padded, stage=stage, serial=int(match[3] or 0))
