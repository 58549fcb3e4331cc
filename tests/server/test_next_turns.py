"""A next turn that reads the whole conversation again instead of what is new."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.server_benchmark import HISTORY, long_history
from tests.support.server_process import ServerProcess

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("turns"), "--context", "8K") as running:
        yield running


def prefilled(server: ServerProcess) -> int:
    text = server.ask("GET", "/metrics").body.decode()
    (line,) = [line for line in text.splitlines() if line.startswith('mindnano_engine_tokens_total{kind="prefilled"}')]
    return int(float(line.rpartition(" ")[2]))


def ask(server: ServerProcess, messages: list[dict[str, str]], **fields: Any) -> Any:
    body = {"messages": messages, "temperature": 0, "max_tokens": 30, **fields}
    answer = server.ask("POST", CHAT, body)
    assert answer.status == 200, answer.body
    return answer.json()


def progress(server: ServerProcess, messages: list[dict[str, str]]) -> list[dict[str, int]]:
    body = {"messages": messages, "temperature": 0, "max_tokens": 3, "stream": True, "return_progress": True}
    lines = server.ask("POST", CHAT, body).body.decode().split("\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    return [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]


def test_progress_tells_what_of_the_prompt_was_there_already(server: ServerProcess) -> None:
    messages = long_history(server, 30)
    told = progress(server, messages)
    total = told[0]["total"]
    assert total >= HISTORY
    assert (told[0]["processed"], told[0]["cache"]) == (0, 0)
    assert all(each["total"] == total and each["cache"] == 0 for each in told)
    for key in ("processed", "time_ms"):
        assert [each[key] for each in told] == sorted(each[key] for each in told)
    assert told[-1]["processed"] == total
    again = progress(server, messages)
    cached = again[0]["cache"]
    assert total - 10 < cached < total
    assert [(each["cache"], each["processed"]) for each in again] == [(cached, cached), (cached, total)]


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("named", [True, False])
def test_the_next_turn_reads_only_what_is_new(server: ServerProcess, thinking: bool, named: bool) -> None:
    messages = long_history(server, 10 + 2 * thinking + named)
    fields: dict[str, Any] = {"enable_thinking": thinking} | ({"session_id": f"talk-{thinking}"} if named else {})
    first = ask(server, messages, **fields)
    before = prefilled(server)
    assert first["usage"]["prompt_tokens"] >= HISTORY
    reply = first["choices"][0]["message"]["content"]
    longer = [*messages, {"role": "assistant", "content": reply}, {"role": "user", "content": "Count from 2 to 6"}]
    second = ask(server, longer, **fields)
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    new = second["usage"]["prompt_tokens"] - first["usage"]["prompt_tokens"]
    turn = first["usage"]["completion_tokens"] + 10  # the words of the template around a reply
    assert prefilled(server) - before == second["usage"]["prompt_tokens"] - cached <= new + turn
    assert second["mindnano_metrics"]["cache_source"] == "live"
