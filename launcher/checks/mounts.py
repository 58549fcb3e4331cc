"""Which mount holds a path, with what flags and on what kind of disk: /proc/self/mountinfo and /sys/block."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

from launcher.system import SystemView

_OCTAL = re.compile(r"\\([0-7]{3})")
_LAYERED = {"overlay", "aufs", "9p", "virtiofs", "fuse.fuse-overlayfs"}  # containers: the disk below is not shown
_NETWORKED = {"nfs", "nfs4", "cifs", "smb3", "sshfs", "fuse.sshfs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One line of mountinfo. `flags` are the mount's own options; `device` is ``major:minor``."""

    point: str
    kind: str
    source: str
    device: str
    flags: frozenset[str]

    @property
    def read_only(self) -> bool:
        """Whether nothing can be written through it."""
        return "ro" in self.flags

    @property
    def no_exec(self) -> bool:
        """Whether no program and no library can be started from it."""
        return "noexec" in self.flags


def mount_of(system: SystemView, path: str) -> Mount | None:
    """The mount that holds a path, or would hold it; None where mountinfo says nothing."""
    try:
        real = system.resolve(path)
    except OSError:
        return None
    best = None
    for mount in _mounts(system):
        holds = real == mount.point or real.startswith(mount.point.rstrip("/") + "/")
        # A later mount on the same point hides the earlier one.
        if holds and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def disk_class(system: SystemView, mount: Mount) -> str:
    """``nvme``, ``emmc``, ``sd``, ``hdd``, ``ssd``, ``usb``, ``memory``, ``zram``, ``network`` or ``unknown``."""
    if mount.kind in {"tmpfs", "ramfs"}:
        return "memory"
    if mount.kind in _NETWORKED:
        return "network"
    if mount.kind in _LAYERED:
        return "unknown"
    name = _block_name(system, mount)
    if name is None:
        return "unknown"
    if name.startswith("nvme"):
        return "nvme"
    if name.startswith("zram"):
        return "zram"
    if name.startswith("mmcblk"):
        return {"MMC": "emmc", "SD": "sd"}.get(system.line(f"/sys/block/{name}/device/type") or "", "unknown")
    if "/usb" in (system.link(f"/sys/block/{name}") or ""):
        return "usb"
    turning = system.number(f"/sys/block/{name}/queue/rotational")
    return {0: "ssd", 1: "hdd"}.get(-1 if turning is None else turning, "unknown")


def _mounts(system: SystemView) -> list[Mount]:
    found = []
    for line in (system.read("/proc/self/mountinfo") or "").splitlines():
        # id parent major:minor root point options optional... - type source super-options
        own, _, shared = line.partition(" - ")
        words, tail = own.split(" "), shared.split(" ")
        if len(words) < 6 or len(tail) < 2:
            continue
        super_flags = tail[2].split(",") if len(tail) > 2 else []
        flags = {*words[5].split(","), *(flag for flag in super_flags if flag == "ro")}
        found.append(
            Mount(
                point=_plain(words[4]),
                kind=tail[0],
                source=_plain(tail[1]),
                device=words[2],
                flags=frozenset(flags),
            )
        )
    return found


def _block_name(system: SystemView, mount: Mount) -> str | None:
    """Name of the whole disk in /sys/block: by device number where /sys shows it, else by the source's name."""
    place = f"/sys/dev/block/{mount.device}"
    found = posixpath.basename(system.link(place) or "") or posixpath.basename(mount.source)
    disks = system.names("/sys/block")
    if found in disks:
        return found
    # A partition is its disk's name and a number: sda1, nvme0n1p2, mmcblk0p1.
    for disk in sorted(disks, key=len, reverse=True):
        if re.fullmatch(re.escape(disk) + r"p?\d+", found):
            return disk
    return None


def _plain(text: str) -> str:
    """Undoes the octal escapes of blanks, tabs, line ends and backslashes."""
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)
