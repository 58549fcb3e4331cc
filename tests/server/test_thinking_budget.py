"""A budget of thinking that is not the one that the client or the server's option named."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launcher.errors import RequestError
from launcher.server.planning import plan_chat
from launcher.server.protocol.decode import decode_chat
from launcher.server.request import GenerationRequest
from tests.support.served_model import SPECIAL, served_model

CLOSE = 256 + SPECIAL.index("</think>")
NAMES = ("thinking_budget", "thinking_budget_tokens", "reasoning_budget_tokens", "thinking_token_budget")


def plan(default: int | None = None, **fields: Any) -> GenerationRequest:
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode()
    served = served_model(thinking_budget=default)
    return plan_chat(served, decode_chat(body), owner="", header_session=None, id="chatcmpl-1")


def given(budget: int) -> list[dict[str, Any]]:
    """The budget in each of the fields that clients have for it."""
    nested = [{"thinking": {"type": "enabled", "budget_tokens": budget}}, {"reasoning": {"max_tokens": budget}}]
    return [*({name: budget} for name in NAMES), *nested]


@pytest.mark.parametrize("budget", [0, 1, 7, (1 << 31) - 1])
@pytest.mark.parametrize("default", [None, 5])
def test_every_name_means_the_same(budget: int, default: int | None) -> None:
    for fields in given(budget):
        request = plan(default, **fields)
        assert (request.thinking_budget, request.thinking_end, request.reasoning) == (budget, (CLOSE,), True), fields


def test_without_one_the_option_counts_and_minus_one_lifts_it() -> None:
    assert plan().thinking_budget is None
    assert plan(5).thinking_budget == 5
    assert plan(0).thinking_budget == 0
    for fields in given(-1):
        assert plan(5, **fields).thinking_budget is None
    assert plan(5, thinking_budget=None, reasoning=None, thinking={"type": "enabled"}).thinking_budget == 5


def test_names_may_agree_and_must_not_contradict() -> None:
    assert plan(thinking_budget=3, reasoning={"max_tokens": 3}, thinking_token_budget=3).thinking_budget == 3
    for last in ({"thinking_token_budget": 4}, {"reasoning": {"max_tokens": -1}}, {"reasoning": {"max_tokens": 0}}):
        for more in ({}, {"enable_thinking": False}):
            with pytest.raises(RequestError, match=r"thinking_budget and .* contradict") as caught:
                plan(thinking_budget=3, **last, **more)
            assert caught.value.status == 400
            assert str(caught.value.param).startswith(next(iter(last)))


def test_no_thinking_at_once_is_not_a_prompt_without_thinking() -> None:
    """The prompt stays that of a reply that thinks, so that what is cached of the conversation still fits."""
    assert plan(thinking_budget=0).prompt == plan().prompt != plan(enable_thinking=False).prompt


def test_a_budget_does_not_switch_thinking_on() -> None:
    request = plan(enable_thinking=False, thinking_budget=9)
    assert (request.reasoning, request.thinking_end) == (False, ())


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({"reasoning": {}}, True),
        ({"reasoning": {"enabled": False}}, False),
        ({"reasoning": {"effort": "none"}}, False),
        ({"reasoning": {"effort": "low"}}, True),
        ({"reasoning": {"effort": "none", "enabled": True}}, True),
        ({"reasoning": {"enabled": True}, "reasoning_effort": "none"}, True),
    ],
)
def test_the_object_for_reasoning_switches_as_the_other_fields_do(fields: dict[str, Any], thinking: bool) -> None:
    assert plan(**fields).reasoning is thinking


def test_switches_that_contradict_are_told() -> None:
    with pytest.raises(RequestError, match=r"enable_thinking and reasoning\.enabled contradict"):
        plan(enable_thinking=True, reasoning={"enabled": False})
