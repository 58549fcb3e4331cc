"""A C library that the program or Rockchip's runtime cannot use, and that nobody was told of."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.checks.libc import libc_findings
from launcher.checks.report import Status
from launcher.messages import Catalogue, Language
from tests.fixtures.boards import rk3588 as parts
from tests.fixtures.boards.boards import BOARDS

ENGLISH = Catalogue(Language.ENGLISH)
FOLDER = "/usr/lib/aarch64-linux-gnu"


@pytest.mark.parametrize(
    ("libc", "status"),
    [
        ("glibc 2.27", Status.WARN),
        ("glibc 2.28", Status.OK),
        ("glibc 2.41", Status.OK),
        ("glibc 3.0", Status.OK),
        ("glibc 2.39.1", Status.OK),
    ],
)
def test_glibc_is_judged_by_number(libc: str, status: Status, tmp_path: Path) -> None:
    machine = parts.rk3588()
    machine.host.libc = libc
    (found,) = libc_findings(machine.build(tmp_path), npu_wanted=False)
    assert found.status is status


def test_symbol_not_found_expf_finite(tmp_path: Path) -> None:
    """Row 16: the runtime cannot be loaded by musl; a container with glibc is the way."""
    (found,) = libc_findings(BOARDS["musl"]().build(tmp_path), npu_wanted=True)
    assert (found.status, found.blocking) == (Status.FAIL, False)
    assert "backend used: cpu" in found.text(ENGLISH)
    assert "Debian" in found.next_step(ENGLISH)


def test_musl_blocks_where_the_npu_is_required_and_is_fine_without(tmp_path: Path) -> None:
    system = BOARDS["musl"]().build(tmp_path)
    (found,) = libc_findings(system, npu_wanted=True, required=True)
    assert found.blocking
    assert "backend used: none" in found.text(ENGLISH)
    (found,) = libc_findings(system, npu_wanted=False)
    assert (found.slug, found.status) == ("libc-musl", Status.OK)


def test_library_that_does_not_say_its_name(tmp_path: Path) -> None:
    machine = parts.rk3588()
    machine.host.libc = ""
    (found,) = libc_findings(machine.build(tmp_path), npu_wanted=True)
    assert (found.slug, found.status) == ("libc-unknown", Status.SKIP)


def test_image_without_libstdcxx(tmp_path: Path) -> None:
    """Minimal images leave it out; the runtime needs it."""
    machine = parts.rk3588().remove(FOLDER)
    found = libc_findings(machine.build(tmp_path), npu_wanted=True)[1]
    assert (found.slug, found.status) == ("libc-stdcxx-missing", Status.WARN)
    assert "libstdc++6" in found.next_step(ENGLISH)


@pytest.mark.parametrize(("version", "slug"), [(21, "libc-stdcxx-old"), (22, "libc-stdcxx"), (30, "libc-stdcxx")])
def test_libstdcxx_from_before_gcc_6_1(version: int, slug: str, tmp_path: Path) -> None:
    machine = parts.rk3588().remove(FOLDER)
    machine.file(f"{FOLDER}/libstdc++.so.6.0.{version}", b"\x7fELF")
    machine.link(f"{FOLDER}/libstdc++.so.6", f"libstdc++.so.6.0.{version}")
    assert libc_findings(machine.build(tmp_path), npu_wanted=True)[1].slug == slug


@pytest.mark.parametrize("folder", ["/usr/lib64", "/lib64", "/usr/lib"])
def test_libstdcxx_in_other_folders(folder: str, tmp_path: Path) -> None:
    machine = parts.rk3588().remove(FOLDER).file(f"{folder}/libstdc++.so.6", b"\x7fELF")
    assert libc_findings(machine.build(tmp_path), npu_wanted=True)[1].facts["path"] == f"{folder}/libstdc++.so.6"


def test_libstdcxx_is_not_asked_for_without_an_npu(tmp_path: Path) -> None:
    machine = BOARDS["pc"]().remove(FOLDER)
    assert len(libc_findings(machine.build(tmp_path), npu_wanted=False)) == 1
