"""An answer that is lost, mixed up, or another than a cold server's, and memory that nobody gives back, when requests,
pauses, ends, sleeps, moving sessions, forged ones and a shutdown meet in any order."""

from __future__ import annotations

import random
import threading
import time
from array import array
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from launcher.errors import EngineCrash, MindnanoError, RequestError
from launcher.server.events import Event, Failed, Finished
from launcher.server.request import GenerationRequest, Mark, MarkKind
from launcher.server.scheduler import Scheduler
from launcher.server.session_exchange import SessionExchange
from launcher.server.session_files import SessionFiles
from launcher.server.session_state import StateRules
from launcher.server.sessions import SessionStore
from launcher.server.sleeping import Sleeper
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
from tests.support.state_engine import ORIGIN, FakeMemory, StateEngine, forged, inspected

BUDGET = 6000
LIAR = "liar"
OWNERS = ("one", "two", LIAR)
NAMES = ("a", "b", "c")
BEGINNINGS = ("You are kind. " * 4, "You are brief. " * 6, "x")
PATIENCE = 30.0
CLIENTS = 4


@dataclass
class Asked:
    """A request, and what may become of it."""

    request: GenerationRequest
    listener: Listener
    may_end: set[str] = field(default_factory=set)
    leaves: bool = False


class Everything:
    """A scheduler with a real store, files, sleeper and exchange on an engine that computes nothing."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.engine = StateEngine()
        self.crash = 0.0
        self.engine.work = self._work
        self.reports: list[MindnanoError] = []
        files = SessionFiles(folder, limit_bytes=20_000, origin=ORIGIN, report=self.reports.append)
        self.store = SessionStore(self.engine, budget=BUDGET, files=files)
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
        rng = random.Random(own)
        mine: list[Asked] = []
        acts = (self._ask, self._ask, self._ask, self._disturb, self._disturb, self._send, self._receive, self._look)

        def work() -> None:
            for place in range(rounds):
                rng.choice(acts)(rng, mine, f"{own}-{place}")
                if place % 10 == 9:
                    self._lull(mine, asleep=place % 40 == 39)
                    time.sleep(rng.random() * 0.005)
            self._lull(mine)

        return work

    def _lull(self, mine: list[Asked], *, asleep: bool = False) -> None:
        """Until nobody asks for anything any more, so that the server may fall asleep, or until it has."""
        for each in mine:
            self.scheduler.resume(each.request.id, each.request.owner)
        for each in mine:
            if not each.leaves:
                each.listener.end()
        self.together.wait(PATIENCE)
        if asleep:
            eventually(lambda: self.sleeper.is_sleeping or self.scheduler.is_draining, "asleep")
            self.together.wait(PATIENCE)

    def _ask(self, rng: random.Random, mine: list[Asked], name: str) -> None:
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
            session=rng.choice((*NAMES, None)),
            choices=rng.choice((1, 1, 1, 3)),
            deadline=rng.choice((None, None, 0.002, 5.0)),
            marks=marks,
        )
        each = Asked(request=asked, listener=Listener(), leaves=rng.random() < 0.05)
        each.may_end = {"engine-failed", "memory_short"}
        if asked.deadline is not None:
            each.may_end.add("deadline_exceeded")

        def sink(event: Event) -> None:
            each.listener(event)
            if each.leaves:
                raise ConnectionError("gone")

        try:
            self.scheduler.submit(asked, sink)
        except RequestError as error:
            if error.slug not in {"queue_full", "shutting_down"}:
                self.unexpected.append(error.slug)
            return
        mine.append(each)
        self.asked.append(each)

    def _disturb(self, rng: random.Random, mine: list[Asked], _name: str) -> None:
        if not mine:
            return
        each = rng.choice(mine[-4:])
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

    def _send(self, rng: random.Random, _mine: list[Asked], _name: str) -> None:
        try:
            loan = self.exchange.lend(rng.choice(OWNERS), rng.choice(NAMES)).result(PATIENCE)
        except RequestError as error:
            self._refused(error)
            return
        before = bytes(loan.entry.block.memory[:])
        if rng.random() < 0.3:
            time.sleep(0.003)
        if bytes(loan.entry.block.memory[:]) != before or list(inspected(before).ids) != list(loan.entry.ids):
            self.unexpected.append("what was lent has changed")
        if loan.entry.key.owner != LIAR:
            self.copies.append(before)
        loan.close()

    def _receive(self, rng: random.Random, _mine: list[Asked], _name: str) -> None:
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
                future.result(PATIENCE)
        except RequestError as error:
            self._refused(error)
        except CancelledError:
            pass
        finally:
            room.close()

    def _refused(self, error: RequestError) -> None:
        if error.slug not in {"session_not_found", "session_in_use", "session_cache_full", "shutting_down"}:
            self.unexpected.append(error.slug)

    def _look(self, rng: random.Random, mine: list[Asked], _name: str) -> None:
        if self.store.usage().bytes > BUDGET:
            self.unexpected.append("more than the session cache may have")
        owner = rng.choice(OWNERS)
        self.store.listing(owner)
        for told in self.scheduler.requests(owner):
            if self.scheduler.details(told.id, "nobody") is not None:
                self.unexpected.append("another's request")
        if rng.random() < 0.1:
            self.store.delete(owner, rng.choice(NAMES))

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
        assert self.reports == []
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
        run_all(*(self.client(seed * 100 + own, rounds) for own in range(CLIENTS)))


@pytest.mark.parametrize("seed", range(4))
def test_every_answer_is_the_cold_one_and_nothing_is_left(tmp_path: Path, seed: int) -> None:
    all_ = Everything(tmp_path / "sessions", seed)
    all_.scheduler.start()
    try:
        all_.run(seed, 250)
        for each in all_.asked:
            if not each.leaves:
                each.listener.end()
        all_.scheduler.perform(all_.check_memory).result(PATIENCE)
    finally:
        all_.scheduler.close(drain=PATIENCE)
    all_.check(closed=False)
    assert all_.engine.wrong == []
    assert all(sampler.closed for sampler in all_.samplers)
    assert all_.store._ram.bytes == 0
    assert all_.memory.given > 1
    assert any(isinstance(each.listener.events[-1], Finished) for each in all_.asked)


@pytest.mark.parametrize("seed", range(4, 8))
def test_a_shutdown_in_the_middle_ends_every_request_and_frees_everything(tmp_path: Path, seed: int) -> None:
    all_ = Everything(tmp_path / "sessions", seed)
    all_.scheduler.start()

    def shut() -> None:
        time.sleep(all_.rng.random() * 0.2)
        all_.scheduler.close(drain=0.0)

    shutting = threading.Thread(target=shut)
    shutting.start()
    try:
        all_.run(seed, 250)
    finally:
        shutting.join(60)
        assert not shutting.is_alive()
    all_.check(closed=True)
    assert all_.engine.wrong == []
    assert all(sampler.closed for sampler in all_.samplers)
    assert all_.store._ram.bytes == 0
