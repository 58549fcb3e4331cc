"""Simplified Chinese: `--download` and the first start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "download-from": ("来源 {source}\n目标 {path}"),
    "download-label-download": "下载 {name}",
    "download-label-check": "检查 {name} 已有的部分",
    "download-label-copy": "复制 {name}",
    "download-label-verify": "检查 {name} 的内容",
    "download-resume": "从 {done} 处继续。",
    "download-retry": "{reason}。{pause}后重试。",
    "download-restart": "从头开始：{reason}。",
    "download-restart-unknown": "不知道已有的部分来自哪里",
    "download-restart-version": "已有的部分属于文件的另一个版本",
    "download-restart-unproven": "无法证明已有的部分属于这个文件",
    "download-restart-longer": "已有的字节比文件还多",
    "download-restart-server": "服务器发送整个文件",
    "download-restart-range": "服务器没有所要的部分",
    "download-already": "{path} 已经在这里，SHA-256 正确。",
    "download-trust-signed": "每个字节都与发布者签名的内容一致。",
    "download-trust-listed": "每个字节都与来源处的清单一致。该清单没有签名证明。",
    "download-trust-given": "每个字节都与 --sha256 一致。",
    "download-trust-nobody": "警告：没有人为这个文件担保：没有清单，也没有签名。文件本身完整；是否可信取决于来源。",
    "download-unchecked": "警告：有签名，但这个版本没有可用来检查的密钥。",
    "first-start": (
        "还没有模型。可以下载这一个：\n"
        "  来源    {source}\n"
        "  文件    {name}，{size}\n"
        "  文件夹  {folder}，可用空间 {free}\n"
        "其他办法：--download 来源（仓库、网址或文件夹；HF_ENDPOINT 指定镜像）、--model 文件、--demo。"
    ),
    "first-start-ask": "现在下载吗？[y/N] ",
}
