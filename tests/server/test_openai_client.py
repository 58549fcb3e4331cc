"""Chats and completions that the official client, strict, does not read as they were meant."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import NotFoundError, OpenAI

from tests.support.openai_client import LIST, LISTED, LONG, MODEL, joined, long_text, openai_client, user
from tests.support.server_process import ServerProcess

CONTEXT = 4096


@pytest.fixture(scope="module")
def client(live: ServerProcess) -> Iterator[OpenAI]:
    with openai_client(live) as opened:
        yield opened


def text_of(client: OpenAI, question: str, **settings: Any) -> str:
    """The answer of a whole reply, which the stream's must equal."""
    asked = {"model": MODEL, "messages": user(question), **settings}
    reply = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True))
    assert joined(chunks) == (reply.choices[0].message.content or "")
    assert [each.finish_reason for chunk in chunks for each in chunk.choices][-1] == reply.choices[0].finish_reason
    return reply.choices[0].message.content or ""


def test_a_whole_answer_has_its_thinking_apart(client: OpenAI) -> None:
    reply = client.chat.completions.create(model=MODEL, messages=user(LIST))
    message = reply.choices[0].message
    assert message.content == LISTED
    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"] == message.model_extra["reasoning"] == "I need 5 items."
    assert "think" not in message.content
    assert (reply.choices[0].finish_reason, message.refusal, message.tool_calls) == ("stop", None, None)
    assert reply.system_fingerprint
    assert reply.system_fingerprint.startswith("fp_")
    assert reply.model_extra is not None
    assert reply.model_extra["request_id"] == reply.id


def test_every_chunk_has_the_same_head_and_only_the_last_one_a_reason(client: OpenAI) -> None:
    chunks = list(client.chat.completions.create(model=MODEL, messages=user(LIST), stream=True))
    heads = {(chunk.id, chunk.object, chunk.created, chunk.model) for chunk in chunks}
    assert len(heads) == 1
    assert next(iter(heads))[1] == "chat.completion.chunk"
    assert next(iter(heads))[3] == MODEL
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant"] + [None] * (len(chunks) - 1)
    assert (joined(chunks), joined(chunks, "reasoning_content")) == (LISTED, "I need 5 items.")
    assert all(chunk.usage is None for chunk in chunks)


def test_a_stream_ends_with_one_done_and_nothing_that_was_not_asked_for(live: ServerProcess) -> None:
    with live.stream({"messages": user(LIST)}) as stream:
        lines = list(stream)
    data = [line for line in lines if not line.startswith(":")]
    assert all(line.startswith("data: ") for line in data)
    assert lines[-1] == "data: [DONE]"
    assert lines.count("data: [DONE]") == 1
    chunks = [json.loads(line.removeprefix("data: ")) for line in data[:-1]]
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)
    assert not any("usage" in chunk for chunk in chunks)
    assert all("finish_reason" in chunk["choices"][0] and "logprobs" in chunk["choices"][0] for chunk in chunks)


def test_usage_comes_once_before_the_end_and_without_choices(client: OpenAI, live: ServerProcess) -> None:
    asked: dict[str, Any] = {"messages": user(LIST), "stream_options": {"include_usage": True}}
    with live.stream(asked) as stream:
        chunks = list(stream.chunks())
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    *_, last = client.chat.completions.create(model=MODEL, stream=True, **asked)
    whole = client.chat.completions.create(model=MODEL, messages=user(LIST))
    assert last.usage is not None
    assert whole.usage is not None
    for usage in (last.usage, whole.usage):
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        assert usage.completion_tokens_details is not None
        assert 0 < (usage.completion_tokens_details.reasoning_tokens or 0) < usage.completion_tokens
        assert usage.prompt_tokens_details is not None
        assert 0 < (usage.prompt_tokens_details.cached_tokens or 0) < usage.prompt_tokens
    assert last.usage.completion_tokens == whole.usage.completion_tokens


