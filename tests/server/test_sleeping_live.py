"""Real memory that does not go, does not come back or leaks; an answer that is another one after waking."""

from __future__ import annotations

import json
import resource
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.demo import require_demo
from tests.support.mapped import mapped_bytes, resident_bytes
from tests.support.server_process import TERMINATED, ServerProcess, eventually

SOON = ("--sleep-idle-seconds", "0.3")
QUESTION = "Count from 3 to 9"


def turn(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def ask(server: ServerProcess, messages: list[dict[str, str]], session: str | None = None) -> Any:
    body = {"messages": messages, "temperature": 0, "enable_thinking": False, "logprobs": True, "top_logprobs": 3}
    answer = server.ask("POST", "/v1/chat/completions", body if session is None else {**body, "session_id": session})
    assert answer.status == 200, answer.body
    return answer.json()


def said(document: Any) -> tuple[str, Any]:
    """Everything that must not depend on a sleep."""
    (choice,) = document["choices"]
    return choice["message"]["content"], choice["logprobs"]


def reuse(document: Any) -> tuple[int, str]:
    metrics = document["mindnano_metrics"]
    return metrics["cached_tokens"], metrics["cache_source"]


def wait_asleep(server: ServerProcess) -> None:
    eventually(lambda: server.metric("mindnano_sleeping") == 1, "asleep")


def log_lines(path: Path, *events: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["event"] in events]


@pytest.fixture(scope="module")
def awake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that never sleeps, to compare with."""
    with ServerProcess(tmp_path_factory.mktemp("awake")) as server:
        yield server


def test_the_memory_goes_and_comes_and_the_answer_stays(tmp_path: Path, awake: ServerProcess) -> None:
    package, log = require_demo(), tmp_path / "log"
    with ServerProcess(tmp_path, *SOON, "--log", str(log), "--context", "8K") as server:
        pid = server.process.pid
        first = ask(server, turn(QUESTION), "talk")
        assert said(first) == said(ask(awake, turn(QUESTION)))
        loaded = server.props()["memory"]["predicted_idle_bytes"]
        wait_asleep(server)
        assert mapped_bytes(pid, package) < package.stat().st_size // 4  # at most what was tokenised meanwhile
        assert mapped_bytes(pid, package, "Pss") <= mapped_bytes(pid, package)
        asleep = resident_bytes(pid)
        assert asleep < loaded

        # What wakes nobody, and tells.
        assert server.ask("GET", "/health").json() == {"status": "ok", "sleeping": True}
        ready = server.ask("GET", "/readyz")
        assert (ready.status, ready.json()) == (200, {"status": "ready", "sleeping": True})
        assert server.props()["is_sleeping"] is True
        for path in ("/v1/models", "/v1/sessions", "/", "/openapi.json"):
            assert server.ask("GET", path).status == 200
        assert server.ask("POST", "/tokenize", {"content": QUESTION}).json()["count"] > 0
        assert server.ask("POST", "/v1/chat/completions", {"messages": []}).status == 400
        assert (server.metric("mindnano_sleeping"), server.metric("mindnano_sleeps_total")) == (1, 1)

        again = ask(server, turn(QUESTION), "talk")
        assert said(again) == said(first)
        assert reuse(again)[1] == "ram"
        wait_asleep(server)
        assert server.metric("mindnano_sleeps_total") == 2
    lines = log_lines(log, "sleeping", "woken")
    assert [line["event"] for line in lines] == ["sleeping", "woken", "sleeping"]
    for line in lines:
        assert line["bytes"] > package.stat().st_size // 2
        assert line["seconds"] >= 0
        assert line["resident_bytes"] > 0
    assert lines[0]["idle_seconds"] >= 0.3
    assert lines[1]["slept_seconds"] > 0


def test_while_a_request_runs_the_whole_package_is_resident(tmp_path: Path) -> None:
    package = require_demo()
    with ServerProcess(tmp_path, *SOON) as server:
        wait_asleep(server)
        with server.stream({"messages": turn(QUESTION), "ignore_eos": True, "max_tokens": 4000}) as stream:
            stream.until_text()
            pid = server.process.pid
            assert mapped_bytes(pid, package) == mapped_bytes(pid, package, "Size") > package.stat().st_size // 2
            health = server.ask("GET", "/health").json()
            assert (health, server.props()["is_sleeping"]) == ({"status": "ok"}, False)


@pytest.mark.parametrize("place", ["ram", "disk"])
def test_conversations_reuse_as_much_as_without_a_sleep(place: str, tmp_path: Path, awake: ServerProcess) -> None:
    """Three turns each, two conversations in turn, the last turn of one going back to its first.

    What went back to no more than others share is another conversation of that name; the earlier one stays in memory.
    """
    options = ("--session-dir", str(tmp_path / "kept")) if place == "disk" else ()
    with ServerProcess(tmp_path, *SOON, *options) as server:
        talks: dict[str, list[dict[str, str]]] = {f"a-{place}": [], f"b-{place}": []}
        for number in range(3):
            for name, messages in talks.items():
                messages += turn(f"Say: moon {number}{name}")
                expected, found = ask(awake, messages, name), ask(server, messages, name)
                assert said(found) == said(expected)
                if messages[1:]:
                    assert reuse(found) == (reuse(expected)[0], place)
                    assert reuse(found)[0] > 0
                messages.append({"role": "assistant", "content": said(found)[0]})
                wait_asleep(server)
        if place == "disk":
            assert server.props()["sessions"]["bytes"] == 0
        for name, messages in talks.items():
            branch = [*messages[:2], *turn("Repeat: apple")]
            expected, found = ask(awake, branch, name), ask(server, branch, name)
            assert said(found) == said(expected)
            assert reuse(found)[0] == reuse(expected)[0] > 0
            wait_asleep(server)
        if place == "disk":
            kept = server.ask("GET", "/v1/sessions").json()["data"]
            assert [entry["place"] for entry in kept] == ["disk", "disk"]


def test_many_sleeps_leak_nothing(tmp_path: Path, awake: ServerProcess) -> None:
    expected = said(ask(awake, turn(QUESTION)))
    with ServerProcess(tmp_path, "--sleep-idle-seconds", "0.01") as server:
        server.warm_up()
        pid = server.process.pid
        seen = []
        for number in range(25):
            assert said(ask(server, turn(QUESTION), "talk")) == expected
            eventually(lambda: server.metric("mindnano_sleeping") == 1, "asleep")
            seen.append((resident_bytes(pid), resident_bytes(pid, "VmSize"), server.threads()))
            if number == 4:
                descriptors = len(server.descriptors())
        settled = seen[5:]
        assert max(size for _, size, _ in settled) - min(size for _, size, _ in settled) < 8 << 20
        assert settled[-1][0] - settled[0][0] < 4 << 20
        assert settled[-1][2] <= settled[0][2]
        eventually(lambda: len(server.descriptors()) <= descriptors, "descriptors as before")
        assert server.metric("mindnano_sleeps_total") >= 25


def test_requests_at_the_very_moment_of_falling_asleep(tmp_path: Path, awake: ServerProcess) -> None:
    """Answers come all, and right, whatever the distance to the last one; tokenising goes on beside it."""
    expected = said(ask(awake, turn(QUESTION)))
    with ServerProcess(tmp_path, "--sleep-idle-seconds", "0.02") as server:

        def tokenise(_: int) -> int:
            return int(server.ask("POST", "/tokenize", {"content": QUESTION * 200}).json()["count"])

        with ThreadPoolExecutor(2) as pool:
            counts = [pool.submit(tokenise, number) for number in range(60)]
            for number in range(40):
                assert said(ask(server, turn(QUESTION), None if number % 2 else "talk")) == expected
                time.sleep(0.02 + (number - 20) / 4000)
            assert len({count.result() for count in counts}) == 1
        assert server.metric("mindnano_sleeps_total") > 0


def test_a_client_that_leaves_at_once_leaves_a_server_that_sleeps(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, *SOON) as server:
        for _ in range(5):
            wait_asleep(server)
            with server.stream({"messages": turn(QUESTION)}):
                pass
        server.wait_idle()
        wait_asleep(server)


def _asleep(server: ServerProcess) -> None:
    wait_asleep(server)


def _falling(server: ServerProcess) -> None:
    ask(server, turn(QUESTION), "talk")
    time.sleep(0.3)


def _waking(server: ServerProcess) -> None:
    wait_asleep(server)
    with suppress(OSError), server.stream({"messages": turn(QUESTION), "max_tokens": 8}) as stream:
        next(iter(stream))


@pytest.mark.parametrize("moment", [_asleep, _falling, _waking], ids=["asleep", "falling asleep", "waking"])
def test_it_ends_cleanly_in_every_moment(moment: Callable[[ServerProcess], None], tmp_path: Path) -> None:
    """And what was said before is there in the next life, whether it ended well or was killed when it was saved."""
    folder = tmp_path / "kept"
    with ServerProcess(tmp_path, *SOON, "--session-dir", str(folder)) as server:
        first = ask(server, turn(QUESTION), "talk")
        moment(server)
        assert server.end(signal.SIGTERM) == TERMINATED
    server = ServerProcess(tmp_path, *SOON, "--session-dir", str(folder))
    try:
        server.wait_ready()
        again = ask(server, turn(QUESTION), "talk")
        assert (said(again), reuse(again)[1]) == (said(first), "disk")
        wait_asleep(server)
        moment(server)
    finally:
        server.kill()
    assert not list(folder.glob("*.partial")) or moment is not _asleep
    with ServerProcess(tmp_path, "--session-dir", str(folder)) as server:
        again = ask(server, turn(QUESTION), "talk")
        assert (said(again), reuse(again)[1]) == (said(first), "disk")


def test_too_little_memory_is_a_503_and_the_server_lives(tmp_path: Path) -> None:
    """The system refuses the engine's session, and later no longer."""
    with ServerProcess(tmp_path, *SOON, "--context", "8K", "--kv-cache", "f32", "--prefix-checkpoints", "64") as server:
        pid = server.process.pid
        server.warm_up()
        expected = said(ask(server, turn(QUESTION)))
        before = resident_bytes(pid, "VmData")
        wait_asleep(server)
        freed = before - resident_bytes(pid, "VmData")
        assert freed > 8 << 20
        was = resource.prlimit(pid, resource.RLIMIT_DATA, (resident_bytes(pid, "VmData") + freed // 2, -1))
        for _ in range(3):
            answer = server.ask("POST", "/v1/chat/completions", {"messages": turn(QUESTION)})
            assert answer.status == 503
            assert int(answer.headers["retry-after"]) > 0
            error = answer.json()["error"]
            assert error["code"] == "memory_short"
            assert "too little" in error["message"]
            assert server.props()["is_sleeping"] is True
        resource.prlimit(pid, resource.RLIMIT_DATA, was)
        assert said(ask(server, turn(QUESTION))) == expected


def test_it_is_off_unless_it_is_asked_for(tmp_path: Path) -> None:
    for options in ((), ("--sleep-idle-seconds", "0")):
        with ServerProcess(tmp_path, *options) as server:
            ask(server, turn(QUESTION))
            assert server.metric("mindnano_sleeping") == server.metric("mindnano_sleeps_total") == 0
            assert server.props()["is_sleeping"] is False
