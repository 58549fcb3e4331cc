"""What a loaded model holds of the machine's memory, given back and taken again.

The engine's session is freed and the package's pages are let go; the mapping, and with it the file that was verified,
stays. Whoever tokenises meanwhile reads the pages that it needs again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from launcher.errors import Cancelled, RequestError, ResourceError
from launcher.memory import read_memory
from launcher.memory_plan import read_usage
from launcher.model import OpenModel
from launcher.progress import format_bytes
from launcher.system import SystemView

RETRY_SECONDS: Final = 10
"""When a request that found too little memory is to come again."""


class ModelMemory:
    """The engine's session and the resident pages of the package, see `launcher.server.sleeping.MemoryPort`."""

    def __init__(self, model: OpenModel, system: SystemView, *, force: bool) -> None:
        """Args:
        model: open; its session object stays the same, but is closed in between.
        system: says how much memory there is.
        force: whether to try where it does not fit.
        """
        self._model = model
        self._system = system
        self._force = force
        self._allocated = model.session.allocated

    def resident(self) -> int | None:
        """See `MemoryPort`."""
        usage = read_usage(self._system)
        return None if usage is None else usage.resident

    def give_back(self) -> None:
        """See `MemoryPort`."""
        self._model.session.close()
        self._model.engine.unload()

    def take_again(self, is_stopped: Callable[[], bool]) -> None:
        """See `MemoryPort`."""

        def report(_done: int, _total: int) -> None:
            if is_stopped():
                raise Cancelled("cancelled", "loading was stopped")

        mapped = self._model.memory.plan.mapped
        memory = read_memory(self._system)
        available = None if memory is None else memory.available
        needed = mapped + self._allocated
        if available is not None and needed > available and not self._force:
            raise _memory_short(f"{format_bytes(needed)} are needed, {format_bytes(available)} are available")
        try:
            report(0, mapped)
            if available is None or mapped <= available:  # as at the start: else they would push each other out
                self._model.engine.preload(report)
            self._model.session.reopen()  # last: nothing closes it again, which could meet a cancel of another thread
        except (ResourceError, MemoryError) as error:
            self._model.engine.unload()
            raise _memory_short(str(error)) from error
        except BaseException:
            self._model.engine.unload()
            raise


def _memory_short(reason: str) -> RequestError:
    return RequestError(
        "memory_short",
        f"the model's memory was given back while nobody used it, and there is too little to load it again: {reason}",
        status=503,
        kind="server_error",
        headers={"Retry-After": str(RETRY_SECONDS)},
    )
