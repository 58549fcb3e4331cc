"""An answer that is lost or mixed up, memory that grows, or a thread, descriptor or request that stays, under load.

LOAD_SECONDS (120) is how long fifty clients ask, leave, cancel and pause, after a quarter of that for warming up.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.server_process import ServerProcess, nothing_left

SECONDS = float(os.environ.get("LOAD_SECONDS", "120"))
CLIENTS = 50
QUEUE = 24
"""Fewer than clients, so that some are refused."""

WARM_UP = SECONDS / 4
MINUTE = min(60.0, SECONDS / 2)
GROWTH = 0.02
PATIENCE = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A question with the client's own words in it; the model alone has said what comes of it."""

    messages: list[dict[str, str]]
    thinking: bool
    expected: str
    reasoning: str


@dataclass(slots=True)
class Tally:
    """What came of all requests. `add` may be called by any thread."""

    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, end: str, fault: str | None = None) -> None:
        with self.lock:
            self.ends[end] += 1
            if fault is not None:
                self.wrong.append(fault)


@dataclass(slots=True)
class Heard:
    """A stream as far as it was read."""

    content: str = ""
    reasoning: str = ""
    finish: list[str] = field(default_factory=list)
    done: int = 0
    error: dict[str, Any] | None = None
    ids: set[str] = field(default_factory=set)

    def take(self, line: bytes) -> None:
        if not line.startswith(b"data: "):
            return
        data = line.removeprefix(b"data: ").strip()
        assert self.error is None, "something came after the error"
        assert not self.done, "something came after [DONE]"
        if data == b"[DONE]":
            self.done += 1
            return
        document = json.loads(data)
        if "error" in document:
            self.error = document["error"]
            return
        self.ids.add(document["id"])
        for choice in document["choices"]:
            self.content += choice["delta"].get("content") or ""
            self.reasoning += choice["delta"].get("reasoning_content") or ""
            if choice["finish_reason"]:
                self.finish.append(choice["finish_reason"])


def marker(number: int) -> str:
    """Three letters and a number that no other client has."""
    letters = " ".join("abcdefghijklmnopqrstuvwxyz"[(number * step + step) % 26] for step in (1, 3, 7))
    return f"{letters} {number}"


def questions(number: int) -> list[str]:
    text = marker(number)
    return [f"Repeat: {text}", f"Reverse: {text}", f"Count from {number % 9 + 1} to {number % 9 + 2 + number // 9}"]


def tasks_of(server: ServerProcess, number: int) -> list[Task]:
    """The client's questions with the answers that each one gets alone."""
    made = []
    for text, thinking in itertools.product(questions(number), (True, False)):
        messages = [{"role": "user", "content": text}]
        body = {"messages": messages, "temperature": 0, "max_tokens": 60, "enable_thinking": thinking}
        message = server.ask("POST", "/v1/chat/completions", body).json()["choices"][0]["message"]
        reasoning = message["reasoning_content"] or ""
        made.append(Task(messages=messages, thinking=thinking, expected=message["content"], reasoning=reasoning))
    return made


