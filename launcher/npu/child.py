"""The child of the NPU's self test: the only place that loads librknnrt, in a process that may crash or hang.

It reads one line of JSON from stdin::

    {"library": "/absolute/path", "locks": ["/run/lock", ...], "files": 512}

and writes lines of JSON to the descriptor that its argument names. Whatever the library prints goes elsewhere::

    {"event": "started", "pid": 4711}
    {"event": "loaded", "version": "2.3.2"}
    {"event": "core", "mask": 1, "layout": "native", "wrong": 0, "of": 256, "zeros": false}    (six of these)
    {"event": "done"}
    {"event": "failed", "reason": "load", "detail": "..."}      (instead of what would have followed)

Reasons: ``request``, ``busy``, ``lock``, ``load``, ``symbol``, ``call`` (with ``function`` and ``code``), ``shape``.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from launcher.npu import rknn_abi as abi
from launcher.npu.rknn_library import version_in

LOCK_NAME: Final = "mindnano-infer.npu.lock"
CORES: Final = (1, 2, 4)
LAYOUTS: Final = {"native": abi.NATIVE, "normal": abi.NORMAL}
M: Final = 4
K: Final = 64
N: Final = 64
_EXIT_FAILED: Final = 3
_MAX_REQUEST: Final = 1 << 16
_MAX_LIBRARY: Final = 64 << 20
_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG


class Failed(Exception):
    """The test ends here. `event` is what goes to the parent."""

    def __init__(self, reason: str, **facts: object) -> None:
        super().__init__(reason)
        self.event: dict[str, object] = {"event": "failed", "reason": reason, **facts}


class Events:
    """Lines of JSON on a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, **event: object) -> None:
        """Writes one event."""
        data = json.dumps(event).encode() + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the parent asks for."""

    library: str
    locks: tuple[str, ...]
    files: int


def main(arguments: Sequence[str]) -> int:
    """Runs the test; `arguments` is the number of the descriptor for events."""
    if len(arguments) != 1 or not arguments[0].isdecimal():
        print("this is a part of --check=deep and does nothing by itself", file=sys.stderr)
        return 2
    events = Events(int(arguments[0]))
    try:
        request = _read_request()
        _prepare(request.files)
        events.send(event="started", pid=os.getpid())
        lock = _lock(request.locks)
        try:
            _test(request.library, events)
        finally:
            os.close(lock)
        events.send(event="done")
    except Failed as failure:
        events.send(**failure.event)
        return _EXIT_FAILED
    return 0


def _read_request() -> Request:
    line = sys.stdin.buffer.readline(_MAX_REQUEST)
    try:
        found = json.loads(line)
        return Request(library=str(found["library"]), locks=tuple(map(str, found["locks"])), files=int(found["files"]))
    except (ValueError, TypeError, KeyError) as error:
        raise Failed("request", detail=str(error)) from error


def _prepare(files: int) -> None:
    """Dies with the parent, leaves no core dump, opens as many files as it may."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = files if hard == resource.RLIM_INFINITY else min(files, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _lock(folders: Sequence[str]) -> int:
    """Takes the lock that keeps two programs from using the NPU at once, which panics some kernels.

    Returns the open file, which holds the lock.
    """
    trouble = ""
    for folder in folders:
        path = f"{folder}/{LOCK_NAME}"
        try:
            handle = _open_lock(path)
        except OSError as error:
            trouble = f"{path}: {error.strerror}"
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise Failed("busy", path=path) from error
            trouble = f"{path}: {error.strerror}"
            continue
        return handle
    raise Failed("lock", detail=trouble)


def _open_lock(path: str) -> int:
    # Reading is enough for a lock, and another user's file in a shared folder can only be read.
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, os.O_RDONLY | flags)
    except FileNotFoundError:
        with suppress(FileExistsError):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o644)
        return os.open(path, os.O_RDONLY | flags)


