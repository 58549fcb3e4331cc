"""Between which numbers a field of a request may be, in words, read off the field's type."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Final

from msgspec import inspect

_NAME: Final = re.compile(r"[^.\[]+")
_LARGEST: Final = sys.float_info.max
_Number = inspect.IntType | inspect.FloatType


def numbers_in_words(request: object, path: str) -> str:
    """What a number at this path of a request's body may be, such as "a number >= 0 and <= 2"."""
    info = inspect.type_info(request)
    name = _NAME.match(path)
    words: dict[str, None] = {}
    if isinstance(info, inspect.StructType) and name is not None:
        for field in info.fields:
            if field.encode_name == name[0]:
                words = dict.fromkeys(_in_words(kind, schema) for kind, schema in _numbers(field.type, {}))
    return " or ".join(words) or f"a number >= {-_LARGEST:g} and <= {_LARGEST:g}"


def _numbers(kind: inspect.Type, schema: dict[str, object]) -> Iterator[tuple[_Number, dict[str, object]]]:
    """The kinds of numbers in a type, each with what only its schema tells."""
    if isinstance(kind, _Number):
        yield kind, schema
    elif isinstance(kind, inspect.Metadata):
        yield from _numbers(kind.type, kind.extra_json_schema or {})
    elif isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _numbers(each, {})
    elif isinstance(kind, inspect.DictType):
        yield from _numbers(kind.value_type, {})
    elif isinstance(kind, inspect.ListType):
        yield from _numbers(kind.item_type, {})


def _in_words(kind: _Number, schema: dict[str, object]) -> str:
    least = schema.get("minimum") if kind.ge is None else kind.ge
    most = schema.get("maximum") if kind.le is None else kind.le
    bounds = [("> ", kind.gt), (">= ", least), ("< ", kind.lt), ("<= ", most)]
    said = " and ".join(
        f"{sign}{bound:.16g}" if isinstance(bound, float) else f"{sign}{bound}"
        for sign, bound in bounds
        if bound is not None
    )
    return f"{'an integer' if isinstance(kind, inspect.IntType) else 'a number'} {said}".rstrip()
