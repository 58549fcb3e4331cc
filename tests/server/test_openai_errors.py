"""Errors that the official client does not raise as the class that applications handle."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.support.openai_client import LIST, LISTED, LONG, MODEL, openai_client, user
from tests.support.server_process import ServerProcess, eventually

KEYS = ("key-of-one", "key-of-another")


@pytest.fixture(scope="module")
def client(live: ServerProcess) -> Iterator[OpenAI]:
    with openai_client(live) as opened:
        yield opened


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("settings", "param", "code"),
    [
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_completion_tokens": -1}, "max_completion_tokens", "invalid_value"),
        ({"n": 0}, "n", "invalid_value"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"extra_body": {"min_p": 1.1}}, "min_p", "invalid_value"),
        ({"logit_bias": {"123456": 1}}, "logit_bias.123456", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0].type",
            "invalid_value",
        ),
        ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "fish"}}}},
            "response_format.json_schema.schema",
            None,
        ),
        ({"extra_body": {"chat_template_kwargs": {"colour": 1}}}, "chat_template_kwargs.colour", "unknown_field"),
        ({"extra_body": {"session_id": "a\nb"}}, "session_id", "invalid_value"),
    ],
    ids=str,
)
def test_a_bad_request_names_the_field(
    client: OpenAI, settings: dict[str, Any], param: str, code: str | None, stream: bool
) -> None:
    """With its status, before the first byte, streamed or not."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": MODEL, "messages": user(LIST), "stream": stream, **settings})
    assert caught.value.status_code == 400
    assert caught.value.param == param
    assert code in (None, caught.value.code)
    assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"messages": "\xff"}', b"null", b"[" * 5000])
def test_a_broken_body_leaves_the_server_alive(live: ServerProcess, client: OpenAI, body: bytes) -> None:
    with pytest.raises(openai.BadRequestError):
        client.post("/chat/completions", cast_to=object, content=body)
    assert live.process.poll() is None


def test_another_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4", messages=user(LIST))
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        client.get("/nothing", cast_to=object)


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_beyond_the_context_has_both_counts(client: OpenAI, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=user("red " * 5000), stream=stream)
    assert caught.value.code == "context_length_exceeded"
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["n_ctx"] == 4096
    assert caught.value.body["n_prompt_tokens"] > 5000
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt=[20] * 4096, stream=stream)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")


def test_a_deadline_ends_a_request_that_writes(client: OpenAI, live: ServerProcess) -> None:
    """Whole: its own status; streamed: an error event that the client raises, and no [DONE]."""
    asked: dict[str, Any] = {"model": MODEL, "messages": user(LIST), "extra_body": {**LONG, "timeout": 0.5}}
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(**asked)
    assert caught.value.status_code == 504
    with pytest.raises(openai.APIError) as told:
        list(client.chat.completions.create(**asked, stream=True))
    assert told.value.code == caught.value.code
    with live.stream({"messages": user(LIST), **LONG, "timeout": 0.5}) as stream:
        lines = list(stream)
    assert lines[-1].startswith('data: {"error":')
    assert "data: [DONE]" not in lines
    live.wait_idle()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_client_with_its_usual_retries_repeats_no_work_in_vain(live: ServerProcess, path: str) -> None:
    """A deadline is met once, not three times, and what was cancelled is not run again whole."""
    sent: list[object] = []
    body = {"messages": user(LIST), "input": LIST, **LONG}
    body.pop("messages" if path == "/v1/responses" else "input")
    http = openai.DefaultHttpxClient(event_hooks={"request": [sent.append]})
    with OpenAI(base_url=live.url, api_key="none", http_client=http) as usual:
        assert usual.max_retries > 0
        with pytest.raises(openai.InternalServerError) as late:
            usual.post(path, cast_to=object, body={**body, "timeout": 0.3})
        assert late.value.status_code == 504
        assert len(sent) == 1
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(usual.post, path, cast_to=object, body={**body, "request_id": "to-be-cancelled"})
            cancel = {"request_id": "to-be-cancelled"}
            eventually(lambda: live.ask("POST", "/v1/cancel", cancel).status == 200, "cancelled")
            with pytest.raises(openai.ConflictError) as cancelled:
                asked.result(60)
        assert cancelled.value.code == "cancelled"
        assert len(sent) == 2


