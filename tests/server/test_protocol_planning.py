"""Requests that ask the engine for something else than the client asked for."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from launcher.engine_types import Sampling
from launcher.errors import RequestError
from launcher.server import planning
from launcher.server.grammar import CallReply, EitherReply, JsonReply
from launcher.server.planning import (
    count_of,
    plan_chat,
    plan_completion,
    request_name,
    text_of,
)
from launcher.server.protocol.decode import decode_chat, decode_completion
from launcher.server.protocol.errors import ContextLengthExceeded, error_body
from launcher.server.request import GenerationRequest, Mark, MarkKind, Style, Tool
from launcher.server.served import ServedModel
from launcher.template import ChatTemplate
from tests.support.served_model import SPECIAL, TOKEN_COUNT, AskedGrammars, ByteText, served_model

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
ADD = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
SUB = {"type": "function", "function": {"name": "sub"}}
TOOL_CALL = 256 + SPECIAL.index("<tool_call>")


def chat(served: ServedModel | None = None, /, *, header: str | None = None, **fields: Any) -> GenerationRequest:
    body = json.dumps({"messages": [USER]} | fields).encode()
    return plan_chat(served or served_model(), decode_chat(body), owner="o", header_session=header, id="chatcmpl-1")


def complete(served: ServedModel | None = None, /, *, header: str | None = None, **fields: Any) -> GenerationRequest:
    body = json.dumps({"prompt": "abc"} | fields).encode()
    decoded = decode_completion(body)
    return plan_completion(served or served_model(), decoded, owner="o", header_session=header, id="cmpl-1")


def refused(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        chat(**fields)
    return caught.value


def test_the_prompt_is_that_of_the_template() -> None:
    model = served_model()
    request = chat(model, tools=[ADD])
    text = text_of(model, request.prompt)
    assert text.endswith("<role>HUMAN</role>hi<|role_end|><role>ASSISTANT</role>\n<think>")
    assert '{"type": "function", "function": {"name": "add", "parameters": {' in text
    assert (request.id, request.owner, request.style, request.reasoning) == ("chatcmpl-1", "o", Style.CHAT, True)
    assert request.tools == (Tool(name="add", parameters=SCHEMA),)


def test_another_model_is_not_found() -> None:
    error = refused(model="gpt-9")
    assert (error.status, error.slug, error.param) == (404, "model_not_found", "model")
    assert "'tiny'" in error.message
    with pytest.raises(RequestError):
        complete(model="gpt-9")
    assert chat(model=None).prompt == chat(model="tiny").prompt


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, True),
        ({"enable_thinking": False}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"chat_template_kwargs": {"thinking_option": "off"}}, False),
        ({"thinking": False}, False),
        ({"thinking": {"type": "disabled"}}, False),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "high"}, True),
        ({"reasoning_effort": "none", "enable_thinking": True}, True),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": True}}, True),
    ],
)
def test_every_switch_for_thinking_switches(fields: dict[str, Any], thinking: bool) -> None:
    model = served_model()
    request = chat(model, **fields)
    assert request.reasoning is thinking
    assert text_of(model, request.prompt).endswith("<think>" if thinking else "</think>")


def test_the_default_of_the_server_holds_where_nothing_is_said() -> None:
    assert not chat(served_model(thinking=False)).reasoning
    assert chat(served_model(thinking=False), enable_thinking=True).reasoning
    assert not chat(served_model(thinking=False), reasoning_effort="high").reasoning


def test_switches_that_contradict_each_other_are_refused() -> None:
    error = refused(enable_thinking=True, chat_template_kwargs={"enable_thinking": False})
    assert "enable_thinking and chat_template_kwargs.enable_thinking" in error.message


def test_a_thinking_switch_in_the_system_text_is_seen() -> None:
    system = {"role": "system", "content": "detailed thinking off"}
    assert not chat(messages=[system, USER]).reasoning


def test_a_prompt_that_fills_the_context_is_refused_with_both_counts() -> None:
    length = len(chat().prompt)
    assert chat(served_model(context=length + 1)).max_tokens == 1
    for context in (length, length - 1):
        with pytest.raises(RequestError) as caught:
            chat(served_model(context=context))
        status, _headers, data = error_body(caught.value)
        error = json.loads(data)["error"]
        assert status == 400
        assert error["code"] == "context_length_exceeded"
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (length, context)
        assert str(length) in error["message"]
        assert str(context) in error["message"]
        assert error["param"] == "messages"


class GivesOnlyWhatFits(ByteText):
    """Fails where every id of a text is made into a number: with megabytes of text that stops the other threads."""

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        assert len(text) < 100, "all ids of a long text"
        return super().tokenize(text, special=special)

    def first_tokens(self, text: str, most: int | None = None, *, special: bool = True) -> tuple[array[int], int]:
        assert most is not None
        assert most <= 4096
        return array("i", text[:most].encode()), len(text)


def test_of_a_prompt_that_is_too_long_only_the_number_is_made() -> None:
    model = served_model(text=GivesOnlyWhatFits())
    long = "x" * (1 << 20)
    for plan in (
        lambda: chat(model, messages=[{"role": "user", "content": long}]),
        lambda: complete(model, prompt=long),
    ):
        with pytest.raises(ContextLengthExceeded) as caught:
            plan()
        assert caught.value.prompt >= len(long)
        assert caught.value.context == 4096
    counted = decode_chat(json.dumps({"messages": [{"role": "user", "content": long}]}).encode())
    assert count_of(model, counted) >= len(long)


def test_the_reply_is_clamped_to_the_context() -> None:
    room = 4096 - len(chat().prompt)
    assert chat().max_tokens == room
    assert chat(max_tokens=10**30).max_tokens == room
    assert chat(max_completion_tokens=10**30).max_tokens == room
    assert chat(max_tokens=7).max_tokens == 7
    assert chat(max_completion_tokens=7).max_tokens == 7
    assert chat(max_tokens=9, max_completion_tokens=7).max_tokens == 7
    assert chat(served_model(max_tokens=20)).max_tokens == 20
    assert chat(served_model(max_tokens=20), max_tokens=30).max_tokens == 30
    assert complete().max_tokens == 4096 - 3


def test_both_names_for_the_most_tokens_count_in_chats_and_completions() -> None:
    for plan in (chat, complete):
        assert plan(max_completion_tokens=7).max_tokens == 7
        assert plan(max_completion_tokens=7, max_tokens=5).max_tokens == 5
        assert plan(max_completion_tokens=5, max_tokens=7).max_tokens == 5


def test_sampling_is_the_requests_and_else_the_servers() -> None:
    model = served_model(seed=5)
    assert chat(model).sampling == Sampling(temperature=0.7, top_p=0.9, seed=5)
    asked = chat(model, temperature=0, top_p=0.5, top_k=40, min_p=0.1, repetition_penalty=1.1, seed=9).sampling
    assert asked == Sampling(temperature=0, top_p=0.5, top_k=40, min_p=0.1, repetition_penalty=1.1, seed=9)
    assert chat(model, top_k=-1).sampling.top_k == 0
    assert chat(model, top_p=1e-300).sampling.top_p > 1e-30
    assert chat(model, top_p=0).sampling.top_p > 1e-30
    assert complete(model, temperature=0.25).sampling.temperature == 0.25


def test_penalties_reach_the_sampler() -> None:
    asked = chat(frequency_penalty=0.5, presence_penalty=-0.5).sampling
    assert (asked.frequency_penalty, asked.presence_penalty) == (0.5, -0.5)


def test_seeds() -> None:
    assert chat(seed=-2).sampling.seed == -2
    assert chat(seed=(1 << 64) - 1).sampling.seed == (1 << 64) - 1
    assert chat().sampling.seed != chat().sampling.seed
    assert chat(seed=0).sampling.seed == 0
    # It is told, and JavaScript reads larger numbers wrong.
    for seed in (None, -1):
        picked = {chat(served_model(seed=None if seed is None else 5), seed=seed).sampling.seed for _ in range(50)}
        assert len(picked) == 50
        assert 0 <= min(picked) <= max(picked) < 1 << 53


def test_counts_stops_and_the_rest_are_passed_on() -> None:
    request = chat(n=3, stop=["a", "b"], ignore_eos=True, logprobs=True, top_logprobs=4, parallel_tool_calls=False)
    assert (request.choices, request.stops, request.ignore_eos, request.logprobs) == (3, ("a", "b"), True, 4)
    assert not request.parallel_calls
    plain = chat(stop="a")
    assert (plain.choices, plain.stops, plain.ignore_eos, plain.logprobs) == (1, ("a",), False, None)
    assert plain.parallel_calls
    assert chat(logprobs=True).logprobs == 0
    assert complete(logprobs=0).logprobs == 0
    assert complete().logprobs is None


def test_the_shorter_deadline_counts() -> None:
    assert chat().deadline is None
    assert chat(timeout=5).deadline == 5
    assert chat(served_model(timeout=3)).deadline == 3
    assert chat(served_model(timeout=3), timeout=5).deadline == 3
    assert chat(served_model(timeout=30), timeout=5).deadline == 5


def test_biases_are_by_token() -> None:
    assert chat(logit_bias={"5": -100, "07": 2.5}).logit_bias == {5: -100.0, 7: 2.5}
    error = refused(logit_bias={str(TOKEN_COUNT): 1})
    assert error.param == f"logit_bias.{TOKEN_COUNT}"


def test_a_bias_for_an_id_that_no_token_has_is_refused_before_the_request_runs() -> None:
    class Holed(ByteText):
        def token_bytes(self, token: int) -> bytes:
            return b"" if token == 5 else super().token_bytes(token)

    with pytest.raises(RequestError) as caught:
        chat(served_model(text=Holed()), logit_bias={"4": 1, "5": 1})
    assert (caught.value.status, caught.value.param) == (400, "logit_bias.5")


def test_the_first_name_of_a_session_counts() -> None:
    names: dict[str, Any] = {
        "session_id": "a",
        "metadata": {"session_id": "c"},
        "prompt_cache_key": "d",
        "user": "e",
    }
    found = []
    for header in ("b", None):
        left = dict(names)
        for name in names:
            found.append(chat(header=header, **left).session)
            left.pop(name)
        found.append(chat(header=header).session)
    assert found == ["a", "b", "b", "b", "b", "a", "c", "d", "e", None]
    assert complete(header="b").session == "b"


@pytest.mark.parametrize("name", ["a\nb", "a\n", "\x7f", "x" * 257, 5])
def test_a_name_of_a_session_is_printable(name: object) -> None:
    assert refused(metadata={"session_id": name}).param == "metadata.session_id"
    if isinstance(name, str):
        assert refused(header=name).param == "X-Session-Id"


def test_the_body_names_the_request_before_the_header() -> None:
    asked = decode_chat(json.dumps({"messages": [USER], "request_id": "a.B-1:_"}).encode())
    nameless = decode_completion(b'{"prompt": "x"}')
    assert request_name(asked, "b") == request_name(asked, None) == "a.B-1:_"
    assert request_name(nameless, "b") == "b"
    assert request_name(nameless, None) is None


@pytest.mark.parametrize("header", ["", "a b", "a\n", "\xe9", "x" * 65, "a/b"])
def test_a_header_that_is_no_id_is_passed_over(header: str) -> None:
    assert request_name(decode_completion(b'{"prompt": "x"}'), header) is None


def test_tool_choice_none_forbids_calls_and_keeps_the_prompt() -> None:
    free, barred = chat(tools=[ADD]), chat(tools=[ADD], tool_choice="none", logit_bias={"1": 1})
    assert barred.prompt == free.prompt
    assert barred.tools == ()
    assert barred.logit_bias == {1: 1.0, TOOL_CALL: -100.0}
    assert free.logit_bias == {}
    assert free.new_constraint is None
    assert chat(tool_choice="none").logit_bias == {}


@pytest.mark.parametrize("parallel", [True, False])
def test_required_calls_are_constrained(parallel: bool) -> None:
    grammar = AskedGrammars()
    request = chat(
        served_model(grammar=grammar), tools=[ADD, SUB], tool_choice="required", parallel_tool_calls=parallel
    )
    tools = (Tool(name="add", parameters=SCHEMA), Tool(name="sub", parameters={}))
    assert grammar.asked == [(CallReply(tools=tools, name=None, parallel=parallel), True)]
    assert request.new_constraint is not None
    assert request.tools == tools


def test_a_named_call_is_constrained() -> None:
    grammar = AskedGrammars()
    named = {"type": "function", "function": {"name": "sub"}}
    chat(served_model(grammar=grammar), tools=[ADD, SUB], tool_choice=named, enable_thinking=False)
    ((reply, reasoning),) = grammar.asked
    assert isinstance(reply, CallReply)
    assert (reply.name, reasoning) == ("sub", False)


def test_json_is_constrained() -> None:
    grammar = AskedGrammars()
    model = served_model(grammar=grammar)
    for wanted in (
        {"type": "json_object"},
        {"type": "json_object", "schema": SCHEMA},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
        {"type": "json_schema", "json_schema": {"name": "x"}},
    ):
        assert chat(model, response_format=wanted).new_constraint is not None
    asked = [reply for reply, _ in grammar.asked if isinstance(reply, JsonReply)]
    assert [reply.schema for reply in asked] == [None, SCHEMA, SCHEMA, {}]
    assert asked[1].param == "response_format.schema"
    assert chat(model, response_format={"type": "text"}).new_constraint is None


def test_json_beside_calls_that_may_come_leaves_the_model_the_choice() -> None:
    wanted = {"type": "json_object"}
    grammar = AskedGrammars()
    model = served_model(grammar=grammar)
    for choice in (None, "auto", "none", "required"):
        request = chat(model, tools=[ADD], tool_choice=choice, response_format=wanted, parallel_tool_calls=False)
        assert request.text_or_calls is (choice in (None, "auto"))
        assert bool(request.tools) is (choice != "none")
    assert [type(reply) for reply, _ in grammar.asked] == [EitherReply, EitherReply, JsonReply, CallReply]
    either = grammar.asked[0][0]
    assert isinstance(either, EitherReply)
    assert (either.json.schema, either.calls.name, either.calls.parallel) == (None, None, False)
    assert not chat(model, tools=[ADD]).text_or_calls


def test_a_grammar_has_an_end() -> None:
    assert refused(response_format={"type": "json_object"}, ignore_eos=True).param == "ignore_eos"


def test_marks_are_asked_for_where_there_are_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []

    def fake(template: ChatTemplate, messages: Sequence[object], **given: Any) -> tuple[Mark, ...]:
        calls.append(given)
        return (Mark(position=3, kind=MarkKind.SYSTEM),)

    monkeypatch.setattr(planning, "marks", fake)
    assert chat().marks == ()
    request = chat(served_model(checkpoints=4), tools=[ADD])
    assert request.marks == (Mark(position=3, kind=MarkKind.SYSTEM),)
    (given,) = calls
    # One of the four is for the system text.
    assert (given["limit"], given["thinking"], list(given["ids"])) == (3, True, list(request.prompt))
    assert len(given["tools"]) == 1


def test_marks_of_a_conversation_are_places_in_its_prompt() -> None:
    model = served_model(checkpoints=8)
    turns = [{"role": "system", "content": "Be brief."}, USER, {"role": "assistant", "content": "hello"}, USER]
    request = chat(model, messages=turns)
    positions = [mark.position for mark in request.marks]
    assert positions == sorted(set(positions))
    assert len(positions) >= 2
    assert all(0 < position < len(request.prompt) for position in positions)


def test_a_template_that_refuses_is_the_clients_fault() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", special_tokens={})
    with pytest.raises(RequestError, match="roles must alternate") as caught:
        chat(served_model(template=template))
    assert (caught.value.status, caught.value.param) == (400, "messages")


@pytest.mark.parametrize("prompt", ["abc", ["abc"], [97, 98, 99], [[97, 98, 99]]])
def test_a_completion_takes_one_prompt_in_every_form(prompt: object) -> None:
    request = complete(prompt=prompt)
    assert request.prompt == (97, 98, 99)
    assert (request.style, request.reasoning, request.tools) == (Style.TEXT, False, ())


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([], "prompt"),
        ([""], "prompt"),
        ([[]], "prompt"),
        (["a", "b"], "prompt"),
        ([[1], [2]], "prompt"),
        ([1, "a"], "prompt"),
        ([1, TOKEN_COUNT], "prompt[1]"),
    ],
)
def test_other_prompts_of_a_completion_are_refused(prompt: object, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        complete(prompt=prompt)
    assert caught.value.param == param


def test_a_completion_that_fills_the_context_names_the_prompt() -> None:
    with pytest.raises(RequestError) as caught:
        complete(served_model(context=3))
    assert (caught.value.slug, caught.value.param) == ("context_length_exceeded", "prompt")
