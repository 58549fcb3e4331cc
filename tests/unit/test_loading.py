"""Loading without a word for minutes, a flicker for milliseconds, a difference that is computed the wrong way round."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.engine_types import PlanTerm
from launcher.loading import LoadedMemory, load
from launcher.memory_plan import ProcessPlan, Usage
from launcher.messages import Catalogue, Language
from tests.support.demo import ROOT, require_demo

PLAN = ProcessPlan(terms=(PlanTerm(name="weights", bytes=100, idle=100, full=100),), idle=150, full=400, mapped=100)


class Clock:
    """Advances only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class SlowEngine:
    """Loads ten pieces, each taking `seconds`; `fail_at` raises before that piece."""

    def __init__(self, clock: Clock, seconds: float, fail_at: int = 99) -> None:
        self._clock, self._seconds, self._fail_at = clock, seconds, fail_at

    def preload(self, progress: Callable[[int, int], None] | None = None) -> None:
        for piece in range(1, 11):
            if piece == self._fail_at:
                raise KeyboardInterrupt
            self._clock.now += self._seconds
            if progress is not None:
                progress(piece << 20, 10 << 20)


def shown(seconds: float, fail_at: int = 99) -> str:
    clock, stream = Clock(), io.StringIO()
    try:
        load(SlowEngine(clock, seconds, fail_at), Catalogue(Language.ENGLISH), stream, clock=clock)
    except KeyboardInterrupt:
        stream.write("interrupted")
    return stream.getvalue()


def test_short_loading_is_silent() -> None:
    assert shown(0.05) == ""


def test_long_loading_shows_progress_with_its_true_rate() -> None:
    text = shown(1.0)
    assert text.splitlines()[0] == "Loading: 10 % (1.0 MiB of 10.0 MiB, 1.0 MiB/s, 9 s left)"
    assert text.splitlines()[-1].startswith("Loading: 100 %")


def test_interrupted_loading_says_where_it_stopped() -> None:
    assert shown(1.0, fail_at=5).endswith("Loading: stopped at 40 %\ninterrupted")


def test_the_difference_is_measured_minus_predicted() -> None:
    loaded = LoadedMemory(plan=PLAN, preloaded=True, usage=Usage(resident=155, peak=160))
    assert (loaded.predicted, loaded.unaccounted) == (150, 5)
    left_out = LoadedMemory(plan=PLAN, preloaded=False, usage=Usage(resident=45, peak=45))
    assert (left_out.predicted, left_out.unaccounted) == (50, -5)
    unknown = LoadedMemory(plan=PLAN, preloaded=True, usage=None)
    assert unknown.unaccounted is None
    assert unknown.facts()["measured_bytes"] is None


def chat(*words: str, memory: str | None = None, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "launcher", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": "/nonexistent", "LANG": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
        input="",
    )


def test_the_log_of_a_question(tmp_path: Path) -> None:
    require_demo()
    path = tmp_path / "log.jsonl"
    done = chat("--demo", "--seed", "1", "--log", str(path), "17+25=?")
    assert done.returncode == 0, done.stderr
    loaded, reply = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    assert (loaded["event"], reply["event"]) == ("loaded", "reply")
    assert loaded["preloaded"] is True
    assert loaded["unaccounted_bytes"] == loaded["measured_bytes"] - loaded["predicted_idle_bytes"]
    assert sum(term["idle"] for term in loaded["predicted_terms"].values()) == loaded["predicted_idle_bytes"]
    assert sum(term["full"] for term in loaded["predicted_terms"].values()) == loaded["predicted_full_bytes"]
    assert {"model", "context", "threads", "simd"} <= loaded.keys()
    assert reply["reason"] == "stop"
    assert reply["prompt_tokens"] > reply["reused_tokens"] == 0
    assert reply["ttft_seconds"] > 0
    assert "17+25" not in path.read_text(encoding="utf-8")  # neither question nor answer


def test_an_unwritable_log_comes_before_anything_is_loaded(tmp_path: Path) -> None:
    done = chat("--model", str(tmp_path / "none.l3r"), "--log", str(tmp_path), "x")
    assert done.returncode == 2
    assert "log-unwritable" in done.stderr


PROGRAM = """
import signal, sys
from launcher import loading
from launcher.cli import main
real = loading.load

class Interrupted:
    def __init__(self, engine):
        self._engine = engine

    def preload(self, progress):
        def report(done, total):
            signal.raise_signal(int(sys.argv[1]))
            progress(done, total)

        self._engine.preload(report)

import launcher.model
launcher.model.load = lambda engine, *rest, **named: real(Interrupted(engine), *rest, **named)
sys.exit(main(["--demo", "x"]))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_while_loading_end_with_their_code(number: int, code: int) -> None:
    require_demo()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(int(number))], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert done.stdout == ""


LITTLE = """
import sys
import launcher.model
from launcher.cli import main
from launcher.memory import Memory
launcher.model.read_memory = lambda system: Memory(total=1 << 30, available=1 << 20, cgroup_limit=None)
sys.exit(main(sys.argv[1:]))
"""


def test_force_does_not_load_what_has_no_room_and_says_so() -> None:
    require_demo()

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", LITTLE, "--demo", "--max-tokens", "1", *words, "hi"]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    refused = run()
    assert refused.returncode == 5
    assert "memory-plan" in refused.stderr
    forced = run("--force")
    assert forced.returncode == 0, forced.stderr
    assert "The weights (13.4 MiB) are larger than the memory that is available (1.0 MiB)" in forced.stderr