def test_metrics_come_with_the_text(live: ServerProcess) -> None:
    with live.stream({"messages": user(LIST)}) as stream:
        told = [chunk["mindnano_metrics"] for chunk in stream.chunks() if "mindnano_metrics" in chunk]
    last = told[-1]
    assert last["ttft_seconds"] > 0
    assert last["decode_tokens_per_second"] > 0
    assert last["cache_source"] in {"none", "live", "ram"}
    assert (last["drafted_tokens"], last["accepted_tokens"]) == (0, 0)
    assert last["generated_tokens"] > told[0]["generated_tokens"]


def test_models(client: OpenAI) -> None:
    models = list(client.models.list())
    assert [model.id for model in models] == [MODEL]
    assert client.models.retrieve(MODEL) == models[0]
    with pytest.raises(NotFoundError) as caught:
        client.models.retrieve("gpt-4")
    assert caught.value.code == "model_not_found"


def test_stop_texts_end_the_reply_at_every_place_and_are_never_shown(client: OpenAI) -> None:
    """Of three characters, so that most of them cross the border of two tokens."""
    for start in range(0, len(LISTED) - 3, 4):
        stop = LISTED[start : start + 3]
        expected = LISTED[: LISTED.index(stop)]
        reply = client.chat.completions.create(model=MODEL, messages=user(LIST), stop=stop)
        assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (expected, "stop"), stop
        chunks = client.chat.completions.create(model=MODEL, messages=user(LIST), stop=[stop, "never"], stream=True)
        assert joined(list(chunks)) == expected, stop


def test_other_forms_of_stop(client: OpenAI) -> None:
    assert text_of(client, LIST, stop=None) == LISTED
    assert text_of(client, LIST, stop=[]) == LISTED
    assert text_of(client, LIST, stop=["horse", "dog"]) == "1. cat\n2. "
    # What only begins like a stop text is part of the answer.
    assert text_of(client, LIST, stop="sheep!") == LISTED


def test_choices_are_those_of_the_next_seeds(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": user("Hello!"), "temperature": 2.0, "max_tokens": 20}
    three = client.chat.completions.create(**asked, n=3, seed=7)
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    alone = [client.chat.completions.create(**asked, seed=7 + index).choices[0].message for index in range(3)]
    assert [choice.message for choice in three.choices] == alone
    assert len({message.content for message in alone}) > 1
    chunks = list(client.chat.completions.create(**asked, n=3, seed=7, stream=True))
    assert [joined(chunks, choice=index) for index in range(3)] == [message.content or "" for message in alone]
    ends = [choice for chunk in chunks for choice in chunk.choices if choice.finish_reason is not None]
    assert [choice.index for choice in ends] == [0, 1, 2]


def test_a_seed_gives_the_same_text_whatever_came_between(client: OpenAI) -> None:
    asked: dict[str, Any] = {"temperature": 2.0, "max_tokens": 60, "extra_body": LONG}
    first = {seed: text_of(client, LIST, seed=seed, **asked) for seed in range(4)}
    text_of(client, "What is 3 + 4?")
    assert {seed: text_of(client, LIST, seed=seed, **asked) for seed in range(4)} == first
    assert len(set(first.values())) > 1


def test_a_seed_that_was_not_given_is_told_and_gives_the_same_text(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": user(LIST), "temperature": 2.0, "max_tokens": 60}
    first = client.chat.completions.create(**asked)
    seed = (first.model_extra or {})["seed"]
    again = client.chat.completions.create(**asked, seed=seed)
    assert again.choices[0].message == first.choices[0].message
    assert (again.model_extra or {})["seed"] == seed
    assert (client.chat.completions.create(**asked).model_extra or {})["seed"] != seed
    for chunk in client.chat.completions.create(**asked, seed=seed, stream=True):
        assert (chunk.model_extra or {})["seed"] == seed
    whole = client.completions.create(model=MODEL, prompt="A", temperature=2.0, max_tokens=20)
    known: int = (whole.model_extra or {})["seed"]
    same = client.completions.create(model=MODEL, prompt="A", temperature=2.0, max_tokens=20, seed=known)
    assert same.choices[0].text == whole.choices[0].text


def test_a_b_a_gives_a_again(client: OpenAI) -> None:
    first = text_of(client, LIST)
    other = text_of(client, "What is the capital of France?")
    assert (first, other) == (LISTED, "The capital of France is Paris.")
    assert text_of(client, LIST) == first


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({"max_tokens": 9}, 9),
        ({"max_completion_tokens": 10}, 10),
        ({"max_tokens": 9, "max_completion_tokens": 11}, 9),
        ({"max_tokens": None, "max_completion_tokens": 8}, 8),
    ],
)
def test_limits_of_a_reply(client: OpenAI, limits: dict[str, Any], count: int) -> None:
    reply = client.chat.completions.create(model=MODEL, messages=user(LIST), **limits)
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == count


