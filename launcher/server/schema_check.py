"""Looks a client's JSON Schema over before a grammar is made of it: its size, what it leans on, what it cannot mean.

The grammar library refuses the keywords that it does not know. What is checked here is what it would take too long
over, or would only find out in the middle of a reply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import unquote

from launcher.errors import RequestError

Schema = Mapping[str, object]

MAX_DEPTH: Final = 64
MAX_TOTAL_DEPTH: Final = 3_000  # of the schema and of everything that it refers to
MAX_NODES: Final = 20_000
MAX_CHARACTERS: Final = 262_144
MAX_STRING: Final = 4_096
MAX_PROPERTIES: Final = 500
MAX_COUNT: Final = 10_000
MAX_LENGTH: Final = 16_384

_COUNTS: Final = ("minItems", "maxItems", "minProperties", "maxProperties")
_LENGTHS: Final = ("minLength", "maxLength")
_ROOT: Final = "#/$defs/root"
_DATA: Final = ("const", "enum", "default", "examples", "example")
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_ANNOTATIONS: Final = ("default", "examples", "example", "description", "title", "$comment")
# The other formats say what a string is for; JSON Schema leaves it open whether one is checked.
FORMATS: Final = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"},
)


def refused(param: str, reason: str) -> RequestError:
    """The error for a schema that cannot be served."""
    return RequestError("invalid_json_schema", f"this schema cannot be served: {reason}", param=param)


def checked(schema: Schema, param: str) -> dict[str, object]:
    """A copy without annotations.

    Raises:
        RequestError: too large, or no value that ends can follow it; `param` says where it stands in the request.
    """
    _measure(schema, param)
    _measure_references(schema, param)
    _refuse_endless(schema, param)
    copy = _copy(schema, "#")
    copy.pop("$id", None)  # references mean this document, wherever it was published
    return copy


class Part:
    """Makes schemas that were parts of a document stand alone."""

    def __init__(self, root: Schema) -> None:
        """`root`: the document, `checked`."""
        refers_to_parts = any(
            not str(entry.get("$ref", "#/$defs/")).startswith(("#/$defs/", "#/definitions/"))
            for entry in _subschemas(root)
        )
        kept = root if refers_to_parts else {name: root[name] for name in ("$defs", "definitions") if name in root}
        self._root = _copy(kept, _ROOT)

    def alone(self, schema: Schema) -> Schema:
        """The same schema with what it refers to."""
        copy = _copy(schema, _ROOT)
        copy.pop("definitions", None)
        copy["$defs"] = {"root": self._root}
        return copy if any("$ref" in entry for entry in _subschemas(schema)) else schema


def resolve(reference: object, root: Schema, param: str) -> object:
    """What a reference within the document (RFC 6901) names.

    Raises:
        RequestError: it leads nowhere, or out of the document.
    """
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise refused(param, f"$ref {_short(reference)} is not a reference within the schema (#/...)")
    place: object = root
    for name in unquote(reference).split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(place, Mapping) and name in place:
            place = place[name]
        elif isinstance(place, list) and name.isdecimal() and int(name) < len(place):
            place = place[int(name)]
        else:
            raise refused(param, f"$ref {_short(reference)} leads nowhere")
    return place


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:100] + "..."


def _measure(schema: Schema, param: str) -> None:
    nodes = characters = 0
    waiting: list[tuple[object, int]] = [(schema, 1)]
    while waiting:
        value, depth = waiting.pop()
        nodes += 1
        if nodes > MAX_NODES:
            raise refused(param, f"it has more than {MAX_NODES} values")
        if depth > MAX_DEPTH:
            raise refused(param, f"it is nested more than {MAX_DEPTH} deep")
        if isinstance(value, Mapping):
            _measure_object(value, param)
            characters += sum(len(name) for name in value)
            # Descriptions may be long; they are left out of the grammar.
            waiting += [(entry, depth + 1) for name, entry in value.items() if not _is_text(name, entry)]
        elif isinstance(value, list):
            waiting += [(entry, depth + 1) for entry in value]
        elif isinstance(value, str):
            characters += len(value)
            if len(value) > MAX_STRING:
                raise refused(param, f"it has a string of {len(value)} characters, more than {MAX_STRING}")
        if characters > MAX_CHARACTERS:
            raise refused(param, f"it has more than {MAX_CHARACTERS} characters")


def _measure_object(value: Schema, param: str) -> None:
    for keywords, most in ((_COUNTS, MAX_COUNT), (_LENGTHS, MAX_LENGTH)):
        for keyword in keywords:
            bound = value.get(keyword)
            if isinstance(bound, int | float) and bound > most:
                raise refused(param, f"{keyword} {bound} is more than {most}")
    properties = value.get("properties")
    if isinstance(properties, Mapping) and len(properties) > MAX_PROPERTIES:
        raise refused(param, f"it has an object of {len(properties)} properties, more than {MAX_PROPERTIES}")
    longest = max((len(name) for name in value), default=0)
    if longest > MAX_STRING:
        raise refused(param, f"it has a name of {longest} characters, more than {MAX_STRING}")


def _measure_references(schema: Schema, param: str) -> None:
    """What a chain of references adds up to; `_measure` has bounded each link."""
    heights: dict[int, int] = {}
    total = _height(schema, heights)
    references = {str(entry["$ref"]) for entry in _subschemas(schema) if isinstance(entry.get("$ref"), str)}
    for reference in references:
        total += _height(resolve(reference, schema, param), heights)
    if total > MAX_TOTAL_DEPTH:
        raise refused(param, f"with what it refers to it is nested more than {MAX_TOTAL_DEPTH} deep")


def _height(value: object, known: dict[int, int]) -> int:
    if not isinstance(value, Mapping | list):
        return 0
    if id(value) not in known:
        entries = value.values() if isinstance(value, Mapping) else value
        known[id(value)] = 1 + max((_height(entry, known) for entry in entries), default=0)
    return known[id(value)]


def _is_text(name: str, entry: object) -> bool:
    return name in ("description", "title", "$comment") and isinstance(entry, str)


def _copy(schema: Schema, prefix: str) -> dict[str, object]:
    """Without annotations; local references begin with `prefix`."""
    result: dict[str, object] = {}
    for name, entry in schema.items():
        if name in ("const", "enum"):
            result[name] = entry
        elif name == "x-guidance" or (name in _ANNOTATIONS and not isinstance(entry, Mapping)):
            continue  # the first are options of the library, which are not the client's to set
        elif name == "format" and isinstance(entry, str) and entry not in FORMATS:
            continue
        elif name == "$ref" and isinstance(entry, str) and entry.startswith("#"):
            result[name] = prefix + entry[1:]
        elif name in _NAMED and isinstance(entry, Mapping):
            result[name] = {key: _copy_any(value, prefix) for key, value in entry.items()}
        else:
            result[name] = _copy_any(entry, prefix)
    return result


def _copy_any(value: object, prefix: str) -> object:
    if isinstance(value, Mapping):
        return _copy(value, prefix)
    if isinstance(value, list):
        return [_copy_any(entry, prefix) for entry in value]
    return value


def _refuse_endless(schema: Schema, param: str) -> None:
    """Refuses a schema in which some value must hold, or be, another one like it without end."""
    done: set[int] = set()
    for start in _subschemas(schema):
        path: set[int] = set()
        stack: list[tuple[Schema, Iterator[Schema]]] = []
        if id(start) not in done:
            stack.append((start, _musts(start, schema, param)))
            path.add(id(start))
        while stack:
            current, musts = stack[-1]
            following = next(musts, None)
            if following is None:
                stack.pop()
                path.discard(id(current))
                done.add(id(current))
            elif id(following) in path:
                raise refused(param, "it leads back to itself without a way to end")
            elif id(following) not in done:
                path.add(id(following))
                stack.append((following, _musts(following, schema, param)))


def _subschemas(schema: Schema) -> Iterator[Schema]:
    waiting: list[object] = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, Mapping):
            yield value
            for name, entry in value.items():
                if name in _NAMED and isinstance(entry, Mapping):
                    waiting += entry.values()
                elif name not in _DATA:
                    waiting.append(entry)


def _musts(schema: Schema, root: Schema, param: str) -> Iterator[Schema]:
    """The schemas that a value, or a part that it must have, follows too."""
    entries: list[object] = []
    if isinstance(schema.get("$ref"), str):
        entries.append(resolve(schema["$ref"], root, param))
    for keyword in ("allOf", "anyOf", "oneOf"):
        members = schema.get(keyword)
        if isinstance(members, list) and (keyword == "allOf" or len(members) == 1):
            entries += members
    properties, required = schema.get("properties"), schema.get("required")
    if schema.get("type") == "object" and isinstance(properties, Mapping) and isinstance(required, list):
        entries += [properties[name] for name in required if isinstance(name, str) and name in properties]
    least = schema.get("minItems")
    if schema.get("type") == "array" and isinstance(least, int) and least > 0:
        first = schema.get("prefixItems")
        ahead: list[object] = first if isinstance(first, list) else []
        entries += ahead[:least]
        if least > len(ahead):
            entries.append(schema.get("items"))
    return (entry for entry in entries if isinstance(entry, Mapping))
