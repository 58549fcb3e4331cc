"""Loading that leaves pages out, ends in a signal when the file was cut, or cannot be stopped.

Unloading that keeps pages, or after which other bytes are read than before.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from engine.build import build_executable
from launcher.engine_types import Dtype
from tests.support.packages import INTEGER, uniform, write_package
from tests.support.programs import ENGINE_TESTS, run_program, sanitizers

PAGE = 4096
# Several pieces of 32 MiB, so that progress and a stop have something to count.
WIDE = replace(INTEGER, hidden_size=2048, intermediate_size=4096, moe_intermediate_size=256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What the driver printed."""

    status: str
    done: int
    total: int
    calls: int
    resident: int
    message: str
    sum: int


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_executable(
        [ENGINE_TESTS / "preload_driver.c"],
        "preload_driver",
        extra_flags=("-Wl,--wrap=madvise,--wrap=pread",),
        out=tmp_path_factory.mktemp("driver"),
    )


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_package(tmp_path_factory.mktemp("package") / "wide.l3r", WIDE, uniform(Dtype.F32X8))
    assert path.stat().st_size > 3 * (32 << 20)
    return path


def load(program: Path, package: Path, mode: str) -> Loaded:
    result = run_program([program, package, mode])
    assert result.returncode == 0, f"{mode}: ended with {result.returncode} {result.stderr}"
    status, done, total, calls, resident, message, found = result.stdout.rstrip("\n").split("\t")
    return Loaded(
        status=status,
        done=int(done),
        total=int(total),
        calls=int(calls),
        resident=int(resident),
        message=message,
        sum=int(found),
    )


@pytest.mark.parametrize("mode", ["plain", "old", "mtp", "oldmtp"])
def test_every_page_is_resident(program: Path, package: Path, mode: str) -> None:
    found = load(program, package, mode)
    assert (found.status, found.message) == ("ok", "")
    assert found.done == found.total
    assert found.calls >= 2
    assert 0 <= found.resident - found.total < 2 * PAGE
    size = package.stat().st_size
    assert size - 65536 < found.total <= size if "mtp" in mode else found.total < size


def test_loading_can_be_stopped(program: Path, package: Path) -> None:
    found = load(program, package, "stop")
    assert found.status == "cancelled"
    assert found.calls == 2
    assert found.done < found.total
    assert f"cancelled after loading {found.done} of {found.total} bytes" in found.message


@pytest.mark.parametrize("mode", ["cut", "oldcut"])
def test_a_file_that_was_cut_is_an_error_and_no_signal(program: Path, package: Path, mode: str, tmp_path: Path) -> None:
    copy = tmp_path / "cut.l3r"
    shutil.copyfile(package, copy)
    found = load(program, copy, mode)
    assert found.status == "io"
    assert "the package was cut to" in found.message


def test_missing_memory_is_named(program: Path, package: Path) -> None:
    assert load(program, package, "full").status == "memory"


@pytest.mark.parametrize("mode", ["oldbad", "oldbadmtp"])
def test_a_disk_that_fails_is_an_error_and_no_signal_on_old_kernels(program: Path, package: Path, mode: str) -> None:
    found = load(program, package, mode)
    assert found.status == "io"
    assert found.message == "cannot read the package: Input/output error"
    assert (found.done == 0) == (mode == "oldbad")
    assert found.total == 0 or found.done < found.total


@pytest.mark.parametrize(("mode", "loaded"), [("unload", "plain"), ("unloadmtp", "mtp")])
def test_unloading_leaves_no_page_and_every_byte(program: Path, package: Path, mode: str, loaded: str) -> None:
    before, found = load(program, package, loaded), load(program, package, mode)
    assert (found.status, found.done) == ("ok", found.total)
    assert found.resident == 0
    assert found.sum == before.sum != 0


def test_what_was_unloaded_can_be_loaded_again(program: Path, package: Path) -> None:
    found = load(program, package, "unloadtwice")
    assert (found.status, found.done) == ("ok", found.total)
    assert 0 <= found.resident - found.total < 2 * PAGE


def test_memory_that_cannot_be_unloaded_stays_as_it_is(program: Path, package: Path) -> None:
    before, found = load(program, package, "plain"), load(program, package, "unloadlocked")
    assert (found.resident, found.sum) == (before.resident, before.sum)


def test_loading_and_unloading_under_sanitizers(package: Path, tmp_path: Path) -> None:
    program = build_executable(
        [ENGINE_TESTS / "preload_driver.c"],
        "preload_driver",
        sanitize=sanitizers(),
        extra_flags=("-Wl,--wrap=madvise,--wrap=pread",),
        out=tmp_path,
    )
    for mode in ("unloadmtp", "unloadtwice", "unloadlocked"):
        assert load(program, package, mode).status == "ok"
