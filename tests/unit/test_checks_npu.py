"""A report from the field that `--check` would answer wrongly: each test is one, with its row of the problem log.

The rows are those of the table of public reports about this NPU; every one names what people saw.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.checks.board import Board, read_board
from launcher.checks.npu import DRIVERS, NpuState, World, judge_driver, npu_findings, probe_npu
from launcher.checks.npu_traces import kernel_lines
from launcher.checks.report import Finding, Status
from launcher.messages import Catalogue, Language
from launcher.system import SystemView
from tests.fixtures.boards import rk3588 as parts
from tests.fixtures.boards.boards import BOARDS
from tests.fixtures.boards.builder import Board as Machine
from tests.fixtures.boards.builder import FakeDevices, NoDriver
from tests.fixtures.boards.drivers import DrmDriver, Rknpu

ROOT = Path(__file__).resolve().parents[2]
ENGLISH = Catalogue(Language.ENGLISH)


def look(
    machine: Machine, root: Path, *, assumed: str | None = None, required: bool = False
) -> tuple[NpuState, dict[str, Finding]]:
    system = machine.build(root)
    board = read_board(system, assumed)
    state = probe_npu(system, board)
    found = npu_findings(system, board, state, required)
    assert len({finding.slug for finding in found}) == len(found)
    return state, {finding.slug: finding for finding in found}


def nodes(machine: Machine, driver: DrmDriver | NoDriver, *, mode: int = 0o660, group: int | None = None) -> Machine:
    """Both NPU nodes with this driver behind them."""
    for name, minor, usual in (("card1", 1, parts.VIDEO), ("renderD129", 129, parts.RENDER)):
        machine.node(f"/dev/dri/{name}", driver, mode=mode, group=usual if group is None else group, minor=minor)
    return machine


def test_failed_to_open_rknpu_module(tmp_path: Path) -> None:
    """Row 1: the runtime says so without permission; sudo helped. The nodes and the command are named."""
    state, found = look(BOARDS["user_outside_groups"](), tmp_path)
    assert (state.usable, state.node, state.reason) == (False, None, "npu-access")
    line = found["npu-access"]
    assert "/dev/dri/card1 root:video 0660 EACCES" in line.text(ENGLISH)
    assert line.next_step(ENGLISH) == "sudo usermod -aG video,render $USER, then log in again"


def test_works_only_after_usermod(tmp_path: Path) -> None:
    """Row 2: two nodes in two groups; both are listed with their owner and the result of opening them."""
    state, found = look(BOARDS["user_in_one_group"](), tmp_path)
    assert [(node.path, node.group, node.result) for node in state.nodes] == [
        ("/dev/dri/card1", "video", "EACCES"),
        ("/dev/dri/renderD129", "render", "ok"),
    ]
    assert (state.usable, state.node) == (True, "/dev/dri/renderD129")
    assert "usermod -aG video $USER" in found["npu-nodes-partly"].next_step(ENGLISH)


def test_still_no_permission_after_usermod(tmp_path: Path) -> None:
    """Row 2: the group is in /etc/group and not in the process: only a new login helps."""
    state, found = look(BOARDS["group_added_not_logged_in"](), tmp_path)
    assert state.reason == "npu-access-login"
    assert found["npu-access-login"].next_step(ENGLISH) == "log in again"


def test_one_group_came_after_the_login(tmp_path: Path) -> None:
    """Row 2, the same for one of the two nodes."""
    machine = parts.rk3588()
    parts.identity(machine, groups=(parts.RENDER, parts.USER))
    _, found = look(machine, tmp_path)
    assert found["npu-nodes-login"].next_step(ENGLISH) == "log in again"


def test_runtime_fails_on_mainline_6_18(tmp_path: Path) -> None:
    """Row 3: rocket has the NPU; the runtime says the same as without permission."""
    state, found = look(BOARDS["armbian_rocket"](), tmp_path)
    assert (state.world, state.cores, state.usable) == (World.ROCKET, 3, False)
    text = found["npu-rocket"].text(ENGLISH)
    for word in ("rocket", "/dev/accel/accel0", "6.18.2", "200 MHz"):
        assert word in text
    assert "vendor kernel 6.1" in found["npu-rocket"].next_step(ENGLISH)


def test_no_node_at_all_on_6_7_or_6_12(tmp_path: Path) -> None:
    """Row 4: the kernel has no driver; its version is named."""
    state, found = look(BOARDS["no_driver_bound"](), tmp_path / "a")
    assert state.world is World.NONE
    assert "6.12.30-current-rockchip64" in found["npu-no-driver"].text(ENGLISH)
    _, found = look(BOARDS["no_npu_in_device_tree"](), tmp_path / "b")
    assert "6.7.12-edge-rockchip64" in found["npu-not-described"].text(ENGLISH)


def test_same_message_after_an_update(tmp_path: Path) -> None:
    """Row 5: an update took the driver or the overlay; the kernel's last line about it is shown."""
    _, found = look(BOARDS["no_driver_bound"](), tmp_path / "a")
    assert "module verification failed" in found["npu-log-trouble"].text(ENGLISH)
    _, found = look(BOARDS["npu_disabled"](), tmp_path / "b")
    assert "overlay" in found["npu-disabled"].next_step(ENGLISH)


