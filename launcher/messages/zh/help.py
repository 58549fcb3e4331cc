"""Simplified Chinese: options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "help-description": "在终端里与 Ling-3.0 模型对话，或回答一个问题。",
    "help-epilog": "给出问题，或从标准输入传入文字，就回答一次并退出；否则打开对话。",
    "help-question": "回答这个问题后退出",
    "help-prompt": "与直接写问题相同；文字以短横线开头时用它",
    "help-model": "要运行的模型包",
    "help-demo": "运行内置的小模型，用来证明安装可用",
    "help-think": "让模型先思考再回答（默认：on）",
    "help-system": "放在对话之前的系统文字",
    "help-max-tokens": "回答的最大 token 数（默认：直到上下文用完）",
    "help-temperature": "0 表示总取最可能的 token（默认：模型包自己的值；--demo 时为 0）",
    "help-top-p": "保留概率之和达到此值的最可能的 token；1 表示全部保留",
    "help-top-k": "保留最可能的若干个 token；0 表示全部保留",
    "help-min-p": "去掉概率低于最可能者这一比例的 token；0 表示不去掉",
    "help-repeat-penalty": "降低已出现的 token 的概率；1 表示不变",
    "help-seed": "随机数的起点（默认：每次不同）",
    "help-context": "对话能容纳的 token 数：数字，或 4K 8K 16K 32K 64K 128K 256K（默认：不超过 8K）",
    "help-kv-cache": "注意力缓存的类型（默认：bf16）",
    "help-threads": "计算用的线程数（默认：每个大核一个）",
    "help-force": "即使内存看来不够也启动",
    "help-color": "终端颜色（默认：auto）",
    "help-lang": "消息的语言（默认：MINDNANO_LANG，其次系统区域设置）",
    "help-json": "与 --version、--check 或 --list-contexts 同用：标准输出为一份 JSON",
    "help-version": "显示版本后退出",
    "help-check": "说明这台机器能运行什么、缺少什么，然后退出",
    "help-list-contexts": "列出每种上下文所需的内存与可用内存，然后退出",
    "help-exit-codes": "列出退出码后退出",
    "help-help": "显示本说明后退出",
    "help-group-question": "问题",
    "help-group-model": "模型",
    "help-group-reply": "回答",
    "help-group-resources": "资源",
    "help-group-output": "输出",
    "help-group-inform": "显示信息后退出",
}