def test_the_clients_own_timeout_ends_the_work(client: OpenAI, live: ServerProcess) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(model=MODEL, messages=user(LIST), extra_body=LONG, timeout=0.3)
    eventually(lambda: live.metric("mindnano_clients_gone_total") > 0, "the server noticed")
    live.wait_idle()


def test_a_full_queue_is_a_rate_limit_with_seconds_to_wait(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--queue", "1") as server, openai_client(server) as client:
        asked = {"messages": user(LIST), **LONG}
        with server.stream(asked) as running:
            running.until_text()
            with server.stream(asked) as waiting:
                assert waiting.status == 200
                eventually(lambda: server.props()["queue"]["waiting"] == 1, "one waits")
                for stream in (False, True):
                    with pytest.raises(openai.RateLimitError) as caught:
                        client.chat.completions.create(model=MODEL, messages=user(LIST), stream=stream)
                    assert int(caught.value.response.headers["Retry-After"]) > 0
                    assert caught.value.code == "queue_full"
                assert next(iter(waiting)) == ": accepted"
                assert next(iter(waiting)) == ": queue position 1"
        server.wait_idle()
        assert client.chat.completions.create(model=MODEL, messages=user(LIST)).choices[0].message.content == LISTED


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("guarded")
    keys = folder / "keys"
    keys.write_text(f"# keys\n{KEYS[1]}\n", encoding="utf-8")
    keys.chmod(0o600)
    with ServerProcess(folder, "--api-key", KEYS[0], "--api-key-file", str(keys), key=KEYS[0]) as server:
        yield server


def test_without_a_key_nothing_is_answered(guarded: ServerProcess) -> None:
    for key in ("none", "key-of-on", "key-of-one2"):
        with openai_client(guarded, key) as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                client.chat.completions.create(model=MODEL, messages=user(LIST))
            assert caught.value.code == "invalid_api_key"
            with pytest.raises(openai.AuthenticationError):
                client.models.list()
    for key in KEYS:
        with openai_client(guarded, key) as client:
            assert [model.id for model in client.models.list()] == [MODEL]


def test_with_keys_any_name_of_this_machine_is_answered_to_but_no_other_page(guarded: ServerProcess) -> None:
    """A router's name for a board is not known to the board, and a page that points a name here has no key."""
    named = {"Host": "rock5.lan:9092"}
    assert guarded.ask("GET", "/v1/models", headers=named).status == 200
    assert guarded.ask("GET", "/v1/models", headers={**named, "Authorization": "Bearer none"}).status == 401
    page = {**named, "Origin": "https://evil.example"}
    refused = guarded.ask("POST", "/tokenize", {"content": "x"}, headers=page)
    assert (refused.status, refused.json()["error"]["code"]) == (403, "origin_not_allowed")


def test_sessions_and_requests_of_another_key_are_out_of_reach(guarded: ServerProcess) -> None:
    with openai_client(guarded, KEYS[0]) as one, openai_client(guarded, KEYS[1]) as other:
        asked: dict[str, Any] = {"model": MODEL, "messages": user(LIST), "extra_body": {"session_id": "mine"}}
        one.chat.completions.create(**asked)
        listed: Any = one.get("/sessions", cast_to=object)
        assert [session["id"] for session in listed["data"]] == ["mine"]
        listed = other.get("/sessions", cast_to=object)
        assert listed["data"] == []
        with pytest.raises(openai.NotFoundError):
            other.delete("/sessions/mine", cast_to=object)
        with guarded.stream({"messages": user(LIST), **LONG}) as stream:
            stream.until_text()
            with pytest.raises(openai.NotFoundError) as caught:
                other.post("/cancel", cast_to=object, body={"request_id": stream.id})
            assert caught.value.code == "request_not_found"
            one.post("/cancel", cast_to=object, body={"request_id": stream.id})
            assert '"code":"cancelled"' in list(stream)[-1]
