"""What a server gives back while it sleeps, without a model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from launcher.errors import Cancelled

IDLE = 100.0
FULL, LITTLE = 5000, 1200


@dataclass
class FakeMemory:
    """Notes who has it; `work` is done in every piece of taking it again."""

    held: bool = True
    pieces: int = 3
    calls: list[str] = field(default_factory=list)
    work: Callable[[], None] = lambda: None
    failure: Exception | None = None

    def resident(self) -> int | None:
        return FULL if self.held else LITTLE

    def give_back(self) -> None:
        assert threading.current_thread().name == "generation" or threading.current_thread() is threading.main_thread()
        self.calls.append("give back")
        self.held = False

    def take_again(self, is_stopped: Callable[[], bool]) -> None:
        assert not self.held
        self.calls.append("take")
        for _ in range(self.pieces):
            self.work()
            if is_stopped():
                raise Cancelled("cancelled", "stopped")
        if self.failure is not None:
            raise self.failure
        self.held = True
