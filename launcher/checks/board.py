"""Which board this is, on which SoC, and whether we are in a container."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from launcher.checks.clocks import heat_findings, memory_clock_findings
from launcher.checks.cpu import X86, parse_cores
from launcher.checks.report import Finding, Group, ok, skip, warn
from launcher.npu.probe import RK3588_HARDWARE, probe_node
from launcher.npu.sysfs import TREES, read_npu_tree
from launcher.system import SystemView

# SoCs with the RK3588's NPU. The last two are binned: parts of the same chip with fewer cores switched on.
FAMILY: Final = ("RK3588", "RK3588S", "RK3588J", "RK3588M", "RK3588S2", "RK3582", "RK3583")
BINNED: Final = frozenset({"RK3582", "RK3583"})
_FULL_CORES: Final = 8

_ROCKCHIP: Final = re.compile(r"rockchip,(rk\d{4}[a-z]?\d?)")
_NAMED_SOC: Final = re.compile(r"\bRK35\d\d[A-Z]?\d?\b", re.IGNORECASE)
_CGROUP_WORDS: Final = (
    ("kubepods", "kubernetes"),
    ("docker", "docker"),
    ("libpod", "podman"),
    ("/lxc", "lxc"),
)
# Names that mainboard makers leave in DMI when they do not fill it in.
_PLACEHOLDERS: Final = frozenset({"system product name", "to be filled by o.e.m.", "default string", "none", "o.e.m."})


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """The machine by name.

    Attributes:
        model: name of the board or PC.
        soc: upper case, e.g. ``RK3588S`` or ``BCM2712``; None where nothing says so.
        compatible: of the device tree, most specific first.
        container: ``docker``, ``podman``, ``kubernetes``, ``lxc`` or another name; None outside.
        assumed: the SoC is what --assume-board says.
        asked: what --assume-board says, whether it was used or not.
        masked: this should have a device tree, and it cannot be read.
    """

    model: str | None
    soc: str | None
    compatible: tuple[str, ...] = ()
    container: str | None = None
    assumed: bool = False
    asked: str | None = None
    masked: bool = False

    @property
    def has_rk3588_npu(self) -> bool:
        """Whether the SoC has the NPU that the program knows."""
        return self.soc in FAMILY


def read_board(system: SystemView, assumed: str | None) -> Board:
    """The board by its device tree, else by `assumed`, the NPU, /proc/cpuinfo and DMI, in this order."""
    container = _container(system)
    model, compatible = _device_tree(system)
    if model is not None or compatible:
        return Board(model=model, soc=_soc(compatible), compatible=compatible, container=container, asked=assumed)
    named, hardware = _cpuinfo(system)
    model = _dmi(system) or named
    # A PC has no device tree that could be hidden.
    has_tree = system.host.machine.lower() not in X86 and _dmi(system) is None
    wanted = _normal(assumed)
    if has_tree and wanted in FAMILY:
        return Board(model=model, soc=wanted, container=container, assumed=True, asked=assumed, masked=True)
    soc = _soc_of_npu(system) or hardware
    masked = has_tree and (soc is not None or container is not None)
    return Board(model=model, soc=soc, container=container, asked=assumed, masked=masked)


def board_findings(system: SystemView, board: Board) -> tuple[Finding, ...]:
    """The board, what is special about it, the clock of its memory and its temperature."""
    found = [_name(board)]
    if board.asked is not None and not board.assumed:
        found.append(_unused_assumption(board))
    if board.container is not None:
        found.append(ok(Group.BOARD, "board-container", container=board.container))
    cores = _core_count(system)
    if board.soc in BINNED:
        found.append(warn(Group.BOARD, "board-binned", soc=board.soc, cores=cores))
    elif board.has_rk3588_npu and 0 < cores < _FULL_CORES:
        found.append(warn(Group.BOARD, "board-fewer-cores", soc=board.soc, cores=cores, full=_FULL_CORES))
    found += memory_clock_findings(system, expected=board.has_rk3588_npu)
    found += heat_findings(system)
    return tuple(found)


def _name(board: Board) -> Finding:
    model = board.model or "?"
    if board.assumed:
        return ok(Group.BOARD, "board-assumed", model=model, soc=board.soc)
    if board.masked and board.soc is not None:
        return warn(Group.BOARD, "board-masked", model=model, soc=board.soc, container=board.container or "-")
    if board.masked:
        return warn(Group.BOARD, "board-hidden", container=board.container or "-")
    if board.has_rk3588_npu:
        return ok(Group.BOARD, "board-known", model=model, soc=board.soc)
    if board.model is None:
        return skip(Group.BOARD, "board-unknown")
    return ok(Group.BOARD, "board-other", model=model)


def _unused_assumption(board: Board) -> Finding:
    asked = board.asked or ""
    if _normal(asked) in FAMILY:
        return warn(Group.BOARD, "board-assumption-unused", asked=asked, soc=board.soc or board.model or "?")
    return warn(Group.BOARD, "board-assumption-unknown", asked=asked, names=", ".join(FAMILY))


def _normal(name: str | None) -> str:
    return (name or "").strip().upper().removeprefix("ROCKCHIP,")


def _device_tree(system: SystemView) -> tuple[str | None, tuple[str, ...]]:
    for tree in TREES:
        model = system.line(f"{tree}/model")
        text = system.read(f"{tree}/compatible") or ""
        compatible = tuple(name for name in text.split("\0") if name.strip())
        if model or compatible:
            return model, compatible
    return None, ()


def _soc(compatible: tuple[str, ...]) -> str | None:
    names = [match[1].upper() for name in compatible if (match := _ROCKCHIP.fullmatch(name)) is not None]
    if names:
        # A board with a binned part also names the full one, for the sake of its drivers.
        return next((name for name in names if name in BINNED), names[-1])
    _, comma, name = compatible[-1].partition(",") if compatible else ("", "", "")
    return name.strip().upper() or None if comma else None


def _soc_of_npu(system: SystemView) -> str | None:
    """The SoC by its NPU: by what sysfs says, and where that is not enough by the hardware's own number."""
    tree = read_npu_tree(system, assume_npu=False)
    for device in tree.devices:
        for name in device.compatible:
            match = re.fullmatch(r"rockchip,(rk3\d{3})-(rknpu|rknn-core)", name)
            if match is not None:
                return match[1].upper()
    for node in tree.nodes:
        exists = system.devices.stat(node.path) is not None
        if exists and probe_node(system.devices, node.path, node.magic).hardware == RK3588_HARDWARE:
            return "RK3588"
    return None


