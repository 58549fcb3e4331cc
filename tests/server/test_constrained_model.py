"""Catches a constraint that the model cannot live with: one that leaves it without an end, or fights its tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from jsonschema import Draft202012Validator

from launcher.engine import Engine, Session
from launcher.engine_types import EngineOptions, SessionOptions
from launcher.server.grammar import CallReply, JsonReply
from launcher.server.request import Constraint, Tool
from tests.support.constrained import allowed_ids, demo_factory, demo_package, text_of

CONTEXT = 1024
SYSTEM = "<role>SYSTEM</role>detailed thinking {}<|role_end|>"
ASK = "<role>HUMAN</role>{}<|role_end|><role>ASSISTANT</role>\n<think>"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "likes": {"type": "array", "items": {"enum": ["tea", "chess", "music"]}, "maxItems": 3},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
LOOKUP = Tool(
    name="lookup",
    parameters={
        "type": "object",
        "properties": {"word": {"type": "string", "maxLength": 40}, "count": {"type": "integer", "maximum": 99}},
        "required": ["word", "count"],
    },
)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with (
        Engine(demo_package(), EngineOptions(threads=1)) as engine,
        Session(engine, SessionOptions(context=CONTEXT)) as opened,
    ):
        yield opened


def _likeliest_reply(session: Session, prompt: str, new_constraint: Callable[[], Constraint], most: int) -> str | None:
    """The greedy reply under the constraint; None where it has no end in `most` tokens."""
    session.reset()
    package = demo_package()
    constraint = new_constraint()
    pending = package.tokenize(prompt)
    reply: list[int] = []
    while len(reply) < most:
        session.eval(pending)
        logits = session.logits()
        token = max(allowed_ids(constraint), key=logits.__getitem__)
        constraint.advance(token)
        if token in package.config.stop_ids:
            return text_of(package, reply)
        reply.append(token)
        pending = [token]
    return None


@pytest.mark.parametrize("question", ["Who are you?", "1 + 1 = ?", "你好"])
def test_the_model_answers_in_json(session: Session, question: str) -> None:
    new_constraint = demo_factory().constraint(JsonReply(schema=PERSON), reasoning=False)
    prompt = SYSTEM.format("off") + ASK.format(question) + "</think>"
    reply = _likeliest_reply(session, prompt, new_constraint, 200)
    assert reply is not None
    Draft202012Validator(PERSON).validate(json.loads(reply))


def test_the_model_thinks_first(session: Session) -> None:
    new_constraint = demo_factory().constraint(JsonReply(schema=PERSON), reasoning=True)
    reply = _likeliest_reply(session, SYSTEM.format("on") + ASK.format("What is 2 + 3?"), new_constraint, 700)
    assert reply is not None
    thinking, closed, answer = reply.partition("</think>")
    assert thinking.strip()
    assert closed
    Draft202012Validator(PERSON).validate(json.loads(answer))


@pytest.mark.parametrize("question", ["Who are you?", "你好"])
def test_the_model_calls_a_function(session: Session, question: str) -> None:
    wanted = CallReply(tools=(LOOKUP,), name="lookup", parallel=False)
    new_constraint = demo_factory().constraint(wanted, reasoning=False)
    prompt = SYSTEM.format("off") + ASK.format(question) + "</think>"
    reply = _likeliest_reply(session, prompt, new_constraint, 200)
    assert reply is not None
    assert reply.startswith("<tool_call>lookup\n<arg_key>word</arg_key>")
    assert reply.endswith("</tool_call>")
