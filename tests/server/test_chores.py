"""Work for the generation thread that waits for a whole reply, is lost, or ends the thread."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

import pytest

from launcher.errors import Cancelled, RequestError
from launcher.server.chores import Chores
from launcher.server.events import Finished
from tests.support.fake_generation import Bench, request

PATIENCE = 20.0


def name() -> str:
    return threading.current_thread().name


def test_it_is_done_in_order_and_errors_are_told() -> None:
    chores, done = Chores(), list[int]()

    def failing() -> None:
        raise ValueError("no")

    futures: list[Future[None]] = [chores.add(lambda: done.append(1)), chores.add(failing)]
    futures.append(chores.add(lambda: done.append(2)))
    assert chores
    chores.run()
    assert not chores
    assert done == [1, 2]
    with pytest.raises(ValueError, match="no"):
        futures[1].result(0)
    futures[2].result(0)


def test_what_nobody_waits_for_any_more_is_passed_over() -> None:
    chores, done = Chores(), list[int]()
    future = chores.add(lambda: done.append(1))
    future.cancel()
    chores.run()
    assert done == []


def test_what_gives_way_is_done_when_the_reply_has_left(gated: Bench) -> None:
    """A conversation that must be written to a slow disk keeps a reply that is cancelled no longer than one piece."""
    listener = gated.submit(request("a", prompt="y" * 300, max_tokens=100))
    gated.gate.wait()
    pressed: list[bool] = []

    def work() -> str:
        while not pressed and not gated.scheduler.is_pressed():
            time.sleep(0.001)
        pressed.append(gated.scheduler.is_pressed())
        if pressed[-1]:
            raise Cancelled("cancelled", "it gives way")
        return name()

    future = gated.scheduler.perform(work)
    after = gated.scheduler.perform(name)
    gated.gate.open()
    gated.scheduler.cancel("a", "")
    assert listener.error_code() == "cancelled"
    assert future.result(PATIENCE) == after.result(PATIENCE) == "generation"
    assert pressed[0]
    assert not pressed[-1]


def test_what_comes_before_the_end_is_done_and_after_it_refused() -> None:
    chores, done = Chores(), list[int]()
    chores.add(lambda: done.append(1))
    chores.close()
    assert done == [1]
    with pytest.raises(RequestError) as caught:
        chores.add(lambda: done.append(2))
    assert (caught.value.slug, caught.value.status) == ("shutting_down", 503)


def test_a_thread_that_rests_is_woken(bench: Bench) -> None:
    assert bench.scheduler.perform(name).result(PATIENCE) == "generation"


def test_a_reply_on_its_way_lets_it_pass(gated: Bench) -> None:
    """Between two steps: a reply may take minutes."""
    listener = gated.submit(request("a", prompt="y" * 300, max_tokens=100))
    gated.gate.wait()
    future = gated.scheduler.perform(name)
    gated.gate.step(10)
    assert future.result(PATIENCE) == "generation"
    assert not listener.of(Finished)
    gated.gate.open()


def test_an_error_ends_nothing(bench: Bench) -> None:
    def failing() -> None:
        raise SystemExit(1)

    with pytest.raises(SystemExit):
        bench.scheduler.perform(failing).result(PATIENCE)
    assert bench.scheduler.perform(name).result(PATIENCE) == "generation"
