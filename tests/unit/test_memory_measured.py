"""A prediction that reality does not keep: memory of real chats, before the first token and with the context full."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.demo import ROOT, require_demo
from tests.support.memory_measure import measure
from tests.support.terminal import TerminalProcess

MARGIN = 8 << 20
READY = "\x1b[?2004h"
ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TERM": "xterm", "LANG": "C.UTF-8"}


@pytest.mark.parametrize("context", [1024, 4096, 8192])
def test_a_chat_needs_what_was_predicted(context: int) -> None:
    case = measure(require_demo(), context)
    assert case.filled > context - 50
    assert abs(case.measured_idle - case.predicted_idle) < MARGIN, case
    assert abs(case.measured_full - case.predicted_full) < MARGIN, case
    assert case.measured_full > case.measured_idle


def test_every_byte_of_the_plan_can_become_resident() -> None:
    """A cache of 64 threads' scores is too large to be lost in the margin."""
    case = measure(require_demo(), 8192, touch=True, words=["--threads", "64", "--kv-cache", "f32"])
    assert abs(case.measured_full - case.predicted_full) < MARGIN, case
    assert case.measured_full - case.measured_idle > MARGIN


def resident_of(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS:"))


def test_list_contexts_predicts_a_chat_on_a_terminal() -> None:
    """The table is made by a process that has imported less than the chat will; a constant makes up for it."""
    require_demo()
    listed = subprocess.run(
        [sys.executable, "-m", "launcher", "--list-contexts", "--demo", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    row = next(row for row in json.loads(listed.stdout)["contexts"] if row["context"] == 4096)
    with TerminalProcess([sys.executable, "-m", "launcher", "--demo"], env=ENVIRON, cwd=str(ROOT)) as chat:
        chat.expect(READY)
        measured = resident_of(chat.process.pid)
        assert abs(measured - row["idle_bytes"]) < MARGIN, (measured, row["idle_bytes"])
        chat.send("/stats\r")
        shown = chat.expect("unaccounted)")
        assert "measured (" in shown
        chat.expect("predicted when the context is full")
        chat.send("/quit\r")
        assert chat.wait() == 0
