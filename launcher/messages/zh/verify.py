"""Simplified Chinese: `--verify`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "verify-progress": "正在校验 {name}",
    "verify-title": "{folder}，依据 {sources}",
    "verify-title-release": "{model} {release}，位于 {folder}，依据 {sources}",
    "verify-signature-valid": "签名：有效，密钥 {key}（{use}）：{comment}",
    "verify-signature-none": "签名：无",
    "verify-signature-no-key": "签名：未检查",
    "verify-key-release": "发布密钥",
    "verify-key-recovery": "恢复密钥",
    "verify-missing": "缺少（{count}）：",
    "verify-changed": "内容不符（{count}）：",
    "verify-expected": "应为 {sha256}，{size} 字节",
    "verify-found": "实为 {sha256}，{size} 字节",
    "verify-unreadable": "无法读取（{count}）：",
    "verify-reason-link-leaves-folder": "链接指向目录之外",
    "verify-reason-link-loop": "链接成环",
    "verify-reason-not-a-regular-file": "不是普通文件",
    "verify-reason-changed-while-read": "读取时被改动",
    "verify-reason-no-permission": "没有读取权限",
    "verify-reason-read-error": "读取出错，请检查磁盘",
    "verify-extra": "不属于这个发布（{count}）：",
    "verify-warning": "警告：{text}",
    "verify-warning-no-list": "没有 SHA256SUMS；只有 {source} 说明这里应有哪些文件",
    "verify-warning-unsigned": "这个发布没有签名；只能说明文件完整，不能说明由谁制作",
    "verify-warning-no-key": "本程序没有可用来检查签名的密钥；无法确认由谁制作",
    "verify-warning-unlisted-manifest": "{source} 没有列出 MANIFEST.json，因此没有使用它",
    "verify-warning-tolerated": "{source} 与 sha256sum 的写法不同（{kinds}），sha256sum -c 可能会失败",
    "verify-warning-absent": "这里没有 {absent}，模型也不需要它",
    "verify-warning-extra": "有 {count} 个文件不属于这个发布",
    "verify-intact": "完好：{files} 个文件中的 {intact} 个，共校验 {size}",
    "verify-damaged": "已损坏：{files} 个文件中只有 {intact} 个完好，共校验 {size}",
    "verify-damaged-next": "建议：重新获取缺少和内容不符的文件，然后再次校验",
    "verify-links-next": "建议：获取文件本身，而不是指向缓存的链接；从 Hugging Face 下载请用："
    "hf download ORG/NAME --local-dir DIR",
    "verify-strict": "未通过：使用 --strict 时警告按失败处理",
}
