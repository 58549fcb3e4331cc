"""Simplified Chinese: the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "server-loading": "{url}：正在加载模型",
    "server-ready": "{url}：就绪，模型 {model}，上下文 {context} 个 token，{threads} 个线程，{simd} 内核",
    "server-lan-open": "警告：{host} 对其他机器开放且没有 API 密钥（--allow-lan）",
    "server-key-file-public": "警告：本机所有用户都能读取 {path} 中的 API 密钥：请执行 chmod 600",
    "server-cache": "其他对话的状态最多占用 {cache} MiB（--session-cache-mib）",
    "server-cache-small": "警告：留给其他对话状态的 {cache} MiB 放不下占满 {context} 个 token 上下文的对话："
    "需要 {needed} MiB（--session-cache-mib）",
    "server-no-grammar": "警告：{reason}；要求 JSON 或指定工具的请求会得到 501",
    "server-stopping": "正在停止：正在处理的请求有 {seconds:g} 秒完成；再发一次信号则立即结束",
}
