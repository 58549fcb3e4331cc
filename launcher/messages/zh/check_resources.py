"""Simplified Chinese: `--check`: memory, limits and storage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    # memory
    "check-memory": "可用 {available}，共 {total}",
    "check-memory-unknown": "无法读取 /proc/meminfo",
    "check-memory-small": "可用 {available}，共 {total}；发布的模型约需 {need}",
    "check-memory-small-next": "使用 8 GB 或更大的板；这里可以运行 mindnano-infer --demo",
    "check-memory-enough": "可用 {available}，共 {total}；上下文 {context} 需要 {need}",
    "check-memory-tight": "可用 {available}，共 {total}；上下文 {context} 需要 {need}，留给其他程序的很少",
    "check-memory-tight-next": "关闭其他程序，或用较小的 --context",
    "check-memory-context": "可用 {available}，共 {total}；上下文 {context} 需要 {need}",
    "check-memory-context-next": "--context {largest}",
    "check-memory-machine": "可用 {available}，共 {total}；模型需要 {need}，超过本机内存",
    "check-memory-machine-next": "使用内存更大的板，或较小的模型；这里可以运行 mindnano-infer --demo",
    "check-memory-busy": "可用 {available}，共 {total}；模型需要 {need}",
    "check-memory-busy-next": "关闭其他程序，或提高内存上限；ps -eo rss,comm --sort=-rss 显示内存占用",
    "check-memory-cgroup": "控制组把本进程限制为 {limit}（共 {total}）：{group}",
    "check-memory-no-swap": "没有交换空间，也不需要",
    "check-memory-swap": "交换空间 {swap}；NPU 缓冲区不能换出",
    "check-memory-zram": "交换空间 {swap}，其中 zram {zram}，它本身占用内存（现在 {used}）；NPU 缓冲区不能换出",
    "check-memory-cma": "CMA：空闲 {free}，共 {total}，用于没有 IOMMU 的 NPU",
    "check-memory-cma-unneeded": "CMA：可用 {free}，共 {total}；这里不需要它",
    "check-memory-cma-small": "CMA：空闲只有 {free}，共 {total}，而这个 NPU 没有 IOMMU",
    "check-memory-cma-small-next": "用 cma=512M 启动内核，或换用打开了 NPU IOMMU 的系统镜像",
    "check-memory-npu-domains": "权重（{weights}）放得进 {domains} 个 NPU 地址空间中的 {used} 个：{per_domain}",
    "check-memory-npu-domain-single": "驱动 {driver} 只有一个 4 GB 的 NPU 地址空间；{buffer} 有 {missing} 放不下"
    "（共 {weights}），空闲 {free}",
    "check-memory-npu-domain-single-next": "更新系统镜像：驱动是内核的一部分，0.9.6 起有 16 个；CPU 不需要",
    "check-memory-npu-domains-small": "{buffer} 有 {missing}（共 {weights}）放不进 {domains} 个 NPU 地址空间，"
    "空闲 {free}",
    "check-memory-npu-domains-small-next": "使用较小的模型；CPU 不需要这种地址空间",
    # limits
    "check-limits-unknown": "/proc/self/limits 没有说明打开文件数",
    "check-limits-files": "打开文件数：{soft}，需要 {need}，足够",
    "check-limits-files-raised": "打开文件数：{soft}；NPU 需要 {need} 时可提高到 {hard}",
    "check-limits-files-few": "打开文件数：{soft}，最多 {hard}；NPU 需要 {need}"
    "（每个乘积两个，每个缓冲区一个），不够时其运行库会崩溃",
    "check-limits-files-few-next": "启动前以 root 运行 ulimit -n {need}，或在 systemd 单元中写 LimitNOFILE={need}",
    "check-limits-memlock": "锁定内存：{soft}，最多 {hard}；本程序不锁定内存",
    "check-limits-address-space": "地址空间：{soft}；更大的模型无法映射",
    "check-limits-address-space-next": "ulimit -v unlimited",
    "check-limits-address-space-small": "地址空间：{soft}，模型需要 {need}",
    "check-limits-address-space-small-next": "ulimit -v unlimited",
    "check-limits-address-space-enough": "地址空间：{soft}，模型需要 {need}",
    "check-limits-core": "核心转储最大 {soft}；本程序的转储可能和模型一样大",
    "check-limits-core-next": "ulimit -c 0",
    # storage
    "check-storage-unknown": "对 {path} 一无所知",
    "check-storage-model": "模型文件夹：空闲 {free}，{medium}，{path}",
    "check-storage-model-full": "模型文件夹：空闲 {free}，模型需要 {need}；{medium}，{path}",
    "check-storage-model-full-next": "释放一些空间，或用 --model-dir 另选文件夹",
    "check-storage-model-read-only": "模型文件夹：{path} 不能写入（{filesystem}）",
    "check-storage-model-read-only-next": "用 --model-dir 另选文件夹",
    "check-storage-cache": "缓存文件夹：空闲 {free}，{medium}，{path}",
    "check-storage-cache-none": "缓存文件夹：XDG_CACHE_HOME 和 HOME 都没有指定，因此什么都不会记住",
    "check-storage-cache-none-next": "把 XDG_CACHE_HOME 设为可写的文件夹",
    "check-storage-cache-full": "缓存文件夹：空闲只有 {free}，需要 {need}；{path}",
    "check-storage-cache-full-next": "释放一些空间，或把 XDG_CACHE_HOME 设为其他文件夹",
    "check-storage-cache-read-only": "缓存文件夹：{path} 不能写入，因此什么都不会记住",
    "check-storage-cache-read-only-next": "把 XDG_CACHE_HOME 设为可写的文件夹",
    "check-storage-cache-noexec": "缓存文件夹：{path} 以 noexec 挂载；"
    "单文件程序解开的库不能从那里加载（源码目录不解开任何库）",
    "check-storage-cache-noexec-next": "把 XDG_CACHE_HOME 设为没有 noexec 的文件夹",
    "check-storage-temporary": "临时文件夹：空闲 {free}，{medium}，{path}",
    "check-storage-temporary-full": "临时文件夹：空闲只有 {free}，需要 {need}；{path}",
    "check-storage-temporary-full-next": "释放一些空间，或把 TMPDIR 设为其他文件夹",
    "check-storage-temporary-read-only": "临时文件夹：{path} 不能写入",
    "check-storage-temporary-read-only-next": "把 TMPDIR 设为可写的文件夹",
    "check-storage-temporary-noexec": "临时文件夹：{path} 以 noexec 挂载；"
    "单文件程序解开的库不能从那里加载（源码目录不解开任何库）",
    "check-storage-temporary-noexec-next": "把 TMPDIR 设为没有 noexec 的文件夹，例如 TMPDIR=$HOME/tmp",
}