def test_fewer_cores_on_an_rk3582(tmp_path: Path) -> None:
    """Row 5: a binned part says how many cores it has, and is used."""
    state, found = look(BOARDS["rk3582"](), tmp_path)
    assert (state.cores, state.usable) == (2, True)
    assert found["npu-cores"].text(ENGLISH) == "2 of 3 NPU cores (RK3582)"


def test_driver_version_too_low(tmp_path: Path) -> None:
    """Row 7: 0.8.2 of an old 5.10 image: no memory domains, int8 was seen to fail, and no update but the image's."""
    state, found = look(BOARDS["driver_0_8_2"](), tmp_path)
    assert (state.driver_version, state.usable) == ((0, 8, 2), True)
    text = found["npu-driver-int8"].text(ENGLISH)
    for word in ("0.8.2", "int8", "0.9.6", "4 GiB"):
        assert word in text
    assert "update the board's image" in found["npu-driver-int8"].next_step(ENGLISH)


@pytest.mark.parametrize(
    ("version", "slug"),
    [
        ((0, 4, 0), "npu-driver-unusable"),
        ((0, 6, 99), "npu-driver-unusable"),
        ((0, 7, 0), "npu-driver-int8"),
        ((0, 8, 2), "npu-driver-int8"),
        ((0, 8, 3), "npu-driver-domains"),
        ((0, 8, 8), "npu-driver-domains"),
        ((0, 9, 2), "npu-driver-cores"),
        ((0, 9, 5), "npu-driver-cores"),
        ((0, 9, 6), "npu-driver-older"),
        ((0, 9, 7), "npu-driver-older"),
        ((0, 9, 8), "npu-driver"),
        ((0, 10, 0), "npu-driver"),
        ((1, 0, 0), "npu-driver"),
    ],
)
def test_driver_is_judged_by_its_row(version: tuple[int, int, int], slug: str) -> None:
    """Row 7, at the edges of every row of the table."""
    assert judge_driver(version).slug == slug
    assert [row.below for row in DRIVERS] == sorted(row.below for row in DRIVERS)


def test_core_masks_are_refused(tmp_path: Path) -> None:
    """Row 9: cores are counted here and used one by one; nothing asks the driver for several."""
    state, found = look(BOARDS["nanopi_m6"](), tmp_path)
    assert state.cores == 3
    assert "3 cores" in found["npu-driver"].text(ENGLISH)


def test_cores_one_and_two_fail_to_submit(tmp_path: Path) -> None:
    """Row 9 and the table of drivers: 0.9.3 points at the deep check, which tests every core."""
    _, found = look(BOARDS["driver_0_9_3"](), tmp_path)
    assert "--check=deep" in found["npu-driver-cores"].next_step(ENGLISH)


def test_scary_kernel_lines_are_harmless(tmp_path: Path) -> None:
    """Row 21: "can't request region" and "power_model" stand on every good board and are not shown."""
    machine = parts.rk3588()
    assert b"can't request region" in machine.files["/dev/kmsg"]
    assert b"failed to find power_model" in machine.files["/dev/kmsg"]
    _, found = look(machine, tmp_path)
    assert not [slug for slug in found if slug.startswith("npu-log")]


