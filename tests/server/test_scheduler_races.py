"""A cancel or a pause that hits another request than the one it names, and a request that is lost between threads."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from launcher.errors import RequestError
from launcher.server.events import Failed, Finished, Paused, Queued
from tests.support.callers import run_all
from tests.support.fake_generation import Bench, Listener, expected_text, request

_JOBS = 160
_VICTIM_EVERY = 3


@pytest.mark.parametrize("seed", range(3))
def test_cancels_from_many_threads_hit_only_what_they_name(seed: int) -> None:
    """Every third request is a victim, the others must answer in full. A cancel reaches the engine only in a victim."""
    requests = [
        request(f"{place:03}", prompt=f"marker {place} " * 20, max_tokens=12, seed=place) for place in range(_JOBS)
    ]
    victims = {each.id for each in requests[::_VICTIM_EVERY]}
    listeners = {each.id: Listener() for each in requests}
    done = threading.Event()
    with Bench(limit=_JOBS, drain=30.0) as bench:

        def watch() -> None:
            if bench.store.current is not None and bench.store.current not in victims:
                bench.engine.wrong.append(f"a cancel while {bench.store.current} runs")

        bench.engine.on_cancel = watch

        def submit_all() -> None:
            for each in requests:
                bench.scheduler.submit(each, listeners[each.id])
            for each in requests:
                listeners[each.id].end()
            done.set()

        def cancel_some(own: int) -> Callable[[], None]:
            rng = random.Random(seed * 10 + own)
            order = sorted(victims)

            def work() -> None:
                while not done.is_set():
                    running = bench.scheduler.state().running
                    target = running if running in victims and rng.random() < 0.7 else rng.choice(order)
                    if target is not None:
                        bench.scheduler.cancel(target, "")

            return work

        run_all(submit_all, cancel_some(1), cancel_some(2))
        state = bench.scheduler.state()
    for each in requests:
        last = listeners[each.id].end()
        if each.id in victims and isinstance(last, Failed):
            assert last.error.slug == "cancelled"
        else:
            assert isinstance(last, Finished), f"{each.id} was not asked to end: {last}"
            assert listeners[each.id].text() == expected_text(each)
    assert state.accepted == state.finished + state.cancelled == _JOBS
    assert state.cancelled > 0


def test_pauses_from_many_threads_change_no_answer() -> None:
    requests = [request(f"{place:03}", prompt=f"m{place} " * 60, max_tokens=15, seed=place) for place in range(80)]
    listeners = {each.id: Listener() for each in requests}
    done = threading.Event()
    with Bench(limit=len(requests), drain=30.0) as bench:

        def submit_all() -> None:
            for each in requests:
                bench.scheduler.submit(each, listeners[each.id])
            for each in requests:
                listeners[each.id].end()
            done.set()

        def disturb(own: int) -> Callable[[], None]:
            rng = random.Random(own)

            def work() -> None:
                while not done.is_set():
                    running = bench.scheduler.state().running
                    target = running if running is not None and rng.random() < 0.5 else rng.choice(requests).id
                    if bench.scheduler.pause(target, ""):
                        bench.scheduler.resume(target, "")

            return work

        run_all(submit_all, disturb(1), disturb(2))
    for each in requests:
        assert listeners[each.id].text() == expected_text(each)
    assert any(listener.of(Paused) for listener in listeners.values())


def test_places_in_the_queue_are_told_in_order_while_everything_moves() -> None:
    """Without resumes a place only ever gets better, and is told before the request says anything else."""
    listeners: dict[str, Listener] = {}
    with Bench(limit=1000, drain=30.0) as bench:

        def submit(own: int) -> Callable[[], None]:
            def work() -> None:
                for place in range(60):
                    name = f"{own}-{place}"
                    listeners[name] = Listener()
                    bench.scheduler.submit(request(name, max_tokens=2), listeners[name])
                    if place % 4 == 3:
                        bench.scheduler.cancel(f"{own}-{place - 1}", "")

            return work

        run_all(submit(1), submit(2), submit(3))
        for listener in listeners.values():
            listener.end()
    for name, listener in listeners.items():
        places = [event.position for event in listener.of(Queued)]
        assert places == sorted(places, reverse=True), name
        assert len(set(places)) == len(places), name
        assert all(isinstance(event, Queued) for event in listener.events[: len(places)]), name


def test_closing_while_many_submit_leaves_nobody_without_an_end() -> None:
    accepted: list[Listener] = []
    with Bench(limit=1000) as bench:
        running = threading.Event()

        def submit(own: int) -> Callable[[], None]:
            def work() -> None:
                for place in range(10_000):
                    listener = Listener()
                    try:
                        bench.scheduler.submit(request(f"{own}-{place}", max_tokens=2), listener)
                    except RequestError as refused:
                        if refused.slug == "shutting_down":
                            return
                    else:
                        accepted.append(listener)
                        running.set()

            return work

        def close() -> None:
            assert running.wait(60)
            bench.scheduler.close(drain=0.05)

        run_all(submit(1), submit(2), close)
        state = bench.scheduler.state()
    for listener in accepted:
        listener.end()
    assert state.accepted == len(accepted) == state.finished + state.cancelled
