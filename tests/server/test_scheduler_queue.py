"""Requests that run out of order, keep others out, reach those of others, or outlive their cancel."""

from __future__ import annotations

import pytest

from launcher.errors import Cancelled, RequestError
from launcher.server.events import (
    Event,
    Failed,
    Finished,
    Paused,
    Queued,
)
from launcher.server.request import Style
from launcher.server.run_ports import Phase
from tests.support.fake_generation import CHUNK, Bench, Gate, Listener, expected_text, request


def refusal(bench: Bench, name: str) -> RequestError:
    with pytest.raises(RequestError) as refused:
        bench.submit(request(name))
    return refused.value


def positions(listener: Listener) -> list[int]:
    return [event.position for event in listener.of(Queued)]


# -- the queue --


def test_requests_run_in_order_and_are_told_their_places(gated: Bench) -> None:
    a, b, c, d = (gated.submit(request(name)) for name in "abcd")
    gated.gate.wait()
    assert [positions(each) for each in (a, b, c, d)] == [[], [1], [2], [3]]
    assert gated.scheduler.cancel("b", "")
    assert [positions(each) for each in (c, d)] == [[2, 1], [3, 2]]
    state = gated.scheduler.state()
    assert (state.running, state.waiting, state.paused) == ("a", 2, 0)
    gated.gate.open()
    for each in (a, c, d):
        each.text()
    assert positions(d) == [3, 2, 1]
    assert gated.run_order() == ["a", "c", "d"]


def test_a_full_queue_refuses_with_429_and_when_to_come_back() -> None:
    with Bench(gated=True, limit=2) as bench:
        bench.submit(request("a"))
        bench.gate.wait()
        waiting = [bench.submit(request(name)) for name in "bc"]
        error = refusal(bench, "d")
        assert (error.slug, error.status, error.kind) == ("queue_full", 429, "rate_limit_error")
        assert 1 <= int(error.headers["Retry-After"]) <= 60
        assert error.headers["X-Queue-Depth"] == "2"
        assert bench.scheduler.state().refused == 1
        assert bench.scheduler.cancel("b", "")
        bench.submit(request("e"))
        bench.gate.open()
        waiting[1].text()


def test_retry_after_follows_how_long_requests_take() -> None:
    now = [0.0]
    with Bench(gated=True, limit=0, clock=lambda: now[0]) as bench:
        first = bench.submit(request("a"))
        bench.gate.wait()
        now[0] += 40
        bench.gate.open()
        first.text()
        bench.engine.work = bench.gate = Gate()
        bench.submit(request("b"))
        bench.gate.wait()
        now[0] += 8.5
        assert refusal(bench, "c").headers["Retry-After"] == "32"
        now[0] += 500
        assert refusal(bench, "d").headers["Retry-After"] == "1"


def test_without_a_queue_only_a_free_engine_accepts() -> None:
    with Bench(gated=True, limit=0) as bench:
        bench.submit(request("a"))
        assert refusal(bench, "b").headers["X-Queue-Depth"] == "0"
        bench.gate.wait()
        refused = refusal(bench, "c")
        assert refused.slug == "queue_full"
        assert refused.message.startswith("a request is being answered already, and none may wait")


def test_the_engine_is_free_when_the_end_is_told() -> None:
    """A client that asks again at once is not refused because of itself."""
    answers = Listener()
    with Bench(limit=0) as bench:

        def ask_again(event: Event) -> None:
            if isinstance(event, Finished):
                bench.scheduler.submit(request("b"), answers)

        bench.scheduler.submit(request("a"), ask_again)
        assert answers.text() == expected_text(request("b"))


def test_an_id_stands_for_one_request(gated: Bench) -> None:
    first = gated.submit(request("a"))
    assert refusal(gated, "a").slug == "request_id_in_use"
    gated.gate.open()
    first.text()
    gated.submit(request("a")).text()


def test_an_id_is_taken_for_its_owner_alone(gated: Bench) -> None:
    """Else a refusal would tell what others use, and they could keep an id from its owner."""
    mine, theirs = request("a", owner="mine"), request("a", owner="theirs", prompt="other")
    first, second = gated.submit(mine), gated.submit(theirs)
    with pytest.raises(RequestError) as caught:
        gated.submit(request("a", owner="mine"))
    assert (caught.value.slug, caught.value.param) == ("request_id_in_use", "request_id")
    assert gated.scheduler.cancel("a", "theirs")
    assert isinstance(second.end(), Failed)
    gated.gate.open()
    assert first.text() == expected_text(mine)


def test_who_withdraws_a_request_that_has_ended_does_not_end_the_next_one_of_its_id(gated: Bench) -> None:
    old, new = request("a"), request("a", prompt="another")
    gated.submit(request("first"))
    gated.submit(old)
    gated.scheduler.cancel("a", "")
    answer = gated.submit(new)
    gated.scheduler.withdraw(old)
    gated.gate.open()
    assert answer.text() == expected_text(new)


def test_a_withdrawn_request_ends(gated: Bench) -> None:
    asked = request("a")
    answer = gated.submit(asked)
    gated.scheduler.withdraw(asked)
    gated.gate.open()
    assert isinstance(answer.end(), Failed)


