"""What the value of a tool's argument may look like: a string is raw text in a call, every other value is JSON.

A schema is taken apart into alternatives, each a list of plain schemas that all hold; what an alternative says about
strings becomes a regular language, and what it says about the other types stays JSON Schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from launcher.server.request import Tool
from launcher.server.schema_check import Part, Schema, checked, refused, resolve
from launcher.server.text_patterns import ANY, pattern_terminal
from launcher.server.tool_arguments import argument_types, value_json

_MAX_ALTERNATIVES: Final = 128
_MAX_VISITED: Final = 2_000
_MAX_REFERENCES: Final = 64
_STRINGS: Final = frozenset({"string"})
_OTHER_TYPES: Final = ("null", "boolean", "integer", "number", "array", "object")
_NESTED: Final = ("$ref", "allOf", "anyOf", "oneOf")
_UNSUPPORTED_AT_ROOT: Final = (
    "allOf",
    "anyOf",
    "const",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "enum",
    "if",
    "not",
    "oneOf",
    "patternProperties",
    "propertyNames",
)
_APART: Final = ("$defs", "definitions", "$schema", "$id", "$anchor")

# Texts that the reader of a reply would take for JSON of the type, so that no string may look like it.
_LOOKS_LIKE: Final = {
    "null": "null",
    "boolean": "(true|false)",
    "integer": r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?",
    "number": r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?",
    "array": r"\[(?s:.*)",
    "object": r"\{(?s:.*)",
}
_BLANK: Final = r"[\s\x1c-\x1f]*"
_DATE: Final = (
    r"[12][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
    r"|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_TIME: Final = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE: Final = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_FORMATS: Final = {
    "date": f"/{_DATE}/",
    "time": f"/{_TIME}/",
    "date-time": f"/{_DATE}T{_TIME}/",
    "uuid": "/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/",
    "ipv4": rf"/({_BYTE}\.){{3}}{_BYTE}/",
    "email": r"/[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9]+(-[A-Za-z0-9]+)*(\.[A-Za-z0-9]+(-[A-Za-z0-9]+)*)+/",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentValue:
    """Either or both.

    Attributes:
        texts: terminal expressions in the library's Lark for what a string may be; the end mark is not excluded yet.
        schemas: JSON Schemas of the values that are no strings.
    """

    texts: tuple[str, ...]
    schemas: tuple[Schema, ...]


class ToolArguments:
    """A tool's parameters as a list of arguments.

    Attributes:
        declared: the schema of each argument that has a name, in the order in which a call gives them.
        required: the names of those that must be there.
        free: the schema of arguments with other names; None where there are none.
    """

    def __init__(self, tool: Tool, param: str) -> None:
        """Raises:
        RequestError: the schema cannot be served; `param` says where it stands in the request.
        """
        self._tool = tool
        self._param = param
        self._root = checked(tool.parameters, param)
        self._part = Part(self._root)
        schema = self._object()
        properties = schema.get("properties", {})
        if not isinstance(properties, Mapping):
            raise refused(param, "properties is not an object")
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise refused(param, "required is not a list of names")
        # Parameters that say nothing, or that list no properties in an empty `properties`, take no arguments.
        further = schema.get("additionalProperties", bool(schema) and "properties" not in schema)
        if not isinstance(further, Mapping | bool):
            raise refused(param, "additionalProperties is neither a schema nor true or false")
        self.free: object | None = None if further is False else further
        self.required = frozenset(required)
        self.declared: dict[str, object] = {}
        for key in dict.fromkeys((*properties, *required)):
            entry = properties.get(key, further)
            if entry is not False:
                self.declared[key] = entry
            elif key in self.required:
                raise refused(param, f"it requires {key!r} and allows no such property")
        self._check_counts(schema)

    def value(self, schema: object, key: str | None) -> ArgumentValue:
        """What an argument may be, with schemas that stand alone; `key` None is any that is not declared.

        Raises:
            RequestError: the schema cannot be served.
        """
        alternatives = _Alternatives(self._root, self._param).of(schema)
        # A name that no tool declares is read by what the schema says of further ones.
        read_as = argument_types(self._tool.parameters, "\0" if key is None else key)
        value = _argument_value(alternatives, read_as, self._param)
        if not value.texts and not value.schemas:
            raise refused(self._param, "no value follows the schema of " + ("free keys" if key is None else repr(key)))
        return ArgumentValue(texts=value.texts, schemas=tuple(map(self._part.alone, value.schemas)))

    def _object(self) -> Schema:
        """The schema of the object itself, its references followed; `checked` has refused loops."""
        schema: object = self._root
        while isinstance(schema, Mapping) and "$ref" in schema:
            schema = resolve(schema["$ref"], self._root, self._param)
        if not isinstance(schema, Mapping):
            raise refused(self._param, "it is not the schema of an object")
        types = _types(schema)
        if types is not None and "object" not in types:
            raise refused(self._param, f"its type is {' or '.join(types)}, not object")
        for keyword in _UNSUPPORTED_AT_ROOT:
            if keyword in schema:
                raise refused(self._param, f"{keyword} is not supported for the object of all arguments")
        return schema

    def _check_counts(self, schema: Schema) -> None:
        least, most = schema.get("minProperties", 0), schema.get("maxProperties")
        if not isinstance(least, int) or least > len(self.required):
            raise refused(self._param, "minProperties is not supported where fewer properties are required")
        if most is not None and (not isinstance(most, int) or most < len(self.declared) or self.free is not None):
            raise refused(self._param, "maxProperties is not supported where more properties may come")


def _argument_value(
    alternatives: list[tuple[Schema, ...]], read_as: frozenset[str] | None, param: str
) -> ArgumentValue:
    """`read_as` are the types that the reader of a reply tells apart, None for all; strings are told from these."""
    texts: list[str] = []
    schemas: list[Schema] = []
    for parts in alternatives:
        text = _text(parts, read_as, param)
        if text is not None and text not in texts:
            texts.append(text)
        rest = _without_strings(parts)
        if rest is not None and rest not in schemas:
            schemas.append(rest)
    return ArgumentValue(texts=tuple(texts), schemas=() if read_as == _STRINGS else tuple(schemas))


class _Alternatives:
    """Takes one schema apart; what that may cost is bounded."""

    def __init__(self, root: Schema, param: str) -> None:
        self._root = root
        self._param = param
        self._visited = 0

    def of(self, schema: object, path: tuple[str, ...] = ()) -> list[tuple[Schema, ...]]:
        """The alternatives, each the plain schemas that all hold; `path` are the references that led here."""
        self._visited += 1
        if self._visited > _MAX_VISITED or len(path) > _MAX_REFERENCES:
            raise refused(self._param, "the anyOf, allOf and $ref of an argument lead too far")
        if schema is False:
            return []
        if not isinstance(schema, Mapping):
            return [()]
        plain = {name: entry for name, entry in schema.items() if name not in _NESTED and name not in _APART}
        result: list[tuple[Schema, ...]] = [(plain,)] if plain else [()]
        if "$ref" in schema:
            target = resolve(schema["$ref"], self._root, self._param)
            result = self._joined(result, self.of(target, (*path, str(schema["$ref"]))))
        for member in _members(schema, "allOf"):
            result = self._joined(result, self.of(member, path))
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                options = [found for entry in _members(schema, keyword) for found in self.of(entry, path)]
                result = self._joined(result, options)
        return result

    def _joined(self, left: list[tuple[Schema, ...]], right: list[tuple[Schema, ...]]) -> list[tuple[Schema, ...]]:
        longest = max(map(len, left), default=0) + max(map(len, right), default=0)
        if len(left) * len(right) > _MAX_ALTERNATIVES or longest > _MAX_ALTERNATIVES:
            raise refused(self._param, f"an argument's anyOf and allOf make more than {_MAX_ALTERNATIVES} combinations")
        return [(*first, *second) for first, second in product(left, right)]


def _members(schema: Schema, keyword: str) -> Sequence[object]:
    members = schema.get(keyword)
    return members if isinstance(members, list) else ()


def _types(part: Schema) -> tuple[str, ...] | None:
    declared = part.get("type")
    if isinstance(declared, str):
        return (declared,)
    return tuple(map(str, declared)) if isinstance(declared, list) else None


def _choices(part: Schema) -> list[object] | None:
    if "const" in part:
        return [part["const"]]
    listed = part.get("enum")
    return listed if isinstance(listed, list) else None


def _text(parts: tuple[Schema, ...], read_as: frozenset[str] | None, param: str) -> str | None:
    """The terminal expression for strings that follow all the parts; None where none can."""
    conditions: list[str] = []
    for part in parts:
        types, choices = _types(part), _choices(part)
        if types is not None and "string" not in types:
            return None
        if choices is not None:
            literals = [literal for literal in choices if isinstance(literal, str) and not _is_json(literal, read_as)]
            if not literals:
                return None
            conditions.append("(" + " | ".join(json.dumps(literal, ensure_ascii=False) for literal in literals) + ")")
        conditions += _string_conditions(part, param)
    if not any(_choices(part) for part in parts):
        conditions += _unlike_json(read_as)
    return " & ".join(conditions) if conditions else ANY


def _string_conditions(part: Schema, param: str) -> list[str]:
    conditions: list[str] = []
    least, most = part.get("minLength"), part.get("maxLength")
    if isinstance(least, int) or isinstance(most, int):
        low = least if isinstance(least, int) else 0
        if isinstance(most, int) and most < low:
            raise refused(param, f"minLength {low} is more than maxLength {most}")
        conditions.append(f"/(?s:.){{{low},{most if isinstance(most, int) else ''}}}/")
    if isinstance(part.get("pattern"), str):
        conditions.append(pattern_terminal(str(part["pattern"]), param))
    if str(part.get("format")) in _FORMATS:
        conditions.append(_FORMATS[str(part["format"])])
    return conditions


def _unlike_json(read_as: frozenset[str] | None) -> list[str]:
    if read_as == _STRINGS:
        return []
    names = [name for name in _OTHER_TYPES if read_as is None or name in read_as]
    looks = "|".join(sorted({_LOOKS_LIKE[name] for name in names}))
    return [ANY, f"~/{_BLANK}({looks}){_BLANK}/"] if looks else []


def _is_json(literal: str, read_as: frozenset[str] | None) -> bool:
    """Whether the reader would take the text for another value."""
    return read_as != _STRINGS and json.loads(value_json(literal, read_as)) != literal


def _without_strings(parts: tuple[Schema, ...]) -> Schema | None:
    """A schema for the values that follow all the parts and are no strings; None where there are none."""
    narrowed: list[Schema] = []
    for part in parts:
        types, choices = _types(part), _choices(part)
        kept = tuple(name for name in (types or _OTHER_TYPES) if name != "string")
        if not kept:
            return None
        copy = dict(part)
        if choices is not None:
            others = [choice for choice in choices if not isinstance(choice, str)]
            if not others:
                return None
            copy.pop("const", None)
            copy["enum"] = others
        if types is not None or choices is None:
            copy["type"] = kept[0] if len(kept) == 1 else list(kept)
        narrowed.append(copy)
    if not narrowed:
        return {"type": list(_OTHER_TYPES)}
    return narrowed[0] if len(narrowed) == 1 else {"allOf": narrowed}