def _cpuinfo(system: SystemView) -> tuple[str | None, str | None]:
    """(model, SoC) where /proc/cpuinfo has such lines: vendor kernels of arm64 boards do."""
    model = soc = None
    for line in (system.read("/proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "Model" and value.strip():
            model = value.strip()
        if name.strip() in {"Hardware", "Model"}:
            match = _NAMED_SOC.search(value)
            soc = match[0].upper() if match is not None else soc
    return model, soc


def _dmi(system: SystemView) -> str | None:
    for name in ("product_name", "board_name"):
        text = system.line(f"/sys/class/dmi/id/{name}")
        if text and text.lower() not in _PLACEHOLDERS:
            return text
    return None


def _container(system: SystemView) -> str | None:
    if system.exists("/var/run/secrets/kubernetes.io") or system.exists("/run/secrets/kubernetes.io"):
        return "kubernetes"
    groups = system.read("/proc/self/cgroup") or ""
    named = next((name for word, name in _CGROUP_WORDS if word in groups), None)
    if named == "kubernetes":
        return named
    if system.exists("/.dockerenv"):
        return "docker"
    if system.exists("/run/.containerenv"):
        return "podman"
    # systemd writes here what it runs in; /proc/self/cgroup is the last resort, for older engines.
    return system.line("/run/systemd/container") or named


def _core_count(system: SystemView) -> int:
    return len(parse_cores(system.line("/sys/devices/system/cpu/present") or ""))
