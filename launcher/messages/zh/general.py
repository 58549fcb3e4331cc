"""Simplified Chinese: what several commands say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "reading": "读取输入",
    "tokens": "token",
    "progress-line": "{label}：{percent} %（{details}）",
    "progress-of": "{done} / {total}",
    "progress-left": "剩余 {time}",
    "progress-stopped": "{label}：停在 {percent} %",
    "progress-done": "{label}：完成，{amount}，用时 {time}",
    "exit-codes": (
        "0    正常\n"
        "1    内部错误\n"
        "2    用法错误\n"
        "3    设备或驱动不受支持\n"
        "4    模型包缺失或损坏\n"
        "5    内存或磁盘不足\n"
        "6    网络或下载失败\n"
        "7    端口或实例被占用\n"
        "8    签名或信任问题\n"
        "9    引擎无法加载\n"
        "10   引擎崩溃\n"
        "129  被 SIGHUP 停止（终端已断开）\n"
        "130  被 SIGINT（Ctrl-C）停止\n"
        "143  被 SIGTERM 停止"
    ),
    "yes": "是",
    "no": "否",
    "unknown": "未知",
}
