"""A real server on a real socket with a stand-in for the model: the test decides what is generated and when."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from launcher.engine_types import Sampling
from launcher.errors import Cancelled, MindnanoError, RequestError
from launcher.event_log import EventLog
from launcher.server.app import Application, Phase, Services, State
from launcher.server.backlog import Backlog
from launcher.server.bodies import Bodies, BodyLimits
from launcher.server.connections import ConnectionLimits
from launcher.server.events import (
    ChoiceFinished,
    Content,
    Deltas,
    Failed,
    Finished,
    FinishReason,
    Metrics,
    Sink,
)
from launcher.server.journal import Journal
from launcher.server.planning import request_name
from launcher.server.ports import CacheState, Call, Caller, QueueState
from launcher.server.prometheus import ServerMetrics
from launcher.server.protocol.decode import (
    decode_chat,
    decode_completion,
    decode_control,
    decode_reasoning_control,
)
from launcher.server.protocol.replies import ChatReply, ChatStream, CompletionReply, CompletionStream
from launcher.server.protocol.requests import Common
from launcher.server.request import GenerationRequest
from launcher.server.routes_generation import generation_routes
from launcher.server.routes_information import OPEN_PATHS, information_routes
from launcher.server.routes_state import state_routes
from launcher.server.security import Access, Keyring
from launcher.server.state_body import Pace
from launcher.server.web import web_server
from tests.support.moving_sessions import Exchange

PATIENCE = 60.0
METRICS = Metrics(prompt=3, cached=1, generated=2, first_seconds=0.5, prefill_seconds=0.25, decode_seconds=1.0)


def eventually(true: Callable[[], bool], what: str) -> None:
    """Waits until it is true."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.005)


@dataclass(slots=True)
class Job:
    """A request that was submitted, with words for what the generation thread would tell."""

    request: GenerationRequest
    sink: Sink

    def say(self, *texts: str) -> None:
        for text in texts:
            self.sink(Deltas(choice=0, deltas=(Content(text=text),), metrics=METRICS))

    def finish(self) -> None:
        self.sink(ChoiceFinished(choice=0, reason=FinishReason.STOP, metrics=METRICS))
        self.sink(Finished(metrics=(METRICS,)))

    def fail(self, error: MindnanoError) -> None:
        self.sink(Failed(error=error))


@dataclass
class FakeScheduler:
    """Notes what it is asked for. `refusal` is raised by the next submits; `react` runs in a thread of its own."""

    jobs: dict[str, Job] = field(default_factory=dict)
    cancelled: list[tuple[str, str]] = field(default_factory=list)
    paused: list[str] = field(default_factory=list)
    refusal: RequestError | None = None
    react: Callable[[Job], None] | None = None

    def submit(self, request: GenerationRequest, sink: Sink) -> None:
        if self.refusal is not None:
            raise self.refusal
        job = Job(request, sink)
        self.jobs[request.id] = job
        if self.react is not None:
            threading.Thread(target=self.react, args=(job,), daemon=True).start()

    def cancel(self, request_id: str, owner: str) -> bool:
        job = self.jobs.get(request_id)
        if job is None or job.request.owner != owner:
            return False
        self.cancelled.append((request_id, owner))
        job.fail(Cancelled("cancelled", "stopped"))
        return True

    def withdraw(self, request: GenerationRequest) -> None:
        self.cancel(request.id, request.owner)

    def pause(self, request_id: str, owner: str) -> bool:
        if request_id not in self.jobs:
            return False
        self.paused.append(request_id)
        return True

    def resume(self, request_id: str, owner: str) -> bool:
        return request_id in self.paused

    def end_thinking(self, request_id: str, owner: str) -> bool:
        job = self.jobs.get(request_id)
        return job is not None and job.request.owner == owner

    def job(self) -> Job:
        """The only one, once it is there."""
        eventually(lambda: bool(self.jobs), "a request was submitted")
        (job,) = self.jobs.values()
        return job


class FakeText:
    """Tokens are bytes."""

    def token_bytes(self, token: int) -> bytes:
        return bytes([token % 256])


