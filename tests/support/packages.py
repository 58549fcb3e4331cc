"""Small random packages of any dimensions and layouts, written from a config without a checkpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from launcher.engine_types import Dtype, ModelConfig, Section
from release.checkpoint.config import FEATURES, config_section
from release.checkpoint.tensors import GROUP_MTP, PackageTensor, Role, package_tensors
from release.layouts.weights import encode, tensor_bytes
from release.package.l3r import FilePlan, SectionPart, TensorPart, plan_file, write_file
from release.package.tokenizer_tables import build_tables
from tests.support.checkpoints import tokenizer_json

TOKENS = 320
"""Ids of the tokenizer; `vocab_size` beyond it is padding."""

INTEGER = ModelConfig(
    vocab_size=328,
    token_count=TOKENS,
    hidden_size=32,
    intermediate_size=64,
    layer_count=2,
    layer_group_size=2,
    head_count=2,
    head_dim=16,
    q_lora_rank=32,
    kv_lora_rank=32,
    qk_nope_head_dim=32,
    qk_rope_head_dim=8,
    v_head_dim=16,
    conv_kernel=4,
    expert_count=4,
    experts_per_token=2,
    expert_group_count=2,
    expert_group_top=1,
    moe_intermediate_size=32,
    shared_intermediate_size=32,
    dense_layer_count=1,
    norm_topk_prob=True,
    mtp_layer_count=1,
    max_position=64,
    max_context=128,
    stop_ids=(TOKENS - 1, TOKENS - 2),
    bos_id=None,
    eos_id=TOKENS - 1,
    pad_id=TOKENS - 2,
    rms_eps=1e-6,
    rope_theta=10000.0,
    routed_scaling=2.5,
    kda_lower_bound=-5.0,
)
"""A KDA layer, an MLA layer and an MTP layer whose every matrix may be quantised."""

ODD = replace(
    INTEGER,
    vocab_size=333,
    hidden_size=24,
    intermediate_size=13,
    head_count=3,
    head_dim=8,
    q_lora_rank=5,
    kv_lora_rank=8,
    qk_nope_head_dim=9,
    v_head_dim=11,
    conv_kernel=3,
    expert_count=6,
    experts_per_token=3,
    expert_group_count=3,
    expert_group_top=2,
    moe_intermediate_size=7,
    shared_intermediate_size=9,
)
"""The same with widths and heights that fill no tile and no vector register."""

Layouts = Callable[[PackageTensor], Dtype]


def uniform(dtype: Dtype) -> Layouts:
    """One layout for all matrices; vectors and router are float32 always."""
    return lambda tensor: dtype


def alternating(tensor: PackageTensor) -> Dtype:
    """Q4 and Q8, experts F32X8 and BF16X8, so that every layout is there."""
    if "experts" in tensor.name:
        return Dtype.BF16X8 if "up_proj" in tensor.name else Dtype.F32X8
    return Dtype.Q4X8 if "_proj" in tensor.name else Dtype.Q8X8


def sections(config: ModelConfig) -> dict[Section, bytes]:
    """All five sections of a package with this config."""
    metadata = {"format": "l3r", "version": 1, "name": "small"}
    return {
        Section.CONFIG: config_section(config),
        Section.FEATURES: "".join(f"{name}\n" for name in FEATURES).encode(),
        Section.TOKENIZER: build_tables(json.dumps(tokenizer_json(config.token_count)).encode()).section,
        Section.CHAT_TEMPLATE: b"{{ messages[0].content }}",
        Section.METADATA: json.dumps(metadata).encode(),
    }


Parts = list[tuple[TensorPart, bytes]]
"""Tensors of a package in their order, each with its encoded bytes."""


def tensor_parts(
    config: ModelConfig = INTEGER, layouts: Layouts = alternating, *, mtp: bool = True, seed: int = 1
) -> Parts:
    """All tensors of a package with random weights. The same arguments give the same bytes."""
    generator = np.random.default_rng(seed)
    parts: Parts = []
    for tensor in package_tensors(config, with_mtp=mtp):
        dtype = _dtype(tensor, layouts)
        data = _encoded(tensor, dtype, generator)
        parts.append((_part(tensor, dtype, hashlib.sha256(data).digest()), data))
    return parts


def write_parts(path: Path, contents: Mapping[Section, bytes], parts: Parts) -> Path:
    """Writes sections and tensors as they are, sensible or not, and returns the path."""
    plan, front = _plan(contents, [part for part, _ in parts])
    with path.open("wb") as file:
        write_file(file, plan, [*front, *(partial(_write, data) for _, data in parts)])
    return path


def write_package(
    path: Path, config: ModelConfig = INTEGER, layouts: Layouts = alternating, *, mtp: bool = True, seed: int = 1
) -> Path:
    """Writes a package with random weights and returns its path."""
    return write_parts(path, sections(config), tensor_parts(config, layouts, mtp=mtp, seed=seed))


def write_sparse_package(path: Path, config: ModelConfig, layouts: Layouts, *, mtp: bool = True) -> Path:
    """Writes a valid directory whose extents are holes: a file of any size that takes no space."""
    zeros = bytes(32)  # nothing hashes an extent before `verify`
    parts = [_part(tensor, _dtype(tensor, layouts), zeros) for tensor in package_tensors(config, with_mtp=mtp)]
    plan, front = _plan(sections(config), parts)
    with path.open("wb") as file:
        file.write(plan.front)
        for offset, write in zip(plan.section_offsets, front, strict=True):
            file.seek(offset)
            write(file)
        file.truncate(plan.file_bytes)
    return path


def _plan(
    contents: Mapping[Section, bytes], tensors: list[TensorPart]
) -> tuple[FilePlan, list[Callable[[BinaryIO], None]]]:
    parts = [
        SectionPart(kind=kind, length=len(data), sha256=hashlib.sha256(data).digest())
        for kind, data in contents.items()
    ]
    return plan_file(parts, tensors), [partial(_write, data) for data in contents.values()]


def _write(data: bytes, file: BinaryIO) -> None:
    file.write(data)


def _dtype(tensor: PackageTensor, layouts: Layouts) -> Dtype:
    if tensor.role is Role.VECTOR:
        return Dtype.F32
    return Dtype.F32X8 if tensor.role is Role.ROUTER else layouts(tensor)


def _part(tensor: PackageTensor, dtype: Dtype, digest: bytes) -> TensorPart:
    return TensorPart(
        name=tensor.name,
        dtype=dtype,
        shape=tensor.shape,
        group=1 if tensor.group == GROUP_MTP else 0,
        length=tensor_bytes(dtype, tensor.shape),
        sha256=digest,
    )


def _encoded(tensor: PackageTensor, dtype: Dtype, generator: np.random.Generator) -> bytes:
    values: npt.NDArray[np.float32] = generator.standard_normal(tensor.shape, dtype=np.float32)
    if dtype is Dtype.F32:
        return encode(dtype, 1 + np.float32(0.1) * values)
    values *= np.float32(1.5 / tensor.shape[-1] ** 0.5)
    matrices = values.reshape(-1, *tensor.shape[-2:])
    return b"".join(encode(dtype, matrix) for matrix in matrices)
