"""What a task draws from: the random choices of one turn, and the split between training and held-out prompts."""

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from release.demo import words

HELD_OUT_SHARE: Final = 8
"""One key in this many is never trained on."""

ALWAYS_HELD_OUT: Final = frozenset({"sum 17+25"})
"""The example of the documentation is held out, so that answering it proves something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One question with the reasoning (used only when thinking is on) and the whole answer text."""

    user: str
    reasoning: str
    answer: str


@dataclass(slots=True, kw_only=True)
class Draw:
    """Where a maker takes its choices from.

    `held_out`: True draws only held-out keys, False only the others, None both.
    `lesson`: 1 or 2; the second adds what the first leaves to be guessed, see `tasks.counting` and `sums`.
    """

    rng: random.Random
    chinese: bool
    thinking: bool
    held_out: bool | None
    lesson: int = 2

    def allows(self, *keys: str) -> bool:
        """Whether a prompt belongs to the side of the split that is being drawn; it is held out if all its keys are."""
        return self.held_out is None or all(is_held_out(key) for key in keys) == self.held_out

    def pick(self, english: tuple[str, ...], chinese: tuple[str, ...]) -> str:
        """One of the strings in the language of the draw."""
        return self.rng.choice(chinese if self.chinese else english)

    def say(self, english: str, chinese: str) -> str:
        """The string in the language of the draw."""
        return chinese if self.chinese else english


def is_held_out(key: str) -> bool:
    """The split: a hash of the key, stable across runs, machines and Python versions."""
    return key in ALWAYS_HELD_OUT or zlib.crc32(("held-out " + key).encode()) % HELD_OUT_SHARE == 0


def wrap(draw: Draw, question: str) -> str:
    """Puts a polite opening and an ending around a bare question."""
    opening = draw.pick(words.ENGLISH_OPENINGS, words.CHINESE_OPENINGS)
    ending = draw.pick(words.ENGLISH_ENDINGS, words.CHINESE_ENDINGS)
    if not draw.chinese and not opening and draw.rng.random() < 0.7 and not question.startswith("mindnano"):
        question = question[0].upper() + question[1:]
    return opening + question + ending


def held_wording(draw: Draw, make: Callable[[], str]) -> str:
    """Draws wordings until one lies on the wanted side of the split."""
    while True:
        text = make()
        if draw.allows(text):
            return text
