"""Answers that the official Node client does not read as they were meant, or goes on waiting for."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.node import FOLDER, run_node
from tests.support.server_process import ServerProcess

TESTS = 14


def test_everything_works_from_node(live: ServerProcess, tmp_path: Path) -> None:
    done = run_node(FOLDER / "client.mjs", [live.url], folder=tmp_path, seconds=180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"^ok: ", done.stdout, re.MULTILINE)) == TESTS, done.stdout
