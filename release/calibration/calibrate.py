"""`mindnano calibrate`: how much each column of each matrix counts, from texts that run through the model.

The result is a safetensors file for `mindnano quantize --calibration-scales`: an entry `NAME.importance` for every
matrix NAME, the mean square of what its columns are multiplied with (see `release.quantization.scales`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from launcher.engine import Package
from launcher.engine_types import Dtype
from launcher.errors import PackageError, UsageError
from launcher.progress import Progress
from release.calibration.activations import ActivationRun, Record, Weights
from release.checkpoint.tensors import GROUP_MTP
from release.output import check_output_file, partial_file
from release.texts import read_text, windows

CALIBRATION_TEXT: Final = Path(__file__).with_name("texts.jsonl")
"""A small set of our own, in English and Chinese."""

_PRIOR = 16
_INTEGERS: Final = (Dtype.Q8X8, Dtype.Q4X8)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateOptions:
    """What to run over what: `context` tokens at a time, at most `tokens` in all (0: everything)."""

    package: Path
    output: Path
    texts: tuple[Path, ...] = (CALIBRATION_TEXT,)
    context: int = 512
    tokens: int = 0
    force: bool = False


def calibrate(options: CalibrateOptions) -> Path:
    """Writes the file and returns its path.

    Raises:
        UsageError: the output exists, a text cannot be read, or the package's weights are integers.
        PackageError: the package is damaged, or the model gives values that are not finite.
        ResourceError: the output cannot be written.
    """
    check_output_file(options.output, force=options.force)
    with Package(options.package) as package:
        integer = next((tensor for tensor in package.tensors() if tensor.dtype in _INTEGERS), None)
        if integer is not None:
            raise UsageError(
                "calibration-quantised",
                f"{options.package} is rounded already: {integer.name} is {integer.dtype.name}",
                hint="Give a package of --recipe bf16 or f32.",
            )
        files = [read_text(path, package) for path in options.texts]
        documents = [document for file in files for document in file.documents]
        ids = [list(window.ids) for window in windows(documents, package.tokenize, options.context)]
        ids = _limited(ids, options.tokens)
        record = Record()
        layers = package.config.layer_count + any(tensor.group == GROUP_MTP for tensor in package.tensors())
        with Progress("Running the texts", layers, unit="layers") as progress:
            ActivationRun(Weights(package), package.config, record).run(ids, progress.advance)
    entries = {}
    for name in record.names():
        means = record.means(name, prior=_PRIOR)
        if not np.isfinite(means).all() or not (means.sum(axis=-1) > 0).all():
            raise PackageError(
                "calibration-degenerate",
                f"the inputs of {name} are zero or not finite, so that nothing can be said about its columns",
                hint="Check the package with mindnano inspect --verify, and give more text.",
            )
        entries[f"{name}.importance"] = means.astype(np.float32)
    with partial_file(options.output, force=options.force) as file:
        file.write(_safetensors(entries))
    return options.output


def _limited(ids: list[list[int]], tokens: int) -> list[list[int]]:
    if not tokens:
        return ids
    kept = []
    for window in ids:
        kept.append(window[:tokens])
        tokens -= len(kept[-1])
        if not tokens:
            break
    return kept


def _safetensors(entries: Mapping[str, npt.NDArray[np.float32]]) -> bytes:
    header = {}
    position = 0
    for name, values in entries.items():
        header[name] = {
            "dtype": "F32",
            "shape": list(values.shape),
            "data_offsets": [position, position + values.nbytes],
        }
        position += values.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(values.tobytes() for values in entries.values())
