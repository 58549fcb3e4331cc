"""Requests that cannot be stopped, halted or gone on with; sessions and tokens that are not what the engine has."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest
from openai import OpenAI

from launcher.engine import Package
from tests.support.demo import require_demo
from tests.support.openai_client import LIST, LISTED, LONG, MODEL, long_text, openai_client, user
from tests.support.server_process import RawStream, ServerProcess, eventually

QUESTIONS = {
    "What is the capital of France?": "The capital of France is Paris.",
    LIST: LISTED,
    "Count from 1 to 5.": "1 2 3 4 5",
    "What is 17 + 25?": "17+25=42",
    "Copy: red green blue": "red green blue",
}
READ = 4000  # tokens of a prompt that is read in many slices


@pytest.fixture(scope="module")
def client(live: ServerProcess) -> Iterator[OpenAI]:
    with openai_client(live) as opened:
        yield opened


def control(server: ServerProcess, word: str, id: str) -> int:
    return server.ask("POST", f"/v1/{word}", {"request_id": id}).status


def content(stream: RawStream) -> str:
    """The rest of the answer."""
    return "".join(choice["delta"].get("content", "") for chunk in stream.chunks() for choice in chunk["choices"])


def queue(server: ServerProcess) -> dict[str, int]:
    state: dict[str, int] = server.props()["queue"]
    return state


@pytest.mark.parametrize("thinking", [True, False])
def test_cancel_while_a_reply_is_written(live: ServerProcess, thinking: bool) -> None:
    """Also in the thinking, before any answer text."""
    with live.stream({"messages": user(LIST), "enable_thinking": thinking, **LONG}) as stream:
        first = stream.until_text()
        assert ("reasoning_content" in first["choices"][0]["delta"]) == thinking
        before = live.metric("mindnano_tokens_total")
        assert control(live, "cancel", stream.id) == 200
        *_, last = stream
    assert '"code":"cancelled"' in last
    live.wait_idle()
    assert live.metric("mindnano_tokens_total") - before < 4000
    assert control(live, "cancel", stream.id) == 404


def test_cancel_while_a_prompt_is_read(live: ServerProcess) -> None:
    with live.stream({"prompt": [30] * READ}, path="/v1/completions") as stream:
        assert any(line.startswith(": prefill") for line in stream)
        assert control(live, "cancel", stream.id) == 200
        told = list(stream)
    assert '"code":"cancelled"' in told[-1]
    last = [line for line in told if line.startswith(": prefill")]
    done, _, total = (last or [": prefill 0/1"])[-1].removeprefix(": prefill ").partition("/")
    assert int(done) < int(total)
    live.wait_idle()


def test_cancel_while_waiting_and_nobody_else_is_touched(live: ServerProcess) -> None:
    with live.stream({"messages": user(LIST), **LONG}) as running:
        running.until_text()
        with live.stream({"messages": user(LIST)}) as waiting, live.stream({"messages": user(LIST)}) as third:
            assert next(iter(waiting)) == ": accepted"
            eventually(lambda: queue(live)["waiting"] == 2, "two wait")
            assert control(live, "cancel", waiting.id) == 200
            assert '"code":"cancelled"' in list(waiting)[-1]
            assert queue(live)["running"] == 1
            assert control(live, "cancel", running.id) == 200
            assert content(third) == LISTED
    live.wait_idle()


def test_a_paused_request_keeps_its_text_and_the_next_one_runs(live: ServerProcess, client: OpenAI) -> None:
    alone = (
        client.chat.completions.create(model=MODEL, messages=user(LIST), extra_body=LONG, max_tokens=1500)
        .choices[0]
        .message.content
    )
    with live.stream({"messages": user(LIST), **LONG, "max_tokens": 1500}) as stream:
        stream.until_text()
        assert control(live, "pause", stream.id) == 200
        eventually(lambda: queue(live)["paused"] == 1, "paused")
        eventually(lambda: queue(live)["running"] == 0, "nothing runs")
        for question, answer in QUESTIONS.items():
            said = client.chat.completions.create(model=MODEL, messages=user(question)).choices[0].message.content
            assert said == answer
        assert control(live, "resume", stream.id) == 200
        assert content(stream) == alone
    assert control(live, "pause", stream.id) == 404
    assert control(live, "resume", stream.id) == 404


@pytest.mark.parametrize("phase", ["waiting", "reading", "writing", "paused"])
def test_a_client_that_leaves_leaves_no_work(live: ServerProcess, phase: str) -> None:
    gone = live.metric("mindnano_clients_gone_total")
    asked: dict[str, Any] = {"messages": user(LIST), **LONG}
    path = "/v1/chat/completions"
    if phase == "reading":
        asked, path = {"prompt": [31] * READ}, "/v1/completions"
    with live.stream({"messages": user(LIST), **LONG}) as other:
        if phase == "waiting":
            other.until_text()
        else:
            control(live, "cancel", other.id)
            list(other)
        with live.stream(asked, path=path) as stream:
            if phase == "reading":
                assert any(line.startswith(": prefill") for line in stream)
            elif phase != "waiting":
                stream.until_text()
            if phase == "paused":
                assert control(live, "pause", stream.id) == 200
                eventually(lambda: queue(live)["paused"] == 1, "paused")
        left = {"waiting": 1}.get(phase, 0)
        eventually(lambda: queue(live)["running"] == left, "gone")
        eventually(lambda: queue(live)["waiting"] == 0, "gone from the queue")
        eventually(lambda: queue(live)["paused"] == 0, "gone from the paused ones")
    live.wait_idle()
    assert live.metric("mindnano_clients_gone_total") > gone


def test_clients_at_the_same_time_get_their_own_answers(live: ServerProcess, client: OpenAI) -> None:
    asked = list(QUESTIONS) * 3

    def ask(question: str) -> str | None:
        reply = client.chat.completions.create(model=MODEL, messages=user(question), user=f"user of {question}")
        return reply.choices[0].message.content

    with ThreadPoolExecutor(5) as pool:
        assert list(pool.map(ask, asked)) == [QUESTIONS[question] for question in asked]


def test_health_is_answered_while_the_engine_works(live: ServerProcess) -> None:
    with live.stream({"messages": user(LIST), **LONG}) as stream:
        stream.until_text()
        for _ in range(20):
            assert live.ask("GET", "/health").json() == {"status": "ok"}
            assert live.ask("GET", "/readyz").status == 200
        assert queue(live)["running"] == 1


def test_the_model_has_a_layer_for_drafts_and_whether_it_is_in_use_are_told_alike(live: ServerProcess) -> None:
    meta = live.ask("GET", "/v1/models").json()["data"][0]["meta"]
    props = live.props()
    with Package(require_demo()) as package:
        assert meta["has_mtp_layer"] is props["has_mtp_layer"] is package.has_mtp
    assert meta["mtp"] is props["mtp"] is False


def test_a_session_has_one_name_in_body_header_and_path(live: ServerProcess) -> None:
    name = "Gespräch 你好"
    header = {"X-Session-Id": name.encode().decode("latin-1")}
    body = {"messages": user("Hello!"), "max_tokens": 1}
    assert live.ask("POST", "/v1/chat/completions", body, headers=header).status == 200
    assert name in {session["id"] for session in live.ask("GET", "/v1/sessions").json()["data"]}
    assert live.ask("DELETE", f"/v1/sessions/{quote(name)}").status == 200


@pytest.mark.parametrize("name", ["session_id", "prompt_cache_key", "user", "metadata", "header"])
def test_a_session_goes_on_where_it_was(live: ServerProcess, name: str) -> None:
    id = f"session of {name}"
    named: dict[str, Any] = {"metadata": {"session_id": id}} if name == "metadata" else {name: id}
    headers = {"X-Session-Id": id} if name == "header" else {}
    body: dict[str, Any] = {} if name == "header" else named

    def ask(messages: list[Any]) -> Any:
        answer = live.ask("POST", "/v1/chat/completions", {"messages": messages, **body}, headers=headers)
        assert answer.status == 200
        assert answer.headers["x-session-id"] == id
        return answer.json()

    messages: list[Any] = [{"role": "system", "content": f"{name} {long_text(200)}"}, *user(LIST)]
    first = ask(messages)
    live.ask("POST", "/v1/chat/completions", {"messages": user(long_text(30))})
    told = first["choices"][0]["message"]
    reply = {"role": "assistant", "content": told["content"], "reasoning_content": told["reasoning_content"]}
    second = ask([*messages, reply, *user("Hello!")])
    whole = first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert whole - 2 <= cached < second["usage"]["prompt_tokens"]
    assert second["mindnano_metrics"]["cache_source"] == "ram"
    third = ask([*messages, reply, *user("What is 17 + 25?")])
    cold = live.ask("POST", "/v1/chat/completions", {"messages": [*messages, reply, *user("What is 17 + 25?")]})
    assert third["choices"] == cold.json()["choices"]
    assert third["usage"]["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"]

    listed = {session["id"]: session for session in live.ask("GET", "/v1/sessions").json()["data"]}
    assert listed[id]["tokens"] >= whole
    deleted = live.ask("DELETE", f"/v1/sessions/{id.replace(' ', '%20')}")
    assert deleted.json() == {"id": id, "object": "session.deleted", "deleted": True}
    assert id not in {session["id"] for session in live.ask("GET", "/v1/sessions").json()["data"]}
    assert live.ask("DELETE", f"/v1/sessions/{id.replace(' ', '%20')}").status == 404


def test_tokens_are_those_of_the_engine(live: ServerProcess) -> None:
    texts = ["", "Hello, world!", "瑞芯微 RK3588 👍🏽", "<think>a</think>", "<|role_end|>", " \n\t ", "é" * 100]
    with Package(require_demo()) as package:
        for text in texts:
            for special in (True, False):
                asked = {"content": text, "parse_special": special}
                ids = live.ask("POST", "/tokenize", asked).json()
                assert ids["tokens"] == package.tokenize(text, special=special), text
                assert ids["count"] == len(ids["tokens"])
                assert live.ask("POST", "/detokenize", {"tokens": ids["tokens"]}).json() == {"content": text}
        prompt = live.ask("POST", "/apply-template", {"messages": user(LIST)}).json()["prompt"]
        ids = live.ask("POST", "/tokenize", {"messages": user(LIST)}).json()["tokens"]
        assert ids == package.tokenize(prompt)
        parts = [token for token in range(package.config.token_count) if not _is_text(package.token_bytes(token))]
        answer = live.ask("POST", "/detokenize", {"tokens": parts[:1]})
        assert "\ufffd" in answer.json()["content"]
    assert live.ask("POST", "/detokenize", {"tokens": [10**6]}).status == 400


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_a_prompt_that_was_counted_has_that_many_tokens(live: ServerProcess, client: OpenAI) -> None:
    switches: tuple[dict[str, Any], ...] = (
        {},
        {"enable_thinking": False},
        {"reasoning_effort": "none"},
        {"thinking": {"type": "disabled"}},
        {"chat_template_kwargs": {"enable_thinking": False}},
    )
    counts = []
    for switch in switches:
        counts.append(live.ask("POST", "/tokenize", {"messages": user(LIST), **switch}).json()["count"])
        reply = client.chat.completions.create(model=MODEL, messages=user(LIST), max_tokens=1, extra_body=switch)
        assert reply.usage is not None
        assert reply.usage.prompt_tokens == counts[-1], switch
    assert len(set(counts[1:])) == 1
    assert counts[1] != counts[0]


def test_properties_and_metrics_tell_what_runs(live: ServerProcess) -> None:
    props = live.props()
    assert (props["model"], props["context"], props["kv_cache"]) == (MODEL, 4096, "bf16")
    assert props["memory"]["resident_bytes"] > 0
    with live.stream({"messages": user(LIST), **LONG}) as stream:
        stream.until_text()
        eventually(lambda: live.metric("mindnano_queue_requests") == 1, "one request in the metrics")
    live.wait_idle()
    assert live.metric("mindnano_queue_requests") == 0
    assert live.metric("mindnano_ready") == 1
