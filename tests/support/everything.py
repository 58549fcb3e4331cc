"""A scheduler with everything around it, and clients that do anything to it in any order; what must hold then."""

from __future__ import annotations

import random
import sys
import threading
import time
from array import array
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from launcher.errors import EngineCrash, MindnanoError, RequestError
from launcher.server.events import Deltas, Event, Failed, Finished
from launcher.server.request import GenerationRequest, Mark, MarkKind
from launcher.server.scheduler import Scheduler
from launcher.server.session_exchange import SessionExchange
from launcher.server.session_state import StateRules
from launcher.server.session_transfer import Loan
from launcher.server.sessions import SessionStore
from launcher.server.sleeping import Sleeper
from tests.support.bad_luck import BadDisk, Restless
from tests.support.callers import run_all
from tests.support.fake_engine import FakeStream
from tests.support.fake_generation import (
    STOP,
    STOP_TEXT,
    FakeSampler,
    FakeText,
    Listener,
    expected_text,
    request,
)
from tests.support.server_process import eventually
from tests.support.state_engine import HEAD, ORIGIN, FakeMemory, StateEngine, forged, inspected

BUDGET = 6000
LIAR = "liar"
OWNERS = ("one", "two", LIAR)
NAMES = ("a", "b", "c")
BEGINNINGS = ("You are kind. " * 4, "You are brief. " * 6, "x")
PATIENCE = 30.0
CLIENTS = 4
DISK = 20_000
HURRY = 200.0  # the store's seconds in one of the test's, so that it also saves in passing
LOANS = 2


@dataclass
class Asked:
    """A request, and what may become of it."""

    request: GenerationRequest
    listener: Listener
    may_end: set[str] = field(default_factory=set)
    leaves: bool = False


@dataclass
class Client:
    """What one of them remembers; `own` names a session that no other client touches."""

    rng: random.Random
    own: str
    asked: list[Asked] = field(default_factory=list)
    loans: list[tuple[Loan, bytes]] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)


