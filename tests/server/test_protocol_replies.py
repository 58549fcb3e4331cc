"""Replies that an OpenAI client does not accept, or that say something else than the events do."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from launcher.engine_types import Sampling
from launcher.errors import InternalError, RequestError
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
from launcher.server.protocol import shapes
from launcher.server.protocol.parts import timings_of
from launcher.server.protocol.replies import ChatReply, ChatStream, CompletionReply, CompletionStream
from launcher.server.request import GenerationRequest
from tests.support.served_model import served_model

METRICS = Metrics(
    prompt=10,
    cached=4,
    cache_source=CacheSource.RAM,
    generated=3,
    reasoning=1,
    queue_seconds=0.5,
    prefill_seconds=2,
    decode_seconds=1,
    first_seconds=3,
    drafted=6,
    accepted=5,
)
SHOWN_METRICS = {
    "ttft_seconds": 3.0,
    "queue_seconds": 0.5,
    "prefill_tokens_per_second": 3.0,
    "decode_tokens_per_second": 2.0,
    "prompt_tokens": 10,
    "cached_tokens": 4,
    "cache_source": "ram",
    "generated_tokens": 3,
    "drafted_tokens": 6,
    "accepted_tokens": 5,
}
SHOWN_TIMINGS = {
    "cache_n": 4,
    "prompt_n": 6,
    "prompt_ms": 2000.0,
    "prompt_per_token_ms": 333.333,
    "prompt_per_second": 3.0,
    "predicted_n": 3,
    "predicted_ms": 1000.0,
    "predicted_per_token_ms": 500.0,
    "predicted_per_second": 2.0,
    "draft_n": 6,
    "draft_n_accepted": 5,
}
LOGPROBS = (
    TokenLogprob(token=228, logprob=-0.5, top=((228, -0.5), (97, -2.0))),
    TokenLogprob(token=97, logprob=-math.inf, top=((97, -math.inf), (255, -1.0))),
)
PLAIN: tuple[Delta, ...] = (
    Reasoning(text="hm"),
    Reasoning(text=" ok"),
    Content(text='a\ufffd"\\\n'),
    Content(text="你"),
)
CALLS: tuple[Delta, ...] = (
    Content(text="look: "),
    ToolCallStart(index=0, id="call_1", name="add"),
    ToolCallArguments(index=0, text='{"a": '),
    ToolCallArguments(index=0, text="1}"),
    ToolCallStart(index=1, id="call_2", name="sub"),
    ToolCallArguments(index=1, text="{}"),
)


def request(**fields: Any) -> GenerationRequest:
    settings: dict[str, Any] = {"id": "chatcmpl-7", "owner": "", "session": None, "prompt": (1,), "max_tokens": 9}
    return GenerationRequest(sampling=Sampling(), **(settings | fields))


def events(deltas: Sequence[Delta], reason: FinishReason = FinishReason.STOP, choices: int = 1) -> list[Event]:
    made: list[Event] = [Queued(position=1), Reading(done=4, total=10), Paused()]
    for choice in range(choices):
        made += [Deltas(choice=choice, deltas=(delta,), metrics=METRICS) for delta in deltas]
        made.append(ChoiceFinished(choice=choice, reason=reason, metrics=METRICS))
    return [*made, Finished(metrics=(METRICS,) * choices)]


def streamed(stream: ChatStream | CompletionStream, given: Iterable[Event]) -> list[dict[str, Any]]:
    chunks = [chunk for event in given for chunk in stream.write(event)]
    assert not any(b"\n" in chunk or b"\r" in chunk for chunk in chunks)  # a `data:` line is one line
    return [json.loads(chunk) for chunk in chunks]


def chat_chunks(given: Iterable[Event], *, include_usage: bool = False, **fields: Any) -> list[dict[str, Any]]:
    stream = ChatStream(served_model(), request(**fields), include_usage=include_usage, created=77)
    chunks = streamed(stream, given)
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
        msgspec.convert(chunk, shapes.ChatChunk)
    return chunks


def chat_document(given: Iterable[Event], **fields: Any) -> dict[str, Any]:
    reply = ChatReply(served_model(), request(**fields), created=77)
    for event in given:
        reply.add(event)
    data = reply.document()
    ChatCompletion.model_validate_json(data, strict=True)
    found: dict[str, Any] = json.loads(data)
    return found


def test_progress_comes_in_chunks_of_its_own_where_it_is_asked_for() -> None:
    given = [
        Reading(done=4, total=10, cached=4),
        Reading(done=10, total=10, cached=4, seconds=0.0125),
        *events(PLAIN)[3:],
    ]
    expected = [
        {"total": 10, "cache": 4, "processed": 4, "time_ms": 0},
        {"total": 10, "cache": 4, "processed": 10, "time_ms": 12},
    ]
    model, asked = served_model(), request()
    plain: ChatStream | CompletionStream
    for plain, telling, shape in (
        (ChatStream(model, asked), ChatStream(model, asked, return_progress=True), shapes.ChatChunk),
        (CompletionStream(model, asked), CompletionStream(model, asked, return_progress=True), shapes.CompletionChunk),
    ):
        chunks = streamed(telling, given)
        for chunk in chunks:
            msgspec.convert(chunk, shape)
        told = [chunk for chunk in chunks if "prompt_progress" in chunk]
        assert [chunk["prompt_progress"] for chunk in told] == expected
        for chunk in told:
            (choice,) = chunk["choices"]  # clients look at the first one of every chunk
            assert not choice.get("delta")
            assert not choice.get("text")
            assert (choice["index"], choice["finish_reason"]) == (0, None)
        others = [chunk for chunk in chunks if "prompt_progress" not in chunk]
        without = streamed(plain, given)
        assert [{**chunk, "created": 0} for chunk in others] == [{**chunk, "created": 0} for chunk in without]


def test_every_chunk_names_the_reply() -> None:
    chunks = chat_chunks(events(PLAIN), include_usage=True)
    for chunk in chunks:
        assert chunk["id"] == chunk["request_id"] == "chatcmpl-7"
        assert chunk["object"] == "chat.completion.chunk"
        assert (chunk["created"], chunk["model"], chunk["system_fingerprint"]) == (77, "tiny", "fp_test")
        assert chunk["seed"] == 0


def test_a_reply_repeats_the_name_of_the_session_where_there_is_one() -> None:
    for chunk in chat_chunks(events(PLAIN), include_usage=True, session="你好"):
        assert chunk["session_id"] == "你好"
    assert chat_document(events(PLAIN), session="你好")["session_id"] == "你好"
    assert not any("session_id" in chunk for chunk in chat_chunks(events(PLAIN), session=None))
    assert "session_id" not in chat_document(events(PLAIN), session=None)


def test_the_first_chunk_of_each_choice_has_the_role_and_the_last_one_alone_a_reason() -> None:
    chunks = chat_chunks(events(PLAIN, choices=2))
    for choice in (0, 1):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert [entry["finish_reason"] for entry in own] == [None] * (len(own) - 1) + ["stop"]
        assert own[-1]["delta"] == {}
        assert all("role" not in entry["delta"] for entry in own[1:])
        assert all(entry["logprobs"] is None for entry in own)


def test_thinking_and_answer_come_apart() -> None:
    deltas = [chunk["choices"][0]["delta"] for chunk in chat_chunks(events(PLAIN))]
    assert "".join(delta.get("content", "") for delta in deltas) == 'a\ufffd"\\\n你'
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm ok"
    assert all(delta.get("reasoning") == delta.get("reasoning_content") for delta in deltas)


@pytest.mark.parametrize(("reason", "word"), [(FinishReason.STOP, "stop"), (FinishReason.LENGTH, "length")])
def test_the_reason_is_told(reason: FinishReason, word: str) -> None:
    assert chat_chunks(events(PLAIN, reason))[-1]["choices"][0]["finish_reason"] == word
    assert chat_document(events(PLAIN, reason))["choices"][0]["finish_reason"] == word


def test_usage_comes_once_and_only_where_it_is_asked_for() -> None:
    assert not any("usage" in chunk for chunk in chat_chunks(events(PLAIN)))
    *before, last = chat_chunks(events(PLAIN, choices=2), include_usage=True)
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in before)
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 6,
        "total_tokens": 16,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }


def test_metrics_come_with_text_and_at_the_end() -> None:
    first, *others = chat_chunks(events(PLAIN))
    assert "mindnano_metrics" not in first
    assert all(chunk["mindnano_metrics"] == SHOWN_METRICS for chunk in others)
    assert chat_document(events(PLAIN))["mindnano_metrics"] == SHOWN_METRICS


def test_timings_come_at_the_end_of_each_choice_and_with_the_usage() -> None:
    """What llama-server's clients read; a chunk with text costs no more than it did."""
    chunks = chat_chunks(events(PLAIN, choices=2), include_usage=True)
    completion = completion_chunks(events((Content(text="a"),), choices=2))
    for each in (chunks, completion):
        timed = [chunk for chunk in each if "timings" in chunk]
        assert timed == [chunk for chunk in each if not chunk["choices"] or chunk["choices"][0]["finish_reason"]]
        assert [chunk["timings"] for chunk in timed[:2]] == [SHOWN_TIMINGS] * 2
        both = timed[2]["timings"]
        assert (both["prompt_n"], both["predicted_n"], both["draft_n_accepted"]) == (6, 6, 10)
        assert (both["predicted_ms"], both["predicted_per_second"]) == (2000.0, 2.0)
    assert chat_document(events(PLAIN))["timings"] == SHOWN_TIMINGS
    assert completion_document(events(PLAIN))["timings"] == SHOWN_TIMINGS


