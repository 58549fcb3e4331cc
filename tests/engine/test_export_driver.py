"""Exports and imports that read or write what is not theirs, that change a session before they refuse, or whose numbers
end the process or outlive them."""

from __future__ import annotations

from pathlib import Path

from engine.build import build_executable
from tests.support.packages import write_package
from tests.support.programs import ENGINE_TESTS, run_program, sanitizers


def test_exports_under_sanitizers(tmp_path: Path) -> None:
    program = build_executable([ENGINE_TESTS / "export_driver.c"], "export_driver", sanitize=sanitizers(), out=tmp_path)
    result = run_program([program, write_package(tmp_path / "p.l3r")])
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    lines = [[int(word) for word in line.split()] for line in result.stdout.splitlines()]
    assert len(lines) == 3
    for refused, accepted, picked, unpicked in lines:
        assert refused > 10_000
        assert accepted > 20  # positions that could be others, behind a digest that fits
        assert picked + unpicked == 180
        assert min(picked, unpicked) > 10  # numbers that no model makes lead to a token or to an error
