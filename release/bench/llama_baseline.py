"""llama.cpp, without its repacking of weights, as a yardstick of `mindnano bench`; needs llama-cpp-python."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from launcher.errors import InternalError, PackageError, UsageError


class LlamaRunner:
    """One context of llama.cpp on the CPU. A context manager."""

    name = "llama.cpp"

    def __init__(self, path: Path, *, context: int, threads: int, repack: bool = False) -> None:
        """Loads a GGUF file; with `repack` llama.cpp lays the weights out anew for this CPU.

        Raises:
            UsageError: llama_cpp is not installed.
            PackageError: the file cannot be loaded.
        """
        try:
            import llama_cpp
        except ImportError as error:
            raise UsageError(
                "llama-missing", "--against needs the package llama-cpp-python", hint="pip install llama-cpp-python"
            ) from error
        self._api: Any = llama_cpp
        self._model: Any = None
        self._context: Any = None
        self._position = 0
        self._silence = llama_cpp.llama_log_callback(lambda _level, _text, _user: None)
        self._load(path, context, threads, repack)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)
        # llama.cpp keeps a bare pointer to the callback, which dies with this object.
        self._api.llama_log_set(ctypes.cast(0, self._api.llama_log_callback), None)

    def prefill(self, ids: Sequence[int]) -> None:
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), True)
        self._position = 0
        self._decode(ids)

    def step(self, token: int) -> None:
        self._decode([token])

    def _load(self, path: Path, context: int, threads: int, repack: bool) -> None:
        api = self._api
        api.llama_log_set(self._silence, None)
        api.llama_backend_init()
        model_parameters = api.llama_model_default_params()
        model_parameters.n_gpu_layers = 0
        # Not on by default: on a CPU with AMX, 0.3.36 aborts the process while it plans the graph of this architecture
        # in Q4_0 (GGML_ASSERT in ggml_backend_sched_split_graph).
        model_parameters.use_extra_bufts = repack
        self._model = api.llama_model_load_from_file(str(path).encode(), model_parameters)
        if not self._model:
            raise PackageError("gguf-unusable", f"llama.cpp cannot load {path}")
        parameters = api.llama_context_default_params()
        parameters.n_ctx = context + 64
        parameters.n_batch = max(context, 32)
        parameters.n_threads = threads
        parameters.n_threads_batch = threads
        self._context = api.llama_init_from_model(self._model, parameters)
        if not self._context:
            api.llama_model_free(self._model)
            raise PackageError("gguf-unusable", f"llama.cpp cannot make a context of {context} tokens for {path}")

    def _decode(self, ids: Sequence[int]) -> None:
        batch = self._api.llama_batch_init(len(ids), 0, 1)
        try:
            batch.n_tokens = len(ids)
            for index, token in enumerate(ids):
                batch.token[index] = token
                batch.pos[index] = self._position + index
                batch.n_seq_id[index] = 1
                batch.seq_id[index][0] = 0
                batch.logits[index] = int(index == len(ids) - 1)
            status = self._api.llama_decode(self._context, batch)
        finally:
            self._api.llama_batch_free(batch)
        if status != 0:
            raise InternalError("llama-decode", f"llama_decode returned {status}")
        self._position += len(ids)