@dataclass
class FakeBackend:
    """See `launcher.server.ports.Backend`."""

    scheduler: FakeScheduler = field(default_factory=FakeScheduler)
    id: str = "tiny"
    fingerprint: str = "fp_1"
    text: FakeText = field(default_factory=FakeText)
    kept: dict[str, list[str]] = field(default_factory=dict)
    planning: Callable[[], None] = lambda: None
    count: int = 0
    is_processing: bool = False
    exchange: Exchange = field(default_factory=Exchange)

    def _request(self, prefix: str, caller: Caller, asked: Common) -> GenerationRequest:
        self.planning()
        self.count += 1
        return GenerationRequest(
            id=request_name(asked, caller.headers.get("x-request-id")) or f"{prefix}-{self.count}",
            owner=caller.owner,
            session=asked.session_id or caller.headers.get("x-session-id"),
            prompt=(1, 2, 3),
            max_tokens=5,
            sampling=Sampling(),
        )

    def chat(self, body: bytes, caller: Caller) -> Call:
        chat = decode_chat(body)
        request = self._request("chatcmpl", caller, chat)
        return Call(
            request=request,
            stream=chat.stream is True,
            new_stream=lambda: ChatStream(
                self, request, include_usage=chat.include_usage, return_progress=chat.return_progress is True
            ),
            new_reply=lambda: ChatReply(self, request),
            prompt_text="the prompt",
        )

    def completion(self, body: bytes, caller: Caller) -> Call:
        asked = decode_completion(body)
        request = self._request("cmpl", caller, asked)
        return Call(
            request=request,
            stream=asked.stream is True,
            new_stream=lambda: CompletionStream(self, request),
            new_reply=lambda: CompletionReply(self, request),
            prompt_text="the prompt",
        )

    def count_chat(self, body: bytes) -> Mapping[str, object]:
        return {"input_tokens": len(body)}

    def count_responses(self, body: bytes) -> Mapping[str, object]:
        return {"input_tokens": len(body)}

    def tokenize(self, body: bytes) -> Mapping[str, object]:
        return {"tokens": list(body), "count": len(body)}

    def detokenize(self, body: bytes) -> Mapping[str, object]:
        return {"content": body.decode()}

    def apply_template(self, body: bytes) -> Mapping[str, object]:
        return {"prompt": body.decode()}

    def request_id(self, body: bytes) -> str:
        return decode_control(body).request_id

    def controlled_id(self, body: bytes) -> str:
        return decode_reasoning_control(body).id

    def models(self) -> Sequence[Mapping[str, object]]:
        return [{"id": self.id, "object": "model", "created": 1, "owned_by": "mindnano-infer", "meta": {}}]

    def props(self) -> Mapping[str, object]:
        return {"model": self.id}

    def queue(self) -> QueueState:
        return QueueState(running=1, waiting=2, paused=3, limit=8)

    def cache(self) -> CacheState:
        return CacheState(bytes=7, budget=9, entries=1, hits=4, misses=2)

    def slots(self, owner: str) -> Sequence[Mapping[str, object]]:
        return [{"id": 0, "is_processing": self.is_processing, "sessions": self.sessions(owner)}]

    def sessions(self, owner: str) -> Sequence[Mapping[str, object]]:
        return [{"id": name} for name in self.kept.get(owner, [])]

    def delete_session(self, owner: str, name: str) -> bool:
        names = self.kept.get(owner, [])
        if name not in names:
            return False
        names.remove(name)
        return True


class HttpBench:
    """The server; use it as a context manager. `address` is the port on 127.0.0.1 or the path of a unix socket."""

    def __init__(
        self,
        *,
        keys: tuple[str, ...] = (),
        hosts: frozenset[str] | None = frozenset({"localhost"}),
        origins: frozenset[str] = frozenset(),
        limits: ConnectionLimits | None = None,
        bodies: BodyLimits | None = None,
        backlog: int = 8,
        ping_seconds: float = 5.0,
        pace: Pace | None = None,
        log: Path | None = None,
        prompts: bool = False,
        loaded: bool = True,
        tls: ssl.SSLContext | None = None,
        unix: Path | None = None,
    ) -> None:
        self.backend = FakeBackend()
        self.scheduler = self.backend.scheduler
        self.state = State(phase=Phase.READY, backend=self.backend) if loaded else State()
        metrics = ServerMetrics(version="1", resident=lambda: 1 << 20)
        if loaded:
            metrics.watch(self.backend.queue, self.backend.cache, self.backend.id)
        self._log = EventLog(log)
        self.journal = Journal(self._log, metrics, prompts=prompts)
        self._services = Services(
            state=self.state,
            journal=self.journal,
            bodies=Bodies(bodies or BodyLimits()),
            backlog=Backlog(backlog),
            ping_seconds=ping_seconds,
            pace=pace or Pace(),
            workers=ThreadPoolExecutor(2),
        )
        routes = [
            *generation_routes(self._services),
            *state_routes(self._services),
            *information_routes(self._services, lambda: {"openapi": "3.1.0"}),
        ]
        access = Access(keys=Keyring(keys), hosts=hosts, origins=origins)
        self.app = Application(self._services, access, routes, open_paths=OPEN_PATHS, served_by="here")
        family = socket.AF_INET if unix is None else socket.AF_UNIX
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.bind(("127.0.0.1", 0) if unix is None else str(unix))
        self._socket.listen(64)
        self.address = self._socket.getsockname()
        self._limits = limits
        self._tls = tls
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._web = web_server(self.app, tls=self._tls, limits=self._limits)
        self._started.set()
        await self._web.serve(sockets=[self._socket])

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(PATIENCE)
        eventually(lambda: self._web.started, "the server started")
        return self

    def __exit__(self, *_: object) -> None:
        self._web.should_exit = True
        self._thread.join()
        self.app.close()
        self.journal.close()
        self._log.close()

    @property
    def port(self) -> int:
        return int(self.address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self, seconds: float = PATIENCE) -> socket.socket:
        """A bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=seconds)

    def connections(self) -> int:
        """How many connections the server holds."""
        return len(self._web.server_state.connections)


def chat_body(**fields: Any) -> bytes:
    """The JSON of a chat."""
    return json.dumps({"messages": [{"role": "user", "content": "hi"}], **fields}).encode()


def raw_request(path: str, body: bytes = b"", *, method: str = "POST", headers: str = "") -> bytes:
    """A request as bytes. `headers` are whole lines."""
    kind = "Content-Type: application/json\r\n" if body else ""
    length = f"Content-Length: {len(body)}\r\n" if body or method == "POST" else ""
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{kind}{length}{headers}\r\n".encode() + body


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    """What arrives up to the mark; fails when the connection ends before it."""
    data = b""
    while mark not in data:
        more = connection.recv(65536)
        assert more, f"the connection ended after {data!r}"
        data += more
    return data


def read_all(connection: socket.socket) -> bytes:
    """What arrives until the server closes; a reset counts as closed."""
    data = b""
    while True:
        try:
            more = connection.recv(65536)
        except ConnectionResetError:
            return data
        if not more:
            return data
        data += more
