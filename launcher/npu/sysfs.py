"""Where the NPU is according to sysfs and the device tree, so that no other device is ever opened.

Names are not numbers: with a display the vendor's NPU is usually card1 and renderD129, without one card0 and
renderD128, and with an out-of-tree module card2. What counts is the driver behind the node.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from launcher.npu.probe import Magic
from launcher.system import SystemView

TREES: Final = ("/proc/device-tree", "/sys/firmware/devicetree/base")
_DRM_NAME: Final = re.compile(r"(card|renderD)[0-9]+")
_ACCEL_NAME: Final = re.compile(r"accel[0-9]+")
_PLATFORM: Final = "/sys/bus/platform/devices"
_MISC_NODE: Final = "/dev/rknpu"
_DRM_MAJOR: Final = 226


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformDevice:
    """The NPU, or one of its cores, as the kernel's device model has it. `driver` is empty where none is bound."""

    name: str
    compatible: tuple[str, ...]
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A device node of the NPU. `certain` where sysfs names its driver; else the driver has to be asked."""

    path: str
    magic: Magic
    certain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NpuTree:
    """What sysfs and the device tree say.

    Attributes:
        devices: platform devices of the NPU.
        nodes: DRM and misc nodes of the vendor's driver, card nodes first; the files in /dev may be missing.
        accel: nodes of mainline's accel class that belong to rocket.
        declared: ``okay`` or ``disabled`` where the device tree has an NPU, else empty.
        out_of_tree: the vendor's driver came as a module that was built beside the kernel.
        cores: of the NPU, None where nothing says so.
        visible: whether there is a sysfs at all.
    """

    devices: tuple[PlatformDevice, ...]
    nodes: tuple[Candidate, ...]
    accel: tuple[str, ...]
    declared: str
    out_of_tree: bool
    cores: int | None
    visible: bool

    def bound(self, driver: str) -> bool:
        """Whether a platform device is bound to this driver."""
        return any(device.driver.lower() == driver for device in self.devices)


def read_npu_tree(system: SystemView, *, assume_npu: bool) -> NpuTree:
    """Looks for the NPU. Where there is no sysfs, `assume_npu` makes every DRM node one to be asked."""
    devices = tuple(_platform_devices(system))
    bound = any(device.driver.lower() == "rknpu" for device in devices)
    visible = bool(system.names("/sys/class") or system.names(_PLATFORM))
    nodes = _drm_nodes(system, bound)
    if not visible and assume_npu:
        nodes = [
            Candidate(path=f"/dev/dri/{name}", magic=Magic.DRM, certain=False)
            for name in system.names("/dev/dri")
            if _DRM_NAME.fullmatch(name)
        ]
    if not nodes and _has_misc_node(system, may_stand_alone=bound or (assume_npu and not visible)):
        nodes = [Candidate(path=_MISC_NODE, magic=Magic.MISC, certain=True)]
    return NpuTree(
        devices=devices,
        nodes=tuple(nodes),
        accel=_accel_nodes(system, any(device.driver == "rocket" for device in devices)),
        declared=_declared(system),
        out_of_tree=_out_of_tree(system, devices),
        cores=_cores(system, devices),
        visible=visible,
    )


def misplaced_node(system: SystemView) -> str | None:
    """What /dev/rknpu leads to where it is not the misc device that programs take it for, e.g. ``/dev/dri/card1``."""
    target = system.link(_MISC_NODE)
    if target is not None:
        try:
            return system.resolve(_MISC_NODE)
        except OSError:
            return target
    node = system.devices.stat(_MISC_NODE)
    if node is not None and node.major == _DRM_MAJOR:
        return f"{node.major}:{node.minor}"
    return None


def _platform_devices(system: SystemView) -> list[PlatformDevice]:
    found = []
    for name in system.names(_PLATFORM):
        if "npu" not in name.lower():
            continue
        facts = _uevent(system, f"{_PLATFORM}/{name}")
        compatible = tuple(value for key, value in facts.items() if key.startswith("OF_COMPATIBLE_") and key[-1] != "N")
        if any(_is_npu(value) for value in compatible):
            found.append(PlatformDevice(name=name, compatible=compatible, driver=facts.get("DRIVER", "")))
    return found


def _is_npu(compatible: str) -> bool:
    return compatible.startswith("rockchip,") and ("rknpu" in compatible or "rknn-core" in compatible)


def _drm_nodes(system: SystemView, bound: bool) -> list[Candidate]:
    found = []
    for name in system.names("/sys/class/drm"):
        if not _DRM_NAME.fullmatch(name):
            continue
        driver = _uevent(system, f"/sys/class/drm/{name}/device").get("DRIVER", "")
        # On mainline the out-of-tree driver puts its node below a device that names no driver at all.
        if driver.lower() == "rknpu" or (bound and not driver):
            found.append(Candidate(path=f"/dev/dri/{name}", magic=Magic.DRM, certain=bool(driver)))
    return found


def _accel_nodes(system: SystemView, bound: bool) -> tuple[str, ...]:
    found = []
    for name in system.names("/sys/class/accel"):
        driver = _uevent(system, f"/sys/class/accel/{name}/device").get("DRIVER", "")
        if _ACCEL_NAME.fullmatch(name) and (driver == "rocket" or (bound and not driver)):
            found.append(f"/dev/accel/{name}")
    return tuple(found)


def _has_misc_node(system: SystemView, *, may_stand_alone: bool) -> bool:
    if misplaced_node(system) is not None:
        return False
    if system.exists("/sys/class/misc/rknpu"):
        return True
    node = system.devices.stat(_MISC_NODE)
    return may_stand_alone and node is not None and node.is_device


def _declared(system: SystemView) -> str:
    states = set()
    for tree in TREES:
        for name in system.names(tree):
            if "npu" in name and _is_npu(system.line(f"{tree}/{name}/compatible") or ""):
                states.add(system.line(f"{tree}/{name}/status") or "okay")
    if not states:
        return ""
    return "okay" if states & {"okay", "ok"} else "disabled"


def _out_of_tree(system: SystemView, devices: tuple[PlatformDevice, ...]) -> bool:
    if "O" in (system.line("/sys/module/rknpu/taint") or ""):
        return True
    # Mainline's own cores, driven by the vendor's driver: no vendor kernel has that.
    return any(
        device.driver.lower() == "rknpu" and any("rknn-core" in value for value in device.compatible)
        for device in devices
    )


def _cores(system: SystemView, devices: tuple[PlatformDevice, ...]) -> int | None:
    separate = [device for device in devices if any("rknn-core" in value for value in device.compatible)]
    if separate:
        return len(separate)
    for device in devices:
        names = system.read(f"{_PLATFORM}/{device.name}/of_node/interrupt-names") or ""
        lines = [name for name in names.split("\0") if name.startswith("npu") and name.endswith("irq")]
        if lines:
            return len(lines)
    return None


def _uevent(system: SystemView, folder: str) -> dict[str, str]:
    facts = {}
    for line in (system.read(f"{folder}/uevent") or "").splitlines():
        name, equals, value = line.partition("=")
        if equals:
            facts[name] = value
    return facts