def test_timings_of_a_reply_of_one_token_without_drafts_are_numbers() -> None:
    told = msgspec.to_builtins(timings_of(Metrics(prompt=5, cached=4, generated=1, prefill_seconds=0.25)))
    expected = SHOWN_TIMINGS | {"prompt_n": 1, "prompt_ms": 250.0, "prompt_per_token_ms": 250.0, "predicted_n": 1}
    expected |= {"prompt_per_second": 4.0, "predicted_ms": 0.0}
    expected |= {"predicted_per_token_ms": 0.0, "predicted_per_second": 0.0}
    del expected["draft_n"], expected["draft_n_accepted"]
    assert told == expected


def test_the_official_client_puts_the_stream_together_as_the_document() -> None:
    for deltas, reason in ((PLAIN, FinishReason.STOP), (CALLS, FinishReason.TOOL_CALLS)):
        state = ChatCompletionStreamState()
        for chunk in chat_chunks(events(deltas, reason, choices=2), include_usage=True):
            state.handle_chunk(ChatCompletionChunk.model_validate(chunk, strict=True))
        whole = state.get_final_completion()
        document = chat_document(events(deltas, reason, choices=2))
        assert len(whole.choices) == 2
        for choice, expected in zip(whole.choices, document["choices"], strict=True):
            assert choice.finish_reason == expected["finish_reason"]
            assert (choice.message.content or None) == expected["message"]["content"]
            calls = [call.model_dump(include={"id", "type", "function"}) for call in choice.message.tool_calls or []]
            for call in calls:
                call["function"].pop("parsed_arguments", None)
            assert calls == expected["message"].get("tool_calls", [])
        assert whole.usage is not None
        assert whole.usage.total_tokens == document["usage"]["total_tokens"]


