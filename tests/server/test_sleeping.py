"""Memory that is given back while somebody needs it, never, or for good."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from launcher.errors import Cancelled, PackageError, RequestError
from launcher.server.sleeping import Sleeper
from tests.support.fake_memory import FULL, IDLE, LITTLE, FakeMemory


def no_stop() -> bool:
    return False


class Room:
    """A sleeper on a clock of its own, and what it says and does."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.memory = FakeMemory()
        self.notes: list[tuple[str, Mapping[str, object]]] = []
        self.put_away: Callable[[Callable[[], bool]], None] = lambda _wanted: None
        self.sleeper = Sleeper(
            seconds=IDLE,
            memory=self.memory,
            put_away=lambda wanted: self.put_away(wanted),
            note=lambda event, facts: self.notes.append((event, facts)),
            clock=lambda: self.now,
        )


@pytest.fixture
def room() -> Room:
    return Room()


def test_it_waits_until_it_is_time(room: Room) -> None:
    assert room.sleeper.rest(1000.0, no_stop) == IDLE
    room.now += 40
    assert room.sleeper.rest(1000.0, no_stop) == 60
    assert room.sleeper.rest(1010.0, no_stop) == 70  # there was a request meanwhile
    assert (room.sleeper.is_sleeping, room.memory.calls) == (False, [])
    room.now += 60
    assert room.sleeper.rest(1000.0, no_stop) is None
    assert (room.sleeper.is_sleeping, room.sleeper.count, room.memory.held) == (True, 1, False)
    room.now += 1000
    assert room.sleeper.rest(1000.0, no_stop) is None
    assert room.memory.calls == ["give back"]


def test_what_it_says(room: Room) -> None:
    def slow(_wanted: Callable[[], bool]) -> None:
        room.now += 2

    def work() -> None:
        room.now += 0.5

    room.put_away = slow
    room.memory.work = work
    room.now += 130
    room.sleeper.rest(1000.0, no_stop)
    room.now += 70
    room.sleeper.wake(no_stop)
    room.sleeper.wake(no_stop)
    assert room.notes == [
        ("sleeping", {"idle_seconds": 130, "seconds": 2, "bytes": FULL - LITTLE, "resident_bytes": LITTLE}),
        ("woken", {"slept_seconds": 70, "seconds": 1.5, "bytes": FULL - LITTLE, "resident_bytes": FULL}),
    ]


def test_conversations_are_in_safety_before_the_memory_goes(room: Room) -> None:
    def put_away(_wanted: Callable[[], bool]) -> None:
        assert room.memory.held
        room.memory.calls.append("put away")

    room.put_away = put_away
    room.now += IDLE
    room.sleeper.rest(1000.0, no_stop)
    assert room.memory.calls == ["put away", "give back"]


def test_a_request_that_comes_while_conversations_are_saved_keeps_it_awake(room: Room) -> None:
    def put_away(wanted: Callable[[], bool]) -> None:
        if wanted():
            raise Cancelled("cancelled", "stopped")

    room.put_away = put_away
    room.now += IDLE
    for answers in ([True], [False, True]):
        told = iter(answers)
        assert room.sleeper.rest(1000.0, lambda: next(told)) == 0.0  # noqa: B023
    assert (room.sleeper.is_sleeping, room.sleeper.count, room.memory.calls, room.notes) == (False, 0, [], [])


@pytest.mark.parametrize(
    "failure", [RequestError("memory_short", "little", status=503), PackageError("package-unreadable", "cut")]
)
def test_it_sleeps_on_when_waking_fails(room: Room, failure: Exception) -> None:
    room.now += IDLE
    room.sleeper.rest(1000.0, no_stop)
    room.memory.failure = failure
    with pytest.raises(type(failure)):
        room.sleeper.wake(no_stop)
    with pytest.raises(Cancelled):
        room.sleeper.wake(lambda: True)
    assert room.sleeper.is_sleeping
    room.memory.failure = None
    room.sleeper.wake(no_stop)
    assert (room.sleeper.is_sleeping, room.memory.held) == (False, True)
    assert [event for event, _ in room.notes] == ["sleeping", "woken"]