class Everything:
    """A scheduler with a real store, files, sleeper and exchange on an engine that computes nothing."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.engine = StateEngine()
        self.crash = 0.0
        self.engine.work = self._work
        self.reports: list[MindnanoError] = []
        files = BadDisk(folder, limit_bytes=DISK, origin=ORIGIN, report=self.reports.append)
        files.rng = random.Random(seed + 2)
        self.store = SessionStore(self.engine, budget=BUDGET, files=files, clock=lambda: time.monotonic() * HURRY)
        self.store._lock = self.store._ram.lock = Restless(random.Random(seed + 3))  # type: ignore[assignment]
        self.memory = FakeMemory(self.engine, random.Random(seed + 1), lambda: time.sleep(0.0005))
        self.sleeper = Sleeper(
            seconds=0.002, memory=self.memory, put_away=self.store.put_to_sleep, note=lambda _event, _facts: None
        )
        self.samplers: list[FakeSampler] = []
        self.upkeep: list[Exception] = []
        self.scheduler = Scheduler(
            engine=self.engine,
            store=self.store,
            new_sampler=self._new_sampler,
            text=FakeText(),
            new_stream=FakeStream,
            stop_ids=frozenset({STOP}),
            stop_texts=(STOP_TEXT,),
            limit=6,
            upkeep_failed=self.upkeep.append,
            sleeper=self.sleeper,
        )
        rules = StateRules(origin=ORIGIN, context=10_000, budget=BUDGET, inspect=inspected)
        self.exchange = SessionExchange(self.scheduler, self.store.transfers, rules)
        self.asked: list[Asked] = []
        self.copies: list[bytes] = []
        self.unexpected: list[str] = []
        self.together = threading.Barrier(CLIENTS)

    def _work(self) -> None:
        if self.rng.random() < 0.002:
            raise EngineCrash("engine-failed", "it failed")
        if self.rng.random() < 0.02:
            time.sleep(0.001)

    def _new_sampler(self, asked: GenerationRequest, choice: int) -> FakeSampler:
        sampler = FakeSampler(self.engine, asked, choice, None)
        self.samplers.append(sampler)
        return sampler

    # -- what clients do; each in a thread of its own --

    def client(self, own: int, rounds: int) -> Callable[[], None]:
        me = Client(rng=random.Random(own), own=f"own {own}")
        acts = (
            *(self._ask, self._ask, self._ask, self._disturb, self._disturb),
            *(self._send, self._receive, self._borrow, self._look, self._delete),
        )

        def work() -> None:
            for place in range(rounds):
                me.rng.choice(acts)(me, f"{own}-{place}")
                if place % 10 == 9:
                    self._lull(me, asleep=place % 40 == 39)
                    time.sleep(me.rng.random() * 0.005)
            while me.loans:
                self._give_back(me)
            self._lull(me)

        return work

    def _lull(self, me: Client, *, asleep: bool = False) -> None:
        """Until nobody asks for anything any more, so that the server may fall asleep, or until it has."""
        self._finish(me.asked)
        self.together.wait(PATIENCE)
        if asleep:
            eventually(lambda: self.sleeper.is_sleeping or self.scheduler.is_draining, "asleep")
            self.together.wait(PATIENCE)

    def _finish(self, asked: list[Asked]) -> None:
        for each in asked:
            self.scheduler.resume(each.request.id, each.request.owner)
        for each in asked:
            if not each.leaves:
                each.listener.end()

    def _ask(self, me: Client, name: str) -> None:
        rng = me.rng
        session = rng.choice((*NAMES, me.own, None))
        beginning = rng.choice(BEGINNINGS)
        prompt = beginning + "".join(rng.choices("pqrs", k=rng.randrange(1, 200)))
        marks = tuple(
            Mark(position=place, kind=kind)
            for place, kind in ((len(beginning), MarkKind.SYSTEM), (len(prompt) - 1, MarkKind.TURN))
            if 0 < place < len(prompt)
        )
        asked = request(
            name,
            prompt=prompt,
            max_tokens=rng.randrange(1, 12),
            seed=rng.randrange(100),
            owner=rng.choice(OWNERS),
            session=session,
            choices=rng.choice((1, 1, 1, 3)),
            deadline=rng.choice((None, None, 0.002, 5.0)),
            marks=marks,
        )
        # One that left may have ended later than anybody was told.
        each = Asked(request=asked, listener=Listener(), leaves=session != me.own and rng.random() < 0.05)
        meddles = rng.random() < 0.1
        each.may_end = {"engine-failed", "memory_short"}
        if asked.deadline is not None:
            each.may_end.add("deadline_exceeded")

        def sink(event: Event) -> None:
            each.listener(event)
            if each.leaves:
                raise ConnectionError("gone")
            if meddles and isinstance(event, Deltas):
                with suppress(RequestError):  # too many are paused
                    self.scheduler.pause(asked.id, asked.owner)
                self.scheduler.resume(asked.id, asked.owner)

        if session == me.own:
            me.deleted.discard(asked.owner)
        try:
            self.scheduler.submit(asked, sink)
        except RequestError as error:
            if error.slug not in {"queue_full", "shutting_down"}:
                self.unexpected.append(error.slug)
            return
        me.asked.append(each)
        self.asked.append(each)

    def _disturb(self, me: Client, _name: str) -> None:
        rng = me.rng
        if not me.asked:
            return
        each = rng.choice(me.asked[-4:])
        key = each.request.id, each.request.owner
        act = rng.randrange(6)
        if act == 0:
            each.may_end.add("cancelled")
            self.scheduler.cancel(*key)
        elif act == 1:
            each.may_end.add("cancelled")
            self.scheduler.withdraw(each.request)
        elif act == 2:
            self.scheduler.end_thinking(*key)
        else:
            try:
                self.scheduler.pause(*key)
            except RequestError as error:
                if error.slug != "too_many_paused":
                    self.unexpected.append(error.slug)
            if rng.random() < 0.8:
                self.scheduler.resume(*key)

    def _send(self, me: Client, name: str) -> None:
        if self._lend(me, name):
            if me.rng.random() < 0.3:
                time.sleep(0.003)
            self._give_back(me, -1)

    def _borrow(self, me: Client, name: str) -> None:
        """Over what may happen to the session meanwhile, its deletion and the server's sleep included."""
        if len(me.loans) < LOANS:
            self._lend(me, name)
        else:
            self._give_back(me)

    def _lend(self, me: Client, _name: str) -> bool:
        owner, name = me.rng.choice(OWNERS), me.rng.choice((*NAMES, me.own))
        try:
            future = self.exchange.lend(owner, name)
            if me.rng.random() < 0.1:  # its client left
                future.cancel()
                future.add_done_callback(lambda done: None if _has_failed(done) else done.result().close())
                return False
            loan = future.result(PATIENCE)
        except RequestError as error:
            self._refused(error)
            return False
        if name == me.own and owner in me.deleted:
            self.unexpected.append("a deleted session is lent")
        me.loans.append((loan, bytes(loan.entry.block.memory[:])))
        return True

    def _give_back(self, me: Client, place: int = 0) -> None:
        loan, before = me.loans.pop(place)
        if bytes(loan.entry.block.memory[:]) != before or list(inspected(before).ids) != list(loan.entry.ids):
            self.unexpected.append("what was lent has changed")
        if loan.entry.key.owner != LIAR:
            self.copies.append(before)
        loan.close()

    def _receive(self, me: Client, _name: str) -> None:
        rng = me.rng
        if not self.copies:
            return
        owner = rng.choice(OWNERS)
        export = rng.choice(self.copies[-8:])
        export = forged(export) if owner == LIAR else export
        try:
            room = self.exchange.reserve(owner, rng.choice(NAMES), len(export)).result(PATIENCE)
        except RequestError as error:
            self._refused(error)
            return
        try:
            room.block.memory[:] = export
            if rng.random() < 0.3:
                time.sleep(0.003)
            if rng.random() < 0.8:
                found = inspected(export)
                future = self.exchange.accept(room, array("i", found.ids), found.checkpoints)
                if rng.random() < 0.2:
                    future.cancel()
                if rng.random() < 0.2:
                    room.close()
                future.result(PATIENCE)
        except RequestError as error:
            self._refused(error, "cancelled")
        except CancelledError:
            pass
        finally:
            room.close()

    def _refused(self, error: RequestError, *others: str) -> None:
        expected = {"session_not_found", "session_in_use", "session_cache_full", "shutting_down", *others}
        if error.slug not in expected:
            self.unexpected.append(error.slug)

    def _look(self, me: Client, _name: str) -> None:
        usage = self.store.usage()
        if usage.bytes > BUDGET or usage.disk_bytes > DISK:
            self.unexpected.append("more than sessions may have")
        owner = me.rng.choice(OWNERS)
        listed = {info.name for info in self.store.listing(owner)}
        if owner in me.deleted and me.own in listed:
            self.unexpected.append("a deleted session is back")
        for told in self.scheduler.requests(owner):
            if self.scheduler.details(told.id, "nobody") is not None:
                self.unexpected.append("another's request")

    def _delete(self, me: Client, _name: str) -> None:
        owner = me.rng.choice(OWNERS)
        if me.rng.random() < 0.7:
            for name in NAMES:
                self.store.delete(owner, name)
                time.sleep(me.rng.random() * 0.0005)
            return
        # Nobody asks in it any more, so that it stays away.
        self._finish([each for each in me.asked if (each.request.owner, each.request.session) == (owner, me.own)])
        self.store.delete(owner, me.own)
        me.deleted.add(owner)

    # -- what must hold in the end --

    def check(self, *, closed: bool) -> None:
        for each in self.asked:
            if each.leaves:
                continue
            last = each.listener.end()
            ends = [event for event in each.listener.events if isinstance(event, Finished | Failed)]
            assert len(ends) == 1
            if isinstance(last, Failed):
                may = each.may_end | ({"shutting_down"} if closed else set())
                assert last.error.slug in may, (each.request.id, last.error)
            elif each.request.owner != LIAR or each.request.session is None:
                for choice in range(each.request.choices):
                    said = each.listener.text(choice)
                    assert said == expected_text(each.request, choice), (each.request.id, choice)
        assert self.unexpected == []
        assert self.upkeep == []
        assert {error.slug for error in self.reports} <= {"session-unsaved", "session-refused"}
        assert not [error for error in self.reports if f"of its {HEAD.size} bytes" in error.message]  # of no token
        state = self.scheduler.state()
        assert state.accepted == state.finished + state.cancelled + state.failed == len(self.asked)
        assert (state.running, state.waiting, state.paused) == (None, 0, 0)

    def check_memory(self) -> None:
        """By the thread that adds and evicts, so that nothing is on its way."""
        ram = self.store._ram
        entries = ram.entries()
        assert ram.bytes == sum(entry.block.size for entry in entries)
        assert not [entry for entry in entries if entry.pinned or entry.forgotten]

    def run(self, seed: int, rounds: int) -> None:
        usual = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)  # threads take turns in the midst of everything
        try:
            run_all(*(self.client(seed * 100 + own, rounds) for own in range(CLIENTS)))
        finally:
            sys.setswitchinterval(usual)


def _has_failed(future: Future[Loan]) -> bool:
    return future.cancelled() or future.exception() is not None
