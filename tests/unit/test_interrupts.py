"""A Ctrl-C that is lost, or printed as a trace, because it came while the engine called back or a module was loaded."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from launcher.integrity.hashing import sha256_file
from launcher.interrupts import end_in_good_order, held_back

ROOT = Path(__file__).resolve().parents[2]


class Ended(BaseException):
    """What the handler of a test raises."""


def interrupted_twice(number: signal.Signals, seen: list[bool]) -> None:
    with held_back() as is_interrupted:
        seen.append(is_interrupted())
        signal.raise_signal(number)
        signal.raise_signal(number)
        seen.append(is_interrupted())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_waits_until_the_work_has_stopped(number: signal.Signals) -> None:
    def end(_number: int, _frame: FrameType | None) -> None:
        raise Ended

    before = signal.signal(number, end)
    try:
        seen: list[bool] = []
        with pytest.raises(Ended):
            interrupted_twice(number, seen)
        assert seen == [False, True]
        assert signal.getsignal(number) is end
    finally:
        signal.signal(number, before)


def test_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held_back() as is_interrupted:
            signal.raise_signal(signal.SIGINT)
            assert not is_interrupted()
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_the_handlers_alone() -> None:
    handlers = []

    def work() -> None:
        with held_back() as is_interrupted:
            handlers.append((signal.getsignal(signal.SIGINT), is_interrupted()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert handlers == [(signal.getsignal(signal.SIGINT), False)]


def test_interrupt_while_the_engine_hashes_is_raised_and_not_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "large"
    path.touch()
    with path.open("r+b") as file:
        file.truncate(256 << 20)  # a hole: long to hash, and nothing on the disk
    lost: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lost.append)
    begun = threading.Event()
    main = threading.get_ident()

    def interrupt() -> None:
        begun.wait()
        signal.pthread_kill(main, signal.SIGINT)

    def report(_done: int, _total: int) -> bool:
        begun.set()
        return False

    thread = threading.Thread(target=interrupt)
    thread.start()
    with path.open("rb") as file, pytest.raises(KeyboardInterrupt):
        sha256_file(file.fileno(), progress=report)
    thread.join()
    assert lost == []


def test_a_signal_while_handlers_are_given_back_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(_number: int, _frame: FrameType | None) -> None:
        raise Ended

    numbers = (signal.SIGINT, signal.SIGTERM)
    exchange = signal.signal
    before = [signal.signal(number, end) for number in numbers]

    def exchange_and_interrupt(number: int, handler: Any) -> Any:
        old = exchange(number, handler)
        if number == signal.SIGINT:
            signal.raise_signal(number)
        return old

    try:
        with pytest.raises(Ended), held_back():
            monkeypatch.setattr(signal, "signal", exchange_and_interrupt)
        assert [signal.getsignal(number) for number in numbers] == [end, end]
    finally:
        monkeypatch.undo()
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


IMPORTING = """
import os, pathlib, signal, sys
sys.path.insert(0, sys.argv[1])
from launcher.interrupts import end_in_good_order
end_in_good_order()
try:
    import slow
    import time
    time.sleep(60)
finally:
    print(sorted({"slow", "slow_part"} & set(sys.modules)), slow.whole)
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_waits_until_a_module_is_whole(number: signal.Signals, code: int, tmp_path: Path) -> None:
    """Python itself ends by SIGINT where nobody takes the KeyboardInterrupt.

    The timer has to repeat until then: an alarm just before a system call is seen only after the call.
    """
    (tmp_path / "slow.py").write_text("import slow_part\nwhole = slow_part.whole\n")
    (tmp_path / "slow_part.py").write_text(
        f"import signal, time\nsignal.raise_signal({int(number)})\ntime.sleep(0.05)\n"
        "whole = signal.getitimer(signal.ITIMER_REAL)[1] > 0\n"
    )
    words = [sys.executable, "-c", IMPORTING, str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (code, "['slow', 'slow_part'] True\n"), done.stderr


def test_signals_that_are_ignored_stay_ignored() -> None:
    before = [(number, signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    try:
        for number, _ in before:
            signal.signal(number, signal.SIG_IGN)
        end_in_good_order()
        assert {signal.getsignal(number) for number, _ in before} == {signal.SIG_IGN}
    finally:
        for number, handler in before:
            signal.signal(number, handler)
