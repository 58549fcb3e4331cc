"""A check that calls a machine ready which is not, or hides what it saw."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from launcher.check import Finding, Report, Status, examine
from launcher.errors import EngineError, PackageError
from launcher.messages import Catalogue, Language
from launcher.options import parse
from launcher.system import SystemView
from tests.support.demo import require_demo


def finding(status: Status, error: EngineError | PackageError | None = None) -> Finding:
    return Finding(group="cpu", status=status, slug="check-cpu", facts={"machine": "m", "kernels": "k"}, error=error)


def test_first_failure_gives_the_exit_code() -> None:
    engine = finding(Status.FAIL, EngineError("engine-missing", "not there", hint="build it"))
    package = finding(Status.FAIL, PackageError("package-damaged", "cut"))
    report = Report(findings=(finding(Status.WARN), engine, package), largest_context=None)
    assert report.exit_code == 9
    assert not report.ready
    text = report.text(Catalogue(Language.ENGLISH))
    for word in ("not there", "next: build it", "cut", "ready: no", "unknown"):
        assert word in text


def test_warning_is_ready_and_says_what_next() -> None:
    report = Report(findings=(finding(Status.WARN),), largest_context=4096)
    assert report.ready
    text = report.text(Catalogue(Language.CHINESE))
    assert "就绪：是" in text
    assert "建议：" in text
    assert "4K" in text


def test_board_with_an_npu_says_that_it_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINDNANO_ENGINE", str(tmp_path / "none"))
    for path, text in (
        ("proc/device-tree/model", "Board\0"),
        ("proc/cpuinfo", "Features : asimd asimddp\n"),
        ("sys/class/devfreq/fdab0000.npu/cur_freq", "1"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    report = examine(parse(["--check"], {}), {}, SystemView(tmp_path))
    text = report.text(Catalogue(Language.ENGLISH))
    assert "Board" in text
    assert "fdab0000.npu; this version computes on the CPU" in text
    assert "asimddp" in text
    assert report.exit_code == 9


def test_unknown_processor_is_a_device_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    report = examine(parse(["--check"], {}), {}, SystemView(tmp_path))
    assert report.exit_code == 3


def test_built_in_model_is_ready_where_memory_is_unknown(tmp_path: Path) -> None:
    require_demo()
    report = examine(parse(["--check", "--demo"], {}), {}, SystemView(tmp_path))
    assert report.ready
    assert report.largest_context is not None
