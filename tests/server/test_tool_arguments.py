"""A tool's schema that ends the process's stack or keeps a thread busy for ever, or whose types are not found."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.server.tool_arguments import argument_types


def chain(length: int) -> dict[str, Any]:
    """Parameters whose one property leads to its type by so many references."""
    steps: dict[str, Any] = {f"s{step}": {"$ref": f"#/$defs/s{step + 1}"} for step in range(length)}
    steps[f"s{length}"] = {"type": "integer"}
    return {"properties": {"a": {"$ref": "#/$defs/s0"}}, "$defs": steps}


def nested(keyword: str, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {keyword: [schema]}
    return {"properties": {"a": schema}}


def test_references_are_followed() -> None:
    assert argument_types(chain(20), "a") == {"integer"}


@pytest.mark.parametrize(
    "parameters",
    [chain(5000), nested("anyOf", 400), nested("allOf", 400), {"$ref": "#"}],
    ids=["chain", "anyOf", "allOf", "loop at the root"],
)
def test_what_leads_too_far_tells_no_type(parameters: dict[str, Any]) -> None:
    assert argument_types(parameters, "a") is None


def test_work_that_doubles_with_each_step_is_given_up() -> None:
    steps: dict[str, Any] = {f"s{n}": {"anyOf": [{"$ref": f"#/$defs/s{n + 1}"}] * 2} for n in range(30)}
    steps["s30"] = {"type": "integer"}
    assert argument_types({"properties": {"a": {"$ref": "#/$defs/s0"}}, "$defs": steps}, "a") is None


def test_parameters_may_be_a_reference() -> None:
    arguments = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "null"}}
    parameters = {"$ref": "#/$defs/first", "$defs": {"first": {"$ref": "#/$defs/second"}, "second": arguments}}
    assert argument_types(parameters, "a") == {"integer"}
    assert argument_types(parameters, "b") == {"null"}


def test_a_type_that_stands_twice_is_one() -> None:
    both = [{"$ref": "#/$defs/n"}, {"$ref": "#/$defs/n"}]
    for keyword in ("anyOf", "allOf"):
        assert argument_types({"properties": {"a": {keyword: both}}, "$defs": {"n": {"type": "integer"}}}, "a") == {
            "integer"
        }
