"""Catches a mask that lets a wrong token through or bars a right one, and replies that do not follow their schema."""

from __future__ import annotations

import json
import random
import threading

import pytest
from jsonschema import Draft202012Validator

from launcher.errors import InternalError
from launcher.server.constraint import GrammarConstraint, GrammarFactory
from launcher.server.grammar import MARKS, CallReply, JsonReply
from launcher.server.request import Tool
from tests.support.constrained import accepts, allowed_ids, demo_factory, demo_package, random_reply

TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
            },
            "required": ["value"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
SCHEMAS: dict[str, dict[str, object]] = {
    "any object": {"type": "object"},
    "anything": {},
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "several types": {"type": ["integer", "null", "boolean"]},
    "text": {"type": "string", "maxLength": 20},
    "text of a length": {"type": "string", "minLength": 3, "maxLength": 5},
    "pattern": {"type": "string", "pattern": "^[a-c]{2}-\\d{1,3}$"},
    "pattern found inside": {"type": "string", "pattern": "[0-9]{2}", "maxLength": 12},
    "enum": {"enum": ["red", "green", 3, None, {"a": [1]}]},
    "const": {"const": {"kind": "x", "list": [1, 2.5, "é"]}},
    "integer in a range": {"type": "integer", "minimum": -3, "maximum": 117},
    "number in a range": {"type": "number", "exclusiveMinimum": 0.5, "maximum": 2.25},
    "multiple": {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 1000},
    "array": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "string", "maxLength": 4}],
        "items": False,
        "minItems": 2,
    },
    "nested": {
        "type": "object",
        "properties": {
            "person": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer", "minimum": 0}},
                "required": ["name"],
                "additionalProperties": False,
            },
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        },
        "required": ["person", "tags"],
        "additionalProperties": False,
    },
    "names of all kinds": {
        "type": "object",
        "properties": {"größe": {"type": "integer"}, "颜色": {"type": "boolean"}, 'a "b"\\\n😀': {"type": "null"}},
        "required": ["größe", "颜色", 'a "b"\\\n😀'],
        "additionalProperties": False,
    },
    "further properties": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "additionalProperties": {"type": "boolean"},
    },
    "anyOf": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}, "maxItems": 2}]},
    "oneOf": {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "boolean"}]},
    "allOf": {"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 9}]},
    "recursive": TREE,
    "reference to a property": {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 4}, "b": {"$ref": "#/properties/a"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "an unknown format": {"type": "string", "format": "int32", "maxLength": 4},
    "published elsewhere": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "https://example.com/thing.json",
        "title": "Thing",
        "description": "d" * 6000,
        "definitions": {"n": {"type": "integer"}},
        "type": "object",
        "properties": {"n": {"$ref": "#/definitions/n"}},
        "required": ["n"],
    },
}
SENTENCE = Tool(
    name="say",
    parameters={
        "type": "object",
        "properties": {"text": {"type": "string"}, "times": {"type": "integer"}},
        "required": ["text"],
    },
)


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("reasoning", [False, True], ids=["direct", "thinking"])
def test_random_replies_follow_the_schema(name: str, reasoning: bool) -> None:
    schema = SCHEMAS[name]
    validator = Draft202012Validator(schema)
    new_constraint = demo_factory().constraint(JsonReply(schema=schema), reasoning=reasoning)
    for seed in range(6):
        reply = random_reply(new_constraint, demo_package(), seed)
        if reasoning:
            thinking, _, reply = reply.partition("</think>")
            assert "<tool_call>" not in thinking
            assert "<|role_end|>" not in thinking
            reply = reply.lstrip("\n")
        assert reply == reply.strip(), "blanks around the value"
        validator.validate(json.loads(reply))


def test_json_object_mode_gives_objects_only() -> None:
    new_constraint = demo_factory().constraint(JsonReply(schema=None), reasoning=False)
    for seed in range(8):
        assert isinstance(json.loads(random_reply(new_constraint, demo_package(), seed)), dict)
    assert not accepts(new_constraint(), demo_package(), "[1]")


def test_blanks_cannot_go_on_for_ever() -> None:
    new_constraint = demo_factory().constraint(JsonReply(schema={"type": "object"}), reasoning=False)
    package = demo_package()
    for text in ('{"a": 1, "b": 2}', '{"a":1,"b":2}'):
        assert accepts(new_constraint(), package, text)
    for text in ('{ "a": 1}', '{"a":  1}', '{"a": 1,  "b": 2}', '{"a": 1}\n', '\n{"a": 1}'):
        assert not accepts(new_constraint(), package, text)


def _walk(factory: GrammarFactory, wanted: JsonReply | CallReply, seed: int, steps: int) -> GrammarConstraint:
    """A constraint some random steps into a reply."""
    rng = random.Random(seed)
    constraint = factory.constraint(wanted, reasoning=bool(seed % 2))()
    assert isinstance(constraint, GrammarConstraint)
    for _ in range(steps):
        going_on = [token for token in allowed_ids(constraint) if token not in demo_package().config.stop_ids]
        marks = [token for token in going_on if demo_package().token_bytes(token).startswith(b"<")]
        if not going_on:
            break
        constraint.advance(rng.choice(marks if marks and rng.random() < 0.4 else going_on))
    return constraint


