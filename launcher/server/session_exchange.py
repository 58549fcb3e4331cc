"""Sessions that move between servers, for the routes: what the generation thread does of it, and the rules."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from concurrent.futures import Future

from launcher.server.scheduler import Scheduler
from launcher.server.session_state import StateRules
from launcher.server.session_transfer import Loan, Room, Transfers


class SessionExchange:
    """See `launcher.server.ports.ExchangePort`. May be called from any thread."""

    def __init__(self, scheduler: Scheduler, transfers: Transfers, rules: StateRules) -> None:
        self._scheduler = scheduler
        self._transfers = transfers
        self._rules = rules

    @property
    def rules(self) -> StateRules:
        """What a state must be."""
        return self._rules

    def lend(self, owner: str, name: str) -> Future[Loan]:
        """See `Transfers.lend`."""
        return self._scheduler.perform(lambda: self._transfers.lend(owner, name, self._scheduler.is_pressed))

    def reserve(self, owner: str, name: str, size: int) -> Future[Room]:
        """See `Transfers.reserve`."""
        return self._scheduler.perform(lambda: self._transfers.reserve(owner, name, size, self._scheduler.is_pressed))

    def accept(self, room: Room, ids: array[int], checkpoints: Mapping[int, int]) -> Future[bool]:
        """See `Transfers.accept`."""
        return self._scheduler.perform(lambda: self._transfers.accept(room, ids, checkpoints))
