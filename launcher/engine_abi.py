"""`engine/include/ling3.h` as ctypes see it: structures, prototypes, and where the shared library is found.

`launcher/engine.py` builds the typed classes on top; nothing else should need this module.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping
from ctypes import (
    POINTER,
    c_char,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int32,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any

from launcher.errors import EngineError
from launcher.payload import built_in

ABI_VERSION = 3
LIBRARY_NAME = "libling3.so"
LIBRARY_VARIABLE = "MINDNANO_ENGINE"
MAX_STOP_IDS = 8
PLAN_MAX_TERMS = 24
NO_TOKEN = -1
EMPTY_SLOT = 0xFFFFFFFF
TOKENIZE_SPECIAL = 1
MAX_CHECKPOINTS = 1024

_POINTER = ctypes.c_void_p


class CError(ctypes.Structure):
    """`l3_error`."""

    _fields_ = [("status", c_int32), ("os_errno", c_int32), ("message", c_char * 504)]


class CConfig(ctypes.Structure):
    """`l3_config`, 256 bytes."""

    _fields_ = [
        ("vocab_size", c_uint32),
        ("token_count", c_uint32),
        ("hidden_size", c_uint32),
        ("intermediate_size", c_uint32),
        ("layer_count", c_uint32),
        ("layer_group_size", c_uint32),
        ("head_count", c_uint32),
        ("head_dim", c_uint32),
        ("q_lora_rank", c_uint32),
        ("kv_lora_rank", c_uint32),
        ("qk_nope_head_dim", c_uint32),
        ("qk_rope_head_dim", c_uint32),
        ("v_head_dim", c_uint32),
        ("conv_kernel", c_uint32),
        ("expert_count", c_uint32),
        ("experts_per_token", c_uint32),
        ("expert_group_count", c_uint32),
        ("expert_group_top", c_uint32),
        ("moe_intermediate_size", c_uint32),
        ("shared_intermediate_size", c_uint32),
        ("dense_layer_count", c_uint32),
        ("norm_topk_prob", c_uint32),
        ("mtp_layer_count", c_uint32),
        ("max_position", c_uint32),
        ("max_context", c_uint32),
        ("stop_count", c_uint32),
        ("stop_ids", c_int32 * MAX_STOP_IDS),
        ("bos_id", c_int32),
        ("eos_id", c_int32),
        ("pad_id", c_int32),
        ("rms_eps", c_float),
        ("rope_theta", c_float),
        ("routed_scaling", c_float),
        ("kda_lower_bound", c_float),
        ("reserved", c_uint32 * 23),
    ]


class CTensorInfo(ctypes.Structure):
    """`l3_tensor_info`."""

    _fields_ = [
        ("name", c_char_p),
        ("dtype", c_uint32),
        ("rank", c_uint32),
        ("shape", c_uint64 * 4),
        ("offset", c_uint64),
        ("length", c_uint64),
        ("group", c_uint32),
        ("sha256", c_uint8 * 32),
    ]


class CUtf8Stream(ctypes.Structure):
    """`l3_utf8_stream`."""

    _fields_ = [("pending", c_uint8 * 4), ("pending_length", c_uint32)]


class CEngineOptions(ctypes.Structure):
    """`l3_engine_options`."""

    _fields_ = [("threads", c_uint32), ("mtp", c_uint32), ("simd", c_char * 16)]


class CSessionOptions(ctypes.Structure):
    """`l3_session_options`."""

    _fields_ = [
        ("context", c_uint32),
        ("kv_type", c_uint32),
        ("chunk", c_uint32),
        ("poison", c_uint32),
        ("checkpoints", c_uint32),
        ("reserved", c_uint32),
        ("session_cache_bytes", c_uint64),
    ]


class CPlanTerm(ctypes.Structure):
    """`l3_plan_term`."""

    _fields_ = [("name", c_char * 32), ("bytes", c_uint64), ("idle", c_uint64), ("full", c_uint64)]


class CMemoryPlan(ctypes.Structure):
    """`l3_memory_plan`."""

    _fields_ = [
        ("term_count", c_uint32),
        ("reserved", c_uint32),
        ("terms", CPlanTerm * PLAN_MAX_TERMS),
        ("allocated_bytes", c_uint64),
        ("mapped_bytes", c_uint64),
        ("idle_bytes", c_uint64),
        ("full_bytes", c_uint64),
        ("bytes_per_token", c_uint64),
    ]


class CSampling(ctypes.Structure):
    """`l3_sampling`."""

    _fields_ = [
        ("temperature", c_float),
        ("top_p", c_float),
        ("min_p", c_float),
        ("repetition_penalty", c_float),
        ("top_k", c_uint32),
        ("frequency_penalty", c_float),
        ("presence_penalty", c_float),
        ("reserved", c_uint32),
        ("seed", c_uint64),
    ]


class CChoice(ctypes.Structure):
    """`l3_choice`; history and allowed ids are plain addresses, whose owner has to outlive the call."""

    _fields_ = [
        ("logits", POINTER(c_float)),
        ("history", POINTER(c_int32)),
        ("history_length", c_size_t),
        ("reply_length", c_size_t),
        ("allowed", c_void_p),
    ]


class CExportInfo(ctypes.Structure):
    """`l3_export_info`."""

    _fields_ = [
        ("position", c_uint32),
        ("checkpoint_count", c_uint32),
        ("kv_type", c_uint32),
        ("mtp", c_uint32),
        ("tokens_offset", c_uint64),
        ("identity", c_uint8 * 32),
    ]


ProgressFunction = ctypes.CFUNCTYPE(c_int, _POINTER, c_uint64, c_uint64)

_ERROR = POINTER(CError)
_OUT = POINTER(_POINTER)
_IDS = POINTER(c_int32)
_FLOATS = POINTER(c_float)

# name -> (result, arguments), in the order of the header.
_PROTOTYPES: Mapping[str, tuple[Any, list[Any]]] = {
    "l3_abi_version": (c_uint32, []),
    "l3_version": (c_char_p, []),
    "l3_status_name": (c_char_p, [c_int32]),
    "l3_package_open": (c_int, [c_char_p, _OUT, _ERROR]),
    "l3_package_open_at": (c_int, [c_char_p, c_uint64, c_uint64, _OUT, _ERROR]),
    "l3_package_close": (None, [_POINTER]),
    "l3_package_config": (POINTER(CConfig), [_POINTER]),
    "l3_package_section": (c_int, [_POINTER, c_uint32, _OUT, POINTER(c_size_t), _ERROR]),
    "l3_package_tensor_count": (c_size_t, [_POINTER]),
    "l3_package_tensor": (c_int, [_POINTER, c_size_t, POINTER(CTensorInfo), _ERROR]),
    "l3_package_has_mtp": (c_int, [_POINTER]),
    "l3_package_identity": (c_int, [_POINTER, c_uint8 * 32, _ERROR]),
    "l3_package_verify": (c_int, [_POINTER, ProgressFunction, _POINTER, _ERROR]),
    "l3_package_read_rows": (c_int, [_POINTER, c_size_t, c_uint64, c_uint64, _FLOATS, _ERROR]),
    "l3_sha256_fd": (c_int, [c_int, ProgressFunction, _POINTER, c_uint8 * 32, POINTER(c_uint64), _ERROR]),
    "l3_sha256_implementation": (c_char_p, []),
    "l3_tokenize": (c_int, [_POINTER, c_char_p, c_size_t, c_uint32, _IDS, c_size_t, POINTER(c_size_t), _ERROR]),
    "l3_token_bytes": (c_int, [_POINTER, c_int32, _OUT, POINTER(c_size_t), _ERROR]),
    "l3_token_find": (c_int32, [_POINTER, c_char_p, c_size_t]),
    "l3_token_is_special": (c_int, [_POINTER, c_int32]),
    "l3_utf8_push": (c_size_t, [POINTER(CUtf8Stream), c_char_p, c_size_t, c_char_p]),
    "l3_utf8_finish": (c_size_t, [POINTER(CUtf8Stream), c_char_p]),
    "l3_engine_create": (c_int, [_POINTER, POINTER(CEngineOptions), _OUT, _ERROR]),
    "l3_engine_destroy": (None, [_POINTER]),
    "l3_engine_simd": (c_char_p, [_POINTER]),
    "l3_engine_threads": (c_uint32, [_POINTER]),
    "l3_simd_available": (c_char_p, []),
    "l3_engine_read_bandwidth": (c_int, [_POINTER, c_uint64, POINTER(c_double), _ERROR]),
    "l3_engine_preload": (c_int, [_POINTER, ProgressFunction, _POINTER, _ERROR]),
    "l3_engine_unload": (None, [_POINTER]),
    "l3_plan": (
        c_int,
        [_POINTER, POINTER(CEngineOptions), POINTER(CSessionOptions), POINTER(CMemoryPlan), _ERROR],
    ),
    "l3_session_create": (c_int, [_POINTER, POINTER(CSessionOptions), _OUT, _ERROR]),
    "l3_session_destroy": (None, [_POINTER]),
    "l3_session_reset": (None, [_POINTER]),
    "l3_session_position": (c_uint32, [_POINTER]),
    "l3_session_tokens": (_IDS, [_POINTER]),
    "l3_session_allocated": (c_uint64, [_POINTER]),
    "l3_session_eval": (c_int, [_POINTER, _IDS, c_size_t, c_uint32, _FLOATS, _FLOATS, _ERROR]),
    "l3_session_logits": (_FLOATS, [_POINTER]),
    "l3_session_mtp": (c_int, [_POINTER, _FLOATS, _IDS, c_size_t, c_uint32, _FLOATS, _FLOATS, _ERROR]),
    "l3_session_force_routing": (c_int, [_POINTER, _IDS, c_size_t, _ERROR]),
    "l3_session_cancel": (None, [_POINTER]),
    "l3_session_save": (c_int, [_POINTER, c_uint32, _ERROR]),
    "l3_session_restore": (c_int, [_POINTER, c_uint32, _ERROR]),
    "l3_session_checkpoint": (c_uint32, [_POINTER, c_uint32]),
    "l3_session_export_bytes": (c_uint64, [_POINTER]),
    "l3_session_export": (c_int, [_POINTER, _POINTER, c_uint64, _ERROR]),
    "l3_export_read": (c_int, [_POINTER, c_uint64, POINTER(CExportInfo), _ERROR]),
    "l3_export_checkpoint": (c_uint32, [_POINTER, c_uint64, c_uint32]),
    "l3_session_import": (c_int, [_POINTER, _POINTER, c_uint64, c_uint32, _ERROR]),
    "l3_session_state_sha256": (c_int, [_POINTER, c_uint8 * 32, _ERROR]),
    "l3_sampler_create": (c_int, [_POINTER, POINTER(CSampling), _OUT, _ERROR]),
    "l3_sampler_destroy": (None, [_POINTER]),
    "l3_sampler_bias": (c_int, [_POINTER, _IDS, _FLOATS, c_size_t, _ERROR]),
    "l3_sampler_sample": (c_int, [_POINTER, POINTER(CChoice), _IDS, _ERROR]),
    "l3_log_probabilities": (c_int, [_POINTER, _FLOATS, c_int32, _FLOATS, c_uint32, _IDS, _FLOATS, _ERROR]),
}


def native_target() -> str:
    """Name of the build folder for this machine, ``x86_64`` or ``aarch64``."""
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


def library_path(explicit: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """Where the engine is: the argument, else this program itself, else MINDNANO_ENGINE, else the build folder.

    The portable program holds the engine and loads no other, whatever the environment says.
    """
    if explicit is not None:
        return explicit
    if built_in.start() is not None:
        return Path(built_in.PROGRAM)
    named = environ.get(LIBRARY_VARIABLE, "")
    if named:
        return Path(named)
    return Path(__file__).resolve().parent.parent / "build" / native_target() / LIBRARY_NAME


def load(path: Path) -> ctypes.CDLL:
    """Loads the library, checks its interface version and declares every prototype.

    Raises:
        EngineError: the file is missing, is no library for this machine, lacks a symbol or has another version.
    """
    inside = path == Path(built_in.PROGRAM)
    if not inside and not path.is_file():
        raise EngineError(
            "engine-missing",
            f"the engine library is not at {path}",
            hint=f"build it with `python -m engine.build`, or point {LIBRARY_VARIABLE} at a built {LIBRARY_NAME}",
        )
    try:
        library = ctypes.CDLL(None if inside else str(path))
    except OSError as error:
        raise EngineError(
            "engine-load",
            f"the engine library {path} cannot be loaded: {error}",
            hint="it may be built for another machine; build it here with `python -m engine.build`",
        ) from error
    _declare(library, "l3_abi_version", path)
    found = int(library.l3_abi_version())
    if found != ABI_VERSION:
        raise EngineError(
            "engine-abi",
            f"the engine library {path} has interface version {found}, this program expects {ABI_VERSION}",
            hint="build engine and launcher from the same sources: `python -m engine.build`",
        )
    for name in _PROTOTYPES:
        _declare(library, name, path)
    return library


def _declare(library: ctypes.CDLL, name: str, path: Path) -> None:
    result, arguments = _PROTOTYPES[name]
    try:
        function = getattr(library, name)
    except AttributeError as error:
        raise EngineError(
            "engine-symbol",
            f"the engine library {path} has no function {name}",
            hint="it is not this project's engine, or a damaged one; build it with `python -m engine.build`",
        ) from error
    function.restype = result
    function.argtypes = arguments
