"""A request that finds the engine asleep, falling asleep or waking, and is lost, wakes it in vain or keeps it awake."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

import pytest

from launcher.errors import Cancelled, RequestError
from launcher.server.events import Deltas, Failed, Finished, Paused, Queued
from launcher.server.sleeping import Sleeper
from tests.support.fake_generation import PATIENCE, Bench, Gate, Listener, expected_text, request
from tests.support.fake_memory import IDLE, FakeMemory


class Night:
    """A scheduler whose sleeper has the scheduler's clock, which stands still until `pass_time`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.memory = FakeMemory()
        self.events: list[str] = []
        self.put_away: Callable[[Callable[[], bool]], None] = lambda _wanted: None
        self._came = threading.Condition()
        self.bench = Bench(clock=lambda: self.now, sleeper=self._sleeper, limit=4)
        self.bench.engine.work = self._work

    def _sleeper(self, _bench: Bench) -> Sleeper:
        self.sleeper = Sleeper(
            seconds=IDLE,
            memory=self.memory,
            put_away=lambda wanted: self.put_away(wanted),
            note=self._note,
            clock=lambda: self.now,
        )
        return self.sleeper

    def _work(self) -> None:
        if not self.memory.held:
            self.bench.engine.wrong.append("evaluated without memory")

    def _note(self, event: str, _facts: Mapping[str, object]) -> None:
        with self._came:
            self.events.append(event)
            self._came.notify_all()

    def wait(self, *events: str) -> None:
        """Until these and no others were noted."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.events) >= len(events), PATIENCE), self.events
        assert self.events == list(events)

    def pass_time(self, seconds: float) -> None:
        """And lets the thread look at the clock, twice, so that it has done what was due."""
        self.now += seconds
        for _ in range(2):
            self.bench.scheduler.perform(lambda: None).result(PATIENCE)


@pytest.fixture
def night() -> Iterator[Night]:
    made = Night()
    with made.bench:
        yield made


def test_it_falls_asleep_after_the_last_request_and_answers_the_next_as_ever(night: Night) -> None:
    night.pass_time(60)
    assert night.bench.submit(request("a")).text() == expected_text(request("a"))
    night.pass_time(60)
    assert not night.sleeper.is_sleeping
    night.pass_time(41)
    night.wait("sleeping")
    assert not night.memory.held
    assert night.bench.submit(request("b")).text() == expected_text(request("b"))
    night.wait("sleeping", "woken")
    night.pass_time(101)
    night.wait("sleeping", "woken", "sleeping")
    assert night.sleeper.count == 2


def test_a_server_that_nobody_asks_anything_sleeps_too(night: Night) -> None:
    night.pass_time(101)
    night.wait("sleeping")


def test_who_is_paused_keeps_it_awake(night: Night) -> None:
    gate = Gate()
    night.bench.engine.work = gate
    listener = night.bench.submit(request("a", max_tokens=4))
    gate.wait()
    assert night.bench.scheduler.pause("a", "")
    gate.open()
    listener.wait(Paused)
    night.pass_time(1000)
    assert not night.sleeper.is_sleeping
    night.bench.scheduler.resume("a", "")
    assert listener.text() == expected_text(request("a", max_tokens=4))
    night.pass_time(99)
    assert not night.sleeper.is_sleeping
    night.pass_time(2)
    night.wait("sleeping")


def test_refused_requests_and_questions_wake_nobody(night: Night) -> None:
    night.pass_time(101)
    night.wait("sleeping")
    assert not night.bench.scheduler.cancel("nobody", "")
    night.bench.scheduler.state()
    night.pass_time(500)
    assert night.memory.calls == ["give back"]


@pytest.mark.parametrize("late", [False, True], ids=["conversations are saved", "they are saved"])
def test_a_request_exactly_while_it_falls_asleep(night: Night, late: bool) -> None:
    listeners: list[Listener] = []

    def put_away(wanted: Callable[[], bool]) -> None:
        if not listeners:
            listeners.append(night.bench.submit(request("a")))
            assert wanted()
            if not late:
                raise Cancelled("cancelled", "stopped")

    night.put_away = put_away
    night.pass_time(101)
    assert listeners[0].text() == expected_text(request("a"))
    assert (night.events, night.memory.calls) == ([], [])


class Waking:
    """The moment in which a request makes the memory come back, held open."""

    def __init__(self, night: Night) -> None:
        self.gate = Gate()
        self.night = night
        night.pass_time(101)
        night.wait("sleeping")
        night.memory.work = self.gate
        self.listener = night.bench.submit(request("a"))
        self.gate.wait()


@pytest.fixture
def waking(night: Night) -> Iterator[Waking]:
    made = Waking(night)
    yield made
    made.gate.open()


def test_who_waits_while_it_wakes_is_told_its_place(waking: Waking) -> None:
    other = waking.night.bench.submit(request("b"))
    other.wait(Queued)
    assert other.of(Queued) == [Queued(position=1)]
    waking.gate.open()
    assert [waking.listener.text(), other.text()] == [expected_text(request("a")), expected_text(request("b"))]
    waking.night.wait("sleeping", "woken")


def test_a_cancel_while_it_wakes(waking: Waking) -> None:
    """It ends at the next piece, and sleeps on: memory that nobody needs is not taken."""
    assert waking.night.bench.scheduler.cancel("a", "")
    waking.gate.open()
    assert waking.listener.error_code() == "cancelled"
    waking.night.pass_time(1)
    assert (waking.night.sleeper.is_sleeping, waking.night.events) == (True, ["sleeping"])
    assert waking.night.bench.submit(request("b")).text() == expected_text(request("b"))
    waking.night.wait("sleeping", "woken")


def test_the_next_one_wakes_it_where_the_first_one_left(waking: Waking) -> None:
    other = waking.night.bench.submit(request("b"))
    waking.night.bench.scheduler.cancel("a", "")
    waking.gate.open()
    assert other.text() == expected_text(request("b"))
    assert waking.listener.of(Deltas) == []


def test_a_pause_while_it_wakes_lets_it_sleep_no_further_and_a_resume_goes_on(waking: Waking) -> None:
    waking.night.bench.scheduler.pause("a", "")
    waking.gate.open()
    waking.listener.wait(Paused)
    waking.night.bench.scheduler.resume("a", "")
    assert waking.listener.text() == expected_text(request("a"))
    waking.night.wait("sleeping", "woken")


def test_deadlines_hold_while_it_wakes(night: Night) -> None:
    """Of the one that wakes it, and of one that waits behind it."""
    gate = Gate()
    night.pass_time(101)
    night.memory.work = gate
    night.memory.pieces = 6
    first = night.bench.submit(request("a", deadline=30.0))
    gate.wait()
    second = night.bench.submit(request("b", deadline=10.0))
    third = night.bench.submit(request("c"))
    night.now += 15
    gate.step(1)
    assert second.error_code() == "deadline_exceeded"
    assert not first.of(Failed)
    night.now += 20
    gate.open()
    assert first.error_code() == "deadline_exceeded"
    assert third.text() == expected_text(request("c"))


def test_chores_are_done_while_it_wakes(waking: Waking) -> None:
    done = waking.night.bench.scheduler.perform(lambda: "done")
    waking.gate.step(1)
    assert done.result(PATIENCE) == "done"


def test_little_memory_ends_the_request_and_nothing_else(night: Night) -> None:
    night.pass_time(101)
    night.memory.failure = RequestError("memory_short", "little", status=503)
    for name in "ab":
        assert night.bench.submit(request(name)).error_code() == "memory_short"
    night.memory.failure = None
    assert night.bench.submit(request("c")).text() == expected_text(request("c"))
    assert night.bench.scheduler.state().failed == 2


def test_a_failure_while_it_falls_asleep_is_reported_and_leaves_it_awake(night: Night) -> None:
    def fail(_wanted: Callable[[], bool]) -> None:
        raise OSError("no")

    night.put_away = fail
    night.pass_time(101)
    assert [str(error) for error in night.bench.upkeep_errors[:1]] == ["no"]
    assert not night.sleeper.is_sleeping
    assert night.bench.submit(request("a")).text() == expected_text(request("a"))


@pytest.mark.parametrize("moment", ["awake", "falling asleep", "asleep", "waking"])
def test_it_ends_in_every_moment(moment: str) -> None:
    made = Night()
    gate = Gate()
    listener: Listener | None = None

    def put_away(wanted: Callable[[], bool]) -> None:
        gate()
        if wanted():
            raise Cancelled("cancelled", "stopped")

    with made.bench:
        if moment == "falling asleep":
            made.put_away = put_away
            made.now += IDLE
            poke = made.bench.scheduler.perform(lambda: None)
            gate.wait()
            assert poke.done()
            threading.Timer(0.05, gate.open).start()
        elif moment != "awake":
            made.pass_time(101)
        if moment == "waking":
            made.memory.work = gate
            listener = made.bench.submit(request("a"))
            gate.wait()
            threading.Timer(0.05, gate.open).start()
    assert made.bench.store.calls == ["close"]
    if listener is not None:
        assert isinstance(listener.end(), Failed | Finished)
        assert listener.error_code() == "shutting_down"
        assert made.sleeper.is_sleeping
