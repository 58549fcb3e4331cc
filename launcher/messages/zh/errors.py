"""Simplified Chinese: errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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
    "config-unreadable": ("无法读取配置文件", "改正文件权限或删除它"),
    "config-invalid": ("配置文件无效", "改正或删除它"),
    "config-unknown": ("没有这个选项", ""),
    "config-value": ("配置的值无效", "运行 mindnano-infer --help 查看可用的值"),
    "unit-value": ("这个值不能写进 systemd 单元", ""),
    "server-missing": ("这个版本还没有服务器", "去掉 --no-console"),
}
