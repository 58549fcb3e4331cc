"""Simplified Chinese: `--check`: the verdict, the runtime, the package, the network and the NPU's self test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "check-ready": "就绪：{ready}",
    "check-largest": "能容纳的最大上下文：{context}",
    "check-backend": "后端：{backend}",
    "check-next": "建议：{text}",
    # engine and Rockchip runtime
    "check-runtime-engine": "{version}，接口 {abi}，内核 {kernels}，SHA-256 由 {sha256} 计算，{path}",
    "check-runtime-engine-missing": "无法加载引擎库：{message}",
    "check-runtime-engine-missing-next": "{hint}",
    "check-runtime-rknn": "librknnrt {version}（{build}），sha256 {sha256}，{path}",
    "check-runtime-rknn-old": "librknnrt {version}（{build}）太旧：没有内存域和 INT4，K 最大 4096；"
    "sha256 {sha256}，{path}",
    "check-runtime-rknn-old-next": "使用 librknnrt 2.3.2",
    "check-runtime-rknn-broken": "已知 librknnrt {version}（{build}）会算错或崩溃；sha256 {sha256}，{path}",
    "check-runtime-rknn-broken-next": "使用 librknnrt 2.3.2",
    "check-runtime-rknn-unknown": "本程序不了解 librknnrt {version}（{build}）；sha256 {sha256}，{path}",
    "check-runtime-rknn-unknown-next": "用 mindnano-infer --check=deep 在这块板上测试；已知 2.3.2 可用",
    "check-runtime-rknn-none": "这个版本不带 Rockchip 运行库，用 CPU 计算不需要它",
    "check-runtime-rknn-relative": "{variable} 是 {path}，不是绝对路径，因此不用",
    "check-runtime-rknn-relative-next": "在 {variable} 中给出 librknnrt.so 的完整路径",
    "check-runtime-rknn-missing": "无法读取 Rockchip 运行库：{path}",
    "check-runtime-rknn-missing-next": "检查路径和权限",
    "check-runtime-rknn-damaged": "Rockchip 运行库已损坏：{trouble}；sha256 {sha256}，{path}",
    "check-runtime-rknn-damaged-next": "重新复制这个文件",
    "check-runtime-rknn-foreign": "Rockchip 运行库用于 {machine}，本机是 {expected}：{path}",
    "check-runtime-rknn-foreign-next": "换用 {expected} 的文件",
    "check-runtime-rknn-symbols": "librknnrt {version} 缺少 {missing}；sha256 {sha256}，{path}",
    "check-runtime-rknn-symbols-next": "使用 librknnrt 2.3.2",
    "check-runtime-rknn-system": "系统在 {path} 有 librknnrt {version}，不使用",
    # package
    "check-package": "{name}：{size}，{layers} 层，{experts} 个专家，上下文最大 {context}，{path}",
    "check-package-mtp": "{name}：{size}，{layers} 层加 MTP，{experts} 个专家，上下文最大 {context}，{path}",
    "check-package-none": "没有指定",
    "check-package-none-next": "mindnano-infer --demo 试用内置模型；--model FILE.l3r 指定模型包",
    "check-package-unread": "没有引擎，未打开：{path}",
    "check-package-unusable": "{message}",
    "check-package-unusable-next": "{hint}",
    "check-package-verified": "内容与清单一致",
    "check-package-unverified": "内容尚未与清单比较",
    "check-package-unverified-next": "mindnano-infer --verify",
    "check-package-no-manifest": "旁边没有可供比较的 MANIFEST.json",
    "check-package-hashed": "每一段的摘要都与模型包所写的一致（{size}）",
    # network
    "check-network-port-free": "{address} 空闲",
    "check-network-port-taken": "端口 {port} 已被占用（{address}）",
    "check-network-port-taken-next": "ss -ltnp 'sport = :{port}' 显示占用者；--port 另选端口",
    "check-network-port-privileged": "端口 {port} 需要特权（{error}，{address}）",
    "check-network-port-privileged-next": "--port 9092，或 1023 以上的其他端口",
    "check-network-address-foreign": "{address} 不是本机的地址（{error}）",
    "check-network-address-foreign-next": "ip -brief address 列出本机的地址",
    "check-network-port-unusable": "{address} 无法使用（{error}）",
    "check-network-port-unusable-next": "--host 127.0.0.1",
    "check-network-lan": "其他机器可以访问 {address}",
    "check-network-lan-next": "在那里提供服务需要 --api-key；--host 127.0.0.1 只供本机使用",
    # bug reports
    "check-report-title": "mindnano-infer {version}：用于报告问题的文字",
    "check-report-note": "不含人名、主机名、地址、序列号和文件夹",
}
