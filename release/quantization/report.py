"""What a conversion took and what rounding cost, tensor by tensor: a table to read and JSON to keep."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from launcher.engine_types import Dtype
from launcher.progress import format_bytes
from release.checkpoint.tensors import PackageTensor, Role
from release.layouts.quantizer import Figures
from release.quantization.journal import Entry
from release.stages import Stage, stage_table

SCHEMA: Final = "mindnano-quantize-report"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorReport:
    """A tensor of the package, its layout, and its entry in the journal."""

    tensor: PackageTensor
    dtype: Dtype
    entry: Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeReport:
    """A finished conversion.

    Attributes:
        recipe: its name.
        threads: how many read and encoded.
        reused: tensors that an interrupted run had finished.
        peak: largest resident memory, bytes.
        stages: in order of time.
        tensors: in package order.
    """

    recipe: str
    threads: int
    reused: int
    peak: int
    stages: tuple[Stage, ...]
    tensors: tuple[TensorReport, ...]

    def to_json(self) -> str:
        """One JSON document. An error is the share of squared error in the squared values."""
        document = {
            "schema": SCHEMA,
            "version": _VERSION,
            "recipe": self.recipe,
            "threads": self.threads,
            "reused_tensors": self.reused,
            "peak_memory_bytes": self.peak,
            "stages": [stage.to_json() for stage in self.stages],
            "tensors": [_tensor_json(report) for report in self.tensors],
        }
        return json.dumps(document, indent=1) + "\n"

    def to_text(self) -> str:
        """Stages, then the error of each kind of tensor beside that of plain rounding in the same groups of 32."""
        lines = stage_table(self.stages, self.peak)
        if self.reused:
            verb = "was" if self.reused == 1 else "were"
            lines.append(f"{self.reused} of {len(self.tensors)} tensors {verb} finished before")
        lines += ["", f"{'tensors':<28}{'bytes':>12}{'error':>12}{'plain':>12}{'saved':>8}"]
        kinds: dict[tuple[Role, Dtype], list[TensorReport]] = defaultdict(list)
        for report in self.tensors:
            kinds[report.tensor.role, report.dtype].append(report)
        for (role, dtype), reports in kinds.items():
            name = f"{role.name.lower().replace('_', ' ')} {dtype.name}"
            size = format_bytes(sum(report.entry.bytes for report in reports))
            figures = sum((report.entry.figures for report in reports), start=Figures())
            lines.append(f"{name:<28}{size:>12}{_columns(figures)}")
        lines.append("error, plain: squared error / squared values, of the search for scales and of plain rounding")
        return "\n".join(lines)


def _columns(figures: Figures) -> str:
    if not figures.energy or not figures.plain_error:
        return ""
    error, plain = figures.error / figures.energy, figures.plain_error / figures.energy
    return f"{error:>12.3e}{plain:>12.3e}{100 * (1 - error / plain):>7.1f}%"


def _tensor_json(report: TensorReport) -> dict[str, Any]:
    entry = report.entry
    figures = entry.figures
    known = figures.energy > 0
    return {
        "name": entry.name,
        "dtype": report.dtype.name,
        "shape": list(report.tensor.shape),
        "values": prod(report.tensor.shape),
        "bytes": entry.bytes,
        "source_sha256": entry.source_sha256,
        "sha256": entry.sha256,
        "relative_squared_error": figures.error / figures.energy if known else None,
        "plain_relative_squared_error": figures.plain_error / figures.energy if known else None,
    }
