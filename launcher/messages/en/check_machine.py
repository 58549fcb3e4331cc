"""English: what `--check` says about the board, the processor, the NPU and the C library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_GROUPS = "sudo usermod -aG {groups} $USER, then log in again"
_IMAGE = "the driver is part of the kernel: update the board's image or its vendor kernel"

TEXTS: Final[Mapping[str, str]] = {
    # board
    "check-board-known": "{model}, {soc}",
    "check-board-other": "{model}: not an RK3588",
    "check-board-unknown": "the board does not say its name",
    "check-board-assumed": "{model}, {soc} as --assume-board says",
    "check-board-masked": (
        "{model}, {soc} by its NPU or processor: the device tree cannot be read here (container: {container}), "
        "and Rockchip's runtime reads it"
    ),
    "check-board-masked-next": (
        "start the container with --security-opt systempaths=unconfined (Kubernetes: procMount: Unmasked), "
        "or name the SoC: --assume-board {soc}"
    ),
    "check-board-hidden": "the device tree cannot be read here (container: {container}), so the board is unknown",
    "check-board-hidden-next": (
        "start the container with --security-opt systempaths=unconfined (Kubernetes: procMount: Unmasked), "
        "or name the SoC: --assume-board RK3588"
    ),
    "check-board-assumption-unused": "--assume-board {asked} is not used: the machine says {soc} itself",
    "check-board-assumption-unknown": "--assume-board {asked} names no SoC with this NPU",
    "check-board-assumption-unknown-next": "one of {names}",
    "check-board-container": "in a container ({container})",
    "check-board-binned": "{soc}: an RK3588 with parts switched off, {cores} processor cores; it works, but slower",
    "check-board-fewer-cores": (
        "{soc} with {cores} of {full} processor cores: perhaps an RK3582, or cores that the boot loader keeps off"
    ),
    "check-board-ddr": "memory clock {mhz} of {max_mhz} MHz ({governor})",
    "check-board-ddr-slow": (
        "memory clock {mhz} of {max_mhz} MHz ({percent} %, {governor}): 528 instead of 2112 MHz was measured "
        "to halve the speed of answers"
    ),
    "check-board-ddr-slow-next": "echo performance | sudo tee {folder}/governor",
    "check-board-ddr-fixed": "memory clock unknown: the kernel has no dmc device, so the boot loader's clock stays",
    "check-board-hot": "{zone} is at {degrees} °C, at or above {limit} °C, where the kernel slows down",
    "check-board-hot-next": "cool the board: a heat sink, a fan, or air",
    # processor
    "check-cpu-machine": "the processor is {machine}, expected x86_64 or aarch64",
    "check-cpu-machine-next": "use a 64-bit x86 or Arm system",
    "check-cpu-cores": "{machine}, {big} big and {little} little cores; used: {used}",
    "check-cpu-cores-alike": "{machine}, {count} cores; used: {used}",
    "check-cpu-cores-unknown": "{machine}; /sys/devices/system/cpu cannot be read",
    "check-cpu-kernels": "kernels: {kernels}",
    "check-cpu-kernels-slow": "kernels: {kernels}: this processor lacks AVX2 or dot products; it works, but slowly",
    "check-cpu-features": "instructions: {features}",
    "check-cpu-features-missing": "instructions missing: {missing}; it works, but slowly",
    "check-cpu-features-unknown": "/proc/cpuinfo cannot be read",
    "check-cpu-offline": "cores {cores} are offline",
    "check-cpu-offline-next": "{commands}",
    "check-cpu-affinity": "this process may use cores {allowed} only, not {forbidden}",
    "check-cpu-affinity-next": "lift the limit: taskset, CPUAffinity= of a service, --cpuset-cpus of a container",
    "check-cpu-clock": "cores {cores}: {mhz} of {max_mhz} MHz ({governor})",
    "check-cpu-governor": "cores {cores}: {mhz} of {max_mhz} MHz, held low by the governor {governor}",
    "check-cpu-governor-next": "{command}",
    "check-cpu-capped": "cores {cores}: at most {allowed_mhz} of {max_mhz} MHz are allowed (now {mhz}, {governor})",
    "check-cpu-capped-next": "{command}",
    # NPU
    "check-npu-none": "no NPU: CPU backend",
    "check-npu-missing": "this machine has no NPU; backend used: {backend}",
    "check-npu-missing-next": "--mla-backend auto or cpu",
    "check-npu-hidden": "nothing here shows whether there is an NPU; backend used: {backend}",
    "check-npu-hidden-next": "on an RK3588: hand in its device (--device /dev/dri) and give --assume-board RK3588",
    "check-npu-driver": "rknpu {version} ({world}) at {node}, {cores} cores, kernel {kernel}",
    "check-npu-driver-older": "rknpu {version} ({world}) at {node}, {cores} cores, kernel {kernel}; 0.9.8 is better",
    "check-npu-driver-older-next": _IMAGE,
    "check-npu-driver-cores": (
        "rknpu {version} ({world}) at {node}, {cores} cores, kernel {kernel}: the second and third core were seen "
        "to fail with it, and it has no memory domains (0.9.6)"
    ),
    "check-npu-driver-cores-next": "--check=deep tests every core; " + _IMAGE,
    "check-npu-driver-domains": (
        "rknpu {version} ({world}) at {node}, {cores} cores, kernel {kernel}: no memory domains (0.9.6), so the NPU "
        "sees less than 4 GiB"
    ),
    "check-npu-driver-domains-next": _IMAGE,
    "check-npu-driver-int8": (
        "rknpu {version} ({world}) at {node}, {cores} cores, kernel {kernel}: int8 products were seen to fail with it, "
        "and it has no memory domains (0.9.6), so the NPU sees less than 4 GiB"
    ),
    "check-npu-driver-int8-next": "--check=deep tests it; " + _IMAGE,
    "check-npu-driver-unusable": (
        "rknpu {version} ({world}), kernel {kernel}: too old, the runtime needs 0.7.0; backend used: {backend}"
    ),
    "check-npu-driver-unusable-next": _IMAGE,
    "check-npu-nodes": "nodes: {nodes}",
    "check-npu-nodes-partly": "only some nodes open: {nodes}",
    "check-npu-nodes-partly-next": _GROUPS,
    "check-npu-nodes-login": "only some nodes open: {nodes}; the groups ({groups}) are given, but not to this session",
    "check-npu-nodes-login-next": "log in again",
    "check-npu-access": "no permission: {nodes}; you are not in {groups}; backend used: {backend}",
    "check-npu-access-next": _GROUPS,
    "check-npu-access-login": (
        "no permission: {nodes}; you were added to {groups} after this session began; backend used: {backend}"
    ),
    "check-npu-access-login-next": "log in again",
    "check-npu-access-root": "no permission: {nodes}: no group may open them; backend used: {backend}",
    "check-npu-access-root-next": (
        'echo \'SUBSYSTEM=="drm", GROUP="video", MODE="0660"\' | sudo tee /etc/udev/rules.d/90-npu.rules, then '
        "sudo udevadm trigger"
    ),
    "check-npu-access-container": (
        "no permission in the container: {nodes}; its user is not in {groups}; backend used: {backend}"
    ),
    "check-npu-access-container-next": "start the container with {gids}",
    "check-npu-access-denied": (
        "no permission: {nodes}, although the groups allow it (SELinux, AppArmor or a sandbox); backend used: {backend}"
    ),
    "check-npu-access-denied-next": "sudo dmesg | grep -i denied",
    "check-npu-refused": (
        "device rules of a container or a service refuse the NPU ({error}): {nodes}; backend used: {backend}"
    ),
    "check-npu-refused-next": (
        "docker run --device /dev/dri instead of a bind mount or mknod; DeviceAllow=char-drm rw in a service"
    ),
    "check-npu-container": "the NPU is there, but not handed to this container; backend used: {backend}",
    "check-npu-container-next": "start the container with --device /dev/dri",
    "check-npu-kubernetes": "the NPU is there, but not handed to this pod; backend used: {backend}",
    "check-npu-kubernetes-next": (
        "request it from a device plugin for /dev/dri, or mount /dev/dri in a privileged container"
    ),
    "check-npu-node-missing": "rknpu is bound (kernel {kernel}), but /dev has no node for it; backend used: {backend}",
    "check-npu-node-missing-next": "sudo udevadm trigger, or see that /dev is a devtmpfs",
    "check-npu-open": "the NPU cannot be opened ({error}): {nodes}; backend used: {backend}",
    "check-npu-open-next": "sudo dmesg | grep -i npu",
    "check-npu-timeout": "the NPU did not answer ({error}): {nodes}; backend used: {backend}",
    "check-npu-timeout-next": "switch the board off and on; if it stays so, sudo dmesg | grep -i npu",
    "check-npu-foreign": "{nodes}: another driver answers ({error}), not rknpu; backend used: {backend}",
    "check-npu-foreign-next": "sudo dmesg | grep -i npu; a stale or hand-made node in /dev can be removed",
    "check-npu-no-answer": "rknpu at {nodes} answers {error}; backend used: {backend}",
    "check-npu-no-answer-next": "sudo dmesg | grep -i npu",
    "check-npu-other": (
        "{soc}: another NPU (hardware {hardware}, rknpu {version}), not an RK3588's; backend used: {backend}"
    ),
    "check-npu-misc": (
        "rknpu {version} at /dev/rknpu only, kernel {kernel}: this kernel was built without the driver's DRM node, "
        "which the runtime needs; backend used: {backend}"
    ),
    "check-npu-misc-next": "use an image whose kernel has CONFIG_ROCKCHIP_RKNPU_DRM_GEM",
    "check-npu-rocket": (
        "mainline's driver rocket has the NPU ({nodes}), kernel {kernel}; Rockchip's runtime needs the vendor's rknpu "
        "(and without devfreq the NPU stays at 200 MHz); backend used: {backend}"
    ),
    "check-npu-rocket-next": "use a vendor kernel 6.1, or an rknpu module built for this kernel instead of rocket",
    "check-npu-no-driver": (
        "kernel {kernel} has no driver for the NPU: the device tree has it, nothing drives it; backend used: {backend}"
    ),
    "check-npu-no-driver-next": "use the board's vendor kernel, or load its module: sudo modprobe rknpu",
    "check-npu-disabled": "the NPU is switched off in the device tree (kernel {kernel}); backend used: {backend}",
    "check-npu-disabled-next": "switch its overlay on (rsetup on Radxa, armbian-config on Armbian) and reboot",
    "check-npu-not-described": "kernel {kernel} does not know the NPU of the {soc}; backend used: {backend}",
    "check-npu-not-described-next": "use the board's vendor kernel 6.1",
    "check-npu-symlink": "/dev/rknpu leads to {target}: programs take it for another device and get ENOTTY",
    "check-npu-symlink-next": "sudo rm /dev/rknpu, and the udev rule that makes it",
    "check-npu-cores": "{cores} of {full} NPU cores ({soc})",
    "check-npu-no-iommu": "the NPU works without an IOMMU: its memory must come from CMA, which is small",
    "check-npu-clock": "NPU clock {mhz} of {max_mhz} MHz ({governor})",
    "check-npu-clock-slow": "NPU clock {mhz} of {max_mhz} MHz, {allowed_mhz} allowed ({governor})",
    "check-npu-clock-slow-next": "echo performance | sudo tee {folder}/governor",
    "check-npu-clock-fixed": "NPU clock {mhz} MHz, fixed: the kernel has no devfreq for it",
    "check-npu-clock-unknown": "NPU clock unknown: the kernel has no devfreq for it",
    "check-npu-held": "the NPU is also open in: {holders} ({count}); two at once can crash the kernel",
    "check-npu-held-next": "stop what holds it",
    "check-npu-log": "the kernel's last line about it: {line}",
    "check-npu-log-trouble": "the kernel's last line about it: {line}",
    "check-npu-log-unread": "the kernel's log cannot be read",
    "check-npu-log-unread-next": "sudo dmesg | grep -i npu",
    # C library
    "check-libc-glibc": "glibc {version}, needed {floor}",
    "check-libc-glibc-old": "glibc {version}: the released program needs {floor}",
    "check-libc-glibc-old-next": "use Debian 10, Ubuntu 20.04 or newer",
    "check-libc-musl": "musl ({loader}); fine for the CPU backend",
    "check-libc-musl-npu": "musl ({loader}): Rockchip's runtime needs glibc; backend used: {backend}",
    "check-libc-musl-npu-next": "use a Debian or Ubuntu image, container or chroot",
    "check-libc-unknown": "the C library does not say its name",
    "check-libc-stdcxx": "{path}",
    "check-libc-stdcxx-old": "{path} is {version}; Rockchip's runtime needs 6.0.22 (GCC 6.1)",
    "check-libc-stdcxx-old-next": "use a newer image",
    "check-libc-stdcxx-missing": "libstdc++.so.6 is missing; Rockchip's runtime needs it",
    "check-libc-stdcxx-missing-next": "sudo apt install libstdc++6",
}
