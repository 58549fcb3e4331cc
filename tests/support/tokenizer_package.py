"""The smallest packages that open: one layer of zeros behind any tokenizer section."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from launcher import engine_abi as abi
from launcher.engine_types import Dtype, ModelConfig, Section
from release.checkpoint.config import FEATURES
from release.checkpoint.tensors import Role, package_tensors
from release.layouts.weights import tensor_bytes
from release.package.l3r import SectionPart, TensorPart, plan_file, write_file


def tokenizer_package(path: Path, section: bytes, token_count: int) -> Path:
    """Writes a package whose tokenizer section is `section`, whatever it holds, and returns its path."""
    config = abi.CConfig(
        vocab_size=token_count,
        token_count=token_count,
        hidden_size=8,
        intermediate_size=8,
        layer_count=1,
        layer_group_size=1,
        head_count=1,
        head_dim=8,
        q_lora_rank=0,
        kv_lora_rank=8,
        qk_nope_head_dim=8,
        qk_rope_head_dim=8,
        v_head_dim=8,
        conv_kernel=4,
        dense_layer_count=1,
        norm_topk_prob=1,
        max_position=64,
        max_context=64,
        stop_count=1,
        bos_id=abi.NO_TOKEN,
        eos_id=0,
        pad_id=abi.NO_TOKEN,
        rms_eps=1e-6,
        rope_theta=10000.0,
        routed_scaling=1.0,
        kda_lower_bound=-5.0,
    )
    sections = {
        Section.CONFIG: ctypes.string_at(ctypes.byref(config), ctypes.sizeof(config)),
        Section.FEATURES: "".join(f"{name}\n" for name in FEATURES).encode(),
        Section.TOKENIZER: section,
        Section.METADATA: b"{}",
    }
    tensors = [
        _zeros(tensor.name, Dtype.F32 if tensor.role is Role.VECTOR else Dtype.F32X8, tensor.shape)
        for tensor in package_tensors(ModelConfig.from_struct(config), with_mtp=False)
    ]
    parts = [
        SectionPart(kind=kind, length=len(data), sha256=hashlib.sha256(data).digest())
        for kind, data in sections.items()
    ]
    writers = [_writer(data) for data in sections.values()]
    writers += [_writer(bytes(tensor.length)) for tensor in tensors]
    with path.open("wb") as file:
        write_file(file, plan_file(parts, tensors), writers)
    return path


def _zeros(name: str, dtype: Dtype, shape: tuple[int, ...]) -> TensorPart:
    length = tensor_bytes(dtype, shape)
    return TensorPart(
        name=name, dtype=dtype, shape=shape, group=0, length=length, sha256=hashlib.sha256(bytes(length)).digest()
    )


def _writer(data: bytes) -> Callable[[BinaryIO], None]:
    def write(file: BinaryIO) -> None:
        file.write(data)

    return write
