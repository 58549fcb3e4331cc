"""Checkpoints, loading or a cancel from another thread that touch memory which is not theirs, or that leak."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engine.build import build_executable
from tests.support.packages import INTEGER, write_package
from tests.support.programs import ENGINE_TESTS, run_program, sanitizers

LONG = replace(INTEGER, max_context=64, max_position=64)


def test_checkpoints_under_sanitizers(tmp_path: Path) -> None:
    program = build_executable(
        [ENGINE_TESTS / "checkpoint_driver.c"], "checkpoint_driver", sanitize=sanitizers(), out=tmp_path
    )
    result = run_program([program, write_package(tmp_path / "p.l3r", LONG)])
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    word, compared = result.stdout.split()
    assert word == "ok"
    assert int(compared) > 1000
