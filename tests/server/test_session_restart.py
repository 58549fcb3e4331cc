"""A restart that loses or breaks a conversation, or a saved one that changes an answer or stops the server."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.server_process import TERMINATED, ServerProcess, eventually

QUESTIONS = ("Count from 3 to 9", "Reverse: a b c", "Repeat: apple", "Count from 2 to 6", "Reverse: x y z", "Say: moon")
BUSY = 7
KILLS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What must not depend on where a beginning came from, and where it came from."""

    text: str
    logprobs: Any
    cached: int
    source: str


def ask(server: ServerProcess, messages: Sequence[dict[str, str]], session: str | None = "talk") -> Reply:
    answer = server.ask(
        "POST",
        "/v1/chat/completions",
        {
            "messages": messages,
            "temperature": 0,
            "enable_thinking": False,
            "logprobs": True,
            "top_logprobs": 5,
            **({} if session is None else {"session_id": session}),
        },
    )
    assert answer.status == 200, answer.body
    document = answer.json()
    (choice,) = document["choices"]
    metrics = document["mindnano_metrics"]
    assert metrics["cached_tokens"] == document["usage"]["prompt_tokens_details"]["cached_tokens"]
    return Reply(
        text=choice["message"]["content"],
        logprobs=choice["logprobs"],
        cached=metrics["cached_tokens"],
        source=metrics["cache_source"],
    )


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def after(messages: Sequence[dict[str, str]], reply: Reply, question: str) -> list[dict[str, str]]:
    return [*messages, {"role": "assistant", "content": reply.text}, user(question)]


def saved_tokens(server: ServerProcess) -> int:
    (session,) = server.ask("GET", "/v1/sessions").json()["data"]
    assert (session["id"], session["place"]) == ("talk", "disk")
    return int(session["tokens"])


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.session"))


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that keeps nothing."""
    words = ("--context", "8K", "--session-cache-mib", "0", "--prefix-checkpoints", "0")
    with ServerProcess(tmp_path_factory.mktemp("cold"), *words) as server:
        yield server


def without_help(cold: ServerProcess, messages: Sequence[dict[str, str]]) -> Reply:
    ask(cold, [user("Something else entirely")], session=None)  # nothing of the conversation is in the engine
    return ask(cold, messages, session=None)


def same(given: Reply, expected: Reply) -> None:
    assert given.text == expected.text
    assert given.logprobs == expected.logprobs  # to the last bit of what is told


def start(folder: Path, *words: str) -> ServerProcess:
    return ServerProcess(folder, "--context", "8K", "--session-dir", str(folder / "sessions"), *words)


def test_a_restarted_server_goes_on_where_it_was(tmp_path: Path, cold: ServerProcess) -> None:
    first = [user(QUESTIONS[0])]
    with start(tmp_path) as server:
        reply = ask(server, first)
        assert (reply.cached, reply.source) == (0, "none")
    second = after(first, reply, QUESTIONS[1])
    with start(tmp_path) as server:
        saved = saved_tokens(server)
        again = ask(server, second)
    assert (again.cached, again.source) == (saved, "disk")
    same(again, without_help(cold, second))


def damaged_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def damaged_header(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[20] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [damaged_byte, cut_off, damaged_header])
def test_a_damaged_file_is_refused_told_and_costs_only_time(tmp_path: Path, cold: ServerProcess, damage: Any) -> None:
    first = [user(QUESTIONS[0])]
    with start(tmp_path) as server:
        reply = ask(server, first)
    (path,) = files(tmp_path / "sessions")
    damage(path)
    second = after(first, reply, QUESTIONS[1])
    with start(tmp_path) as server:
        again = ask(server, second)
        assert (again.cached, again.source) == (0, "none")
        assert path.name in server.stderr()
        assert "session-refused" in server.stderr()
    same(again, without_help(cold, second))


def test_a_second_server_is_kept_out_of_the_folder(tmp_path: Path) -> None:
    with start(tmp_path) as server:
        other = start(tmp_path)
        try:
            assert other.process.wait(60) == BUSY
        finally:
            other.kill()
        assert "session-dir-busy" in other.stderr()
        assert ask(server, [user(QUESTIONS[0])]).text


def test_another_kind_of_cache_leaves_saved_sessions_alone(tmp_path: Path) -> None:
    first = [user(QUESTIONS[0])]
    with start(tmp_path) as server:
        reply = ask(server, first)
    second = after(first, reply, QUESTIONS[1])
    with start(tmp_path, "--kv-cache", "fp16") as server:
        assert ask(server, second, session="other").source == "none"
    with start(tmp_path) as server:
        assert ask(server, second).source == "disk"


def test_a_disk_that_takes_no_more_fails_no_request(tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    first = [user(QUESTIONS[0])]
    with start(tmp_path) as server:
        limits = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (100_000, limits[1]))
        reply = ask(server, first)
        eventually(lambda: "session-unsaved" in server.stderr(), "it was told")
        assert not list(folder.iterdir())
        second = ask(server, after(first, reply, QUESTIONS[1]))
        assert second.source == "live"
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, limits)
    # There was room again when it stopped.
    with start(tmp_path) as server:
        assert saved_tokens(server) > second.cached


def kill_while_saving(server: ServerProcess, folder: Path, delay: float) -> bool:
    """Lets it stop, and kills it `delay` seconds after a file was begun; whether it was still being written."""
    begun = f"{'[0-9a-f]' * 8}*.session.partial"
    server.process.send_signal(signal.SIGTERM)
    while server.process.poll() is None and not any(folder.glob(begun)):
        pass
    if delay:
        time.sleep(delay)
    server.process.kill()
    server.process.wait()
    return any(folder.glob(begun))


@pytest.mark.slow
def test_a_kill_while_saving_leaves_the_old_or_the_new_session(tmp_path: Path, cold: ServerProcess) -> None:
    folder = tmp_path / "sessions"
    draw = random.Random(5)
    # A long beginning makes a large file.
    filler = "The cat sleeps under the table near the river. " * 120
    messages = [{"role": "system", "content": filler}, user(QUESTIONS[0])]
    with start(tmp_path) as server:
        reply = ask(server, messages)
        assert reply.source == "none"
    hit = 0
    old = reply.cached
    for turn in range(1, KILLS + 1):
        messages = after(messages, reply, QUESTIONS[turn % len(QUESTIONS)])
        server = start(tmp_path)
        with contextlib.ExitStack() as ending:
            ending.callback(server.kill)
            server.wait_ready()
            assert not list(folder.glob("*.partial"))
            kept = saved_tokens(server)
            reply = ask(server, messages)
            assert reply.source == "disk"
            assert old < reply.cached <= kept
            same(reply, without_help(cold, messages))
            assert "session-refused" not in server.stderr()
            old = min(reply.cached, kept) - 1
            hit += kill_while_saving(server, folder, draw.choice((0.0, draw.uniform(0, 0.02), draw.uniform(0.05, 0.5))))
    print(f"{hit} of {KILLS} kills left an unfinished file")
    with start(tmp_path) as server:
        last = after(messages, reply, "Repeat: apple")
        final = ask(server, last)
        assert final.source == "disk"
        same(final, without_help(cold, last))
    assert hit > 0
    assert server.process.returncode == TERMINATED


def test_the_folder_is_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    with start(tmp_path) as server:
        ask(server, [user(QUESTIONS[0])])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in files(folder)} == {0o600}
    text = b"".join(path.read_bytes() for path in files(folder))
    assert b"Count from" not in text