def test_failed_to_wait_job_then_soft_reset(tmp_path: Path) -> None:
    """Row 22: the NPU hangs; the driver's timeout is named, with its line in the log, and the way out."""
    state, found = look(BOARDS["npu_does_not_answer"](), tmp_path)
    assert (state.reason, state.error) == ("npu-timeout", "ETIMEDOUT")
    assert "off and on" in found["npu-timeout"].next_step(ENGLISH)
    assert "failed to wait job" in found["npu-log-trouble"].text(ENGLISH)


def test_kernel_panic_with_two_processes(tmp_path: Path) -> None:
    """Row 23: another process that has the NPU is named; our own handles are not taken for one."""
    _, found = look(BOARDS["npu_held_by_other_process"](), tmp_path)
    assert "977 (rkllm_server)" in found["npu-held"].text(ENGLISH)
    assert found["npu-held"].facts["count"] == 1
    assert "rkllm_server" not in found["npu-held"].redacted().text(ENGLISH)


def test_query_platform_error_without_root(tmp_path: Path) -> None:
    """Row 27: nothing needs root; what cannot be read is said."""
    machine = BOARDS["no_driver_bound"]().remove("/dev/kmsg")
    _, found = look(machine, tmp_path)
    assert found["npu-log-unread"].status is Status.SKIP
    assert "dmesg" in found["npu-log-unread"].next_step(ENGLISH)


def test_enotty_from_a_linked_node(tmp_path: Path) -> None:
    """/dev/rknpu made a link to the DRM node: the node is found by its driver, and the link is to be removed."""
    state, found = look(BOARDS["rknpu_symlink"](), tmp_path / "link")
    assert (state.node, state.world) == ("/dev/dri/card1", World.VENDOR_DRM)
    assert found["npu-symlink"].facts["target"] == "/dev/dri/card1"
    assert "sudo rm /dev/rknpu" in found["npu-symlink"].next_step(ENGLISH)
    machine = parts.rk3588().node("/dev/rknpu", Rknpu(), group=parts.VIDEO, major=226, minor=1)
    _, found = look(machine, tmp_path / "mknod")
    assert found["npu-symlink"].facts["target"] == "226:1"


def test_image_with_the_misc_device_only(tmp_path: Path) -> None:
    """The DMA heap build: asked with its own ioctl magic, named with its version, not used."""
    state, found = look(BOARDS["misc_device_only"](), tmp_path)
    assert (state.world, state.driver_version, state.usable) == (World.MISC, (0, 9, 8), False)
    assert "CONFIG_ROCKCHIP_RKNPU_DRM_GEM" in found["npu-misc"].next_step(ENGLISH)


def test_out_of_tree_module_has_a_node_that_names_no_driver(tmp_path: Path) -> None:
    """Mainline with the vendor's driver: card2, below a device without a driver; the GPU on card1 is not opened."""
    machine = BOARDS["out_of_tree_module"]()
    # Another device without a driver: it is asked for its name and passed over.
    machine.file("/sys/devices/vgem/uevent", "MODALIAS=platform:vgem\n")
    parts.drm_node(machine, "card3", minor=3, device="/sys/devices/vgem", driver=DrmDriver(name="vgem"))
    state, _ = look(machine, tmp_path)
    assert (state.world, state.node, state.cores) == (World.OUT_OF_TREE, "/dev/dri/card2", 3)
    assert [node.path for node in state.nodes] == ["/dev/dri/card2", "/dev/dri/renderD129"]


def test_module_of_a_vendor_kernel_that_was_built_apart(tmp_path: Path) -> None:
    """The taint of the module tells, also where the device tree is the vendor's."""
    state, _ = look(parts.rk3588().file("/sys/module/rknpu/taint", "OE\n"), tmp_path)
    assert state.world is World.OUT_OF_TREE


def test_container_without_the_device(tmp_path: Path) -> None:
    """sysfs shows the NPU, /dev does not: Docker and Kubernetes get their own advice, a bare system another."""
    state, found = look(BOARDS["kubernetes_without_device"](), tmp_path / "pod")
    assert state.world is World.VENDOR_DRM
    assert "device plugin" in found["npu-kubernetes"].next_step(ENGLISH)
    docker = BOARDS["container_masked_device_tree"]().remove("/dev/dri")
    _, found = look(docker, tmp_path / "docker")
    assert "--device /dev/dri" in found["npu-container"].next_step(ENGLISH)
    _, found = look(parts.rk3588().remove("/dev/dri"), tmp_path / "bare")
    assert "udevadm" in found["npu-node-missing"].next_step(ENGLISH)


