"""A random package with the dimensions of Ling-3.0-tiny, for measuring memory and speed without the model.

    python -m tests.support.full_size OUT.l3r [--seed N]

7,893,392,800 parameters in the layouts of recipe w4a8, about 4.5 GB. The weights are random bits with scales of a sane
size, written straight in the package's layouts; nothing larger than one block is ever in memory. The tokenizer has the
size of the original and merges letters; the chat template is the built-in model's. It says nothing sensible.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from launcher.engine_types import Dtype, ModelConfig, Section
from launcher.progress import Progress
from release.checkpoint.config import FEATURES, config_section
from release.checkpoint.tensors import PackageTensor, package_tensors
from release.layouts.weights import GROUP_BYTES, TILE_ROWS, tensor_bytes
from release.package.l3r import FilePlan, SectionPart, TensorPart, plan_file, write_file
from release.package.tokenizer_tables import build_tables
from release.quantization.recipe import RECIPES
from tests.support.checkpoint_tokenizer import SPECIAL, special_ids, tokenizer_json

TOKENS = 157_168
PARAMETERS = 7_893_392_800
"""What the published checkpoint has."""

CONFIG = ModelConfig(
    vocab_size=157_184,
    token_count=TOKENS,
    hidden_size=1536,
    intermediate_size=4608,
    layer_count=24,
    layer_group_size=4,
    head_count=16,
    head_dim=128,
    q_lora_rank=256,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    conv_kernel=4,
    expert_count=128,
    experts_per_token=8,
    expert_group_count=8,
    expert_group_top=4,
    moe_intermediate_size=512,
    shared_intermediate_size=512,
    dense_layer_count=1,
    norm_topk_prob=True,
    mtp_layer_count=0,
    max_position=131_072,
    max_context=262_144,
    stop_ids=(special_ids(TOKENS)["<|role_end|>"], special_ids(TOKENS)["<|endoftext|>"]),
    bos_id=None,
    eos_id=special_ids(TOKENS)["<|role_end|>"],
    pad_id=special_ids(TOKENS)["<|endoftext|>"],
    rms_eps=1e-6,
    rope_theta=6_000_000.0,
    routed_scaling=2.5,
    kda_lower_bound=-5.0,
)

_BLOCK = 8 << 20
_TEMPLATE = Path(__file__).resolve().parents[2] / "release" / "demo" / "checkpoint" / "chat_template.jinja"
# Root mean square of what random bits mean as integers: nibbles of -8 to 7, bytes of -127 to 127.
_SPREAD = {Dtype.Q4X8: 4.6, Dtype.Q8X8: 73.0}
_SHIFT = {"A_log": -0.5, "dt_bias": -3.0, "expert_bias": 0.0, "conv1d.weight": 0.0}


def write_full_size(path: Path, seed: int = 0) -> Path:
    """Writes the package and returns its path."""
    tensors = package_tensors(CONFIG, with_mtp=False)
    count = sum(prod(shape) for shape in {s.name: s.shape for t in tensors for s in t.sources}.values())
    if count != PARAMETERS:
        raise AssertionError(f"{count:,} parameters instead of {PARAMETERS:,}")
    parts = [_part(tensor) for tensor in tensors]
    sections = _sections()
    digests: list[bytes] = []
    with path.open("wb") as file, Progress("Writing", sum(part.length for part in parts)) as progress:
        plan = _plan(sections, parts)
        writers = [partial(_write, data) for data in sections.values()]
        writers += [
            partial(_write_tensor, part, np.random.default_rng([seed, index]), digests, progress.advance)
            for index, part in enumerate(parts)
        ]
        write_file(file, plan, writers)
        # Places do not depend on the digests, which are known only now.
        parts = [replace(part, sha256=digest) for part, digest in zip(parts, digests, strict=True)]
        file.seek(0)
        file.write(_plan(sections, parts).front)
    return path


def write_hollow(path: Path) -> Path:
    """Writes the same package with holes instead of weights: it opens and plans as the other, and takes no space."""
    sections = _sections()
    plan = _plan(sections, [_part(tensor) for tensor in package_tensors(CONFIG, with_mtp=False)])
    with path.open("wb") as file:
        file.write(plan.front)
        for offset, data in zip(plan.section_offsets, sections.values(), strict=True):
            file.seek(offset)
            file.write(data)
        file.truncate(plan.file_bytes)
    return path


def _plan(sections: dict[Section, bytes], parts: list[TensorPart]) -> FilePlan:
    heads = [
        SectionPart(kind=kind, length=len(data), sha256=hashlib.sha256(data).digest())
        for kind, data in sections.items()
    ]
    return plan_file(heads, parts)


def _part(tensor: PackageTensor) -> TensorPart:
    dtype = RECIPES["w4a8"].dtype(tensor)
    return TensorPart(
        name=tensor.name,
        dtype=dtype,
        shape=tensor.shape,
        group=0,
        length=tensor_bytes(dtype, tensor.shape),
        sha256=bytes(32),
    )


def _sections() -> dict[Section, bytes]:
    metadata = {
        "format": "l3r",
        "version": 1,
        "name": "full-size random",
        "generation": {"temperature": 1.0, "top_p": 0.95, "top_k": 20},
        "special_tokens": {"bos": None, "eos": "<|role_end|>", "pad": "<|endoftext|>"},
    }
    return {
        Section.CONFIG: config_section(CONFIG),
        Section.FEATURES: "".join(f"{name}\n" for name in FEATURES).encode(),
        Section.TOKENIZER: build_tables(json.dumps(_tokenizer()).encode()).section,
        Section.CHAT_TEMPLATE: _TEMPLATE.read_bytes(),
        Section.METADATA: json.dumps(metadata).encode(),
    }


def _tokenizer() -> dict[str, Any]:
    """Fills the vocabulary with two, three and four letters, each by a merge, as a trained one is."""
    document = tokenizer_json(TOKENS)
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    texts = [text for text, token in document["model"]["vocab"].items() if token < 256]
    merges = [[a, b] for a in letters for b in letters]
    pairs = [a + b for a, b in merges]
    merges += [[pair, letter] for pair in pairs for letter in letters]
    merges += [[left, right] for left in pairs for right in pairs]
    merges = merges[: TOKENS - len(SPECIAL) - len(texts)]
    texts += [left + right for left, right in merges]
    document["model"]["vocab"] = {text: token for token, text in enumerate(texts)}
    document["model"]["merges"] = merges
    return document


def _write(data: bytes, file: BinaryIO) -> None:
    file.write(data)


def _write_tensor(
    part: TensorPart,
    generator: np.random.Generator,
    digests: list[bytes],
    advance: Callable[[int], None],
    file: BinaryIO,
) -> None:
    digest = hashlib.sha256()
    for block in _blocks(part, generator):
        digest.update(block.data)
        file.write(block.data)
        advance(len(block))
    digests.append(digest.digest())


def _blocks(part: TensorPart, generator: np.random.Generator) -> Iterator[npt.NDArray[np.uint8]]:
    if part.dtype not in GROUP_BYTES:
        yield _floats(part, generator).view(np.uint8).reshape(-1)
        return
    size = GROUP_BYTES[part.dtype]
    scale = 1.5 / (_SPREAD[part.dtype] * part.shape[-1] ** 0.5)
    for first in range(0, part.length, _BLOCK // size * size):
        count = min(_BLOCK // size * size, part.length - first) // size
        block = np.empty((count, size), dtype=np.uint8)
        scales = generator.uniform(0.5 * scale, 1.5 * scale, (count, TILE_ROWS)).astype("<f2")
        block[:, : 2 * TILE_ROWS] = scales.view(np.uint8)
        values = block[:, 2 * TILE_ROWS :]
        values[:] = np.frombuffer(generator.bytes(values.size), dtype=np.uint8).reshape(values.shape)
        if part.dtype is Dtype.Q8X8:
            np.copyto(values, 0x81, where=values == 0x80)  # -128 does not occur
        yield block.reshape(-1)


def _floats(part: TensorPart, generator: np.random.Generator) -> npt.NDArray[np.float32]:
    values = generator.standard_normal(part.length // 4, dtype=np.float32)
    if part.dtype is Dtype.F32X8:  # the router
        return values * np.float32(2 / part.shape[-1] ** 0.5)
    shift = next((shift for name, shift in _SHIFT.items() if part.name.endswith(name)), 1.0)
    return (np.float32(shift) + np.float32(0.1) * values).astype("<f4", copy=False)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Writes a random package of the size of Ling-3.0-tiny.")
    parser.add_argument("output", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(write_full_size(arguments.output, arguments.seed))


if __name__ == "__main__":
    main()
