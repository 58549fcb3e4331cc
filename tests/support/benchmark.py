"""The engine beside llama.cpp on one random checkpoint, in one run: the figures of docs/performance.md.

    python -m tests.support.benchmark FOLDER [arguments of `mindnano bench --engine`]

Needs llama-cpp-python, and LLAMA_CPP_SOURCE naming the llama.cpp folder of its source package. FOLDER (6 GB) keeps the
checkpoint, the package and the GGUF files for the next run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from release.cli import main as mindnano
from tests.support.checkpoints import make_checkpoint
from tests.support.oracles import llama_cpp_convert, llama_cpp_missing, llama_cpp_quantize


def main() -> int:
    """Makes what is missing, then measures."""
    parser = argparse.ArgumentParser(description="Measures the engine beside llama.cpp.")
    parser.add_argument("folder", type=Path)
    options, rest = parser.parse_known_args()
    missing = llama_cpp_missing()
    if missing is not None:
        parser.error(missing)
    folder = options.folder
    checkpoint, assets, package = folder / "checkpoint", folder / "assets", folder / "bench-w4a8.l3r"
    whole, rounded = folder / "bench-f32.gguf", folder / "bench-q4_0.gguf"
    folder.mkdir(parents=True, exist_ok=True)
    if not checkpoint.is_dir():
        make_checkpoint(checkpoint, "bench", dtype="F32", seed=0, mtp=True, branch=1.0)
    if not package.is_file():
        quantize = ["quantize", "--source", str(checkpoint), "--output", str(assets), "--recipe", "w4a8", "--force"]
        code = mindnano(quantize) or mindnano(["pack", str(assets / "manifest.json"), str(package)])
        if code:
            return code
    if not rounded.is_file():
        llama_cpp_convert(checkpoint, whole)
        llama_cpp_quantize(whole, rounded)
    return mindnano(["bench", "--engine", str(package), "--against", str(rounded), *rest])


if __name__ == "__main__":
    sys.exit(main())
