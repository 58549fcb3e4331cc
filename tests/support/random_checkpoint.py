"""A random checkpoint of any size in Hugging Face layout, written shard by shard: memory stays at one block.

    python -m tests.support.random_checkpoint FOLDER [--preset released] [--shard-bytes N] [--seed N] [--mtp]

`released` has the exact dimensions of Ling-3.0-tiny: 7,893,392,800 parameters, 15.8 GB of bfloat16. Values are normal,
scaled by name as in `tests.support.checkpoints`; decay parameters and expert biases stay float32.
"""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from statistics import NormalDist
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from launcher.progress import Progress
from release.checkpoint.config import read_config
from release.checkpoint.special_tokens import resolve_special_tokens
from release.checkpoint.tensors import package_tensors
from release.package.tokenizer_tables import build_tables
from tests.support.checkpoint_tokenizer import tokenizer_json
from tests.support.checkpoints import CHAT_TEMPLATE, PRESETS, Preset, config_json, to_bf16, write_json

PARAMETERS = 7_893_392_800
"""What the published chat checkpoint has."""

_BLOCK = 4 << 20
_FLOAT32 = ("A_log", "dt_bias", "expert_bias")
_LOUD = ("q_proj", "k_proj", "v_proj", "o_proj", "dense", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    name: str
    shape: tuple[int, ...]

    @property
    def dtype(self) -> str:
        return "F32" if self.name.endswith(_FLOAT32) else "BF16"

    @property
    def bytes(self) -> int:
        return prod(self.shape) * (4 if self.dtype == "F32" else 2)


def write_random_checkpoint(
    folder: Path,
    preset: str | Preset = "released",
    *,
    shard_bytes: int = 5_000_000_000,
    seed: int = 0,
    mtp: bool = False,
) -> Path:
    """Writes the folder and returns it; the same arguments give the same bytes."""
    chosen = PRESETS[preset] if isinstance(preset, str) else preset
    folder.mkdir(parents=True, exist_ok=True)
    config = config_json(chosen, mtp=mtp) | {"torch_dtype": "bfloat16"}
    tokenizer = tokenizer_json(chosen.vocabulary)
    tokenizer_config = {"eos_token": "<|role_end|>", "pad_token": "<|endoftext|>", "chat_template": CHAT_TEMPLATE}
    write_json(folder / "config.json", config)
    write_json(folder / "tokenizer.json", tokenizer)
    write_json(folder / "tokenizer_config.json", tokenizer_config)
    write_json(folder / "generation_config.json", {"temperature": 1.0, "top_p": 0.95, "top_k": 20})
    tensors = _tensors(config, tokenizer, tokenizer_config, mtp=mtp)
    parameters = sum(prod(tensor.shape) for tensor in tensors)
    if preset == "released" and not mtp and parameters != PARAMETERS:
        raise AssertionError(f"{parameters:,} parameters instead of {PARAMETERS:,}")
    shards = _split(tensors, shard_bytes)
    weight_map: dict[str, str] = {}
    total = sum(tensor.bytes for tensor in tensors)
    with Progress("Writing", total) as progress:
        for index, shard in enumerate(shards):
            name = f"model-{index + 1:05d}-of-{len(shards):05d}.safetensors"
            weight_map |= dict.fromkeys((tensor.name for tensor in shard), name)
            with (folder / name).open("wb") as file:
                file.write(_header(shard))
                for position, tensor in enumerate(shard):
                    generator = np.random.default_rng([seed, index, position])
                    _write_tensor(file, tensor, generator, progress)
    document = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(folder / "model.safetensors.index.json", document)
    return folder


def _tensors(
    config: dict[str, Any], tokenizer: dict[str, Any], tokenizer_config: dict[str, Any], *, mtp: bool
) -> list[_Tensor]:
    tables = build_tables(json.dumps(tokenizer).encode())
    special = resolve_special_tokens(config, {}, tokenizer_config, tables.ids, tables.token_count)
    model = read_config(config, special=special, token_count=tables.token_count, max_context=None)
    sources = {
        source.name: source.shape for tensor in package_tensors(model, with_mtp=mtp) for source in tensor.sources
    }
    return [_Tensor(name=name, shape=shape) for name, shape in sources.items()]


def _split(tensors: list[_Tensor], shard_bytes: int) -> list[list[_Tensor]]:
    shards: list[list[_Tensor]] = [[]]
    filled = 0
    for tensor in tensors:
        if shards[-1] and filled + tensor.bytes > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += tensor.bytes
    return shards


def _header(shard: list[_Tensor]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for tensor in shard:
        end = position + tensor.bytes
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _write_tensor(file: BinaryIO, tensor: _Tensor, generator: np.random.Generator, progress: Progress) -> None:
    for count in _counts(prod(tensor.shape)):
        data = _values(tensor, count, generator)
        file.write(data.data)
        progress.advance(data.nbytes)


def _counts(total: int) -> Iterator[int]:
    for first in range(0, total, _BLOCK):
        yield min(_BLOCK, total - first)


def _values(tensor: _Tensor, count: int, generator: np.random.Generator) -> npt.NDArray[Any]:
    """Normal values of the right size: a table of 65536 quantiles, entered with random bits."""
    mean, deviation = _distribution(tensor)
    if tensor.dtype == "F32":
        values = mean + deviation * generator.standard_normal(count)
        return values.astype("<f4")
    patterns = to_bf16(np.float32(mean) + np.float32(deviation) * _quantiles())
    entries = np.frombuffer(generator.bytes(2 * count), dtype=np.uint16)
    return patterns[entries].astype("<u2", copy=False)


def _distribution(tensor: _Tensor) -> tuple[float, float]:
    """Mean and standard deviation."""
    part = tensor.name.removesuffix(".weight").rpartition(".")[2]
    if len(tensor.shape) == 1:
        special = {"A_log": (0.0, 0.4), "dt_bias": (-3.0, 1.0), "expert_bias": (0.0, 0.2)}
        return special.get(part, (1.0, 0.1))
    if part == "word_embeddings":
        return 0.0, 1.0
    if part.endswith("conv1d"):
        return 0.0, 0.5
    gain = 2.0 if part in ("lm_head", "gate", "g_proj") else 1.5 if part in _LOUD else 1.0
    return 0.0, gain / float(tensor.shape[-1]) ** 0.5


@cache
def _quantiles() -> npt.NDArray[np.float32]:
    normal = NormalDist()
    return np.array([normal.inv_cdf((index + 0.5) / 65536) for index in range(65536)], dtype=np.float32)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Writes a random checkpoint of the Ling-3.0 architecture.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--preset", choices=PRESETS, default="released")
    parser.add_argument("--shard-bytes", type=int, default=5_000_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mtp", action="store_true")
    arguments = parser.parse_args()
    print(
        write_random_checkpoint(
            arguments.folder,
            arguments.preset,
            shard_bytes=arguments.shard_bytes,
            seed=arguments.seed,
            mtp=arguments.mtp,
        )
    )


if __name__ == "__main__":
    main()
