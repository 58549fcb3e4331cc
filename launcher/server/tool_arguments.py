"""Writes the arguments of a tool call as JSON while they stream in.

In a reply a string argument is raw text and every other one is JSON, so the tool's JSON Schema tells them apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import NoReturn

_ONLY_STRING = frozenset({"string"})
_DEEPEST = 64
_MOST_SCHEMAS = 1_000
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class ArgumentsWriter:
    """Makes one JSON object. Every method gives the next fragment of its text; no fragment ends inside an escape."""

    def __init__(self, parameters: Mapping[str, object]) -> None:
        """`parameters`: the tool's JSON Schema."""
        self._parameters = parameters
        self._keys: set[str] = set()
        self._kept = False  # a repeated key: its first value is out already, so later ones are dropped
        self._types: frozenset[str] | None = None
        self._streams = False
        self._parts: list[str] = []
        self._open = False

    def begin(self, key: str) -> str:
        """An argument begins."""
        self._open = True
        self._parts.clear()
        self._kept = key not in self._keys
        if not self._kept:
            return ""
        opening = "{" if not self._keys else ", "
        self._keys.add(key)
        self._types = argument_types(self._parameters, key)
        self._streams = self._types == _ONLY_STRING
        return f"{opening}{_quote(key)}: " + ('"' if self._streams else "")

    def push(self, text: str) -> str:
        """More of its value, as it stands in the reply."""
        if not self._kept:
            return ""
        if self._streams:
            return _quote(text)[1:-1]
        self._parts.append(text)
        return ""

    def end(self) -> str:
        """The value is complete."""
        self._open = False
        if not self._kept:
            return ""
        return '"' if self._streams else value_json("".join(self._parts), self._types)

    def close(self) -> str:
        """The call is complete, or the reply ended inside it."""
        ending = self.end() if self._open else ""
        return ending + ("}" if self._keys else "{}")


def value_json(text: str, types: frozenset[str] | None) -> str:
    """The JSON text of a value: `text` itself where it is JSON of one of the types, else a string of it.

    `types` None accepts every type. JSON strings are not accepted: a string stands in the reply without quotes.
    """
    stripped = text.strip()
    try:
        value = json.loads(stripped, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return _quote(text)
    if isinstance(value, str) or (types is not None and not _types_of(value) & types):
        return _quote(text)
    return _escape_surrogates(stripped)


def argument_types(parameters: Mapping[str, object], key: str) -> frozenset[str] | None:
    """The JSON Schema types that an argument may have; None where the schema does not tell."""
    schema: object = parameters
    for _ in range(_DEEPEST):
        if not isinstance(schema, Mapping):
            return None
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and key in properties:
            return _TypeFinder(parameters).types(properties[key])
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return _TypeFinder(parameters).types(schema.get("additionalProperties"))
        schema = _resolve(reference, parameters)
    return None


class _TypeFinder:
    """Follows a schema only so far: a client may send one that leads on for ever, or to the end of the stack."""

    def __init__(self, root: Mapping[str, object]) -> None:
        self._root = root
        self._left = _MOST_SCHEMAS

    def types(self, schema: object, above: tuple[str, ...] = (), depth: int = 0) -> frozenset[str] | None:
        """The types that the schema allows; None where it does not tell. `above` are the references that led here."""
        self._left -= 1
        if not isinstance(schema, Mapping) or depth > _DEEPEST or self._left < 0:
            return None
        declared = schema.get("type")
        if isinstance(declared, str):
            return frozenset({declared})
        if isinstance(declared, list):
            return frozenset(name for name in declared if isinstance(name, str))
        if "const" in schema:
            return _types_of(schema["const"])
        if isinstance(schema.get("enum"), list):
            return frozenset().union(*map(_types_of, schema["enum"]))
        reference = schema.get("$ref")
        if isinstance(reference, str):
            if reference in above:  # a loop adds no type
                return frozenset()
            return self.types(_resolve(reference, self._root), (*above, reference), depth + 1)
        for keyword in ("anyOf", "oneOf"):
            if isinstance(schema.get(keyword), list):
                found = [self.types(entry, above, depth + 1) for entry in schema[keyword]]
                known = [types for types in found if types is not None]
                return frozenset().union(*known) if len(known) == len(found) else None
        if isinstance(schema.get("allOf"), list):
            found = [self.types(entry, above, depth + 1) for entry in schema["allOf"]]
            known = [types for types in found if types]
            return frozenset.intersection(*known) if known else None
        return None


def _resolve(reference: str, root: Mapping[str, object]) -> object:
    """What a reference within the document (RFC 6901) names; None where it leads nowhere."""
    place: object = root
    if not reference.startswith("#"):
        return None
    for name in reference.split("/")[1:]:
        if not isinstance(place, Mapping):
            return None
        place = place.get(name.replace("~1", "/").replace("~0", "~"))
    return place


def _types_of(value: object) -> frozenset[str]:
    if value is None:
        return frozenset({"null"})
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int):
        return frozenset({"integer", "number"})
    if isinstance(value, float):
        return frozenset({"integer", "number"} if value.is_integer() else {"number"})
    if isinstance(value, str):
        return frozenset({"string"})
    return frozenset({"array"} if isinstance(value, list) else {"object"})


def _quote(text: str) -> str:
    return _escape_surrogates(json.dumps(text, ensure_ascii=False))


def _escape_surrogates(text: str) -> str:
    # A lone surrogate has no UTF-8 form; JSON can still name it.
    return _LONE_SURROGATE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
