"""Schemas that are made to cost too much, and a process that tries them."""

from __future__ import annotations

import json
import random

from launcher.errors import RequestError
from launcher.server.grammar import CallReply, JsonReply
from launcher.server.request import Tool
from tests.support.constrained import allowed_ids, demo_factory, demo_package

Schema = dict[str, object]


def _nested(depth: int) -> Schema:
    schema: Schema = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def _chain(count: int, step: object, first: Schema) -> Schema:
    """Definitions of which each names the one before twice."""
    definitions = {"d0": first}
    for number in range(count):
        reference = {"$ref": f"#/$defs/d{number}"}
        definitions[f"d{number + 1}"] = step(reference)  # type: ignore[operator]
    return {"$defs": definitions, "$ref": f"#/$defs/d{count}"}


def _twice(name: str) -> object:
    return lambda reference: {name: [reference, reference]}


def _pair(reference: Schema) -> Schema:
    return {"type": "object", "properties": {"a": reference, "b": reference}, "required": ["a", "b"]}


def _object(reference: Schema) -> Schema:
    return {"type": "object", "properties": {"a": reference}}


def _choices(groups: int) -> Schema:
    return {
        "allOf": [
            {"anyOf": [{"type": "object", "properties": {f"p{group}_{n}": {"type": "string"}}} for n in range(4)]}
            for group in range(groups)
        ]
    }


HOSTILE: dict[str, Schema] = {
    "deep": _nested(60),
    "too deep": _nested(5_000),
    "many items": {"type": "array", "items": {"type": "integer"}, "minItems": 10_000},
    "too many items": {"type": "array", "maxItems": 10**12},
    "items of items": {
        "type": "array",
        "maxItems": 9_000,
        "items": {"type": "array", "maxItems": 9_000, "minItems": 900},
    },
    "long text": {"type": "string", "minLength": 16_000},
    "long pattern": {"type": "string", "pattern": "|".join(f"w{n}" for n in range(700))},
    "counted pattern": {"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"},
    "ambiguous pattern": {"type": "string", "pattern": "(a|b)*a(a|b){400}c"},
    "overlapping pattern": {"type": "string", "pattern": "^(([a-z]+)+)+[0-9]{1,500}(x|y|xy){1,500}$"},
    "letters": {"type": "string", "pattern": "^\\p{L}{1,1000}\\w{1,1000}$"},
    "nested pattern": {"type": "string", "pattern": "(" * 900 + "a" + ")" * 900},
    "pattern and length": {"type": "string", "pattern": "(a.*b.*){20}", "minLength": 100, "maxLength": 9_000},
    "large enum": {"enum": [f"value number {n}" for n in range(9_000)]},
    "long names": {"type": "object", "properties": {"n" * 4_000 + str(n): {} for n in range(60)}},
    "many properties": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(500)}},
    "too many properties": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(9_000)}},
    "objects that double": _chain(40, _pair, {"type": "integer"}),
    "anyOf that doubles": _chain(40, _twice("anyOf"), {"type": "integer"}),
    "anyOf of nothing that doubles": _chain(40, _twice("anyOf"), {"enum": []}),
    "allOf that doubles": _chain(40, _twice("allOf"), {"type": "object", "properties": {"x": {"type": "integer"}}}),
    "oneOf that doubles": _chain(40, _twice("oneOf"), {"type": "integer"}),
    "a chain of references": _chain(1_400, lambda reference: reference, {"type": "integer"}),
    "a chain of objects": _chain(700, _object, {"type": "integer"}),
    "a chain of choices": _chain(700, lambda reference: {"anyOf": [reference, {"type": "null"}]}, {"type": "integer"}),
    "a chain of conditions": _chain(700, lambda reference: {"allOf": [reference, {"minimum": 1}]}, {"type": "integer"}),
    "a chain too long": _chain(5_000, _object, {"type": "integer"}),
    "a loop of choices": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
    "a loop of all": {"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}, {"type": "object"}]}}, "$ref": "#/$defs/a"},
    "combinations": _choices(12),
    "some combinations": _choices(5),
    "multiples": {"type": "integer", "multipleOf": 987_654_321},
    "fine multiples": {"type": "number", "multipleOf": 1e-12},
    "a range of floats": {"type": "number", "minimum": 1e-300, "maximum": 1.7e308},
    "a huge integer": {"type": "integer", "minimum": 10**4_000},
    "a huge multiple": {"type": "integer", "multipleOf": 3, "minimum": 10**17, "maximum": 10**18},
    "counted properties": {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 10_000},
    "a lone surrogate": {"enum": ["\ud800"]},
    "wrong kinds": {"type": "object", "properties": [], "required": 5, "items": 7, "anyOf": {}, "minItems": "x"},
    "loops of references": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
}


def try_all(as_tool: bool) -> None:
    """Prints a line for each schema: its name and what came of it."""
    for name in HOSTILE:
        print(json.dumps([name, try_schema(name, as_tool)]), flush=True)


def try_schema(name: str, as_tool: bool) -> dict[str, str]:
    """Follows it for some random tokens, as the format of a reply or as the schema of an argument."""
    schema = HOSTILE[name]
    parameters = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/it"}},
        "required": ["a"],
        "$defs": {"it": schema},
    }
    if isinstance(schema.get("$defs"), dict):
        parameters = {**parameters, "$defs": {**schema["$defs"], "it": schema}}
    tool = Tool(name="f", parameters=parameters)
    wanted = CallReply(tools=(tool,), name=None, parallel=False) if as_tool else JsonReply(schema=schema)
    return _outcome(wanted)


def _outcome(wanted: CallReply | JsonReply) -> dict[str, str]:
    try:
        constraint = demo_factory().constraint(wanted, reasoning=False)()
    except RequestError as error:
        return {"result": "refused", "message": error.message}
    rng = random.Random(1)
    stops = demo_package().config.stop_ids
    try:
        for _ in range(200):
            allowed = allowed_ids(constraint)
            token = rng.choice(allowed)
            if token in stops:
                break
            constraint.advance(token)
    except RequestError as error:
        return {"result": "refused later", "message": error.message}
    return {"result": "served", "message": ""}
