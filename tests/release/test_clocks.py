"""Clocks that stay locked after a measurement, are restored in an order the kernel refuses, or fail without a word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from launcher.errors import DeviceError
from launcher.system import SystemView
from release.bench import clocks
from release.bench.clocks import Setting, pinned_clocks, plan
from tests.support.demo import ROOT
from tests.support.pinning import DEVFREQ, NPU, POLICIES, make_clocks, read_clocks
from tests.support.server_process import eventually


@pytest.fixture
def board(tmp_path: Path) -> Path:
    return make_clocks(tmp_path / "board")


def test_cpu_npu_and_memory_are_locked_and_nothing_else(board: Path) -> None:
    before = read_clocks(board)
    with pinned_clocks(board) as (pinned, left):
        assert pinned.warnings == ()
        during = read_clocks(board)
        assert (board / DEVFREQ / NPU / "min_freq").read_text() == "1000000000\n"
    changed = {path: text.strip() for path, text in during.items() if text != before[path]}
    platform = "sys/devices/platform"
    assert changed == {
        f"{POLICIES}/policy0/scaling_max_freq": "1800000",
        f"{POLICIES}/policy0/scaling_governor": "performance",
        f"{POLICIES}/policy0/scaling_min_freq": "1800000",
        f"{POLICIES}/policy4/scaling_max_freq": "2400000",
        f"{POLICIES}/policy4/scaling_governor": "performance",
        f"{POLICIES}/policy4/scaling_min_freq": "2400000",
        f"{platform}/{NPU}/min_freq": "1000000000",
        f"{platform}/dmc/governor": "performance",
        f"{platform}/dmc/min_freq": "2112000000",
    }
    assert read_clocks(board) == before
    assert left == []


def test_the_lower_limit_never_exceeds_the_upper_one(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses such a value, so the order counts in both directions."""
    system = SystemView(root=board)
    policy = f"/{POLICIES}/policy0"

    def check() -> None:
        low, high = (system.number(f"{policy}/scaling_{name}_freq") for name in ("min", "max"))
        assert low is not None
        assert high is not None
        assert low <= high

    written: list[str] = []
    real = clocks.write

    def watched(view: SystemView, setting: Setting) -> str | None:
        reason = real(view, setting)
        written.append(setting.path)
        check()
        return reason

    monkeypatch.setattr(clocks, "write", watched)
    settings = plan(system)
    old = [Setting(path=setting.path, value=system.line(setting.path) or "") for setting in settings]
    for setting in settings:
        watched(system, setting)
    done, written[:] = list(written), []
    assert clocks.restore(system, old) == []
    assert written == [path for path in reversed(done) if f"{NPU}/max_freq" not in path and "dmc/max_freq" not in path]


def test_a_value_that_does_not_stay_is_a_warning_with_file_and_reason(board: Path) -> None:
    before = read_clocks(board)
    place = board / POLICIES / "policy4" / "scaling_min_freq"
    place.unlink()
    os.mkfifo(place)  # opening it for writing fails
    with pinned_clocks(board) as (pinned, left):
        assert [warning.path for warning in pinned.warnings] == [f"/{POLICIES}/policy4/scaling_min_freq"]
        assert "cannot be read" in str(pinned.warnings[0])
        assert len(pinned.settings) == 10
    assert left == []
    place.unlink()
    after = read_clocks(board)
    assert after == {path: text for path, text in before.items() if path in after}


def test_what_cannot_be_put_back_is_named(board: Path) -> None:
    with pinned_clocks(board) as (_pinned, left):
        (board / DEVFREQ / "dmc" / "governor").unlink()
    assert [each.path for each in left] == [f"/{DEVFREQ}/dmc/governor"]
    assert (board / POLICIES / "policy0" / "scaling_governor").read_text() == "ondemand\n"


def test_a_machine_without_clocks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError) as caught, pinned_clocks(tmp_path):
        pass
    assert caught.value.exit_code == 3
    assert "--pin-clocks" in caught.value.hint


def test_it_is_refused_where_nothing_may_be_written(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks._Keeper, "_ask", lambda *_: "Permission denied")
    before = read_clocks(board)
    for path in board.rglob("max_freq"):
        path.write_text("1\n")  # or it would be right as it is
    with pytest.raises(DeviceError, match="scaling_max_freq: Permission denied"), pinned_clocks(board):
        pass
    assert read_clocks(board).keys() == before.keys()


def test_a_clock_that_somebody_chose_comes_back_after_its_governor(board: Path) -> None:
    """The kernel forgets it with the governor `userspace`, and takes it only under that."""
    policy, memory = board / POLICIES / "policy0", board / "sys/devices/platform/dmc"
    (policy / "scaling_governor").write_text("userspace\n")
    (policy / "scaling_setspeed").write_text("816000\n")
    (board / POLICIES / "policy4" / "scaling_setspeed").write_text("<unsupported>\n")
    (memory / "userspace").mkdir()
    (memory / "userspace" / "set_freq").write_text("528000000\n")
    names = [setting.path.rpartition("policy0/")[2] for setting in plan(SystemView(root=board))[:4]]
    assert names == ["scaling_max_freq", "scaling_setspeed", "scaling_governor", "scaling_min_freq"]
    before = read_clocks(board)
    with pinned_clocks(board) as (_pinned, left):
        assert (policy / "scaling_setspeed").read_text() == "1800000\n"
        assert (memory / "userspace" / "set_freq").read_text() == "2112000000\n"
        assert (board / POLICIES / "policy4" / "scaling_setspeed").read_text() == "<unsupported>\n"
    assert read_clocks(board) == before
    assert left == []


def test_an_error_in_the_middle_lets_go(board: Path) -> None:
    before = read_clocks(board)
    with suppress(ZeroDivisionError), pinned_clocks(board):
        assert read_clocks(board) != before
        raise ZeroDivisionError
    assert read_clocks(board) == before


def test_the_death_of_the_keeper_is_made_good(board: Path) -> None:
    before = read_clocks(board)
    with pinned_clocks(board) as (_pinned, left):
        killed = 0
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # one that has ended meanwhile
                if b"release.bench.clock_keeper\0" + str(board).encode() in process.read_bytes():
                    os.kill(int(process.parent.name), signal.SIGKILL)
                    killed += 1
        assert killed == 1
        assert read_clocks(board) != before
    assert read_clocks(board) == before
    assert left == []


_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGKILL: -9}
_LINES = (40, 140, 190, 240, 310)


@pytest.mark.parametrize("number", _CODES)
@pytest.mark.parametrize("line", _LINES)
def test_a_signal_at_any_line_leaves_the_clocks_as_they_were(board: Path, number: signal.Signals, line: int) -> None:
    before = read_clocks(board)
    command = [sys.executable, "-m", "tests.support.pinning", str(board), str(int(number)), str(line)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in done.stderr
    else:
        assert done.returncode == _CODES[number], done.stderr
    # After SIGKILL the keeper works on alone.
    eventually(lambda: read_clocks(board) == before, "clocks as before", 60)


def test_the_lines_above_meet_every_phase(board: Path) -> None:
    command = [sys.executable, "-m", "tests.support.pinning", str(board), "0", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    word, total = done.stdout.split()
    assert word == "locked"
    assert max(_LINES) < int(total) < 2 * max(_LINES)
