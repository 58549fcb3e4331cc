"""An answer that is lost, mixed up, or another than a cold server's, and memory that nobody gives back, when requests,
pauses, ends, sleeps, moving and deleted sessions, forged ones, a failing disk and a shutdown meet in any order."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from launcher.server.events import Finished
from tests.support.everything import PATIENCE, Everything


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
