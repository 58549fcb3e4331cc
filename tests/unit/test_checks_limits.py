"""A limit that stops a large model and is not seen, or one that is seen where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.checks.limits import NEEDED_FILES, limits_findings, read_limits
from launcher.checks.report import Finding, Status
from launcher.system import SystemView
from tests.fixtures.boards.builder import Board

HEAD = "Limit                     Soft Limit           Hard Limit           Units     \n"


def limits(tmp_path: Path, *lines: str) -> SystemView:
    return Board().file("/proc/self/limits", HEAD + "".join(f"{line}\n" for line in lines)).build(tmp_path)


def only(findings: tuple[Finding, ...], slug: str) -> Finding:
    return next(finding for finding in findings if finding.slug == slug)


@pytest.mark.parametrize(
    ("soft", "hard", "slug", "status"),
    [
        ("1024", "524288", "limits-files", Status.OK),
        (str(NEEDED_FILES), str(NEEDED_FILES), "limits-files", Status.OK),
        ("256", "4096", "limits-files-raised", Status.OK),
        ("unlimited", "unlimited", "limits-files", Status.OK),
        ("256", "511", "limits-files-few", Status.WARN),
    ],
)
def test_open_files_are_held_against_the_need(tmp_path: Path, soft: str, hard: str, slug: str, status: Status) -> None:
    system = limits(tmp_path, f"Max open files            {soft:<20} {hard:<20} files     ")
    found = only(limits_findings(system, None), slug)
    assert found.status is status
    assert (found.facts["soft"], found.facts["hard"]) == (soft, hard)


@pytest.mark.parametrize(
    ("soft", "need", "slug"),
    [
        (4 << 30, 5 << 30, "limits-address-space-small"),
        (8 << 30, 5 << 30, "limits-address-space-enough"),
        (4 << 30, None, "limits-address-space"),
    ],
)
def test_address_space_is_held_against_the_model(tmp_path: Path, soft: int, need: int | None, slug: str) -> None:
    system = limits(
        tmp_path,
        "Max open files            1024                 4096                 files     ",
        f"Max address space         {soft:<20} unlimited            bytes     ",
    )
    found = only(limits_findings(system, need), slug)
    assert (found.status is Status.FAIL) == (slug == "limits-address-space-small")
    assert found.group.exit_code == 5


def test_core_dumps_and_locked_memory_are_named(tmp_path: Path) -> None:
    system = limits(
        tmp_path,
        "Max core file size        unlimited            unlimited            bytes     ",
        "Max open files            1024                 4096                 files     ",
        "Max locked memory         65536                8388608              bytes     ",
        "Max address space         unlimited            unlimited            bytes     ",
    )
    slugs = [finding.slug for finding in limits_findings(system, 1 << 40)]
    assert slugs == ["limits-files", "limits-memlock", "limits-core"]


@pytest.mark.parametrize(
    "text", ["", "Max open files", "Max open files            many                 few\n", "\xff\0" * 50, "9" * 9000]
)
def test_odd_file_is_no_failure(tmp_path: Path, text: str) -> None:
    system = Board().file("/proc/self/limits", text.encode("latin-1")).build(tmp_path)
    assert [finding.status for finding in limits_findings(system, 1)] == [Status.SKIP]


def test_this_machine_is_read() -> None:
    assert read_limits(SystemView())["open files"].soft
