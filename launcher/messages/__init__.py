"""What the program says to people, in English and simplified Chinese. Slugs, logs and JSON stay English."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Final

from launcher.errors import MindnanoError, UsageError
from launcher.messages import en, zh

LANGUAGE_VARIABLE = "MINDNANO_LANG"
# Control characters, and those that turn the direction of a line or end it.
_UNSEEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class Language(Enum):
    """A language of the catalogue."""

    ENGLISH = "en"
    CHINESE = "zh"


class Catalogue:
    """The messages of one language."""

    def __init__(self, language: Language) -> None:
        self.language = language
        self._texts = zh.TEXTS if language is Language.CHINESE else en.TEXTS

    def __call__(self, slug: str, /, **facts: object) -> str:
        """The message with this slug, its facts filled in, with U+FFFD for what a terminal would obey.

        Names of files, of models and what servers say are facts too, and anybody may have written them.
        """
        return self._texts[slug].format(**{name: _seen(fact) for name, fact in facts.items()})

    def has(self, slug: str) -> bool:
        """Whether there is a message with this slug."""
        return slug in self._texts

    def error(self, error: MindnanoError) -> str:
        """An error as lines for a person: what happened, and what to do next.

        In Chinese the summary comes from the catalogue and the precise English message follows as the detail.
        """
        if self.language is Language.ENGLISH:
            lines = [f"error ({error.slug}): {_seen(error.message)}"]
            if error.hint:
                lines.append(f"  next: {_seen(error.hint)}")
            return "\n".join(lines)
        summary, hint = _chinese(error.slug, error.hint)
        lines = [f"错误（{error.slug}）：{summary}", f"  详情：{_seen(error.message)}"]
        if hint:
            lines.append(f"  建议：{_seen(hint)}")
        return "\n".join(lines)

    def failure(self, slug: str, message: str, hint: str) -> tuple[str, str]:
        """An error that is a part of something longer: what happened, on one line, and what to do next."""
        if self.language is Language.ENGLISH:
            return message, hint
        summary, step = _chinese(slug, hint)
        return f"{summary}（{message}）", step


def _chinese(slug: str, hint: str) -> tuple[str, str]:
    """Summary and next step; facts that only the English hint has are put into the Chinese one."""
    summary, step = zh.ERRORS.get(slug, ("出错了", ""))
    return summary, step.format(hint=hint) if step else hint


def _seen(fact: object) -> object:
    """A text or a path without what a terminal would obey; anything else as it is."""
    return _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", str(fact)) if isinstance(fact, str | PurePath) else fact


def choose_language(argument: str | None, environ: Mapping[str, str]) -> Language:
    """`--lang`, then MINDNANO_LANG, then the locale.

    Raises:
        UsageError: MINDNANO_LANG names no language of the catalogue.
    """
    if argument is not None:
        return Language(argument)
    named = environ.get(LANGUAGE_VARIABLE, "")
    if named:
        try:
            return Language(named)
        except ValueError as error:
            raise UsageError("usage", f"{LANGUAGE_VARIABLE} is {named!r}, expected en or zh") from error
    for variable in ("LC_ALL", "LC_MESSAGES", "LANG"):
        value = environ.get(variable, "")
        if value:
            return Language.CHINESE if value.lower().startswith("zh") else Language.ENGLISH
    return Language.ENGLISH
