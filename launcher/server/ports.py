"""What the HTTP side needs of the rest of the server: reading requests, writing answers, and generating."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from launcher.server.events import Event, Sink
from launcher.server.request import GenerationRequest
from launcher.server.session_state import StateRules
from launcher.server.session_transfer import Loan, Room


class SchedulerPort(Protocol):
    """The generation thread, see `launcher.server.scheduler`."""

    def submit(self, request: GenerationRequest, sink: Sink) -> None: ...

    def cancel(self, request_id: str, owner: str) -> bool: ...

    def withdraw(self, request: GenerationRequest) -> None: ...

    def pause(self, request_id: str, owner: str) -> bool: ...

    def resume(self, request_id: str, owner: str) -> bool: ...

    def end_thinking(self, request_id: str, owner: str) -> bool: ...


class StreamWriter(Protocol):
    """Turns events into the JSON texts of a stream's `data:` lines, the error of a failure included."""

    def write(self, event: Event) -> Sequence[bytes]: ...


class ReplyWriter(Protocol):
    """Collects events and makes one JSON document of them."""

    def add(self, event: Event) -> None: ...

    def document(self) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who asks. `owner` is a digest of the API key; `headers` have lower-case names."""

    owner: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request for text, ready to be queued, and how its answer is written.

    Attributes:
        request: what to generate.
        stream: whether the client wants events.
        new_stream: makes the writer of an event stream.
        new_reply: makes the writer of one document.
        prompt_text: the prompt as text, for `--log-prompts`; None where it is not logged.
        typed_events: whether the `type` of each text of the stream also names its event, and no `[DONE]` ends it.
    """

    request: GenerationRequest
    stream: bool
    new_stream: Callable[[], StreamWriter]
    new_reply: Callable[[], ReplyWriter]
    prompt_text: str | None = None
    typed_events: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueState:
    """How many requests there are, how many may wait, and the tokens that the engine has worked off so far.

    `sleeping`: the memory is given back until the next request comes; `sleeps`: how often that happened.
    """

    running: int
    waiting: int
    paused: int
    limit: int
    generated: int = 0
    prefilled: int = 0
    sleeping: bool = False
    sleeps: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheState:
    """The session cache in bytes and counts."""

    bytes: int = 0
    budget: int = 0
    entries: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    disk_bytes: int = 0
    disk_budget: int = 0


class ExchangePort(Protocol):
    """Sessions that move between servers. Every future is soon done; see `launcher.server.session_transfer`."""

    @property
    def rules(self) -> StateRules: ...

    def lend(self, owner: str, name: str) -> Future[Loan]: ...

    def reserve(self, owner: str, name: str, size: int) -> Future[Room]: ...

    def accept(self, room: Room, ids: array[int], checkpoints: Mapping[int, int]) -> Future[bool]: ...


class Backend(Protocol):
    """A loaded model. The methods that take bodies may take long and are called in worker threads."""

    @property
    def scheduler(self) -> SchedulerPort: ...

    def chat(self, body: bytes, caller: Caller) -> Call: ...

    def completion(self, body: bytes, caller: Caller) -> Call: ...

    def responses(self, body: bytes, caller: Caller) -> Call: ...

    def count_chat(self, body: bytes) -> Mapping[str, object]: ...

    def count_responses(self, body: bytes) -> Mapping[str, object]: ...

    def tokenize(self, body: bytes) -> Mapping[str, object]: ...

    def detokenize(self, body: bytes) -> Mapping[str, object]: ...

    def apply_template(self, body: bytes) -> Mapping[str, object]: ...

    def request_id(self, body: bytes) -> str: ...

    def controlled_id(self, body: bytes) -> str: ...

    def models(self) -> Sequence[Mapping[str, object]]: ...

    def props(self) -> Mapping[str, object]: ...

    def queue(self) -> QueueState: ...

    def cache(self) -> CacheState: ...

    def sessions(self, owner: str) -> Sequence[Mapping[str, object]]: ...

    def delete_session(self, owner: str, name: str) -> bool: ...

    def slots(self, owner: str) -> Sequence[Mapping[str, object]]: ...

    @property
    def exchange(self) -> ExchangePort: ...
