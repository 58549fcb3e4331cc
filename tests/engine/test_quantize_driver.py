"""The quantiser reads and writes only what its caller gave it, and every instruction set gives the same bytes."""

from __future__ import annotations

from pathlib import Path

from engine.build import build_executable, quantizer_sources
from engine.toolchain import resolve_target
from tests.support.programs import ENGINE_TESTS, run_program, sanitizers


def test_quantiser_under_sanitizers(tmp_path: Path) -> None:
    sources = [path for path in quantizer_sources(resolve_target("native")) if path.name != "cpu.c"]
    program = build_executable(
        [ENGINE_TESTS / "quantize_driver.c", *sources], "quantize_driver", sanitize=sanitizers(), out=tmp_path
    )
    result = run_program([program])
    assert result.returncode == 0, result.stderr
    assert (result.stdout, result.stderr) == ("ok\n", "")
