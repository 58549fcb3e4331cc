"""Who runs, who waits and who is paused, in order, and what each of them is to be told about it.

Nothing here locks or calls a receiver: the scheduler holds its lock around every call and delivers `outbox` later.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from launcher.errors import MindnanoError, RequestError
from launcher.server.events import Event, Finished, Paused, Queued, Sink
from launcher.server.job import Job, Stop, deadline_exceeded, last_event, shutting_down
from launcher.server.request import GenerationRequest
from launcher.server.running import Run

# How many of the last requests tell how long one takes.
_RECENT: Final = 16
# Seconds that a request is taken for before one was finished.
_GUESS: Final = 5.0
_RETRY_LEAST: Final = 1
_RETRY_MOST: Final = 60


@dataclass(slots=True)
class Counts:
    """Requests since the start. Cancelled ones are also those of a client that went and those of a shutdown."""

    accepted: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    refused: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class JobQueue:
    """The requests that have not ended.

    Attributes:
        limit: how many may wait when one more comes; the paused ones and the one that runs do not count.
        clock: seconds.
        changed: called after every change.
        running: the request on the engine.
        ready: those that wait for it, next one first.
        outbox: what is to be told to whom, in order.
        left: runs of requests that ended, to be closed by the generation thread.
        soonest: when the next of those that do not run expires.
        draining: new ones are refused.
    """

    limit: int
    clock: Callable[[], float]
    changed: Callable[[], None]
    running: Job | None = None
    ready: list[Job] = field(default_factory=list)
    outbox: deque[tuple[Job, Event]] = field(default_factory=deque)
    left: deque[Run] = field(default_factory=deque)
    soonest: float = math.inf
    draining: bool = False
    counts: Counts = field(default_factory=Counts)
    _jobs: dict[tuple[str, str], Job] = field(default_factory=dict)
    _sequence: int = 0
    _started: float = 0.0
    _recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _emptied: float = field(init=False)

    def __post_init__(self) -> None:
        self._emptied = self.clock()

    @property
    def idle_since(self) -> float | None:
        """When the last one ended, or when the queue was made; None where there is one."""
        return None if self._jobs else self._emptied

    @property
    def paused(self) -> int:
        """How many wait for their resume."""
        return len(self._jobs) - len(self.ready) - (self.running is not None)

    def is_pressed(self) -> bool:
        """Whether the running one is to leave; may be asked by any thread, a moment's delay does no harm."""
        job = self.running
        return job is not None and (job.stop is not None or self.clock() >= job.expires)

    def all(self) -> list[Job]:
        """Every request."""
        return list(self._jobs.values())

    def has(self, job: Job) -> bool:
        """Whether it has not ended."""
        return self._jobs.get(_key(job.request)) is job

    def find(self, request_id: str, owner: str) -> Job | None:
        """The request of this owner."""
        return self._jobs.get((owner, request_id))

    def add(self, request: GenerationRequest, sink: Sink) -> None:
        """Takes a request in.

        Raises:
            RequestError: there is no place for it, or its id is that of another one of its owner.
        """
        try:
            self._admit(request)
        except RequestError:
            self.counts.refused += 1
            raise
        now = self.clock()
        expires = math.inf if request.deadline is None else now + request.deadline
        job = Job(request=request, sink=sink, accepted=now, expires=expires, sequence=self._sequence)
        self._sequence += 1
        self.counts.accepted += 1
        self._jobs[_key(request)] = job
        self._enqueue(job)

    def take(self) -> Job | None:
        """Makes the next one the running one."""
        if not self.ready:
            return None
        self.running = self.ready.pop(0)
        self.running.told = 0
        self._started = self.clock()
        self._announce()
        return self.running

    def check_pause(self) -> None:
        """Whether one more may be paused. Paused ones leave their places to others, so they have a bound of their own.

        Raises:
            RequestError: 429 `too_many_paused`.
        """
        most = max(1, self.limit)
        leaving = self.running is not None and self.running.stop is Stop.PAUSE
        if self.paused + leaving >= most:
            raise RequestError(
                "too_many_paused",
                f"{self.paused + leaving} requests are paused already, the limit is {most}; this one goes on",
                status=429,
                kind="rate_limit_error",
                headers={"Retry-After": str(self._retry_after())},
            )

    def suspend(self, job: Job) -> None:
        """Puts a running or waiting request aside."""
        job.paused = True
        job.stop = None
        job.told = 0
        self._withdraw(job)
        self.outbox.append((job, Paused()))
        self._announce()

    def unpause(self, job: Job) -> None:
        """Lets a paused request take its place again."""
        job.paused = False
        self._enqueue(job)

    def end(self, job: Job, why: Stop | MindnanoError | Finished) -> None:
        """Takes a request out."""
        event = last_event(why)
        if isinstance(event, Finished):
            self.counts.finished += 1
        elif isinstance(why, Stop):
            self.counts.cancelled += 1
        else:
            self.counts.failed += 1
        if job is self.running:
            self._recent.append(self.clock() - self._started)
        del self._jobs[_key(job.request)]
        self._emptied = self.clock()
        if not job.paused:
            self._withdraw(job)
        if job.run is not None:
            self.left.append(job.run)
        self.outbox.append((job, event))
        self._announce()

    def expire(self, now: float) -> None:
        """Ends those that do not run and whose time is over."""
        for job in self.all():
            if job is not self.running and job.expires <= now:
                self.end(job, deadline_exceeded(job.request))

    def _admit(self, request: GenerationRequest) -> None:
        if self.draining:
            raise shutting_down(self._retry_after())
        if _key(request) in self._jobs:
            message = f"a request {request.id!r} is not complete yet"
            raise RequestError("request_id_in_use", message, status=409, param="request_id")
        # The head of the queue is as good as running while the generation thread comes to it.
        waiting = len(self.ready) - (self.running is None)
        if waiting >= max(self.limit, 0):
            raise RequestError(
                "queue_full",
                f"{self._fullness(waiting)}; try again later",
                status=429,
                kind="rate_limit_error",
                headers={"Retry-After": str(self._retry_after()), "X-Queue-Depth": str(waiting)},
            )

    def _fullness(self, waiting: int) -> str:
        """Why one more is refused. With --queue 0 none may wait for the one that runs."""
        if self.limit <= 0:
            return "a request is being answered already, and none may wait (--queue 0)"
        return f"{waiting} requests wait already, the limit is {self.limit}"

    def _retry_after(self) -> int:
        """Whole seconds until a place is likely free: when the running request ends."""
        usual = sum(self._recent) / len(self._recent) if self._recent else _GUESS
        since = 0.0 if self.running is None else self.clock() - self._started
        return min(max(math.ceil(usual - since), _RETRY_LEAST), _RETRY_MOST)

    def _enqueue(self, job: Job) -> None:
        insort(self.ready, job, key=lambda other: other.order)
        self._announce()

    def _withdraw(self, job: Job) -> None:
        if job is self.running:
            self.running = None
        else:
            self.ready.remove(job)

    def _announce(self) -> None:
        """Tells everyone whose position changed."""
        first = 0 if self.running is None else 1
        for position, job in enumerate(self.ready, first):
            if position not in (0, job.told):
                self.outbox.append((job, Queued(position=position)))
            job.told = position
        self.soonest = min((job.expires for job in self._jobs.values() if job is not self.running), default=math.inf)
        self.changed()


def _key(request: GenerationRequest) -> tuple[str, str]:
    """Ids are the owner's own: whether another one uses the same is nothing that could be found out."""
    return request.owner, request.id
