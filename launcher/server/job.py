"""A request on its way through the server, why it ends, and what the log says of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from launcher.errors import Cancelled, InternalError, MindnanoError, RequestError
from launcher.server.events import Failed, Finished, Sink
from launcher.server.request import GenerationRequest
from launcher.server.running import Phase, Run


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


def facts_of(job: Job, event: Finished | Failed, now: float) -> dict[str, object]:
    """For the log."""
    facts: dict[str, object] = {"seconds": round(now - job.accepted, 6)}
    if isinstance(event, Failed):
        facts |= {"outcome": event.error.slug, "error": event.error.message}
    else:
        facts["outcome"] = "finished"
    if job.run is None:
        return facts
    metrics = event.metrics if isinstance(event, Finished) else (*job.run.metrics, job.run.progress())
    first = metrics[0]
    return facts | {
        "prompt_tokens": first.prompt,
        "cached_tokens": first.cached,
        "cache_source": first.cache_source.value,
        "generated_tokens": sum(each.generated for each in metrics),
        "reasoning_tokens": sum(each.reasoning for each in metrics),
        "choices": len(metrics),
        "queue_seconds": round(first.queue_seconds, 6),
        "ttft_seconds": round(first.first_seconds, 6) or None,
        "prefill_tokens_per_second": round(first.prefill_rate, 3),
        "decode_tokens_per_second": round(metrics[-1].decode_rate, 3),
    }
