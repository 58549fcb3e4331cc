"""Per-channel activation scales, folded into the weights.

A scale s of a channel divides what flows through the channel and multiplies the weights that read it, so the function
stays the same while outlying channels become easier to quantise. The file is a safetensors file. Each entry is named
after a norm (every matrix that the norm feeds shares one s) or after a matrix whose input comes straight from the rows
of another one.

| name ends with | shape | divided | multiplied (columns) |
|---|---|---|---|
| `input_layernorm.weight` | [H] | the norm | q, k, v, f, g, b of KDA; q_a or q, kv_a, g of MLA |
| `post_attention_layernorm.weight` | [H] | the norm | gate and up of every feed-forward, router |
| `q_a_layernorm.weight` | [q_lora] | the norm | q_b |
| `kv_a_layernorm.weight` | [kv_lora] | the norm | k_b (its rows), v_b |
| `o_norm.weight` | [head_dim] | the norm | o_proj, the same for every head |
| `enorm.weight`, `hnorm.weight` | [H] | the norm | eh_proj, first or second half |
| `model.norm.weight` | [H] | the norm | lm_head; only without an MTP layer, which reads the norm as well |
| `attention.dense.weight` | [heads x v_head_dim] | rows of v_b | dense |
| `mlp.down_proj.weight`, `mlp.shared_experts.down_proj.weight` | [inner] | rows of up | down |
| `mlp.experts.down_proj.weight` | [experts, inner] | rows of up | down |

An entry `NAME.importance` belongs to the matrix NAME of the package. It has one weight per column, [K] or [n, K], for
the squared errors in the search for scales: the mean square of what the column is multiplied with in the unfolded
model. Only the proportions within a matrix count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from launcher.errors import PackageError
from release.checkpoint.safetensors_reader import TensorReader, read_header
from release.checkpoint.tensors import GROUP_MTP, PackageTensor
from release.quantization.assemble import Fold, is_plain

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]

_IMPORTANCE = ".importance"
_FINAL_NORM = "model.norm.weight"
"""The one tensor of the trunk that the MTP layer reads too; its scales are about either."""

_KDA_INPUTS = ("q_proj", "k_proj", "v_proj", "f_proj", "g_proj", "b_proj")
_MLA_INPUTS = ("q_a_proj", "q_proj", "kv_a_proj_with_mqa", "g_proj")
_POST_INPUTS = tuple(
    f"mlp.{part}.weight"
    for part in (
        "gate_proj",
        "up_proj",
        "gate",
        "experts.gate_proj",
        "experts.up_proj",
        "shared_experts.gate_proj",
        "shared_experts.up_proj",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """SHA-256 of the scales file in hex, and the factors and weights of every tensor that it touches.

    `importance` is float32, ``[K]`` or ``[n, K]``, its mean 1 in every matrix.
    """

    sha256: str
    folds: Mapping[str, Fold]
    importance: Mapping[str, Float32Array]


def read_calibration(
    path: Path, tensors: Sequence[PackageTensor], *, others: Sequence[PackageTensor] = ()
) -> Calibration:
    """Reads scales and derives the factors of the package's tensors.

    Args:
        path: the file.
        tensors: what is written now.
        others: tensors of the same model that are not; what the file says of them is left alone.

    Raises:
        PackageError: a name whose scales cannot be folded, a wrong shape, or a scale that is not positive and finite.
    """
    header = read_header(path)
    folder = _Folder(tensors)
    elsewhere = {tensor.name for tensor in others}
    weights: dict[str, Float64Array] = {}
    with TensorReader(header) as reader:
        for name in sorted(header):
            if name.removesuffix(_IMPORTANCE) in elsewhere and name != _FINAL_NORM:
                continue
            scales = reader.read(name).astype(np.float64)
            if name.endswith(_IMPORTANCE):
                weights[name.removesuffix(_IMPORTANCE)] = scales
                continue
            if not (scales > 0).all():
                raise _refused(name, "holds a scale that is not positive")
            folder.fold(name, scales)
    return Calibration(
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        folds=folder.folds,
        importance=_importance(weights, {tensor.name: tensor for tensor in tensors}, folder.folds),
    )


def _importance(
    weights: Mapping[str, Float64Array], tensors: Mapping[str, PackageTensor], folds: Mapping[str, Fold]
) -> dict[str, Float32Array]:
    """Checks weights, moves them to what is left of the columns after folding, and gives them the mean 1."""
    found = {}
    for name, given in weights.items():
        if name not in tensors or is_plain(tensors[name]):
            raise _refused(f"{name}{_IMPORTANCE}", "does not belong to a matrix of the package")
        shape = tensors[name].shape
        if given.shape not in {shape[-1:], (*shape[:-2], shape[-1])}:
            raise _refused(f"{name}{_IMPORTANCE}", f"has shape {list(given.shape)} instead of {[shape[-1]]}")
        columns = folds.get(name, Fold()).columns
        values = given if columns is None else given / columns**2
        mean = values.mean(axis=-1, keepdims=True)
        if not (given >= 0).all() or not (mean > 0).all():
            raise _refused(f"{name}{_IMPORTANCE}", "holds a negative weight, or a matrix without any weight")
        found[name] = (values / mean).astype(np.float32)
    return found


class _Folder:
    """Collects factors by tensor; factors that meet in one tensor multiply."""

    def __init__(self, tensors: Sequence[PackageTensor]) -> None:
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self._has_mtp = any(tensor.group == GROUP_MTP for tensor in tensors)
        self.folds: dict[str, Fold] = {}

    def fold(self, name: str, scales: Float64Array) -> None:
        """Folds the scales of one entry of the file."""
        if name == _FINAL_NORM and self._has_mtp:
            raise _refused(name, "cannot be folded: the MTP layer reads the norm as well; use --drop-mtp")
        if name not in self._tensors:
            raise _refused(name, "is not a tensor of the package")
        prefix, last = name.removesuffix(".weight").rpartition(".")[::2]
        if name == _FINAL_NORM:
            self._from_norm(name, scales, ["lm_head.weight"])
        elif last == "input_layernorm":
            is_kda = f"{prefix}.attention.A_log" in self._tensors
            inputs = _KDA_INPUTS if is_kda else _MLA_INPUTS
            self._from_norm(name, scales, [f"{prefix}.attention.{part}.weight" for part in inputs])
        elif last == "post_attention_layernorm":
            self._from_norm(name, scales, [f"{prefix}.{part}" for part in _POST_INPUTS])
        elif last == "q_a_layernorm":
            self._from_norm(name, scales, [f"{prefix}.q_b_proj.weight"])
        elif last == "kv_a_layernorm":
            self._from_norm(name, scales, [f"{prefix}.v_b_proj.weight"])
            self._multiply(f"{prefix}.k_b_proj.weight", rows=scales)
        elif last == "o_norm":
            self._output_norm(name, scales, f"{prefix}.o_proj.weight")
        elif last in {"enorm", "hnorm"}:
            self._check_shape(name, scales)
            other = np.ones_like(scales)
            halves = (scales, other) if last == "enorm" else (other, scales)
            self._multiply(name, rows=1 / scales)
            self._multiply(f"{prefix}.eh_proj.weight", columns=np.concatenate(halves))
        elif last in {"down_proj", "dense"}:
            self._from_rows(name, scales)
        else:
            raise _refused(name, "cannot be folded; give the scales under the norm that feeds the matrix")

    def _from_norm(self, name: str, scales: Float64Array, readers: Sequence[str]) -> None:
        self._check_shape(name, scales)
        self._multiply(name, rows=1 / scales)
        for reader in readers:
            if reader in self._tensors:
                self._multiply(reader, columns=scales)

    def _output_norm(self, name: str, scales: Float64Array, reader: str) -> None:
        self._check_shape(name, scales)
        self._multiply(name, rows=1 / scales)
        self._multiply(reader, columns=np.tile(scales, self._tensors[reader].shape[1] // len(scales)))

    def _from_rows(self, name: str, scales: Float64Array) -> None:
        shape = self._tensors[name].shape
        expected = (*shape[:-2], shape[-1])
        if scales.shape != expected:
            raise _refused(name, f"has shape {list(scales.shape)} instead of {list(expected)}")
        self._multiply(name, columns=scales)
        if name.endswith("attention.dense.weight"):
            producer = name.replace("attention.dense.weight", "attention.v_b_proj.weight")
            self._multiply(producer, rows=1 / scales.reshape(self._tensors[producer].shape[:2]))
        else:
            self._multiply(name.replace("down_proj", "up_proj"), rows=1 / scales)

    def _check_shape(self, name: str, scales: Float64Array) -> None:
        expected = self._tensors[name].shape
        if scales.shape != expected:
            raise _refused(name, f"has shape {list(scales.shape)} instead of {list(expected)}")

    def _multiply(self, name: str, *, rows: Float64Array | None = None, columns: Float64Array | None = None) -> None:
        old = self.folds.get(name, Fold())
        self.folds[name] = Fold(rows=_product(old.rows, rows), columns=_product(old.columns, columns))


def _product(first: Float64Array | None, second: Float64Array | None) -> Float64Array | None:
    if first is None or second is None:
        return second if first is None else first
    return first * second


def _refused(name: str, problem: str) -> PackageError:
    return PackageError(
        "calibration-invalid",
        f"calibration scales: {name} {problem}",
        hint="Scales go under a norm, under attention.dense.weight or under a down_proj.weight of the package;"
        " weights under the name of a matrix with .importance.",
    )
