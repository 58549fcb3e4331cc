"""Requests that outlive their deadline, or are lost when the engine fails, a client leaves or the server ends."""

from __future__ import annotations

import math
import threading
import time

import pytest

from launcher.errors import Cancelled, EngineCrash, InternalError, RequestError
from launcher.server.events import (
    ChoiceFinished,
    Deltas,
    Event,
    Failed,
    Finished,
    Paused,
    Queued,
    Reading,
)
from launcher.server.request import Mark, MarkKind
from tests.support.fake_generation import Bench, expected_text, request


def refusal(bench: Bench, name: str) -> RequestError:
    with pytest.raises(RequestError) as refused:
        bench.submit(request(name))
    return refused.value


# -- deadlines --


def test_a_deadline_ends_a_request_that_waits() -> None:
    """The one that runs looks after those that wait, and goes on."""
    now = [0.0]
    with Bench(gated=True, clock=lambda: now[0]) as bench:
        bench.submit(request("a", max_tokens=50))
        waiting = bench.submit(request("b", deadline=10.0))
        bench.gate.wait()
        bench.gate.step()
        assert waiting.of(Failed) == []
        now[0] = 10.0
        bench.gate.step()
        assert waiting.error_code() == "deadline_exceeded"
        state = bench.scheduler.state()
        assert (state.running, state.waiting, state.failed) == ("a", 0, 1)


@pytest.mark.parametrize("chunks", [0, 4, 7])
def test_a_deadline_ends_a_request_that_runs(chunks: int) -> None:
    now = [0.0]
    with Bench(gated=True, clock=lambda: now[0]) as bench:
        listener = bench.submit(request("a", prompt="x" * 260, max_tokens=50, deadline=10.0))
        bench.gate.wait()
        bench.gate.step(chunks)
        said = len(bench.samplers[0].picked)
        now[0] = 10.0
        bench.gate.open()
        assert listener.error_code() == "deadline_exceeded"
        last = listener.end()
        assert isinstance(last, Failed)
        assert isinstance(last.error, RequestError)
        assert (last.error.status, last.error.kind) == (504, "timeout_error")
        assert len(bench.samplers[0].picked) <= said + 1
        assert bench.store.calls == ["begin", "end"]


@pytest.mark.parametrize("how", ["cancel", "pause", "deadline"])
def test_moving_conversations_gives_way_to_a_stop(how: str) -> None:
    """What the store does in `begin` may wait for a disk; a pause there is no end."""
    now = [0.0]
    with Bench(clock=lambda: now[0]) as bench:
        writing, stopped = threading.Event(), threading.Event()

        def begin(call: str) -> None:
            if call == "begin" and not stopped.is_set():
                writing.set()
                while not bench.store.is_stopped():
                    time.sleep(0.001)
                stopped.set()
                bench.store.current = None
                raise Cancelled("cancelled", "the engine was asked to stop")

        bench.store.fail = begin
        asked = request("a", deadline=10.0)
        listener = bench.submit(asked)
        assert writing.wait(20)
        if how == "deadline":
            now[0] = 11.0
            assert listener.error_code() == "deadline_exceeded"
        elif how == "cancel":
            assert bench.scheduler.cancel("a", "")
            assert listener.error_code() == "cancelled"
        else:
            assert bench.scheduler.pause("a", "")
            listener.wait(Paused)
            assert bench.scheduler.resume("a", "")
            assert listener.text() == expected_text(asked)
        assert "discard" not in bench.store.calls


def test_a_deadline_runs_on_while_a_request_is_paused(gated: Bench) -> None:
    """Nothing else wakes the thread."""
    listener = gated.submit(request("a", deadline=0.2))
    gated.gate.wait()
    gated.scheduler.pause("a", "")
    gated.gate.open()
    assert listener.error_code() == "deadline_exceeded"


# -- failures --


def test_an_engine_that_fails_costs_one_request(bench: Bench) -> None:
    crash = EngineCrash("engine-crashed", "bang")

    def fail() -> None:
        raise crash

    bench.engine.work = fail
    listener = bench.submit(request("a"))
    last = listener.end()
    assert isinstance(last, Failed)
    assert last.error is crash
    assert bench.store.calls == ["begin", "discard"]
    bench.engine.work = lambda: None
    asked = request("b")
    assert bench.submit(asked).text() == expected_text(asked)


