"""Simplified Chinese: what the portable program carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "payload-list-elf": "{size:>12}  {sha256}  （程序本身）",
    "payload-unpacked": "已将 {count} 个文件解到 {folder}",
    "self-sound": "完好  {name}（{size} 字节）",
    "self-damaged": "损坏  {name}（{size} 字节）",
    "self-verified": "程序文件完整：{size} 字节，封印 {sha256}。",
}
