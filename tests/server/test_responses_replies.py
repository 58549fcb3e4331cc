"""Responses in an order that a client cannot follow, or that say something else than what was generated."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any

import msgspec
import pytest
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from launcher.engine_types import Sampling
from launcher.errors import Cancelled, InternalError, RequestError
from launcher.server.events import (
    CacheSource,
    ChoiceFinished,
    Content,
    Delta,
    Deltas,
    Event,
    Failed,
    Finished,
    FinishReason,
    Metrics,
    Paused,
    Queued,
    Reading,
    Reasoning,
    TokenLogprob,
    ToolCallArguments,
    ToolCallStart,
)
from launcher.server.protocol.replies import ChatStream, ResponsesReply, ResponsesStream
from launcher.server.protocol.responses_decode import decode_responses
from launcher.server.protocol.responses_shapes import RESPONSE_EVENTS, ResponseObject
from launcher.server.request import GenerationRequest
from launcher.server.sse import frame
from tests.support.served_model import served_model

METRICS = Metrics(prompt=10, cached=4, cache_source=CacheSource.RAM, generated=3, reasoning=1)
PLAIN: tuple[Delta, ...] = (
    Reasoning(text="hm"),
    Reasoning(text=" ok"),
    Content(text='a\ufffd"\\\n'),
    Content(text="你"),
)
CALLS: tuple[Delta, ...] = (
    Reasoning(text="hm"),
    Content(text="look: "),
    ToolCallStart(index=0, id="call_1", name="add"),
    ToolCallArguments(index=0, text='{"a": '),
    ToolCallArguments(index=0, text="1}"),
    ToolCallStart(index=1, id="call_2", name="sub"),
    ToolCallArguments(index=1, text="{}"),
)
EARLY_CALL: tuple[Delta, ...] = (
    Reasoning(text="hm"),
    ToolCallStart(index=0, id="call_1", name="add"),
    ToolCallArguments(index=0, text="{}"),
    Reasoning(text="on"),
    Content(text="so"),
)
LOGPROBS = (TokenLogprob(token=97, logprob=-0.5, top=((97, -0.5), (228, -2.0))),)
_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_OWN: Any = msgspec.json.Decoder(reduce(or_, RESPONSE_EVENTS))


def parts(**fields: Any) -> tuple[Any, Any, GenerationRequest]:
    """A model, a request with these fields in its body, and what is generated for it."""
    logprobs, session = fields.pop("logprobs", None), fields.pop("session", None)
    asked, _ = decode_responses(json.dumps({"input": "hi"} | fields).encode())
    request = GenerationRequest(
        id="resp_7",
        owner="",
        session=session,
        prompt=(1,),
        max_tokens=9,
        sampling=Sampling(temperature=0.5, top_p=0.25),
        logprobs=logprobs,
    )
    return served_model(), asked, request


def happenings(deltas: Sequence[Delta], reason: FinishReason = FinishReason.STOP) -> list[Event]:
    return [
        Queued(position=1),
        Reading(done=4, total=10),
        Paused(),
        *(Deltas(choice=0, deltas=(delta,), metrics=METRICS) for delta in deltas),
        ChoiceFinished(choice=0, reason=reason, metrics=METRICS),
        Finished(metrics=(METRICS,)),
    ]


def streamed(given: Iterable[Event], **fields: Any) -> list[dict[str, Any]]:
    """The events, each valid for the official client and for the description."""
    stream = ResponsesStream(*parts(**fields), created=77)
    texts = [text for event in given for text in stream.write(event)]
    for text in texts:
        assert b"\n" not in text
        _EVENT.validate_json(text, strict=True)
        _OWN.decode(text)
    found = [json.loads(text) for text in texts]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def document(given: Iterable[Event], **fields: Any) -> dict[str, Any]:
    reply = ResponsesReply(*parts(**fields), created=77)
    for event in given:
        reply.add(event)
    data = reply.document()
    Response.model_validate_json(data, strict=True)
    msgspec.json.decode(data, type=ResponseObject)
    found: dict[str, Any] = json.loads(data)
    return found


def types(events: Iterable[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_events_come_in_order() -> None:
    assert types(streamed(happenings(PLAIN))) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]


def test_calls_have_events_of_their_own() -> None:
    events = streamed(happenings(CALLS, FinishReason.TOOL_CALLS))
    calls = [event for event in events if event.get("output_index", 0) >= 2]
    assert types(calls) == [
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
    ]
    added, done = calls[0]["item"], calls[4]["item"]
    assert (added["name"], added["call_id"], added["arguments"], added["status"]) == (
        "add",
        "call_1",
        "",
        "in_progress",
    )
    assert done == added | {"arguments": '{"a": 1}', "status": "completed"}
    assert events[-1]["response"]["status"] == "completed"


def without_time(response: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in response.items() if name != "completed_at"}


@pytest.mark.parametrize("deltas", [PLAIN, CALLS, EARLY_CALL, (), (Reasoning(text="hm"),)])
@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.LENGTH])
def test_a_stream_ends_with_the_document(deltas: tuple[Delta, ...], reason: FinishReason) -> None:
    events = streamed(happenings(deltas, reason))
    whole = document(happenings(deltas, reason))
    assert without_time(events[-1]["response"]) == without_time(whole)
    assert [event["item"] for event in events if event["type"].endswith("item.done")] == whole["output"]
    assert [event["output_index"] for event in events if event["type"].endswith("item.added")] == list(
        range(len(whole["output"]))
    )


@pytest.mark.parametrize("deltas", [PLAIN, CALLS, EARLY_CALL, ()])
def test_the_official_client_puts_the_stream_together(deltas: tuple[Delta, ...]) -> None:
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=[], text_format=omit)
    for event in streamed(happenings(deltas)):
        state.handle_event(_EVENT.validate_python(event))
    assert state._completed_response is not None
    whole = document(happenings(deltas))
    assert [item.id for item in state._completed_response.output] == [item["id"] for item in whole["output"]]
    texts = [delta.text for delta in deltas if isinstance(delta, Content)]
    assert state._completed_response.output_text == "".join(texts)


def test_thinking_text_and_calls_are_items() -> None:
    thought, said, first, second = document(happenings(CALLS, FinishReason.TOOL_CALLS))["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert (thought["type"], thought["summary"], thought["encrypted_content"]) == ("reasoning", [], None)
    assert said["content"] == [{"type": "output_text", "annotations": [], "text": "look: ", "logprobs": []}]
    assert (said["type"], said["role"], said["status"]) == ("message", "assistant", "completed")
    assert (first["type"], first["call_id"], first["arguments"]) == ("function_call", "call_1", '{"a": 1}')
    assert (second["name"], second["arguments"]) == ("sub", "{}")
    ids = [item["id"] for item in (thought, said, first, second)]
    assert ids == ["rs_7_0", "msg_7_1", "fc_7_2", "fc_7_3"]


def test_a_call_before_the_thinking_ends_stands_between() -> None:
    output = document(happenings(EARLY_CALL))["output"]
    assert [item["type"] for item in output] == ["reasoning", "function_call", "reasoning", "message"]


@pytest.mark.parametrize("deltas", [(), (Reasoning(text="hm"),)])
def test_an_answer_without_text_is_an_empty_message(deltas: tuple[Delta, ...]) -> None:
    last = document(happenings(deltas))["output"][-1]
    assert (last["type"], last["content"][0]["text"]) == ("message", "")


def test_an_answer_that_is_cut_says_so() -> None:
    whole = document(happenings(PLAIN, FinishReason.LENGTH), max_output_tokens=9)
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (whole["max_output_tokens"], whole["completed_at"]) == (9, None)
    assert [item["status"] for item in whole["output"]] == ["completed", "incomplete"]
    assert document(happenings((Reasoning(text="hm"),), FinishReason.LENGTH))["output"][0]["status"] == "incomplete"
    assert streamed(happenings(PLAIN, FinishReason.LENGTH))[-1]["type"] == "response.incomplete"


def test_counts_and_metrics() -> None:
    whole = document(happenings(PLAIN))
    assert whole["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 13,
    }
    assert whole["mindnano_metrics"]["cache_source"] == "ram"
    events = streamed(happenings(CALLS))
    assert all("mindnano_metrics" in event for event in events if event["type"].endswith(".delta"))
    assert events[0]["response"]["usage"] is None
    assert "mindnano_metrics" not in events[0]["response"]


def test_the_answer_says_what_was_asked_and_what_has_no_effect() -> None:
    tool = {"type": "function", "name": "add", "parameters": {"type": "object"}, "description": None, "strict": None}
    schema = {"type": "json_schema", "name": "s", "schema": {"type": "object"}}
    whole = document(
        happenings(PLAIN),
        instructions="Be brief.",
        metadata={"a": "b"},
        tools=[tool],
        tool_choice={"type": "function", "name": "add"},
        parallel_tool_calls=False,
        text={"format": schema},
        reasoning={"effort": "low"},
        user="u",
        prompt_cache_key="k",
        safety_identifier="s",
        store=True,
        truncation="auto",
        session="你好",
    )
    assert (whole["instructions"], whole["metadata"], whole["tools"]) == ("Be brief.", {"a": "b"}, [tool])
    assert (whole["tool_choice"], whole["parallel_tool_calls"]) == ({"type": "function", "name": "add"}, False)
    assert whole["text"]["format"] == schema | {"description": None, "strict": None}
    assert (whole["reasoning"], whole["user"], whole["prompt_cache_key"]) == (
        {"effort": "low", "summary": None},
        "u",
        "k",
    )
    assert (whole["store"], whole["truncation"], whole["background"]) == (False, "disabled", False)
    assert (whole["temperature"], whole["top_p"], whole["session_id"]) == (0.5, 0.25, "你好")
    assert (whole["id"], whole["request_id"], whole["created_at"]) == ("resp_7", "resp_7", 77)
    plain = document(happenings(PLAIN))
    assert (plain["tool_choice"], plain["tools"], plain["text"]) == ("auto", [], {"format": {"type": "text"}})
    assert "session_id" not in plain


def test_logprobs_are_of_the_answer() -> None:
    given = happenings((Content(text="a", logprobs=LOGPROBS), Content(text="!")))
    top = [{"token": "a", "bytes": [97], "logprob": -0.5}, {"token": "\ufffd", "bytes": [228], "logprob": -2.0}]
    entry = {"token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": top}
    whole = document(given, logprobs=2)
    assert (whole["output"][0]["content"][0]["logprobs"], whole["top_logprobs"]) == ([entry], 2)
    events = streamed(given, logprobs=2)
    deltas = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
    assert deltas == [[entry], []]
    done = next(event for event in events if event["type"] == "response.output_text.done")
    assert done["logprobs"] == [entry]
    assert document(given)["output"][0]["content"][0]["logprobs"] == []


def test_a_failure_on_the_way_is_an_error_and_what_there_is() -> None:
    error = RequestError("deadline_exceeded", "too late", status=504, kind="timeout")
    events = streamed([*happenings(PLAIN)[:6], Failed(error=error)])
    assert types(events[-2:]) == ["error", "failed"]
    assert (events[-2]["code"], events[-2]["message"]) == ("deadline_exceeded", "too late")
    response = events[-1]["response"]
    assert (response["status"], response["error"]) == ("failed", {"code": "server_error", "message": "too late"})
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    reply = ResponsesReply(*parts())
    with pytest.raises(RequestError, match="too late"):
        reply.add(Failed(error=error))
    with pytest.raises(InternalError):
        reply.document()


def test_a_failure_before_anything_else_follows_the_beginning() -> None:
    events = streamed([Failed(error=Cancelled("cancelled", "cancelled"))])
    assert types(events) == ["created", "in_progress", "error", "failed"]
    assert events[2]["code"] == "cancelled"
    assert events[-1]["response"]["output"] == []


def test_the_wire_names_each_event_and_has_no_mark_at_its_end() -> None:
    stream = ResponsesStream(*parts())
    wire = b"".join(frame(event, stream, typed=True) for event in happenings(PLAIN)).decode()
    messages = [message.split("\n") for message in wire.removesuffix("\n\n").split("\n\n")]
    assert [lines for lines in messages if lines[0].startswith(":")] == [
        [": queue position 1"],
        [": prefill 4/10"],
        [": paused"],
    ]
    typed = [lines for lines in messages if not lines[0].startswith(":")]
    for name, data in typed:
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"
    assert typed[0][0] == "event: response.created"
    assert typed[-1][0] == "event: response.completed"
    assert "[DONE]" not in wire
    model, _, request = parts()
    chat = b"".join(frame(event, ChatStream(model, request)) for event in happenings(PLAIN)[-1:])
    assert chat.endswith(b"data: [DONE]\n\n")