def test_a_reply_without_bounds_is_clamped_to_the_context(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "prompt": [20] * (CONTEXT - 40), "extra_body": LONG}
    for limit in ({}, {"max_tokens": 2**31}):
        reply = client.completions.create(**asked, **limit)
        assert reply.choices[0].finish_reason == "length"
        assert reply.usage is not None
        assert reply.usage.total_tokens == CONTEXT


def test_content_has_many_forms(client: OpenAI) -> None:
    parts = [{"type": "text", "text": "Please list "}, {"type": "text", "text": "5 animals."}]
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"place": "garden"}'}}
    conversation: list[Any] = [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "two cats"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Two cats."}]},
        {"role": "user", "content": "Thanks."},
    ]
    assert client.chat.completions.create(model=MODEL, messages=conversation).choices[0].finish_reason == "stop"
    for content in ("", None):
        conversation[2]["content"] = content
        assert client.chat.completions.create(model=MODEL, messages=conversation).usage is not None
    only: list[Any] = [{"role": "user", "content": parts}]
    assert client.chat.completions.create(model=MODEL, messages=only).choices[0].message.content == LISTED


def test_text_in_parts_reaches_the_prompt_from_every_role(live: ServerProcess) -> None:
    parts = [{"type": "text", "text": "blue "}, {"type": "text", "text": "horse"}]
    for role in ("system", "developer", "user", "assistant", "tool"):
        message: dict[str, object] = {"role": role, "content": parts}
        if role == "tool":
            message["tool_call_id"] = "call_1"
        answer = live.ask("POST", "/apply-template", {"messages": [message, *user("Hello")]})
        assert "blue horse" in answer.json()["prompt"], role


@pytest.mark.parametrize(
    "body", [{"enable_thinking": False}, {"chat_template_kwargs": {"enable_thinking": False}}, {"thinking": False}]
)
def test_thinking_can_be_switched_off(client: OpenAI, body: dict[str, Any]) -> None:
    reply = client.chat.completions.create(model=MODEL, messages=user(LIST), extra_body=body)
    message = reply.choices[0].message
    assert message.content == LISTED
    assert (message.model_extra or {}).get("reasoning_content") is None
    assert reply.usage is not None
    assert reply.usage.completion_tokens_details is not None
    assert reply.usage.completion_tokens_details.reasoning_tokens == 0


def test_biases_forbid_and_force(client: OpenAI, live: ServerProcess) -> None:
    ids = live.ask("POST", "/tokenize", {"content": " cat"}).json()["tokens"]
    banned = text_of(client, LIST, logit_bias={str(token): -100 for token in ids})
    assert "cat" not in banned
    only = live.ask("POST", "/tokenize", {"content": "7"}).json()["tokens"]
    forced = text_of(client, LIST, logit_bias={str(only[0]): 100}, max_tokens=6, extra_body={"enable_thinking": False})
    assert forced == "7" * 6


