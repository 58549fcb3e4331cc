"""A request on its way through the server, and why it ends."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from launcher.errors import Cancelled, InternalError, MindnanoError, RequestError
from launcher.server.events import Failed, Finished, Sink
from launcher.server.request import GenerationRequest
from launcher.server.run_ports import Phase
from launcher.server.running import Run
from launcher.server.scheduler_state import RequestDetails


class Stop(Enum):
    """Why a request should leave the engine."""

    PAUSE = "pause"
    CANCEL = "cancel"
    GONE = "gone"
    SHUTDOWN = "shutdown"


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """A request on its way; times on the scheduler's clock.

    Attributes:
        accepted, expires: when it came, and when it is given up.
        sequence: how many came before it.
        run: what it became when it started.
        paused: it waits for its resume, away from the engine.
        stop: what is asked of it while it runs.
        thinking_ended: its replies are to think no more.
        told: its position among those that wait, as far as its client knows; 0 where it does not wait for others.
        gone: its receiver raised and is not called again.
    """

    request: GenerationRequest
    sink: Sink
    accepted: float
    expires: float
    sequence: int
    run: Run | None = None
    paused: bool = False
    stop: Stop | None = None
    thinking_ended: bool = False
    told: int = 0
    gone: bool = False

    @property
    def order(self) -> tuple[bool, int]:
        """Those that have started come first, then whoever came first."""
        return self.run is None, self.sequence

    def phase(self, *, running: bool) -> Phase:
        """Where it is."""
        if running:
            return Phase.READING if self.run is None else self.run.phase
        return Phase.PAUSED if self.paused else Phase.WAITING

    def details(self, *, running: bool, now: float) -> RequestDetails:
        """What is told of it."""
        return RequestDetails(
            id=self.request.id,
            number=self.sequence,
            session=self.request.session,
            phase=self.phase(running=running),
            position=self.told,
            prompt=len(self.request.prompt),
            most=self.request.max_tokens,
            choice=0 if self.run is None else self.run.choice,
            generated=0 if self.run is None else self.run.generated,
            seconds=now - self.accepted,
        )


def last_event(why: Stop | MindnanoError | Finished) -> Finished | Failed:
    """What the client is told when a request ends for this reason."""
    if isinstance(why, Finished):
        return why
    if isinstance(why, MindnanoError):
        return Failed(error=why)
    if why is Stop.SHUTDOWN:
        return Failed(error=shutting_down(1))
    return Failed(error=Cancelled("cancelled", "the request was cancelled"))


def shutting_down(retry_after: int) -> RequestError:
    """The error of a request that came too late."""
    return RequestError(
        "shutting_down",
        "the server is shutting down",
        status=503,
        kind="server_error",
        headers={"Retry-After": str(retry_after)},
    )


def deadline_exceeded(request: GenerationRequest) -> RequestError:
    """The error of a request that took longer than it may."""
    return RequestError(
        "deadline_exceeded",
        f"the request was not complete after {request.deadline:g} seconds",
        status=504,
        kind="timeout_error",
    )


def as_error(error: BaseException) -> MindnanoError:
    """An error of our own as it is; any other is a bug."""
    if isinstance(error, MindnanoError):
        return error
    wrapped = InternalError("internal", repr(error), hint="please report this with the log")
    wrapped.__cause__ = error
    return wrapped