def test_calls_are_streamed_in_pieces() -> None:
    chunks = chat_chunks(events(CALLS, FinishReason.TOOL_CALLS))
    pieces = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert pieces == [
        {"index": 0, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"a": '}},
        {"index": 0, "function": {"arguments": "1}"}},
        {"index": 1, "id": "call_2", "type": "function", "function": {"name": "sub", "arguments": ""}},
        {"index": 1, "function": {"arguments": "{}"}},
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_the_document_has_everything_a_strict_client_asks_for() -> None:
    document = chat_document(events(PLAIN))
    message = {
        "role": "assistant",
        "content": 'a\ufffd"\\\n你',
        "refusal": None,
        "reasoning_content": "hm ok",
        "reasoning": "hm ok",
    }
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    assert document["choices"] == [choice]
    assert document["object"] == "chat.completion"
    assert document["system_fingerprint"] == "fp_test"
    assert document["id"] == document["request_id"] == "chatcmpl-7"
    assert document["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert document["usage"]["completion_tokens_details"] == {"reasoning_tokens": 1}


def test_content_beside_calls_is_text_or_null() -> None:
    with_text = chat_document(events(CALLS, FinishReason.TOOL_CALLS))["choices"][0]
    assert with_text["message"]["content"] == "look: "
    assert with_text["finish_reason"] == "tool_calls"
    alone = chat_document(events(CALLS[1:], FinishReason.TOOL_CALLS))["choices"][0]["message"]
    assert alone["content"] is None
    assert [call["function"]["arguments"] for call in alone["tool_calls"]] == ['{"a": 1}', "{}"]
    nothing = chat_document(events(()))["choices"][0]["message"]
    assert (nothing["content"], nothing["reasoning_content"]) == ("", None)
    assert "tool_calls" not in nothing


def test_logprobs_have_texts_bytes_and_finite_numbers() -> None:
    deltas = (Content(text="\ufffda", logprobs=LOGPROBS), Content(text="!"))
    entries = [
        {
            "token": "\ufffd",
            "bytes": [228],
            "logprob": -0.5,
            "top_logprobs": [
                {"token": "\ufffd", "bytes": [228], "logprob": -0.5},
                {"token": "a", "bytes": [97], "logprob": -2.0},
            ],
        },
        {
            "token": "a",
            "bytes": [97],
            "logprob": -9999.0,
            "top_logprobs": [
                {"token": "a", "bytes": [97], "logprob": -9999.0},
                {"token": "\ufffd", "bytes": [255], "logprob": -1.0},
            ],
        },
    ]
    document = chat_document(events(deltas), logprobs=2)
    assert document["choices"][0]["logprobs"] == {"content": entries, "refusal": None}
    chunks = chat_chunks(events(deltas), logprobs=2)
    assert [chunk["choices"][0]["logprobs"] for chunk in chunks] == [
        None,
        {"content": entries, "refusal": None},
        None,
        None,
    ]
    assert chat_chunks(events(deltas))[1]["choices"][0]["logprobs"] is None


def test_a_failure_on_the_way_is_an_error_object() -> None:
    failed = Failed(error=RequestError("deadline_exceeded", "too late", status=504, kind="timeout"))
    shown = {"error": {"message": "too late", "type": "timeout", "param": None, "code": "deadline_exceeded"}}
    for stream in (ChatStream(served_model(), request()), CompletionStream(served_model(), request())):
        assert streamed(stream, [failed]) == [shown]
    for reply in (ChatReply(served_model(), request()), CompletionReply(served_model(), request())):
        with pytest.raises(RequestError, match="too late"):
            reply.add(failed)
        with pytest.raises(InternalError):
            reply.document()


def completion_chunks(given: Iterable[Event], *, echo: str = "", **fields: Any) -> list[dict[str, Any]]:
    stream = CompletionStream(served_model(), request(**fields), include_usage=True, echo=echo, created=77)
    chunks = streamed(stream, given)
    for chunk in chunks:
        msgspec.convert(chunk, shapes.CompletionChunk)
        for choice in chunk["choices"]:  # the client's type is the one of whole replies, whose reason is never null
            choice = {**choice, "finish_reason": choice["finish_reason"] or "stop"}
            usage = chunk["usage"]
            Completion.model_validate({**chunk, "choices": [choice], "usage": usage}, strict=True)
    return chunks


def completion_document(given: Iterable[Event], *, echo: str = "", **fields: Any) -> dict[str, Any]:
    reply = CompletionReply(served_model(), request(**fields), echo=echo, created=77)
    for event in given:
        reply.add(event)
    data = reply.document()
    Completion.model_validate_json(data, strict=True)
    found: dict[str, Any] = json.loads(data)
    return found


def test_completions_stream_and_document_agree() -> None:
    given = events((Content(text="a"), Content(text="你\n")), FinishReason.LENGTH, choices=2)
    for echo in ("", "say: "):
        document = completion_document(given, echo=echo)
        chunks = completion_chunks(given, echo=echo)
        for index, choice in enumerate(document["choices"]):
            own = [chunk["choices"][0] for chunk in chunks[:-1] if chunk["choices"][0]["index"] == index]
            assert choice["text"] == echo + "a你\n" == "".join(entry["text"] for entry in own)
            assert [entry["finish_reason"] for entry in own] == [None] * (len(own) - 1) + ["length"]
            assert choice["finish_reason"] == "length"
        assert document["object"] == chunks[0]["object"] == "text_completion"
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"] == document["usage"]
        assert document["mindnano_metrics"]["cached_tokens"] == 4
        assert document["mindnano_metrics"]["generated_tokens"] == 6


def test_completions_have_logprobs_in_the_old_format() -> None:
    given = events((Content(text="\ufffda", logprobs=LOGPROBS), Content(text="a", logprobs=LOGPROBS[1:])))
    expected = {
        "tokens": ["\ufffd", "a", "a"],
        "token_logprobs": [-0.5, -9999.0, -9999.0],
        "top_logprobs": [
            {"\ufffd": -0.5, "a": -2.0},
            {"a": -9999.0, "\ufffd": -1.0},
            {"a": -9999.0, "\ufffd": -1.0},
        ],
        "text_offset": [0, 1, 2],
    }
    assert completion_document(given, logprobs=2)["choices"][0]["logprobs"] == expected
    pieces = [chunk["choices"][0]["logprobs"] for chunk in completion_chunks(given, logprobs=2)[:-1]]
    shown = [piece for piece in pieces if piece]
    for name, values in expected.items():
        assert [value for piece in shown for value in piece[name]] == values
    assert completion_document(given)["choices"][0]["logprobs"] is None