WANTED = [
    JsonReply(schema=SCHEMAS["nested"]),
    JsonReply(schema=SCHEMAS["pattern found inside"]),
    JsonReply(schema=None),
    CallReply(tools=(SENTENCE,), name=None, parallel=True),
]


@pytest.mark.parametrize("steps", [1, 8, 23])
@pytest.mark.parametrize("wanted", range(len(WANTED)))
def test_mask_agrees_with_trying_every_token_byte_by_byte(wanted: int, steps: int) -> None:
    package = demo_package()
    config = package.config
    marks = {package.token_find(mark.encode()) for mark in MARKS}
    byte_tokens = [package.token_find(bytes([byte])) for byte in range(256)]
    constraint = _walk(demo_factory(), WANTED[wanted], wanted + steps, steps)
    allowed = set(allowed_ids(constraint))
    tried = set()
    for token in range(config.token_count):
        copy = constraint._matcher.deep_copy()
        whole = token in marks or package.token_is_special(token)
        spelled = [token] if whole else [byte_tokens[byte] for byte in package.token_bytes(token)]
        own = [config.stop_ids[0] if entry in config.stop_ids else entry for entry in spelled]
        if all(entry is not None and copy.consume_token(entry) for entry in own):
            tried.add(token)
    # Where the text is settled, only the tokens that the tokenizer would make of it are allowed.
    assert allowed == tried if len(allowed) != 1 else allowed <= tried


@pytest.mark.parametrize("wanted", range(len(WANTED)))
def test_rows_beyond_the_real_tokens_are_never_allowed(wanted: int) -> None:
    config = demo_package().config
    assert config.vocab_size > config.token_count
    for steps in (0, 1, 4, 9, 16, 25):
        assert max(allowed_ids(_walk(demo_factory(), WANTED[wanted], steps, steps))) < config.token_count


def test_stop_ids_are_allowed_exactly_where_the_reply_may_end() -> None:
    package = demo_package()
    stops = set(package.config.stop_ids)
    assert len(stops) > 1
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
    constraint = demo_factory().constraint(JsonReply(schema=schema), reasoning=False)()
    text = b""
    for token in package.tokenize("[12, 3]"):
        assert not stops & set(allowed_ids(constraint)), text
        assert not constraint.is_finished
        constraint.advance(token)
        text += package.token_bytes(token)
    assert set(allowed_ids(constraint)) == stops
    assert constraint.is_finished


@pytest.mark.parametrize("stop", [0, 1])
def test_every_stop_id_ends_a_reply(stop: int) -> None:
    package = demo_package()
    constraint = demo_factory().constraint(JsonReply(schema={"type": "integer"}), reasoning=False)()
    constraint.advance(package.tokenize("7")[0])
    assert not constraint.is_finished, "more digits may follow"
    constraint.advance(package.config.stop_ids[stop])
    assert constraint.is_finished


def test_a_token_that_does_not_fit_is_an_internal_error() -> None:
    constraint = demo_factory().constraint(JsonReply(schema=None), reasoning=False)()
    allowed_ids(constraint)
    with pytest.raises(InternalError, match="does not fit the grammar"):
        constraint.advance(demo_package().tokenize("x")[0])


def test_choices_of_one_request_do_not_touch_each_other() -> None:
    package = demo_package()
    new_constraint = demo_factory().constraint(JsonReply(schema=SCHEMAS["nested"]), reasoning=False)
    first, second = new_constraint(), new_constraint()
    start = allowed_ids(second)
    for token in package.tokenize('{"person"'):
        first.advance(token)
    assert allowed_ids(second) == start
    assert allowed_ids(first) != start
    assert allowed_ids(new_constraint()) == start


def test_many_threads_may_ask_first() -> None:
    factory = GrammarFactory(demo_package())
    replies: list[str] = []

    def ask(seed: int) -> None:
        new_constraint = factory.constraint(JsonReply(schema=SCHEMAS["enum"]), reasoning=False)
        replies.append(random_reply(new_constraint, demo_package(), seed))

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(replies) == 8
    for reply in replies:
        Draft202012Validator(SCHEMAS["enum"]).validate(json.loads(reply))


def test_text_never_spells_what_would_end_it() -> None:
    """The reader of a reply looks for marks in the text, however it is divided into tokens."""
    package = demo_package()
    new_constraint = demo_factory().constraint(JsonReply(schema={"type": "integer"}), reasoning=True)
    for mark in ("</think>", "<tool_call>", "<|role_end|>"):
        constraint = new_constraint()
        spelled = package.tokenize(mark, special=False)
        pieces = [package.token_find(bytes([byte])) for byte in mark.encode()]
        for token in spelled if len(spelled) > 1 else pieces:
            assert token is not None
            if token not in allowed_ids(constraint):
                break
            constraint.advance(token)
        else:
            pytest.fail(f"{mark} was spelled")


def test_the_mask_is_one_buffer_of_whole_words() -> None:
    constraint = demo_factory().constraint(JsonReply(schema=None), reasoning=False)()
    view = memoryview(constraint.allowed())  # type: ignore[arg-type]
    assert not view.readonly
    assert view.itemsize == 4
    assert view.nbytes == 4 * ((demo_package().config.vocab_size + 31) // 32)