def test_container_whose_device_rules_refuse(tmp_path: Path) -> None:
    """EPERM is not EACCES: no group helps."""
    state, found = look(BOARDS["container_device_refused"](), tmp_path)
    assert state.error == "EPERM"
    assert "usermod" not in found["npu-refused"].next_step(ENGLISH)


def test_container_user_outside_the_groups_of_the_host(tmp_path: Path) -> None:
    """In a container usermod does not help: the numbers of the groups are handed in."""
    machine = BOARDS["container_masked_device_tree"]().file("/etc/group", "root:x:0:\n")
    parts.identity(machine, groups=(), user=999)
    _, found = look(machine, tmp_path)
    assert found["npu-access-container"].next_step(ENGLISH) == (
        f"start the container with --group-add {parts.VIDEO} --group-add {parts.RENDER}"
    )


def test_refused_although_the_groups_allow_it(tmp_path: Path) -> None:
    """A security module refuses: usermod would be wrong advice."""
    machine = parts.rk3588()
    for name, minor, group in (("card1", 1, parts.VIDEO), ("renderD129", 129, parts.RENDER)):
        machine.node(f"/dev/dri/{name}", Rknpu(), group=group, minor=minor, open_error=errno.EACCES)
    state, _ = look(machine, tmp_path)
    assert state.reason == "npu-access-denied"


def test_masked_sysfs_needs_a_named_board(tmp_path: Path) -> None:
    """Without sysfs nothing is opened, unless --assume-board says that there is an NPU."""
    machine = BOARDS["container_without_sysfs"]()
    state, found = look(machine, tmp_path / "unknown")
    assert state.reason == "npu-hidden"
    assert "--assume-board RK3588" in found["npu-hidden"].next_step(ENGLISH)
    state, found = look(machine, tmp_path / "named", assumed="rk3588")
    assert (state.usable, state.node) == (True, "/dev/dri/card1")
    assert [node.path for node in state.nodes] == ["/dev/dri/card1", "/dev/dri/renderD129"]


@pytest.mark.parametrize(
    ("driver", "reason", "error"),
    [
        (NoDriver(), "npu-foreign", "ENOTTY"),
        (DrmDriver(name="rocket"), "npu-foreign", "rocket"),
        (Rknpu(errors={0: errno.EIO}), "npu-no-answer", "EIO"),
        (Rknpu(errors={1: errno.EINVAL}), "npu-foreign", "EINVAL"),
        (Rknpu(hardware=0xFFFFFFFF), "npu-other", ""),
        (Rknpu(interruptions=3), "", ""),
        (Rknpu(interruptions=1000), "npu-no-answer", "EINTR"),
        (Rknpu(errors={2: errno.EINVAL, 18: errno.EINVAL}), "", ""),
    ],
    ids=["enotty", "rocket", "eio", "einval", "hardware-minus-one", "eintr", "eintr-forever", "old-flags"],
)
def test_driver_that_answers_oddly(driver: DrmDriver | NoDriver, reason: str, error: str, tmp_path: Path) -> None:
    """Integrity row 12 (ENOTTY, hardware -1): the runtime would crash on these answers, so it is not loaded."""
    state, found = look(nodes(parts.rk3588(), driver), tmp_path)
    assert (state.reason, state.error, state.usable) == (reason, error, not reason)
    if reason:
        assert error in found[reason].text(ENGLISH)


def test_node_that_vanished(tmp_path: Path) -> None:
    """The driver was unbound under an open /dev."""
    machine = parts.rk3588()
    for name, minor in (("card1", 1), ("renderD129", 129)):
        machine.node(f"/dev/dri/{name}", Rknpu(), minor=minor, open_error=errno.ENODEV)
    state, found = look(machine, tmp_path)
    assert (state.reason, state.error) == ("npu-open", "ENODEV")
    assert "ENODEV" in found["npu-open"].text(ENGLISH)


def test_headless_image_has_the_npu_on_card0(tmp_path: Path) -> None:
    """Without a display the numbers are others; what counts is the driver."""
    machine = parts.without_drm_nodes(parts.rk3588())
    for name in ("card0", "renderD128"):
        machine.remove(f"/sys/class/drm/{name}").remove(f"/dev/dri/{name}")
        parts.drm_node(machine, name, minor=0, device=parts.NPU, driver=Rknpu())
    state, _ = look(machine, tmp_path)
    assert (state.node, len(state.nodes)) == ("/dev/dri/card0", 2)


