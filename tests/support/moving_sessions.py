"""Sessions of the stand-in engine as files that move, and an exchange that needs no scheduler."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from launcher.errors import UsageError
from launcher.server.session_format import Origin
from launcher.server.session_state import Inspected, StateRules, state_file
from launcher.server.session_transfer import Loan, Room
from launcher.server.sessions import SessionStore
from tests.support.fake_sessions import HEAD, SLOT, FakeState

T = TypeVar("T")
ORIGIN = Origin(identity=b"i" * 32, template_sha256=b"t" * 32, kv="bf16", engine="ling3 0.1.0")
CONTEXT = 4096


def inspected(memory: Any) -> Inspected:
    """What an export of `FakeState` says of itself."""
    data = bytes(memory)
    count, used = HEAD.unpack_from(data)
    if len(data) < HEAD.size + SLOT.size * used + 4 * count:
        raise UsageError("export", "no export")
    slots = dict(SLOT.unpack_from(data, HEAD.size + SLOT.size * index) for index in range(used))
    start = HEAD.size + SLOT.size * used
    ids = array("i", data[start : start + 4 * count])
    return Inspected(identity=ORIGIN.identity, kv=ORIGIN.kv, ids=ids, checkpoints=slots)


def rules(budget: int = 1 << 20, **changes: Any) -> StateRules:
    """Of a server with the stand-in engine."""
    return replace(StateRules(origin=ORIGIN, context=CONTEXT, budget=budget, inspect=inspected), **changes)


@dataclass
class Exchange:
    """See `launcher.server.ports.ExchangePort`: does everything at once, where it is asked."""

    budget: int = 1 << 20
    padding: int = 100
    session: FakeState = field(init=False)
    store: SessionStore = field(init=False)

    def __post_init__(self) -> None:
        self.session = FakeState(padding=self.padding)
        self.store = SessionStore(self.session, budget=self.budget)

    @property
    def rules(self) -> StateRules:
        return rules(self.budget)

    def lend(self, owner: str, name: str) -> Future[Loan]:
        return self._now(lambda: self.store.transfers.lend(owner, name))

    def reserve(self, owner: str, name: str, size: int) -> Future[Room]:
        return self._now(lambda: self.store.transfers.reserve(owner, name, size))

    def accept(self, room: Room, ids: array[int], checkpoints: Mapping[int, int]) -> Future[bool]:
        return self._now(lambda: self.store.transfers.accept(room, ids, checkpoints))

    def say(self, ids: list[int], *, name: str | None = "a", owner: str = "") -> int:
        """One request with its end; returns how many ids needed no reading."""
        begun = self.store.begin(owner=owner, name=name, ids=ids)
        self.session.eval(ids[begun.reused :])
        self.store.end()
        return begun.reused

    def file(self, name: str = "a", owner: str = "") -> bytes:
        """The session as it leaves."""
        loan = self.store.transfers.lend(owner, name)
        try:
            return b"".join(state_file(loan.entry, ORIGIN).pieces())
        finally:
            loan.close()

    @property
    def bytes(self) -> int:
        """What the cache counts."""
        return self.store.usage().bytes

    def _now(self, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
        return future
