"""A board that is taken for another, a container that is not noticed, a slow memory clock that is not named."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.checks.board import Board, board_findings, read_board
from launcher.checks.report import Finding, Status
from launcher.messages import Catalogue, Language
from tests.fixtures.boards import rk3588 as parts
from tests.fixtures.boards.boards import BOARDS
from tests.fixtures.boards.builder import Board as Machine

ENGLISH = Catalogue(Language.ENGLISH)


def look(machine: Machine, root: Path, assumed: str | None = None) -> tuple[Board, dict[str, Finding]]:
    system = machine.build(root)
    board = read_board(system, assumed)
    return board, {finding.slug: finding for finding in board_findings(system, board)}


@pytest.mark.parametrize(
    ("name", "model", "soc"),
    [
        ("nanopi_m6", "FriendlyElec NanoPi M6", "RK3588"),
        ("four_gib_board", "Orange Pi 5", "RK3588S"),
        ("rk3582", "Radxa E52C", "RK3582"),
        ("rk3566_board", "Orange Pi 3B", "RK3566"),
        ("raspberry_pi_5", "Raspberry Pi 5 Model B Rev 1.0", "BCM2712"),
        ("pc", "ThinkCentre M75q", None),
        ("container_masked_device_tree", None, "RK3588"),
        ("container_without_sysfs", None, None),
        ("kubernetes_without_device", None, "RK3588"),
    ],
)
def test_board_is_named(name: str, model: str | None, soc: str | None, tmp_path: Path) -> None:
    board, _ = look(BOARDS[name](), tmp_path)
    assert (board.model, board.soc) == (model, soc)


@pytest.mark.parametrize(
    ("compatible", "soc"),
    [
        (("radxa,rock-5a", "rockchip,rk3588s"), "RK3588S"),
        (("rockchip,rk3588-evb7-v11", "rockchip,rk3588"), "RK3588"),
        (("firefly,itx", "rockchip,rk3588j"), "RK3588J"),
        (("x,y", "rockchip,rk3588s2"), "RK3588S2"),
        (("x,y", "rockchip,rk3588s", "rockchip,rk3583"), "RK3583"),
        (("nonsense",), None),
    ],
)
def test_soc_by_its_compatible(compatible: tuple[str, ...], soc: str | None, tmp_path: Path) -> None:
    board, _ = look(parts.rk3588(compatible=compatible), tmp_path)
    assert board.soc == soc


def test_second_place_of_the_device_tree(tmp_path: Path) -> None:
    """Where /proc/device-tree is hidden and /sys/firmware is not."""
    board, found = look(parts.rk3588().remove("/proc/device-tree"), tmp_path)
    assert (board.soc, board.masked) == ("RK3588", False)
    assert "board-known" in found


def test_platform_unknown_in_a_container(tmp_path: Path) -> None:
    """Integrity row 15: the SoC comes from the NPU, and the option of the container engine is named."""
    board, found = look(BOARDS["container_masked_device_tree"](), tmp_path)
    assert (board.masked, board.container) == (True, "docker")
    step = found["board-masked"].next_step(ENGLISH)
    assert "systempaths=unconfined" in step
    assert "--assume-board RK3588" in step


def test_soc_by_the_number_of_the_hardware(tmp_path: Path) -> None:
    """sysfs names the driver and no SoC: the NPU itself is asked."""
    machine = BOARDS["container_masked_device_tree"]()
    machine.file(f"{parts.NPU}/uevent", "DRIVER=RKNPU\nOF_COMPATIBLE_0=rockchip,rknpu\n")
    board, _ = look(machine, tmp_path)
    assert board.soc == "RK3588"


def test_soc_by_cpuinfo(tmp_path: Path) -> None:
    machine = BOARDS["container_without_sysfs"]()
    machine.file("/proc/cpuinfo", machine.files["/proc/cpuinfo"] + b"Hardware\t: Rockchip RK3588S\n")
    board, _ = look(machine, tmp_path)
    assert board.soc == "RK3588S"


@pytest.mark.parametrize("word", ["RK3588", "rk3588", " rockchip,rk3588 "])
def test_assumed_board_where_nothing_else_tells(word: str, tmp_path: Path) -> None:
    board, found = look(BOARDS["container_without_sysfs"](), tmp_path, word)
    assert (board.soc, board.assumed) == ("RK3588", True)
    assert "board-assumed" in found


def test_assumed_board_does_not_override_a_device_tree(tmp_path: Path) -> None:
    board, found = look(BOARDS["raspberry_pi_5"](), tmp_path / "pi", "RK3588")
    assert (board.soc, board.assumed) == ("BCM2712", False)
    assert "BCM2712" in found["board-assumption-unused"].text(ENGLISH)
    board, found = look(BOARDS["pc"](), tmp_path / "pc", "RK3588")
    assert not board.has_rk3588_npu
    assert "board-assumption-unused" in found


def test_assumed_board_that_does_not_exist(tmp_path: Path) -> None:
    board, found = look(BOARDS["container_without_sysfs"](), tmp_path, "rk9999{x}")
    assert board.soc is None
    assert "RK3588S" in found["board-assumption-unknown"].next_step(ENGLISH)


@pytest.mark.parametrize(
    ("path", "text", "container"),
    [
        ("/.dockerenv", "", "docker"),
        ("/run/.containerenv", "", "podman"),
        ("/run/systemd/container", "lxc\n", "lxc"),
        ("/run/secrets/kubernetes.io/serviceaccount/token", "x", "kubernetes"),
        ("/proc/self/cgroup", "12:memory:/docker/0123\n", "docker"),
        ("/proc/self/cgroup", "0::/kubepods.slice/x\n", "kubernetes"),
        ("/proc/self/cgroup", "0::/machine.slice/libpod-01.scope\n", "podman"),
        ("/proc/self/cgroup", "1:name=systemd:/lxc/box\n", "lxc"),
        ("/etc/hostname", "docker\n", None),
    ],
)
def test_container_is_noticed(path: str, text: str, container: str | None, tmp_path: Path) -> None:
    board, found = look(parts.rk3588().file(path, text), tmp_path)
    assert board.container == container
    assert ("board-container" in found) == (container is not None)


def test_binned_parts_are_named(tmp_path: Path) -> None:
    """Row 5: an RK3582 is a warning with its number of cores; so is an RK3588S with fewer cores than it should have."""
    _, found = look(BOARDS["rk3582"](), tmp_path / "named")
    assert found["board-binned"].facts["cores"] == 6
    machine = parts.rk3588(compatible=("radxa,rock-5c-lite", "rockchip,rk3588s"))
    machine.remove("/sys/devices/system/cpu")
    parts.cores(machine, big=(4, 5))
    _, found = look(machine, tmp_path / "unnamed")
    assert found["board-fewer-cores"].facts["cores"] == 6


def test_half_or_a_third_of_the_published_speed(tmp_path: Path) -> None:
    """Row 19: the memory stays at 528 of 2112 MHz; the command is shown."""
    _, found = look(BOARDS["ddr_528"](), tmp_path)
    line = found["board-ddr-slow"]
    assert (line.facts["mhz"], line.facts["max_mhz"], line.facts["percent"]) == (528, 2112, 25)
    assert line.next_step(ENGLISH) == "echo performance | sudo tee /sys/class/devfreq/dmc/governor"


@pytest.mark.parametrize(("current", "status"), [(1_560_000_000, Status.WARN), (2_112_000_000, Status.OK)])
def test_memory_clock_is_judged_against_the_highest(current: int, status: Status, tmp_path: Path) -> None:
    machine = parts.rk3588()
    parts.devfreq(machine, "dmc", current, "dmc_ondemand", (528, 1068, 1560, 2112))
    # A cap must not make a slow clock look like the highest one.
    machine.file("/sys/class/devfreq/dmc/max_freq", f"{current}\n")
    _, found = look(machine, tmp_path)
    assert next(line.status for slug, line in found.items() if slug.startswith("board-ddr")) is status


def test_heat_is_named_by_its_zone(tmp_path: Path) -> None:
    _, found = look(BOARDS["hot_and_slow"](), tmp_path / "hot")
    assert found["board-hot"].facts == {"zone": "bigcore0-thermal", "degrees": 91, "limit": 85}
    machine = parts.rk3588()
    # A PC's firmware may write nonsense here.
    machine.file("/sys/class/thermal/thermal_zone0/trip_point_0_temp", "-274000\n")
    _, found = look(machine, tmp_path / "cool")
    assert "board-hot" not in found


def test_firmware_that_does_not_know_its_name(tmp_path: Path) -> None:
    machine = BOARDS["pc"]().file("/sys/class/dmi/id/product_name", "To Be Filled By O.E.M.\n")
    board, _ = look(machine.file("/sys/class/dmi/id/board_name", "B550M\n"), tmp_path)
    assert board.model == "B550M"
