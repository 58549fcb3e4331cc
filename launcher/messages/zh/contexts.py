"""Simplified Chinese: `--list-contexts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "contexts-title": "{name}，{kv} 注意力缓存，可用 {available}",
    "contexts-context": "上下文",
    "contexts-total": "合计",
    "contexts-verdict": "结论",
    "contexts-fits": "可容纳",
    "contexts-beyond-package": "- 超过模型包的上限 {limit}",
    "contexts-beyond-native": "* 超过模型自身的 {native}",
    "contexts-largest": "能容纳的最大者：{context}",
    "contexts-none": "都放不下",
}
