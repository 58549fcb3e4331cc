"""Catches a schema that hangs the server, fills its memory, aborts the process, or is served as something else."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.errors import RequestError
from launcher.server.grammar import CallReply, EitherReply, JsonReply
from launcher.server.request import Tool
from tests.support.constrained import allowed_ids, demo_factory, random_reply
from tests.support.constrained import demo_package as package
from tests.support.hostile_schemas import HOSTILE

ROOT = Path(__file__).resolve().parents[2]
MEMORY = 3 * 1024**3
SECONDS = 240

REFUSED: list[tuple[object, str]] = [
    ({"not": {"type": "string"}}, "not"),
    ({"if": {"type": "string"}, "then": {"type": "null"}}, "if"),
    ({"type": "array", "contains": {"type": "null"}}, "contains"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "object", "propertyNames": {"pattern": "a"}}, "propertyNames"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf"),
    ({"type": "string", "pattern": "^(?=a)b"}, "look-around"),
    ({"type": "string", "pattern": "(a)\\1"}, "backreferences"),
    ({"type": "string", "pattern": "(("}, "unclosed group"),
    ({"$ref": "https://example.com/schema.json"}, "not a reference within the schema"),
    ({"$ref": "#/$defs/missing"}, "leads nowhere"),
    ({"$ref": "#"}, "without a way to end"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "without a way to end"),
    ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "without a way to end"),
    ({"type": "banana"}, "banana"),
    ({"type": 5}, "type"),
    ({"enum": []}, "anyOf is empty"),
    ({"type": "string", "minLength": 5, "maxLength": 3}, "minLength"),
    ({"type": "object", "required": ["a"], "properties": {"a": False}}, "'a'"),
    ({"type": "array", "maxItems": 10**9}, "maxItems 1000000000 is more than 10000"),
    ({"type": "string", "minLength": 10**9}, "minLength 1000000000 is more than 16384"),
    ({"enum": ["x" * 5000]}, "5000 characters"),
]
REFUSED_PARAMETERS: list[tuple[dict[str, object], str]] = [
    ({"type": "string"}, "string, not object"),
    ({"anyOf": [{"type": "object"}]}, "anyOf"),
    ({"type": "object", "patternProperties": {"a": {}}}, "patternProperties"),
    ({"type": "object", "properties": {"a": {"type": "string", "pattern": "a^b"}}}, "only its ends"),
    ({"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)b"}}}, "look-around"),
    ({"type": "object", "properties": {"a": {"not": {"type": "null"}, "type": "object"}}}, "not"),
    ({"type": "object", "properties": {"a</arg_key>b": {}}}, "cannot write the name"),
    ({"type": "object", "properties": {" a": {}}}, "cannot write the name"),
    ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "allows no such property"),
    ({"type": "object", "properties": {"a": {"enum": []}}, "required": ["a"]}, "no value follows the schema of 'a'"),
    ({"type": "object", "properties": {"a": {}}, "minProperties": 1}, "minProperties"),
    ({"type": "object", "properties": {"a": {}}, "required": "a"}, "required"),
]


@pytest.mark.parametrize(("schema", "names"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
def test_a_schema_that_cannot_be_served_is_refused_by_what_it_asks(schema: dict[str, object], names: str) -> None:
    for reasoning in (False, True):
        with pytest.raises(RequestError) as caught:
            demo_factory().constraint(JsonReply(schema=schema), reasoning=reasoning)
        assert names in caught.value.message
        assert "\n" not in caught.value.message
        assert caught.value.slug == "invalid_json_schema"
        assert caught.value.status == 400
        assert caught.value.param == "response_format.json_schema.schema"


def test_of_json_or_calls_the_one_that_cannot_be_served_is_named() -> None:
    good, bad = {"type": "object"}, {"type": "string", "pattern": "("}
    broken = {"type": "object", "properties": {"a": bad}}
    for schema, parameters, param in (
        (bad, good, "response_format.schema"),
        (good, broken, "tools[0].function.parameters"),
    ):
        wanted = EitherReply(
            json=JsonReply(schema=schema, param="response_format.schema"),
            calls=CallReply(tools=(Tool(name="f", parameters=parameters),), name=None, parallel=True),
        )
        with pytest.raises(RequestError) as caught:
            demo_factory().constraint(wanted, reasoning=True)
        assert (caught.value.param, caught.value.status) == (param, 400)


@pytest.mark.parametrize(
    ("parameters", "names"), REFUSED_PARAMETERS, ids=[str(number) for number in range(len(REFUSED_PARAMETERS))]
)
def test_the_tool_that_cannot_be_served_is_named(parameters: dict[str, object], names: str) -> None:
    tools = (Tool(name="fine", parameters={}), Tool(name="broken", parameters=parameters))
    with pytest.raises(RequestError) as caught:
        demo_factory().constraint(CallReply(tools=tools, name=None, parallel=True), reasoning=True)
    assert names in caught.value.message
    assert caught.value.slug == "invalid_json_schema"
    assert caught.value.param == "tools[1].function.parameters"


def test_a_broken_tool_does_not_matter_where_another_one_is_named() -> None:
    tools = (Tool(name="broken", parameters={"type": "string"}), Tool(name="fine", parameters={}))
    new_constraint = demo_factory().constraint(CallReply(tools=tools, name="fine", parallel=False), reasoning=False)
    assert random_reply(new_constraint, package(), 0).startswith("<tool_call>fine\n")


@pytest.fixture(scope="module", params=["reply", "tool"])
def outcomes(request: pytest.FixtureRequest) -> dict[str, dict[str, str]]:
    """What came of each hostile schema, up to the one that ended the process, if one did."""
    code = "import sys; from tests.support.hostile_schemas import try_all; try_all(sys.argv[1] == 'tool')"
    result = subprocess.run(
        [sys.executable, "-c", code, request.param],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=ROOT,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )
    return dict(json.loads(line) for line in result.stdout.splitlines())


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_end_in_bounded_time_and_memory(name: str, outcomes: dict[str, dict[str, str]]) -> None:
    """In a process of its own: served for some tokens or refused by a clear error, but neither hung nor aborted."""
    outcome = outcomes[name]
    assert outcome["result"] in ("served", "refused", "refused later")
    if outcome["result"] != "served":
        assert len(outcome["message"]) < 600


def test_options_of_the_library_are_not_the_clients() -> None:
    schema = {"type": "array", "items": {"type": "null"}, "x-guidance": {"whitespace_pattern": "[ ]*", "lenient": True}}
    constraint = demo_factory().constraint(JsonReply(schema=schema), reasoning=False)()
    constraint.advance(package().tokenize("[")[0])
    assert package().tokenize(" ")[0] not in allowed_ids(constraint)
    with pytest.raises(RequestError):
        demo_factory().constraint(JsonReply(schema={**schema, "uniqueItems": True}), reasoning=False)