def test_penalties_and_the_rest_of_sampling(client: OpenAI) -> None:
    plain = text_of(client, "Count from 1 to 9.", extra_body=LONG, max_tokens=120)
    for name in ("presence_penalty", "frequency_penalty"):
        settings: dict[str, Any] = {name: 2.0}
        assert text_of(client, "Count from 1 to 9.", extra_body=LONG, max_tokens=120, **settings) != plain, name
    greedy = text_of(client, LIST, extra_body=LONG, max_tokens=60)
    wild: dict[str, Any] = {"temperature": 2.0, "seed": 3, "max_tokens": 60}
    assert text_of(client, LIST, extra_body=LONG, **wild) != greedy
    for narrow in ({"top_k": 1}, {"min_p": 1}, {"min_p": 0.9999999999}, {"top_p": 1e-9}):
        assert text_of(client, LIST, extra_body={**LONG, **narrow}, **wild) == greedy, narrow


def test_text_of_many_bytes_is_never_cut_within_a_character(client: OpenAI, live: ServerProcess) -> None:
    answer = text_of(client, "你好，RK3588 的厂商。")
    assert any(ord(character) > 0x4E00 for character in answer)
    with live.stream({"messages": user("你好，RK3588 的厂商。")}) as stream:
        for chunk in stream.chunks():
            assert "\ufffd" not in json.dumps(chunk, ensure_ascii=False)


def test_a_wild_reply_is_the_same_streamed_or_not(client: OpenAI) -> None:
    """At this temperature tokens come that are no UTF-8 together: they become U+FFFD, and nobody fails."""
    texts = [text_of(client, LIST, temperature=2.0, seed=seed, max_tokens=150, extra_body=LONG) for seed in range(4)]
    assert any("\ufffd" in text for text in texts)


def test_completions(client: OpenAI, live: ServerProcess) -> None:
    prompt = live.ask("POST", "/apply-template", {"messages": user(LIST), "enable_thinking": False}).json()["prompt"]
    reply = client.completions.create(model=MODEL, prompt=prompt)
    assert (reply.choices[0].text, reply.choices[0].finish_reason) == (LISTED, "stop")
    stopped = client.completions.create(model=MODEL, prompt=prompt, stop="t\n2", echo=True)
    assert stopped.choices[0].text == prompt + "1. ca"
    ids = live.ask("POST", "/tokenize", {"content": prompt}).json()["tokens"]
    assert client.completions.create(model=MODEL, prompt=ids).choices[0].text == LISTED
    cut = client.completions.create(model=MODEL, prompt=prompt, max_tokens=3, n=2, seed=1)
    assert [choice.finish_reason for choice in cut.choices] == ["length", "length"]
    assert cut.usage is not None
    assert cut.usage.completion_tokens == 6


def test_completions_are_streamed(live: ServerProcess) -> None:
    """Not strict: the client's own type has no place for the reason that is null until the end."""
    prompt = live.ask("POST", "/apply-template", {"messages": user(LIST), "enable_thinking": False}).json()["prompt"]
    with openai_client(live, strict=False) as client:
        chunks = list(client.completions.create(model=MODEL, prompt=prompt, stream=True))
        stopped = list(client.completions.create(model=MODEL, prompt=prompt, stream=True, stop="t\n2", echo=True))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == LISTED
    assert len({(chunk.id, chunk.object, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert "".join(choice.text for chunk in stopped for choice in chunk.choices) == prompt + "1. ca"


def test_the_thinking_of_the_model_is_read_as_plain_text_by_completions(client: OpenAI, live: ServerProcess) -> None:
    prompt = live.ask("POST", "/apply-template", {"messages": user(LIST)}).json()["prompt"]
    assert client.completions.create(model=MODEL, prompt=prompt).choices[0].text == f"I need 5 items.</think>{LISTED}"


def test_a_long_prompt_is_answered_like_a_short_one(client: OpenAI) -> None:
    messages: list[Any] = [{"role": "system", "content": long_text(900)}, *user("What is the capital of France?")]
    cold = client.chat.completions.create(model=MODEL, messages=messages)
    again = client.chat.completions.create(model=MODEL, messages=messages)
    assert cold.choices == again.choices
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    cached = again.usage.prompt_tokens_details.cached_tokens or 0
    assert again.usage.prompt_tokens - 64 < cached < again.usage.prompt_tokens
