"""A board that is judged otherwise than it should be, a device that is opened without need, a file that crashes.

Every board of tests/fixtures/boards with exactly the lines that it must get about itself.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.checks.board import board_findings, read_board
from launcher.checks.cpu import cpu_findings
from launcher.checks.libc import libc_findings
from launcher.checks.npu import npu_findings, probe_npu
from launcher.checks.report import Finding, Group, Status
from launcher.messages import Catalogue, Language
from launcher.system import SystemView
from tests.fixtures.boards.boards import BOARDS
from tests.fixtures.boards.builder import Board, FakeDevices, FakeHost

BOARD = ("ok board-known", "ok board-ddr")
MAINLINE = ("ok board-known", "skip board-ddr-fixed")
MASKED = ("warn board-masked", "ok board-container", "ok board-ddr")
CPU = ("ok cpu-cores", "ok cpu-features", "ok cpu-clock", "ok cpu-clock")
NPU = ("ok npu-driver", "ok npu-nodes", "ok npu-clock")
LIBC = ("ok libc-glibc", "ok libc-stdcxx")
GOOD = BOARD + CPU + NPU + LIBC

EXPECTED: dict[str, tuple[str, ...]] = {
    "nanopi_m6": GOOD,
    "rock_5b": GOOD,
    "orange_pi_5_plus_5_10": BOARD + CPU + ("warn npu-driver-domains", *NPU[1:]) + LIBC,
    "orange_pi_5_plus_6_1": BOARD + CPU + ("warn npu-driver-older", *NPU[1:]) + LIBC,
    "armbian_rocket": MAINLINE + CPU + ("fail npu-rocket",) + LIBC,
    "out_of_tree_module": MAINLINE + CPU + ("ok npu-driver", "ok npu-nodes", "warn npu-clock-fixed") + LIBC,
    "rknpu_symlink": BOARD + CPU + (*NPU, "warn npu-symlink") + LIBC,
    "misc_device_only": BOARD + CPU + ("fail npu-misc",) + LIBC,
    "driver_0_4_0": BOARD + CPU + ("fail npu-driver-unusable",) + LIBC,
    "driver_0_8_2": BOARD + CPU + ("warn npu-driver-int8", *NPU[1:]) + LIBC,
    "driver_0_9_3": BOARD + CPU + ("warn npu-driver-cores", *NPU[1:]) + LIBC,
    "driver_0_9_8": GOOD,
    "container_masked_device_tree": MASKED + CPU + NPU + LIBC,
    "container_device_refused": MASKED + CPU + ("fail npu-refused",) + LIBC,
    "container_without_sysfs": (
        "warn board-hidden",
        "ok board-container",
        "skip cpu-cores-unknown",
        "ok cpu-features",
        "skip npu-hidden",
        *LIBC,
    ),
    "kubernetes_without_device": MASKED + CPU + ("fail npu-kubernetes",) + LIBC,
    "user_outside_groups": BOARD + CPU + ("fail npu-access",) + LIBC,
    "group_added_not_logged_in": BOARD + CPU + ("fail npu-access-login",) + LIBC,
    "user_in_one_group": BOARD + CPU + ("ok npu-driver", "warn npu-nodes-partly", "ok npu-clock") + LIBC,
    "nodes_for_root_only": BOARD + CPU + ("fail npu-access-root",) + LIBC,
    "rk3582": (
        "ok board-known",
        "warn board-binned",
        "ok board-ddr",
        *CPU,
        "ok npu-driver",
        "ok npu-nodes",
        "warn npu-cores",
        "ok npu-clock",
        *LIBC,
    ),
    "rk3566_board": ("ok board-other", "ok board-ddr", *CPU, "fail npu-other", *LIBC),
    "raspberry_pi_5": (
        "ok board-other",
        "ok cpu-cores-alike",
        "ok cpu-features",
        "ok cpu-clock",
        "skip npu-none",
        "ok libc-glibc",
    ),
    "pc": (
        "ok board-other",
        "ok cpu-cores-alike",
        "ok cpu-features",
        "ok cpu-clock",
        "skip npu-none",
        "ok libc-glibc",
    ),
    "musl": BOARD + CPU + NPU + ("fail libc-musl-npu",),
    "four_gib_board": GOOD,
    "cgroup_limited": GOOD,
    "noexec_tmp": GOOD,
    "ddr_528": ("ok board-known", "warn board-ddr-slow", *CPU, *NPU, *LIBC),
    "no_driver_bound": BOARD + CPU + ("fail npu-no-driver", "warn npu-log-trouble") + LIBC,
    "npu_disabled": BOARD + CPU + ("fail npu-disabled", "skip npu-log-unread") + LIBC,
    "no_npu_in_device_tree": MAINLINE + CPU + ("fail npu-not-described", "skip npu-log-unread") + LIBC,
    "npu_held_by_other_process": BOARD + CPU + (*NPU, "warn npu-held") + LIBC,
    "no_iommu": BOARD + CPU + ("ok npu-driver", "ok npu-nodes", "warn npu-no-iommu", "ok npu-clock") + LIBC,
    "npu_does_not_answer": BOARD + CPU + ("fail npu-timeout", "warn npu-log-trouble") + LIBC,
    "hot_and_slow": (
        *BOARD,
        "warn board-hot",
        "ok cpu-cores",
        "ok cpu-features",
        "warn cpu-offline",
        "warn cpu-affinity",
        "warn cpu-governor",
        "warn cpu-governor",
        "warn cpu-capped",
        "ok npu-driver",
        "ok npu-nodes",
        "warn npu-clock-slow",
        *LIBC,
    ),
}
# Machines on which no node belongs to the vendor's driver, or none can be reached: nothing may be opened there.
UNTOUCHED = {
    "armbian_rocket",
    "container_without_sysfs",
    "kubernetes_without_device",
    "raspberry_pi_5",
    "pc",
    "no_driver_bound",
    "npu_disabled",
    "no_npu_in_device_tree",
}


def examine(system: SystemView, assumed: str | None = None, required: bool = False) -> list[Finding]:
    board = read_board(system, assumed)
    state = probe_npu(system, board)
    wanted = state.reason != "npu-none" and (state.usable or board.has_rk3588_npu or state.world.value != "none")
    return [
        *board_findings(system, board),
        *cpu_findings(system, None),
        *npu_findings(system, board, state, required),
        *libc_findings(system, npu_wanted=wanted or state.reason == "npu-hidden", required=required),
    ]


def devices_of(system: SystemView) -> FakeDevices:
    assert isinstance(system.devices, FakeDevices)
    return system.devices


def contents(root: Path) -> dict[str, bytes | str]:
    return {
        str(path): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


@contextmanager
def watched() -> Iterator[list[str]]:
    """Paths of the files that are opened within; opening one for writing fails the test."""
    paths: list[str] = []
    real = os.open

    def guarded(path: str, flags: int, *rest: int) -> int:
        assert flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) == 0, f"{path} is opened for writing"
        paths.append(str(path))
        return real(path, flags, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", guarded)
        yield paths


def test_every_board_is_in_the_table() -> None:
    assert set(EXPECTED) == set(BOARDS)


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_board_gets_exactly_its_lines(name: str, tmp_path: Path) -> None:
    found = examine(BOARDS[name]().build(tmp_path))
    assert tuple(f"{finding.status.value} {finding.slug}" for finding in found) == EXPECTED[name]


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_looking_changes_nothing_and_leaves_nothing_open(name: str, tmp_path: Path) -> None:
    board = BOARDS[name]()
    if "/usr/lib/aarch64-linux-gnu/libstdc++.so.6.0.30" in board.files:
        board.file("/usr/lib/librknnrt.so", b"\x7fELF librknnrt version: 1.4.0")
    system = board.build(tmp_path)
    before = contents(tmp_path)
    with watched() as opened:
        examine(system)
    assert opened
    assert not [path for path in opened if "rknnrt" in path]
    assert contents(tmp_path) == before
    devices = devices_of(system)
    assert devices.open_handles == 0
    nodes = [line for line in devices.log if line.startswith("open ")]
    assert not [line for line in nodes if "card0" in line or "renderD128" in line], "a device that is no NPU's"
    assert (nodes == []) == (name in UNTOUCHED)


@pytest.mark.parametrize("name", sorted(BOARDS))
@pytest.mark.parametrize("required", [False, True])
def test_lines_read_alike_in_both_languages_and_in_json(name: str, required: bool, tmp_path: Path) -> None:
    for finding in examine(BOARDS[name]().build(tmp_path), required=required):
        json.dumps(dict(finding.facts))
        assert all(isinstance(value, str | int | bool | list) for value in finding.facts.values()), finding.slug
        for language in Language:
            texts = Catalogue(language)
            assert finding.text(texts), finding.slug
            if finding.status in {Status.WARN, Status.FAIL}:
                for value in finding.facts.values():
                    assert str(value).strip(), f"{finding.slug} shows nothing where a fact should be"
            assert "None" not in finding.text(texts) + finding.next_step(texts), finding.slug


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_npu_blocks_only_where_it_is_required(name: str, tmp_path: Path) -> None:
    system = BOARDS[name]().build(tmp_path)
    for required in (False, True):
        for finding in examine(system, required=required):
            if finding.status is Status.FAIL and finding.group in {Group.NPU, Group.LIBC}:
                assert finding.blocking is required
                said = finding.text(Catalogue(Language.ENGLISH))
                assert said.endswith("backend used: none" if required else "backend used: cpu")


@pytest.mark.parametrize("name", ["pc", "raspberry_pi_5", "container_without_sysfs"])
def test_machine_without_an_npu_fails_only_where_one_is_required(name: str, tmp_path: Path) -> None:
    system = BOARDS[name]().build(tmp_path)
    assert not [finding for finding in examine(system) if finding.status is Status.FAIL]
    failures = [finding for finding in examine(system, required=True) if finding.status is Status.FAIL]
    assert len(failures) == 1
    assert failures[0].blocking
    assert failures[0].group is Group.NPU


def test_empty_root_has_lines_and_no_failure(tmp_path: Path) -> None:
    system = SystemView(root=tmp_path, devices=FakeDevices(tmp_path, {}), host=FakeHost())
    found = examine(system)
    assert [f"{finding.status.value} {finding.slug}" for finding in found] == [
        "skip board-unknown",
        "skip cpu-cores-unknown",
        "skip cpu-features-unknown",
        "skip npu-none",
        "ok libc-glibc",
    ]


PIECES = st.sampled_from(
    [
        b"0-7",
        b"0-4294967295",
        b"7-0",
        b"-1",
        b"--5",
        b"9" * 30,
        b"Uid:\t-\t-\n",
        b"Groups:\t99999999999999999999 x\n",
        b"DRIVER=RKNPU\n",
        b"OF_COMPATIBLE_0=rockchip,rk3588-rknn-core\n",
        b"rockchip,rk3588\0",
        b"x:x:1000:pi\n",
        b"6,1,1,-;rknpu fail \x1b[2J\n",
        b"CPU part\t: 0xzz\nprocessor\t: 99999\n",
        b"glibc",
        b"passive\n",
        b"\xe2\x80\xa8",
        b"\x1c",
    ]
)
GARBAGE = st.one_of(st.binary(max_size=64), st.lists(PIECES, max_size=4).map(b"".join))


def place_garbage(place: Path, data: bytes | str) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    if data == "folder":
        place.mkdir()
    elif data == "loop":
        place.symlink_to(place.name)
    elif isinstance(data, bytes):
        place.write_bytes(data)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(name=st.sampled_from(sorted(BOARDS)), data=st.data())
def test_garbage_in_any_file_never_raises(name: str, data: st.DataObject) -> None:
    board: Board = BOARDS[name]()
    targets = data.draw(st.lists(st.sampled_from(sorted([*board.files, *board.links])), min_size=1, max_size=6))
    with tempfile.TemporaryDirectory() as folder:
        system = board.build(Path(folder))
        for target in targets:
            place = Path(folder, target.lstrip("/"))
            place_garbage(place, data.draw(st.one_of(GARBAGE, st.sampled_from(["folder", "loop", "gone"]))))
        for finding in examine(system, assumed=data.draw(st.sampled_from([None, "rk3588", "x{y}"]))):
            for language in Language:
                finding.text(Catalogue(language))
                finding.next_step(Catalogue(language))
        assert devices_of(system).open_handles == 0
