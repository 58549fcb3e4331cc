"""Implementations of the architecture that others wrote, as far as they can be had here."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import io
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]

ROOT = Path(__file__).resolve().parents[2]
NUMPY_ORACLE = ROOT.parent / "shared" / "oracle" / "ref_numpy.py"
LLAMA_CPP_SOURCE = "LLAMA_CPP_SOURCE"


def transformers_logits(folder: Path, ids: Sequence[int]) -> Float32:
    """Logits [T, vocabulary] of transformers' own `bailing_hybrid` in float32; it has no MTP layer."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            logits: Float32 = model(torch.tensor([list(ids)]), use_cache=False).logits[0].numpy()
    return logits


def numpy_oracle(folder: Path) -> Any:
    """The reference that lies beside the checkout, loaded with a checkpoint; it must exist."""
    spec = importlib.util.spec_from_file_location("shared_ref_numpy", NUMPY_ORACLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # it leaves config.json to the garbage collector
        return module.M(str(folder))


def llama_cpp_missing() -> str | None:
    """Why llama.cpp cannot be asked, or None where it can."""
    if importlib.util.find_spec("llama_cpp") is None:
        return "llama-cpp-python is not installed"
    source = os.environ.get(LLAMA_CPP_SOURCE)
    if not source:
        return f"{LLAMA_CPP_SOURCE} does not name a llama.cpp source folder, which holds the converter"
    if not (Path(source) / "convert_hf_to_gguf.py").is_file():
        return f"{LLAMA_CPP_SOURCE}={source} holds no convert_hf_to_gguf.py"
    return None


# Two things keep the converter from reading a made-up checkpoint: it knows tokenizers by hash, and it reads config.json
# through transformers, which renames keys of this architecture and so loses n_group.
_CONVERT = """
import json, pathlib, runpy, sys
source, checkpoint, target = sys.argv[1:]
sys.path[:0] = [source, source + "/gguf-py"]
import conversion.base as base
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: "bailingmoe2"
config = json.loads((pathlib.Path(checkpoint) / "config.json").read_text(encoding="utf-8"))
base.ModelBase.load_hparams = staticmethod(lambda folder, is_mistral_format=False: dict(config))
sys.argv = ["convert_hf_to_gguf.py", checkpoint, "--outfile", target, "--outtype", "f32"]
runpy.run_path(source + "/convert_hf_to_gguf.py", run_name="__main__")
"""


def llama_cpp_convert(folder: Path, target: Path) -> None:
    """Converts a checkpoint to GGUF in float32 with llama.cpp's own converter."""
    words = [sys.executable, "-W", "ignore", "-c", _CONVERT, os.environ[LLAMA_CPP_SOURCE], str(folder), str(target)]
    result = subprocess.run(words, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-4000:]


def llama_cpp_quantize(source: Path, target: Path) -> None:
    """Rounds a GGUF file to Q4_0."""
    import llama_cpp

    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0
    assert llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), parameters) == 0


def llama_cpp_logits(gguf: Path, ids: Sequence[int]) -> Float32:
    """Logits [T, vocabulary] of llama.cpp with a float32 cache."""
    import llama_cpp

    quiet = llama_cpp.llama_log_callback(lambda level, text, user: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p())
    llama_cpp.llama_backend_init()
    model_parameters = llama_cpp.llama_model_default_params()
    model_parameters.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(str(gguf).encode(), model_parameters)
    assert model, f"llama.cpp does not load {gguf.name}"
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx = len(ids) + 64
    parameters.n_batch = parameters.n_ubatch = max(len(ids), 32)
    parameters.n_threads = parameters.n_threads_batch = 1
    parameters.type_k = parameters.type_v = 0  # GGML_TYPE_F32
    parameters.flash_attn_type = 0
    context = llama_cpp.llama_init_from_model(model, parameters)
    assert context, "llama.cpp makes no context"
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for index, token in enumerate(ids):
        batch.token[index] = token
        batch.pos[index] = index
        batch.n_seq_id[index] = 1
        batch.seq_id[index][0] = 0
        batch.logits[index] = 1
    try:
        assert llama_cpp.llama_decode(context, batch) == 0
        vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        rows = [llama_cpp.llama_get_logits_ith(context, index) for index in range(len(ids))]
        return np.stack([np.ctypeslib.as_array(row, shape=(vocabulary,)).copy() for row in rows])
    finally:
        llama_cpp.llama_batch_free(batch)
        llama_cpp.llama_free(context)
        llama_cpp.llama_model_free(model)
