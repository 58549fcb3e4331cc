"""JSON from files that nobody vouches for: no duplicate keys, no unknown keys, no guessing of types."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NoReturn

from launcher.errors import PackageError
from launcher.integrity.release_files import portable_path_fault, printable

MAX_COUNT: Final = (1 << 63) - 1
MAX_TEXT: Final = 1024
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_SHOWN: Final = 80


def invalid(where: str, fault: str) -> PackageError:
    """The error for a document that does not say what its format asks for."""
    return PackageError("metadata-invalid", f"{where}: {fault}", hint="fetch the release again from its publisher")


def parse_object(data: bytes, where: str) -> Fields:
    """The JSON object in these bytes.

    Args:
        where: what to call the document in errors, e.g. its file name.

    Raises:
        PackageError: not UTF-8, not JSON, not an object, or a key occurs twice.
    """

    def pairs(found: list[tuple[str, object]]) -> dict[str, object]:
        twice = repeated_key(found)
        if twice is not None:
            raise invalid(where, f"the key {_shown(twice)} occurs twice in one object")
        return dict(found)

    def constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    try:
        value = json.loads(data.decode(), object_pairs_hook=pairs, parse_constant=constant)
    except RecursionError as error:
        raise invalid(where, "it is nested too deeply") from error
    except ValueError as error:
        raise invalid(where, f"it is not JSON: {error}") from error
    return Fields(value, where)


def repeated_key(pairs: Iterable[tuple[str, object]]) -> str | None:
    """The first key that occurred before, or None. One pass: a document of megabytes may hold a million keys."""
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            return name
        seen.add(name)
    return None


def to_bytes(document: Mapping[str, object]) -> bytes:
    """The one way in which documents are written: keys in the given order, UTF-8, two spaces, LF at the end."""
    return (json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _shown(value: object) -> str:
    text = printable(repr(value)) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


class Fields:
    """A JSON object whose keys are taken one by one; `finish` refuses what nobody took.

    Every method raises PackageError where the value is missing or is not what the method promises.
    """

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise invalid(where, f"found {_shown(value)}, expected an object")
        self._values: dict[str, object] = value
        self._where = where
        self._taken: set[str] = set()

    def fail(self, name: str, expected: str) -> PackageError:
        """The error for one key, with what was found."""
        return invalid(self._where, self.fault(name, expected))

    def fault(self, name: str, expected: str) -> str:
        """What was found under one key and what was expected."""
        return f"{name} is {_shown(self._values.get(name))}, expected {expected}"

    def has(self, name: str) -> bool:
        """Whether the key is there, with a value other than null. A null key counts as taken."""
        self._taken.add(name)
        return self._values.get(name) is not None

    def take(self, name: str) -> object:
        """The value of a key that must be there."""
        self._taken.add(name)
        if name not in self._values:
            raise invalid(self._where, f"the key {name} is missing")
        return self._values[name]

    def text(self, name: str, *, pattern: re.Pattern[str] | None = None, limit: int = MAX_TEXT) -> str:
        """Text of 1 to `limit` characters without control characters that matches the pattern."""
        value = self.take(name)
        if not isinstance(value, str) or not 0 < len(value) <= limit or not _is_line(value):
            raise self.fail(name, f"text of 1 to {limit} printable characters")
        if pattern is not None and pattern.fullmatch(value) is None:
            raise self.fail(name, f"text of the form {pattern.pattern}")
        return value

    def integer(self, name: str, *, low: int = 0, high: int = MAX_COUNT) -> int:
        """A whole number in a range; neither 1.0 nor true is one."""
        value = self.take(name)
        if type(value) is not int or not low <= value <= high:
            raise self.fail(name, f"a whole number from {low} to {high}")
        return value

    def number(self, name: str) -> float:
        """A finite number."""
        value = self.take(name)
        if type(value) is int and abs(value) <= MAX_COUNT:
            return float(value)
        if type(value) is float and math.isfinite(value):
            return value
        raise self.fail(name, "a finite number")

    def boolean(self, name: str) -> bool:
        """True or false."""
        value = self.take(name)
        if type(value) is not bool:
            raise self.fail(name, "true or false")
        return value

    def digest(self, name: str) -> str:
        """A SHA-256 as 64 lower-case hexadecimal digits; an empty or missing one is an error."""
        value = self.take(name)
        if not isinstance(value, str) or _DIGEST.fullmatch(value) is None:
            raise self.fail(name, "a SHA-256 of 64 lower-case hexadecimal digits")
        return value

    def path(self, name: str) -> str:
        """The name of a file inside a release."""
        value = self.take(name)
        if not isinstance(value, str):
            raise self.fail(name, "the name of a file")
        fault = portable_path_fault(value)
        if fault is not None:
            raise self.fail(name, f"a name inside the release; {fault}")
        return value

    def array(self, name: str, *, limit: int) -> Sequence[object]:
        """A list of at most `limit` values."""
        value = self.take(name)
        if not isinstance(value, list) or len(value) > limit:
            raise self.fail(name, f"a list of at most {limit} entries")
        return value

    def fields(self, name: str) -> Fields:
        """An object."""
        return Fields(self.take(name), f"{self._where}: {name}")

    def names(self, *, limit: int) -> Iterable[str]:
        """All keys of an object whose keys are free, each of 1 to 64 printable characters."""
        if len(self._values) > limit or not all(0 < len(name) <= 64 and _is_line(name) for name in self._values):
            raise invalid(self._where, f"expected at most {limit} keys of 1 to 64 printable characters")
        return tuple(self._values)

    def finish(self) -> None:
        """Refuses keys that were not taken."""
        unknown = sorted(set(self._values) - self._taken)
        if unknown:
            raise invalid(self._where, f"unknown key {', '.join(_shown(name) for name in unknown[:5])}")


def _is_line(text: str) -> bool:
    return not any(character < " " or "\x7f" <= character < "\xa0" or _is_hidden(character) for character in text)


def _is_hidden(character: str) -> bool:
    """Surrogates cannot be written; separators and directional marks can make a line read differently than it is."""
    return (
        "\ud800" <= character <= "\udfff"
        or character in "\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    )
