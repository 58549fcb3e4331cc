"""Simplified Chinese: `--list-contexts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "contexts-title": "{name}：可用 {available}；单位 MiB",
    "contexts-fixed": "与上下文无关的部分",
    "contexts-reserved": "保留",
    "contexts-idle": "空闲",
    "contexts-full": "装满",
    "contexts-weights-mapped": "权重（映射）",
    "contexts-weights-resident": "权重（驻留）",
    "contexts-tables": "分词器及模型包其余部分",
    "contexts-recurrent": "循环状态",
    "contexts-checkpoints": "前缀检查点",
    "contexts-session-cache": "会话缓存",
    "contexts-npu": "NPU 暂存",
    "contexts-mtp": "MTP 权重",
    "contexts-runtime": "程序与 Python",
    "contexts-context": "上下文",
    "contexts-kv": "{kv} 缓存",
    "contexts-scratch": "工作区",
    "contexts-verdict": "结论",
    "contexts-fits": "可容纳",
    "contexts-beyond-package": "- 超过模型包的上限 {limit}",
    "contexts-beyond-native": "* 超过模型自身的 {native}",
    "contexts-largest": "装满时能容纳的最大者：{context}",
    "contexts-none": "都放不下",
}
