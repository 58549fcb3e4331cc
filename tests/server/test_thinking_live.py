"""A real model that thinks longer than it may, or answers otherwise than after a thinking that was as long."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openai import BadRequestError, OpenAI
from openai.types.chat import ChatCompletion

from tests.support.openai_client import LIST, LISTED, LONG, MODEL, joined, openai_client, user
from tests.support.server_process import RawStream, ServerProcess, eventually

THOUGHT = "I need 5 items."
SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["age"],
    "additionalProperties": False,
}
LOOKUP = {
    "type": "function",
    "function": {
        "name": "lookup",
        "parameters": {
            "type": "object",
            "properties": {"count": {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": ["count"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def client(live: ServerProcess) -> Iterator[OpenAI]:
    with openai_client(live) as opened:
        yield opened


SUM = "17+25=?"


def ask(client: OpenAI, text: str = LIST, *, budget: int | None = None, **more: Any) -> ChatCompletion:
    fields = {} if budget is None else {"extra_body": {"thinking_budget": budget}}
    settings: dict[str, Any] = {"model": MODEL, "messages": user(text), "temperature": 0, "seed": 7}
    return client.chat.completions.create(**(settings | fields | more))


def thought(reply: ChatCompletion) -> str:
    return reply.choices[0].message.reasoning_content or ""  # type: ignore[attr-defined]


def counts(reply: ChatCompletion) -> tuple[int, int, int]:
    """Tokens of the prompt, of the reply, and of its thinking."""
    usage = reply.usage
    assert usage is not None
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens is not None
    return usage.prompt_tokens, usage.completion_tokens, usage.completion_tokens_details.reasoning_tokens


def cached(reply: ChatCompletion) -> int:
    assert reply.usage is not None
    assert reply.usage.prompt_tokens_details is not None
    return reply.usage.prompt_tokens_details.cached_tokens or 0


def tokens(server: ServerProcess, text: str) -> list[int]:
    ids: list[int] = server.ask("POST", "/tokenize", {"content": text}).json()["tokens"]
    return ids


def endless(server: ServerProcess) -> dict[str, Any]:
    """What keeps the model thinking until it is told to end."""
    barred = [*tokens(server, "</think>"), *tokens(server, "<tool_call>")]
    return {**LONG, "logit_bias": {str(token): -100 for token in barred}}


def test_the_thinking_is_cut_and_the_answer_goes_on(live: ServerProcess, client: OpenAI) -> None:
    free = ask(client)
    assert (thought(free), free.choices[0].message.content) == (THOUGHT, LISTED)
    whole = len(tokens(live, THOUGHT))
    for budget in range(whole + 3):
        reply = ask(client, budget=budget)
        _, written, thinking = counts(reply)
        begun = thought(reply)
        assert THOUGHT.startswith(begun)
        assert thinking == min(budget, whole + 1)  # the model's own closing counts as thinking
        assert len(tokens(live, begun)) == min(budget, whole)
        answer = reply.choices[0].message.content or ""
        assert written == thinking + (budget <= whole) + len(tokens(live, answer))
        assert reply.choices[0].finish_reason == "stop"
        if budget >= whole:
            assert answer == LISTED


def test_a_thinking_that_was_cut_is_not_closed_again_in_the_answer(client: OpenAI) -> None:
    """The model goes on with its sum after the cut, and would close that as well."""
    whole = ask(client, SUM)
    for budget in range(12):
        for bias in ({}, {"5": 1}):  # one of the request's own is kept beside it
            reply = ask(client, SUM, budget=budget, logit_bias=bias)
            assert "think>" not in (reply.choices[0].message.content or "")
            assert reply.choices[0].finish_reason == "stop"
    assert ask(client, SUM).choices[0].message == whole.choices[0].message


@pytest.mark.parametrize("budget", [0, 2])
def test_every_name_for_it_gives_the_same_reply(client: OpenAI, budget: int) -> None:
    asked = ask(client, budget=budget)
    expected = (thought(asked), asked.choices[0].message.content)
    for fields in (
        {"thinking_budget_tokens": budget},
        {"reasoning_budget_tokens": budget},
        {"thinking_token_budget": budget},
        {"thinking": {"type": "enabled", "budget_tokens": budget}},
        {"reasoning": {"max_tokens": budget}},
    ):
        reply = ask(client, extra_body=fields)
        assert (thought(reply), reply.choices[0].message.content) == expected, fields
    with pytest.raises(BadRequestError, match="contradict"):
        ask(client, extra_body={"thinking_budget": budget, "reasoning": {"max_tokens": budget + 1}})


def test_equal_seeds_give_equal_replies_streamed_or_not(client: OpenAI) -> None:
    settings: dict[str, Any] = {"temperature": 2, "top_p": 1, "seed": 11, "max_tokens": 40, "n": 2}
    settings["extra_body"] = {"thinking_budget": 3}
    first, second = (ask(client, **settings) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in second.choices]
    assert texts[0] != texts[1]
    assert counts(first) == counts(second)
    assert counts(first)[2] <= 6
    chunks = list(client.chat.completions.create(model=MODEL, messages=user(LIST), stream=True, **settings))
    assert [joined(chunks, choice=index) for index in (0, 1)] == [text or "" for text in texts]


@pytest.mark.parametrize("budget", [0, 3])
def test_the_next_turn_reuses_the_cut_thinking_and_is_the_cold_one(
    live: ServerProcess, client: OpenAI, tmp_path: Path, budget: int
) -> None:
    first = ask(client, budget=budget, extra_body={"thinking_budget": budget, "session_id": f"cut-{budget}"})
    said = first.choices[0].message
    messages = [
        *user(LIST),
        {"role": "assistant", "content": said.content, "reasoning_content": thought(first)},
        *user("What is 17 + 25?"),
    ]
    further: dict[str, Any] = {"messages": messages, "budget": 4, "logprobs": True, "top_logprobs": 3}
    warm = ask(client, **further, extra_body={"thinking_budget": 4, "session_id": f"cut-{budget}"})
    prompt, written, _ = counts(first)
    assert cached(warm) >= prompt + written  # and the end of the turn, which the model gave but which is not text
    with ServerProcess(tmp_path) as other, openai_client(other) as cold_client:
        cold = ask(cold_client, **further, extra_body={"thinking_budget": 4})
    assert cached(cold) == 0
    assert (thought(warm), warm.choices[0].message.content) == (thought(cold), cold.choices[0].message.content)
    assert warm.choices[0].logprobs == cold.choices[0].logprobs
    assert warm.choices[0].logprobs is not None
    shown = warm.choices[0].logprobs.content
    assert shown is not None
    assert "".join(entry.token for entry in shown) == warm.choices[0].message.content


@pytest.mark.parametrize("budget", [0, 3])
def test_a_constrained_reply_follows_its_grammar_after_the_cut(client: OpenAI, budget: int) -> None:
    format = {"type": "json_schema", "json_schema": {"name": "age", "schema": SCHEMA}}
    reply = ask(client, "How old are you?", budget=budget, response_format=format)
    Draft202012Validator(SCHEMA).validate(json.loads(reply.choices[0].message.content or ""))
    assert counts(reply)[2] == budget
    called = ask(
        client, "How old are you?", budget=budget, tools=[LOOKUP], tool_choice="required", parallel_tool_calls=False
    )
    (call,) = called.choices[0].message.tool_calls or ()
    assert set(json.loads(call.function.arguments)) == {"count"}  # type: ignore[union-attr]
    assert called.choices[0].finish_reason == "tool_calls"


def content_begins(stream: RawStream) -> None:
    for chunk in stream.chunks():
        if any(choice["delta"].get("content") for choice in chunk["choices"]):
            return
    raise AssertionError("the stream ended without an answer")


@pytest.mark.parametrize("path", ["/v1/end-thinking", "/v1/chat/completions/control"])
def test_a_reply_that_thinks_can_be_told_to_answer(live: ServerProcess, path: str) -> None:
    ours = path == "/v1/end-thinking"

    def told(id: str) -> Any:
        return live.ask("POST", path, {"request_id": id} if ours else {"id": id, "action": "reasoning_end"})

    with live.stream({"messages": user(LIST), **endless(live)}) as stream:
        assert "reasoning_content" in stream.until_text()["choices"][0]["delta"]
        answer = told(stream.id)
        assert (answer.status, answer.json()) == (200, {"request_id": stream.id, "thinking_ended": True})
        content_begins(stream)
        assert told(stream.id).status == 200  # it answers: nothing is left to end
        assert live.ask("POST", "/v1/cancel", {"request_id": stream.id}).status == 200
    live.wait_idle()
    missing = told(stream.id)
    assert (missing.status, missing.json()["error"]["code"]) == (404, "request_not_found")
    assert missing.json()["error"]["param"] == ("request_id" if ours else "id")


def test_a_request_that_waits_or_is_paused_can_be_told_to_answer(live: ServerProcess) -> None:
    with live.stream({"messages": user(LIST), **LONG}) as running:
        running.until_text()
        with live.stream({"messages": user(LIST), **endless(live)}) as waiting:
            eventually(lambda: live.props()["queue"]["waiting"] == 1, "one waits")
            assert live.ask("POST", "/v1/end-thinking", {"request_id": waiting.id}).status == 200
            assert live.ask("POST", "/v1/cancel", {"request_id": running.id}).status == 200
            delta = waiting.until_text()["choices"][0]["delta"]
            assert "content" in delta
            assert "reasoning_content" not in delta
            assert live.ask("POST", "/v1/cancel", {"request_id": waiting.id}).status == 200
    with live.stream({"messages": user(LIST), **endless(live)}) as stream:
        stream.until_text()
        assert live.ask("POST", "/v1/pause", {"request_id": stream.id}).status == 200
        eventually(lambda: live.props()["queue"]["paused"] == 1, "paused")
        assert live.ask("POST", "/v1/end-thinking", {"request_id": stream.id}).status == 200
        assert live.ask("POST", "/v1/resume", {"request_id": stream.id}).status == 200
        content_begins(stream)
        assert live.ask("POST", "/v1/cancel", {"request_id": stream.id}).status == 200
    live.wait_idle()


def test_the_servers_own_limit_is_one_that_a_request_may_change(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--thinking-budget", "2") as server, openai_client(server) as client:
        assert server.props()["defaults"]["thinking_budget"] == 2
        assert counts(ask(client))[2] == 2
        assert counts(ask(client, budget=1))[2] == 1
        assert thought(ask(client, budget=-1)) == THOUGHT
