"""A generation bench without an engine: every stand-in watches that it is used as the real one may be.

Tokens below 256 are bytes, 256 ends a reply. What a sampler picks depends on its seed, on how often it picked and on
every id that the engine holds, so that a wrong timeline or a lost sampler state shows in the text.
"""

from __future__ import annotations

import random
import threading
import zlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from launcher.engine_types import Logits, Sampling
from launcher.errors import Cancelled, ContextFull
from launcher.server.events import (
    CacheSource,
    Content,
    Deltas,
    Event,
    Failed,
    Finished,
    Reading,
    Reasoning,
)
from launcher.server.request import GenerationRequest, MarkKind, Style
from launcher.server.scheduler import Scheduler
from launcher.server.sleeping import SleeperPort
from tests.support.fake_engine import FakeStream

T = TypeVar("T")

STOP = 256
STOP_TEXT = "<|role_end|>"
CHUNK = 64
PATIENCE = 60.0  # seconds until a test that waits for an event is taken for stuck


class Gate:
    """Holds the generation thread in every chunk of work until the test lets it through."""

    def __init__(self) -> None:
        self._arrived = threading.Semaphore(0)
        self._go = threading.Semaphore(0)
        self._is_open = False

    def __call__(self) -> None:
        if self._is_open:
            return
        self._arrived.release()
        assert self._go.acquire(timeout=PATIENCE), "the test let nobody through"

    def wait(self) -> None:
        """Until the thread is in a chunk."""
        assert self._arrived.acquire(timeout=PATIENCE), "no work was begun"

    def step(self, count: int = 1) -> None:
        """Lets this chunk end and waits for the next one, `count` times."""
        for _ in range(count):
            self._go.release()
            self.wait()

    def open(self) -> None:
        """Never holds anybody again."""
        self._is_open = True
        self._go.release()


def no_work() -> None:
    """Chunks that take no time."""


class FakeEngine:
    """A timeline with the cancel rules of ling3.h: one that comes is honoured at the next beginning of a chunk."""

    def __init__(self, *, context: int = 10_000) -> None:
        self.context = context
        self.timeline: list[int] = []
        self.work: Callable[[], None] = no_work
        self.wrong: list[str] = []
        self.on_cancel: Callable[[], None] = no_work
        self._has_logits = False
        self._cancelled = False

    @property
    def position(self) -> int:
        return len(self.timeline)

    def cancel(self) -> None:
        self.on_cancel()
        self._cancelled = True

    def eval(self, ids: Sequence[int], *, mode: Logits = Logits.LAST) -> None:
        self.check_thread("eval")
        if not ids:
            self.wrong.append("nothing to evaluate")
        if self.position + len(ids) > self.context:
            raise ContextFull("context-full", "full")
        self._has_logits = False
        for first in range(0, len(ids), CHUNK):
            if self._cancelled:
                self._cancelled = False
                raise Cancelled("cancelled", "the engine was asked to stop")
            self.work()
            self.timeline += ids[first : first + CHUNK]
        self._has_logits = mode is Logits.LAST

    def logits(self) -> int:
        """A digest of everything that was consumed."""
        self.check_thread("logits")
        if not self._has_logits:
            self.wrong.append("logits asked for where there are none")
        return zlib.crc32(array("i", self.timeline).tobytes())

    def rewind(self, position: int) -> None:
        del self.timeline[position:]
        self._has_logits = False

    def check_thread(self, what: str) -> None:
        if threading.current_thread().name != "generation":
            self.wrong.append(f"{what} in thread {threading.current_thread().name}")


@dataclass(frozen=True, slots=True)
class Begun:
    reused: int
    source: CacheSource


