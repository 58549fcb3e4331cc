"""The loaded engine library: calls with their errors, and the owner of one C object.

`launcher/engine.py` derives the nouns of `ling3.h` from `Handle`.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable, Sequence
from ctypes import byref, c_char, c_float, c_int32
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self
from weakref import WeakSet

from launcher import engine_abi as abi
from launcher.errors import (
    Cancelled,
    ContextFull,
    EngineCrash,
    InternalError,
    MindnanoError,
    PackageError,
    ResourceError,
    UsageError,
)
from launcher.interrupts import held_back

Progress = Callable[[int, int], None]

_OK = 0
_E_ARG = 1
_E_IO = 2
_E_FORMAT = 3
_E_UNSUPPORTED = 4
_E_MEMORY = 5
_E_CONTEXT = 6
_E_CANCELLED = 7


def status_error(status: int, message: str, os_errno: int = 0) -> MindnanoError:
    """The error that stands for a failed status of the engine."""
    if status == _E_ARG:
        return UsageError("engine-argument", message)
    if status == _E_IO and os_errno == errno.ENOENT:
        return PackageError("package-missing", message, hint="check the path, or use --demo for the built-in model")
    if status == _E_IO:
        return PackageError("package-unreadable", message, hint="check the file's permissions and the disk")
    if status == _E_FORMAT:
        return PackageError("package-damaged", message, hint="copy or download the package again")
    if status == _E_UNSUPPORTED:
        return PackageError("package-unsupported", message, hint="use a newer engine or another package")
    if status == _E_MEMORY:
        return ResourceError("memory", message, hint="choose a smaller --context, or free memory")
    if status == _E_CONTEXT:
        return ContextFull("context-full", message, hint="start again with a larger --context")
    if status == _E_CANCELLED:
        return Cancelled("cancelled", message)
    return EngineCrash("engine-internal", message, hint="please report this with the command that led to it")


class Library:
    """The loaded shared library."""

    def __init__(self, path: Path | None = None) -> None:
        """Loads the library from `path`, MINDNANO_ENGINE or the build folder.

        Raises:
            EngineError: missing, not loadable, or of another interface version.
        """
        self.path = abi.library_path(path)
        self.functions: ctypes.CDLL = abi.load(self.path)

    @property
    def version(self) -> str:
        """Name and version of the engine."""
        return str(self.functions.l3_version().decode())

    @property
    def abi_version(self) -> int:
        """Version of the interface."""
        return int(self.functions.l3_abi_version())

    @property
    def simd_available(self) -> tuple[str, ...]:
        """Kernel sets that this build has and this CPU can run, best first."""
        return tuple(self.functions.l3_simd_available().decode().split())

    def call(self, name: str, *arguments: object) -> None:
        """Calls a function that returns a status and takes an error last; raises what the status means."""
        error = abi.CError()
        status = int(getattr(self.functions, name)(*arguments, byref(error)))
        if status != _OK:
            raise status_error(status, error.message.decode(errors="replace"), int(error.os_errno))


class Handle:
    """Owns one object of the engine."""

    _destructor: ClassVar[str]

    def __init__(self, library: Library, parent: Handle | None) -> None:
        self.library = library
        self._parent = parent  # keeps it alive
        self._pointer = ctypes.c_void_p()
        self._children: WeakSet[Handle] = WeakSet()
        if parent is not None:
            parent._children.add(self)

    @property
    def address(self) -> ctypes.c_void_p:
        """The C pointer.

        Raises:
            InternalError: the object is closed.
        """
        if not self._pointer:
            raise InternalError("closed-handle", f"{type(self).__name__} is closed")
        return self._pointer

    def close(self) -> None:
        """Frees the object and everything made from it; does nothing the second time."""
        for child in list(self._children):
            child.close()
        if self._pointer:
            pointer, self._pointer = self._pointer, ctypes.c_void_p()
            getattr(self.library.functions, self._destructor)(pointer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def floats(buffer: Any, count: int) -> Any:
    """A writable float32 buffer of at least `count` values as a C array; None stays None."""
    if buffer is None:
        return None
    try:
        return (c_float * count).from_buffer(buffer)
    except (TypeError, ValueError, BufferError) as error:
        raise InternalError("buffer", f"expected a writable buffer of {count} float32: {error}") from error


def ids_array(ids: Sequence[int]) -> Any:
    """Token ids as a C array of int32."""
    try:
        return (c_int32 * len(ids))(*ids)
    except TypeError as error:
        raise InternalError("buffer", f"token ids must be integers: {error}") from error


def writable_block(buffer: Any) -> Any:
    """All bytes of a writable buffer, such as a `bytearray`, as a C array; nothing is copied."""
    try:
        return (c_char * memoryview(buffer).nbytes).from_buffer(buffer)
    except (TypeError, ValueError, BufferError) as error:
        raise InternalError("buffer", f"expected a writable buffer in one piece: {error}") from error


def readable_block(buffer: Any) -> Any:
    """All bytes of a buffer as a C array. One that can only be read is copied: ctypes takes no address of it."""
    try:
        view = memoryview(buffer)
        if view.readonly:
            return (c_char * view.nbytes).from_buffer_copy(buffer)
    except (TypeError, ValueError, BufferError) as error:
        raise InternalError("buffer", f"expected a buffer in one piece: {error}") from error
    return writable_block(buffer)


def with_progress(progress: Progress | None, call: Callable[[Any], None]) -> None:
    """Calls with a C callback that reports to `progress`, and raises again what that raises."""
    raised: list[BaseException] = []

    with held_back() as is_interrupted:

        def report(_user: object, done: int, total: int) -> int:
            try:
                if progress is not None:
                    progress(done, total)
            except BaseException as error:  # must not cross C; raised again below
                raised.append(error)
                return 1
            return int(is_interrupted())

        try:
            call(abi.ProgressFunction(report))
        except Cancelled:
            if raised:
                raise raised[0] from None
            raise
