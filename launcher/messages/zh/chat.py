"""Simplified Chinese: the chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "chat-banner": "{name}：上下文 {context} 个 token，{threads} 个线程，{simd} 内核。输入 /help 查看命令。",
    "chat-demo": "这是内置的小模型：它证明一切可用，但知道得很少。用 --model FILE.l3r 运行其他模型。",
    "chat-thinking": "思考：",
    "chat-stopped": "（已停止）",
    "chat-length": "（达到 --max-tokens 而截断）",
    "chat-context": "（{context} 个 token 的上下文已满；/reset 开始新的对话）",
    "chat-context-once": "（{context} 个 token 的上下文已满；可用 --context 设得更大）",
    "chat-reset": "开始新的对话。",
    "chat-interrupt": "按 Ctrl-D 或输入 /quit 退出。",
    "chat-unknown": "没有 {command} 这个命令。/help 列出命令；在 / 前加空格则作为文字发送。",
    "chat-think-state": "思考：{state}。",
    "chat-think-usage": "用法：/think on 或 /think off。当前：{state}。",
    "chat-help": (
        "/help            显示这些命令\n"
        "/reset           忘掉对话\n"
        "/stats           速度和内存\n"
        "/think on|off    让模型先思考\n"
        "/save FILE       把对话写入文件\n"
        "/load FILE       从文件继续对话\n"
        "/quit            退出（也可按 Ctrl-D）\n"
        "Ctrl-C 停止回答，保留对话。"
    ),
    "chat-stats": (
        "上下文    {position} / {context} 个 token，会话 {allocated}\n"
        "上次输入  {prompt} 个 token，沿用 {reused} 个，{prefill:.1f} token/秒\n"
        "上次回答  {generated} 个 token，{decode:.1f} token/秒"
    ),
    "chat-stats-plan": "内存      预计加载后 {predicted}，上下文装满时 {full}",
    "chat-stats-memory": (
        "内存      加载后预计 {predicted}，实测 {measured}（未计入 {unaccounted}）\n"
        "          现在 {now}，上下文装满时预计 {full}"
    ),
    "chat-file-usage": "用法：{command} FILE",
    "chat-saved": "已把 {turns} 轮对话保存到 {path}。",
    "chat-loaded": "已从 {path} 读入 {turns} 轮对话。",
    "chat-log-lost": "警告：日志 {path} 到此为止：{reason}",
    "chat-loading": "加载",
    "chat-not-loaded": "权重（{weights}）大于可用内存（{available}）：现在不加载，用到时再从磁盘读取，会很慢。",
}
