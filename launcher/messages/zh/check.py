"""Simplified Chinese: `--check`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "check-ready": "就绪：{ready}",
    "check-largest": "能容纳的最大上下文：{context}",
    "check-backend": "后端：{backend}",
    "check-next": "建议：{text}",
    "check-board": "{name}",
    "check-board-unknown": "主板没有给出名称",
    "check-cpu": "{machine}，内核：{kernels}",
    "check-cpu-next": "这个处理器没有 AVX2 或点积指令；可以运行，但很慢",
    "check-cpu-features": "{machine}，特性：{features}",
    "check-npu-none": "没有 NPU：使用 CPU 后端",
    "check-npu-unused": "NPU 在 {place}；这个版本用 CPU 计算",
    "check-runtime": "{version}，接口 {abi}，{path}",
    "check-memory": "可用 {available}，共 {total}",
    "check-memory-limited": "可用 {available}，共 {total}，cgroup 上限 {limit}",
    "check-memory-unknown": "无法读取 /proc/meminfo",
    "check-package": "{name}：{size}，{layers} 层，{experts} 个专家，上下文最大 {context}，{path}",
    "check-package-mtp": "{name}：{size}，{layers} 层加 MTP，{experts} 个专家，上下文最大 {context}，{path}",
    "check-package-none": "没有指定；用 --model FILE.l3r 或 --demo 检查",
    "check-package-unread": "没有引擎，未打开",
}
