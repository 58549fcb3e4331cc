"""Reading the weights before the first question, and holding what that took against the plan."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TextIO

from launcher.errors import Cancelled
from launcher.memory_plan import ProcessPlan, Usage, read_usage
from launcher.messages import Catalogue
from launcher.progress import Progress
from launcher.system import SystemView

_QUIET_SECONDS = 0.5


class PreloadPort(Protocol):
    """What loading needs of `launcher.engine.Engine`."""

    def preload(self, progress: Callable[[int, int], None] | None = None) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedMemory:
    """What was planned, and what was resident once everything was loaded (None where the system does not say).

    Without preloading the package is read only as it is needed, so it is no part of the prediction.
    """

    plan: ProcessPlan
    preloaded: bool
    usage: Usage | None

    @property
    def predicted(self) -> int:
        """Bytes that should be resident after loading."""
        return self.plan.idle if self.preloaded else self.plan.idle - self.plan.mapped

    @property
    def unaccounted(self) -> int | None:
        """Measured minus predicted, bytes."""
        return None if self.usage is None else self.usage.resident - self.predicted

    def facts(self) -> dict[str, object]:
        """For the log."""
        return {
            "predicted_idle_bytes": self.predicted,
            "predicted_full_bytes": self.plan.full,
            "predicted_terms": {term.name: {"idle": term.idle, "full": term.full} for term in self.plan.terms},
            "preloaded": self.preloaded,
            "measured_bytes": None if self.usage is None else self.usage.resident,
            "measured_peak_bytes": None if self.usage is None else self.usage.peak,
            "unaccounted_bytes": self.unaccounted,
        }


def load(
    engine: PreloadPort,
    texts: Catalogue,
    stream: TextIO,
    *,
    clock: Callable[[], float] = time.monotonic,
    is_stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Makes the weights resident. Progress appears only when it takes longer than half a second.

    Raises:
        Cancelled: `is_stopped` said so.
        PackageError: the package cannot be read to its end.
        ResourceError: there is no memory for it.
    """
    start = clock()
    shown: Progress | None = None

    def report(done: int, total: int) -> None:
        nonlocal shown
        if is_stopped():
            raise Cancelled("cancelled", "loading was stopped")
        if shown is None and done < total and clock() - start > _QUIET_SECONDS:
            shown = Progress(texts("chat-loading"), total, stream=stream, clock=_once_at(start, clock), texts=texts)
        if shown is not None:
            shown.update(done)

    try:
        engine.preload(report)
    finally:
        if shown is not None:
            shown.close()


def _once_at(start: float, clock: Callable[[], float]) -> Callable[[], float]:
    """A clock that first tells the time of the start, so that rates count from there."""
    told = iter((start,))
    return lambda: next(told, clock())


def measure(system: SystemView, plan: ProcessPlan, *, preloaded: bool) -> LoadedMemory:
    """What is resident now, against the plan."""
    return LoadedMemory(plan=plan, preloaded=preloaded, usage=read_usage(system))
