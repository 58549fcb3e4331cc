"""English: `--check`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "check-ready": "ready: {ready}",
    "check-largest": "largest context that fits: {context}",
    "check-backend": "backend: {backend}",
    "check-next": "next: {text}",
    "check-board": "{name}",
    "check-board-unknown": "the board does not say its name",
    "check-cpu": "{machine}, kernels: {kernels}",
    "check-cpu-next": "this processor lacks AVX2 or dot products; it works, but slowly",
    "check-cpu-features": "{machine}, features: {features}",
    "check-npu-none": "no NPU: CPU backend",
    "check-npu-unused": "an NPU is at {place}; this version computes on the CPU",
    "check-runtime": "{version}, interface {abi}, {path}",
    "check-memory": "{available} available of {total}",
    "check-memory-limited": "{available} available of {total}, cgroup limit {limit}",
    "check-memory-unknown": "/proc/meminfo cannot be read",
    "check-package": "{name}: {size}, {layers} layers, {experts} experts, context up to {context}, {path}",
    "check-package-mtp": "{name}: {size}, {layers} layers and MTP, {experts} experts, context up to {context}, {path}",
    "check-package-none": "none named; --model FILE.l3r or --demo checks one",
    "check-package-unread": "not opened without the engine",
}
