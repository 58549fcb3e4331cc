"""The binding to the engine: packages, engines and sessions as typed Python objects; samplers are in engine_sampling.

Statuses become errors of `launcher.errors`. Large arrays cross as buffers (`array.array`, `memoryview`, NumPy):
nothing is copied and NumPy is not needed. Every object is closed by `close()` or as a context manager; closing one
first closes what was made from it.
"""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Sequence
from ctypes import byref, c_int32, c_size_t
from pathlib import Path
from typing import Any

from launcher import engine_abi as abi
from launcher.engine_export import as_export_errors
from launcher.engine_library import (
    Handle,
    Library,
    Progress,
    floats,
    ids_array,
    readable_block,
    with_progress,
    writable_block,
)
from launcher.engine_text import token_ids
from launcher.engine_types import EngineOptions, Logits, MemoryPlan, ModelConfig, Section, SessionOptions, TensorInfo
from launcher.errors import InternalError, PackageError


class Package(Handle):
    """An open, validated, memory-mapped `.l3r` file."""

    _destructor = "l3_package_close"

    def __init__(self, path: Path, *, window: tuple[int, int] | None = None, library: Library | None = None) -> None:
        """Opens and validates; touches no tensor.

        Args:
            path: the package, or a file that holds it.
            window: offset, a multiple of 65536, and length in bytes of a package that lies inside `path`.
            library: the engine; by default the one that is found.

        Raises:
            PackageError: missing, unreadable, damaged or unsupported.
            EngineError: the engine library could not be loaded.
        """
        super().__init__(Library() if library is None else library, None)
        self.path = path
        try:
            if window is None:
                self.library.call("l3_package_open", os.fsencode(path), byref(self._pointer))
            else:
                self.library.call("l3_package_open_at", os.fsencode(path), *window, byref(self._pointer))
        except PackageError as error:
            if str(path) in error.message:
                raise
            raise error.about(path) from error
        self.config = ModelConfig.from_struct(self.library.functions.l3_package_config(self.address).contents)

    def section(self, kind: Section) -> bytes | None:
        """A copy of a section's bytes, or None where the package has no such section."""
        data = ctypes.c_void_p()
        length = c_size_t()
        self.library.call("l3_package_section", self.address, int(kind), byref(data), byref(length))
        return ctypes.string_at(data, length.value) if data.value is not None else None

    def tensors(self) -> list[TensorInfo]:
        """The tensor table in the order of the file."""
        count = int(self.library.functions.l3_package_tensor_count(self.address))
        result = []
        for index in range(count):
            info = abi.CTensorInfo()
            self.library.call("l3_package_tensor", self.address, index, byref(info))
            result.append(TensorInfo.from_struct(info))
        return result

    def identity(self) -> bytes:
        """SHA-256 over config and tensors, 32 bytes: equal for packages that compute the same."""
        digest = (ctypes.c_uint8 * 32)()
        self.library.call("l3_package_identity", self.address, digest)
        return bytes(digest)

    @property
    def has_mtp(self) -> bool:
        """Whether the package holds the MTP layer."""
        return bool(self.library.functions.l3_package_has_mtp(self.address))

    def verify(self, progress: Progress | None = None) -> None:
        """Hashes every section and tensor against the directory; `progress(done, total)` in bytes.

        Raises:
            PackageError: some bytes are not what the directory says.
        """
        with_progress(progress, lambda report: self.library.call("l3_package_verify", self.address, report, None))

    def read_rows(self, index: int, first: int, count: int, out: Any) -> None:
        """Dequantises rows `first` to `first + count` of tensor `index` into the float32 buffer `out` [count][K]."""
        info = abi.CTensorInfo()
        self.library.call("l3_package_tensor", self.address, index, byref(info))
        width = int(info.shape[info.rank - 1])
        self.library.call("l3_package_read_rows", self.address, index, first, count, floats(out, count * width))

    def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of the text; with `special`, added tokens that stand in the text are recognised.

        Raises:
            UsageError: the text holds a lone surrogate, which is no character.
        """
        return token_ids(self.library, self.address, text, special=special)[0].tolist()

    def first_tokens(self, text: str, most: int | None = None, *, special: bool = True) -> tuple[array[int], int]:
        """As int32 the first `most` of the ids that `tokenize` gives, or all, and how many it gives; errors as there.

        Unlike that it keeps no other thread waiting, however long the text is.
        """
        return token_ids(self.library, self.address, text, special=special, most=most)

    def token_bytes(self, token: int) -> bytes:
        """The raw bytes of one token, not necessarily valid UTF-8."""
        data = ctypes.c_void_p()
        length = c_size_t()
        self.library.call("l3_token_bytes", self.address, token, byref(data), byref(length))
        return ctypes.string_at(data, length.value) if data.value is not None else b""

    def token_find(self, data: bytes) -> int | None:
        """Id of the token with exactly these bytes, or None."""
        token = int(self.library.functions.l3_token_find(self.address, data, len(data)))
        return None if token == abi.NO_TOKEN else token

    def token_is_special(self, token: int) -> bool:
        """Whether the token is an added one marked special."""
        return bool(self.library.functions.l3_token_is_special(self.address, token))

    def log_probabilities(self, session: Session, token: int, top: int) -> tuple[float, tuple[tuple[int, float], ...]]:
        """Natural log-probabilities after the session's last token, before any sampling.

        Args:
            session: it has logits.
            token: the id whose log-probability comes first.
            top: how many of the likeliest ids to add, likeliest first; at most 64.

        Raises:
            UsageError: no token has that id, or there are not that many.
            InternalError: nothing was evaluated with logits yet.
        """
        logprob = ctypes.c_float()
        ids, values = (c_int32 * top)(), (ctypes.c_float * top)()
        logits = session.logits_pointer()
        self.library.call("l3_log_probabilities", self.address, logits, token, byref(logprob), top, ids, values)
        return logprob.value, tuple(zip(ids, values, strict=True))

    def plan(self, engine: EngineOptions, session: SessionOptions) -> MemoryPlan:
        """What a session with these options costs, by named term.

        Raises:
            UsageError, PackageError: options that the package or the engine cannot serve.
        """
        plan = abi.CMemoryPlan()
        self.library.call("l3_plan", self.address, byref(engine.struct()), byref(session.struct()), byref(plan))
        return MemoryPlan.from_struct(plan)


class Engine(Handle):
    """A package with its kernels and thread pool."""

    _destructor = "l3_engine_destroy"

    def __init__(self, package: Package, options: EngineOptions | None = None) -> None:
        """Raises:
        UsageError, PackageError, ResourceError: as the engine says.
        """
        super().__init__(package.library, package)
        self.package = package
        settings = EngineOptions() if options is None else options
        self.library.call("l3_engine_create", package.address, byref(settings.struct()), byref(self._pointer))

    @property
    def simd(self) -> str:
        """Name of the kernel set in use."""
        return str(self.library.functions.l3_engine_simd(self.address).decode())

    @property
    def threads(self) -> int:
        """Threads in the pool."""
        return int(self.library.functions.l3_engine_threads(self.address))

    def preload(self, progress: Progress | None = None) -> None:
        """Makes every page of the package that the engine uses resident; `progress(done, total)` in bytes.

        Raises:
            PackageError: some bytes cannot be read; the file was cut, or the disk fails.
            ResourceError: there is no memory for them.
        """
        with_progress(progress, lambda report: self.library.call("l3_engine_preload", self.address, report, None))

    def unload(self) -> None:
        """Lets go of every resident page of the package; those that are needed are read again, in any thread."""
        self.library.functions.l3_engine_unload(self.address)

    def read_bandwidth(self, count: int) -> float:
        """Measured sequential read bandwidth over `count` bytes, bytes per second."""
        result = ctypes.c_double()
        self.library.call("l3_engine_read_bandwidth", self.address, count, byref(result))
        return result.value


class Session(Handle):
    """One mutable timeline of tokens; used by one thread at a time, except for `cancel`."""

    _destructor = "l3_session_destroy"

    def __init__(self, engine: Engine, options: SessionOptions) -> None:
        """Raises as `reopen`."""
        super().__init__(engine.library, engine)
        self.engine = engine
        self.options = options
        self._vocabulary = engine.package.config.vocab_size
        self._width = engine.package.config.hidden_size
        self._routing: object = None  # keeps the caller's array alive while the engine reads it
        self.reopen()

    def reopen(self) -> None:
        """Makes it anew after `close`, empty and with the same options; whoever has this object goes on with it.

        Raises:
            UsageError, ResourceError: as the engine says; it stays closed.
        """
        if not self._pointer:
            wanted = self.options.struct()
            self.library.call("l3_session_create", self.engine.address, byref(wanted), byref(self._pointer))

    def reset(self) -> None:
        """Forgets the timeline; keeps the memory."""
        self.library.functions.l3_session_reset(self.address)

    @property
    def context(self) -> int:
        """Tokens that the timeline can hold."""
        return self.options.context

    @property
    def checkpoints(self) -> int:
        """Slots that `save` has."""
        return self.options.checkpoints

    @property
    def position(self) -> int:
        """Tokens consumed so far."""
        return int(self.library.functions.l3_session_position(self.address))

    def tokens(self) -> list[int]:
        """The ids consumed so far."""
        count = self.position
        return list(self.library.functions.l3_session_tokens(self.address)[:count]) if count else []

    @property
    def allocated(self) -> int:
        """Bytes this session holds."""
        return int(self.library.functions.l3_session_allocated(self.address))

    def eval(self, ids: Sequence[int], *, mode: Logits = Logits.LAST, logits: Any = None, hidden: Any = None) -> None:
        """Appends ids to the timeline.

        Args:
            ids: tokens to consume.
            mode: which logits to compute.
            logits: None, or a writable float32 buffer: [1][vocab_size] for LAST, [len(ids)][vocab_size] for ALL.
            hidden: None, or a writable float32 buffer [len(ids)][hidden_size] for the output after the final norm.

        Raises:
            ContextFull: the ids do not fit.
            Cancelled: `cancel` was called; `position` says how many ids were consumed.
        """
        rows = len(ids) if mode is Logits.ALL else 1
        self.library.call(
            "l3_session_eval",
            self.address,
            ids_array(ids),
            len(ids),
            int(mode),
            floats(logits, rows * self._vocabulary),
            floats(hidden, len(ids) * self._width),
        )

    def logits(self) -> array[float]:
        """A copy of the last evaluated token's logits [vocab_size].

        Raises:
            InternalError: nothing was evaluated with logits yet.
        """
        pointer = self.logits_pointer()
        return array("f", ctypes.string_at(pointer, 4 * self._vocabulary))

    def mtp(
        self, hidden: Any, next_ids: Sequence[int], position: int, *, logits: Any = None, hidden_out: Any = None
    ) -> None:
        """The MTP layer over positions [position, position + len(next_ids)); see `l3_session_mtp` in ling3.h."""
        count = len(next_ids)
        self.library.call(
            "l3_session_mtp",
            self.address,
            floats(hidden, count * self._width),
            ids_array(next_ids),
            count,
            position,
            floats(logits, count * self._vocabulary),
            floats(hidden_out, count * self._width),
        )

    def force_routing(self, experts: Sequence[int] | None, tokens: int = 0) -> None:
        """Forces the experts of every following evaluation, flat [layer][token][experts_per_token]; None ends it."""
        routing = None if experts is None else ids_array(experts)
        self.library.call("l3_session_force_routing", self.address, routing, tokens)
        self._routing = routing

    def cancel(self) -> None:
        """Stops a running or the next `eval`; callable from any thread and from a signal handler."""
        if self._pointer:
            self.library.functions.l3_session_cancel(self._pointer)

    def save(self, slot: int) -> None:
        """Keeps the present position in a checkpoint, whatever the slot held before.

        Raises:
            UsageError: the session was not created with that many.
        """
        self.library.call("l3_session_save", self.address, slot)

    def restore(self, slot: int) -> None:
        """Returns to the position of a checkpoint; later ones become empty and there are no logits.

        Raises:
            UsageError: the slot is empty, or the session was not created with that many.
        """
        self.library.call("l3_session_restore", self.address, slot)

    def checkpoint(self, slot: int) -> int | None:
        """Position of a checkpoint, or None where the slot is empty."""
        position = int(self.library.functions.l3_session_checkpoint(self.address, slot))
        return None if position == abi.EMPTY_SLOT else position

    @property
    def export_bytes(self) -> int:
        """Bytes that `export_into` writes now."""
        return int(self.library.functions.l3_session_export_bytes(self.address))

    def export_into(self, buffer: Any) -> None:
        """Writes everything up to the present position into a writable buffer of exactly `export_bytes` bytes.

        Raises:
            UsageError: the buffer has another size.
        """
        block = writable_block(buffer)
        self.library.call("l3_session_export", self.address, block, len(block))

    def import_from(self, buffer: Any, position: int) -> None:
        """Takes the place of an exported session; on failure this one stays as it was. There are no logits then.

        Args:
            buffer: bytes or a writable buffer, exactly what `export_into` wrote.
            position: the exported session's own, or that of one of its checkpoints.

        Raises:
            UsageError: it is damaged, of another package, engine or cache type, or was never at that position.
            ContextFull: it does not fit this session's context.
        """
        block = readable_block(buffer)
        with as_export_errors():
            self.library.call("l3_session_import", self.address, block, len(block), position)
        self._routing = None

    def state_sha256(self) -> bytes:
        """SHA-256 over timeline, states and the used part of every cache."""
        digest = (ctypes.c_uint8 * 32)()
        self.library.call("l3_session_state_sha256", self.address, digest)
        return bytes(digest)

    def logits_pointer(self) -> Any:
        """Where the last evaluated token's logits [vocab_size] are, until the next call.

        Raises:
            InternalError: nothing was evaluated with logits yet.
        """
        pointer = self.library.functions.l3_session_logits(self.address)
        if not pointer:
            raise InternalError("no-logits", "the session has no logits yet")
        return pointer