def _test(path: str, events: Events) -> None:
    try:
        with Path(path).open("rb") as file:
            version, _ = version_in(file.read(_MAX_LIBRARY))
        functions = abi.RknnFunctions(path, version)
    except OSError as error:
        raise Failed("load", detail=str(error)) from error
    except abi.SymbolMissing as error:
        raise Failed("symbol", name=str(error)) from error
    events.send(event="loaded", version=version)
    a, b = known_matrices()
    expected = product(a, b)
    for mask in CORES:
        for layout in LAYOUTS:
            found = _multiply(functions, mask, layout, a, b)
            wrong = sum(1 for have, want in zip(found, expected, strict=True) if have != want)
            events.send(event="core", mask=mask, layout=layout, wrong=wrong, of=M * N, zeros=not any(found))


def known_matrices() -> tuple[bytes, bytes]:
    """A [M][K] and B [K][N] of int8, row by row; no row and no column repeats."""
    a = bytes((m * 61 + k * 37 + 5) % 255 - 127 & 0xFF for m in range(M) for k in range(K))
    b = bytes((k * 91 + n * 53 + k * n + 11) % 255 - 127 & 0xFF for k in range(K) for n in range(N))
    return a, b


def product(a: bytes, b: bytes) -> list[int]:
    """C [M][N] of int32, computed here."""
    left, right = [_signed(value) for value in a], [_signed(value) for value in b]
    return [sum(left[m * K + k] * right[k * N + n] for k in range(K)) for m in range(M) for n in range(N)]


def native_order(b: bytes) -> bytes:
    """B [K][N] in the NPU's own order for int8: [N/32][K/32][32 of N][32 of K]."""
    return bytes(
        b[(inner * 32 + k) * N + outer * 32 + n]
        for outer in range(N // 32)
        for inner in range(K // 32)
        for n in range(32)
        for k in range(32)
    )


def _signed(value: int) -> int:
    return value - 256 if value > 127 else value


def _multiply(functions: abi.RknnFunctions, mask: int, layout: str, a: bytes, b: bytes) -> list[int]:
    """One product on one core. What is not given back on a failure goes with the process."""
    context = ctypes.c_uint64()
    described = functions.product(M, K, N, LAYOUTS[layout])
    operands = abi.OperandAttributes()
    _call(functions, "rknn_matmul_create", ctypes.byref(context), ctypes.byref(described), ctypes.byref(operands))
    sizes = (operands.a.size, operands.b.size, operands.c.size)
    if sizes != (M * K, K * N, M * N * 4):
        raise Failed("shape", detail=f"operands of {sizes} bytes, expected {(M * K, K * N, M * N * 4)}")
    _call(functions, "rknn_matmul_set_core_mask", context, mask)
    data = {"a": a, "b": native_order(b) if layout == "native" else b, "c": bytes(M * N * 4)}
    buffers = {}
    for name, content in data.items():
        buffers[name] = _buffer(functions, context, content)
        # After the bytes are there: the library may reorder B now.
        _call(functions, "rknn_matmul_set_io_mem", context, buffers[name], ctypes.byref(getattr(operands, name)))
    _call(functions, "rknn_matmul_run", context)
    if functions.second_generation:
        _call(functions, "rknn_mem_sync", context, buffers["c"], abi.SYNC_FROM_DEVICE)
    found = list((ctypes.c_int32 * (M * N)).from_address(buffers["c"].contents.virtual))
    for buffer in buffers.values():
        _call(functions, "rknn_destroy_mem", context, buffer)
    _call(functions, "rknn_matmul_destroy", context)
    return found


def _buffer(functions: abi.RknnFunctions, context: ctypes.c_uint64, content: bytes) -> Any:
    """A shared buffer with this content."""
    buffer = functions.rknn_create_mem(context, len(content))
    if not buffer or not buffer.contents.virtual:
        raise Failed("call", function="rknn_create_mem", code=-4)
    ctypes.memmove(buffer.contents.virtual, content, len(content))
    if functions.second_generation:
        _call(functions, "rknn_mem_sync", context, buffer, abi.SYNC_TO_DEVICE)
    return buffer


def _call(functions: abi.RknnFunctions, name: str, *arguments: object) -> None:
    code = getattr(functions, name)(*arguments)
    if code != 0:
        raise Failed("call", function=name, code=code)