@pytest.mark.parametrize("call", ["begin", "keep turn 2", "end"])
def test_whatever_fails_in_a_request_is_told_and_the_next_one_runs(bench: Bench, call: str) -> None:
    def fail(name: str) -> None:
        if name in (call, "discard"):
            raise ValueError(name)

    bench.store.fail = fail
    last = bench.submit(request("a", marks=(Mark(position=2, kind=MarkKind.TURN),))).end()
    assert isinstance(last, Failed)
    assert isinstance(last.error, InternalError)
    assert bench.store.calls[-1] == "discard"
    bench.store.fail = lambda _name: None
    asked = request("b", max_tokens=2)
    assert bench.submit(asked).text() == expected_text(asked)


def test_idle_work_that_fails_does_not_end_the_thread(bench: Bench) -> None:
    bench.store.fail = lambda name: math.sqrt(-1) if name == "idle" else None
    bench.submit(request("a")).text()
    bench.submit(request("b")).text()
    assert {type(error) for error in bench.upkeep_errors} == {ValueError}


def test_idle_work_is_done_when_it_asks_for_it(bench: Bench) -> None:
    bench.store.idle_seconds = 0.0
    bench.submit(request("a")).text()
    for _ in range(3):
        bench.store.idled.clear()
        assert bench.store.idled.wait(20)
    bench.store.idle_seconds = None


@pytest.mark.parametrize("kind", [Reading, Deltas, ChoiceFinished, Finished])
def test_a_receiver_that_raises_is_a_client_that_left(bench: Bench, kind: type[Event]) -> None:
    calls: list[Event] = []

    def sink(event: Event) -> None:
        calls.append(event)
        if isinstance(event, kind):
            raise ConnectionError("gone")

    bench.scheduler.submit(request("a", max_tokens=50), sink)
    asked = request("b")
    assert bench.submit(asked).text() == expected_text(asked)
    assert isinstance(calls[-1], kind)
    assert sum(isinstance(call, kind) for call in calls) == 1
    if kind in (Reading, Deltas):
        assert bench.scheduler.state().cancelled == 1
        assert len(bench.samplers[0].picked) <= 1


def test_a_receiver_that_raises_in_the_queue_leaves_it(gated: Bench) -> None:
    def sink(_event: Event) -> None:
        raise ConnectionError("gone")

    running = gated.submit(request("a"))
    gated.gate.wait()
    gated.scheduler.submit(request("b"), sink)
    assert gated.scheduler.state().waiting == 0
    gated.gate.open()
    running.text()


def test_a_receiver_may_call_back(gated: Bench) -> None:
    ended = threading.Event()

    def sink(event: Event) -> None:
        if isinstance(event, Queued):
            gated.scheduler.state()
            gated.scheduler.cancel("b", "")
        elif isinstance(event, Failed):
            ended.set()

    gated.submit(request("a"))
    gated.gate.wait()
    gated.scheduler.submit(request("b"), sink)
    assert ended.is_set()


# -- the end --


def test_a_drain_finishes_what_runs_and_waits_and_refuses_the_rest(gated: Bench) -> None:
    running, waiting, paused = (gated.submit(request(name)) for name in "abc")
    gated.gate.wait()
    gated.scheduler.pause("c", "")
    gated.scheduler.begin_drain()
    assert gated.scheduler.is_draining
    error = refusal(gated, "d")
    assert (error.slug, error.status) == ("shutting_down", 503)
    assert int(error.headers["Retry-After"]) >= 1
    gated.gate.open()
    gated.scheduler.close(drain=20)
    assert running.text() == waiting.text()
    assert paused.error_code() == "shutting_down"


def test_what_does_not_finish_in_time_is_ended_and_told(gated: Bench) -> None:
    listeners = [gated.submit(request(name, max_tokens=1000)) for name in "abc"]
    gated.gate.wait()
    closing = threading.Thread(target=gated.scheduler.close, kwargs={"drain": 0.0})
    closing.start()
    listeners[2].end()
    gated.gate.open()
    closing.join(20)
    assert not closing.is_alive()
    assert [each.error_code() for each in listeners] == ["shutting_down"] * 3
    assert gated.scheduler.state().cancelled == 3
    assert len(gated.samplers[0].picked) <= 1


def test_it_can_end_before_it_has_begun() -> None:
    with Bench(started=False) as bench:
        listener = bench.submit(request("a"))
        bench.scheduler.close(drain=0.0)
        assert listener.error_code() == "shutting_down"