def test_paused_requests_keep_nobody_out() -> None:
    """Neither those that waited nor the one that ran; resumed they go first, and the queue may be too long then."""
    with Bench(gated=True, limit=2) as bench:
        listeners = {name: bench.submit(request(name)) for name in "ab"}
        bench.gate.wait()
        assert bench.scheduler.pause("b", "")
        listeners["c"] = bench.submit(request("c"))
        assert bench.scheduler.pause("a", "")
        bench.gate.step()
        assert bench.scheduler.state().running == "c"
        listeners |= {name: bench.submit(request(name)) for name in "de"}
        assert refusal(bench, "f").headers["X-Queue-Depth"] == "2"
        assert bench.scheduler.resume("b", "")
        assert bench.scheduler.resume("a", "")
        state = bench.scheduler.state()
        assert (state.waiting, state.paused) == (4, 0)
        assert refusal(bench, "f").headers["X-Queue-Depth"] == "4"
        bench.gate.open()
        for listener in listeners.values():
            listener.text()
        assert bench.end_order() == ["c", "a", "b", "d", "e"]


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_no_more_requests_are_paused_than_may_wait(limit: int) -> None:
    """One always may be. The one too many goes on, and a place that a resume or an end leaves is taken."""
    most = max(1, limit)
    with Bench(gated=True, limit=8) as bench:
        names = "abcde"[: most + 2]
        listeners = [bench.submit(request(name)) for name in names]
        bench.gate.wait()
        bench.scheduler._queue.limit = limit  # there is more to pause now than may wait
        assert bench.scheduler.pause("a", "")  # counts from now on, also while it leaves the engine
        for name in names[1:most]:
            assert bench.scheduler.pause(name, "")
        with pytest.raises(RequestError) as refused:
            bench.scheduler.pause(names[-1], "")
        assert (refused.value.slug, refused.value.status) == ("too_many_paused", 429)
        assert int(refused.value.headers["Retry-After"]) >= 1
        assert bench.scheduler.pause("a", "")  # is paused, which is no refusal
        assert bench.scheduler.resume("a", "")
        assert bench.scheduler.pause(names[-1], "")
        for name in names[1:most]:
            bench.scheduler.resume(name, "")
        bench.scheduler.resume(names[-1], "")
        bench.gate.open()
        for listener in listeners:
            listener.text()


def test_nobody_reaches_the_requests_of_others(gated: Bench) -> None:
    running = gated.submit(request("a", owner="x"))
    waiting = gated.submit(request("b", owner="y"))
    gated.gate.wait()
    scheduler = gated.scheduler
    for name, owner in (("a", "y"), ("b", "x"), ("none", "x"), ("a", "")):
        assert not scheduler.cancel(name, owner)
        assert not scheduler.pause(name, owner)
        assert not scheduler.resume(name, owner)
        assert scheduler.details(name, owner) is None
    gated.gate.open()
    assert running.text() == waiting.text()
    assert not scheduler.cancel("a", "x")


def test_details_follow_a_request_through_its_phases(gated: Bench) -> None:
    scheduler = gated.scheduler
    gated.submit(request("a", prompt="x" * 65, max_tokens=9))
    gated.submit(request("b"))
    gated.gate.wait()

    def phase(name: str) -> tuple[Phase, int, int]:
        found = scheduler.details(name, "")
        assert found is not None
        return found.phase, found.position, found.generated

    assert (phase("a"), phase("b")) == ((Phase.READING, 0, 0), (Phase.WAITING, 1, 0))
    gated.gate.step(3)
    assert phase("a") == (Phase.WRITING, 0, 2)
    scheduler.pause("a", "")
    gated.gate.step()
    assert phase("a")[0] is Phase.PAUSED
    assert phase("b") == (Phase.READING, 0, 0)


# -- cancel --


def test_cancel_while_waiting_answers_at_once(gated: Bench) -> None:
    gated.submit(request("a"))
    waiting = gated.submit(request("b"))
    gated.gate.wait()
    assert gated.scheduler.cancel("b", "")
    assert isinstance(waiting.events[-1], Failed)
    assert isinstance(waiting.events[-1].error, Cancelled)
    assert gated.scheduler.state().cancelled == 1


def test_cancel_while_the_prompt_is_read_stops_within_one_chunk(gated: Bench) -> None:
    listener = gated.submit(request("a", prompt="x" * 1000))
    gated.gate.wait()
    gated.gate.step()
    assert gated.scheduler.cancel("a", "")
    gated.gate.open()
    assert listener.error_code() == "cancelled"
    assert gated.engine.position == 2 * CHUNK
    assert gated.store.calls == ["begin", "end"]


@pytest.mark.parametrize("thinking", [False, True])
def test_cancel_while_writing_stops_within_one_token(gated: Bench, thinking: bool) -> None:
    listener = gated.submit(request("a", max_tokens=99, style=Style.CHAT, reasoning=thinking))
    gated.gate.wait()
    gated.gate.step(4)
    said = len(gated.samplers[0].picked)
    assert gated.scheduler.cancel("a", "")
    gated.gate.open()
    assert listener.error_code() == "cancelled"
    assert len(gated.samplers[0].picked) <= said + 1


def test_cancel_while_paused_answers_at_once(gated: Bench) -> None:
    listener = gated.submit(request("a", max_tokens=99))
    gated.gate.wait()
    gated.gate.step(2)
    assert gated.scheduler.pause("a", "")
    gated.gate.open()
    listener.wait(Paused)
    assert gated.scheduler.cancel("a", "")
    assert isinstance(listener.events[-1], Failed)


def test_a_cancel_that_comes_too_late_spares_the_next_request(gated: Bench) -> None:
    """Asked in the last evaluation of its request, it is still pending in the engine when the next one begins."""
    first = gated.submit(request("a", max_tokens=1))
    asked = request("b", prompt="another", max_tokens=6)
    second = gated.submit(asked)
    gated.gate.wait()
    assert gated.scheduler.cancel("a", "")
    gated.gate.open()
    first.end()
    assert second.text() == expected_text(asked)
