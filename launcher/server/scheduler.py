"""Requests wait in order and one thread works them off on the one engine; any thread may ask it to stop or to pause.

Two locks, never taken in the other order: `_delivery` (events leave one after the other, in the order in which they
were decided) before `_changed` (the queue, and who runs). Receivers are called without `_changed`, so they may call
back. What a running request says while it runs goes out of the generation thread directly.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from launcher.errors import Cancelled, MindnanoError, RequestError
from launcher.generate import EnginePort
from launcher.server.chores import Chores
from launcher.server.events import Event, Finished, Sink
from launcher.server.job import Job, Stop, as_error, deadline_exceeded
from launcher.server.job_queue import JobQueue
from launcher.server.request import GenerationRequest
from launcher.server.run_ports import Ports, SamplerPort, StorePort, StreamPort, TextPort, Totals
from launcher.server.running import Run
from launcher.server.scheduler_state import RequestDetails, SchedulerState
from launcher.server.sleeping import SleeperPort, Sleepless

T = TypeVar("T")


class Scheduler:
    """The queue and its thread. Every method but `close` may be called from any thread and returns soon."""

    def __init__(
        self,
        *,
        engine: EnginePort,
        store: StorePort,
        new_sampler: Callable[[GenerationRequest, int], SamplerPort],
        text: TextPort,
        new_stream: Callable[[], StreamPort],
        stop_ids: frozenset[int],
        stop_texts: tuple[str, ...],
        limit: int,
        clock: Callable[[], float] = time.monotonic,
        upkeep_failed: Callable[[Exception], None] = lambda _error: None,
        sleeper: SleeperPort | None = None,
    ) -> None:
        """Args:
        engine: evaluates; after `start` only the generation thread touches it, except for `cancel`.
        store: keeps sessions; only the generation thread touches it, and closes it in the end.
        new_sampler: the sampler of choice i of a request, which samples with its seed + i.
        text, new_stream: make text of tokens.
        stop_ids: tokens that end a reply.
        stop_texts: what these tokens look like when they are spelled out.
        limit: how many requests may wait, and, apart from them, how many may be paused (one at least).
        clock: seconds.
        upkeep_failed: takes an error that no request waits for; called by the generation thread.
        sleeper: gives the engine's memory back while there is no request; None keeps it.
        """
        self._engine = engine
        self._totals = Totals()
        self._ports = Ports(
            engine=engine,
            store=store,
            new_sampler=new_sampler,
            text=text,
            new_stream=new_stream,
            stop_ids=stop_ids,
            stop_texts=stop_texts,
            clock=clock,
            totals=self._totals,
        )
        self._store = store
        self._clock = clock
        self._upkeep_failed = upkeep_failed
        self._sleeper = sleeper or Sleepless()
        self._changed = threading.Condition(threading.Lock())
        self._delivery = threading.RLock()
        self._queue = JobQueue(limit=limit, clock=clock, changed=self._changed.notify_all)
        self.is_pressed = self._queue.is_pressed
        self._chores = Chores()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="generation")

    def start(self) -> None:
        """Starts the generation thread."""
        self._thread.start()

    def begin_drain(self) -> None:
        """Refuses new requests from now on."""
        with self._changed:
            self._queue.draining = True

    @property
    def is_draining(self) -> bool:
        """Whether new requests are refused for good."""
        return self._queue.draining

    def close(self, *, drain: float) -> None:
        """Refuses new requests, lets what runs and waits finish, ends the rest and then the thread.

        Args:
            drain: seconds to wait at most. Paused requests are not waited for.
        """
        queue = self._queue
        self.begin_drain()
        with self._changed:
            self._changed.wait_for(lambda: queue.running is None and not queue.ready, drain)
            self._closing = True
            for job in queue.all():
                self._ask(job, Stop.SHUTDOWN)
            self._changed.notify_all()
        self._flush()
        if self._thread.ident is not None:
            self._thread.join()

    def submit(self, request: GenerationRequest, sink: Sink) -> None:
        """Accepts a request; its events go to `sink`, which must return at once. One that raises is a client that left.

        Raises:
            RequestError: 429 `queue_full` or 503 `shutting_down`, both with Retry-After; 409 `request_id_in_use`.
        """
        with self._changed:
            self._queue.add(request, sink)
        self._flush()

    def cancel(self, request_id: str, owner: str) -> bool:
        """Ends a request of this owner: a running one within one token or one chunk of its prompt.

        Returns:
            False where this owner has no such request.
        """
        with self._changed:
            job = self._queue.find(request_id, owner)
            if job is not None:
                self._ask(job, Stop.CANCEL)
        self._flush()
        return job is not None

    def withdraw(self, request: GenerationRequest) -> None:
        """Ends this very request, not one that has its id by now: its client left."""
        with self._changed:
            job = self._queue.find(request.id, request.owner)
            if job is not None and job.request is request:
                self._ask(job, Stop.CANCEL)
        self._flush()

    def pause(self, request_id: str, owner: str) -> bool:
        """Lets a request of this owner wait until `resume`, without a share of the engine.

        Returns:
            False where this owner has no such request.

        Raises:
            RequestError: 429 `too_many_paused`; the request goes on.
        """
        with self._changed:
            job = self._queue.find(request_id, owner)
            if job is not None and not job.paused and job.stop is None:
                self._queue.check_pause()
                self._ask(job, Stop.PAUSE)
        self._flush()
        return job is not None

    def resume(self, request_id: str, owner: str) -> bool:
        """Lets a paused request of this owner go on: before all that have not started, if it has. Always possible:
        the queue may be longer than its limit for a while.

        Returns:
            False where this owner has no such request.
        """
        with self._changed:
            job = self._queue.find(request_id, owner)
            if job is not None and job.paused:
                self._queue.unpause(job)
            elif job is not None and job.stop is Stop.PAUSE:
                job.stop = None  # it has not left the engine yet
        self._flush()
        return job is not None

    def end_thinking(self, request_id: str, owner: str) -> bool:
        """Closes the thinking of a request of this owner at its next token, and that of its later choices before the
        first one. Where it is not thinking, or does not think, nothing changes.

        Returns:
            False where this owner has no such request.
        """
        with self._changed:
            job = self._queue.find(request_id, owner)
            if job is not None:
                job.thinking_ended = True
        return job is not None

    def perform(self, work: Callable[[], T]) -> Future[T]:
        """Has the generation thread do something with the store, soon: between two steps of the request that runs, or,
        where it raises Cancelled because `is_pressed()`, once more when that has left.

        Raises:
            RequestError: 503 `shutting_down`, the thread has ended.
        """
        future = self._chores.add(work)
        with self._changed:
            self._changed.notify_all()
        return future

    def state(self) -> SchedulerState:
        """What is going on."""
        with self._changed:
            queue, totals = self._queue, self._totals
            return SchedulerState(
                running=None if queue.running is None else queue.running.request.id,
                waiting=len(queue.ready),
                paused=queue.paused,
                draining=queue.draining,
                accepted=queue.counts.accepted,
                finished=queue.counts.finished,
                cancelled=queue.counts.cancelled,
                failed=queue.counts.failed,
                refused=queue.counts.refused,
                generated=totals.generated,
                prefilled=totals.prefilled,
                cached=totals.cached,
            )

    def details(self, request_id: str, owner: str) -> RequestDetails | None:
        """Where a request of this owner is; None where there is no such request."""
        with self._changed:
            job = self._queue.find(request_id, owner)
            return None if job is None else self._described(job)

    def requests(self, owner: str) -> tuple[RequestDetails, ...]:
        """Where each request of this owner is, in the order in which they came."""
        with self._changed:
            return tuple(self._described(job) for job in self._queue.all() if job.request.owner == owner)

    def _described(self, job: Job) -> RequestDetails:
        return job.details(running=job is self._queue.running, now=self._clock())

    def _ask(self, job: Job, stop: Stop) -> None:
        """With the lock: pauses or ends a request, or asks for that where it runs."""
        if job is self._queue.running:
            job.stop = stop
            self._engine.cancel()
        elif stop is Stop.PAUSE:
            self._queue.suspend(job)
        else:
            self._queue.end(job, stop)

    def _flush(self) -> None:
        """Delivers what was decided. Whoever returns from here knows that everything decided before is delivered."""
        outbox = self._queue.outbox
        with self._delivery:
            while outbox:
                self._deliver(*outbox.popleft())

    def _deliver(self, job: Job, event: Event) -> None:
        if job.gone:
            return
        try:
            job.sink(event)
        except Exception:  # whatever it is, nobody listens any more
            job.gone = True
            with self._changed:
                if self._queue.has(job):
                    self._ask(job, Stop.GONE)

    # -- the generation thread --

    def _work(self) -> None:
        while True:
            self._chores.run()
            job = self._next()
            self._flush()
            while self._queue.left:
                self._guard(self._queue.left.popleft().close)
            if job is not None:
                self._serve(job)
            elif not self._rest():
                break
        self._chores.close()
        self._guard(self._store.close)

    def _next(self) -> Job | None:
        """The next one to run."""
        with self._changed:
            self._queue.expire(self._clock())
            return self._queue.take()

    def _rest(self) -> bool:
        """Waits for something to do; returns whether there can be any."""
        pauses = self._guard(lambda: self._store.idle(self._is_wanted)), self._guard(self._nap)
        with self._changed:
            if self._queue.ready or self._queue.left or self._chores:
                return True
            if self._closing:
                return False
            waits = (math.inf if pause is None else pause for pause in pauses)
            timeout = min(*waits, self._queue.soonest - self._clock())
            self._changed.wait(None if timeout == math.inf else max(timeout, 0.0))
            return True

    def _nap(self) -> float | None:
        """Falls asleep when there was no request for long enough; returns the seconds until then."""
        with self._changed:
            since = self._queue.idle_since
        return None if since is None else self._sleeper.rest(since, self._is_wanted)

    def _is_wanted(self) -> bool:
        """Whether there is something better to do than upkeep; read without the lock, a moment's delay does no harm."""
        return bool(self._queue.ready or self._queue.left or self._chores or self._closing)

    def _guard(self, work: Callable[[], float | None]) -> float | None:
        """Does what no request waits for; an error of it goes to the log."""
        try:
            return work()
        except Exception as error:
            with suppress(Exception):
                self._upkeep_failed(error)
            return None

    def _serve(self, job: Job) -> None:
        """Runs a request until it ends or is paused."""
        try:
            while not self._has_left(job):
                # The engine stops "a running or the next" evaluation, so what comes out here may have been meant for an
                # earlier job. What counts is what the job itself was asked for; without anything it goes on.
                with suppress(Cancelled):
                    self._sleeper.wake(lambda: self._is_over(job))
                    run = job.run = job.run or self._new_run(job)
                    if run.step():
                        self._conclude(job, Finished(metrics=run.metrics))
                        return
        except BaseException as error:  # nothing may end the thread that everybody waits for
            self._clean_up(job.run, error)
            self._conclude(job, as_error(error))

    def _new_run(self, job: Job) -> Run:
        return Run(
            self._ports,
            job.request,
            accepted=job.accepted,
            send=lambda event: self._deliver(job, event),
            is_stopped=lambda: job.stop is not None or self._clock() >= job.expires,
            is_thinking_ended=lambda: job.thinking_ended,
        )

    def _clean_up(self, run: Run | None, error: BaseException) -> None:
        """Takes the engine from a request that failed: what it holds stays good where the fault is the request's own,
        as a schema's that cannot be followed, or came before the engine was touched."""
        if run is None or not run.is_open:
            return
        try:
            if isinstance(error, RequestError):
                run.park()
                return
        except Exception as another:
            error.add_note(f"and the store could not keep its state: {another!r}")
        try:
            self._store.discard()
        except Exception as another:
            error.add_note(f"and the store could not forget: {another!r}")

    def _is_over(self, job: Job) -> bool:
        """Sees to chores and to the deadlines of others; returns whether this request should leave the engine."""
        self._chores.run()
        now = self._clock()
        if now >= self._queue.soonest:
            with self._changed:
                self._queue.expire(now)
            self._flush()
        return now >= job.expires or job.stop is not None

    def _has_left(self, job: Job) -> bool:
        """Does what was asked from outside; returns whether the request has left the engine."""
        if not self._is_over(job):
            return False
        if job.run is not None:
            job.run.park()
        with self._changed:
            if job.stop not in (None, Stop.PAUSE):
                self._queue.end(job, job.stop)
            elif self._clock() >= job.expires:
                self._queue.end(job, deadline_exceeded(job.request))
            elif job.stop is Stop.PAUSE:
                self._queue.suspend(job)
            else:
                return False  # resumed before it was gone
        self._flush()
        return True

    def _conclude(self, job: Job, why: MindnanoError | Finished) -> None:
        with self._changed:
            if self._queue.has(job):
                self._queue.end(job, why)
        self._flush()