class FakeStore:
    """Reuses the live timeline up to the last kept position that agrees; notes every call."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self._kept: list[int] = []
        self.calls: list[str] = []
        self.before: list[object] = []
        self.begun: list[object] = []
        self.current: str | None = None
        self.idle_seconds: float | None = None
        self.idled = threading.Event()
        self.fail: Callable[[str], None] = lambda _call: None

    def begin(
        self, *, owner: str, name: str | None, ids: Sequence[int], is_stopped: Callable[[], bool], before: object
    ) -> Begun:
        self.is_stopped = is_stopped
        self.before.append(before)
        self._note("begin", open_=False)
        self.current = name or "?"
        if not ids:
            self._engine.wrong.append("begin without ids")
        held = self._engine.timeline
        usable = [place for place in (*self._kept, len(held)) if place < len(ids) and list(ids[:place]) == held[:place]]
        reused = max(usable, default=0)
        self._kept = [place for place in self._kept if place <= reused]
        self._engine.rewind(reused)
        begun = Begun(reused, CacheSource.LIVE if reused else CacheSource.NONE)
        self.begun.append(begun)
        return begun

    def keep(self, kind: MarkKind) -> None:
        self._note(f"keep {kind.value} {self._engine.position}", open_=True)
        self._kept.append(self._engine.position)

    def end(self) -> None:
        name, self.current = self.current, None
        self._note("end", open_=False)
        if name is None:
            self._engine.wrong.append("end without begin")

    def discard(self) -> None:
        self.current = None
        self._kept.clear()
        self._engine.rewind(0)
        self._note("discard", open_=False)

    def idle(self, wanted: Callable[[], bool]) -> float | None:
        self._engine.check_thread("idle")
        self.idled.set()
        self.fail("idle")
        return self.idle_seconds

    def close(self) -> None:
        self._note("close", open_=False)

    def _note(self, call: str, *, open_: bool) -> None:
        self._engine.check_thread(call)
        if open_ != (self.current is not None):
            self._engine.wrong.append(f"{call} while {self.current} is begun")
        self.calls.append(call)
        self.fail(call)


def pick(rng: random.Random, digest: int) -> int:
    """A small letter."""
    return 97 + (rng.randrange(1 << 30) ^ digest) % 26


def expected_text(request: GenerationRequest, choice: int = 0) -> str:
    """What the hashing sampler says to this prompt, without any scheduler."""
    rng = random.Random(request.sampling.seed + choice)
    ids = list(request.prompt)
    for _ in range(request.max_tokens):
        ids.append(pick(rng, zlib.crc32(array("i", ids).tobytes())))
    return bytes(ids[len(request.prompt) :]).decode()


class FakeSampler:
    """Speaks a script, or hashes; insists on the timeline being the prompt, what it has picked itself, and the end of
    the thinking in between at most."""

    def __init__(
        self, engine: FakeEngine, request: GenerationRequest, choice: int, script: Sequence[int] | None
    ) -> None:
        self._engine = engine
        self._request = request
        self._rng = random.Random(request.sampling.seed + choice)
        self._script = None if script is None else list(script)
        self.picked: list[int] = []
        self.reply: list[int] = []
        self.masks: list[object] = []
        self.barred: list[int] = []
        self.closed = False

    def pick(self, reply_length: int, allowed: object) -> int:
        digest = self._engine.logits()
        end = self._request.thinking_end
        if end and tuple(self._engine.timeline[len(self._request.prompt) + len(self.reply) :]) == end:
            self.reply += end
        if self.closed or reply_length != len(self.reply):
            self._engine.wrong.append(f"pick {reply_length} after {len(self.reply)}, closed: {self.closed}")
        if self._engine.timeline != [*self._request.prompt, *self.reply]:
            self._engine.wrong.append(f"{self._request.id} does not have its own timeline")
        token = self._script[len(self.picked)] if self._script is not None else pick(self._rng, digest)
        self.picked.append(token)
        self.reply.append(token)
        self.masks.append(allowed)
        return token

    def bar(self, token: int) -> None:
        self.barred.append(token)

    def log_probabilities(self, token: int, top: int) -> tuple[float, tuple[tuple[int, float], ...]]:
        return -float(token), tuple((token + place, -float(token + place)) for place in range(top))

    def close(self) -> None:
        self._engine.check_thread("close of a sampler")
        self.closed = True


class FakeText:
    """Bytes, and the token that ends a reply."""

    def token_bytes(self, token: int) -> bytes:
        return STOP_TEXT.encode() if token == STOP else bytes([token])


class Listener:
    """A receiver that keeps its events and lets a test wait for them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._came = threading.Condition()

    def __call__(self, event: Event) -> None:
        with self._came:
            self.events.append(event)
            self._came.notify_all()

    def wait(self, kind: type[Event], count: int = 1) -> None:
        """Until so many events of this kind have come."""
        with self._came:
            came = self._came.wait_for(lambda: len(self.of(kind)) >= count, PATIENCE)
        assert came, f"no {kind.__name__} among {self.events}"

    def of(self, kind: type[T]) -> list[T]:
        """Those of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def end(self) -> Finished | Failed:
        """Waits for the last event."""
        with self._came:
            came = self._came.wait_for(lambda: self.events and isinstance(self.events[-1], Finished | Failed), PATIENCE)
        assert came, f"no end among {self.events}"
        last = self.events[-1]
        assert isinstance(last, Finished | Failed)
        return last

    def error_code(self) -> str:
        """Waits for the failure and names it."""
        last = self.end()
        assert isinstance(last, Failed), f"expected a failure, not {last}"
        return last.error.slug

    def text(self, choice: int = 0) -> str:
        """Waits for the end; everything that was said."""
        last = self.end()
        assert isinstance(last, Finished), f"expected an answer, not {last}"
        return "".join(
            delta.text
            for event in self.of(Deltas)
            if event.choice == choice
            for delta in event.deltas
            if isinstance(delta, Content | Reasoning)
        )


@dataclass
class Bench:
    """A scheduler on stand-ins. As a context manager it checks in the end that everything was used and left well."""

    limit: int = 8
    context: int = 10_000
    gated: bool = False
    scripts: dict[str, Sequence[int]] = field(default_factory=dict)
    clock: Callable[[], float] | None = None
    started: bool = True
    drain: float = 0.0
    sleeper: Callable[[Bench], SleeperPort] | None = None

    def __post_init__(self) -> None:
        self.engine = FakeEngine(context=self.context)
        self.store = FakeStore(self.engine)
        self.gate = Gate()
        if self.gated:
            self.engine.work = self.gate
        self.samplers: list[FakeSampler] = []
        self.told: list[tuple[str, Event]] = []
        self.upkeep_errors: list[Exception] = []
        clock = {} if self.clock is None else {"clock": self.clock}
        self.scheduler = Scheduler(
            engine=self.engine,
            store=self.store,
            new_sampler=self._new_sampler,
            text=FakeText(),
            new_stream=FakeStream,
            stop_ids=frozenset({STOP}),
            stop_texts=(STOP_TEXT,),
            limit=self.limit,
            upkeep_failed=self.upkeep_errors.append,
            sleeper=None if self.sleeper is None else self.sleeper(self),
            **clock,
        )

    def _new_sampler(self, request: GenerationRequest, choice: int) -> FakeSampler:
        sampler = FakeSampler(self.engine, request, choice, self.scripts.get(request.id))
        self.samplers.append(sampler)
        return sampler

    def submit(self, request: GenerationRequest) -> Listener:
        """Accepts it."""
        listener = Listener()

        def sink(event: Event) -> None:
            self.told.append((request.id, event))
            listener(event)

        self.scheduler.submit(request, sink)
        return listener

    def run_order(self) -> list[str]:
        """Who ran, in order."""
        return list(dict.fromkeys(name for name, event in self.told if isinstance(event, Reading)))

    def end_order(self) -> list[str]:
        """Whose end was told, in order."""
        return [name for name, event in self.told if isinstance(event, Finished | Failed)]

    def __enter__(self) -> Bench:
        if self.started:
            self.scheduler.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.gate.open()
        self.scheduler.close(drain=self.drain)
        if _error[0] is not None:
            return
        assert self.engine.wrong == []
        assert all(sampler.closed for sampler in self.samplers)
        assert not [thread for thread in threading.enumerate() if thread.name == "generation"]
        if self.started:
            assert self.store.current is None
            assert self.store.calls[-1] == "close"


def request(
    name: str, *, prompt: str = "hello", max_tokens: int = 8, seed: int = 0, **more: object
) -> GenerationRequest:
    """A request for plain text; its id, and its session where none is given, is the name."""
    settings: dict[str, object] = {"owner": "", "session": name, "style": Style.TEXT, **more}
    return GenerationRequest(
        id=name, prompt=tuple(prompt.encode()), max_tokens=max_tokens, sampling=Sampling(seed=seed), **settings
    )


class CountingGrammar:
    """Allows three tokens, or as many as it is told."""

    def __init__(self, most: int = 3) -> None:
        self.most = most
        self.seen: list[int] = []

    def allowed(self) -> object:
        return ("mask", len(self.seen))

    def advance(self, token: int) -> None:
        self.seen.append(token)

    @property
    def is_finished(self) -> bool:
        return len(self.seen) == self.most