class Client(threading.Thread):
    """Asks one question after the other until the time is over."""

    def __init__(self, server: ServerProcess, number: int, tasks: list[Task], tally: Tally, end: float) -> None:
        super().__init__(name=f"client {number}")
        self._server = server
        self._number = number
        self._tasks = tasks
        self._tally = tally
        self._end = end
        self._draw = random.Random(number)
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            while time.monotonic() < self._end:
                self._ask(self._draw.choice(self._tasks))
        except BaseException as error:
            self.problem = error

    def _ask(self, task: Task) -> None:
        way = self._draw.choices(("whole", "leave", "cancel", "pause"), weights=(70, 14, 8, 8))[0]
        body: dict[str, Any] = {
            "messages": task.messages,
            "temperature": 0,
            "max_tokens": 60,
            "enable_thinking": task.thinking,
            "stream": True,
        }
        if self._draw.random() < 0.5:
            body["session_id"] = f"client-{self._number}"
        if way in {"leave", "cancel", "pause"}:
            body |= {"ignore_eos": True, "max_tokens": 300}
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=PATIENCE)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            if way == "leave" and self._draw.random() < 0.3:
                self._tally.add("left before the head")
                return
            answer = connection.getresponse()
            if answer.status == 429:
                retry = answer.getheader("Retry-After", "")
                answer.read()
                self._refused(retry)
                return
            self._follow(answer, task, way)
        finally:
            connection.close()

    def _refused(self, retry: str) -> None:
        fault = None if retry.isdigit() and int(retry) >= 1 else f"Retry-After is {retry!r}"
        self._tally.add("refused", fault)
        time.sleep(min(float(retry or 1), max(0.0, self._end - time.monotonic())))

    def _follow(self, answer: http.client.HTTPResponse, task: Task, way: str) -> None:
        id = answer.getheader("X-Request-Id", "")
        heard = Heard()
        stop = self._draw.randint(1, 40)
        for count, line in enumerate(iter(answer.readline, b"")):
            heard.take(line)
            if count < stop:
                continue
            if way == "leave":
                self._tally.add("left", _prefix_fault(heard, task))
                return
            if way == "cancel":
                self._control("cancel", id)
                way = "cancelled"
            elif way == "pause":
                if self._control("pause", id):
                    time.sleep(self._draw.uniform(0, 0.3))
                    self._control("resume", id)
                way = "paused"
        answer.close()
        self._judge(heard, task, way, id)

    def _control(self, word: str, id: str) -> bool:
        status = self._server.ask("POST", f"/v1/{word}", {"request_id": id}).status
        assert status in {200, 404} or (status, word) == (429, "pause"), status
        return status == 200

    def _judge(self, heard: Heard, task: Task, way: str, id: str) -> None:
        fault = None
        if heard.ids - {id}:
            fault = f"chunks of {heard.ids} in the stream of {id}"
        elif heard.error is not None:
            if way != "cancelled" or heard.error["code"] != "cancelled" or heard.done:
                fault = f"{way}: {heard.error}, {heard.done} [DONE]"
        elif heard.done != 1 or len(heard.finish) != 1:
            fault = f"{way}: {heard.done} [DONE], finished as {heard.finish}"
        elif way == "whole" and (heard.content, heard.reasoning) != (task.expected, task.reasoning):
            fault = f"{task.messages}: {heard.reasoning!r} {heard.content!r} instead of {task.expected!r}"
        fault = fault or _prefix_fault(heard, task)
        self._tally.add("cancelled" if heard.error is not None else way, fault)


def _prefix_fault(heard: Heard, task: Task) -> str | None:
    """What a reply that goes on or was stopped early has in common with the whole one."""
    for given, expected in ((heard.reasoning, task.reasoning), (heard.content, task.expected)):
        shared = min(len(given), len(expected))
        if given[:shared] != expected[:shared]:
            return f"{task.messages}: {given!r} instead of {expected!r}"
    return None


def resident(server: ServerProcess) -> int:
    """Bytes that the process has in memory."""
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def mean_between(samples: list[tuple[float, int]], first: float, last: float) -> float:
    return statistics.fmean(size for moment, size in samples if first <= moment < last)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    words = ("--context", "4K", "--queue", str(QUEUE), "--session-cache-mib", "32", "--log", str(tmp_path / "log"))
    with ServerProcess(tmp_path, *words) as running:
        running.warm_up()
        yield running


@pytest.mark.slow
def test_fifty_clients_lose_and_mix_up_nothing(server: ServerProcess) -> None:
    tasks = [tasks_of(server, number) for number in range(CLIENTS)]
    expected = Counter(task.expected for own in tasks for task in own[:1])
    tally = Tally()
    with nothing_left(server):
        start = time.monotonic()
        clients = [Client(server, number, own, tally, start + WARM_UP + SECONDS) for number, own in enumerate(tasks)]
        for client in clients:
            client.start()
        samples = []
        while any(client.is_alive() for client in clients):
            samples.append((time.monotonic() - start, resident(server)))
            time.sleep(0.25)
        for client in clients:
            client.join()
    problems = [client.problem for client in clients if client.problem is not None]
    early = mean_between(samples, WARM_UP, WARM_UP + MINUTE)
    late = mean_between(samples, WARM_UP + SECONDS - MINUTE, WARM_UP + SECONDS)
    growth = late / early - 1
    print(f"{dict(tally.ends)}; {len(expected)} different answers; {early / 1e6:.1f} MB, {growth:+.2%}")
    assert problems == []
    assert tally.wrong == []
    assert tally.ends["whole"] > CLIENTS
    for way in ("refused", "left", "cancelled", "paused"):
        assert tally.ends[way], way
    assert growth < GROWTH
