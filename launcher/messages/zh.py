"""Simplified Chinese."""

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
        "/quit            退出（也可按 Ctrl-D）\n"
        "Ctrl-C 停止回答，保留对话。"
    ),
    "chat-stats": (
        "上下文    {position} / {context} 个 token，会话 {allocated}\n"
        "上次输入  {prompt} 个 token，沿用 {reused} 个，{prefill:.1f} token/秒\n"
        "上次回答  {generated} 个 token，{decode:.1f} token/秒"
    ),
    "reading": "读取输入",
    "tokens": "token",
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
        "130  被 SIGINT（Ctrl-C）停止\n"
        "143  被 SIGTERM 停止"
    ),
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
    "yes": "是",
    "no": "否",
    "unknown": "未知",
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

# slug -> (what happened, what to do); an empty second part leaves the English hint in place.
ERRORS: Final[Mapping[str, tuple[str, str]]] = {
    "usage": ("命令行有误", "运行 mindnano-infer --help 查看用法"),
    "no-question": ("没有问题可回答", "把问题写在命令后面，或从标准输入传入"),
    "text-encoding": ("文字不是有效的 Unicode", ""),
    "engine-argument": ("引擎不接受这个参数", ""),
    "package-missing": ("找不到模型包", "检查路径，或用 --demo 运行内置模型"),
    "package-unreadable": ("无法读取模型包", "检查文件权限和磁盘"),
    "package-damaged": ("模型包已损坏或不是模型包", "重新复制或下载模型包"),
    "package-unsupported": ("模型包要求这个引擎没有的功能", "使用更新的引擎或其他模型包"),
    "package-metadata": ("模型包的元数据无效", "重新打包模型"),
    "package-no-template": ("模型包没有对话模板", "用带有对话模板的检查点重新打包"),
    "demo-missing": ("内置模型尚未打包", "运行 scripts/run"),
    "memory": ("内存不足", "用 --context 选较小的上下文，或释放内存"),
    "output-full": ("无法写出：空间不足", "释放一些空间"),
    "memory-plan": ("这个上下文需要的内存多于可用内存", "用 --context 选较小的上下文，或加 --force"),
    "context-too-large": ("模型包不支持这么大的上下文", "用 --context 选较小的上下文"),
    "context-full": ("上下文已满", "用 --context 选更大的上下文；对话中用 /reset 重新开始"),
    "cancelled": ("已停止", ""),
    "template-invalid": ("模型包的对话模板无效", "用可用的模板重新打包"),
    "template-refused": ("对话模板拒绝了这段对话", ""),
    "template-unsafe": ("对话模板试图做不允许的事", "不要使用这个模型包"),
    "template-failed": ("对话模板运行失败", "用可用的模板重新打包"),
    "engine-missing": ("找不到引擎库", "用 python -m engine.build 构建引擎"),
    "engine-load": ("无法加载引擎库", "在本机用 python -m engine.build 重新构建"),
    "engine-abi": ("引擎与本程序的接口版本不同", "从同一份源码构建两者"),
    "engine-symbol": ("引擎库不完整", "用 python -m engine.build 重新构建"),
    "engine-internal": ("引擎出错", "请附上命令报告此问题"),
    "cpu-unsupported": ("这个处理器不受支持", ""),
    "closed-handle": ("内部错误", ""),
    "buffer": ("内部错误", ""),
    "no-logits": ("内部错误", ""),
    "internal": ("内部错误", "请附上命令报告此问题"),
}