def test_slow_npu_says_the_command(tmp_path: Path) -> None:
    """Row 19: a governor that holds the NPU low, or a cap; an idle NPU under its own governor is left alone."""
    machine = parts.rk3588()
    parts.devfreq(machine, "fdab0000.npu", 300_000_000, "rknpu_ondemand", (300, 500, 700, 1000))
    _, found = look(machine, tmp_path / "idle")
    assert found["npu-clock"].status is Status.OK
    machine.file("/sys/class/devfreq/fdab0000.npu/max_freq", "500000000\n")
    _, found = look(machine, tmp_path / "capped")
    assert found["npu-clock-slow"].facts["allowed_mhz"] == 500
    _, found = look(BOARDS["hot_and_slow"](), tmp_path / "powersave")
    assert "sudo tee /sys/class/devfreq/fdab0000.npu/governor" in found["npu-clock-slow"].next_step(ENGLISH)


def test_required_npu_blocks_and_says_that_nothing_computes(tmp_path: Path) -> None:
    """`--mla-backend npu` on a PC is a failure, not a line about the CPU."""
    _, found = look(BOARDS["pc"](), tmp_path, required=True)
    assert found["npu-missing"].blocking
    assert "backend used: none" in found["npu-missing"].text(ENGLISH)


def test_state_without_a_board_name_still_has_facts(tmp_path: Path) -> None:
    """A state made elsewhere, as the self test has it, is shown without a machine behind it."""
    system = SystemView(root=tmp_path)
    state = NpuState(world=World.VENDOR_DRM, reason="npu-timeout", error="ETIMEDOUT")
    found = npu_findings(system, Board(model=None, soc=None), replace(state, cores=None), True)
    assert found[0].text(ENGLISH).startswith("the NPU did not answer (ETIMEDOUT)")


def test_kernel_log_is_read_by_records() -> None:
    """Continuation lines are no records, and control characters stay out of a terminal."""
    data = b"6,1,1,-;first\n KEY=rknpu;x\n3,2,2,-;se\x1b[2Jcond\nbroken"
    assert kernel_lines(data) == ["first", "se\ufffd[2Jcond"]


def test_checks_load_no_vendor_library() -> None:
    """Nothing here can load librknnrt: the modules that look do not even import ctypes."""
    code = (
        "import sys\nimport launcher.checks.board, launcher.checks.npu, launcher.checks.libc, launcher.checks.cpu\n"
        "print(sorted({'ctypes', 'cffi', 'launcher.engine', 'launcher.engine_library'} & set(sys.modules)))"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env=environ
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["pc", "raspberry_pi_5", "no_driver_bound"])
def test_driverless_display_is_not_opened_without_an_npu(name: str, tmp_path: Path) -> None:
    """A virtual display also hangs below a device that names no driver: only a bound rknpu makes such a node ours."""
    machine = BOARDS[name]().file("/sys/devices/vgem/uevent", "MODALIAS=platform:vgem\n")
    parts.drm_node(machine, "card3", minor=3, device="/sys/devices/vgem", driver=DrmDriver(name="vgem"))
    system = machine.build(tmp_path)
    probe_npu(system, read_board(system, None))
    assert isinstance(system.devices, FakeDevices)
    assert system.devices.log == []


def test_linked_node_is_not_taken_for_the_misc_device(tmp_path: Path) -> None:
    """The link leads to the display, and the NPU has no node: the link is not asked with the misc device's requests."""
    machine = parts.without_drm_nodes(parts.rk3588()).link("/dev/rknpu", "dri/card0")
    system = machine.build(tmp_path)
    state = probe_npu(system, read_board(system, None))
    assert (state.world, state.reason) == (World.VENDOR_DRM, "npu-node-missing")
    assert isinstance(system.devices, FakeDevices)
    assert system.devices.log == []


def test_cores_of_mainline_are_counted(tmp_path: Path) -> None:
    """A device tree with two of the three cores."""
    machine = BOARDS["out_of_tree_module"]().remove("/sys/bus/platform/devices/fdad0000.npu")
    state, found = look(machine, tmp_path)
    assert state.cores == 2
    assert found["npu-cores"].facts["cores"] == 2
