"""Simplified Chinese: what `--check` says about the board, the processor, the NPU and the C library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_GROUPS = "sudo usermod -aG {groups} $USER，然后重新登录"
_IMAGE = "驱动是内核的一部分：请更新板子的镜像或厂商内核"

TEXTS: Final[Mapping[str, str]] = {
    # board
    "check-board-known": "{model}，{soc}",
    "check-board-other": "{model}：不是 RK3588",
    "check-board-unknown": "主板没有给出名称",
    "check-board-assumed": "{model}，按 --assume-board 视为 {soc}",
    "check-board-masked": (
        "{model}，由 NPU 或处理器得知是 {soc}：这里读不到设备树（容器：{container}），而 Rockchip 运行库要读它"
    ),
    "check-board-masked-next": (
        "启动容器时加 --security-opt systempaths=unconfined（Kubernetes：procMount: Unmasked），"
        "或指明 SoC：--assume-board {soc}"
    ),
    "check-board-hidden": "这里读不到设备树（容器：{container}），无法得知是什么板子",
    "check-board-hidden-next": (
        "启动容器时加 --security-opt systempaths=unconfined（Kubernetes：procMount: Unmasked），"
        "或指明 SoC：--assume-board RK3588"
    ),
    "check-board-assumption-unused": "--assume-board {asked} 没有采用：机器自己说是 {soc}",
    "check-board-assumption-unknown": "--assume-board {asked} 不是带有这种 NPU 的 SoC",
    "check-board-assumption-unknown-next": "可选：{names}",
    "check-board-container": "在容器中（{container}）",
    "check-board-binned": "{soc}：部分单元被关闭的 RK3588，{cores} 个处理器核心；可以运行，但较慢",
    "check-board-fewer-cores": "{soc} 只有 {cores} 个处理器核心（应为 {full}）：可能是 RK3582，或被引导程序关闭",
    "check-board-ddr": "内存频率 {mhz} / {max_mhz} MHz（{governor}）",
    "check-board-ddr-slow": (
        "内存频率 {mhz} / {max_mhz} MHz（{percent} %，{governor}）：实测 528 而非 2112 MHz 时回答速度减半"
    ),
    "check-board-ddr-slow-next": "echo performance | sudo tee {folder}/governor",
    "check-board-ddr-fixed": "内存频率未知：内核没有 dmc 设备，保持引导程序设定的频率",
    "check-board-hot": "{zone} 为 {degrees} °C，达到 {limit} °C，内核会降频",
    "check-board-hot-next": "给板子散热：散热片、风扇或通风",
    # processor
    "check-cpu-machine": "处理器是 {machine}，应为 x86_64 或 aarch64",
    "check-cpu-machine-next": "请使用 64 位 x86 或 Arm 系统",
    "check-cpu-cores": "{machine}，{big} 个大核，{little} 个小核；使用：{used}",
    "check-cpu-cores-alike": "{machine}，{count} 个核心；使用：{used}",
    "check-cpu-cores-unknown": "{machine}；无法读取 /sys/devices/system/cpu",
    "check-cpu-kernels": "内核函数：{kernels}",
    "check-cpu-kernels-slow": "内核函数：{kernels}：这个处理器没有 AVX2 或点积指令；可以运行，但很慢",
    "check-cpu-features": "指令：{features}",
    "check-cpu-features-missing": "缺少指令：{missing}；可以运行，但很慢",
    "check-cpu-features-unknown": "无法读取 /proc/cpuinfo",
    "check-cpu-offline": "核心 {cores} 处于离线状态",
    "check-cpu-offline-next": "{commands}",
    "check-cpu-affinity": "本进程只能使用核心 {allowed}，不能使用 {forbidden}",
    "check-cpu-affinity-next": "解除限制：taskset、服务的 CPUAffinity=，或容器的 --cpuset-cpus",
    "check-cpu-clock": "核心 {cores}：{mhz} / {max_mhz} MHz（{governor}）",
    "check-cpu-governor": "核心 {cores}：{mhz} / {max_mhz} MHz，被调速器 {governor} 压低",
    "check-cpu-governor-next": "{command}",
    "check-cpu-capped": "核心 {cores}：最高只允许 {allowed_mhz} / {max_mhz} MHz（当前 {mhz}，{governor}）",
    "check-cpu-capped-next": "{command}",
    # NPU
    "check-npu-none": "没有 NPU：使用 CPU 后端",
    "check-npu-missing": "这台机器没有 NPU；使用的后端：{backend}",
    "check-npu-missing-next": "--mla-backend auto 或 cpu",
    "check-npu-hidden": "这里看不出有没有 NPU；使用的后端：{backend}",
    "check-npu-hidden-next": "若是 RK3588：交给容器其设备（--device /dev/dri），并加 --assume-board RK3588",
    "check-npu-driver": "rknpu {version}（{world}），{node}，{cores} 个核心，内核 {kernel}",
    "check-npu-driver-older": "rknpu {version}（{world}），{node}，{cores} 个核心，内核 {kernel}：可用，0.9.8 更好",
    "check-npu-driver-older-next": _IMAGE,
    "check-npu-driver-cores": (
        "rknpu {version}（{world}），{node}，{cores} 个核心，内核 {kernel}：有人见到第二、第三个核心出错，"
        "并且没有内存域（0.9.6 起才有）"
    ),
    "check-npu-driver-cores-next": "--check=deep 会测试每个核心；" + _IMAGE,
    "check-npu-driver-domains": (
        "rknpu {version}（{world}），{node}，{cores} 个核心，内核 {kernel}：没有内存域（0.9.6 起才有），"
        "NPU 只看得到不足 4 GiB"
    ),
    "check-npu-driver-domains-next": _IMAGE,
    "check-npu-driver-int8": (
        "rknpu {version}（{world}），{node}，{cores} 个核心，内核 {kernel}：有人见到 int8 乘法出错，"
        "并且没有内存域（0.9.6 起才有），NPU 只看得到不足 4 GiB"
    ),
    "check-npu-driver-int8-next": "--check=deep 会测试它；" + _IMAGE,
    "check-npu-driver-unusable": (
        "rknpu {version}（{world}），内核 {kernel}：太旧，运行库需要 0.7.0；使用的后端：{backend}"
    ),
    "check-npu-driver-unusable-next": _IMAGE,
    "check-npu-nodes": "设备节点：{nodes}",
    "check-npu-nodes-partly": "只有部分节点可以打开：{nodes}",
    "check-npu-nodes-partly-next": _GROUPS,
    "check-npu-nodes-login": "只有部分节点可以打开：{nodes}；已加入组（{groups}），但本次登录尚未生效",
    "check-npu-nodes-login-next": "重新登录",
    "check-npu-access": "没有权限：{nodes}；你不在 {groups} 组中；使用的后端：{backend}",
    "check-npu-access-next": _GROUPS,
    "check-npu-access-login": "没有权限：{nodes}；加入 {groups} 组之后还没有重新登录；使用的后端：{backend}",
    "check-npu-access-login-next": "重新登录",
    "check-npu-access-root": "没有权限：{nodes}：任何组都不能打开；使用的后端：{backend}",
    "check-npu-access-root-next": (
        'echo \'SUBSYSTEM=="drm", GROUP="video", MODE="0660"\' | sudo tee /etc/udev/rules.d/90-npu.rules，'
        "然后 sudo udevadm trigger"
    ),
    "check-npu-access-container": "容器中没有权限：{nodes}；容器用户不在 {groups} 组中；使用的后端：{backend}",
    "check-npu-access-container-next": "启动容器时加 {gids}",
    "check-npu-access-denied": ("没有权限：{nodes}，虽然组是允许的（SELinux、AppArmor 或沙箱）；使用的后端：{backend}"),
    "check-npu-access-denied-next": "sudo dmesg | grep -i denied",
    "check-npu-refused": "容器或服务的设备规则拒绝了 NPU（{error}）：{nodes}；使用的后端：{backend}",
    "check-npu-refused-next": "docker run --device /dev/dri，而不是绑定挂载或 mknod；服务用 DeviceAllow=char-drm rw",
    "check-npu-container": "有 NPU，但没有交给这个容器；使用的后端：{backend}",
    "check-npu-container-next": "启动容器时加 --device /dev/dri",
    "check-npu-kubernetes": "有 NPU，但没有交给这个 Pod；使用的后端：{backend}",
    "check-npu-kubernetes-next": "通过 /dev/dri 的设备插件申请，或在特权容器中挂载 /dev/dri",
    "check-npu-node-missing": "rknpu 已绑定（内核 {kernel}），但 /dev 中没有它的节点；使用的后端：{backend}",
    "check-npu-node-missing-next": "sudo udevadm trigger，或确认 /dev 是 devtmpfs",
    "check-npu-open": "无法打开 NPU（{error}）：{nodes}；使用的后端：{backend}",
    "check-npu-open-next": "sudo dmesg | grep -i npu",
    "check-npu-timeout": "NPU 没有应答（{error}）：{nodes}；使用的后端：{backend}",
    "check-npu-timeout-next": "给板子断电再上电；若仍如此：sudo dmesg | grep -i npu",
    "check-npu-foreign": "{nodes}：应答的是别的驱动（{error}），不是 rknpu；使用的后端：{backend}",
    "check-npu-foreign-next": "sudo dmesg | grep -i npu；/dev 中过时或手工建立的节点可以删除",
    "check-npu-no-answer": "rknpu（{nodes}）答复 {error}；使用的后端：{backend}",
    "check-npu-no-answer-next": "sudo dmesg | grep -i npu",
    "check-npu-other": ("{soc}：另一种 NPU（硬件 {hardware}，rknpu {version}），不是 RK3588 的；使用的后端：{backend}"),
    "check-npu-misc": (
        "rknpu {version} 只有 /dev/rknpu，内核 {kernel}：这个内核编译时没有驱动的 DRM 节点，而运行库需要它；"
        "使用的后端：{backend}"
    ),
    "check-npu-misc-next": "使用内核带有 CONFIG_ROCKCHIP_RKNPU_DRM_GEM 的镜像",
    "check-npu-rocket": (
        "NPU 由主线驱动 rocket 管理（{nodes}），内核 {kernel}；Rockchip 运行库需要厂商的 rknpu"
        "（没有 devfreq 时 NPU 停在 200 MHz）；使用的后端：{backend}"
    ),
    "check-npu-rocket-next": "使用厂商内核 6.1，或为这个内核编译的 rknpu 模块以代替 rocket",
    "check-npu-no-driver": "内核 {kernel} 没有 NPU 驱动：设备树中有它，但没有驱动绑定；使用的后端：{backend}",
    "check-npu-no-driver-next": "使用板子的厂商内核，或加载其模块：sudo modprobe rknpu",
    "check-npu-disabled": "设备树中关闭了 NPU（内核 {kernel}）；使用的后端：{backend}",
    "check-npu-disabled-next": "打开它的 overlay（Radxa 用 rsetup，Armbian 用 armbian-config）并重启",
    "check-npu-not-described": "内核 {kernel} 不认识 {soc} 的 NPU；使用的后端：{backend}",
    "check-npu-not-described-next": "使用板子的厂商内核 6.1",
    "check-npu-symlink": "/dev/rknpu 指向 {target}：程序会把它当成另一种设备而得到 ENOTTY",
    "check-npu-symlink-next": "sudo rm /dev/rknpu，并删除建立它的 udev 规则",
    "check-npu-cores": "{cores} 个 NPU 核心，完整的有 {full} 个（{soc}）",
    "check-npu-no-iommu": "NPU 没有使用 IOMMU：它的内存只能来自容量很小的 CMA",
    "check-npu-clock": "NPU 频率 {mhz} / {max_mhz} MHz（{governor}）",
    "check-npu-clock-slow": "NPU 频率 {mhz} / {max_mhz} MHz，允许 {allowed_mhz}（{governor}）",
    "check-npu-clock-slow-next": "echo performance | sudo tee {folder}/governor",
    "check-npu-clock-fixed": "NPU 频率固定为 {mhz} MHz：内核没有它的 devfreq",
    "check-npu-clock-unknown": "NPU 频率未知：内核没有它的 devfreq",
    "check-npu-held": "NPU 还被这些进程打开：{holders}（{count} 个）；两个同时使用可能使内核崩溃",
    "check-npu-held-next": "先停止它们",
    "check-npu-log": "内核关于它的最后一行：{line}",
    "check-npu-log-trouble": "内核关于它的最后一行：{line}",
    "check-npu-log-unread": "无法读取内核日志",
    "check-npu-log-unread-next": "sudo dmesg | grep -i npu",
    # C library
    "check-libc-glibc": "glibc {version}，至少需要 {floor}",
    "check-libc-glibc-old": "glibc {version}：发布的程序需要 {floor}",
    "check-libc-glibc-old-next": "使用 Debian 10、Ubuntu 20.04 或更新的系统",
    "check-libc-musl": "musl（{loader}）；可用于 CPU 后端",
    "check-libc-musl-npu": "musl（{loader}）：Rockchip 运行库需要 glibc；使用的后端：{backend}",
    "check-libc-musl-npu-next": "使用 Debian 或 Ubuntu 的镜像、容器或 chroot",
    "check-libc-unknown": "C 库没有给出名称",
    "check-libc-stdcxx": "{path}",
    "check-libc-stdcxx-old": "{path} 是 {version}；Rockchip 运行库需要 6.0.22（GCC 6.1）",
    "check-libc-stdcxx-old-next": "使用较新的镜像",
    "check-libc-stdcxx-missing": "缺少 libstdc++.so.6；Rockchip 运行库需要它",
    "check-libc-stdcxx-missing-next": "sudo apt install libstdc++6",
}
